/** Forward by Hopper's products: exponentials stay in the registers that made their scores, and weigh values there. */
#include <cmath>

#include "vram/attention_sm90.cuh"
#include "vram/launch.cuh"
#include "vram/tensor_map.h"

namespace uform::vram::sm90 {

namespace {

constexpr float raise_k = 8.f; // a row's exponentials may reach 2^8 before its peak is raised

struct forward_memory {
    boxes_of<own_boxes_k> queries, keys, values;
    passing_memory passing;
    segment_memory segments;
    hopper::barrier own;
};

/** What a thread keeps of its group's 64 queries while keys and values pass by: of two rows. */
struct forward_state {
    float attended[1][8][4] = {};
    float peaks[2] = {-INFINITY, -INFINITY}; // of the scores, or a little less
    float sums[2] = {};
};

/**
 *  Turns scores into exponentials. A row's peak is raised, and what was summed so far shrinks, only where a score
 *  passes it by far: what is left above it cancels out in the end.
 */
__device__ __forceinline__ void take_exponentials(forward_state& state, float (&scores)[8][4]) {
    float peaks[2];
    bool raise = false;
#pragma unroll
    for (unsigned half = 0; half != 2; ++half) {
        float peak = state.peaks[half];
#pragma unroll
        for (unsigned block = 0; block != 8; ++block)
            peak = fmaxf(peak, fmaxf(scores[block][half * 2], scores[block][half * 2 + 1]));
        peak = fmaxf(peak, __shfl_xor_sync(whole_warp_k, peak, 1));
        peak = fmaxf(peak, __shfl_xor_sync(whole_warp_k, peak, 2));
        // Row by row: what a row's neighbours in the warp hold must not show in its last bits.
        bool const far = peak - state.peaks[half] > raise_k / scores_to_base_2_k;
        peaks[half] = far ? peak : state.peaks[half];
        raise |= far;
    }
    if (__any_sync(whole_warp_k, raise)) {
#pragma unroll
        for (unsigned half = 0; half != 2; ++half) {
            float const peak = peaks[half], before = state.peaks[half];
            float const shrink = peak == before ? 1.f : power_of_2((before - peak) * scores_to_base_2_k);
            state.peaks[half] = peak;
            state.sums[half] *= shrink;
#pragma unroll
            for (auto& block : state.attended[0])
                block[half * 2] *= shrink, block[half * 2 + 1] *= shrink;
        }
    }
#pragma unroll
    for (unsigned half = 0; half != 2; ++half) {
        // A row that has seen no key of its segment yet has no peak.
        float const peak = state.peaks[half], base = peak == -INFINITY ? 0.f : peak * scores_to_base_2_k;
#pragma unroll
        for (unsigned block = 0; block != 8; ++block)
#pragma unroll
            for (unsigned i = 0; i != 2; ++i) {
                float& score = scores[block][half * 2 + i];
                score = power_of_2(fmaf(score, scores_to_base_2_k, -base));
                state.sums[half] += score;
            }
    }
}

/** Divides by the sums of exponentials and writes rows up to `active`: of no keys, as past the count, zeros. */
__device__ __forceinline__ void finish(attention_problem const& problem, forward_state const& state, unsigned head,
                                       unsigned first) {
    float factors[1][2];
#pragma unroll
    for (unsigned half = 0; half != 2; ++half) {
        float sum = state.sums[half];
        sum += __shfl_xor_sync(whole_warp_k, sum, 1);
        sum += __shfl_xor_sync(whole_warp_k, sum, 2);
        factors[0][half] = sum > 0.f ? 1.f / sum : 0.f;
        unsigned const lane = threadIdx.x % warp_k, row = first + half * 8 + lane / 4;
        if (lane % 4 == 0 && row < problem.columns.active)
            problem.log_sums[std::size_t(head) * problem.columns.capacity + row] =
                sum > 0.f ? state.peaks[half] * score_scale_k + logf(sum) : 0.f;
    }
    std::size_t const stride = std::size_t(problem.heads) * head_width_k;
    __nv_bfloat16* const attended = problem.attended + head * head_width_k;
    store_sums(state.attended, factors, [&](unsigned row) -> __nv_bfloat16* {
        return first + row < problem.columns.active ? attended + (first + row) * stride : nullptr;
    });
}

/** A block for 128 columns and a head. */
__global__ void __launch_bounds__(block_threads_k, blocks_per_multiprocessor_k)
    attention_forward_kernel(attention_problem const problem, __grid_constant__ CUtensorMap const qkv) {
    using namespace hopper;
    extern __shared__ __align__(1024) std::byte shared[];
    forward_memory& memory = *reinterpret_cast<forward_memory*>(shared);
    unsigned const head = blockIdx.x % problem.heads, first = blockIdx.x / problem.heads * attention_block_k,
                   hidden = problem.heads * head_width_k;
    unsigned const offset = head * head_width_k;
    box_column const queries_at{&qkv, offset}, keys_at{&qkv, hidden + offset}, values_at{&qkv, 2 * hidden + offset};
    unsigned const count = problem.columns.counts[0];
    block_segments const found = block_segments::load(problem.columns, first);
    if (threadIdx.x == copying_thread_k) {
        memory.own.init(1);
        memory.passing.init();
        barriers_are_ready();
        memory.own.expect(3 * own_boxes_k * box_bytes_k);
#pragma unroll
        for (unsigned box = 0; box != own_boxes_k; ++box) {
            unsigned const row = first + box * box_k;
            copy_box(memory.queries[box], queries_at, row, memory.own);
            copy_box(memory.keys[box], keys_at, row, memory.own);
            copy_box(memory.values[box], values_at, row, memory.own);
        }
    }
    find_segments(memory.segments, problem.columns, first, count, found.own);
    __syncthreads();
    if (first >= count) {
        memory.own.wait(0); // no block leaves while something is copied into it
        return clear_rows(problem.attended + offset, hidden, first,
                          min(first + attention_block_k, problem.columns.active));
    }

    // By `found.hull` it would be no sooner: nothing else is on its way meanwhile.
    box_visits const visits = visits_of(hull_of(memory.segments, 0, attention_block_k / warp_k), first);
    row_segments const segments = segments_of_rows(memory.segments);
    auto const copy_step = [&](unsigned step) {
        memory.passing.copy(step, keys_at, values_at, visits.column(own_boxes_k + step));
    };
    if (threadIdx.x == copying_thread_k)
        for (unsigned step = 0; step != min(stages_k, visits.passing()); ++step)
            copy_step(step);
    memory.own.wait(0);
    if (first + attention_block_k > count) {
#pragma unroll
        for (unsigned box = 0; box != own_boxes_k; ++box)
            for (std::byte* one : {memory.queries[box], memory.keys[box], memory.values[box]})
                clear_slack(one, first + box * box_k, count, threadIdx.x, block_threads_k);
        show_to_products();
        __syncthreads();
    }

    std::uint64_t const queries = operand_of(memory.queries[group_place()]);
    forward_state state;
    for (unsigned visit = 0; visit != visits.count; ++visit) {
        unsigned const column = visits.column(visit), step = visit - own_boxes_k;
        bool const passing = visit >= own_boxes_k;
        if (passing) { // of use or not: a barrier tells its phase from the one before alone
            memory.passing.wait(step);
            if (column + box_k > count)
                memory.passing.clear(step, column, count);
        }
        if (segments.group.touches(column, box_k)) {
            auto& stage = memory.passing.boxes_at(step);
            unsigned const own = visit % own_boxes_k;
            std::uint64_t const keys = operand_of(passing ? stage[0] : memory.keys[own]),
                                values = operand_of(passing ? stage[1] : memory.values[own]);
            float scores[8][4];
            fence_sums(scores);
            products_begin();
            multiply_rows(scores, queries, keys);
            products_wait<0>();
            fence_sums(scores);
            if (!segments.warp.covers(column, box_k))
                segments.mask(scores, column, -INFINITY);
            take_exponentials(state, scores);
            add_weighted(state.attended[0], scores, values);
            products_wait<0>();
            fence_sums(state.attended[0]);
        }
        if (passing && memory.passing.release(step) && step + stages_k < visits.passing())
            copy_step(step + stages_k);
    }
    finish(problem, state, head, first + warp_row());
}

} // namespace

void launch_attention_forward(stream const& on, attention_problem const& problem) {
    std::size_t const hidden = std::size_t(problem.heads) * head_width_k, rows = problem.columns.active;
    if (rows == 0)
        return;
    CUtensorMap const qkv = tensor_map_of(on, problem.qkv, rows, 3 * hidden, 3 * hidden);
    launch(on, attention_forward_kernel, problem.heads * blocks_for(rows, attention_block_k), block_threads_k,
           sizeof(forward_memory), problem, qkv);
}

} // namespace uform::vram::sm90

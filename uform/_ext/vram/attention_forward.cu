#include <cmath>

#include "vram/attention_tile.cuh"
#include "vram/launch.cuh"

namespace uform::vram {

namespace {

constexpr unsigned keys_k = 64; // keys and values that a block holds at a time, twice
constexpr float raise_k = 8.f;  // a row's exponentials may reach 2^8 before its peak is raised
constexpr unsigned blocks_per_multiprocessor_k = 3;

/** Shared memory: the block's queries, two stages of keys and values, the bounds of each query's segment. */
struct forward_memory {
    static constexpr unsigned stages = tile_bytes(attention_block_k);
    static constexpr unsigned stage = 2 * tile_bytes(keys_k);
    static constexpr unsigned bounds = stages + 2 * stage;
    static constexpr unsigned bytes = bounds + attention_block_k * sizeof(uint2);
};

/** What one warp keeps of its 32 queries while keys and values pass by; a lane has 4 rows: [upper][half]. */
struct forward_state {
    float attended[2][8][4] = {};
    float peaks[2][2] = {{-INFINITY, -INFINITY}, {-INFINITY, -INFINITY}}; // of the scores, or a little less
    float sums[2][2] = {};
};

/** scores = 32 queries times 64 keys. Queries are loaded each time: registers are what blocks run out of first. */
__device__ __forceinline__ void score(std::uint32_t queries, std::uint32_t keys, unsigned lane,
                                      float (&scores)[2][8][4]) {
    unsigned const down = lane_place_down(lane), across = lane_place_across(lane);
#pragma unroll
    for (unsigned step = 0; step != 4; ++step) {
        std::uint32_t a[2][4];
        load_matrices(a[0], matrices_at(queries, down, 0, step * 2));
        load_matrices(a[1], matrices_at(queries, down, 16, step * 2));
#pragma unroll
        for (unsigned block = 0; block != 8; block += 2) {
            std::uint32_t b[4];
            load_matrices(b, matrices_at(keys, across, block * 8, step * 2));
#pragma unroll
            for (unsigned upper = 0; upper != 2; ++upper) {
                multiply_add(scores[upper][block], a[upper], b[0], b[1]);
                multiply_add(scores[upper][block + 1], a[upper], b[2], b[3]);
            }
        }
    }
}

/** Leaves out the keys of other segments; `first` is the column of the first key. */
__device__ __forceinline__ void mask(uint2 const* bounds, unsigned first, unsigned lane, float (&scores)[2][8][4]) {
#pragma unroll
    for (unsigned upper = 0; upper != 2; ++upper)
#pragma unroll
        for (unsigned half = 0; half != 2; ++half) {
            uint2 const segment = bounds[upper * 16 + half * 8 + lane / 4];
#pragma unroll
            for (unsigned block = 0; block != 8; ++block)
#pragma unroll
                for (unsigned i = 0; i != 2; ++i)
                    if (!within(segment, first + block * 8 + lane % 4 * 2 + i))
                        scores[upper][block][half * 2 + i] = -INFINITY;
        }
}

/**
 *  Turns scores into exponentials. A row's peak is raised, and what was summed so far shrinks, only where a score
 *  passes it by far: what is left above it cancels out in the end.
 */
__device__ __forceinline__ void take_exponentials(forward_state& state, float (&scores)[2][8][4]) {
    float peaks[2][2];
    bool raise = false;
#pragma unroll
    for (unsigned upper = 0; upper != 2; ++upper)
#pragma unroll
        for (unsigned half = 0; half != 2; ++half) {
            float peak = state.peaks[upper][half];
#pragma unroll
            for (unsigned block = 0; block != 8; ++block)
                peak = fmaxf(peak, fmaxf(scores[upper][block][half * 2], scores[upper][block][half * 2 + 1]));
            peak = fmaxf(peak, __shfl_xor_sync(whole_warp_k, peak, 1));
            peak = fmaxf(peak, __shfl_xor_sync(whole_warp_k, peak, 2));
            // Row by row: what a row's neighbours in the warp hold must not show in its last bits.
            bool const far = peak - state.peaks[upper][half] > raise_k / scores_to_base_2_k;
            peaks[upper][half] = far ? peak : state.peaks[upper][half];
            raise |= far;
        }
    if (__any_sync(whole_warp_k, raise)) {
#pragma unroll
        for (unsigned upper = 0; upper != 2; ++upper)
#pragma unroll
            for (unsigned half = 0; half != 2; ++half) {
                float const peak = peaks[upper][half], before = state.peaks[upper][half];
                float const shrink = peak == before ? 1.f : power_of_2((before - peak) * scores_to_base_2_k);
                state.peaks[upper][half] = peak;
                state.sums[upper][half] *= shrink;
#pragma unroll
                for (unsigned block = 0; block != 8; ++block)
                    state.attended[upper][block][half * 2] *= shrink,
                        state.attended[upper][block][half * 2 + 1] *= shrink;
            }
    }
#pragma unroll
    for (unsigned upper = 0; upper != 2; ++upper)
#pragma unroll
        for (unsigned half = 0; half != 2; ++half) {
            // A row that has seen no key of its segment yet has no peak.
            float const peak = state.peaks[upper][half], base = peak == -INFINITY ? 0.f : peak * scores_to_base_2_k;
#pragma unroll
            for (unsigned block = 0; block != 8; ++block)
#pragma unroll
                for (unsigned i = 0; i != 2; ++i) {
                    float& score = scores[upper][block][half * 2 + i];
                    score = power_of_2(fmaf(score, scores_to_base_2_k, -base));
                    state.sums[upper][half] += score;
                }
        }
}

__device__ __forceinline__ void attend(forward_state& state, std::uint32_t values, unsigned lane,
                                       float const (&weights)[2][8][4]) {
    unsigned const down = lane_place_down(lane);
#pragma unroll
    for (unsigned step = 0; step != keys_k / 16; ++step) {
        std::uint32_t a[2][4];
        pack_operand(a[0], weights[0], step * 2);
        pack_operand(a[1], weights[1], step * 2);
#pragma unroll
        for (unsigned block = 0; block != 8; block += 2) {
            std::uint32_t b[4];
            load_matrices_transposed(b, matrices_at(values, down, step * 16, block));
#pragma unroll
            for (unsigned upper = 0; upper != 2; ++upper) {
                multiply_add(state.attended[upper][block], a[upper], b[0], b[1]);
                multiply_add(state.attended[upper][block + 1], a[upper], b[2], b[3]);
            }
        }
    }
}

/** Divides by the sums of exponentials and writes rows up to `active`: of no keys, as past the count, zeros. */
__device__ __forceinline__ void finish(attention_problem const& problem, forward_state const& state, unsigned head,
                                       unsigned first, unsigned lane) {
    float factors[2][2];
#pragma unroll
    for (unsigned upper = 0; upper != 2; ++upper)
#pragma unroll
        for (unsigned half = 0; half != 2; ++half) {
            float sum = state.sums[upper][half];
            sum += __shfl_xor_sync(whole_warp_k, sum, 1);
            sum += __shfl_xor_sync(whole_warp_k, sum, 2);
            factors[upper][half] = sum > 0.f ? 1.f / sum : 0.f;
            unsigned const row = first + upper * 16 + half * 8 + lane / 4;
            if (lane % 4 == 0 && row < problem.columns.active)
                problem.log_sums[std::size_t(head) * problem.columns.capacity + row] =
                    sum > 0.f ? state.peaks[upper][half] * score_scale_k + logf(sum) : 0.f;
        }
    std::size_t const stride = std::size_t(problem.heads) * head_width_k;
    __nv_bfloat16* const attended = problem.attended + head * head_width_k;
    store_sums(state.attended, factors, [&](unsigned row) -> __nv_bfloat16* {
        return first + row < problem.columns.active ? attended + (first + row) * stride : nullptr;
    });
}

/** A block for 128 columns and a head: it visits the keys from its first column's segment on to its last one's end. */
__global__ void __launch_bounds__(attention_threads_k, blocks_per_multiprocessor_k)
    attention_forward_kernel(attention_problem const problem) {
    extern __shared__ __align__(1024) unsigned char memory[];
    std::uint32_t const tile = shared_place(memory), stages = tile + forward_memory::stages;
    uint2* const bounds = reinterpret_cast<uint2*>(memory + forward_memory::bounds);

    unsigned const head = blockIdx.x % problem.heads, first = blockIdx.x / problem.heads * attention_block_k;
    unsigned const thread = threadIdx.x, lane = thread % warp_k, warp_first = warp_place() * warp_rows_k;
    unsigned const count = problem.columns.counts[0];
    std::size_t const hidden = std::size_t(problem.heads) * head_width_k, stride = 3 * hidden;
    if (first >= count)
        return clear_rows(problem.attended + head * head_width_k, hidden, first,
                          min(first + attention_block_k, problem.columns.active));

    __nv_bfloat16 const* const queries = problem.qkv + head * head_width_k;
    load_rows<attention_block_k>(tile, queries, stride, first, count);
    uint2 const own = first + thread < count ? segment_bounds(problem.columns, first + thread) : make_uint2(0, 0);
    bounds[thread] = own;
    warp_bounds const warp = warp_bounds::of(own);
    __syncthreads();
    unsigned const begin = bounds[0].x, end = bounds[min(attention_block_k, count - first) - 1].y;
    auto const load = [&](unsigned key) {
        std::uint32_t const stage = stages + (key - begin) / keys_k % 2 * forward_memory::stage;
        load_rows<keys_k>(stage, queries + hidden, stride, key, end);
        load_rows<keys_k>(stage + tile_bytes(keys_k), queries + 2 * hidden, stride, key, end);
        copies_commit();
    };
    load(begin);

    forward_state state;
    for (unsigned key = begin; key < end; key += keys_k) {
        copies_wait<0>();
        __syncthreads(); // this stage has arrived, and no warp reads the other any more
        if (key + keys_k < end)
            load(key + keys_k);
        if (!warp.touches(key, keys_k))
            continue;
        std::uint32_t const stage = stages + (key - begin) / keys_k % 2 * forward_memory::stage;
        float scores[2][8][4] = {};
        score(tile + tile_bytes(warp_first), stage, lane, scores);
        if (!warp.covers(key, keys_k))
            mask(bounds + warp_first, key, lane, scores);
        take_exponentials(state, scores);
        attend(state, stage + tile_bytes(keys_k), lane, scores);
    }
    finish(problem, state, head, first + warp_first, lane);
}

} // namespace

void launch_attention_forward(stream const& on, attention_problem const& problem) {
#if UFORM_WITH_SM90
    if (on.gpu_class == uform_gpu_class_hopper_k)
        return sm90::launch_attention_forward(on, problem);
#endif
    launch(on, attention_forward_kernel, blocks_for(problem.columns.active, attention_block_k) * problem.heads,
           attention_threads_k, forward_memory::bytes, problem);
}

} // namespace uform::vram

/**
 *  Backward where no segment is longer than a block of threads takes. Segments that follow each other make a unit of at
 *  most 256 columns. Four groups of warps have 64 of its columns each: first as keys, of which a group makes the
 * scores' gradients against all queries, then as queries, of which it sums what the others left in shared memory. So
 * scores are made once, nothing is summed but by one group, in one order, and five products do.
 *
 *  A block goes through its units one after the other. The warp that is the last to have read a part of one begins the
 *  copy of the next one's in its place, which was brought into the L2 cache meanwhile. Nothing may be spilled: shared
 *  memory leaves next to nothing of the cache that it would go through.
 */
#include <algorithm>

#include "vram/attention_unit_sm90.cuh"
#include "vram/launch.cuh"
#include "vram/tensor_map.h"

namespace uform::vram::sm90 {

namespace {

/** A barrier's name: those of the groups come first. */
constexpr unsigned all_groups_k = 1 + unit_groups_k;

/** What the segments of a group's keys reach, and those of a warp's. */
struct key_segments {
    unsigned first_box, past_box; // that the group's segments reach
    unsigned covered;             // a bit for each box whose queries, and all keys of the warp, are of one segment

    static __device__ __forceinline__ key_segments of(column_bounds const* bounds, unsigned columns) {
        unsigned const first = group_place() * box_k, last = min(first + box_k, columns) - 1;
        column_bounds const low = bounds[warp_row()], high = bounds[warp_row() + 15];
        key_segments found{bounds[first].x / box_k, bounds[last].y / box_k + 1u, 0};
        if (low.x == high.x && low.y == high.y)
#pragma unroll
            for (unsigned box = 0; box != unit_boxes_k; ++box)
                if (low.x <= box * box_k && box * box_k + box_k - 1 <= low.y)
                    found.covered |= 1u << box;
        return found;
    }
};

/** Whether a key's segment has a query, of this thread's in a box: two of every eight, and keys 8 below each other. */
struct query_mask {
    column_bounds bounds[2];
    unsigned column;

    static __device__ __forceinline__ query_mask of(column_bounds const* bounds, unsigned box) {
        unsigned const lane = threadIdx.x % warp_k, row = warp_row() + lane / 4;
        return {{bounds[row], bounds[row + 8]}, box * box_k + lane % 4 * 2};
    }
    __device__ __forceinline__ bool has(unsigned block, unsigned i) const {
        unsigned const query = column + block * 8 + i % 2;
        return query >= bounds[i / 2].x && query <= bounds[i / 2].y;
    }
};

/** Begins sums [64, 64] += a b over the boxes of both that a call answers. */
template <hopper::Major left_ak, typename boxes_at>
__device__ __forceinline__ void multiply_boxes(float (&sums)[8][4], unsigned first_box, unsigned past_box,
                                               boxes_at&& boxes_of) {
    using namespace hopper;
#pragma unroll 1
    for (unsigned box = first_box; box != past_box; ++box) {
        visited_boxes const boxes = boxes_of(box);
        fence_sums(sums);
        products_begin();
#pragma unroll
        for (unsigned step = 0; step != box_k / hopper::depth_k; ++step)
            multiply_add<left_ak, Major::MN>(sums, further(boxes.first, step * depth_step_k<left_ak>),
                                             further(boxes.second, step * along_rows_k), true);
        products_commit();
    }
}

/** What a block of threads does with its units. */
struct unit_work {
    attention_problem const& problem;
    unit_memory& memory;
    unit_copies copies;
    unsigned count;

    __device__ __forceinline__ __nv_bfloat16* gradient_of(attention_unit const& unit, unsigned part,
                                                          unsigned row) const {
        unsigned const at = warp_row() + row, hidden = problem.heads * head_width_k;
        return at < unit.columns ? problem.qkv_gradient + unit.head * head_width_k +
                                       (unit.first + at) * (3 * std::size_t(hidden)) + part * hidden
                                 : nullptr;
    }
    /** Clears what lies past the count in the unit's boxes. */
    __device__ __forceinline__ void clear_past_count(attention_unit const& unit) const {
        if (unit.first + unit.boxes() * box_k <= count)
            return;
#pragma unroll 1
        for (unsigned box = 0; box != unit.boxes(); ++box)
            for (std::byte* one : {memory.queries[box], memory.keys[box], memory.values[box], memory.gradients[box]})
                clear_slack(one, unit.first + box * box_k, count, threadIdx.x, unit_threads_k);
        hopper::show_to_products();
        hopper::named_wait<unit_threads_k>(all_groups_k);
    }

    /** Makes the operand of weights, and leaves the gradients of scores in shared memory. */
    template <bool masked_ak>
    __device__ __forceinline__ void make_deltas(std::uint32_t (&left)[4][4], float const (&weights)[8][4],
                                                float (&deltas)[8][4], unsigned box) const {
        unsigned const lane = threadIdx.x % warp_k;
        float2 const* const along = reinterpret_cast<float2 const*>(memory.along + box * box_k + lane % 4 * 2);
        std::uint32_t const to = shared_place(memory.deltas_of(box, group_place()));
        query_mask mask;
        if constexpr (masked_ak)
            mask = query_mask::of(memory.bounds, box);
#pragma unroll
        for (unsigned step = 0; step != 4; ++step) {
            float pair_weights[2][4], pair_deltas[2][4];
#pragma unroll
            for (unsigned block = 0; block != 2; ++block) {
                unsigned const of = step * 2 + block;
                float2 const pair = along[of * 4];
#pragma unroll
                for (unsigned i = 0; i != 4; ++i) {
                    pair_weights[block][i] = weights[of][i];
                    pair_deltas[block][i] = weights[of][i] * (deltas[of][i] - (i % 2 ? pair.y : pair.x));
                    // Of other segments' rows nothing comes through, an infinity neither.
                    if constexpr (masked_ak)
                        if (!mask.has(of, i))
                            pair_weights[block][i] = pair_deltas[block][i] = 0.f;
                }
            }
            pack_operand(left[step], pair_weights, 0);
            std::uint32_t packed[4];
            pack_operand(packed, pair_deltas, 0);
            store_matrices(matrices_at(to, lane_place_down(lane), warp_row() % box_k, step * 2), packed);
        }
    }

    /** As keys: sums the values' gradients, and leaves those of scores in shared memory. */
    __device__ __forceinline__ void take_scores(float (&value_sums)[8][4], key_segments const& segments) const {
        using namespace hopper;
        unsigned const group = group_place();
        std::uint64_t const keys = operand_of(memory.keys[group]), values = operand_of(memory.values[group]);
#pragma unroll 1
        for (unsigned box = segments.first_box; box != segments.past_box; ++box) {
            float weights[8][4], deltas[8][4];
            fence_sums(weights), fence_sums(deltas);
            products_begin();
            multiply_rows(weights, keys, operand_of(memory.queries[box]));
            multiply_rows(deltas, values, operand_of(memory.gradients[box]));
            products_wait<1>();
            fence_sums(weights);
            float2 const* const log_sums =
                reinterpret_cast<float2 const*>(memory.log_sums + box * box_k + threadIdx.x % 4 * 2);
#pragma unroll
            for (unsigned block = 0; block != 8; ++block) {
                float2 const pair = log_sums[block * 4];
#pragma unroll
                for (unsigned i = 0; i != 4; ++i)
                    weights[block][i] =
                        power_of_2(fmaf(weights[block][i], scores_to_base_2_k, i % 2 ? -pair.y : -pair.x));
            }
            products_wait<0>();
            fence_sums(deltas);
            if (box == unit_boxes_k - 1)
                named_wait<group_k>(1 + group); // the group has read its values
            std::uint32_t left[4][4];
            if (segments.covered >> box & 1)
                make_deltas<false>(left, weights, deltas, box);
            else
                make_deltas<true>(left, weights, deltas, box);
            fence_sums(value_sums);
            products_begin();
            std::uint64_t const gradients = operand_of(memory.gradients[box]);
#pragma unroll
            for (unsigned step = 0; step != 4; ++step)
                add_product<Major::MN>(value_sums, left[step], further(gradients, step * along_rows_k));
            products_commit();
            products_wait<0>();
            fence_sums(value_sums);
        }
    }

    __device__ __forceinline__ void wait_for_unit(unsigned parity) const {
        memory.rows_there.wait(parity);
        memory.of_gradients.there.wait(parity);
        memory.of_queries.there.wait(parity);
        memory.of_keys.there.wait(parity);
    }
    __device__ __forceinline__ void release_gradients(attention_unit const& next) const {
        if (memory.of_gradients.release() && next.columns != 0)
            copies.copy_gradients(next);
        __syncwarp();
    }
    __device__ __forceinline__ void release_queries(attention_unit const& next) const {
        if (memory.of_queries.release() && next.columns != 0)
            copies.copy_queries(next);
        __syncwarp();
    }
    __device__ __forceinline__ void release_keys(attention_unit const& next) const {
        if (memory.of_keys.release() && next.columns != 0)
            copies.copy_keys(next);
        __syncwarp();
    }
    __device__ __forceinline__ void fill_rows(attention_unit const& unit, unsigned parity) const {
        unit_rows rows;
        rows.load(problem, unit);
        memory.of_gradients.there.wait(parity);
        rows.store(memory);
    }
    /** As a group without columns of the unit. @param parity Of the unit's place among all. */
    __device__ __forceinline__ void stand_by(attention_unit const& next, unsigned parity) const {
        release_gradients(next), release_queries(next);
        arrive(memory.deltas_there);
        memory.deltas_there.wait(parity);
        release_keys(next);
        if (next.columns != 0)
            fill_rows(next, parity ^ 1);
        arrive(memory.rows_there);
    }
    __device__ __forceinline__ void differentiate(attention_unit const& unit, attention_unit const& next,
                                                  unsigned parity, unit_walk& walk) const {
        using namespace hopper;
        unsigned const group = group_place();
        key_segments const segments = key_segments::of(memory.bounds, unit.columns);
        unsigned const first_box = segments.first_box, past_box = segments.past_box;
        float key_sums[1][8][4] = {};
        {
            float value_sums[1][8][4] = {};
            take_scores(value_sums[0], segments);
            release_gradients(next);
            show_to_products();
            arrive(memory.deltas_there);
            named_wait<group_k>(1 + group);
            multiply_boxes<Major::K>(key_sums[0], first_box, past_box, [&](unsigned box) {
                return visited_boxes{operand_of(memory.deltas_of(box, group)), operand_of(memory.queries[box])};
            });
            store_sums(value_sums, 1.f, [&](unsigned row) { return gradient_of(unit, 2, row); });
        }
        products_wait<0>();
        fence_sums(key_sums[0]);
        release_queries(next);
        memory.deltas_there.wait(parity);
        float query_sums[1][8][4] = {};
        multiply_boxes<Major::MN>(query_sums[0], first_box, past_box, [&](unsigned box) {
            return visited_boxes{operand_of(memory.deltas_of(group, box)), operand_of(memory.keys[box])};
        });
        bool const more = next.columns != 0;
        unit_rows rows;
        rows.load(problem, more ? next : unit);
        row_turns const turns = row_turns::load(problem, unit.first + warp_row(), count);
        turns.apply(key_sums[0]);
        store_sums(key_sums, 1.f, [&](unsigned row) { return gradient_of(unit, 1, row); });
        if (more) {
            memory.of_gradients.there.wait(parity ^ 1);
            rows.store(memory); // no group reads this unit's any more
        }
        if (threadIdx.x == 0 && next.columns != 0)
            memory.units[parity] = walk.finish(problem, count);
        arrive(memory.rows_there);
        __syncwarp(); // products need all lanes together
        products_wait<0>();
        fence_sums(query_sums[0]);
        release_keys(next);
        turns.apply(query_sums[0]);
        store_sums(query_sums, 1.f, [&](unsigned row) { return gradient_of(unit, 0, row); });
    }
    __device__ __forceinline__ void take_all(unit_walk walk) const {
        if (memory.units[0].columns != 0)
            fill_rows(memory.units[0], 0);
        arrive(memory.rows_there);
        attention_unit unit = memory.units[0];
        for (unsigned index = 0; unit.columns != 0; ++index) {
            wait_for_unit(index % 2);
            attention_unit const next = memory.units[(index + 1) % 2];
            clear_past_count(unit);
            if (threadIdx.x == 0 && next.columns != 0)
                walk.begin(problem, count);
            if (next.columns != 0) {
                unit_rows::prefetch(problem, next);
                if (threadIdx.x == unit_threads_k - 1)
                    copies.prefetch(next);
            }
            __syncwarp(); // products need all lanes together
            if (group_place() < unit.boxes())
                differentiate(unit, next, index % 2, walk);
            else
                stand_by(next, index % 2);
            unit = next;
        }
    }
};

/** A block a multiprocessor. */
__global__ void __launch_bounds__(unit_threads_k, 1)
    attention_units_backward_kernel(attention_problem const problem, __grid_constant__ CUtensorMap const qkv,
                                    __grid_constant__ CUtensorMap const gradient) {
    extern __shared__ __align__(1024) std::byte shared[];
    unit_memory& memory = *reinterpret_cast<unit_memory*>(shared);
    unsigned const count = min(problem.columns.counts[0], problem.columns.active);
    unit_copies const copies{memory, qkv, gradient, problem.heads * static_cast<unsigned>(head_width_k)};
    unit_walk walk{blockIdx.x, false, 0, 0};
    if (threadIdx.x == 0) {
        memory.init();
        for (attention_unit& unit : memory.units) {
            walk.begin(problem, count);
            unit = walk.finish(problem, count);
        }
        attention_unit const unit = memory.units[0];
        if (unit.columns != 0)
            copies.copy_gradients(unit), copies.copy_queries(unit), copies.copy_keys(unit);
    }
    __syncthreads();
    unit_work{problem, memory, copies, count}.take_all(walk);
    unsigned const hidden = problem.heads * head_width_k;
    for (unsigned row = count + blockIdx.x; row < problem.columns.active; row += gridDim.x)
        for (unsigned at = threadIdx.x; at < 3 * hidden / 8; at += unit_threads_k)
            reinterpret_cast<uint4*>(problem.qkv_gradient + row * (3 * std::size_t(hidden)))[at] =
                make_uint4(0, 0, 0, 0);
}

} // namespace

void launch_attention_units_backward(stream const& on, attention_problem const& problem) {
    std::size_t const hidden = std::size_t(problem.heads) * head_width_k, rows = problem.columns.active;
    if (rows == 0)
        return;
    if (problem.turn_back)
        launch_rotary_turns(on, problem.columns, score_scale_k, turns_of(problem));
    CUtensorMap const qkv = tensor_map_of(on, problem.qkv, rows, 3 * hidden, 3 * hidden);
    CUtensorMap const gradient = tensor_map_of(on, problem.gradient, rows, hidden, hidden);
    unsigned const items = blocks_for(rows, attention_unit_columns_k) * problem.heads;
    launch(on, attention_units_backward_kernel, std::min(items, static_cast<unsigned>(on.multiprocessors)),
           unit_threads_k, sizeof(unit_memory), problem, qkv, gradient);
}

} // namespace uform::vram::sm90

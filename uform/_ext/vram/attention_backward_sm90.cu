/**
 *  Backward by Hopper's products, of segments of any length: see `attention_units_sm90.cu` for those that a block of
 *  threads has as a whole. A group of warps takes the gradients of its 64 keys and values, over all queries that
 *  meet them, and then those of its 64 queries over all keys: scores are made twice, which costs two products of seven,
 *  but nothing is summed outside of registers, and no group waits for another's results.
 */
#include "vram/attention_rows_sm90.cuh"
#include "vram/launch.cuh"
#include "vram/tensor_map.h"

namespace uform::vram::sm90 {

namespace {

constexpr unsigned slice_k = 32;          // queries whose scores a group holds at a time beside the sums of its keys
constexpr unsigned chunk_k = 16;          // passing boxes of which the rows' values are there at a time
constexpr unsigned longest_alone_k = 256; // of longer segments, `along` is computed once, by a kernel of its own

// Whole segments are a block's work where they are longer, and where so many units are each multiprocessor's: with one
// each, segments of 256 columns gain, but those of mixed lengths lose.
constexpr unsigned longer_than_k = 128, units_each_k = 2;

struct backward_memory {
    boxes_of<own_boxes_k> queries, keys, values, gradients;
    passing_memory passing;
    alignas(16) query_values rows[(own_boxes_k + chunk_k) * box_k]; // of own boxes, then of a chunk of the others
    segment_memory segments;
    hopper::barrier own;
};

constexpr std::size_t shared_bytes_k = 228 * 1024;
static_assert(blocks_per_multiprocessor_k * (sizeof(backward_memory) + 1024) <= shared_bytes_k);

/** The place of a visit's rows. */
__device__ __forceinline__ unsigned rows_of(unsigned visit) {
    return (visit < own_boxes_k ? visit : own_boxes_k + (visit - own_boxes_k) % chunk_k) * box_k;
}

struct key_gradients {
    float keys[1][8][4];
    float values[1][8][4];
};

/**
 *  Adds what 32 queries, and the gradients of what they attended, give to the group's keys and values.
 *  @param queries Half of the visited boxes.
 *  @param masked Whether some queries are not of all the warp's keys' segment.
 */
__device__ __forceinline__ void differentiate_keys(key_gradients& sums, std::uint64_t keys, std::uint64_t values,
                                                   visited_boxes queries, query_values const* rows,
                                                   row_segments const& segments, bool masked, unsigned column) {
    using namespace hopper;
    float weights[slice_k / 8][4], deltas[slice_k / 8][4];
    fence_sums(weights), fence_sums(deltas);
    products_begin();
    multiply_rows(weights, keys, queries.first);
    multiply_rows(deltas, values, queries.second);
    float4 pairs[slice_k / 8]; // of this thread's two queries of every eight
#pragma unroll
    for (unsigned block = 0; block != slice_k / 8; ++block)
        pairs[block] = *reinterpret_cast<float4 const*>(rows + block * 8 + threadIdx.x % 4 * 2);
    products_wait<0>();
    fence_sums(weights), fence_sums(deltas);
#pragma unroll
    for (unsigned block = 0; block != slice_k / 8; ++block) {
        float4 const pair = pairs[block];
#pragma unroll
        for (unsigned i = 0; i != 4; ++i) {
            float const weight = power_of_2(fmaf(weights[block][i], scores_to_base_2_k, i % 2 ? -pair.z : -pair.x));
            weights[block][i] = weight;
            deltas[block][i] = weight * (deltas[block][i] - (i % 2 ? pair.w : pair.y));
        }
    }
    if (masked) // of other segments' rows nothing comes through, an infinity neither
        segments.mask(weights, column, 0.f), segments.mask(deltas, column, 0.f);
    add_weighted(sums.values[0], weights, queries.second);
    add_weighted(sums.keys[0], deltas, queries.first);
    products_wait<0>(); // until then the operands take registers
    fence_sums(sums.keys[0]), fence_sums(sums.values[0]);
}

/** Adds what 64 keys and values give to the group's queries. @param rows Of the thread's two queries. */
__device__ __forceinline__ void differentiate_queries(float (&sums)[8][4], std::uint64_t queries,
                                                      std::uint64_t gradients, visited_boxes keys,
                                                      query_values const (&rows)[2], row_segments const& segments,
                                                      bool masked, unsigned column) {
    using namespace hopper;
    float weights[box_k / 8][4], deltas[box_k / 8][4];
    fence_sums(weights), fence_sums(deltas);
    products_begin();
    multiply_rows(weights, queries, keys.first);
    multiply_rows(deltas, gradients, keys.second);
    products_wait<1>();
    fence_sums(weights);
#pragma unroll
    for (auto& block : weights)
#pragma unroll
        for (unsigned i = 0; i != 4; ++i)
            block[i] = power_of_2(fmaf(block[i], scores_to_base_2_k, -rows[i / 2].x));
    products_wait<0>();
    fence_sums(deltas);
#pragma unroll
    for (unsigned block = 0; block != box_k / 8; ++block)
#pragma unroll
        for (unsigned i = 0; i != 4; ++i)
            deltas[block][i] = weights[block][i] * (deltas[block][i] - rows[i / 2].y);
    if (masked)
        segments.mask(deltas, column, 0.f);
    add_weighted(sums, deltas, keys.first);
    products_wait<0>();
    fence_sums(sums);
}

/** A block of threads for 128 columns and a head. */
struct backward_block {
    attention_problem const& problem;
    backward_memory& memory;
    unsigned head, first, count;
    bool along_known; // whether scratch memory holds `along`
    box_column queries_at, keys_at, values_at, gradients_at;
    box_visits visits;
    row_segments segments;

    __device__ __forceinline__ unsigned hidden() const { return problem.heads * head_width_k; }
    /** Where a gradient of a row of the thread's warp goes, null past the count. @param part 0: queries, 1: keys, 2:
     * values. */
    __device__ __forceinline__ __nv_bfloat16* gradient_of(unsigned part, unsigned row) const {
        unsigned const at = first + warp_row() + row;
        return at < count
                   ? problem.qkv_gradient + head * head_width_k + at * (3 * std::size_t(hidden())) + part * hidden()
                   : nullptr;
    }

    /** By one thread. */
    __device__ __forceinline__ void copy_own() const {
        memory.own.init(1);
        memory.passing.init();
        hopper::barriers_are_ready();
        memory.own.expect(4 * own_boxes_k * box_bytes_k);
#pragma unroll
        for (unsigned box = 0; box != own_boxes_k; ++box) {
            unsigned const row = first + box * box_k;
            copy_box(memory.keys[box], keys_at, row, memory.own);
            copy_box(memory.queries[box], queries_at, row, memory.own);
            copy_box(memory.values[box], values_at, row, memory.own);
            copy_box(memory.gradients[box], gradients_at, row, memory.own);
        }
    }
    /** By one thread: steps are visits of passing boxes, first those of queries and then those of keys. */
    __device__ __forceinline__ void copy_step(unsigned step) const {
        if (step < visits.passing())
            memory.passing.copy(step, queries_at, gradients_at, visits.column(own_boxes_k + step));
        else
            memory.passing.copy(step, keys_at, values_at, visits.column(own_boxes_k + step - visits.passing()));
    }
    __device__ __forceinline__ void release(unsigned step) const {
        if (memory.passing.release(step) && step + stages_k < 2 * visits.passing())
            copy_step(step + stages_k);
    }
    /** Waits for a passing step's boxes, of use or not: a barrier tells its phase from the one before alone. */
    __device__ __forceinline__ void wait(unsigned step, unsigned column) const {
        memory.passing.wait(step);
        if (column + box_k > count)
            memory.passing.clear(step, column, count);
    }
    /** Waits for the block's own boxes, and clears what lies past the count. A barrier of the block must come before.
     */
    __device__ __forceinline__ void wait_own() const {
        memory.own.wait(0);
        if (first + attention_block_k <= count)
            return;
#pragma unroll
        for (unsigned box = 0; box != own_boxes_k; ++box)
            for (std::byte* one : {memory.keys[box], memory.queries[box], memory.values[box], memory.gradients[box]})
                clear_slack(one, first + box * box_k, count, threadIdx.x, block_threads_k);
        hopper::show_to_products();
        __syncthreads();
    }
    __device__ __forceinline__ void fill_chunk(unsigned visit) const {
        fill_rows(memory.rows + rows_of(visit), min(chunk_k, visits.count - visit) * box_k, problem, head, along_known,
                  [&](unsigned row) { return visits.column(visit + row / box_k) + row % box_k; });
    }
    /** Finds the segments and fills the rows of the block's own columns, and of the first chunk of passing ones. */
    __device__ __forceinline__ void fill(row_batch const& own_rows, unsigned own_segment) const {
        // As many rows as a batch has are on their way while those of the block's own columns arrive.
        unsigned const chunk_rows = min(chunk_k, visits.passing()) * box_k;
        auto const column_of = [&](unsigned row) { return visits.column(own_boxes_k + row / box_k) + row % box_k; };
        row_batch passing_rows;
        if (!along_known && chunk_rows != 0)
            passing_rows.load(problem, head, [&](unsigned row) { return column_of(min(row, chunk_rows - 1)); });
        find_segments(memory.segments, problem.columns, first, count, own_segment);
        query_values* const chunk = memory.rows + attention_block_k;
        unsigned rows_there = 0;
        if (along_known) {
            fill_rows(memory.rows, attention_block_k, problem, head, along_known,
                      [&](unsigned row) { return first + row; });
        } else {
            own_rows.store(memory.rows, attention_block_k);
            if (chunk_rows != 0)
                passing_rows.store(chunk, chunk_rows);
            rows_there = min(chunk_rows, row_batch::rows_k);
        }
        fill_rows(chunk + rows_there, chunk_rows - rows_there, problem, head, along_known,
                  [&](unsigned row) { return column_of(rows_there + row); });
    }
    __device__ __forceinline__ visited_boxes boxes_at(bool passing, unsigned step, std::byte const* first_own,
                                                      std::byte const* second_own) const {
        auto const& stage = memory.passing.boxes_at(step);
        return {operand_of(passing ? stage[0] : first_own), operand_of(passing ? stage[1] : second_own)};
    }

    /** Sums the gradients of the group's keys and values over all visits. */
    __device__ __forceinline__ void take_keys(key_gradients& sums) const {
        std::uint64_t const keys = operand_of(memory.keys[group_place()]),
                            values = operand_of(memory.values[group_place()]);
        for (unsigned visit = 0; visit != visits.count; ++visit) {
            unsigned const column = visits.column(visit), step = visit - own_boxes_k, own = visit % own_boxes_k;
            bool const passing = visit >= own_boxes_k;
            if (passing && step != 0 && step % chunk_k == 0) {
                __syncthreads(); // no warp reads the chunk before any more
                fill_chunk(visit);
                __syncthreads();
            }
            if (passing)
                wait(step, column);
            if (segments.group.touches(column, box_k)) {
                visited_boxes const boxes = boxes_at(passing, step, memory.queries[own], memory.gradients[own]);
                query_values const* rows = memory.rows + rows_of(visit);
#pragma unroll
                for (unsigned slice = 0; slice != box_k; slice += slice_k)
                    if (segments.group.touches(column + slice, slice_k)) {
                        unsigned const bytes = slice * tile_row_bytes_k;
                        differentiate_keys(sums, keys, values,
                                           {hopper::further(boxes.first, bytes), hopper::further(boxes.second, bytes)},
                                           rows + slice, segments, !segments.warp.covers(column + slice, slice_k),
                                           column + slice);
                    }
            }
            if (passing)
                release(step);
        }
    }
    /** Sums the gradients of the group's queries over all visits. */
    __device__ __forceinline__ void take_queries(float (&sums)[8][4]) const {
        std::uint64_t const queries = operand_of(memory.queries[group_place()]),
                            gradients = operand_of(memory.gradients[group_place()]);
        query_values const* const row = memory.rows + warp_row() + threadIdx.x % warp_k / 4;
        query_values const rows[2] = {row[0], row[8]};
        for (unsigned visit = 0; visit != visits.count; ++visit) {
            unsigned const column = visits.column(visit), step = visits.passing() + visit - own_boxes_k;
            unsigned const own = visit % own_boxes_k;
            bool const passing = visit >= own_boxes_k;
            if (passing)
                wait(step, column);
            if (segments.group.touches(column, box_k))
                differentiate_queries(sums, queries, gradients,
                                      boxes_at(passing, step, memory.keys[own], memory.values[own]), rows, segments,
                                      !segments.warp.covers(column, box_k), column);
            if (passing)
                release(step);
        }
    }
};

/** A block for 128 columns and a head. @param along_known Whether scratch memory holds `along`. */
__global__ void __launch_bounds__(block_threads_k, blocks_per_multiprocessor_k)
    attention_backward_kernel(attention_problem const problem, bool along_known,
                              __grid_constant__ CUtensorMap const qkv, __grid_constant__ CUtensorMap const gradient) {
    extern __shared__ __align__(1024) std::byte shared[];
    unsigned const head = blockIdx.x % problem.heads, first = blockIdx.x / problem.heads * attention_block_k,
                   offset = head * head_width_k;
    unsigned const hidden = problem.heads * head_width_k, count = problem.columns.counts[0];
    backward_block block{problem,
                         *reinterpret_cast<backward_memory*>(shared),
                         head,
                         first,
                         count,
                         along_known,
                         {&qkv, offset},
                         {&qkv, hidden + offset},
                         {&qkv, 2 * hidden + offset},
                         {&gradient, offset},
                         {},
                         {}};
    block_segments const found = block_segments::load(problem.columns, first);
    row_batch own_rows;
    static_assert(row_batch::rows_k == attention_block_k);
    if (!along_known)
        own_rows.load(problem, head, [&](unsigned row) { return first + row; });
    if (threadIdx.x == copying_thread_k)
        block.copy_own();
    for (unsigned part = 0; part != 3; ++part)
        clear_rows(problem.qkv_gradient + offset + part * hidden, 3 * std::size_t(hidden), max(first, count),
                   min(first + attention_block_k, problem.columns.active));
    if (first >= count) {
        __syncthreads();                 // the barrier is one
        return block.memory.own.wait(0); // no block leaves while something is copied into it
    }

    block.visits = visits_of(found.hull(problem.columns, first, count), first);
    if (threadIdx.x == copying_thread_k && block.visits.passing() != 0)
        for (unsigned step = 0; step != stages_k; ++step) // there are two steps at least
            block.copy_step(step);
    block.fill(own_rows, found.own);
    __syncthreads();
    block.wait_own();
    block.segments = segments_of_rows(block.memory.segments);

    row_turns turns;
    {
        key_gradients sums = {};
        block.take_keys(sums);
        turns = row_turns::load(problem, first + warp_row(), count);
        store_sums(sums.values, 1.f, [&](unsigned row) { return block.gradient_of(2, row); });
        turns.apply(sums.keys[0]);
        store_sums(sums.keys, 1.f, [&](unsigned row) { return block.gradient_of(1, row); });
    }
    {
        float sums[1][8][4] = {};
        block.take_queries(sums[0]);
        turns.apply(sums[0]);
        store_sums(sums, 1.f, [&](unsigned row) { return block.gradient_of(0, row); });
    }
}

} // namespace

void launch_attention_backward(stream const& on, attention_problem const& problem) {
    std::size_t const hidden = std::size_t(problem.heads) * head_width_k, rows = problem.columns.active;
    if (rows == 0)
        return;
    if (longer_than_k < problem.columns.longest && problem.columns.longest <= attention_unit_columns_k &&
        blocks_for(rows, attention_unit_columns_k) * problem.heads >= units_each_k * unsigned(on.multiprocessors))
        return launch_attention_units_backward(on, problem);
    bool const along_known = problem.columns.longest > longest_alone_k;
    if (along_known) {
        attention_problem all = problem;
        all.owned_columns = 0;
        launch_attention_along(on, all);
    }
    if (problem.turn_back)
        launch_rotary_turns(on, problem.columns, score_scale_k, turns_of(problem));
    CUtensorMap const qkv = tensor_map_of(on, problem.qkv, rows, 3 * hidden, 3 * hidden);
    CUtensorMap const gradient = tensor_map_of(on, problem.gradient, rows, hidden, hidden);
    launch(on, attention_backward_kernel, problem.heads * blocks_for(rows, attention_block_k), block_threads_k,
           sizeof(backward_memory), problem, along_known, qkv, gradient);
}

} // namespace uform::vram::sm90

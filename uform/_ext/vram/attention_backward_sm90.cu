/**
 *  Backward by Hopper's products. A group of warps takes the gradients of its 64 keys and values, over all queries that
 *  meet them, and then those of its 64 queries over all keys: scores are made twice, which costs two products of seven,
 *  but nothing is summed outside of registers, and no group waits for another's results.
 */
#include "vram/attention_sm90.cuh"
#include "vram/launch.cuh"
#include "vram/rotary.h"
#include "vram/tensor_map.h"

namespace uform::vram::sm90 {

namespace {

constexpr unsigned slice_k = 32;          // queries whose scores a group holds at a time beside the sums of its keys
constexpr unsigned chunk_k = 16;          // passing boxes of which the rows' values are there at a time
constexpr unsigned longest_alone_k = 256; // of longer segments, `along` is computed once, by a kernel of its own

/** What a query has of its own: its sum to base 2, and what it gives to its own normalisation. */
using query_values = float2;

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

/** The boxes of one visit, as products find them. */
struct visited_boxes {
    std::uint64_t first, second; // queries and gradients, or keys and values
};

struct key_gradients {
    float keys[1][8][4];
    float values[1][8][4];
};

/** Adds what 32 queries, and the gradients of what they attended, give to the group's keys and values.
 *  @param queries Half of the visited boxes. @param masked Whether some queries are not of all the warp's keys'
 * segment.
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
    products_wait<0>();
    fence_sums(weights), fence_sums(deltas);
#pragma unroll
    for (unsigned block = 0; block != slice_k / 8; ++block) {
        // of this thread's two queries
        float4 const pair = *reinterpret_cast<float4 const*>(rows + block * 8 + threadIdx.x % 4 * 2);
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

/**
 *  Writes what `rows_count` queries have of their own, a multiple of 64; `along` is read where it is known, else
 * computed.
 *  @param column_of Answers the column of one of them. Of those past the count, the rows are of no use.
 */
template <typename column_at>
__device__ __forceinline__ void fill_rows(query_values* rows, unsigned rows_count, attention_problem const& problem,
                                          unsigned head, bool known, column_at&& column_of) {
    float const* const log_sums = problem.log_sums + std::size_t(head) * problem.columns.capacity;
    unsigned const last = problem.columns.active - 1;
    if (known) {
        float const* const along = along_of(problem, head);
        for (unsigned row = threadIdx.x; row < rows_count; row += block_threads_k) {
            unsigned const column = min(column_of(row), last);
            rows[row] = make_float2(log_sums[column] * base_2_k, along[column]);
        }
        return;
    }
    constexpr unsigned rows_at_once = block_threads_k / 8, passes = 4;
    for (unsigned begin = threadIdx.x / 8; begin < rows_count; begin += passes * rows_at_once) {
        row_eighth eighths[passes];
        float sums[passes];
#pragma unroll
        for (unsigned pass = 0; pass != passes; ++pass) {
            unsigned const column = min(column_of(min(begin + pass * rows_at_once, rows_count - 1)), last);
            eighths[pass] = row_eighth::load(problem, head, column);
            sums[pass] = log_sums[column];
        }
#pragma unroll
        for (unsigned pass = 0; pass != passes; ++pass) {
            unsigned const row = begin + pass * rows_at_once;
            float const along = eighths[pass].along();
            if (threadIdx.x % 8 == 0 && row < rows_count)
                rows[row] = make_float2(sums[pass] * base_2_k, along);
        }
    }
}

/** Turns that are written ahead lie where other kernels keep sums of the queries' gradients. */
__host__ __device__ __half2* turns_of(attention_problem const& problem) {
    return reinterpret_cast<__half2*>(problem.scratch);
}

/** Scales the gradients of a thread's two queries, or keys, and turns them back. @param first Column of its warp. */
__device__ __forceinline__ void scale_back(attention_problem const& problem, float (&sums)[8][4], unsigned first,
                                           unsigned count) {
#pragma unroll
    for (unsigned half = 0; half != 2; ++half) {
        unsigned const lane = threadIdx.x % warp_k, column = min(first + half * 8 + lane / 4, count - 1);
        __half2 const* const turns = turns_of(problem) + std::size_t(column) * rotary_pairs_k + lane % 4 * 2;
#pragma unroll
        for (unsigned block = 0; block != 4; ++block) {
            float (&low)[4] = sums[block], (&high)[4] = sums[block + 4];
            uint2 pairs = make_uint2(0, 0);
            if (problem.turn_back)
                pairs = *reinterpret_cast<uint2 const*>(turns + block * 8);
#pragma unroll
            for (unsigned i = half * 2; i != half * 2 + 2; ++i) {
                unsigned const word = i % 2 ? pairs.y : pairs.x;
                float2 const turn = problem.turn_back ? __half22float2(reinterpret_cast<__half2 const&>(word))
                                                      : make_float2(score_scale_k, 0.f);
                float const turned = low[i] * turn.x + high[i] * turn.y;
                high[i] = high[i] * turn.x - low[i] * turn.y;
                low[i] = turned;
            }
        }
    }
}

/** A block for 128 columns and a head. @param along_known Whether scratch memory holds `along`. */
__global__ void __launch_bounds__(block_threads_k, blocks_per_multiprocessor_k)
    attention_backward_kernel(attention_problem const problem, bool along_known,
                              __grid_constant__ CUtensorMap const qkv, __grid_constant__ CUtensorMap const gradient) {
    extern __shared__ __align__(1024) std::byte shared[];
    backward_memory& memory = *reinterpret_cast<backward_memory*>(shared);
    unsigned const head = blockIdx.x, first = blockIdx.y * attention_block_k, hidden = problem.heads * head_width_k;
    unsigned const thread = threadIdx.x, lane = thread % warp_k, offset = head * head_width_k;
    std::size_t const stride = 3 * std::size_t(hidden);
    __nv_bfloat16* const qkv_gradient = problem.qkv_gradient + offset;

    box_column const queries_at{&qkv, offset}, keys_at{&qkv, hidden + offset}, values_at{&qkv, 2 * hidden + offset},
        gradients_at{&gradient, offset};
    if (thread == 0) {
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
    unsigned const segment = segment_of_thread(problem.columns, first), count = problem.columns.counts[0];
    fill_rows(memory.rows, attention_block_k, problem, head, along_known, [&](unsigned row) { return first + row; });
    find_segments(memory.segments, problem.columns, first, count, segment);
    __syncthreads();
    for (unsigned part = 0; part != 3; ++part)
        clear_rows(qkv_gradient + part * hidden, stride, max(first, count),
                   min(first + attention_block_k, problem.columns.active));
    if (first >= count)
        return memory.own.wait(0); // no block leaves while something is copied into it

    box_visits const visits = visits_of(memory.segments, first);
    row_segments const segments = segments_of_rows(memory.segments);
    auto const copy_step = [&](unsigned step) {
        if (step < visits.passing())
            memory.passing.copy(step, queries_at, gradients_at, visits.column(own_boxes_k + step));
        else
            memory.passing.copy(step, keys_at, values_at, visits.column(own_boxes_k + step - visits.passing()));
    };
    auto const release = [&](unsigned step) {
        if (memory.passing.release(step) && step + stages_k < 2 * visits.passing())
            copy_step(step + stages_k);
    };
    auto const fill_chunk = [&](unsigned visit) {
        fill_rows(memory.rows + rows_of(visit), min(chunk_k, visits.count - visit) * box_k, problem, head, along_known,
                  [&](unsigned row) { return visits.column(visit + row / box_k) + row % box_k; });
    };
    if (visits.passing() != 0) {
        if (thread == 0)
            for (unsigned step = 0; step != stages_k; ++step) // there are two steps at least
                copy_step(step);
        fill_chunk(own_boxes_k);
    }
    memory.own.wait(0);
    if (first + attention_block_k > count) {
#pragma unroll
        for (unsigned box = 0; box != own_boxes_k; ++box)
            for (std::byte* one : {memory.keys[box], memory.queries[box], memory.values[box], memory.gradients[box]})
                clear_slack(one, first + box * box_k, count, thread, block_threads_k);
        hopper::show_to_products();
    }
    __syncthreads();

    unsigned const group = group_place();
    std::uint64_t const queries = operand_of(memory.queries[group]), keys = operand_of(memory.keys[group]),
                        values = operand_of(memory.values[group]), gradients = operand_of(memory.gradients[group]);
    /** Waits for a passing step's boxes, of use or not: a barrier tells its phase from the one before alone. */
    auto const wait = [&](unsigned step, unsigned column) {
        memory.passing.wait(step);
        if (column + box_k > count)
            memory.passing.clear(step, column, count);
    };
    auto const boxes_at = [&](bool passing, unsigned step, std::byte* first, std::byte* second) {
        auto& stage = memory.passing.stages[step % stages_k];
        return visited_boxes{operand_of(passing ? stage[0] : first), operand_of(passing ? stage[1] : second)};
    };

    {
        key_gradients sums = {};
        for (unsigned visit = 0; visit != visits.count; ++visit) {
            unsigned const column = visits.column(visit), step = visit - own_boxes_k;
            bool const passing = visit >= own_boxes_k;
            if (passing && step != 0 && step % chunk_k == 0) {
                __syncthreads(); // no warp reads the chunk before any more
                fill_chunk(visit);
                __syncthreads();
            }
            if (passing)
                wait(step, column);
            if (segments.group.touches(column, box_k)) {
                visited_boxes const boxes =
                    boxes_at(passing, step, memory.queries[visit % own_boxes_k], memory.gradients[visit % own_boxes_k]);
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
        auto const row_of = [&](unsigned row) -> __nv_bfloat16* {
            unsigned const at = first + warp_row() + row;
            return at < count ? qkv_gradient + at * stride + hidden : nullptr;
        };
        scale_back(problem, sums.keys[0], first + warp_row(), count);
        store_sums(sums.keys, 1.f, row_of);
        store_sums(sums.values, 1.f, [&](unsigned row) -> __nv_bfloat16* {
            __nv_bfloat16* const to = row_of(row);
            return to ? to + hidden : nullptr;
        });
    }
    {
        float sums[1][8][4] = {};
        query_values const rows[2] = {memory.rows[warp_row() + lane / 4], memory.rows[warp_row() + lane / 4 + 8]};
        for (unsigned visit = 0; visit != visits.count; ++visit) {
            unsigned const column = visits.column(visit), step = visits.passing() + visit - own_boxes_k;
            bool const passing = visit >= own_boxes_k;
            if (passing)
                wait(step, column);
            if (segments.group.touches(column, box_k)) {
                visited_boxes const boxes =
                    boxes_at(passing, step, memory.keys[visit % own_boxes_k], memory.values[visit % own_boxes_k]);
                differentiate_queries(sums[0], queries, gradients, boxes, rows, segments,
                                      !segments.warp.covers(column, box_k), column);
            }
            if (passing)
                release(step);
        }
        scale_back(problem, sums[0], first + warp_row(), count);
        store_sums(sums, 1.f, [&](unsigned row) -> __nv_bfloat16* {
            unsigned const at = first + warp_row() + row;
            return at < count ? qkv_gradient + at * stride : nullptr;
        });
    }
}

} // namespace

void launch_attention_backward(stream const& on, attention_problem const& problem) {
    std::size_t const hidden = std::size_t(problem.heads) * head_width_k, rows = problem.columns.active;
    if (rows == 0)
        return;
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
    launch(on, attention_backward_kernel, dim3(problem.heads, blocks_for(rows, attention_block_k)), block_threads_k,
           sizeof(backward_memory), problem, along_known, qkv, gradient);
}

} // namespace uform::vram::sm90

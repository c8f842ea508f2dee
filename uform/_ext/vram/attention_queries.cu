#include "vram/attention_tile.cuh"
#include "vram/launch.cuh"

namespace uform::vram {

namespace {

constexpr unsigned keys_k = 64;  // keys and values that a block holds at a time, twice
constexpr unsigned slice_k = 32; // of them whose scores a warp holds at a time
constexpr unsigned blocks_per_multiprocessor_k = 2;

/** Shared memory: the block's queries and gradients, two stages of keys and values, bounds of the queries' segments. */
struct queries_memory {
    static constexpr unsigned gradients = tile_bytes(attention_block_k);
    static constexpr unsigned stages = 2 * tile_bytes(attention_block_k);
    static constexpr unsigned stage = 2 * tile_bytes(keys_k);
    static constexpr unsigned bounds = stages + 2 * stage;
    static constexpr unsigned hull = bounds + attention_block_k * sizeof(uint2);
    static constexpr unsigned bytes = hull + attention_threads_k / warp_k * sizeof(uint2);
};

/** What a lane keeps of its four rows: [upper][half]. */
struct row_values {
    float log_sums[2][2]; // to base 2
    float along[2][2];
};

__device__ __forceinline__ bool is_shared(attention_problem const& problem, uint2 segment) {
    return segment.y - segment.x > problem.owned_columns;
}

/** Eight lanes a row and head of the segments that several blocks share. */
__global__ void __launch_bounds__(attention_threads_k) attention_along_kernel(attention_problem const problem) {
    unsigned const head = blockIdx.x % problem.heads, first = blockIdx.x / problem.heads * attention_block_k;
    unsigned const past = min(first + attention_block_k, problem.columns.counts[0]);
    for (unsigned begin = first; begin < past; begin += attention_threads_k / 8) {
        unsigned const row = begin + threadIdx.x / 8, at = min(row, past - 1);
        float const sum = row_along(problem, head, at);
        if (threadIdx.x % 8 == 0 && row < past && is_shared(problem, segment_bounds(problem.columns, row)))
            along_of(problem, head)[row] = sum;
    }
}

/** sums [32 queries, 64] += gradients of scores [32 queries, 32 keys] times keys. */
__device__ __forceinline__ void differentiate(float (&sums)[2][8][4], row_values const& rows, uint2 const* bounds,
                                              std::uint32_t queries, std::uint32_t gradients, std::uint32_t stage,
                                              unsigned query, unsigned key, unsigned column, unsigned lane) {
    float weights[2][4][4] = {}, deltas[2][4][4] = {};
    multiply_rows(weights, queries, query, stage, key, lane);
    multiply_rows(deltas, gradients, query, stage + tile_bytes(keys_k), key, lane);
#pragma unroll
    for (unsigned upper = 0; upper != 2; ++upper)
#pragma unroll
        for (unsigned i = 0; i != 4; ++i) {
            float const log_sum = rows.log_sums[upper][i / 2], along = rows.along[upper][i / 2];
            uint2 const segment = bounds ? bounds[upper * 16 + i / 2 * 8 + lane / 4] : make_uint2(0, 0);
#pragma unroll
            for (unsigned block = 0; block != 4; ++block) {
                float const weight = power_of_2(fmaf(weights[upper][block][i], scores_to_base_2_k, -log_sum));
                float const delta = weight * (deltas[upper][block][i] - along);
                bool const counts = !bounds || within(segment, column + block * 8 + lane % 4 * 2 + i % 2);
                deltas[upper][block][i] = counts ? delta : 0.f;
            }
        }
    add_weighted(sums, deltas, stage, key, lane);
}

/** A block for 128 columns and a head: gradients of its queries in segments that several blocks share. */
__global__ void __launch_bounds__(attention_threads_k, blocks_per_multiprocessor_k)
    attention_queries_kernel(attention_problem const problem) {
    extern __shared__ __align__(1024) unsigned char memory[];
    uint2* const bounds = reinterpret_cast<uint2*>(memory + queries_memory::bounds);
    uint2* const hulls = reinterpret_cast<uint2*>(memory + queries_memory::hull);
    std::uint32_t const queries = shared_place(memory), gradients = queries + queries_memory::gradients;

    unsigned const head = blockIdx.x % problem.heads, first = blockIdx.x / problem.heads * attention_block_k;
    unsigned const thread = threadIdx.x, lane = thread % warp_k, warp_first = warp_place() * warp_rows_k;
    unsigned const count = problem.columns.counts[0];
    if (first >= count)
        return;
    uint2 own = first + thread < count ? segment_bounds(problem.columns, first + thread) : make_uint2(0, 0);
    if (!is_shared(problem, own))
        own = make_uint2(0, 0);
    bounds[thread] = own;
    warp_bounds const warp = warp_bounds::of(own);
    if (lane == 0)
        hulls[thread / warp_k] = make_uint2(warp.begin, warp.end);
    __syncthreads();
    unsigned begin = hulls[0].x, end = hulls[0].y;
#pragma unroll
    for (unsigned i = 1; i != attention_threads_k / warp_k; ++i)
        begin = min(begin, hulls[i].x), end = max(end, hulls[i].y);
    if (end == 0)
        return;

    std::size_t const hidden = std::size_t(problem.heads) * head_width_k, stride = 3 * hidden;
    __nv_bfloat16 const* const qkv = problem.qkv + head * head_width_k;
    load_rows<attention_block_k>(queries, qkv, stride, first, count);
    load_rows<attention_block_k>(gradients, problem.gradient + head * head_width_k, hidden, first, count);
    auto const stage_of = [&](unsigned key) {
        return queries + queries_memory::stages + (key - begin) / keys_k % 2 * queries_memory::stage;
    };
    auto const load = [&](unsigned key) {
        load_rows<keys_k>(stage_of(key), qkv + hidden, stride, key, end);
        load_rows<keys_k>(stage_of(key) + tile_bytes(keys_k), qkv + 2 * hidden, stride, key, end);
        copies_commit();
    };
    load(begin);
    row_values rows;
#pragma unroll
    for (unsigned upper = 0; upper != 2; ++upper)
#pragma unroll
        for (unsigned half = 0; half != 2; ++half) {
            std::size_t const row = first + warp_first + upper * 16 + half * 8 + lane / 4;
            bool const present = row < count;
            rows.log_sums[upper][half] =
                present ? problem.log_sums[std::size_t(head) * problem.columns.capacity + row] * base_2_k : 0.f;
            rows.along[upper][half] = present ? along_of(problem, head)[row] : 0.f;
        }

    float sums[2][8][4] = {};
    for (unsigned key = begin; key < end; key += keys_k) {
        copies_wait<0>();
        __syncthreads(); // this stage has arrived, and no warp reads the other any more
        if (key + keys_k < end)
            load(key + keys_k);
#pragma unroll 1
        for (unsigned slice = 0; slice != keys_k; slice += slice_k)
            if (warp.touches(key + slice, slice_k))
                differentiate(sums, rows, warp.covers(key + slice, slice_k) ? nullptr : bounds + warp_first, queries,
                              gradients, stage_of(key), warp_first, slice, key + slice, lane);
    }
    __nv_bfloat16* const to = problem.qkv_gradient + head * head_width_k;
    store_sums(sums, score_scale_k, [&](unsigned row) -> __nv_bfloat16* {
        return bounds[warp_first + row].y != 0 ? to + (first + warp_first + row) * stride : nullptr;
    });
}

unsigned blocks_of(attention_problem const& problem) {
    return blocks_for(problem.columns.active, attention_block_k) * problem.heads;
}

} // namespace

void launch_attention_along(stream const& on, attention_problem const& problem) {
    launch(on, attention_along_kernel, blocks_of(problem), attention_threads_k, 0, problem);
}

void launch_attention_queries_backward(stream const& on, attention_problem const& problem) {
    launch(on, attention_queries_kernel, blocks_of(problem), attention_threads_k, queries_memory::bytes, problem);
}

} // namespace uform::vram

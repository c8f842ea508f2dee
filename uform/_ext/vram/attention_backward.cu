#include "vram/attention_tile.cuh"
#include "vram/launch.cuh"
#include "vram/rotary.h"

namespace uform::vram {

namespace {

constexpr unsigned queries_k = 64; // queries, and gradients of what they attended, that a block holds at a time, twice
constexpr unsigned slice_k = 32;   // of them whose scores a warp holds at a time
constexpr unsigned warps_k = attention_threads_k / warp_k;
constexpr unsigned blocks_per_multiprocessor_k = 2;

/**
 *  Shared memory: the block's keys and values; two stages of queries and gradients; gradients of scores, transposed;
 *  then for each stage its rows' sums and what they give to their own normalisation; the bounds of each key's segment,
 *  and of each warp's.
 */
struct backward_memory {
    static constexpr unsigned values = tile_bytes(attention_block_k);
    static constexpr unsigned stages = 2 * tile_bytes(attention_block_k);
    static constexpr unsigned stage = 2 * tile_bytes(queries_k);
    static constexpr unsigned deltas = stages + 2 * stage;
    static constexpr unsigned rows = deltas + tile_bytes(attention_block_k);
    static constexpr unsigned stage_rows = 2 * queries_k * sizeof(float);
    static constexpr unsigned bounds = rows + 2 * stage_rows;
    static constexpr unsigned warps = bounds + attention_block_k * sizeof(uint2);
    static constexpr unsigned bytes = warps + warps_k * sizeof(warp_bounds);
};

/** Whole segments that are one block's: those that begin among its 128 columns and are no longer than what it owns. */
struct block_columns {
    unsigned begin, end; // none where they are equal
    unsigned unit;       // the first piece of scratch memory that is this block's alone

    static __device__ __forceinline__ block_columns of(attention_problem const& problem, unsigned block,
                                                       unsigned count) {
        unsigned const first = block * attention_block_k, past = min(first + attention_block_k, count);
        uint2 const opening = segment_bounds(problem.columns, first),
                    closing = segment_bounds(problem.columns, past - 1);
        unsigned const begin = opening.x == first ? first : opening.y;
        unsigned const end = closing.y - closing.x > problem.owned_columns ? closing.x : closing.y;
        // The pieces of [begin, end) are at most the difference of `end` and `begin` in pieces rounded down, and one.
        return {begin, begin < past && begin < end ? end : begin, begin / attention_unit_k + block};
    }
};

/** The sums of a warp's 32 keys and values. */
struct key_gradients {
    float keys[2][8][4];
    float values[2][8][4];
};

struct tile_places {
    std::uint32_t keys, values, deltas; // of the block
    std::uint32_t queries, gradients;   // of the stage
    float const* rows;                  // of the stage: sums to base 2, then what `along` has
};

/** Leaves the gradients of scores [32 keys, 32 queries] in shared memory, key by key. */
__device__ __forceinline__ void store_deltas(std::uint32_t tile, float const (&deltas)[2][4][4], unsigned key,
                                             unsigned query, unsigned lane) {
#pragma unroll
    for (unsigned upper = 0; upper != 2; ++upper)
#pragma unroll
        for (unsigned half = 0; half != 2; ++half)
#pragma unroll
            for (unsigned block = 0; block != 4; ++block)
                store_shared(tile + chunk_place(key + upper * 16 + half * 8 + lane / 4, query / 8 + block) +
                                 lane % 4 * 4,
                             pack(deltas[upper][block][half * 2], deltas[upper][block][half * 2 + 1]));
}

/**
 *  One warp's 32 keys against 32 queries of the stage: scores are transposed, a row a key.
 *  @param bounds Of the warp's keys' segments; null where all queries are of the keys' one segment.
 *  @param column The first query's.
 */
template <bool with_queries_ak>
__device__ __forceinline__ void differentiate(key_gradients& sums, tile_places const& places, uint2 const* bounds,
                                              unsigned key, unsigned query, unsigned column, unsigned lane) {
    float weights[2][4][4] = {};
    multiply_rows(weights, places.keys, key, places.queries, query, lane);
#pragma unroll
    for (unsigned block = 0; block != 4; ++block) {
        float2 const log_sums = *reinterpret_cast<float2 const*>(places.rows + query + block * 8 + lane % 4 * 2);
#pragma unroll
        for (unsigned upper = 0; upper != 2; ++upper)
#pragma unroll
            for (unsigned i = 0; i != 4; ++i)
                weights[upper][block][i] =
                    power_of_2(fmaf(weights[upper][block][i], scores_to_base_2_k, i % 2 ? -log_sums.y : -log_sums.x));
    }
    if (bounds)
#pragma unroll
        for (unsigned upper = 0; upper != 2; ++upper)
#pragma unroll
            for (unsigned half = 0; half != 2; ++half) {
                uint2 const segment = bounds[upper * 16 + half * 8 + lane / 4];
#pragma unroll
                for (unsigned block = 0; block != 4; ++block)
#pragma unroll
                    for (unsigned i = 0; i != 2; ++i)
                        if (!within(segment, column + block * 8 + lane % 4 * 2 + i))
                            weights[upper][block][half * 2 + i] = 0.f;
            }
    add_weighted(sums.values, weights, places.gradients, query, lane);

    float deltas[2][4][4] = {};
    multiply_rows(deltas, places.values, key, places.gradients, query, lane);
#pragma unroll
    for (unsigned block = 0; block != 4; ++block) {
        float2 const along =
            *reinterpret_cast<float2 const*>(places.rows + queries_k + query + block * 8 + lane % 4 * 2);
#pragma unroll
        for (unsigned upper = 0; upper != 2; ++upper)
#pragma unroll
            for (unsigned i = 0; i != 4; ++i)
                deltas[upper][block][i] =
                    weights[upper][block][i] * (deltas[upper][block][i] - (i % 2 ? along.y : along.x));
    }
    if (bounds) // of other segments' rows nothing comes through, an infinity neither
#pragma unroll
        for (unsigned upper = 0; upper != 2; ++upper)
#pragma unroll
            for (unsigned block = 0; block != 4; ++block)
#pragma unroll
                for (unsigned i = 0; i != 4; ++i)
                    deltas[upper][block][i] = weights[upper][block][i] == 0.f ? 0.f : deltas[upper][block][i];
    if constexpr (with_queries_ak)
        store_deltas(places.deltas, deltas, key, query, lane);
    add_weighted(sums.keys, deltas, places.queries, query, lane);
}

/**
 *  sums [32 queries, 32 of 64 columns] += gradients of scores times keys, over the keys of warps that took part.
 *  @param column The first query's.
 */
__device__ __forceinline__ void add_queries(float (&sums)[2][4][4], tile_places const& places, warp_bounds const* warps,
                                            unsigned column, unsigned query, unsigned chunk, unsigned lane) {
    unsigned const down = lane_place_down(lane), across = lane_place_across(lane);
#pragma unroll
    for (unsigned warp = 0; warp != warps_k; ++warp) {
        if (!warps[warp].touches(column, slice_k))
            continue;
#pragma unroll
        for (unsigned key = warp * warp_rows_k; key != (warp + 1) * warp_rows_k; key += 16) {
            std::uint32_t left[2][4];
            load_matrices_transposed(left[0], matrices_at(places.deltas, across, key, query / 8));
            load_matrices_transposed(left[1], matrices_at(places.deltas, across, key, query / 8 + 2));
#pragma unroll
            for (unsigned block = 0; block != 4; block += 2) {
                std::uint32_t right[4];
                load_matrices_transposed(right, matrices_at(places.keys, down, key, chunk + block));
#pragma unroll
                for (unsigned upper = 0; upper != 2; ++upper) {
                    multiply_add(sums[upper][block], left[upper], right[0], right[1]);
                    multiply_add(sums[upper][block + 1], left[upper], right[2], right[3]);
                }
            }
        }
    }
}

/** Where sums of 32 queries' gradients wait for later keys. */
__device__ __forceinline__ float4* partial_of(attention_problem const& problem, unsigned head, unsigned unit) {
    std::size_t const units = attention_scratch_units(problem.columns.capacity);
    return reinterpret_cast<float4*>(problem.scratch) +
           (head * units + unit) * (attention_unit_k * head_width_k / sizeof(float4) * sizeof(float));
}

/** Adds what earlier blocks of keys gave to 32 queries, in the order of these: lanes find their own values again. */
__device__ __forceinline__ void add_partial(float (&sums)[2][4][4], float4 const* partial) {
#pragma unroll
    for (unsigned i = 0; i != 8; ++i) {
        float4 const before = partial[i * warp_k];
        float (&sum)[4] = sums[i / 4][i % 4];
        sum[0] += before.x, sum[1] += before.y, sum[2] += before.z, sum[3] += before.w;
    }
}

__device__ __forceinline__ void store_partial(float4* partial, float const (&sums)[2][4][4]) {
#pragma unroll
    for (unsigned i = 0; i != 8; ++i) {
        float const(&sum)[4] = sums[i / 4][i % 4];
        partial[i * warp_k] = make_float4(sum[0], sum[1], sum[2], sum[3]);
    }
}

/** Writes what every row of [first, past) gives to its own normalisation: its output times that one's gradient. */
__device__ __forceinline__ void write_along(attention_problem const& problem, unsigned head, unsigned first,
                                            unsigned past) {
    constexpr unsigned rows_at_once = attention_threads_k / 8, passes = 4;
    float* const along = along_of(problem, head);
    for (unsigned begin = first; begin < past; begin += passes * rows_at_once)
#pragma unroll
        for (unsigned pass = 0; pass != passes; ++pass) {
            unsigned const row = begin + pass * rows_at_once + threadIdx.x / 8;
            float const sum = row_along(problem, head, min(row, past - 1));
            if (threadIdx.x % 8 == 0 && row < past)
                along[row] = sum;
        }
}

/** The queries that a block's keys meet, 64 at a time: tiles are counted from `base`, so that a row keeps its lane. */
struct query_tiles {
    unsigned base, past; // columns
    unsigned begin, end; // tiles
    unsigned complete;   // tiles before this one meet no later keys

    __device__ __forceinline__ unsigned column(unsigned tile) const { return base + tile * queries_k; }

    template <bool owned_ak>
    static __device__ __forceinline__ query_tiles of(block_columns own, unsigned key_first, uint2 const* bounds,
                                                     warp_bounds const* warps) {
        unsigned begin = warps[0].begin, end = warps[0].end;
#pragma unroll
        for (unsigned warp = 1; warp != warps_k; ++warp)
            begin = min(begin, warps[warp].begin), end = max(end, warps[warp].end);
        if constexpr (owned_ak) {
            query_tiles tiles{own.begin, own.end, (begin - own.begin) / queries_k,
                              ceil_divide(end - own.begin, queries_k), 0};
            unsigned const past = key_first + attention_block_k;
            uint2 const closing = bounds[min(past, own.end) - key_first - 1];
            unsigned const next = closing.y > past ? closing.x : past; // the first column that the next keys meet
            tiles.complete = past >= own.end ? tiles.end : (next - own.begin) / queries_k;
            return tiles;
        } else {
            return {begin, end, 0, end == 0 ? 0 : ceil_divide(end - begin, queries_k), 0};
        }
    }
};

/**
 *  A block for 128 columns and a head.
 *  @tparam owned_ak True: it takes the segments that are its own whole, 128 keys after another, and sums the gradients
 *          of their queries beside those of keys and values. False: keys and values of its columns in longer segments.
 */
template <bool owned_ak>
__global__ void __launch_bounds__(attention_threads_k, blocks_per_multiprocessor_k)
    attention_backward_kernel(attention_problem const problem) {
    extern __shared__ __align__(1024) unsigned char memory[];
    uint2* const bounds = reinterpret_cast<uint2*>(memory + backward_memory::bounds);
    warp_bounds* const warps = reinterpret_cast<warp_bounds*>(memory + backward_memory::warps);
    std::uint32_t const shared = shared_place(memory);

    unsigned const head = blockIdx.x % problem.heads, block = blockIdx.x / problem.heads;
    unsigned const thread = threadIdx.x, lane = thread % warp_k, warp = warp_place();
    unsigned const count = problem.columns.counts[0], first = block * attention_block_k;
    std::size_t const hidden = std::size_t(problem.heads) * head_width_k, stride = 3 * hidden;
    __nv_bfloat16 const* const qkv = problem.qkv + head * head_width_k;
    __nv_bfloat16* const qkv_gradient = problem.qkv_gradient + head * head_width_k;
    float const* const log_sums = problem.log_sums + std::size_t(head) * problem.columns.capacity;
    float const* const along = along_of(problem, head);

    if constexpr (owned_ak)
        for (unsigned part = 0; part != 3; ++part)
            clear_rows(qkv_gradient + part * hidden, stride, max(first, count),
                       min(first + attention_block_k, problem.columns.active));
    if (first >= count)
        return;
    block_columns own{first, min(first + attention_block_k, count), 0};
    if constexpr (owned_ak)
        own = block_columns::of(problem, block, count);

    unsigned visited = 0; // tiles of queries that earlier keys have met
    for (unsigned key_first = own.begin; key_first < own.end; key_first += attention_block_k) {
        if (key_first != own.begin)
            __syncthreads(); // no warp reads the keys before these any more
        load_rows<attention_block_k>(shared, qkv + hidden, stride, key_first, own.end);
        load_rows<attention_block_k>(shared + backward_memory::values, qkv + 2 * hidden, stride, key_first, own.end);
        uint2 key_bounds = make_uint2(0, 0);
        if (key_first + thread < own.end)
            key_bounds = segment_bounds(problem.columns, key_first + thread);
        if (!owned_ak && key_bounds.y - key_bounds.x <= problem.owned_columns)
            key_bounds = make_uint2(0, 0);
        bounds[thread] = key_bounds;
        warp_bounds const mine = warp_bounds::of(key_bounds);
        if (lane == 0)
            warps[warp] = mine;
        __syncthreads();
        query_tiles const queries = query_tiles::of<owned_ak>(own, key_first, bounds, warps);

        auto const load = [&](unsigned tile) {
            std::uint32_t const stage =
                shared + backward_memory::stages + (tile - queries.begin) % 2 * backward_memory::stage;
            load_rows<queries_k>(stage, qkv, stride, queries.column(tile), queries.past);
            load_rows<queries_k>(stage + tile_bytes(queries_k), problem.gradient + head * head_width_k, hidden,
                                 queries.column(tile), queries.past);
            copies_commit();
        };
        auto const row_value = [&](unsigned tile) {
            unsigned const row = queries.column(tile) + thread % queries_k;
            if (row >= queries.past)
                return 0.f;
            return thread < queries_k ? log_sums[row] * base_2_k : along[row];
        };
        auto const stage_rows = [&](unsigned tile) {
            return reinterpret_cast<float*>(memory + backward_memory::rows +
                                            (tile - queries.begin) % 2 * backward_memory::stage_rows);
        };
        if (queries.begin == queries.end) {
            copies_commit();
            copies_wait<0>();
            return; // no longer segment is here
        }
        load(queries.begin);
        if (owned_ak && key_first == own.begin) {
            write_along(problem, head, own.begin, own.end);
            __syncthreads();
        }
        stage_rows(queries.begin)[thread] = row_value(queries.begin);

        key_gradients sums = {};
        for (unsigned tile = queries.begin; tile != queries.end; ++tile) {
            copies_wait<0>();
            __syncthreads(); // this stage has arrived, and no warp reads the other, or gradients of scores, any more
            float next_row = 0.f;
            if (tile + 1 != queries.end) {
                load(tile + 1);
                next_row = row_value(tile + 1);
            }
            std::uint32_t const stage =
                shared + backward_memory::stages + (tile - queries.begin) % 2 * backward_memory::stage;
            tile_places const places{shared, shared + backward_memory::values, shared + backward_memory::deltas,
                                     stage,  stage + tile_bytes(queries_k),    stage_rows(tile)};
            unsigned const column = queries.column(tile), key = warp * warp_rows_k;
#pragma unroll 1
            for (unsigned query = 0; query != queries_k; query += slice_k)
                if (mine.touches(column + query, slice_k))
                    differentiate<owned_ak>(sums, places, mine.covers(column + query, slice_k) ? nullptr : bounds + key,
                                            key, query, column + query, lane);
            if (tile + 1 != queries.end)
                stage_rows(tile + 1)[thread] = next_row;
            if constexpr (owned_ak) {
                __syncthreads(); // gradients of scores are there
                unsigned const query = warp % 2 * attention_unit_k, chunk = warp / 2 * 4;
                if (column + query >= queries.past)
                    continue;
                float query_sums[2][4][4] = {};
                add_queries(query_sums, places, warps, column + query, query, chunk, lane);
                float4* const partial = partial_of(problem, head, own.unit + tile * 2 + query / attention_unit_k) +
                                        warp / 2 * 8 * warp_k + lane;
                if (tile < visited)
                    add_partial(query_sums, partial);
                if (tile >= queries.complete)
                    store_partial(partial, query_sums);
                else
                    store_sums(query_sums, score_scale_k, [&](unsigned row) -> __nv_bfloat16* {
                        unsigned const at = column + query + row;
                        return at < queries.past ? qkv_gradient + at * stride + chunk * 8 : nullptr;
                    });
            }
        }
        visited = queries.end;

        auto const key_row = [&](unsigned row) -> __nv_bfloat16* {
            unsigned const key = warp * warp_rows_k + row;
            return bounds[key].y != 0 ? qkv_gradient + (key_first + key) * stride + hidden : nullptr;
        };
        auto const value_row = [&](unsigned row) -> __nv_bfloat16* {
            __nv_bfloat16* const keys = key_row(row);
            return keys ? keys + hidden : nullptr;
        };
        store_sums(sums.keys, score_scale_k, key_row);
        store_sums(sums.values, 1.f, value_row);
    }
}

} // namespace

void launch_attention_backward(stream const& on, attention_problem const& problem) {
#if UFORM_WITH_SM90
    if (on.gpu_class == uform_gpu_class_hopper_k)
        return sm90::launch_attention_backward(on, problem);
#endif
    unsigned const blocks = blocks_for(problem.columns.active, attention_block_k) * problem.heads;
    launch(on, attention_backward_kernel<true>, blocks, attention_threads_k, backward_memory::bytes, problem);
    if (problem.columns.longest > problem.owned_columns) {
        launch_attention_along(on, problem);
        launch(on, attention_backward_kernel<false>, blocks, attention_threads_k, backward_memory::bytes, problem);
        launch_attention_queries_backward(on, problem);
    }
    if (problem.turn_back)
        launch_rotary(on, problem.columns, problem.heads, problem.qkv_gradient, rotary_direction::backward);
}

} // namespace uform::vram

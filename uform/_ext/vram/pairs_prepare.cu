#include <algorithm>

#include "vram/elementwise.cuh"
#include "vram/launch.cuh"
#include "vram/pairs.h"

namespace uform::vram::pairs {

namespace {

constexpr unsigned warps_k = 8;
constexpr unsigned threads_k = warps_k * warp_k;
static_assert(threads_k == key_chunk_k && keys_k == warp_k);

constexpr unsigned scan_threads_k = 1024;

/** The row of a unit, or no_row_k: rows are ascending. */
__device__ std::uint32_t find_row(problem const& p, std::uint32_t unit) {
    std::uint32_t begin = 0, end = p.counts[1];
    while (begin < end) {
        std::uint32_t const middle = begin + (end - begin) / 2;
        if (p.rows[middle] < unit)
            begin = middle + 1;
        else
            end = middle;
    }
    return begin < p.counts[1] && p.rows[begin] == unit ? begin : no_row_k;
}

/** Where a unit belongs in the order: with those that see, and are seen by, the same. Only speed depends on it. */
__device__ unsigned key_of(problem const& p, std::uint32_t unit, bool is_row) {
    unsigned group = 0;
    switch (p.scope) {
    case uform_ambient_scope_cross_modal_k:
        group = min(p.modalities[unit], 15u);
        break;
    case uform_ambient_scope_targets_k:
        group = p.targets[unit] != 0;
        break;
    case uform_ambient_scope_cross_side_k:
        group = p.sides[unit] % 4;
        break;
    default:
        break;
    }
    return 2 * group + !is_row;
}

__global__ void __launch_bounds__(threads_k) count_keys(problem p) {
    __shared__ unsigned counts[keys_k];
    if (threadIdx.x < keys_k)
        counts[threadIdx.x] = 0;
    __syncthreads();
    std::uint32_t const unit = blockIdx.x * key_chunk_k + threadIdx.x;
    if (unit < p.counts[0]) {
        std::uint32_t const row = find_row(p, unit);
        unsigned const key = key_of(p, unit, row != no_row_k);
        p.unit_rows[unit] = row;
        p.keys[unit] = static_cast<std::uint8_t>(key);
        atomicAdd(&counts[key], 1u);
    }
    __syncthreads();
    if (threadIdx.x < keys_k)
        p.key_counts[threadIdx.x * p.key_chunks + blockIdx.x] = counts[threadIdx.x];
}

/** One block turns counts, key by key and chunk by chunk, into the sums of those before. */
__global__ void __launch_bounds__(scan_threads_k) scan_keys(problem p) {
    __shared__ unsigned warp_sums[scan_threads_k / warp_k];
    unsigned const count = keys_k * p.key_chunks, share = ceil_divide(count, scan_threads_k);
    unsigned const first = min(threadIdx.x * share, count), last = min(first + share, count);
    unsigned const lane = threadIdx.x % warp_k, warp = threadIdx.x / warp_k;
    unsigned own = 0;
    for (unsigned i = first; i != last; ++i)
        own += p.key_counts[i];
    unsigned before = own;
#pragma unroll
    for (unsigned step = 1; step != warp_k; step *= 2) {
        unsigned const other = __shfl_up_sync(whole_warp_k, before, step);
        before += lane >= step ? other : 0;
    }
    if (lane == warp_k - 1)
        warp_sums[warp] = before;
    before -= own;
    __syncthreads();
    for (unsigned i = 0; i != warp; ++i)
        before += warp_sums[i];
    for (unsigned i = first; i != last; ++i) {
        unsigned const here = p.key_counts[i];
        p.key_counts[i] = before;
        before += here;
    }
}

/** Sides that a side sees no ambient pair in, a bit each. */
__device__ std::uint32_t unseen_sides(std::uint32_t side) {
    constexpr std::uint32_t query = uform_late_interaction_side_query_k;
    constexpr std::uint32_t document = uform_late_interaction_side_document_k;
    std::uint32_t unseen = 0;
    for (std::uint32_t other = 0; other != 4; ++other) {
        bool const seen = ((side & query) && (other & document)) || ((side & document) && (other & query));
        unseen |= seen ? 0 : 1u << other;
    }
    return unseen;
}

/** See `visibility`. */
__device__ std::uint32_t look_of(problem const& p, std::uint32_t unit, bool is_row) {
    std::uint32_t const look = absent_k | (is_row && p.ambient ? 0 : everyone_k);
    switch (p.scope) {
    case uform_ambient_scope_cross_modal_k:
        return look | p.modalities[unit];
    case uform_ambient_scope_targets_k:
        return look | 1;
    case uform_ambient_scope_cross_side_k:
        return look | unseen_sides(p.sides[unit] % 4);
    default:
        return look;
    }
}

__device__ std::uint32_t face_of(problem const& p, std::uint32_t unit) {
    switch (p.scope) {
    case uform_ambient_scope_cross_modal_k:
        return everyone_k | p.modalities[unit];
    case uform_ambient_scope_targets_k:
        return everyone_k | (p.targets[unit] != 0 ? 0 : 1);
    case uform_ambient_scope_cross_side_k:
        return everyone_k | 1u << p.sides[unit] % 4;
    default:
        return everyone_k;
    }
}

/** Units of one key keep their order. */
__global__ void __launch_bounds__(threads_k) place_units(problem p) {
    __shared__ unsigned warp_counts[warps_k][keys_k];
    warp_counts[threadIdx.x / keys_k][threadIdx.x % keys_k] = 0;
    __syncthreads();
    std::uint32_t const unit = blockIdx.x * key_chunk_k + threadIdx.x;
    unsigned const lane = threadIdx.x % warp_k, warp = threadIdx.x / warp_k;
    bool const present = unit < p.counts[0];
    unsigned const key = present ? p.keys[unit] : keys_k;
    unsigned const same = __match_any_sync(whole_warp_k, key);
    unsigned rank = __popc(same & ((1u << lane) - 1));
    if (present && rank == 0)
        warp_counts[warp][key] = __popc(same);
    __syncthreads();
    if (!present)
        return;
    for (unsigned i = 0; i != warp; ++i)
        rank += warp_counts[i][key];
    std::uint32_t const place = p.key_counts[key * p.key_chunks + blockIdx.x] + rank, row = p.unit_rows[unit];
    p.place_of[unit] = place;
    p.vector_at[place] = p.indices ? p.indices[unit] : unit;
    p.row_at[place] = row;
    p.look[place] = look_of(p, unit, row != no_row_k);
    p.face[place] = face_of(p, unit);
    if (row != no_row_k)
        p.row_places[row] = place;
}

/** A warp a place: the vector as bfloat16, and what a place without a row or a unit holds. */
__global__ void __launch_bounds__(threads_k) fill_places(problem p, partial_sum initial) {
    std::uint32_t const place = blockIdx.x * warps_k + threadIdx.x / warp_k, lane = threadIdx.x % warp_k;
    bool const present = place < p.counts[0];
    if (lane == 0) {
        p.terms[place] = {0, -INFINITY, 0, 0};
        p.sums[place] = initial;
        if (!present) {
            p.row_at[place] = no_row_k;
            p.look[place] = p.face[place] = everyone_k | absent_k;
        }
    }
    float const* const from = p.unit_vectors + (present ? std::size_t(p.vector_at[place]) * p.width : 0);
    auto* const to = reinterpret_cast<__nv_bfloat162*>(p.vectors + std::size_t(place) * p.padded_width);
    float square = 0;
    for (std::uint32_t pair = lane; pair < p.padded_width / 2; pair += warp_k) {
        float const first = present && 2 * pair < p.width ? from[2 * pair] : 0.f;
        float const second = present && 2 * pair + 1 < p.width ? from[2 * pair + 1] : 0.f;
        __nv_bfloat162 const rounded = __floats2bfloat162_rn(first, second);
        to[pair] = rounded;
        float2 const kept = __bfloat1622float2(rounded);
        square = fmaf(kept.x, kept.x, fmaf(kept.y, kept.y, square));
    }
    square = sum_warp(square);
    if (lane == 0)
        p.lengths[place] = sqrtf(square);
}

__device__ visibility reduce_warp(visibility const& view) {
    return {__reduce_and_sync(whole_warp_k, view.all_look), __reduce_or_sync(whole_warp_k, view.any_look),
            __reduce_and_sync(whole_warp_k, view.all_face), __reduce_or_sync(whole_warp_k, view.any_face)};
}

/** A block of threads a block of tiles, a warp a tile. */
__global__ void __launch_bounds__(block_tiles_k* warp_k) view_tiles(problem p) {
    __shared__ visibility views[block_tiles_k];
    std::uint32_t const lane = threadIdx.x % warp_k, warp = threadIdx.x / warp_k;
    std::uint32_t const tile = blockIdx.x * block_tiles_k + warp;
    visibility view{~0u, 0, ~0u, 0};
    float longest = 0;
    if (tile < p.tiles) {
        for (std::uint32_t i = lane; i < tile_k; i += warp_k) {
            longest = fmaxf(longest, p.lengths[tile * tile_k + i]);
            std::uint32_t const look = p.look[tile * tile_k + i], face = p.face[tile * tile_k + i];
            view.all_look &= look, view.any_look |= look, view.all_face &= face, view.any_face |= face;
        }
    }
    view = reduce_warp(view);
    longest = __uint_as_float(__reduce_max_sync(whole_warp_k, __float_as_uint(longest))); // none is negative
    if (lane == 0) {
        views[warp] = view;
        if (tile < p.tiles)
            p.tile_views[tile] = view, p.tile_lengths[tile] = longest;
    }
    __syncthreads();
    if (warp == 0) {
        static_assert(block_tiles_k == warp_k);
        view = reduce_warp(views[lane]);
        if (lane == 0)
            p.block_views[blockIdx.x] = view;
    }
}

__device__ void put_edge(problem const& p, std::uint32_t row, std::uint32_t to, std::uint32_t edge,
                         std::uint32_t row_tile) {
    std::uint32_t const place = p.place_of[p.edge_units[edge]], tile = place / tile_k;
    p.named_places[to] = place;
    p.named_edges[to] = edge;
    p.named_rows[to] = row;
    std::uint32_t const lesser = min(tile, row_tile), greater = max(tile, row_tile);
    atomicOr(&p.named_tiles[lesser * p.tile_words + greater / 32], 1u << greater % 32);
}

/** A warp a row, then on. Edges come by unit; those of one key stay in that order, which is then the one of places. */
__global__ void __launch_bounds__(threads_k) sort_edges(problem p) {
    std::uint32_t const rows = p.counts[1], lane = threadIdx.x % warp_k;
    for (std::uint32_t row = blockIdx.x * warps_k + threadIdx.x / warp_k; row < rows; row += gridDim.x * warps_k) {
        std::uint32_t const begin = p.edge_offsets[row], end = p.edge_offsets[row + 1];
        std::uint32_t const row_tile = p.row_places[row] / tile_k;
        if (end - begin == 1) {
            if (lane == 0)
                put_edge(p, row, begin, begin, row_tile);
            continue;
        }
        auto const key_at = [&](std::uint32_t edge) -> unsigned {
            return edge < end ? p.keys[p.edge_units[edge]] : keys_k;
        };
        // Lane k counts the edges of key k.
        std::uint32_t next = 0;
        for (std::uint32_t first = begin; first < end; first += warp_k) {
            unsigned const key = key_at(first + lane);
            for (unsigned k = 0; k != keys_k; ++k) {
                unsigned const same = __ballot_sync(whole_warp_k, key == k);
                next += lane == k ? __popc(same) : 0;
            }
        }
        std::uint32_t const own = next;
#pragma unroll
        for (unsigned step = 1; step != warp_k; step *= 2) {
            std::uint32_t const other = __shfl_up_sync(whole_warp_k, next, step);
            next += lane >= step ? other : 0;
        }
        next += begin - own;
        for (std::uint32_t first = begin; first < end; first += warp_k) {
            unsigned const key = key_at(first + lane);
            unsigned const same = __match_any_sync(whole_warp_k, key);
            std::uint32_t const at = __shfl_sync(whole_warp_k, next, key % keys_k);
            if (first + lane < end)
                put_edge(p, row, at + __popc(same & ((1u << lane) - 1)), first + lane, row_tile);
            for (unsigned k = 0; k != keys_k; ++k) {
                unsigned const with_key = __ballot_sync(whole_warp_k, key == k);
                next += lane == k ? __popc(with_key) : 0;
            }
        }
    }
}

/** A warp an edge, then on: the dot product of float32 vectors, for named pairs lie at the extremes, where the
 *  temperature makes the most of a rounding. */
__global__ void __launch_bounds__(threads_k) measure_edges(problem p) {
    std::uint32_t const edges = p.counts[2], lane = threadIdx.x % warp_k;
    bool const whole = p.width % 4 == 0 && reinterpret_cast<std::uintptr_t>(p.unit_vectors) % 16 == 0;
    for (std::uint32_t i = blockIdx.x * warps_k + threadIdx.x / warp_k; i < edges; i += gridDim.x * warps_k) {
        std::uint32_t const row_place = p.row_places[p.named_rows[i]];
        float const* const left = p.unit_vectors + std::size_t(p.vector_at[row_place]) * p.width;
        float const* const right = p.unit_vectors + std::size_t(p.vector_at[p.named_places[i]]) * p.width;
        double sum = 0;
        if (whole) {
            for (std::uint32_t column = lane * 4; column < p.width; column += warp_k * 4) {
                float4 const a = *reinterpret_cast<float4 const*>(left + column);
                float4 const b = *reinterpret_cast<float4 const*>(right + column);
                sum += (double(a.x) * b.x + double(a.y) * b.y) + (double(a.z) * b.z + double(a.w) * b.w);
            }
        } else {
            for (std::uint32_t column = lane; column < p.width; column += warp_k)
                sum += double(left[column]) * right[column];
        }
        sum = sum_warp(sum);
        if (lane == 0)
            p.named_dots[i] = static_cast<float>(sum);
    }
}

} // namespace

void prepare(stream const& stream, problem const& p, extents const& extents, partial_sum initial) {
    launch(stream, count_keys, p.key_chunks, threads_k, 0, p);
    launch(stream, scan_keys, 1, scan_threads_k, 0, p);
    launch(stream, place_units, p.key_chunks, threads_k, 0, p);
    launch(stream, fill_places, p.tiles * (tile_k / warps_k), threads_k, 0, p, initial);
    launch(stream, view_tiles, ceil_divide(p.tiles, block_tiles_k), block_tiles_k * warp_k, 0, p);
    std::size_t const bits = std::size_t(p.tiles) * p.tile_words * sizeof *p.named_tiles;
    check_cuda(cudaMemsetAsync(p.named_tiles, 0, bits, stream.handle), stream);
    // Both go on where the grid ends: capacities are far above what a step holds.
    unsigned const most = static_cast<unsigned>(stream.multiprocessors) * 16;
    launch(stream, sort_edges, std::min(blocks_for(extents.rows, warps_k), most), threads_k, 0, p);
    launch(stream, measure_edges, std::min(blocks_for(extents.edges, warps_k), most), threads_k, 0, p);
}

} // namespace uform::vram::pairs

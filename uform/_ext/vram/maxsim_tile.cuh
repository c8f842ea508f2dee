/** From a tile of dot products in registers to each row's largest and where it is. */
#pragma once

#include <limits>

#include "vram/elementwise.cuh"
#include "vram/maxsim.h"

namespace uform::vram::maxsim {

/** A thread's part of a row of a tile: of each 8 columns two beside each other, those of lane % 4. */
inline constexpr unsigned tile_blocks_k = tile_columns_k / 8;
using tile_sums = float[tile_blocks_k][4];

/** Less than any product. */
inline constexpr float nothing_k = -std::numeric_limits<float>::infinity();

/** The largest dot product of a row so far, and its place in the document. */
struct match {
    float value = nothing_k;
    std::uint32_t place = 0;

    /** Takes another if it is larger, or as large and further to the front. */
    __device__ __forceinline__ void merge(float other, std::uint32_t at) {
        bool const better = other > value || (other == value && at < place);
        value = better ? other : value;
        place = better ? at : place;
    }
};

/**
 *  Takes a thread's columns of one of its two rows of a tile.
 *  @tparam whole_ak Whether all columns are the document's.
 *  @param half Which row. @param first The tile's first place in the document. @param count Its columns that count.
 */
template <bool whole_ak>
__device__ __forceinline__ void take_columns(tile_sums const& sums, unsigned half, std::uint32_t first,
                                             std::uint32_t count, match& best) {
    // Chains that do not wait for each other; within each the first of equal ones stays.
    constexpr unsigned chains_k = 4;
    unsigned const own = threadIdx.x % 4 * 2;
    float values[chains_k];
    std::uint32_t codes[chains_k];
#pragma unroll
    for (unsigned chain = 0; chain != chains_k; ++chain)
        values[chain] = nothing_k, codes[chain] = 0;
#pragma unroll
    for (unsigned block = 0; block != tile_blocks_k; ++block) {
#pragma unroll
        for (unsigned side = 0; side != 2; ++side) {
            unsigned const chain = block % 2 * 2 + side, code = block * 8 + side;
            float value = sums[block][2 * half + side];
            if constexpr (!whole_ak)
                value = code + own < count ? value : nothing_k;
            bool const larger = value > values[chain];
            values[chain] = larger ? value : values[chain];
            codes[chain] = larger ? code : codes[chain];
        }
    }
    match found;
    found.value = values[0], found.place = codes[0];
#pragma unroll
    for (unsigned chain = 1; chain != chains_k; ++chain)
        found.merge(values[chain], codes[chain]);
    // Tiles come in the order of places.
    bool const larger = found.value > best.value;
    best.value = larger ? found.value : best.value;
    best.place = larger ? first + own + found.place : best.place;
}

__device__ __forceinline__ void take_columns(tile_sums const& sums, unsigned half, std::uint32_t first,
                                             std::uint32_t count, match& best) {
    if (count >= tile_columns_k)
        take_columns<true>(sums, half, first, count, best);
    else
        take_columns<false>(sums, half, first, count, best);
}

/** Four lanes have parts of a row: one writes the match of all of them. */
__device__ __forceinline__ void store_match(problem const& p, std::uint32_t document, std::uint32_t row, match best) {
#pragma unroll
    for (int step = 1; step != 4; step *= 2) {
        float const other = __shfl_xor_sync(whole_warp_k, best.value, step);
        std::uint32_t const at = __shfl_xor_sync(whole_warp_k, best.place, step);
        best.merge(other, at);
    }
    if (threadIdx.x % 4 != 0 || row >= p.counts[1])
        return;
    std::size_t const at = std::size_t(document) * p.query_vectors_capacity + row;
    p.matches[at] = best.value;
    p.places[at] = static_cast<std::uint16_t>(best.place);
}

} // namespace uform::vram::maxsim

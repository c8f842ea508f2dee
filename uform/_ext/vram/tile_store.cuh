/** The sums of a tile to memory, of either kind of tile. */
#pragma once

#include <cstddef>

#include <cuda_runtime.h>

namespace uform::vram {

/** Stores sums of rows [*, end_row) and columns [*, end_column), the latter a multiple of 8, in float32. */
template <typename product_tile>
__device__ __forceinline__ void store(typename product_tile::sums_t const& sums, float* to, std::size_t stride,
                                      std::size_t first_row, std::size_t end_row, std::size_t first_column,
                                      std::size_t end_column) {
#pragma unroll
    for (unsigned down = 0; down != product_tile::downs_k; ++down) {
#pragma unroll
        for (unsigned half = 0; half != 2; ++half) {
            std::size_t const row = first_row + product_tile::row_of(down, half);
            if (row >= end_row)
                continue;
#pragma unroll
            for (unsigned across = 0; across != product_tile::acrosses_k; ++across) {
                std::size_t const column = first_column + product_tile::column_of(across);
                if (column < end_column)
                    *reinterpret_cast<float2*>(to + row * stride + column) =
                        make_float2(sums[down][across][2 * half], sums[down][across][2 * half + 1]);
            }
        }
    }
}

} // namespace uform::vram

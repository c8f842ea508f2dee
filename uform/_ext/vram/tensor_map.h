/** Descriptions of matrices in a GPU's memory, by which Hopper copies boxes of them in bulk. */
#pragma once

#include <cstddef>

#include <cuda.h>
#include <cuda_bf16.h>

#include "vram/stream.h"

namespace uform::vram {

/**
 *  A matrix of bfloat16 in boxes of 64 by 64, swizzled by 128 bytes.
 *  @param values Aligned to 16 bytes.
 *  @param stride Values from one row to the next, a multiple of 8.
 */
CUtensorMap tensor_map_of(stream const&, __nv_bfloat16 const* values, std::size_t rows, std::size_t columns,
                          std::size_t stride);

/**
 *  The same, but each 32 rows are dealt to four threads of a product: row 8 t + 2 i + b comes as 8 i + 2 t + b, where
 *  thread t has the two of every 8 columns, so that its 8 of 32 are rows beside each other.
 *  @param rows A multiple of 32.
 */
CUtensorMap dealt_map_of(stream const&, __nv_bfloat16 const* values, std::size_t rows, std::size_t columns,
                         std::size_t stride);

} // namespace uform::vram

/** The weights' gradient of raw values in one product, on Hopper. Defined where that architecture is compiled. */
#pragma once

#include "vram/elementwise.cuh"
#include "vram/row_shares.cuh"
#include "vram/stream.h"

#include <uform/plugin.h>

namespace uform::vram::sm90 {

/** Whether the product takes values as they are: bytes or 16 bits, in rows of whole vectors. */
inline bool multiplies_values(stream const& stream, uform_patches_t const& patches) noexcept {
    return stream.gpu_class == uform_gpu_class_hopper_k && patches.width % lanes_k == 0 &&
           patches.element != uform_element_float32_k;
}

/** Shares of the patches: as many blocks as the GPU holds at a time. @param most Of which there is room for parts. */
unsigned value_splits(stream const&, uform_patches_t const&, unsigned most) noexcept;

/**
 *  parts[splits, hidden, width] = the products of the shown columns' gradients with their patches' scaled values.
 *  @param places [active] the column of each patch that is shown, or `left_alone_k`
 */
void multiply_values(stream const&, uform_patches_t const&, row_shares const&, std::uint32_t const* places,
                     float* parts);

} // namespace uform::vram::sm90

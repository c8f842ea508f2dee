/** The heads' kernels that Hopper's copies in bulk serve. Defined where that architecture is compiled. */
#pragma once

#include "vram/heads.cuh"

namespace uform::vram::sm90 {

// heads_scores_sm90.cu
void score_bytes(stream const&, head_panel const&, std::uint32_t rows, std::uint8_t const* targets, head_scale const&,
                 double* losses);
/** @return Whether the outputs' number allows it. */
bool score_patches(stream const&, head_panel const&, std::uint32_t rows, patch_targets const&, head_scale const&,
                   double* losses);

// heads_gradients_sm90.cu
void multiply_gradients(stream const&, head_panel const&, std::uint32_t rows);

} // namespace uform::vram::sm90

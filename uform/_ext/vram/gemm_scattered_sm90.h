/** A linear map whose rows go to places of their own, on Hopper. Defined where that architecture is compiled. */
#pragma once

#include <cstdint>

#include "vram/gemm.h"

namespace uform::vram::sm90 {

/** A row that is not stored. */
inline constexpr std::uint32_t no_place_k = 0xFFFFFFFFu;

/** y[places[row]] = x[row] weight^T. @param places [rows] on the device, distinct but for `no_place_k`. */
void gemm_scattered_forward(stream const&, linear_extents const&, __nv_bfloat16 const* x, __nv_bfloat16 const* weight,
                            std::uint32_t const* places, __nv_bfloat16* y);

} // namespace uform::vram::sm90

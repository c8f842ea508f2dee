/** Weights in the form in which products read them. */
#pragma once

#include <cstdint>

#include <cuda_bf16.h>

#include "vram/stream.h"

namespace uform::vram {

/** scaled[out, in] = weight[out, in] * gain[in], rounded to bfloat16. `ins` is a multiple of 8. */
void launch_scale_columns(stream const&, std::uint32_t outs, std::uint32_t ins, __nv_bfloat16 const* weight,
                          float const* gain, __nv_bfloat16* scaled);

} // namespace uform::vram

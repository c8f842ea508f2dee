/** RMSNorm with a gain over rows of bfloat16, which the encoder's blocks and the last norm share. */
#pragma once

#include <cstddef>
#include <cstdint>

#include <cuda_bf16.h>

#include "vram/stream.h"

namespace uform::vram {

/** The rows that a norm works on: a grid reaches `active`, data reaches the device-side count. */
struct norm_rows {
    std::uint32_t active;
    std::uint32_t const* count;
    std::uint32_t hidden; // a multiple of 8, at most 16384
};

/**
 *  y = x * inverse * gain, inverse = 1 / sqrt(mean(x^2) + 1e-6). Rows [count, active) of `y` become zero: they may feed
 *  a product over all active rows.
 *  @param inverse_rms [active] is written.
 */
void launch_norm_forward(stream const&, norm_rows const& rows, __nv_bfloat16 const* x, float const* gain,
                         __nv_bfloat16* y, float* inverse_rms);

/** The inverses alone: of a norm that a product applies to its rows, see `gemm_fused.h`. */
void launch_norm_inverses(stream const&, norm_rows const& rows, __nv_bfloat16 const* x, float* inverse_rms);

/** Values of a row whose squares a product sums up. */
inline constexpr std::uint32_t norm_part_k = 64;

/** The same from sums of squares [active, hidden / norm_part_k]. */
void launch_norm_inverses(stream const&, norm_rows const& rows, float const* squares, float* inverse_rms);

/** What a norm's backward reads and writes. */
struct norm_backward_arguments {
    __nv_bfloat16 const* x;
    float const* gain;
    float const* inverse_rms;
    __nv_bfloat16 const* output_gradient;
    __nv_bfloat16 const* residual_gradient; // added to the answer where the input passes around the norm, or null
    __nv_bfloat16* input_gradient;          // may be either of the two gradients; rows [count, active) become zero
    __nv_bfloat16* output;                  // the norm's output again, or null
    float* gain_gradient;                   // [hidden] added to, in a fixed order
    void* workspace;                        // of `norm_workspace_bytes(hidden, capacity of columns)`
};

/** input_gradient = residual_gradient + the norm's backward of output_gradient; the gain's gradient is added to. */
void launch_norm_backward(stream const&, norm_rows const& rows, norm_backward_arguments const& arguments);

} // namespace uform::vram

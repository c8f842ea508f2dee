/** The gated unit between the two products of a block's feed-forward: gelu(gate) * up. */
#pragma once

#include <cstdint>

#include <cuda_bf16.h>

#include "vram/stream.h"

namespace uform::vram {

/** The rows that it works on: a grid reaches `active`, data reaches the device-side count. */
struct geglu_rows {
    std::uint32_t active;
    std::uint32_t const* count;
    std::uint32_t inner; // a multiple of 8
};

/** product[r, i] = gelu(gate_up[r, i]) * gate_up[r, inner + i]; rows [count, active) become zero. */
void launch_geglu_forward(stream const&, geglu_rows const& rows, __nv_bfloat16 const* gate_up, __nv_bfloat16* product);

/**
 *  The gradients of both halves; rows [count, active) become zero.
 *  @param product_gradient [active, inner].
 *  @param gate_up_gradient [active, 2 * inner]; may be `gate_up` itself.
 */
void launch_geglu_backward(stream const&, geglu_rows const& rows, __nv_bfloat16 const* gate_up,
                           __nv_bfloat16 const* product_gradient, __nv_bfloat16* gate_up_gradient);

} // namespace uform::vram

/** Products of row-major bfloat16 matrices on tensor cores, accumulated in float32: a linear map and its gradients. */
#pragma once

#include <cstddef>
#include <cstdint>

#include <cuda_bf16.h>

#include "vram/stream.h"

namespace uform::vram {

/**
 *  A linear map of rows: y[rows, outs] = x[rows, ins] weight[outs, ins]^T. `outs` and `ins` are multiples of 8, every
 *  matrix lies densely at an address that 16 divides. No row of the answer depends on another row of `x`, so that rows
 *  past a batch's count may hold anything; the weights' gradient sums over rows, so that there they must be zero.
 */
struct linear_extents {
    std::uint32_t rows, outs, ins;
};

/** y = x weight^T + residual. @param residual [rows, outs], may be `y` itself; or null. */
void gemm_forward(stream const&, linear_extents const&, __nv_bfloat16 const* x, __nv_bfloat16 const* weight,
                  __nv_bfloat16 const* residual, __nv_bfloat16* y);

/** y = x weight^T in float32. */
void gemm_forward(stream const&, linear_extents const&, __nv_bfloat16 const* x, __nv_bfloat16 const* weight, float* y);

/** dx[rows, ins] = dy[rows, outs] weight[outs, ins] + residual. @param residual [rows, ins], may be `dx`; or null. */
void gemm_data_gradient(stream const&, linear_extents const&, __nv_bfloat16 const* dy, __nv_bfloat16 const* weight,
                        __nv_bfloat16 const* residual, __nv_bfloat16* dx);

/** dw[outs, ins] += dy[rows, outs]^T x[rows, ins]. The order of the sum depends on the extents and the GPU alone. */
void gemm_weight_gradient(stream const&, linear_extents const&, __nv_bfloat16 const* dy, __nv_bfloat16 const* x,
                          float* dw, void* workspace, std::size_t workspace_bytes);

/** Bytes of the workspace above, which suffice for fewer rows as well. */
std::size_t gemm_weight_gradient_workspace_bytes(linear_extents const& extents) noexcept;

} // namespace uform::vram

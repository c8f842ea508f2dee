/** Products and what follows them in a block, in one kernel where the GPU's family of kernels has it. */
#pragma once

#include <cstdint>

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include "vram/gemm.h"
#include "vram/norm.h"

namespace uform::vram {

/**
 *  The norm of a product's rows. A kernel that goes on from the product takes the rows as they are, scales its weights'
 *  columns by the gain and its sums' rows by the inverses; else the rows are normed first.
 */
struct norm_before {
    norm_rows rows;
    __nv_bfloat16 const* x; // [active, hidden]
    float const* gain;      // [hidden]
    float const* squares;   // [active, hidden / norm_part_k] of x, as `gemm_residual_forward` leaves them; or null
    float* inverses;        // [active], written
    __nv_bfloat16* normed;  // [active, hidden] to work in
    __nv_bfloat16* scaled;  // of the weights' shape, to work in
};

/** The map before GeGLU: rows [count, rows) of the product become zero, those of gate_up hold anything. */
struct gated_problem {
    norm_before norm;
    std::uint32_t inner;
    __nv_bfloat16 const* weight; // [2 * inner, hidden]
    __nv_bfloat16* gate_up;      // [rows, 2 * inner] = normed weight^T
    __nv_bfloat16* product;      // [rows, inner] = gelu(gate) * up
};

/** The gradient of the map after GeGLU, and GeGLU's own: rows [count, rows) of the answer become zero. */
struct gated_gradient_problem {
    std::uint32_t rows, inner, hidden;
    std::uint32_t const* count;      // on the device
    __nv_bfloat16 const* dy;         // [rows, hidden]
    __nv_bfloat16 const* weight;     // [hidden, inner]
    __nv_bfloat16 const* gate_up;    // [rows, 2 * inner]
    __nv_bfloat16* gate_up_gradient; // [rows, 2 * inner] of GeGLU, for dy weight
    __nv_bfloat16* incoming;         // [rows, inner] dy weight, where no kernel goes on from it
};

/** The map before attention, its queries and keys turned by their positions. */
struct turned_problem {
    norm_before norm;
    uform_columns_t const& columns;
    __nv_bfloat16 const* weight; // [3 * hidden, hidden]
    __nv_bfloat16* qkv;          // [active, 3 * hidden]
    float2* turns;               // [active, 32] to work in
};

/**
 *  `gemm_forward` with a residual.
 *  @param squares [rows, outs / norm_part_k] receives sums of the answer's squares where the family's kernel makes
 *  them, which is where its products can use them.
 */
void gemm_residual_forward(stream const&, linear_extents const&, __nv_bfloat16 const* x, __nv_bfloat16 const* weight,
                           __nv_bfloat16 const* residual, __nv_bfloat16* y, float* squares);

void gemm_gated_forward(stream const&, gated_problem const&);
void gemm_gated_backward(stream const&, gated_gradient_problem const&);
void gemm_turned_forward(stream const&, turned_problem const&);

} // namespace uform::vram

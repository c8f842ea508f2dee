/** What each family of kernels offers behind gemm.h; nothing of CUTLASS passes this header. */
#pragma once

#include <cstdint>

#include "vram/gemm_fused.h"
#include "vram/gemm_stream_k.h"
#include "vram/gemm_tiles.h"
#include "vram/stream.h"

namespace uform::vram {

/** d[slice] = a[slice] b[slice] + c, an answer [m, n] of a sum over k for each slice; slices lie densely. */
struct gemm_problem {
    std::uint32_t m, n, k;
    std::uint32_t slices;
    void const* a; // bfloat16, as are b and c
    void const* b;
    void const* c; // null: nothing is added
    void* d;
};

/** dw[outs, ins] += dy[rows, outs]^T x[rows, ins] by a plan for these extents. */
struct stream_k_problem {
    std::uint32_t rows, outs, ins;
    void const* dy; // bfloat16, as is x
    void const* x;
    float* dw;
    void* workspace;
    stream_k_plan plan;
};

/**
 *  Kernels of one generation of GPUs. The storage of the operands is that of y = x weight^T: forward multiplies a[m, k]
 *  by b[n, k]^T, the data's gradient a[m, k] by b[k, n], the weights' gradient a[k, m]^T by b[k, n]. Answers are
 *  bfloat16, but float32 of `forward_float` and `weight_gradient`. A family may overrule the tile. Stream-K and
 *  fused products are null where the family has none.
 */
struct gemm_family {
    char const* name;
    void (*forward)(stream const&, gemm_tile, gemm_problem const&);
    void (*forward_float)(stream const&, gemm_problem const&);
    void (*data_gradient)(stream const&, gemm_tile, gemm_problem const&);
    void (*weight_gradient)(stream const&, gemm_tile, gemm_problem const&);
    void (*stream_k_gradient)(stream const&, stream_k_problem const&);
    void (*residual_forward)(stream const&, gemm_problem const&, float* squares);
    void (*gated_forward)(stream const&, gated_problem const&);
    void (*gated_backward)(stream const&, gated_gradient_problem const&);
    void (*turned_forward)(stream const&, turned_problem const&);
};

/** TMA and warp-group products: Hopper alone. Defined where that architecture is compiled. */
namespace sm90 {
void gemm_forward(stream const&, gemm_tile, gemm_problem const&);
void gemm_forward_float(stream const&, gemm_problem const&);
void gemm_data_gradient(stream const&, gemm_tile, gemm_problem const&);
void gemm_weight_gradient(stream const&, gemm_tile, gemm_problem const&);
void gemm_stream_k_gradient(stream const&, stream_k_problem const&);
void gemm_residual_forward(stream const&, gemm_problem const&, float* squares);
void gemm_gated_forward(stream const&, gated_problem const&);
void gemm_gated_backward(stream const&, gated_gradient_problem const&);
void gemm_turned_forward(stream const&, turned_problem const&);
} // namespace sm90

/** Asynchronous copies and warps' products: every GPU since Ampere. */
namespace sm80 {
void gemm_forward(stream const&, gemm_tile, gemm_problem const&);
void gemm_forward_float(stream const&, gemm_problem const&);
void gemm_data_gradient(stream const&, gemm_tile, gemm_problem const&);
void gemm_weight_gradient(stream const&, gemm_tile, gemm_problem const&);
} // namespace sm80

/** The fastest family that runs on the stream's GPU as its class says. */
gemm_family const& gemm_family_of(stream const&) noexcept;

/** dw[outs, ins] += the partial sums [slices, outs, ins] in order, and then the rest rows' products. */
struct partial_sums {
    std::uint32_t outs, ins, slices;
    float const* partials;
    std::uint32_t rest_rows;
    void const* rest_dy; // bfloat16 [rest_rows, outs]
    void const* rest_x;  // bfloat16 [rest_rows, ins]
};

void launch_sum_partials(stream const&, partial_sums const&, float* dw);

} // namespace uform::vram

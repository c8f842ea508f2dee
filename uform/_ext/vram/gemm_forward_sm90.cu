/** y = x weight^T on Hopper. */
#include "vram/gemm_sm90.cuh"

namespace uform::vram::sm90 {
namespace {

using cutlass::layout::ColumnMajor;
using cutlass::layout::RowMajor;

template <typename element_at, gemm_tile tile_ak, groups groups_ak>
using forward_kernel = kernel<RowMajor, ColumnMajor, element_at, tile_ak, groups_ak, epilogue_kind::plain>;

using narrow = forward_kernel<cutlass::bfloat16_t, gemm_tile::narrow, groups::alternate>;
using wide = forward_kernel<cutlass::bfloat16_t, gemm_tile::wide, groups::cooperate>;
using scores = forward_kernel<float, gemm_tile::narrow, groups::cooperate>;

} // namespace

void gemm_forward(stream const& stream, gemm_tile tile, gemm_problem const& problem) {
    if (problem.c)
        return gemm_residual_forward(stream, problem, nullptr);
    return tile == gemm_tile::wide ? launch<wide>(stream, problem) : launch<narrow>(stream, problem);
}

void gemm_forward_float(stream const& stream, gemm_problem const& problem) { launch<scores>(stream, problem); }

} // namespace uform::vram::sm90

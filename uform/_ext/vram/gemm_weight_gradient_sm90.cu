/** Partial sums of dw = dy^T x on Hopper, a slice of the rows each. */
#include "vram/gemm_sm90.cuh"

namespace uform::vram::sm90 {
namespace {

using cutlass::layout::ColumnMajor;
using cutlass::layout::RowMajor;

template <gemm_tile tile_ak>
using sums_kernel = kernel<ColumnMajor, RowMajor, float, tile_ak, groups::cooperate, epilogue_kind::plain>;

using narrow = sums_kernel<gemm_tile::narrow>;
using wide = sums_kernel<gemm_tile::wide>;

} // namespace

void gemm_weight_gradient(stream const& stream, gemm_tile tile, gemm_problem const& problem) {
    return tile == gemm_tile::wide ? launch<wide>(stream, problem) : launch<narrow>(stream, problem);
}

} // namespace uform::vram::sm90

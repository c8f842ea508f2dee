/** dx = dy weight on Hopper. */
#include "vram/gemm_sm90.cuh"

namespace uform::vram::sm90 {
namespace {

using cutlass::layout::RowMajor;

template <gemm_tile tile_ak, groups groups_ak, epilogue_kind epilogue_ak>
using gradient_kernel = kernel<RowMajor, RowMajor, cutlass::bfloat16_t, tile_ak, groups_ak, epilogue_ak>;

using narrow = gradient_kernel<gemm_tile::narrow, groups::alternate, epilogue_kind::plain>;
using wide = gradient_kernel<gemm_tile::wide, groups::cooperate, epilogue_kind::plain>;
using residual = gradient_kernel<gemm_tile::narrow, groups::cooperate, epilogue_kind::add>;

} // namespace

void gemm_data_gradient(stream const& stream, gemm_tile tile, gemm_problem const& problem) {
    if (problem.c)
        return launch<residual>(stream, problem);
    return tile == gemm_tile::wide ? launch<wide>(stream, problem) : launch<narrow>(stream, problem);
}

} // namespace uform::vram::sm90

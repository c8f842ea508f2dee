/** A linear map and its gradients on every GPU since Ampere. */
#include "vram/gemm_sm80.cuh"

namespace uform::vram::sm80 {
namespace {

using cutlass::layout::ColumnMajor;
using cutlass::layout::RowMajor;

using states = kernel<RowMajor, ColumnMajor, cutlass::bfloat16_t>;
using scores = kernel<RowMajor, ColumnMajor, float>;
using gradients = kernel<RowMajor, RowMajor, cutlass::bfloat16_t>;
using sums = kernel<ColumnMajor, RowMajor, float>;

} // namespace

void gemm_forward(stream const& stream, gemm_tile, gemm_problem const& problem) { launch<states>(stream, problem); }

void gemm_forward_float(stream const& stream, gemm_problem const& problem) { launch<scores>(stream, problem); }

void gemm_data_gradient(stream const& stream, gemm_tile, gemm_problem const& problem) {
    launch<gradients>(stream, problem);
}

void gemm_weight_gradient(stream const& stream, gemm_tile, gemm_problem const& problem) {
    launch<sums>(stream, problem);
}

} // namespace uform::vram::sm80

/** CUTLASS kernels for every GPU since Ampere: asynchronous copies in stages, products by warps. */
#pragma once

#include <tuple>
#include <type_traits>

#include <cutlass/epilogue/thread/linear_combination.h>
#include <cutlass/gemm/device/gemm_universal.h>

#include "vram/gemm_family.h"

namespace uform::vram::sm80 {

/**
 *  One kernel with tiles of 128 x 128, four of whose stages fit the smallest shared memory of these GPUs.
 *  @tparam layout_a Of the first operand [m, k], `layout_b` of the second as [k, n], by CUTLASS's names.
 */
template <typename layout_a_at, typename layout_b_at, typename element_at> struct kernel {
    using element = cutlass::bfloat16_t;
    using row_major = cutlass::layout::RowMajor;
    static constexpr int alignment = 16 / sizeof(element);
    static constexpr int stages = 4;

    using epilogue = cutlass::epilogue::thread::LinearCombination<element_at, 16 / sizeof(element_at), float, float>;
    using gemm = cutlass::gemm::device::GemmUniversal<
        element, layout_a_at, element, layout_b_at, element_at, row_major, float, cutlass::arch::OpClassTensorOp,
        cutlass::arch::Sm80, cutlass::gemm::GemmShape<128, 128, 32>, cutlass::gemm::GemmShape<64, 64, 32>,
        cutlass::gemm::GemmShape<16, 8, 16>, epilogue, cutlass::gemm::threadblock::GemmIdentityThreadblockSwizzle<4>,
        stages, alignment, alignment>;

    static constexpr bool first_by_columns = std::is_same_v<layout_a_at, cutlass::layout::ColumnMajor>;
    static constexpr bool second_by_columns = std::is_same_v<layout_b_at, cutlass::layout::ColumnMajor>;
};

/** Starts a kernel. Slices are a batch of products; what is added is left unread where it is null. */
template <typename kernel_at> void launch(stream const& stream, gemm_problem const& problem) {
    using gemm = typename kernel_at::gemm;
    auto const [m, n, k] = std::tuple(std::int64_t(problem.m), std::int64_t(problem.n), std::int64_t(problem.k));
    auto const mode =
        problem.slices == 1 ? cutlass::gemm::GemmUniversalMode::kGemm : cutlass::gemm::GemmUniversalMode::kBatched;
    typename gemm::Arguments arguments(mode, {int(m), int(n), int(k)}, int(problem.slices),
                                       {1.f, problem.c ? 1.f : 0.f}, problem.a, problem.b,
                                       problem.c ? problem.c : problem.d, problem.d, m * k, n * k, m * n, m * n,
                                       kernel_at::first_by_columns ? m : k, kernel_at::second_by_columns ? k : n, n, n);

    gemm product;
    cutlass::Status status = gemm::can_implement(arguments);
    if (status == cutlass::Status::kSuccess)
        status = product.initialize(arguments, nullptr, stream.handle);
    if (status == cutlass::Status::kSuccess)
        status = product.run(stream.handle);
    if (status == cutlass::Status::kSuccess)
        return;
    check_cuda(cudaGetLastError(),
               stream); // the runtime's own word, where CUTLASS left it: of loading, not of starting
    fail(uform_status_device_k, stream.operation, ": a product of [", m, ", ", k, "] and [", k, ", ", n,
         "] was refused: ", cutlassGetStatusString(status));
}

} // namespace uform::vram::sm80

/** CUTLASS kernels for Hopper: TMA loads by a warp of their own, pairs of blocks that share the second operand. */
#pragma once

#include <cstdint>
#include <tuple>
#include <type_traits>

// Kernels wait for those before them where they first load, and let the next one begin at their last tile.
#define CUTLASS_ENABLE_GDC_FOR_SM90 1

#include <cutlass/device_kernel.h>
#include <cutlass/epilogue/collective/collective_builder.hpp>
#include <cutlass/epilogue/thread/activation.h>
#include <cutlass/gemm/collective/collective_builder.hpp>
#include <cutlass/gemm/kernel/gemm_universal.hpp>

#include "vram/gemm_family.h"
#include "vram/launch.cuh"

namespace uform::vram::sm90 {

/** Two groups of warps share a tile, or each has its own and stores it while the other multiplies. */
enum class groups { cooperate, alternate };

/** What is stored: the accumulator as it is, or with a matrix of the answer's shape added. */
enum class epilogue_kind { plain, add };

namespace fusion = cutlass::epilogue::fusion;

// No scaling by one: a multiplication for each value is time where the sum is short.
template <typename element_at> struct plain_fusion {
    using type = fusion::Sm90EVT<fusion::Sm90Compute<cutlass::epilogue::thread::Identity, element_at, float,
                                                     cutlass::FloatRoundStyle::round_to_nearest>,
                                 fusion::Sm90AccFetch>;
};

template <typename element_at> struct add_fusion {
    using type = fusion::Sm90EVT<
        fusion::Sm90Compute<cutlass::plus, element_at, float, cutlass::FloatRoundStyle::round_to_nearest>,
        fusion::Sm90SrcFetch<element_at>, fusion::Sm90AccFetch>;
};

/**
 *  One kernel.
 *  @tparam layout_a Of the first operand [m, k], `layout_b` of the second as [k, n], by CUTLASS's names.
 */
template <typename layout_a_at, typename layout_b_at, typename element_at, gemm_tile tile_ak, groups groups_ak,
          epilogue_kind epilogue_ak>
struct kernel {
    using element = cutlass::bfloat16_t;
    static constexpr int alignment = 16 / sizeof(element);
    static constexpr int answer_alignment = 16 / sizeof(element_at);
    static constexpr bool adds = epilogue_ak == epilogue_kind::add;
    static constexpr bool cooperates = groups_ak == groups::cooperate;

    using row_major = cutlass::layout::RowMajor;
    using tile = cute::Shape<cute::Int<tile_rows(tile_ak)>, cute::Int<tile_columns(tile_ak)>, cute::Int<tile_depth_k>>;
    using cluster = cute::Shape<cute::_2, cute::_1, cute::_1>;
    using added = std::conditional_t<adds, element_at, void>;
    using fused = typename std::conditional_t<adds, add_fusion<element_at>, plain_fusion<element_at>>::type;
    using epilogue_schedule = std::conditional_t<cooperates, cutlass::epilogue::TmaWarpSpecializedCooperative,
                                                 cutlass::epilogue::TmaWarpSpecialized>;
    using mainloop_schedule = std::conditional_t<cooperates, cutlass::gemm::KernelTmaWarpSpecializedCooperative,
                                                 cutlass::gemm::KernelTmaWarpSpecializedPingpong>;

    using epilogue = typename cutlass::epilogue::collective::CollectiveBuilder<
        cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, tile, cluster,
        cutlass::epilogue::collective::EpilogueTileAuto, float, float, added, row_major, answer_alignment, element_at,
        row_major, answer_alignment, epilogue_schedule, fused>::CollectiveOp;
    using mainloop = typename cutlass::gemm::collective::CollectiveBuilder<
        cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, element, layout_a_at, alignment, element, layout_b_at,
        alignment, float, tile, cluster,
        cutlass::gemm::collective::StageCountAutoCarveout<sizeof(typename epilogue::SharedStorage)>,
        mainloop_schedule>::CollectiveOp;
    using gemm_kernel = cutlass::gemm::kernel::GemmUniversal<cute::Shape<int, int, int, int>, mainloop, epilogue>;
};

/** The strides of a dense operand, whichever of its extents is the contiguous one; slices follow each other. */
template <typename stride_at> stride_at dense_strides(std::uint32_t first, std::uint32_t second) {
    stride_at strides{};
    if constexpr (cute::is_static_v<decltype(cute::get<0>(strides))>)
        cute::get<1>(strides) = first;
    else
        cute::get<0>(strides) = second;
    cute::get<2>(strides) = std::int64_t(first) * second;
    return strides;
}

/** A product's extents and operands as a kernel takes them. */
template <typename gemm_kernel_at>
typename gemm_kernel_at::Arguments arguments_of(stream const& stream, gemm_problem const& problem) {
    auto const [m, n, k] = std::tuple(problem.m, problem.n, problem.k);
    typename gemm_kernel_at::Arguments arguments{};
    arguments.mode = cutlass::gemm::GemmUniversalMode::kGemm;
    arguments.problem_shape = {int(m), int(n), int(k), int(problem.slices)};
    arguments.mainloop.ptr_A = static_cast<typename gemm_kernel_at::ElementA const*>(problem.a);
    arguments.mainloop.dA = dense_strides<typename gemm_kernel_at::StrideA>(m, k);
    arguments.mainloop.ptr_B = static_cast<typename gemm_kernel_at::ElementB const*>(problem.b);
    arguments.mainloop.dB = dense_strides<typename gemm_kernel_at::StrideB>(n, k);
    arguments.hw_info.device_id = stream.device;
    arguments.hw_info.sm_count = stream.multiprocessors;
    return arguments;
}

/**
 *  Starts a kernel: its descriptors are made on the host and travel as its parameters, so that no memory is needed.
 *  @param grid_of Its blocks, from the parameters.
 */
template <typename gemm_kernel_at, typename grid_at>
void launch_product(stream const& stream, gemm_problem const& problem,
                    typename gemm_kernel_at::Arguments const& arguments, grid_at&& grid_of) {
    if (!gemm_kernel_at::can_implement(arguments))
        fail(uform_status_device_k, stream.operation, ": a product of [", problem.m, ", ", problem.k, "] and [",
             problem.k, ", ", problem.n, "] was refused");
    typename gemm_kernel_at::Params const parameters = gemm_kernel_at::to_underlying_arguments(arguments, nullptr);
    using cluster = typename gemm_kernel_at::ClusterShape;
    launch_clusters(stream, cutlass::device_kernel<gemm_kernel_at>, beginning::early_k,
                    dim3(cute::size<0>(cluster{}), cute::size<1>(cluster{}), cute::size<2>(cluster{})),
                    grid_of(parameters), gemm_kernel_at::get_block_shape(), gemm_kernel_at::SharedStorageSize,
                    parameters);
}

/** The same for a plain kernel. */
template <typename kernel_at> void launch(stream const& stream, gemm_problem const& problem) {
    using gemm_kernel = typename kernel_at::gemm_kernel;
    typename gemm_kernel::Arguments arguments = arguments_of<gemm_kernel>(stream, problem);
    arguments.epilogue.dC = dense_strides<typename gemm_kernel::StrideC>(problem.m, problem.n);
    arguments.epilogue.ptr_D = static_cast<typename gemm_kernel::ElementD*>(problem.d);
    arguments.epilogue.dD = dense_strides<typename gemm_kernel::StrideD>(problem.m, problem.n);
    if constexpr (kernel_at::adds)
        arguments.epilogue.ptr_C = static_cast<typename gemm_kernel::ElementC const*>(problem.c);
    launch_product<gemm_kernel>(stream, problem, arguments, gemm_kernel::get_grid_shape);
}

} // namespace uform::vram::sm90

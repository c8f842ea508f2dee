/** dw = dy^T x on Hopper: partial sums, a slice of the rows each, or whole sums by Stream-K. */
#include "vram/gemm_stream_k_sm90.cuh"
#include "vram/succession.cuh"

namespace uform::vram::sm90 {
namespace {

using cutlass::layout::ColumnMajor;
using cutlass::layout::RowMajor;

template <gemm_tile tile_ak>
using sums_kernel = kernel<ColumnMajor, RowMajor, float, tile_ak, groups::cooperate, epilogue_kind::plain>;

using narrow = sums_kernel<gemm_tile::narrow>;
using wide = sums_kernel<gemm_tile::wide>;

/** The scheduler stores, so that no epilogue takes memory from the stages. */
struct stream_k {
    using epilogue = typename cutlass::epilogue::collective::CollectiveBuilder<
        cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, wide::tile, wide::cluster,
        cutlass::epilogue::collective::EpilogueTileAuto, float, float, void, RowMajor, wide::answer_alignment, float,
        RowMajor, wide::answer_alignment, cutlass::epilogue::NoSmemWarpSpecialized>::CollectiveOp;
    using gemm_kernel =
        cutlass::gemm::kernel::GemmUniversal<cute::Shape<int, int, int, int>, wide::mainloop, epilogue, stream_k_tag>;
};

constexpr unsigned threads_k = 256;

__global__ void __launch_bounds__(threads_k) clear_counts_kernel(std::uint32_t* counts, unsigned count) {
    follow_earlier_kernels();
    for (unsigned i = threadIdx.x; i < count; i += threads_k)
        counts[i] = 0;
}

} // namespace

void gemm_weight_gradient(stream const& stream, gemm_tile tile, gemm_problem const& problem) {
    return tile == gemm_tile::wide ? launch<wide>(stream, problem) : launch<narrow>(stream, problem);
}

void gemm_stream_k_gradient(stream const& stream, stream_k_problem const& problem) {
    using gemm_kernel = stream_k::gemm_kernel;
    using cluster = typename gemm_kernel::ClusterShape;
    auto const [rows, outs, ins] = std::tuple(problem.rows, problem.outs, problem.ins);
    gemm_problem const product{outs, ins, rows, 1, problem.dy, problem.x, nullptr, nullptr};
    typename gemm_kernel::Arguments arguments = arguments_of<gemm_kernel>(stream, product);
    workspace_parts workspace(problem.workspace);
    unsigned const counts = stream_k_counts(problem.plan);
    stream_k_sums& sums = arguments.scheduler.sums;
    sums.plan = problem.plan;
    sums.outs = outs, sums.ins = ins;
    sums.dw = problem.dw;
    sums.counts = workspace.take<std::uint32_t>(counts);
    sums.parts = workspace.take<float4>(stream_k_values(problem.plan) / 4);
    if (counts != 0)
        launch_early(stream, clear_counts_kernel, 1, threads_k, 0, sums.counts, counts);
    launch_product<gemm_kernel>(stream, product, arguments, [&](auto const&) {
        return dim3(problem.plan.levels[0].pairs * cute::size<0>(cluster{}), cute::size<1>(cluster{}), 1);
    });
}

} // namespace uform::vram::sm90

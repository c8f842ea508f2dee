/** The order of Stream-K for CUTLASS's kernels: which part of which sum a pair of blocks has, and what becomes of it.
 */
#pragma once

#include <cstdint>

#include "vram/elementwise.cuh"
#include "vram/gemm_sm90.cuh"
#include "vram/wgmma.cuh"

namespace uform::vram::sm90 {

/** dw[outs, ins] += sums by a plan. */
struct stream_k_sums {
    stream_k_plan plan;
    std::uint32_t outs, ins;
    float* dw;
    float4* parts;         // of split sums, by tiles and parts
    std::uint32_t* counts; // of the parts that are there, zero at first
};

struct stream_k_tag {};

/**
 *  A tile scheduler in CUTLASS's terms, in whose place for a sum of parts, `fixup`, everything is stored: no epilogue
 *  follows. Each group of warps leaves its part of a split sum in memory; the one that finds all others there adds
 *  them up in the order of the rows. So no block ever waits for another, and the bits do not depend on who is last.
 */
template <typename tile_at, typename cluster_at> class stream_k_scheduler {
    using persistent = cutlass::gemm::kernel::detail::PersistentTileSchedulerSm90;

public:
    static constexpr bool IsDynamicPersistent = false;
    using Pipeline = typename persistent::Pipeline;
    using ThrottlePipeline = typename persistent::ThrottlePipeline;
    using SharedStorage = typename persistent::SharedStorage;
    using CLCResponse = typename persistent::CLCResponse;
    struct Arguments {
        stream_k_sums sums;
    };
    using Params = Arguments;

    struct WorkTileInfo {
        int M_idx = 0, N_idx = 0, L_idx = 0;
        std::uint32_t rank = 0; // of the block in its pair
        stream_k_unit unit{};

        __device__ bool is_valid() const { return unit.exists(); }
        __device__ int reduction_subtile_idx() const { return -1; }
    };

    template <typename shape_at, typename hardware_at, typename... rest_at>
    static Params to_underlying_arguments(shape_at const&, tile_at, cluster_at, hardware_at const&,
                                          Arguments const& arguments, rest_at const&...) {
        return arguments;
    }
    static bool can_implement(Arguments const&) { return true; }
    template <typename, typename, typename... rest_at> static std::size_t get_workspace_size(rest_at const&...) {
        return 0;
    }

    __device__ explicit stream_k_scheduler(Params const& given) : given_(given.sums) {}

    __device__ WorkTileInfo initial_work_tile_info(cluster_at) const { return work_at(0); }
    template <typename... pipeline_at> __device__ auto fetch_next_work(WorkTileInfo const&, pipeline_at const&...) {
        return cute::make_tuple(work_at(++turn_), true);
    }
    __device__ bool is_last_tile(WorkTileInfo const&) const { return !work_at(turn_ + 1).is_valid(); }

    static __device__ bool valid_warpgroup_in_work_tile(WorkTileInfo const&) { return true; }
    static __device__ bool requires_separate_reduction(Params const&) { return false; }
    static __device__ bool compute_epilogue(WorkTileInfo const&, Params const&) { return false; }
    template <typename shape_at>
    static __device__ std::uint32_t get_work_k_tile_count(WorkTileInfo const& work, shape_at const&, tile_at) {
        return work.unit.end - work.unit.begin;
    }
    static __device__ std::uint32_t get_work_k_tile_start(WorkTileInfo const& work) { return work.unit.begin; }

    /** A group's sums of a unit. */
    template <typename sums_at>
    static __device__ void fixup(Params const& given, WorkTileInfo const& work, sums_at& sums, std::uint32_t,
                                 std::uint32_t group) {
        cute::warpgroup_fence_operand(sums); // nothing of them is read before the products are done
        hopper::depend_on_earlier_kernels();
        stream_k_sums const& to = given.sums;
        stream_k_unit const& unit = work.unit;
        owner const own(work);
        if (unit.parts == 1) {
#pragma unroll
            for (unsigned quad = 0; quad != quads_k; ++quad)
                own.add(to, quad,
                        make_float4(sums(quad * 4), sums(quad * 4 + 1), sums(quad * 4 + 2), sums(quad * 4 + 3)));
            return;
        }
        std::uint32_t const split = unit.tile - to.plan.levels[0].rounds * to.plan.levels[0].pairs;
        std::uint32_t const place = split * blocks_k + work.rank;
        constexpr std::size_t stride = groups_k * quads_k * hopper::group_k; // from one part to the next
        float4* const parts = to.parts + std::size_t(place) * to.plan.most_parts() * stride +
                              group * quads_k * hopper::group_k + threadIdx.x % hopper::group_k;
#pragma unroll
        for (unsigned quad = 0; quad != quads_k; ++quad)
            __stcg(parts + unit.part * stride + quad * hopper::group_k,
                   make_float4(sums(quad * 4), sums(quad * 4 + 1), sums(quad * 4 + 2), sums(quad * 4 + 3)));
        if (!is_last(to.counts + place * groups_k + group, unit.parts, group))
            return;
        constexpr unsigned batch = 16;
#pragma unroll
        for (unsigned first = 0; first != quads_k; first += batch) {
            float4 sum[batch] = {};
            for (unsigned part = 0; part != unit.parts; ++part) {
                float4 more[batch];
#pragma unroll
                for (unsigned i = 0; i != batch; ++i)
                    more[i] = __ldcg(parts + part * stride + (first + i) * hopper::group_k);
#pragma unroll
                for (unsigned i = 0; i != batch; ++i)
                    sum[i].x += more[i].x, sum[i].y += more[i].y, sum[i].z += more[i].z, sum[i].w += more[i].w;
            }
#pragma unroll
            for (unsigned i = 0; i != batch; ++i)
                own.add(to, first + i, sum[i]);
        }
    }

private:
    static constexpr unsigned rows_k = cute::size<0>(tile_at{}), columns_k = cute::size<1>(tile_at{});
    static constexpr unsigned blocks_k = cute::size(cluster_at{}), groups_k = 2;
    /** Fours of a thread's sums: two beside each other in a row, and two in the row that is eight below. */
    static constexpr unsigned quads_k = rows_k * columns_k / (groups_k * hopper::group_k * 4);
    static_assert(rows_k * blocks_k == pair_rows_k && columns_k == pair_columns_k &&
                  rows_k == groups_k * hopper::box_k);

    /** Where a thread's sums belong; pairs of lanes swap, so that the even one has four of a row, as the odd one. */
    struct owner {
        std::uint32_t row, column;
        bool odd;

        __device__ explicit owner(WorkTileInfo const& work) {
            unsigned const lane = threadIdx.x % warp_k, warp = threadIdx.x / warp_k % (groups_k * 4);
            odd = lane % 2;
            row = static_cast<unsigned>(work.M_idx) * rows_k + warp * 16 + lane / 4 + odd * 8;
            column = static_cast<unsigned>(work.N_idx) * columns_k + lane % 4 / 2 * 4;
        }
        /** One thread alone adds to these, and once, so that the order of all sums is known. */
        __device__ void add(stream_k_sums const& to, unsigned quad, float4 const& sums) const {
            float const first = __shfl_xor_sync(whole_warp_k, odd ? sums.x : sums.z, 1);
            float const second = __shfl_xor_sync(whole_warp_k, odd ? sums.y : sums.w, 1);
            float4 const four =
                odd ? make_float4(first, second, sums.z, sums.w) : make_float4(sums.x, sums.y, first, second);
            if (row < to.outs && column + quad * 8 < to.ins)
                asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(
                                 to.dw + std::size_t(row) * to.ins + column + quad * 8),
                             "f"(four.x), "f"(four.y), "f"(four.z), "f"(four.w)
                             : "memory");
        }
    };

    /** Counts the group's part as there: whether it is the last of all. */
    static __device__ bool is_last(std::uint32_t* count, std::uint32_t parts, std::uint32_t group) {
        unsigned const barrier = static_cast<unsigned>(cutlass::arch::ReservedNamedBarriers::StreamkBarrier0) + group;
        hopper::named_wait<hopper::group_k>(barrier); // all threads have stored
        std::uint32_t last = 0;
        if (threadIdx.x % hopper::group_k == 0) {
            std::uint32_t before;
            asm volatile("fence.acq_rel.gpu;\n"
                         "atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;"
                         : "=r"(before)
                         : "l"(count)
                         : "memory");
            last = before + 1 == parts;
        }
        asm volatile("{\n.reg .pred mine, any;\n"
                     "setp.ne.u32 mine, %1, 0;\n"
                     "barrier.cta.red.or.pred any, %2, %3, mine;\n"
                     "selp.u32 %0, 1, 0, any;\n}"
                     : "=r"(last)
                     : "r"(last), "r"(barrier), "n"(hopper::group_k)
                     : "memory");
        return last != 0;
    }

    __device__ WorkTileInfo work_at(std::uint32_t turn) const {
        stream_k_plan const& plan = given_.plan;
        WorkTileInfo work;
        work.unit = stream_k_unit_of(plan, blockIdx.x / blocks_k, turn);
        work.rank = blockIdx.x % blocks_k;
        // The tiles of the shorter side follow each other: pairs at work at a time share what they read.
        bool const across = plan.tiles_across <= plan.tiles_down;
        std::uint32_t const side = across ? plan.tiles_across : plan.tiles_down;
        std::uint32_t const along = work.unit.tile % side, other = work.unit.tile / side;
        work.M_idx = static_cast<int>((across ? other : along) * blocks_k + work.rank);
        work.N_idx = static_cast<int>(across ? along : other);
        return work;
    }

    stream_k_sums const& given_;
    std::uint32_t turn_ = 0;
};

} // namespace uform::vram::sm90

namespace cutlass::gemm::kernel::detail {

template <typename tile_at, typename cluster_at, std::uint32_t stages_ak>
struct TileSchedulerSelector<uform::vram::sm90::stream_k_tag, arch::Sm90, tile_at, cluster_at, stages_ak> {
    using Scheduler = uform::vram::sm90::stream_k_scheduler<tile_at, cluster_at>;
};

} // namespace cutlass::gemm::kernel::detail

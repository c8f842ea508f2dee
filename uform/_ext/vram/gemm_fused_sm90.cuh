/**
 *  Products of 128 x 128 tiles on Hopper that go on where they end. CUTLASS's loads and products of a tile; two groups
 *  of warps take turns at them, so that one finishes its tile while the other multiplies. What comes in and goes out
 *  then does so by boxes of 64 by 64 bfloat16, which each group has of its own: neither ever waits for the other's.
 */
#pragma once

#include <algorithm>

#include "vram/gemm_epilogue_sm90.cuh"
#include "vram/gemm_sm90.cuh"
#include "vram/launch.cuh"
#include "vram/tensor_map.h"

namespace uform::vram::sm90 {

/** How the rows of the second operand follow each other in a tile. */
enum class second_rows {
    follow, // as they lie
    pair,   // 64 of the first half of all rows, then the 64 that are as far into the second half
};

/** The loads and products of a tile whose second operand's rows pair up. They are copied 64 at a time, by either block
 *  of the cluster. */
template <typename mainloop_at> struct paired_mainloop : mainloop_at {
    template <typename shape_at>
    __device__ auto load_init(shape_at const& shape, typename mainloop_at::Params const& params) const {
        using namespace cute;
        auto [m, n, k, l] = shape;
        auto const inputs = mainloop_at::load_init(shape, params);
        auto const rows = params.tma_load_b.get_tma_tensor(make_shape(n, k, l));
        auto const row = stride<0>(rows);
        auto const depth = stride<1>(rows);
        auto const slice = stride<2>(rows);
        using half = Int<half_k>;
        static_assert(tile_depth_k == half_k);
        int const tiles = n / int(tile_side_k), steps = (k + int(half_k) - 1) / int(half_k);
        auto const paired = make_tensor(
            rows.data(),
            make_layout(make_shape(make_shape(half{}, _2{}), half{}, tiles, steps, l),
                        make_stride(make_stride(row, (n / 2) * row), depth, half{} * row, half{} * depth, slice)));
        return make_tuple(get<0>(inputs), paired);
    }
};

/**
 *  One kernel.
 *  @tparam layout_b_at Of the second operand as [k, n], by CUTLASS's names; the first is row-major.
 *  @tparam task_at What becomes of the sums: `arguments`, its tensor maps and pointers; `boxes_k`, of each group;
 *  `units_k`, the parts of a tile for which boxes come in at a time, `sources_k`, how many, and `slots_k`, for how many
 *  units there is room, from the first box on; `prefetch(arguments)`, of its tensor maps;
 *  `load(arguments, first_row, first_column, unit, places, barrier)`, the copies of a unit, by one thread;
 *  `finish(arguments, sums, tile_thread, boxes, come, gone)`, by the group: it calls `come()` before it reads what came
 *  in for the next unit, and `gone(stores)` when boxes are written, with the stores for one thread.
 */
template <typename layout_b_at, second_rows rows_ak, typename task_at> struct fused_kernel {
    using element = cutlass::bfloat16_t;
    using task = task_at;
    static constexpr int alignment = 16 / sizeof(element);
    static constexpr unsigned groups = 2;

    using tile = cute::Shape<cute::Int<tile_side_k>, cute::Int<tile_side_k>, cute::Int<tile_depth_k>>;
    using cluster = cute::Shape<cute::_2, cute::_1, cute::_1>;

    struct alignas(1024) boxes {
        std::byte of[groups][task_at::boxes_k][hopper::box_bytes_k];
    };
    static constexpr std::size_t barriers_bytes = 512; // more than enough: stages are few

    using plain_mainloop = typename cutlass::gemm::collective::CollectiveBuilder<
        cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, element, cutlass::layout::RowMajor, alignment, element,
        layout_b_at, alignment, float, tile, cluster,
        cutlass::gemm::collective::StageCountAutoCarveout<sizeof(boxes) + barriers_bytes>,
        cutlass::gemm::KernelTmaWarpSpecializedPingpong>::CollectiveOp;
    using mainloop = std::conditional_t<rows_ak == second_rows::pair, paired_mainloop<plain_mainloop>, plain_mainloop>;
    using pipeline = typename mainloop::MainloopPipeline;
    using order = cutlass::OrderedSequenceBarrier<1, groups>;

    struct memory {
        struct alignas(1024) operands : mainloop::TensorStorage {};
        boxes group_boxes;
        operands stages;
        typename mainloop::PipelineStorage pipeline;
        typename order::SharedStorage order;
        hopper::barrier full[groups][2], empty[groups][2]; // of each group's slots
    };

    struct parameters {
        cute::Shape<int, int, int, int> shape;
        typename mainloop::Params mainloop;
        typename task_at::arguments task;
    };
};

/** The tiles of a cluster: two of one column, and so on with a stride of all clusters along the rows of tiles. */
struct tile_walk {
    unsigned work, total, stride, tiles_along, rank, turn = 0;

    __device__ tile_walk(unsigned rows, unsigned columns)
        : work(blockIdx.x / 2), total(ceil_divide(rows, 2 * tile_side_k) * ceil_divide(columns, tile_side_k)),
          stride(gridDim.x / 2), tiles_along(ceil_divide(columns, tile_side_k)), rank(blockIdx.x % 2) {}

    __device__ bool done() const { return work >= total; }
    __device__ int row() const { return static_cast<int>(work / tiles_along * 2 + rank); }
    __device__ int column() const { return static_cast<int>(work % tiles_along); }
    __device__ bool is_turn_of(unsigned group) const { return turn % 2 == group; }
    __device__ void advance() { work += stride, ++turn; }
};

/** What comes in for one group, by one warp. */
template <typename kernel_at>
__device__ __forceinline__ void load_boxes(typename kernel_at::parameters const& given,
                                           typename kernel_at::memory& memory, unsigned group) {
    using task = typename kernel_at::task;
    constexpr unsigned slots = task::slots_k, sources = task::sources_k;
    hopper::ring_place<slots> place;
    place.parity = 1; // all are empty
    for (tile_walk walk(cute::get<0>(given.shape), cute::get<1>(given.shape)); !walk.done(); walk.advance()) {
        if (!walk.is_turn_of(group))
            continue;
        for (unsigned unit = 0; unit != task::units_k; ++unit, place.advance()) {
            hopper::barrier const& full = memory.full[group][place.stage];
            memory.empty[group][place.stage].wait(place.parity);
            full.expect(sources * hopper::box_bytes_k);
            task::load(given.task, static_cast<unsigned>(walk.row()) * tile_side_k,
                       static_cast<unsigned>(walk.column()) * tile_side_k, unit,
                       shared_place(memory.group_boxes.of[group][place.stage * sources]), full);
        }
    }
}

/** The operands' tiles, by one warp. */
template <typename kernel_at>
__device__ __forceinline__ void load_operands(typename kernel_at::parameters const& given,
                                              typename kernel_at::memory& memory,
                                              typename kernel_at::pipeline& pipeline) {
    typename kernel_at::mainloop mainloop;
    auto const inputs = mainloop.load_init(given.shape, given.mainloop);
    auto const steps = cute::shape<3>(cute::get<0>(inputs));
    auto place = cutlass::make_producer_start_state<typename kernel_at::pipeline>();
    for (tile_walk walk(cute::get<0>(given.shape), cute::get<1>(given.shape)); !walk.done(); walk.advance()) {
        mainloop.load(given.mainloop, pipeline, place, inputs, cute::make_coord(walk.row(), walk.column(), cute::_, 0),
                      cute::make_coord_iterator(steps), static_cast<int>(steps), static_cast<int>(threadIdx.x % warp_k),
                      hopper::block_of_cluster(), memory.stages);
        place.advance(static_cast<unsigned>(steps));
    }
    hopper::let_later_kernels_begin();
    mainloop.load_tail(pipeline, place);
}

/** A group's tiles. */
template <typename kernel_at>
__device__ __forceinline__ void finish_tiles(typename kernel_at::parameters const& given,
                                             typename kernel_at::memory& memory, typename kernel_at::pipeline& pipeline,
                                             typename kernel_at::order& order, unsigned group) {
    using task = typename kernel_at::task;
    using mainloop_t = typename kernel_at::mainloop;
    constexpr bool loads = task::sources_k != 0;
    int const thread = static_cast<int>(threadIdx.x % hopper::group_k);
    int const steps = (cute::get<2>(given.shape) + int(tile_depth_k) - 1) / int(tile_depth_k);
    std::uint32_t const boxes = shared_place(memory.group_boxes.of[group]);
    auto const meet = [&] { hopper::named_wait<hopper::group_k>(1 + group); };
    mainloop_t mainloop;
    typename mainloop_t::PipelineState place;
    if (group == 1)
        place.advance(static_cast<unsigned>(steps));
    hopper::ring_place<loads ? task::slots_k : 1> slot;
    for (tile_walk walk(cute::get<0>(given.shape), cute::get<1>(given.shape)); !walk.done(); walk.advance()) {
        if (!walk.is_turn_of(group))
            continue;
        auto sums =
            cute::partition_fragment_C(typename mainloop_t::TiledMma{}, cute::take<0, 2>(typename kernel_at::tile{}));
        order.wait();
        mainloop.mma(pipeline, place, sums, steps, thread, memory.stages, given.mainloop);
        order.arrive();
        mainloop.mma_tail(pipeline, place, steps);
        place.advance(static_cast<unsigned>(2 * steps));

        if constexpr (!loads) {
            // The last tile's boxes must have been read: known to one thread, then to all.
            if (thread == 0)
                store_boxes_wait();
            meet();
        }
        task::finish(
            given.task, sums,
            tile_thread(static_cast<unsigned>(thread), static_cast<unsigned>(walk.row()) * tile_side_k,
                        static_cast<unsigned>(walk.column()) * tile_side_k),
            boxes, [&] { memory.full[group][slot.stage].wait(slot.parity); },
            [&](auto&& stores) {
                asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); // written for copies in bulk
                meet();
                if (thread == 0) {
                    stores();
                    store_boxes_commit();
                    if constexpr (loads) {
                        store_boxes_wait();
                        memory.empty[group][slot.stage].arrive(hopper::block_of_cluster());
                    }
                }
                slot.advance();
            });
    }
    if (thread == 0)
        store_boxes_wait();
}

template <typename kernel_at>
__global__ void __launch_bounds__(3 * hopper::group_k, 1)
    multiply_and_finish(__grid_constant__ typename kernel_at::parameters const given) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    extern __shared__ __align__(1024) std::byte shared[];
    using memory_t = typename kernel_at::memory;
    using pipeline_t = typename kernel_at::pipeline;
    using order_t = typename kernel_at::order;
    using task = typename kernel_at::task;
    auto& memory = *reinterpret_cast<memory_t*>(shared);
    constexpr unsigned loading_registers = 40, multiplying_registers = 232;
    unsigned const role = static_cast<unsigned>(cutlass::canonical_warp_group_idx());
    unsigned const warp = static_cast<unsigned>(cutlass::canonical_warp_idx_sync()) % (hopper::group_k / warp_k);

    typename pipeline_t::Params of_pipeline;
    of_pipeline.transaction_bytes = given.mainloop.tma_transaction_bytes;
    of_pipeline.role = role == 0 ? pipeline_t::ThreadCategory::Producer : pipeline_t::ThreadCategory::Consumer;
    of_pipeline.is_leader = threadIdx.x % hopper::group_k == 0;
    of_pipeline.num_consumers = hopper::group_k;
    of_pipeline.num_producers = kernel_at::mainloop::NumProducerThreadEvents;
    pipeline_t pipeline(memory.pipeline, of_pipeline, typename kernel_at::cluster{});
    typename order_t::Params of_order;
    of_order.group_id = role - 1; // of those that load none
    of_order.group_size = hopper::group_k;
    order_t order(memory.order, of_order);
    if (threadIdx.x == 0) {
        for (unsigned group = 0; group != kernel_at::groups; ++group)
            for (unsigned slot = 0; slot != 2; ++slot) {
                memory.full[group][slot].init(1);
                memory.empty[group][slot].init(1);
            }
        hopper::barriers_are_ready();
        kernel_at::mainloop::prefetch_tma_descriptors(given.mainloop);
        task::prefetch(given.task);
    }
    hopper::cluster_sync();

    if (role != 0) {
        hopper::take_registers<multiplying_registers>();
        finish_tiles<kernel_at>(given, memory, pipeline, order, role - 1);
        return;
    }
    hopper::give_registers<loading_registers>();
    if (warp == 0) {
        hopper::depend_on_earlier_kernels();
        load_operands<kernel_at>(given, memory, pipeline);
    }
    if constexpr (task::sources_k != 0)
        if (warp >= 2 && cute::elect_one_sync()) {
            hopper::depend_on_earlier_kernels();
            load_boxes<kernel_at>(given, memory, warp - 2);
        }
#endif
}

/** Starts a kernel; `d` and `c` of the problem are the task's own business. */
template <typename kernel_at>
void launch_fused(stream const& stream, gemm_problem const& problem, typename kernel_at::task::arguments const& task) {
    using mainloop = typename kernel_at::mainloop;
    using element = typename kernel_at::element;
    auto const [m, n, k] = std::tuple(problem.m, problem.n, problem.k);
    typename mainloop::Arguments arguments{};
    arguments.ptr_A = static_cast<element const*>(problem.a);
    arguments.dA = dense_strides<typename mainloop::StrideA>(m, k);
    arguments.ptr_B = static_cast<element const*>(problem.b);
    arguments.dB = dense_strides<typename mainloop::StrideB>(n, k);
    cute::Shape<int, int, int, int> const shape{int(m), int(n), int(k), 1};
    if (!mainloop::can_implement(shape, arguments))
        fail(uform_status_device_k, stream.operation, ": a product of [", m, ", ", k, "] and [", k, ", ", n,
             "] was refused");
    typename kernel_at::parameters const given{shape, mainloop::to_underlying_arguments(shape, arguments, nullptr),
                                               task};
    unsigned const pairs = ceil_divide(m, 2 * tile_side_k) * ceil_divide(n, tile_side_k);
    unsigned const blocks = 2 * std::min(pairs, static_cast<unsigned>(stream.multiprocessors) / 2);
    launch_clusters(stream, multiply_and_finish<kernel_at>, beginning::early_k, dim3(2, 1, 1), dim3(blocks),
                    dim3(3 * hopper::group_k), sizeof(typename kernel_at::memory), given);
}

} // namespace uform::vram::sm90

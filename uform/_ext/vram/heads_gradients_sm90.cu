/**
 *  The gradients of a head's rows and weights on Hopper, one kernel: tiles of either sort are dealt to clusters so that
 *  all end at about the same time.
 */
#include <algorithm>

#include "vram/heads_ring_sm90.cuh"
#include "vram/heads_sm90.h"
#include "vram/launch.cuh"

namespace uform::vram::sm90 {

namespace {

using hopper::box_k;
using hopper::group_k;
using hopper::Major;

constexpr unsigned tile_k = head_tile_k, boxes_k = tile_k / box_k;
using ring_t = head_ring<boxes_k, boxes_k, 6, 1>;
using sums_t = float[boxes_k][tile_k / 8][4];

/** A pair of tiles below each other, one a block of a cluster. */
struct gradient_unit {
    unsigned down, column;      // of the pair, and of its tiles
    unsigned first_step, steps; // of the depth: rows, or outputs
};

/** Which units there are and which of them a cluster has: first of the weights' gradient, each over a share of the
 * rows, then of the rows' gradient. Counts and the GPU alone decide, so that the order of sums is one. */
struct gradient_plan {
    unsigned clusters, along, steps, back_steps; // tiles along the hidden states, steps over rows and over outputs
    unsigned splits = 0, weight_units = 0;
    unsigned first_back = 0, end_back = 0; // of this cluster

    /** By whole warps. */
    __device__ gradient_plan(head_panel const& panel, std::uint32_t rows, unsigned cluster, unsigned clusters_)
        : clusters(clusters_), along(ceil_divide(panel.hidden, tile_k)), steps(ceil_divide(rows, box_k)),
          back_steps(ceil_divide(panel.outputs, box_k)) {
        unsigned const back_units = panel.rows_gradient ? ceil_divide(rows, 2 * tile_k) * along : 0;
        unsigned const each = panel.weight_gradient && rows ? ceil_divide(panel.outputs, 2 * tile_k) * along : 0;
        constexpr unsigned end_k = 1; // steps in whose time a tile ends
        unsigned const back_time = back_steps + end_k;
        // What a share costs beyond its products: its part of the weights is written, and read again.
        unsigned const share_time = ceil_divide(panel.outputs * panel.hidden, 1u << 18);
        unsigned const lane = threadIdx.x % warp_k, tried = lane + 1;
        static_assert(head_splits_k == warp_k);
        counts const mine(*this, each * tried, ceil_divide(steps, tried) + end_k, back_units, back_time);
        unsigned const time = tried <= max(steps, 1u) ? mine.time + tried * share_time : ~0u >> 8;
        splits = each ? (__reduce_min_sync(whole_warp_k, time << 6 | lane) & 63) + 1 : 0;
        weight_units = each * splits;
        counts const best(*this, weight_units, splits ? ceil_divide(steps, splits) + end_k : end_k, back_units,
                          back_time);
        first_back = cluster < best.longer ? cluster * best.of_longer
                                           : best.longer * best.of_longer + (cluster - best.longer) * best.of_others;
        end_back = min(first_back + (cluster < best.longer ? best.of_longer : best.of_others), back_units);
    }

private:
    struct counts {
        unsigned longer;               // clusters that have one unit more of the weights' gradient
        unsigned of_longer, of_others; // units of the rows' gradient
        unsigned time;

        __device__ counts(gradient_plan const& plan, unsigned weight_units, unsigned weight_time, unsigned back_units,
                          unsigned back_time) {
            unsigned const least = weight_units / plan.clusters, others = plan.clusters - weight_units % plan.clusters;
            longer = weight_units % plan.clusters;
            unsigned const instead = longer ? weight_time / back_time : 0; // of a unit of the weights' gradient
            unsigned const first = others * instead;
            of_longer = back_units > first ? ceil_divide(back_units - first, plan.clusters) : 0;
            of_others = back_units > first ? of_longer + instead : ceil_divide(back_units, others);
            time = max(longer ? (least + 1) * weight_time + of_longer * back_time : 0u,
                       least * weight_time + of_others * back_time);
        }
    };
};

struct gradients_memory {
    ring_t ring;
    hopper::barrier late[ring_t::stages_k]; // copies that are changed before they are shown
    gradient_plan plan;

    /** By one thread; the cluster must meet behind it. */
    __device__ void init() const {
        for (hopper::barrier const& one : late)
            one.init(1);
        ring.init();
    }
};

/** A cluster's units of the weights' gradient, in order. */
struct weight_walk {
    gradient_plan const& plan;
    unsigned pairs, next;

    __device__ weight_walk(gradient_plan const& plan_, head_panel const& panel)
        : plan(plan_), pairs(ceil_divide(panel.outputs, 2 * tile_k)), next(blockIdx.x / 2) {}

    __device__ bool done() const { return next >= plan.weight_units; }
    __device__ unsigned split() const { return next / (plan.along * pairs); }
    __device__ gradient_unit unit() const {
        unsigned const begin = split() * plan.steps / plan.splits, end = (split() + 1) * plan.steps / plan.splits;
        return {next / plan.along % pairs, next % plan.along, begin, end - begin};
    }
    __device__ void advance() { next += plan.clusters; }
};

/** Those of the rows' gradient. */
struct back_walk {
    gradient_plan const& plan;
    unsigned next;

    __device__ explicit back_walk(gradient_plan const& plan_) : plan(plan_), next(plan_.first_back) {}

    __device__ bool done() const { return next >= plan.end_back; }
    __device__ gradient_unit unit() const { return {next / plan.along, next % plan.along, 0, plan.back_steps}; }
    __device__ void advance() { ++next; }
};

/** The first lines of a stage's boxes become zero, by one warp. */
__device__ __forceinline__ void clear_lines(ring_t const& ring, unsigned stage, unsigned lines) {
    constexpr unsigned line_bytes_k = box_k * 2, at_once_k = 16;
    for (unsigned at = threadIdx.x % warp_k * at_once_k; at < lines * line_bytes_k; at += warp_k * at_once_k)
#pragma unroll
        for (unsigned box = 0; box != boxes_k; ++box)
#pragma unroll
            for (std::byte const* boxes : {ring.left[stage][box], ring.right[stage][box]})
                asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(shared_place(boxes) + at), "r"(0)
                             : "memory");
    hopper::show_to_products();
}

/** Copies a unit's steps, by one warp. Of a step whose boxes begin before it, lines of the step before become zero. */
template <bool of_weights_ak>
__device__ __forceinline__ void copy_unit(gradients_memory const& memory, ring_t::place_t& at, unsigned& late_parities,
                                          head_panel const& panel, gradient_unit const& unit, std::uint32_t rows,
                                          unsigned rank, CUtensorMap const& predictions, CUtensorMap const& states,
                                          CUtensorMap const& weight) {
    using namespace hopper;
    ring_t const& ring = memory.ring;
    unsigned const lane = threadIdx.x % warp_k;
    int const down = static_cast<int>((unit.down * 2 + rank) * tile_k), column = static_cast<int>(unit.column * tile_k);
    int const begin = static_cast<int>(panel.first_row());
    for (unsigned step = unit.first_step; step != unit.first_step + unit.steps; ++step, at.advance()) {
        int const nominal = static_cast<int>(step * box_k);
        int const depth = of_weights_ak ? box_rows(step * box_k, rows).first : nominal;
        barrier const& arrived = depth == nominal ? ring.full[at.stage] : memory.late[at.stage];
        if (lane == 0)
            ring.copy(
                at, arrived, rank,
                [&](std::uint32_t to, unsigned box) {
                    int const line = down + static_cast<int>(box * box_k);
                    copy_box(to, predictions, of_weights_ak ? line : depth, of_weights_ak ? depth : line, arrived);
                },
                [&](std::uint32_t to, unsigned box) {
                    copy_box_to_both(to, of_weights_ak ? states : weight, column + static_cast<int>(box * box_k),
                                     of_weights_ak ? begin + depth : depth, arrived);
                });
        if (depth == nominal)
            continue;
        __syncwarp();
        memory.late[at.stage].wait(late_parities >> at.stage & 1);
        late_parities ^= 1u << at.stage;
        clear_lines(ring, at.stage, static_cast<unsigned>(nominal - depth));
        __syncwarp();
        if (lane == 0)
            ring.full[at.stage].arrive(rank);
    }
}

/** Stores a group's tile in float32. Two threads beside each other exchange halves of two blocks of eight columns, so
 *  that each has four columns beside each other. */
__device__ __forceinline__ void store_tile(sums_t const& sums, float* to, std::uint32_t stride, std::uint32_t first_row,
                                           std::uint32_t end_row, std::uint32_t first_column) {
    unsigned const lane = threadIdx.x % warp_k, warp = threadIdx.x % group_k / warp_k;
    bool const odd = lane % 2;
    std::uint32_t const column = first_column + odd * 8 + lane % 4 / 2 * 4;
#pragma unroll
    for (unsigned box = 0; box != boxes_k; ++box) {
#pragma unroll
        for (unsigned half = 0; half != 2; ++half) {
            std::uint32_t const row = first_row + box * box_k + warp * 16 + half * 8 + lane / 4;
            float* const line = to + std::size_t(row) * stride + column;
#pragma unroll
            for (unsigned pair = 0; pair != tile_k / 16; ++pair) {
                float const(&first)[4] = sums[box][2 * pair];
                float const(&second)[4] = sums[box][2 * pair + 1];
                float own[2], other[2];
#pragma unroll
                for (unsigned i = 0; i != 2; ++i) {
                    own[i] = odd ? second[2 * half + i] : first[2 * half + i];
                    other[i] = __shfl_xor_sync(whole_warp_k, odd ? first[2 * half + i] : second[2 * half + i], 1);
                }
                if (row < end_row && column + pair * 16 < stride)
                    *reinterpret_cast<float4*>(line + pair * 16) =
                        odd ? make_float4(other[0], other[1], own[0], own[1])
                            : make_float4(own[0], own[1], other[0], other[1]);
            }
        }
    }
}

__global__ void __launch_bounds__((1 + group_turns::groups_k) * group_k, 1)
    multiply_tiles(head_panel panel, __grid_constant__ CUtensorMap const predictions,
                   __grid_constant__ CUtensorMap const states, __grid_constant__ CUtensorMap const weight) {
    using namespace hopper;
    extern __shared__ __align__(1024) std::byte shared[];
    auto& memory = *reinterpret_cast<gradients_memory*>(shared);
    auto const& ring = memory.ring;
    if (threadIdx.x == 0)
        prefetch(predictions), prefetch(states), prefetch(weight), memory.init();
    // The kernel before waited for those before it: the count is there.
    std::uint32_t const rows = panel.shares.rows();
    if (threadIdx.x / warp_k == 1) {
        gradient_plan const plan(panel, rows, blockIdx.x / 2, gridDim.x / 2);
        if (threadIdx.x % warp_k == 0)
            memory.plan = plan;
    }
    __syncthreads();
    cluster_meet();
    gradient_plan const plan = memory.plan;
    depend_on_earlier_kernels();
    let_later_kernels_begin();

    unsigned const rank = block_of_cluster();
    weight_walk weights(plan, panel);
    back_walk backs(plan);
    ring_t::place_t at;
    if (threadIdx.x < group_k) {
        give_registers<40>();
        unsigned late_parities = 0;
        if (threadIdx.x < warp_k) {
            for (; !weights.done(); weights.advance())
                copy_unit<true>(memory, at, late_parities, panel, weights.unit(), rows, rank, predictions, states,
                                weight);
            for (; !backs.done(); backs.advance())
                copy_unit<false>(memory, at, late_parities, panel, backs.unit(), rows, rank, predictions, states,
                                 weight);
        }
        if (threadIdx.x == warp_k && blockIdx.x == 0)
            *panel.parts_used = plan.splits;
    } else {
        take_registers<232>();
        group_turns::begin();
        unsigned turn = 0;
        for (; !weights.done(); weights.advance(), ++turn) {
            gradient_unit const unit = weights.unit();
            if (turn % 2 != group_turns::group()) {
                at.advance(unit.steps);
                continue;
            }
            sums_t sums;
            group_turns::wait();
            multiply_steps<Major::MN, Major::MN>(ring, at, unit.steps, 0, sums, [] {}, [] { group_turns::pass_on(); });
            store_tile(sums, panel.parts + std::size_t(weights.split()) * panel.outputs * panel.hidden, panel.hidden,
                       (unit.down * 2 + rank) * tile_k, panel.outputs, unit.column * tile_k);
        }
        for (; !backs.done(); backs.advance(), ++turn) {
            gradient_unit const unit = backs.unit();
            if (turn % 2 != group_turns::group()) {
                at.advance(unit.steps);
                continue;
            }
            sums_t sums;
            group_turns::wait();
            multiply_steps<Major::K, Major::MN>(ring, at, unit.steps, 0, sums, [] {}, [] { group_turns::pass_on(); });
            store_tile(sums, panel.rows_gradient + panel.begin(), panel.hidden, (unit.down * 2 + rank) * tile_k, rows,
                       unit.column * tile_k);
        }
    }
    __syncwarp();
    cluster_meet(); // no block leaves while the other copies into it, or arrives at its barriers
}

} // namespace

void multiply_gradients(stream const& stream, head_panel const& panel, std::uint32_t rows) {
    CUtensorMap const predictions = tensor_map_of(stream, panel.predictions, rows, panel.stride, panel.stride);
    CUtensorMap const states = tensor_map_of(stream, panel.rows, any_rows_k, panel.hidden, panel.hidden);
    CUtensorMap const weight = tensor_map_of(stream, panel.weight, panel.outputs, panel.hidden, panel.hidden);
    unsigned const clusters = std::max(1u, static_cast<unsigned>(stream.multiprocessors) / 2);
    launch_clusters(stream, multiply_tiles, beginning::early_k, dim3(2), dim3(2 * clusters),
                    (1 + group_turns::groups_k) * group_k, sizeof(gradients_memory), panel, predictions, states,
                    weight);
}

} // namespace uform::vram::sm90

/**
 *  Predictions of the heads on Hopper, which become their gradients in registers. The weight's rows are dealt, see
 *  `dealt_map_of`: of each 32 columns a thread has 8 beside each other, which it stores at once.
 */
#include <algorithm>

#include "vram/heads_ring_sm90.cuh"
#include "vram/heads_sm90.h"
#include "vram/heads_values.cuh"
#include "vram/launch.cuh"
#include "vram/mma_tile.cuh"

namespace uform::vram::sm90 {

namespace {

using hopper::box_k;
using hopper::group_k;
using hopper::Major;

constexpr float log2_e_k = 1.4426950408889634f;
constexpr unsigned dealt_k = 32; // columns that are dealt among the four threads of a row
constexpr unsigned group_warps_k = group_k / warp_k;

/** The first of a thread's 8 columns beside each other, of each 32. */
__device__ __forceinline__ unsigned own_column() { return threadIdx.x % 4 * lanes_k; }
/** The thread's upper row of a box; the other one lies 8 below. */
__device__ __forceinline__ unsigned own_row() { return threadIdx.x % group_k / warp_k * 16 + threadIdx.x % warp_k / 4; }

/** Tiles that have no rows lose nothing. By one warp of each block. */
__device__ __forceinline__ void clear_losses(double* losses, std::size_t used, std::size_t all) {
    for (std::size_t i = used + blockIdx.x * warp_k + threadIdx.x % warp_k; i < all; i += gridDim.x * warp_k)
        losses[i] = 0;
}

/** A group's sum, in one of its threads. @param meet The group's barrier. */
template <typename meet_at>
__device__ __forceinline__ double sum_group(double value, double (&scratch)[group_warps_k], meet_at&& meet) {
    value = sum_warp(value);
    meet(); // the sum before has been read
    if (threadIdx.x % warp_k == 0)
        scratch[threadIdx.x % group_k / warp_k] = value;
    meet();
    double sum = 0;
    for (double const one : scratch)
        sum += one;
    return sum;
}

/* ----------------------------------------------------------------------------------------------------------- bytes */

constexpr unsigned bytes_boxes_k = bytes_k / box_k;

constexpr unsigned bytes_stages_k = 4;

/** @tparam groups_ak Groups of warps, which have 64 rows and all classes each. */
template <unsigned groups_ak> struct bytes_memory {
    using ring_t = head_ring<groups_ak, bytes_boxes_k, bytes_stages_k, groups_ak>;
    ring_t ring;
    double scratch[groups_ak][group_warps_k];
};

/** Begins the copies of a cluster's tiles, a step at each call of one thread. */
template <unsigned groups_ak> class bytes_copies {
    using ring_t = typename bytes_memory<groups_ak>::ring_t;

public:
    __device__ bytes_copies(head_panel const& panel, std::uint32_t rows, unsigned rank, unsigned steps)
        : begin_(static_cast<int>(panel.first_row())), rows_(rows), rank_(rank), steps_(steps),
          first_((blockIdx.x / 2 * 2 + rank) * tile_k) {}

    __device__ __forceinline__ void next(ring_t const& ring, CUtensorMap const& states, CUtensorMap const& table) {
        if (first_ - rank_ * tile_k >= rows_)
            return;
        int const depth = static_cast<int>(step_ * box_k);
        hopper::barrier const& full = ring.full[at_.stage];
        ring.copy(
            at_, full, rank_,
            [&](std::uint32_t to, unsigned box) {
                hopper::copy_box(to, states, depth, begin_ + box_rows(first_ + box * box_k, rows_).first, full);
            },
            [&](std::uint32_t to, unsigned box) {
                hopper::copy_dealt_box_to_both(to, table, depth, static_cast<int>(box * box_k), full);
            });
        at_.advance();
        if (++step_ == steps_)
            step_ = 0, first_ += gridDim.x * tile_k;
    }

private:
    static constexpr std::uint32_t tile_k = groups_ak * box_k;
    int begin_;
    std::uint32_t rows_;
    unsigned rank_, steps_, step_ = 0;
    std::uint32_t first_; // of the block's tile
    typename ring_t::place_t at_;
};

/** The cross-entropy of a group's rows; their predictions' gradients where wanted. Answers a thread's part of the loss.
 */
__device__ __forceinline__ double score_rows(head_panel const& panel, head_scale const& scale, box_rows const& rows,
                                             unsigned const (&targets)[2], hopper::sums_of<bytes_k>& logits) {
    double loss = 0;
    float const factor = scale.backward ? scale.factor() : 0;
#pragma unroll
    for (unsigned half = 0; half != 2; ++half) {
        unsigned const place = own_row() + half * 8;
        float maximum = -INFINITY;
#pragma unroll
        for (auto const& across : logits)
            maximum = fmaxf(maximum, fmaxf(across[2 * half], across[2 * half + 1]));
        maximum = over_row(maximum, largest{});
        float const low = maximum * log2_e_k;
        unsigned const target = targets[half] - own_column(); // among the thread's own
        float total = 0, of_target = 0;
        bool owns = false;
#pragma unroll
        for (unsigned across = 0; across != bytes_k / 8; ++across) {
#pragma unroll
            for (unsigned i = 0; i != 2; ++i) {
                float& logit = logits[across][2 * half + i];
                if (across / 4 * dealt_k + across % 4 * 2 + i == target)
                    of_target = logit, owns = true;
                logit = power_of_2(fmaf(logit, log2_e_k, -low));
                total += logit;
            }
        }
        total = over_row(total, add{});
        if (!rows.has(place))
            continue;
        if (owns)
            loss += log(double(total)) - double(of_target - maximum);
        if (!scale.backward)
            continue;
        float const inverse = factor / total;
        __nv_bfloat16* const to = panel.predictions + std::size_t(rows.row(place)) * panel.stride + own_column();
#pragma unroll
        for (unsigned first = 0; first != bytes_k / 8; first += 4) {
            std::uint32_t words[4];
#pragma unroll
            for (unsigned i = 0; i != 4; ++i)
                words[i] = pack(inverse * logits[first + i][2 * half], inverse * logits[first + i][2 * half + 1]);
            *reinterpret_cast<uint4*>(to + first / 4 * dealt_k) = make_uint4(words[0], words[1], words[2], words[3]);
        }
        if (owns)
            to[target] = __float2bfloat16(fmaf(inverse, power_of_2(fmaf(of_target, log2_e_k, -low)), -factor));
    }
    return loss;
}

/** Cross-entropy of tiles of rows, all classes of which lie in one block. One of the threads that multiply begins
 * copies, too: three groups need all registers. @param losses By 64 rows. */
template <unsigned groups_ak>
__global__ void __launch_bounds__(groups_ak* group_k, 1)
    score_bytes_tiles(head_panel panel, std::uint8_t const* targets, head_scale scale, double* losses,
                      std::uint32_t losses_count, __grid_constant__ CUtensorMap const states,
                      __grid_constant__ CUtensorMap const table) {
    using namespace hopper;
    extern __shared__ __align__(1024) std::byte shared[];
    auto& memory = *reinterpret_cast<bytes_memory<groups_ak>*>(shared);
    auto const& ring = memory.ring;
    if (threadIdx.x == 0)
        prefetch(states), prefetch(table), ring.init();
    __syncthreads();
    cluster_meet();
    depend_on_earlier_kernels();
    let_later_kernels_begin();

    constexpr std::uint32_t tile_k = groups_ak * box_k;
    std::uint32_t const rows = panel.shares.rows(), pairs = ceil_divide(rows, 2 * tile_k);
    unsigned const rank = block_of_cluster(), steps = ceil_divide(panel.hidden, box_k);
    unsigned const group = threadIdx.x / group_k;
    bytes_copies<groups_ak> copies(panel, rows, rank, steps);
    auto const copy_next = [&] {
        if (threadIdx.x == 0)
            copies.next(ring, states, table);
        __syncwarp();
    };
    for (unsigned stage = 0; stage != bytes_stages_k; ++stage)
        copy_next();
    if (threadIdx.x / warp_k == 1)
        clear_losses(losses, ceil_divide(rows, box_k), losses_count);
    typename bytes_memory<groups_ak>::ring_t::place_t at;
    for (std::uint32_t pair = blockIdx.x / 2; pair < pairs; pair += gridDim.x / 2) {
        std::uint32_t const nominal = (pair * 2 + rank) * tile_k + group * box_k;
        box_rows const own(nominal, rows);
        unsigned of_rows[2];
#pragma unroll
        for (unsigned half = 0; half != 2; ++half) {
            unsigned const place = own_row() + half * 8;
            of_rows[half] = own.has(place) ? targets[panel.shares.first + own.row(place)] : 0;
        }
        float logits[1][bytes_k / 8][4];
        multiply_steps<Major::K, Major::K>(ring, at, steps, group, logits, copy_next, [] {});
        double const loss = sum_group(score_rows(panel, scale, own, of_rows, logits[0]), memory.scratch[group],
                                      [&] { named_wait<group_k>(1 + group); });
        if (threadIdx.x % group_k == 0 && nominal < rows)
            losses[nominal / box_k] = loss;
    }
    __syncwarp();
    cluster_meet(); // no block leaves while the other copies into it, or arrives at its barriers
}

template <unsigned groups_ak>
void launch_score_bytes(stream const& stream, head_panel const& panel, std::uint32_t rows, std::uint8_t const* targets,
                        head_scale const& scale, double* losses) {
    CUtensorMap const states = tensor_map_of(stream, panel.rows, any_rows_k, panel.hidden, panel.hidden);
    CUtensorMap const table = dealt_map_of(stream, panel.weight, bytes_k, panel.hidden, panel.hidden);
    unsigned const clusters = clusters_of(stream, ceil_divide(rows, 2 * groups_ak * box_k));
    launch_clusters(stream, score_bytes_tiles<groups_ak>, beginning::early_k, dim3(2), dim3(2 * clusters),
                    groups_ak * group_k, sizeof(bytes_memory<groups_ak>), panel, targets, scale, losses,
                    ceil_divide(rows, box_k), states, table);
}

/* --------------------------------------------------------------------------------------------------------- patches */

constexpr unsigned boxes_k = head_tile_k / box_k;

struct patches_memory {
    head_ring<boxes_k, boxes_k, 6, 1> ring;
    double scratch[group_turns::groups_k][group_warps_k];
};

/** Eight values beside each other as they lie in memory: words, for of bytes compilers make memory. */
template <typename element_at> struct raw_values {
    static constexpr unsigned each_k = sizeof(element_at), words_k = lanes_k * each_k / 4;
    struct alignas(words_k < 4 ? 4 * words_k : 16) {
        std::uint32_t words[words_k];
    } loaded;

    __device__ __forceinline__ void load(element_at const* from) {
        loaded = *reinterpret_cast<decltype(loaded) const*>(from);
    }
    __device__ __forceinline__ element_at operator[](unsigned i) const {
        std::uint32_t const word = loaded.words[i * each_k / 4];
        if constexpr (std::is_same_v<element_at, float>)
            return __uint_as_float(word);
        else
            return static_cast<element_at>(word >> i * each_k % 4 * 8);
    }
};

/** What a thread's rows of a tile are predicted to be: two of each box. */
template <typename element_at> struct tile_values {
    static constexpr unsigned vectors_k = head_tile_k / dealt_k;
    /** Whether registers hold all of a tile's during its products. */
    static constexpr bool early_k = sizeof(element_at) == 1;

    element_at const* rows[boxes_k][2];
    float2 measures[boxes_k][2];
    raw_values<element_at> vectors[boxes_k][2][vectors_k];

    __device__ __forceinline__ void load(unsigned box, unsigned half, unsigned outputs) {
#pragma unroll
        for (unsigned i = 0; i != vectors_k; ++i)
            if (i * dealt_k < outputs)
                vectors[box][half][i].load(rows[box][half] + i * dealt_k);
    }
};

/** Squared errors of tiles of rows and outputs, mean over outputs. @param losses By tile. */
template <typename element_at>
__global__ void __launch_bounds__((1 + group_turns::groups_k) * group_k, 1)
    score_patches_tiles(head_panel panel, patch_values<element_at> values, float2 const* measures, head_scale scale,
                        double* losses, std::uint32_t losses_count, __grid_constant__ CUtensorMap const states,
                        __grid_constant__ CUtensorMap const weight) {
    using namespace hopper;
    extern __shared__ __align__(1024) std::byte shared[];
    auto& memory = *reinterpret_cast<patches_memory*>(shared);
    auto const& ring = memory.ring;
    if (threadIdx.x == 0)
        prefetch(states), prefetch(weight), ring.init();
    __syncthreads();
    cluster_meet();

    // The kernel before waited for those before it: but for its measures all is there, so that products may begin.
    std::uint32_t const rows = panel.shares.rows(), across = ceil_divide(panel.outputs, head_tile_k);
    std::uint32_t const units = ceil_divide(rows, 2 * head_tile_k) * across;
    unsigned const rank = block_of_cluster(), steps = ceil_divide(panel.hidden, box_k);
    typename std::remove_reference_t<decltype(ring)>::place_t at;
    if (threadIdx.x < group_k) {
        give_registers<40>();
        if (threadIdx.x == 0) {
            int const begin = static_cast<int>(panel.first_row());
            for (std::uint32_t unit = blockIdx.x / 2; unit < units; unit += gridDim.x / 2) {
                std::uint32_t const first = (unit / across * 2 + rank) * head_tile_k;
                int const output = static_cast<int>(unit % across * head_tile_k);
                for (unsigned step = 0; step != steps; ++step, at.advance()) {
                    int const depth = static_cast<int>(step * box_k);
                    barrier const& full = ring.full[at.stage];
                    ring.copy(
                        at, full, rank,
                        [&](std::uint32_t to, unsigned box) {
                            copy_box(to, states, depth, begin + box_rows(first + box * box_k, rows).first, full);
                        },
                        [&](std::uint32_t to, unsigned box) {
                            copy_dealt_box_to_both(to, weight, depth, output + static_cast<int>(box * box_k), full);
                        });
                }
            }
        }
        if (threadIdx.x / warp_k == 1) {
            depend_on_earlier_kernels();
            clear_losses(losses, std::size_t(ceil_divide(rows, head_tile_k)) * across, losses_count);
        }
    } else {
        take_registers<232>();
        group_turns::begin();
        depend_on_earlier_kernels();
        let_later_kernels_begin();
        unsigned turn = 0;
        float const factor = scale.backward ? 2 * scale.factor() / static_cast<float>(panel.outputs) : 0;
        for (std::uint32_t unit = blockIdx.x / 2; unit < units; unit += gridDim.x / 2, ++turn) {
            if (turn % 2 != group_turns::group()) {
                at.advance(steps);
                continue;
            }
            std::uint32_t const tile = unit / across * 2 + rank, column = unit % across;
            std::uint32_t const output = column * head_tile_k + own_column();
            std::uint32_t const outputs = panel.outputs - column * head_tile_k; // from the tile's first on
            tile_values<element_at> of;
#pragma unroll
            for (unsigned box = 0; box != boxes_k; ++box)
#pragma unroll
                for (unsigned half = 0; half != 2; ++half) {
                    box_rows const own(tile * head_tile_k + box * box_k, rows);
                    unsigned const place = own_row() + half * 8;
                    // Rows that are not there are computed as the first one, for nothing.
                    std::uint32_t const covered = panel.shares.first + (own.has(place) ? own.row(place) : 0);
                    of.rows[box][half] = values.row(covered) + output;
                    of.measures[box][half] = measures[covered];
                }
            if constexpr (tile_values<element_at>::early_k) {
#pragma unroll
                for (unsigned box = 0; box != boxes_k; ++box)
#pragma unroll
                    for (unsigned half = 0; half != 2; ++half)
                        of.load(box, half, outputs);
            }
            float sums[boxes_k][head_tile_k / 8][4];
            group_turns::wait();
            multiply_steps<Major::K, Major::K>(ring, at, steps, 0, sums, [] {}, [] { group_turns::pass_on(); });

            float squares = 0;
#pragma unroll
            for (unsigned box = 0; box != boxes_k; ++box) {
                box_rows const own(tile * head_tile_k + box * box_k, rows);
#pragma unroll
                for (unsigned half = 0; half != 2; ++half) {
                    if constexpr (!tile_values<element_at>::early_k) {
                        asm volatile("" ::: "memory"); // a row at a time: registers hold no more
                        of.load(box, half, outputs);
                    }
                    unsigned const place = own_row() + half * 8;
                    if (!own.has(place))
                        continue;
                    float2 const measure = of.measures[box][half];
                    __nv_bfloat16* const to = panel.predictions + std::size_t(own.row(place)) * panel.stride + output;
#pragma unroll
                    for (unsigned i = 0; i != of.vectors_k; ++i) {
                        if (i * dealt_k >= outputs)
                            continue;
                        float errors[lanes_k];
#pragma unroll
                        for (unsigned k = 0; k != lanes_k; ++k) {
                            float const number = (values.number(of.vectors[box][half][i][k]) - measure.x) * measure.y;
                            errors[k] = sums[box][i * 4 + k / 2][2 * half + k % 2] - number;
                            squares = fmaf(errors[k], errors[k], squares);
                        }
                        if (scale.backward)
                            *reinterpret_cast<uint4*>(to + i * dealt_k) =
                                make_uint4(pack(factor * errors[0], factor * errors[1]),
                                           pack(factor * errors[2], factor * errors[3]),
                                           pack(factor * errors[4], factor * errors[5]),
                                           pack(factor * errors[6], factor * errors[7]));
                    }
                }
            }
            double const loss =
                sum_group(double(squares), memory.scratch[group_turns::group()], [] { group_turns::meet(); });
            if (threadIdx.x % group_k == 0 && tile * head_tile_k < rows)
                losses[std::size_t(tile) * across + column] = loss / panel.outputs;
        }
    }
    __syncwarp();
    cluster_meet(); // no block leaves while the other copies into it, or arrives at its barriers
}

} // namespace

void score_bytes(stream const& stream, head_panel const& panel, std::uint32_t rows, std::uint8_t const* targets,
                 head_scale const& scale, double* losses) {
    // Of two or three groups those that end sooner: products last as long as a group has rows.
    auto const time = [&](unsigned groups) {
        unsigned const pairs = ceil_divide(rows, 2 * groups * box_k);
        return ceil_divide(pairs, clusters_of(stream, pairs)) * (groups + 1);
    };
    if (time(3) < time(2))
        launch_score_bytes<3>(stream, panel, rows, targets, scale, losses);
    else
        launch_score_bytes<2>(stream, panel, rows, targets, scale, losses);
}

bool score_patches(stream const& stream, head_panel const& panel, std::uint32_t rows, patch_targets const& targets,
                   head_scale const& scale, double* losses) {
    if (panel.outputs % dealt_k)
        return false;
    CUtensorMap const states = tensor_map_of(stream, panel.rows, any_rows_k, panel.hidden, panel.hidden);
    CUtensorMap const weight = dealt_map_of(stream, panel.weight, panel.outputs, panel.hidden, panel.hidden);
    std::uint32_t const across = ceil_divide(panel.outputs, head_tile_k);
    unsigned const clusters = clusters_of(stream, std::size_t(ceil_divide(rows, 2 * head_tile_k)) * across);
    with_element(targets.element, [&](auto element) {
        using element_t = decltype(element);
        launch_clusters(stream, score_patches_tiles<element_t>, beginning::early_k, dim3(2), dim3(2 * clusters),
                        (1 + group_turns::groups_k) * group_k, sizeof(patches_memory), panel,
                        patch_values<element_t>(targets), targets.measures, scale, losses,
                        ceil_divide(rows, head_tile_k) * across, states, weight);
    });
    return true;
}

} // namespace uform::vram::sm90

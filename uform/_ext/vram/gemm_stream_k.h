/** How Stream-K shares a tall sum among pairs of blocks: pure functions of extents and processors. */
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "vram/gemm_tiles.h"

namespace uform::vram {

/**
 *  How dw[outs, ins] is computed in one kernel, by Stream-K: pairs of blocks have whole tiles of the answer in rounds,
 *  and share the sums of the rest, which are fewer than pairs. Each of `groups` as large as the rest has an equal part
 *  of every sum, all at the same rows, which each then reads from memory once; the pairs that are left, `helpers`, go
 *  through the first `depth` steps of all of them.
 */
struct stream_k_plan {
    std::uint32_t tiles_down, tiles_across; ///< of a pair
    std::uint32_t steps;                    ///< of a tile's sum
    std::uint32_t pairs, rounds, rest;
    std::uint32_t groups, helpers; ///< none if nothing is left
    std::uint32_t depth;

    constexpr std::uint32_t longest() const noexcept { return groups ? (steps - depth + groups - 1) / groups : 0; }
    /** The most parts of one tile's sum: helpers are fewer than tiles, so that one tile's steps are of two at most. */
    constexpr std::uint32_t most_parts() const noexcept { return groups + (helpers ? 2 : 0); }
};

/** A pair's tile: two wide ones, one above the other. */
inline constexpr std::uint32_t pair_rows_k = 256, pair_columns_k = 256;

/** What a pair does at a time: steps [begin, end) of a tile's sum, one of so many parts in the order of the rows. */
struct stream_k_unit {
    std::uint32_t tile, begin, end;
    std::uint32_t part, parts;

    constexpr bool exists() const noexcept { return begin < end; }
};

/** Counts of a plan's workspace, one for each group of warps that has a part, in whole lines of memory. */
constexpr std::uint32_t stream_k_counts(stream_k_plan const& plan) noexcept {
    constexpr std::uint32_t groups_of_a_pair = 4, of_a_line = 64;
    return tiles_along(plan.rest * groups_of_a_pair, of_a_line) * of_a_line;
}
/** Values of the parts of split sums there. */
constexpr std::uint64_t stream_k_values(stream_k_plan const& plan) noexcept {
    return std::uint64_t(plan.rest) * plan.most_parts() * pair_rows_k * pair_columns_k;
}
constexpr std::uint64_t stream_k_bytes(stream_k_plan const& plan) noexcept {
    return stream_k_counts(plan) * sizeof(std::uint32_t) + stream_k_values(plan) * sizeof(float);
}

/** The helper that has a place of the steps of all tiles, one tile's after another's: helper h begins at h total / n.
 */
constexpr std::uint32_t stream_k_helper(stream_k_plan const& plan, std::uint32_t place) noexcept {
    return ((place + 1) * plan.helpers - 1) / (plan.rest * plan.depth);
}

/** A pair's `turn`-th unit; none exists past the last. */
constexpr stream_k_unit stream_k_unit_of(stream_k_plan const& plan, std::uint32_t pair, std::uint32_t turn) noexcept {
    if (turn < plan.rounds)
        return {turn * plan.pairs + pair, 0, plan.steps, 0, 1};
    std::uint32_t const first_tile = plan.rounds * plan.pairs, total = plan.rest * plan.depth;
    turn -= plan.rounds;
    auto const parts_of_helpers = [&](std::uint32_t tile) -> std::uint32_t {
        return plan.helpers
                   ? stream_k_helper(plan, (tile + 1) * plan.depth - 1) - stream_k_helper(plan, tile * plan.depth) + 1
                   : 0;
    };
    if (pair >= plan.helpers) {
        std::uint32_t const at = pair - plan.helpers, group = plan.rest ? at / plan.rest : 0;
        if (turn > 0 || group >= plan.groups)
            return {};
        std::uint32_t const tile = at % plan.rest, steps = plan.steps - plan.depth, helping = parts_of_helpers(tile);
        return {first_tile + tile, plan.depth + group * steps / plan.groups,
                plan.depth + (group + 1) * steps / plan.groups, helping + group, helping + plan.groups};
    }
    std::uint32_t const begin = pair * total / plan.helpers, end = (pair + 1) * total / plan.helpers;
    std::uint32_t const tile = begin / plan.depth + turn, first = tile * plan.depth;
    if (first >= end)
        return {};
    return {first_tile + tile, std::max(begin, first) - first, std::min(end, first + plan.depth) - first,
            pair - stream_k_helper(plan, first), parts_of_helpers(tile) + plan.groups};
}

/** Microseconds by a model of the H200, as `gradient_cost`: the last of a tile's parts is added to the others. */
constexpr double stream_k_cost(stream_k_plan const& plan) noexcept {
    constexpr double step = 0.74, begin = 4, part = 4;
    return (double(plan.rounds) * plan.steps + plan.longest()) * step + begin + part * plan.most_parts();
}

/** The plan that costs least. */
constexpr stream_k_plan stream_k_of(std::uint32_t rows, std::uint32_t outs, std::uint32_t ins,
                                    int multiprocessors) noexcept {
    constexpr std::uint32_t most_groups = 8, fewest_steps = 4;
    constexpr double unit = 5; // steps that a helper's further unit takes besides its own
    stream_k_plan plan{};
    plan.tiles_down = tiles_along(outs, pair_rows_k);
    plan.tiles_across = tiles_along(ins, pair_columns_k);
    plan.steps = tiles_along(rows, tile_depth_k);
    plan.pairs = std::max(static_cast<std::uint32_t>(std::max(multiprocessors, 0)) / 2, std::uint32_t(1));
    std::uint32_t const tiles = plan.tiles_down * plan.tiles_across;
    plan.rounds = tiles / plan.pairs;
    plan.rest = tiles % plan.pairs;
    if (plan.rest == 0)
        return plan;
    std::uint32_t const fit = plan.pairs / plan.rest;
    std::uint32_t const most = std::min({fit, most_groups, std::max(plan.steps / fewest_steps, std::uint32_t(1))});
    plan.groups = 1;
    for (std::uint32_t groups = 2; groups <= most; ++groups) {
        stream_k_plan more = plan;
        more.groups = groups;
        if (stream_k_cost(more) < stream_k_cost(plan))
            plan = more;
    }
    std::uint32_t const left = plan.pairs - fit * plan.rest;
    if (most < fit || left == 0)
        return plan;
    // Both kinds of pairs end at once: the steps of a helper and its units' own time, those of a group.
    double const tiles_each = double(plan.rest) / left;
    double const depth = (double(plan.steps) / fit + unit * (1 - tiles_each)) / (tiles_each + 1.0 / fit);
    stream_k_plan helped = plan;
    helped.groups = fit;
    helped.helpers = left;
    helped.depth = depth < fewest_steps ? 0 : static_cast<std::uint32_t>(depth);
    return helped.depth && stream_k_cost(helped) < stream_k_cost(plan) ? helped : plan;
}

/** Whether Stream-K takes less time than the slices that cost least, in no more memory than theirs may be. */
constexpr bool is_stream_k_faster(stream_k_plan const& plan, std::uint32_t rows, std::uint32_t outs, std::uint32_t ins,
                                  int multiprocessors) noexcept {
    constexpr std::uint32_t most_rows = 1u << 23; // products of steps and pairs fit 32 bits
    gradient_slices const cut = weight_gradient_slices(rows, outs, ins, multiprocessors);
    std::uint64_t const bytes = std::uint64_t(most_slices(rows, outs, ins)) * outs * ins * sizeof(float);
    return rows <= most_rows && stream_k_bytes(plan) <= bytes &&
           stream_k_cost(plan) < gradient_cost(cut.tile, cut.slices, rows, outs, ins, multiprocessors);
}

} // namespace uform::vram

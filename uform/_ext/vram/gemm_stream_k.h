/** How Stream-K shares a tall sum among pairs of blocks: pure functions of extents and processors. */
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "vram/gemm_tiles.h"

namespace uform::vram {

/** A pair's tile: two wide ones, one above the other. */
inline constexpr std::uint32_t pair_rows_k = 256, pair_columns_k = 256;

/**
 *  Pairs of blocks that go through the first `depth` steps of some tiles' sums: whole tiles in rounds, and then the
 *  rest, which are fewer than pairs. Each of `groups` as large as the rest has an equal part of all their sums, so that
 *  its pairs are at the same rows at a time, and memory is read once for all. The pairs that are left are the next
 *  level's, for the steps that come before the groups'.
 */
struct stream_k_level {
    std::uint32_t depth; ///< none: there is no such level
    std::uint32_t pairs, rounds, rest, groups;
};

/** How dw[outs, ins] is computed in one kernel, by Stream-K. */
struct stream_k_plan {
    static constexpr std::uint32_t levels_k = 3;

    std::uint32_t tiles_down, tiles_across; ///< of a pair
    stream_k_level levels[levels_k];

    constexpr std::uint32_t depth_of(std::uint32_t level) const noexcept {
        return level < levels_k ? levels[level].depth : 0;
    }
    constexpr std::uint32_t split_tiles() const noexcept { return levels[0].rest; }
    /** The most parts of one tile's sum. */
    constexpr std::uint32_t most_parts() const noexcept {
        std::uint32_t parts = 0;
        for (std::uint32_t level = 0; level != levels_k; ++level)
            if (depth_of(level))
                parts += std::max(levels[level].groups, std::uint32_t(level != 0));
        return parts;
    }
};

/** What a pair does at a time: steps [begin, end) of a tile's sum, one of so many parts in the order of the rows. */
struct stream_k_unit {
    std::uint32_t tile, begin, end;
    std::uint32_t part, parts;

    constexpr bool exists() const noexcept { return begin < end; }
};

/** Parts of a tile's sum that are of a level's pairs and of those behind it. @param first The level's first tile. */
constexpr std::uint32_t stream_k_parts(stream_k_plan const& plan, std::uint32_t level, std::uint32_t first,
                                       std::uint32_t tile) noexcept {
    std::uint32_t parts = 0;
    for (; plan.depth_of(level); ++level) {
        stream_k_level const& of = plan.levels[level];
        first += of.rounds * of.pairs;
        if (tile < first)
            return parts + 1;
        parts += of.groups;
    }
    return parts;
}

/** A pair's `turn`-th unit; none exists past the last. */
constexpr stream_k_unit stream_k_unit_of(stream_k_plan const& plan, std::uint32_t pair, std::uint32_t turn) noexcept {
    std::uint32_t first = 0, later = 0; // the level's first tile; parts of its tiles that come after its own
    for (std::uint32_t level = 0; plan.depth_of(level); ++level) {
        stream_k_level const& of = plan.levels[level];
        std::uint32_t const begin = plan.depth_of(level + 1), left = begin ? plan.levels[level + 1].pairs : 0;
        if (turn < of.rounds)
            return {first + turn * of.pairs + pair, 0, of.depth, 0, later + 1};
        turn -= of.rounds;
        first += of.rounds * of.pairs;
        if (pair >= left) {
            std::uint32_t const group = of.rest ? (pair - left) / of.rest : 0;
            if (turn > 0 || group >= of.groups)
                return {};
            std::uint32_t const tile = first + (pair - left) % of.rest, steps = of.depth - begin;
            std::uint32_t const earlier = stream_k_parts(plan, level + 1, first, tile);
            return {tile, begin + group * steps / of.groups, begin + (group + 1) * steps / of.groups, earlier + group,
                    earlier + of.groups + later};
        }
        later += of.groups;
    }
    return {};
}

/** Counts of a plan's workspace, one for each group of warps that has a part, in whole lines of memory. */
constexpr std::uint32_t stream_k_counts(stream_k_plan const& plan) noexcept {
    constexpr std::uint32_t groups_of_a_pair = 4, of_a_line = 64;
    return tiles_along(plan.split_tiles() * groups_of_a_pair, of_a_line) * of_a_line;
}
/** Values of the parts of split sums there. */
constexpr std::uint64_t stream_k_values(stream_k_plan const& plan) noexcept {
    return std::uint64_t(plan.split_tiles()) * plan.most_parts() * pair_rows_k * pair_columns_k;
}
constexpr std::uint64_t stream_k_bytes(stream_k_plan const& plan) noexcept {
    return stream_k_counts(plan) * sizeof(std::uint32_t) + stream_k_values(plan) * sizeof(float);
}

/** Steps that a unit takes besides its own: its part is stored. */
inline constexpr double stream_k_unit_steps = 5;

/** The steps of time that a level takes, an affine function of its depth. */
struct stream_k_time {
    double of_step, besides;
};

/** The depth from which on a level's groups take as long as those behind it, or none where that is not worth a unit. */
constexpr std::uint32_t stream_k_next_depth(double depth, std::uint32_t groups, stream_k_time const& next) noexcept {
    double const each = 1.0 / groups,
                 balanced = (depth * each + stream_k_unit_steps - next.besides) / (next.of_step + each);
    return balanced < 2 * stream_k_unit_steps ? 0 : static_cast<std::uint32_t>(balanced);
}

/** The time of pairs that go through some tiles, whatever is worth it. */
constexpr stream_k_time stream_k_time_of(std::uint32_t level, std::uint32_t tiles, std::uint32_t pairs) noexcept {
    std::uint32_t const rounds = tiles / pairs, rest = tiles % pairs;
    stream_k_time time{double(rounds), rounds * stream_k_unit_steps};
    if (rest == 0)
        return time;
    std::uint32_t const left = pairs % rest;
    double const each = 1.0 / (pairs / rest);
    if (level + 1 == stream_k_plan::levels_k || left == 0)
        return {time.of_step + each, time.besides + stream_k_unit_steps};
    stream_k_time const next = stream_k_time_of(level + 1, rest, left);
    double const share = each / (next.of_step + each); // of the depth, that the next level takes
    time.of_step += each * (1 - share);
    time.besides += stream_k_unit_steps - share * (stream_k_unit_steps - next.besides);
    return time;
}

/** Microseconds by a model of the H200, as `gradient_cost`: the last of a tile's parts is added to the others. */
constexpr double stream_k_cost(stream_k_plan const& plan) noexcept {
    constexpr double step = 0.74, begin = 4, part = 4;
    stream_k_level const& all = plan.levels[0];
    double const split = all.groups ? double(all.depth - plan.depth_of(1)) / all.groups : 0;
    return (double(all.rounds) * all.depth + split) * step + begin +
           part * (plan.split_tiles() ? plan.most_parts() : 0);
}

/** The plan that costs least. */
constexpr stream_k_plan stream_k_of(std::uint32_t rows, std::uint32_t outs, std::uint32_t ins,
                                    int multiprocessors) noexcept {
    constexpr std::uint32_t most_groups = 8, fewest_steps = 4;
    stream_k_plan plan{};
    plan.tiles_down = tiles_along(outs, pair_rows_k);
    plan.tiles_across = tiles_along(ins, pair_columns_k);
    std::uint32_t const tiles = plan.tiles_down * plan.tiles_across;
    std::uint32_t const pairs =
        std::max(static_cast<std::uint32_t>(std::max(multiprocessors, 0)) / 2, std::uint32_t(1));
    stream_k_level& all = plan.levels[0];
    all = {tiles_along(rows, tile_depth_k), pairs, tiles / pairs, tiles % pairs, 0};
    if (all.rest == 0)
        return plan;
    std::uint32_t const fit = pairs / all.rest;
    std::uint32_t const most = std::min({fit, most_groups, std::max(all.depth / fewest_steps, std::uint32_t(1))});
    all.groups = 1;
    for (std::uint32_t groups = 2; groups <= most; ++groups) {
        stream_k_plan more = plan;
        more.levels[0].groups = groups;
        if (stream_k_cost(more) < stream_k_cost(plan))
            plan = more;
    }
    if (most < fit)
        return plan; // sums are short: more parts of them would not pay
    // The pairs that no group takes, those that are left of these, and so on.
    stream_k_plan deeper = plan;
    deeper.levels[0].groups = fit;
    for (std::uint32_t level = 0; level + 1 != stream_k_plan::levels_k; ++level) {
        stream_k_level const& of = deeper.levels[level];
        std::uint32_t const left = of.rest ? of.pairs % of.rest : 0;
        if (left == 0)
            break;
        std::uint32_t const depth =
            stream_k_next_depth(of.depth, of.groups, stream_k_time_of(level + 1, of.rest, left));
        if (depth == 0)
            break;
        std::uint32_t const rest = of.rest % left;
        deeper.levels[level + 1] = {depth, left, of.rest / left, rest, rest ? left / rest : 0};
    }
    return stream_k_cost(deeper) < stream_k_cost(plan) ? deeper : plan;
}

/**
 *  Whether Stream-K takes less time than the slices that cost least, in no more memory than theirs may be. As measured
 *  on an H200 with an encoder's maps, in milliseconds, slices and Stream-K, alone and without pause at the power limit:
 *
 *      65,536 rows    512 values   qkv .149 .147  .172 .170   up .290 .296  .291 .297   down .154 .177  .143 .171
 *      65,536 rows    768 values   qkv .368 .335  .378 .357   up .604 .582  .635 .621   down .349 .331  .332 .317
 *                                  out .133 .138  .125 .135
 *      32,768 rows  1,024 values   qkv .334 .314  .327 .320   up .555 .511  .599 .574   down .300 .293  .293 .286
 *                                  out .122 .130  .109 .117
 */
constexpr bool is_stream_k_faster(stream_k_plan const& plan, std::uint32_t rows, std::uint32_t outs, std::uint32_t ins,
                                  int multiprocessors) noexcept {
    gradient_slices const cut = weight_gradient_slices(rows, outs, ins, multiprocessors);
    std::uint64_t const bytes = std::uint64_t(most_slices(rows, outs, ins)) * outs * ins * sizeof(float);
    return stream_k_bytes(plan) <= bytes &&
           stream_k_cost(plan) < gradient_cost(cut.tile, cut.slices, rows, outs, ins, multiprocessors);
}

} // namespace uform::vram

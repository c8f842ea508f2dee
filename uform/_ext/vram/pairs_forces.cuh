/**
 *  What backward makes of a tile's dot products: coefficients, d loss / d (dot product), of both directions together,
 *  and their sums by row and by column. `tile_at` is how threads share the tile, see mma_tile.
 */
#pragma once

#include "vram/pairs_tiles.cuh"

namespace uform::vram::pairs {

/** Where offsets of a tile lie no further apart, one power serves both directions without one of them becoming zero. */
inline constexpr float shared_offsets_k = 60;

/** A tile's shared memory once its product is there. */
template <typename tile_at> struct forces_memory {
    row_terms row_side[tile_k], column_side[tile_k];
    coefficient_sums by_row[tile_at::warps_across_k][tile_k];
    coefficient_sums by_column[tile_at::warps_down_k][tile_k];
    float row_weights[tile_k], column_weights[tile_k]; // see `take_shared`
    float extremes[tile_at::threads_k / warp_k][2];
    exclusions excluded;
};

/** Two blocks of tiles: a panel's rows and its columns. */
struct block_view {
    std::uint32_t first_i, first_j; // tiles
    std::uint32_t side;             // in memory

    __device__ std::size_t sums_at(unsigned direction, std::uint32_t other, std::uint32_t place) const {
        return (std::size_t(direction) * side + other) * side * tile_k + place;
    }
};

/** Whether a tile of the block holds coefficients. */
__device__ __forceinline__ bool is_live(problem const& p, std::uint32_t i, std::uint32_t j) {
    if (i >= p.tiles || j >= p.tiles || j < i)
        return false;
    tile_pair const tile(p, i, j);
    return tile.has_ambient() || tile.named;
}

/** Whether a block may hold coefficients. Every thread of a warp answers the same. */
__device__ __forceinline__ bool may_be_live(problem const& p, block_view const& block) {
    if (may_hold_ambient(p, block.first_i, block.first_j, block_tiles_k))
        return true;
    std::uint32_t const i = block.first_i + threadIdx.x % warp_k;
    static_assert(block_tiles_k == warp_k);
    bool const named = i < p.tiles && p.named_tiles[i * p.tile_words + block.first_j / 32] != 0;
    return __any_sync(whole_warp_k, named);
}

/** Which of a block's tiles beside one another hold coefficients, a bit each: those in the line of tile `own`. Every
 *  thread of a warp takes part. */
__device__ __forceinline__ std::uint32_t live_others(problem const& p, block_view const& block, bool columns,
                                                     std::uint32_t own) {
    std::uint32_t const other = threadIdx.x % warp_k;
    std::uint32_t const i = block.first_i + (columns ? other : own), j = block.first_j + (columns ? own : other);
    return __ballot_sync(whole_warp_k, is_live(p, i, j));
}

/** The coefficients of a pair, forth and back. */
struct two_ways {
    float forth, back;
};

/**
 *  Puts coefficients in the place of dot products, and sums them: `value(down, half, across, i, dot)` answers what each
 *  direction has, `together(...)` the coefficient that is theirs together.
 *  @param row_factor, column_factor Of a row's and a column's sums.
 */
template <typename tile_at, typename value_at, typename together_at, typename row_at, typename column_at>
__device__ __forceinline__ void take_values(typename tile_at::sums_t& dots, value_at&& value, together_at&& together,
                                            row_at&& row_factor, column_at&& column_factor,
                                            forces_memory<tile_at>& memory) {
    float rows[tile_at::downs_k][2] = {}, rows_by_dot[tile_at::downs_k][2] = {};
#pragma unroll
    for (unsigned strip = 0; strip != tile_at::acrosses_k / 4; ++strip) {
        float columns[strip_k] = {}, columns_by_dot[strip_k] = {};
#pragma unroll
        for (unsigned i = 0; i != strip_k; ++i) {
            unsigned const across = strip * 4 + i / 2;
#pragma unroll
            for (unsigned down = 0; down != tile_at::downs_k; ++down) {
#pragma unroll
                for (unsigned half = 0; half != 2; ++half) {
                    float& at = dots[down][across][2 * half + i % 2];
                    float const dot = at;
                    two_ways const one = value(down, half, across, i % 2, dot);
                    rows[down][half] += one.forth;
                    rows_by_dot[down][half] = fmaf(one.forth, dot, rows_by_dot[down][half]);
                    columns[i] += one.back;
                    columns_by_dot[i] = fmaf(one.back, dot, columns_by_dot[i]);
                    at = together(down, half, across, i % 2, one);
                }
            }
        }
        unsigned const column = strip_column<tile_at>(strip);
        float const factor = column_factor(column);
        float const plain = sum_strip(columns) * factor, by_dot = sum_strip(columns_by_dot) * factor;
        memory.by_column[tile_at::warp_down()][column] = {plain, by_dot};
    }
#pragma unroll
    for (unsigned down = 0; down != tile_at::downs_k; ++down) {
#pragma unroll
        for (unsigned half = 0; half != 2; ++half) {
            float const factor = row_factor(down, half);
            float const plain = over_row(rows[down][half], add{}) * factor;
            float const by_dot = over_row(rows_by_dot[down][half], add{}) * factor;
            if (tile_at::lane() % 4 == 0)
                memory.by_row[tile_at::warp_across()][tile_at::row_of(down, half)] = {plain, by_dot};
        }
    }
}

/**
 *  Softmax forms where both directions hold every pair and one temperature rules: 2^(x + a) + 2^(x + b) is
 *  2^(x - most) (2^(a + most) + 2^(b + most)), one power a pair. The factors lie in memory's weights.
 */
template <typename tile_at>
__device__ __forceinline__ void take_shared(typename tile_at::sums_t& dots, float most,
                                            forces_memory<tile_at>& memory) {
    float const slope = memory.row_side[0].slope;
    float row_weights[tile_at::downs_k][2];
#pragma unroll
    for (unsigned down = 0; down != tile_at::downs_k; ++down)
#pragma unroll
        for (unsigned half = 0; half != 2; ++half)
            row_weights[down][half] = memory.row_weights[tile_at::row_of(down, half)];
    take_values<tile_at>(
        dots,
        [&](unsigned, unsigned, unsigned, unsigned, float dot) -> two_ways {
            float const power = power_of_2(fmaf(dot, slope, -most));
            return {power, power};
        },
        [&](unsigned down, unsigned half, unsigned across, unsigned i, two_ways const& power) {
            float const column_weight = memory.column_weights[tile_at::column_of(across) + i];
            return power.forth * (row_weights[down][half] + column_weight);
        },
        [&](unsigned down, unsigned half) { return row_weights[down][half]; },
        [&](unsigned column) { return memory.column_weights[column]; }, memory);
}

/** An ambient pair's coefficient in one direction. */
template <bool sigmoid_ak> __device__ __forceinline__ float coefficient_of(row_terms const& terms, float dot) {
    float const x = fmaf(dot, terms.slope, terms.offset);
    if constexpr (sigmoid_ak)
        return __fdividef(terms.gain, 1 + power_of_2(-x));
    else
        return power_of_2(x);
}

/** Each direction by itself, with its own temperature and its own exclusions. */
template <bool sigmoid_ak, typename tile_at>
__device__ __forceinline__ void take_each(typename tile_at::sums_t& dots, bool masked, forces_memory<tile_at>& memory) {
    take_values<tile_at>(
        dots,
        [&](unsigned down, unsigned half, unsigned across, unsigned i, float dot) -> two_ways {
            unsigned const row = tile_at::row_of(down, half), column = tile_at::column_of(across) + i;
            bool const forth = !(masked && has_bit(memory.excluded.forth[row], column));
            bool const back = !(masked && has_bit(memory.excluded.back[column], row));
            return {forth ? coefficient_of<sigmoid_ak>(memory.row_side[row], dot) : 0,
                    back ? coefficient_of<sigmoid_ak>(memory.column_side[column], dot) : 0};
        },
        [](unsigned, unsigned, unsigned, unsigned, two_ways const& one) { return one.forth + one.back; },
        [](unsigned, unsigned) { return 1.f; }, [](unsigned) { return 1.f; }, memory);
}

/** Answers whether the tile's offsets lie close enough for `take_shared`, and then puts its factors into memory. All
 *  threads of the tile take part. @param most Minus the least offset. */
template <typename tile_at> __device__ __forceinline__ bool share_powers(forces_memory<tile_at>& memory, float& most) {
    constexpr unsigned warps_k = tile_at::threads_k / warp_k;
    float high = -INFINITY, low = INFINITY;
    each_line<tile_at>([&](unsigned own, bool columns) {
        float const offset = -(columns ? memory.column_side : memory.row_side)[own].offset;
        high = fmaxf(high, offset), low = fminf(low, offset);
    });
    high = over_column(over_row(high, largest{}), largest{});
    low = over_column(over_row(low, least{}), least{});
    unsigned const warp_of_tile = tile_at::thread() / warp_k;
    if (tile_at::lane() == 0)
        memory.extremes[warp_of_tile][0] = high, memory.extremes[warp_of_tile][1] = low;
    tile_at::sync();
    most = memory.extremes[0][0];
    float least_of_all = memory.extremes[0][1];
    for (unsigned warp = 1; warp != warps_k; ++warp) {
        most = fmaxf(most, memory.extremes[warp][0]);
        least_of_all = fminf(least_of_all, memory.extremes[warp][1]);
    }
    if (!(most - least_of_all <= shared_offsets_k))
        return false;
    each_line<tile_at>([&](unsigned own, bool columns) {
        float const offset = (columns ? memory.column_side : memory.row_side)[own].offset;
        (columns ? memory.column_weights : memory.row_weights)[own] = power_of_2(most + offset);
    });
    return true;
}

/** What is known of a tile before its product is there. */
struct force_plan {
    bool plain, shared;
    float most; // see `share_powers`
};

/** All threads of the tile take part. */
template <bool sigmoid_ak, typename tile_at>
__device__ __forceinline__ force_plan prepare_tile(problem const& p, tile_pair const& tile,
                                                   forces_memory<tile_at>& memory) {
    // A thread reads, in `share_powers`, what it has written itself.
    each_line<tile_at>([&](unsigned own, bool columns) {
        (columns ? memory.column_side : memory.row_side)[own] = p.terms[(columns ? tile.j : tile.i) * tile_k + own];
    });
    force_plan plan{tile.is_plain(), false, 0};
    if (!plan.plain)
        exclude_all<tile_at>(p, tile, memory.excluded);
    if (!sigmoid_ak && plan.plain && p.groups == 1)
        plan.shared = share_powers<tile_at>(memory, plan.most);
    tile_at::sync();
    return plan;
}

/** Makes coefficients of a prepared tile's dot products, its ambient pairs' alone, and their sums into the block's
 *  memory. All threads of the tile take part; a barrier must follow. */
template <bool sigmoid_ak, typename tile_at>
__device__ __forceinline__ void take_ambient(problem const& p, block_view const& block, tile_pair const& tile,
                                             force_plan const& plan, typename tile_at::sums_t& dots,
                                             forces_memory<tile_at>& memory) {
    if (plan.shared)
        take_shared<tile_at>(dots, plan.most, memory);
    else
        take_each<sigmoid_ak, tile_at>(dots, !plan.plain, memory);
    tile_at::sync();
    std::uint32_t const i = tile.i - block.first_i, j = tile.j - block.first_j;
    each_line<tile_at>([&](unsigned own, bool columns) {
        coefficient_sums sum{0, 0};
        unsigned const warps = columns ? tile_at::warps_down_k : tile_at::warps_across_k;
        for (unsigned warp = 0; warp != warps; ++warp) {
            coefficient_sums const part = columns ? memory.by_column[warp][own] : memory.by_row[warp][own];
            sum.plain += part.plain, sum.by_dot += part.by_dot;
        }
        p.block_coefficients[block.sums_at(columns, columns ? i : j, (columns ? j : i) * tile_k + own)] = sum;
    });
}

/** Calls `add(row, column, coefficient)` for the named pairs of a tile, the rows' own, then the columns' in the rows:
 * no two threads at the same place at a time. All threads of the tile take part. */
template <typename tile_at, typename add_at>
__device__ __forceinline__ void each_named(problem const& p, tile_pair const& tile, add_at&& add) {
    unsigned const own = tile_at::thread();
    edge_range const forth = own < tile_k ? edges_in_tile(p, tile.i * tile_k + own, tile.j) : edge_range{0, 0};
    for (std::uint32_t edge = forth.first; edge != forth.last; ++edge)
        add(own, p.named_places[edge] % tile_k, p.named_coefficients[edge]);
    tile_at::sync();
    if (tile.diagonal())
        return;
    edge_range const back = own < tile_k ? edges_in_tile(p, tile.j * tile_k + own, tile.i) : edge_range{0, 0};
    for (std::uint32_t edge = back.first; edge != back.last; ++edge)
        add(p.named_places[edge] % tile_k, own, p.named_coefficients[edge]);
    tile_at::sync();
}

/** Which tiles of the block in the line of tile `own` hold ambient pairs, a bit each. Every thread of a warp takes
 * part. */
__device__ __forceinline__ std::uint32_t ambient_others(problem const& p, block_view const& block, bool columns,
                                                        std::uint32_t own) {
    std::uint32_t const other = threadIdx.x % warp_k;
    std::uint32_t const i = block.first_i + (columns ? other : own), j = block.first_j + (columns ? own : other);
    return __ballot_sync(whole_warp_k, i < p.tiles && j < p.tiles && i <= j && tile_pair(p, i, j).has_ambient());
}

/** Adds the sums of a tile's rows or columns over the block to those of their places, in the order of tiles.
 *  @param within The place within the tile. @param others See `ambient_others`. */
__device__ __forceinline__ void merge_sums(problem const& p, block_view const& block, bool columns, std::uint32_t own,
                                           unsigned within, std::uint32_t others) {
    std::uint32_t const at = own * tile_k + within;
    coefficient_sums& to = p.coefficients[std::size_t(columns ? block.first_j : block.first_i) * tile_k + at];
    coefficient_sums sum = to;
    constexpr unsigned ahead_k = 4; // reads wait for one another otherwise
    for (unsigned first = 0; first != block_tiles_k; first += ahead_k) {
        coefficient_sums parts[ahead_k];
#pragma unroll
        for (unsigned i = 0; i != ahead_k; ++i)
            parts[i] = others >> (first + i) & 1 ? p.block_coefficients[block.sums_at(columns, first + i, at)]
                                                 : coefficient_sums{0, 0};
#pragma unroll
        for (unsigned i = 0; i != ahead_k; ++i)
            sum.plain += parts[i].plain, sum.by_dot += parts[i].by_dot;
    }
    to = sum;
}

} // namespace uform::vram::pairs

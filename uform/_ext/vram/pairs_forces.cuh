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

/** One row's or column's sums over this thread's part of it. */
struct running_sums {
    float plain = 0, by_dot = 0;

    __device__ __forceinline__ void add(float coefficient, float dot) {
        plain += coefficient;
        by_dot = fmaf(coefficient, dot, by_dot);
    }
};

template <typename tile_at>
__device__ __forceinline__ void store_row(forces_memory<tile_at>& memory, unsigned row, running_sums sums,
                                          float factor) {
    sums.plain = over_row(sums.plain, add{}) * factor, sums.by_dot = over_row(sums.by_dot, add{}) * factor;
    if (tile_at::lane() % 4 == 0)
        memory.by_row[tile_at::warp_across()][row] = {sums.plain, sums.by_dot};
}

template <typename tile_at>
__device__ __forceinline__ void store_column(forces_memory<tile_at>& memory, unsigned column, running_sums sums,
                                             float factor) {
    sums.plain = over_column(sums.plain, add{}) * factor, sums.by_dot = over_column(sums.by_dot, add{}) * factor;
    if (tile_at::lane() < 4)
        memory.by_column[tile_at::warp_down()][column] = {sums.plain, sums.by_dot};
}

/**
 *  Softmax forms where both directions hold every pair and one temperature rules: 2^(x + a) + 2^(x + b) is
 *  2^(x - most) (2^(a + most) + 2^(b + most)), one power a pair. Factors lie in the terms' `weight`.
 */
template <typename tile_at>
__device__ __forceinline__ void take_shared(typename tile_at::sums_t& dots, float most,
                                            forces_memory<tile_at>& memory) {
    float const slope = memory.row_side[0].slope;
    running_sums columns[tile_at::acrosses_k][2];
#pragma unroll
    for (unsigned down = 0; down != tile_at::downs_k; ++down) {
#pragma unroll
        for (unsigned half = 0; half != 2; ++half) {
            unsigned const row = tile_at::row_of(down, half);
            float const row_weight = memory.row_side[row].weight;
            running_sums sums;
#pragma unroll
            for (unsigned across = 0; across != tile_at::acrosses_k; ++across) {
                unsigned const column = tile_at::column_of(across);
#pragma unroll
                for (unsigned i = 0; i != 2; ++i) {
                    float& at = dots[down][across][2 * half + i];
                    float const power = power_of_2(fmaf(at, slope, -most));
                    sums.add(power, at);
                    columns[across][i].add(power, at);
                    at = power * (row_weight + memory.column_side[column + i].weight);
                }
            }
            store_row<tile_at>(memory, row, sums, row_weight);
        }
    }
#pragma unroll
    for (unsigned across = 0; across != tile_at::acrosses_k; ++across)
#pragma unroll
        for (unsigned i = 0; i != 2; ++i) {
            unsigned const column = tile_at::column_of(across) + i;
            store_column<tile_at>(memory, column, columns[across][i], memory.column_side[column].weight);
        }
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
    running_sums columns[tile_at::acrosses_k][2];
#pragma unroll
    for (unsigned down = 0; down != tile_at::downs_k; ++down) {
#pragma unroll
        for (unsigned half = 0; half != 2; ++half) {
            unsigned const row = tile_at::row_of(down, half);
            row_terms const of_row = memory.row_side[row];
            running_sums sums;
#pragma unroll
            for (unsigned across = 0; across != tile_at::acrosses_k; ++across) {
                unsigned const column = tile_at::column_of(across);
#pragma unroll
                for (unsigned i = 0; i != 2; ++i) {
                    float& at = dots[down][across][2 * half + i];
                    bool const forth = !(masked && has_bit(memory.excluded.forth[row], column + i));
                    bool const back = !(masked && has_bit(memory.excluded.back[column + i], row));
                    float const of_forth = forth ? coefficient_of<sigmoid_ak>(of_row, at) : 0;
                    float const of_back = back ? coefficient_of<sigmoid_ak>(memory.column_side[column + i], at) : 0;
                    sums.add(of_forth, at);
                    columns[across][i].add(of_back, at);
                    at = of_forth + of_back;
                }
            }
            store_row<tile_at>(memory, row, sums, 1);
        }
    }
#pragma unroll
    for (unsigned across = 0; across != tile_at::acrosses_k; ++across)
#pragma unroll
        for (unsigned i = 0; i != 2; ++i)
            store_column<tile_at>(memory, tile_at::column_of(across) + i, columns[across][i], 1);
}

/** Answers whether the tile's offsets lie close enough for `take_shared`, and then puts its factors beside them. All
 *  threads of the tile take part. @param most Minus the least offset. */
template <typename tile_at> __device__ __forceinline__ bool share_powers(forces_memory<tile_at>& memory, float& most) {
    constexpr unsigned warps_k = tile_at::threads_k / warp_k;
    unsigned const own = tile_at::thread();
    float const of_row = -memory.row_side[own].offset, of_column = -memory.column_side[own].offset;
    float const high = over_column(over_row(fmaxf(of_row, of_column), largest{}), largest{});
    float const low = over_column(over_row(fminf(of_row, of_column), least{}), least{});
    if (own % warp_k == 0)
        memory.extremes[own / warp_k][0] = high, memory.extremes[own / warp_k][1] = low;
    tile_at::sync();
    most = memory.extremes[0][0];
    float least_of_all = memory.extremes[0][1];
    for (unsigned warp = 1; warp != warps_k; ++warp) {
        most = fmaxf(most, memory.extremes[warp][0]);
        least_of_all = fminf(least_of_all, memory.extremes[warp][1]);
    }
    if (!(most - least_of_all <= shared_offsets_k))
        return false;
    memory.row_side[own].weight = power_of_2(most - of_row);
    memory.column_side[own].weight = power_of_2(most - of_column);
    tile_at::sync();
    return true;
}

/** Makes coefficients of a tile's dot products, its ambient pairs' alone, and their sums into the block's memory. All
 *  threads of the tile take part. */
template <bool sigmoid_ak, typename tile_at>
__device__ __forceinline__ void take_ambient(problem const& p, block_view const& block, tile_pair const& tile,
                                             typename tile_at::sums_t& dots, forces_memory<tile_at>& memory) {
    unsigned const own = tile_at::thread();
    memory.row_side[own] = p.terms[tile.i * tile_k + own];
    memory.column_side[own] = p.terms[tile.j * tile_k + own];
    bool const plain = tile.is_plain();
    if (!plain)
        exclude_all(p, tile, own, memory.excluded);
    tile_at::sync();
    float most = 0;
    if (!sigmoid_ak && plain && p.groups == 1 && share_powers<tile_at>(memory, most))
        take_shared<tile_at>(dots, most, memory);
    else
        take_each<sigmoid_ak, tile_at>(dots, !plain, memory);
    tile_at::sync();
    coefficient_sums row{0, 0}, column{0, 0};
    for (unsigned warp = 0; warp != tile_at::warps_across_k; ++warp)
        row.plain += memory.by_row[warp][own].plain, row.by_dot += memory.by_row[warp][own].by_dot;
    for (unsigned warp = 0; warp != tile_at::warps_down_k; ++warp)
        column.plain += memory.by_column[warp][own].plain, column.by_dot += memory.by_column[warp][own].by_dot;
    std::uint32_t const i = tile.i - block.first_i, j = tile.j - block.first_j;
    p.block_coefficients[block.sums_at(0, j, i * tile_k + own)] = row;
    p.block_coefficients[block.sums_at(1, i, j * tile_k + own)] = column;
    tile_at::sync(); // the next tile overwrites all this
}

/** Calls `add(row, column, coefficient)` for the named pairs of a tile, the rows' own, then the columns' in the rows: no
 *  two threads at the same place at a time. All threads of the tile take part. */
template <typename tile_at, typename add_at>
__device__ __forceinline__ void each_named(problem const& p, tile_pair const& tile, add_at&& add) {
    unsigned const own = tile_at::thread();
    edge_range const forth = edges_in_tile(p, tile.i * tile_k + own, tile.j);
    for (std::uint32_t edge = forth.first; edge != forth.last; ++edge)
        add(own, p.named_places[edge] % tile_k, p.named_coefficients[edge]);
    tile_at::sync();
    if (tile.diagonal())
        return;
    edge_range const back = edges_in_tile(p, tile.j * tile_k + own, tile.i);
    for (std::uint32_t edge = back.first; edge != back.last; ++edge)
        add(p.named_places[edge] % tile_k, own, p.named_coefficients[edge]);
    tile_at::sync();
}

/** Adds the sums of a tile's rows or columns over the block to those of their places, in the order of tiles.
 *  @param within The place within the tile, @param others Tiles of the block beside it that hold coefficients. */
__device__ __forceinline__ void merge_sums(problem const& p, block_view const& block, bool columns, std::uint32_t own,
                                           unsigned within, std::uint32_t others) {
    std::uint32_t const at = own * tile_k + within;
    std::uint32_t const first_i = block.first_i, first_j = block.first_j;
    coefficient_sums& to = p.coefficients[std::size_t(columns ? first_j : first_i) * tile_k + at];
    coefficient_sums sum = to;
    for (; others; others &= others - 1) {
        std::uint32_t const other = __ffs(others) - 1;
        if (!tile_pair(p, first_i + (columns ? other : own), first_j + (columns ? own : other)).has_ambient())
            continue;
        coefficient_sums const part = p.block_coefficients[block.sums_at(columns, other, at)];
        sum.plain += part.plain, sum.by_dot += part.by_dot;
    }
    to = sum;
}

} // namespace uform::vram::pairs

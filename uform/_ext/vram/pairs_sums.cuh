/**
 *  What forward makes of a tile's dot products: the sums of its ambient pairs by row and by column.
 *  `tile_at` is how threads share the tile, see mma_tile.
 */
#pragma once

#include "vram/pairs_tiles.cuh"

namespace uform::vram::pairs {

/** Exponents to base 2 so far apart may share one power's scale without one of them becoming zero. */
inline constexpr float shared_exponents_k = 80;

/** A tile's shared memory once its product is there. */
template <typename tile_at> struct sums_memory {
    row_terms row_side[tile_k], column_side[tile_k];
    partial_sum by_row[tile_at::warps_across_k][tile_k];
    partial_sum by_column[tile_at::warps_down_k][tile_k];
    exclusions excluded;
};

__device__ __forceinline__ partial_sum combine(partial_sum a, partial_sum b) {
    float const maximum = fmaxf(a.maximum, b.maximum);
    if (maximum == -INFINITY)
        return {maximum, a.sum + b.sum}; // nothing yet, or plain sums
    return {maximum, a.sum * power_of_2(a.maximum - maximum) + b.sum * power_of_2(b.maximum - maximum)};
}

/** ln(1 + 2^x) for any x, to float32's precision relative to itself. */
__device__ __forceinline__ float softplus_of_power(float x) {
    float const t = power_of_2(-fabsf(x)); // at most 1: log(1 + t) = 2 artanh(t / (2 + t)), a short series
    float const y = __fdividef(t, 2 + t), square = y * y;
    float series = fmaf(square, 1.f / 11, 1.f / 9);
    series = fmaf(series, square, 1.f / 7);
    series = fmaf(series, square, 1.f / 5);
    series = fmaf(series, square, 1.f / 3);
    series = fmaf(series, square, 1.f);
    return fmaf(2 * y, series, fmaxf(x, 0.f) * ln_2_k);
}

/** Where both directions hold every pair and one temperature rules, powers serve rows and columns alike. Answers false,
 *  for the warp, where they lie too far apart. */
template <typename tile_at>
__device__ __forceinline__ bool sum_shared(typename tile_at::sums_t const& dots, float slope,
                                           sums_memory<tile_at>& memory) {
    float high = -INFINITY, low = INFINITY;
#pragma unroll
    for (unsigned down = 0; down != tile_at::downs_k; ++down)
#pragma unroll
        for (unsigned across = 0; across != tile_at::acrosses_k; ++across)
#pragma unroll
            for (unsigned i = 0; i != 4; ++i)
                high = fmaxf(high, dots[down][across][i]), low = fminf(low, dots[down][across][i]);
    high = over_column(over_row(high, largest{}), largest{}) * slope;
    low = over_column(over_row(low, least{}), least{}) * slope;
    if (!(high - low <= shared_exponents_k))
        return false;

    float columns[tile_at::acrosses_k][2] = {};
#pragma unroll
    for (unsigned down = 0; down != tile_at::downs_k; ++down) {
#pragma unroll
        for (unsigned half = 0; half != 2; ++half) {
            float row = 0;
#pragma unroll
            for (unsigned across = 0; across != tile_at::acrosses_k; ++across) {
                float const first = power_of_2(fmaf(dots[down][across][2 * half], slope, -high));
                float const second = power_of_2(fmaf(dots[down][across][2 * half + 1], slope, -high));
                row += first + second;
                columns[across][0] += first;
                columns[across][1] += second;
            }
            row = over_row(row, add{});
            if (tile_at::lane() % 4 == 0)
                memory.by_row[tile_at::warp_across()][tile_at::row_of(down, half)] = {high, row};
        }
    }
#pragma unroll
    for (unsigned across = 0; across != tile_at::acrosses_k; ++across) {
#pragma unroll
        for (unsigned i = 0; i != 2; ++i) {
            float const column = over_column(columns[across][i], add{});
            if (tile_at::lane() < 4)
                memory.by_column[tile_at::warp_down()][tile_at::column_of(across) + i] = {high, column};
        }
    }
    return true;
}

/** The sum of the values of a row or a column: `exponent(i)` answers -infinity where a pair is excluded. */
template <bool sigmoid_ak, unsigned count_ak, typename exponent_at, typename over_at>
__device__ __forceinline__ partial_sum sum_line(exponent_at&& exponent, over_at&& over) {
    float x[count_ak];
#pragma unroll
    for (unsigned i = 0; i != count_ak; ++i)
        x[i] = exponent(i);
    float sum = 0;
    if constexpr (sigmoid_ak) {
#pragma unroll
        for (unsigned i = 0; i != count_ak; ++i)
            sum += x[i] == -INFINITY ? 0 : softplus_of_power(x[i]);
        return {-INFINITY, over(sum, add{})};
    } else {
        float maximum = -INFINITY;
#pragma unroll
        for (unsigned i = 0; i != count_ak; ++i)
            maximum = fmaxf(maximum, x[i]);
        maximum = over(maximum, largest{});
        float const base = maximum == -INFINITY ? 0 : maximum;
#pragma unroll
        for (unsigned i = 0; i != count_ak; ++i)
            sum += power_of_2(x[i] - base);
        return {maximum, over(sum, add{})};
    }
}

/** Every row and every column by itself, each with its own temperature and its own exclusions. */
template <bool sigmoid_ak, typename tile_at>
__device__ __forceinline__ void sum_each(typename tile_at::sums_t const& dots, bool masked,
                                         sums_memory<tile_at>& memory) {
#pragma unroll
    for (unsigned down = 0; down != tile_at::downs_k; ++down) {
#pragma unroll
        for (unsigned half = 0; half != 2; ++half) {
            unsigned const row = tile_at::row_of(down, half);
            row_terms const terms = memory.row_side[row];
            partial_sum const sum = sum_line<sigmoid_ak, 2 * tile_at::acrosses_k>(
                [&](unsigned i) {
                    unsigned const column = tile_at::column_of(i / 2) + i % 2;
                    if (masked && has_bit(memory.excluded.forth[row], column))
                        return -INFINITY;
                    return fmaf(dots[down][i / 2][2 * half + i % 2], terms.slope, terms.offset);
                },
                [](float value, auto&& combine) { return over_row(value, combine); });
            if (tile_at::lane() % 4 == 0)
                memory.by_row[tile_at::warp_across()][row] = sum;
        }
    }
#pragma unroll
    for (unsigned across = 0; across != tile_at::acrosses_k; ++across) {
#pragma unroll
        for (unsigned side = 0; side != 2; ++side) {
            unsigned const column = tile_at::column_of(across) + side;
            row_terms const terms = memory.column_side[column];
            partial_sum const sum = sum_line<sigmoid_ak, 2 * tile_at::downs_k>(
                [&](unsigned i) {
                    unsigned const row = tile_at::row_of(i / 2, i % 2);
                    if (masked && has_bit(memory.excluded.back[column], row))
                        return -INFINITY;
                    return fmaf(dots[i / 2][across][2 * (i % 2) + side], terms.slope, terms.offset);
                },
                [](float value, auto&& combine) { return over_column(value, combine); });
            if (tile_at::lane() < 4)
                memory.by_column[tile_at::warp_down()][column] = sum;
        }
    }
}

/** A span of tiles by a span of tiles: where a direction's sums of a tile lie. */
struct span_view {
    std::uint32_t first_i, first_j; // tiles
    std::uint32_t side;             // in memory

    /** @param place Within the tile's span, `other` the tile of the other span. */
    __device__ std::size_t at(unsigned direction, std::uint32_t other, std::uint32_t place) const {
        return (std::size_t(direction) * side + other) * side * tile_k + place;
    }
};

/** Sums a tile into the span's memory. All threads of the tile take part. */
template <bool sigmoid_ak, typename tile_at>
__device__ __forceinline__ void sum_tile(problem const& p, span_view const& span, tile_pair const& tile,
                                         typename tile_at::sums_t const& dots, sums_memory<tile_at>& memory) {
    unsigned const own = tile_at::thread();
    memory.row_side[own] = p.terms[tile.i * tile_k + own];
    memory.column_side[own] = p.terms[tile.j * tile_k + own];
    bool const plain = tile.is_plain();
    if (!plain)
        exclude_all(p, tile, own, memory.excluded);
    tile_at::sync();
    bool done = false;
    if constexpr (!sigmoid_ak)
        done = plain && p.groups == 1 && sum_shared<tile_at>(dots, memory.row_side[0].slope, memory);
    if (!done)
        sum_each<sigmoid_ak, tile_at>(dots, !plain, memory);
    tile_at::sync();
    partial_sum by_row = memory.by_row[0][own], by_column = memory.by_column[0][own];
#pragma unroll
    for (unsigned warp = 1; warp < tile_at::warps_across_k; ++warp)
        by_row = combine(by_row, memory.by_row[warp][own]);
#pragma unroll
    for (unsigned warp = 1; warp < tile_at::warps_down_k; ++warp)
        by_column = combine(by_column, memory.by_column[warp][own]);
    std::uint32_t const i = tile.i - span.first_i, j = tile.j - span.first_j;
    p.span_sums[span.at(0, j, i * tile_k + own)] = by_row;
    p.span_sums[span.at(1, i, j * tile_k + own)] = by_column;
    tile_at::sync(); // the next tile overwrites all this
}

} // namespace uform::vram::pairs

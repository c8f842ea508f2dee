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

/** Sums of `value(dot)` over every row and every column, each kept by `maximum`. */
template <typename tile_at, typename value_at>
__device__ __forceinline__ void sum_values(typename tile_at::sums_t const& dots, float maximum, value_at&& value,
                                           sums_memory<tile_at>& memory) {
    float rows[tile_at::downs_k][2] = {};
#pragma unroll
    for (unsigned strip = 0; strip != tile_at::acrosses_k / 4; ++strip) {
        float columns[strip_k] = {};
#pragma unroll
        for (unsigned i = 0; i != strip_k; ++i) {
#pragma unroll
            for (unsigned down = 0; down != tile_at::downs_k; ++down) {
#pragma unroll
                for (unsigned half = 0; half != 2; ++half) {
                    float const one = value(dots[down][strip * 4 + i / 2][2 * half + i % 2]);
                    rows[down][half] += one;
                    columns[i] += one;
                }
            }
        }
        float const column = sum_strip(columns);
        memory.by_column[tile_at::warp_down()][strip_column<tile_at>(strip)] = {maximum, column};
    }
#pragma unroll
    for (unsigned down = 0; down != tile_at::downs_k; ++down) {
#pragma unroll
        for (unsigned half = 0; half != 2; ++half) {
            float const row = over_row(rows[down][half], add{});
            if (tile_at::lane() % 4 == 0)
                memory.by_row[tile_at::warp_across()][tile_at::row_of(down, half)] = {maximum, row};
        }
    }
}

/** No dot product of a tile's rows with its columns exceeds this. */
__device__ __forceinline__ float dot_bound(problem const& p, std::uint32_t i, std::uint32_t j) {
    return p.tile_lengths[i] * p.tile_lengths[j];
}

/** Where both directions hold every pair and one temperature rules, powers serve rows and columns alike. Answers false,
 *  for the warp, where they lie too far apart. @param bound See `dot_bound`. */
template <typename tile_at>
__device__ __forceinline__ bool sum_shared(typename tile_at::sums_t const& dots, float slope, float bound,
                                           sums_memory<tile_at>& memory) {
    float most = bound * slope;
    if (!(2 * most <= shared_exponents_k)) {
        float high = -INFINITY, low = INFINITY;
#pragma unroll
        for (unsigned down = 0; down != tile_at::downs_k; ++down) {
#pragma unroll
            for (unsigned i = 0; i != 4; ++i) {
                float greatest = dots[down][0][i],
                      least = dots[down][0][i]; // a chain each, for they wait for one another
#pragma unroll
                for (unsigned across = 1; across != tile_at::acrosses_k; ++across)
                    greatest = fmaxf(greatest, dots[down][across][i]), least = fminf(least, dots[down][across][i]);
                high = fmaxf(high, greatest), low = fminf(low, least);
            }
        }
        high = over_column(over_row(high, largest{}), largest{}) * slope;
        low = over_column(over_row(low, least{}), least{}) * slope;
        if (!(high - low <= shared_exponents_k))
            return false;
        most = high;
    }
    sum_values<tile_at>(dots, most, [&](float dot) { return power_of_2(fmaf(dot, slope, -most)); }, memory);
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

/** Every row and every column by itself, each with its own temperature and, if masked, its own exclusions. */
template <bool sigmoid_ak, bool masked_ak, typename tile_at>
__device__ __forceinline__ void sum_each(typename tile_at::sums_t const& dots, sums_memory<tile_at>& memory) {
#pragma unroll
    for (unsigned down = 0; down != tile_at::downs_k; ++down) {
#pragma unroll
        for (unsigned half = 0; half != 2; ++half) {
            unsigned const row = tile_at::row_of(down, half);
            row_terms const terms = memory.row_side[row];
            partial_sum const sum = sum_line<sigmoid_ak, 2 * tile_at::acrosses_k>(
                [&](unsigned i) {
                    unsigned const column = tile_at::column_of(i / 2) + i % 2;
                    if (masked_ak && has_bit(memory.excluded.forth[row], column))
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
                    if (masked_ak && has_bit(memory.excluded.back[column], row))
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

/** What can be made ready before the tile's product is there. All threads of the tile take part. */
template <typename tile_at>
__device__ __forceinline__ void prepare_tile(problem const& p, tile_pair const& tile, line_terms<tile_at> const& terms,
                                             sums_memory<tile_at>& memory) {
    terms.store(memory.row_side, memory.column_side);
    if (!tile.is_plain())
        exclude_all<tile_at>(p, tile, memory.excluded);
    tile_at::sync();
}

/** Sums a prepared tile into the span's memory. All threads of the tile take part; a barrier must follow. @param bound
 * See `dot_bound`. */
template <bool sigmoid_ak, typename tile_at>
__device__ __forceinline__ void sum_tile(problem const& p, span_view const& span, tile_pair const& tile, float bound,
                                         typename tile_at::sums_t const& dots, sums_memory<tile_at>& memory) {
    bool const plain = tile.is_plain(), shared = plain && p.groups == 1;
    row_terms const terms = memory.row_side[0];
    if (sigmoid_ak && shared)
        sum_values<tile_at>(
            dots, -INFINITY, [&](float dot) { return softplus_of_power(fmaf(dot, terms.slope, terms.offset)); },
            memory);
    else if (!plain)
        sum_each<sigmoid_ak, true, tile_at>(dots, memory);
    else if (sigmoid_ak || !shared || !sum_shared<tile_at>(dots, terms.slope, bound, memory))
        sum_each<sigmoid_ak, false, tile_at>(dots, memory);
    tile_at::sync();
    std::uint32_t const i = tile.i - span.first_i, j = tile.j - span.first_j;
    each_line<tile_at>([&](unsigned own, bool columns) {
        partial_sum sum = columns ? memory.by_column[0][own] : memory.by_row[0][own];
        unsigned const warps = columns ? tile_at::warps_down_k : tile_at::warps_across_k;
        for (unsigned warp = 1; warp < warps; ++warp)
            sum = combine(sum, columns ? memory.by_column[warp][own] : memory.by_row[warp][own]);
        p.span_sums[span.at(columns, columns ? i : j, (columns ? j : i) * tile_k + own)] = sum;
    });
}

} // namespace uform::vram::pairs

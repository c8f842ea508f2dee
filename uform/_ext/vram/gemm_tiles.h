/** Which tile of the answer a block computes, and how a tall sum is sliced: pure functions of extents and processors.
 */
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace uform::vram {

/** Rows and columns of the answer that one block computes at a time. */
enum class gemm_tile {
    narrow, ///< 128 x 128
    wide,   ///< 128 x 256
};

constexpr std::uint32_t tile_rows(gemm_tile) noexcept { return 128; }
constexpr std::uint32_t tile_columns(gemm_tile tile) noexcept { return tile == gemm_tile::wide ? 256 : 128; }

/** Terms of the sum that a block takes at a time. */
inline constexpr std::uint32_t tile_depth_k = 64;

constexpr std::uint32_t tiles_along(std::uint32_t extent, std::uint32_t tile) noexcept {
    return (extent + tile - 1) / tile;
}

/** Tiles of an answer [rows, columns]. */
constexpr std::uint64_t tiles_of(gemm_tile tile, std::uint32_t rows, std::uint32_t columns) noexcept {
    return std::uint64_t(tiles_along(rows, tile_rows(tile))) * tiles_along(columns, tile_columns(tile));
}

/**
 *  The tile of y[rows, columns], a sum of `depth` terms. Wide tiles read shared memory less; narrow ones hide their
 *  stores behind the next tile's products, which pays where the sum is short, and fill the GPU from fewer rows. As
 *  measured on an H200 with an encoder's maps, in milliseconds, narrow and wide:
 *
 *      65,536 rows    512 columns   1,536 terms .145 .144    2,816 .257 .249    512 .057 .064
 *      65,536 rows    768 columns   2,304 terms .317 .315    4,096 .560 .549    768 .121 .135
 *      32,768 rows  1,024 columns   3,072 terms .282 .311    5,632 .508 .540  1,024 .109 .117
 */
constexpr gemm_tile product_tile(std::uint32_t rows, std::uint32_t columns, std::uint32_t depth,
                                 int multiprocessors) noexcept {
    constexpr std::uint32_t short_sum = 1024, many_columns = 1024;
    std::uint32_t const padded = tiles_along(columns, 256) * 256;
    bool const fits = padded - columns <= columns / 8;
    bool const fills = tiles_of(gemm_tile::wide, rows, columns) >= 2 * std::uint64_t(multiprocessors);
    return fits && fills && depth > short_sum && columns < many_columns ? gemm_tile::wide : gemm_tile::narrow;
}

/** How dw[outs, ins], a sum over rows, is computed: slices of rows into partial sums, then their sum in order. */
struct gradient_slices {
    gemm_tile tile;
    std::uint32_t slices;
    std::uint32_t slice_rows; ///< of each slice
    std::uint32_t rest_rows;  ///< past the last slice, fewer than there are slices
};

/** The most slices of dw[outs, ins] on any GPU: a few waves of tiles, each slice long enough to be worth its sums. */
constexpr std::uint32_t most_slices(std::uint32_t rows, std::uint32_t outs, std::uint32_t ins) noexcept {
    constexpr std::uint64_t tiles_wanted = 600, most = 32, fewest_rows = 4 * tile_depth_k;
    std::uint64_t const tiles = std::max<std::uint64_t>(tiles_of(gemm_tile::wide, outs, ins), 1);
    return static_cast<std::uint32_t>(
        std::clamp<std::uint64_t>(std::min(tiles_wanted / tiles, rows / fewest_rows), 1, most));
}

/** Microseconds that a choice takes by a model of the H200: whole waves of tiles, then a pass over partial sums. */
constexpr double gradient_cost(gemm_tile tile, std::uint32_t slices, std::uint32_t rows, std::uint32_t outs,
                               std::uint32_t ins, int multiprocessors) noexcept {
    // One tile's product of `tile_depth_k` terms; wide ones take longer where the answer is tall.
    constexpr std::uint32_t tall = 3072;
    double const step = tile == gemm_tile::narrow ? 0.41 : outs < tall ? 0.74 : 0.84;
    double const store = tile == gemm_tile::wide ? 3.0 : 1.5; // one tile's partial sums
    constexpr double bytes_per_microsecond = 3e6;
    std::uint64_t const tiles = tiles_of(tile, outs, ins) * slices;
    std::uint64_t const processors = static_cast<std::uint64_t>(std::max(multiprocessors, 1));
    double const waves = static_cast<double>((tiles + processors - 1) / processors);
    double const steps = static_cast<double>(tiles_along(rows / slices, tile_depth_k));
    double const bytes = 4.0 * (slices + 2) * outs * ins;
    return waves * (steps * step + store) + bytes / bytes_per_microsecond;
}

/** The slices of one tile size that cost least. */
constexpr gradient_slices slice_rows(gemm_tile tile, std::uint32_t rows, std::uint32_t outs, std::uint32_t ins,
                                     int multiprocessors) noexcept {
    std::uint32_t const most = most_slices(rows, outs, ins);
    std::uint32_t best = 1;
    for (std::uint32_t slices = 2; slices <= most; ++slices)
        if (gradient_cost(tile, slices, rows, outs, ins, multiprocessors) <
            gradient_cost(tile, best, rows, outs, ins, multiprocessors))
            best = slices;
    return {tile, best, rows / best, rows % best};
}

/** The slices that cost least. */
constexpr gradient_slices weight_gradient_slices(std::uint32_t rows, std::uint32_t outs, std::uint32_t ins,
                                                 int multiprocessors) noexcept {
    gradient_slices const narrow = slice_rows(gemm_tile::narrow, rows, outs, ins, multiprocessors);
    gradient_slices const wide = slice_rows(gemm_tile::wide, rows, outs, ins, multiprocessors);
    return gradient_cost(wide.tile, wide.slices, rows, outs, ins, multiprocessors) <=
                   gradient_cost(narrow.tile, narrow.slices, rows, outs, ins, multiprocessors)
               ? wide
               : narrow;
}

} // namespace uform::vram

/** What the kernels over tiles of scores share: which tiles hold pairs, which of their places do, and their products.
 */
#pragma once

#include <type_traits>

#include "vram/elementwise.cuh"
#include "vram/mma_tile.cuh"
#include "vram/pairs.h"

namespace uform::vram::pairs {

/** Two blocks of threads on a multiprocessor: one multiplies while the other takes exponentials. */
using score_tile = mma_tile<tile_k, tile_k, 2, 2, 3>;
/** What a tile tells of one direction of its pairs. */
enum class view { nothing, some, everything };

__device__ __forceinline__ view view_of(visibility const& from, visibility const& to) {
    if (from.all_look & to.all_face)
        return view::nothing;
    return from.any_look & to.any_face ? view::some : view::everything;
}

/** A tile of the places of tile `i` and, in columns, of tile `j` >= i. */
struct tile_pair {
    std::uint32_t i, j;
    view forth; // what the rows see in the columns
    view back;  // what the columns see in the rows; a tile on the diagonal holds both directions in `forth`
    bool named; // some pair of it is named

    __device__ tile_pair(problem const& p, std::uint32_t i_, std::uint32_t j_) : i(i_), j(j_) {
        visibility const of_i = p.tile_views[i], of_j = p.tile_views[j];
        forth = view_of(of_i, of_j);
        back = i == j ? view::nothing : view_of(of_j, of_i);
        named = p.named_tiles[i * p.tile_words + j / 32] >> j % 32 & 1;
    }

    /** All but the places in a byte, and the tile from it. */
    __device__ std::uint8_t packed() const {
        return static_cast<std::uint8_t>(static_cast<unsigned>(forth) | static_cast<unsigned>(back) << 2 |
                                         static_cast<unsigned>(named) << 4);
    }
    __device__ tile_pair(std::uint32_t i_, std::uint32_t j_, std::uint8_t packed)
        : i(i_), j(j_), forth(static_cast<view>(packed & 3)), back(static_cast<view>(packed >> 2 & 3)),
          named(packed >> 4 & 1) {}

    __device__ bool diagonal() const { return i == j; }
    __device__ bool has_ambient() const { return forth != view::nothing || back != view::nothing; }
    /** Both directions hold every pair as an ambient one. */
    __device__ bool is_plain() const {
        return forth == view::everything && back == view::everything && !named && !diagonal();
    }
};

/** Whether a block of `side` tiles by as many, each a whole number of backward's blocks, may hold ambient pairs. */
__device__ inline bool may_hold_ambient(problem const& p, std::uint32_t first_i, std::uint32_t first_j,
                                        std::uint32_t side) {
    auto const blocks_of = [](std::uint32_t tiles) { return (tiles + block_tiles_k - 1) / block_tiles_k; };
    std::uint32_t const blocks = blocks_of(side), all = blocks_of(p.tiles);
    for (std::uint32_t a = first_i / block_tiles_k; a < min(first_i / block_tiles_k + blocks, all); ++a) {
        for (std::uint32_t b = first_j / block_tiles_k; b < min(first_j / block_tiles_k + blocks, all); ++b) {
            visibility const of_a = p.block_views[a], of_b = p.block_views[b];
            if (view_of(of_a, of_b) != view::nothing || view_of(of_b, of_a) != view::nothing)
                return true;
        }
    }
    return false;
}

/** A bit for every pair of a tile that is no ambient one: by row, then by column for the way back. */
struct exclusions {
    std::uint32_t forth[tile_k][tile_k / 32];
    std::uint32_t back[tile_k][tile_k / 32];
};

/** The edges of the row at a place whose candidates lie in a tile: [first, last) of `named_places`. */
struct edge_range {
    std::uint32_t first, last;
};

__device__ inline std::uint32_t lower_edge(problem const& p, std::uint32_t begin, std::uint32_t end,
                                           std::uint32_t place) {
    while (begin < end) {
        std::uint32_t const middle = begin + (end - begin) / 2;
        if (p.named_places[middle] < place)
            begin = middle + 1;
        else
            end = middle;
    }
    return begin;
}

__device__ inline edge_range edges_in_tile(problem const& p, std::uint32_t place, std::uint32_t tile) {
    std::uint32_t const row = p.row_at[place];
    if (row == no_row_k)
        return {0, 0};
    std::uint32_t const end = p.edge_offsets[row + 1];
    std::uint32_t const first = lower_edge(p, p.edge_offsets[row], end, tile * tile_k);
    return {first, lower_edge(p, first, end, (tile + 1) * tile_k)};
}

/** One thread's row of exclusions: what the place sees in a tile, but its named pairs. */
__device__ inline void exclude(problem const& p, std::uint32_t place, std::uint32_t tile, bool named,
                               std::uint32_t (&bits)[tile_k / 32]) {
    std::uint32_t const look = p.look[place];
    for (unsigned word = 0; word != tile_k / 32; ++word) {
        std::uint32_t held = 0;
        for (unsigned bit = 0; bit != 32; ++bit)
            held |= (look & p.face[tile * tile_k + word * 32 + bit]) ? 1u << bit : 0;
        bits[word] = held;
    }
    if (named) {
        edge_range const range = edges_in_tile(p, place, tile);
        for (std::uint32_t edge = range.first; edge != range.last; ++edge) {
            unsigned const at = p.named_places[edge] % tile_k;
            bits[at / 32] |= 1u << at % 32;
        }
    }
    if (place / tile_k == tile)
        bits[place % tile_k / 32] |= 1u << place % 32;
}

/** Calls `body(own, columns)` for every row and every column of a tile, which all of its threads share. */
template <typename tile_at, typename body_at> __device__ __forceinline__ void each_line(body_at&& body) {
    static_assert(2 * tile_k % tile_at::threads_k == 0);
#pragma unroll
    for (unsigned at = 0; at != 2 * tile_k; at += tile_at::threads_k) {
        unsigned const line = at + tile_at::thread();
        body(line % tile_k, line >= tile_k);
    }
}

/** The terms of a tile's rows and columns, in registers: a thread's lines, as `each_line` has them. They are loaded
 * long before the tile is begun, for memory answers late. */
template <typename tile_at> struct line_terms {
    row_terms lines[2 * tile_k / tile_at::threads_k];

    /** Calls `body(own, columns, terms)` for the thread's lines. */
    template <typename body_at> __device__ __forceinline__ void each(body_at&& body) const {
        unsigned at = 0;
        each_line<tile_at>([&](unsigned own, bool columns) { body(own, columns, lines[at++]); });
    }

    __device__ __forceinline__ void load(problem const& p, std::uint32_t i, std::uint32_t j) {
        unsigned at = 0;
        each_line<tile_at>(
            [&](unsigned own, bool columns) { lines[at++] = p.terms[(columns ? j : i) * tile_k + own]; });
    }
    __device__ __forceinline__ void store(row_terms (&rows)[tile_k], row_terms (&columns_to)[tile_k]) const {
        each([&](unsigned own, bool columns, row_terms const& terms) { (columns ? columns_to : rows)[own] = terms; });
    }
};

/** All threads of the tile take part; a barrier must follow. */
template <typename tile_at>
__device__ inline void exclude_all(problem const& p, tile_pair const& tile, exclusions& to) {
    each_line<tile_at>([&](unsigned own, bool columns) {
        if (!columns)
            exclude(p, tile.i * tile_k + own, tile.j, tile.named, to.forth[own]);
        else if (!tile.diagonal())
            exclude(p, tile.j * tile_k + own, tile.i, tile.named, to.back[own]);
        else
            for (std::uint32_t& word : to.back[own])
                word = ~0u;
    });
}

/** Whether a row's bits exclude a column, and the other way round; a word is looked up once for 32 of them. */
__device__ __forceinline__ bool has_bit(std::uint32_t const* bits, unsigned at) { return bits[at / 32] >> at % 32 & 1; }

/** The dot products of a tile. */
__device__ __forceinline__ void multiply_tile(problem const& p, tile_pair const& tile, std::uint32_t shared,
                                              score_tile::sums_t& dots) {
    operand const vectors{p.vectors, p.padded_width};
    std::size_t const places = std::size_t(p.tiles) * tile_k;
    std::size_t depth = 0;
#pragma unroll
    for (auto& down : dots)
#pragma unroll
        for (auto& across : down)
#pragma unroll
            for (float& dot : across)
                dot = 0;
    score_tile::multiply<contiguous::depth, contiguous::depth>(
        dots, shared, p.padded_width / score_tile::depth_k, [&](std::uint32_t left, std::uint32_t right) {
            score_tile::load<contiguous::depth, tile_k>(left, vectors, std::size_t(tile.i) * tile_k, places, depth,
                                                        p.padded_width);
            score_tile::load<contiguous::depth, tile_k>(right, vectors, std::size_t(tile.j) * tile_k, places, depth,
                                                        p.padded_width);
            depth += score_tile::depth_k;
        });
}

/** Columns that a thread has of four blocks of 8, which lie side by side. */
inline constexpr unsigned strip_k = 8;

/** The lane's own column of those that eight lanes share, in strip `strip` of the tile's part that the warp has. */
template <typename tile_at> __device__ __forceinline__ unsigned strip_column(unsigned strip) {
    unsigned const index = tile_at::lane() / 4;
    return tile_at::column_of(strip * 4 + index / 2) + index % 2;
}

/** Eight lanes hold parts of the same eight columns: each gets one column's sum, see `strip_column`. The order is
 * fixed.
 */
__device__ __forceinline__ float sum_strip(float (&parts)[strip_k]) {
    unsigned const lane = threadIdx.x;
    auto const halve = [&]<unsigned half_ak>(std::integral_constant<unsigned, half_ak>) {
        constexpr unsigned bit_k = half_ak * 4;
        bool const upper = lane & bit_k;
#pragma unroll
        for (unsigned i = 0; i != half_ak; ++i) {
            float const other =
                __shfl_xor_sync(whole_warp_k, upper ? parts[i] : parts[i + half_ak], static_cast<int>(bit_k));
            parts[i] = (upper ? parts[i + half_ak] : parts[i]) + other;
        }
    };
    halve(std::integral_constant<unsigned, 4>{});
    halve(std::integral_constant<unsigned, 2>{});
    halve(std::integral_constant<unsigned, 1>{});
    return parts[0];
}

inline constexpr float log2_e_k = 1.4426950408889634f;
inline constexpr float ln_2_k = 0.6931471805599453f;

} // namespace uform::vram::pairs

/**
 *  What backward makes of a tile's dot products: coefficients, d loss / d (dot product), of both directions together,
 *  and their sums by row and by column. `tile_at` is how threads share the tile, see mma_tile.
 */
#pragma once

#include "vram/pairs_tiles.cuh"

namespace uform::vram::pairs {

/** Where offsets of a tile lie no further apart, one power serves both directions without one of them becoming zero. */
inline constexpr float shared_offsets_k = 60;

/** What a row or a column makes of a power that serves both: its factor, and that times its center. */
struct shared_factor {
    float weight, centered;
};

/** A tile's shared memory once its product is there. */
template <typename tile_at> struct forces_memory {
    row_terms row_side[tile_k], column_side[tile_k];
    coefficient_sums by_row[tile_at::warps_across_k][tile_k];
    union {
        coefficient_sums by_column[tile_at::warps_down_k][tile_k]; // `take_each`
        struct {
            shared_factor rows[tile_k], columns[tile_k];
        } factors; // `take_shared`
    };
    exclusions excluded;
};

/** The tiles of a panel's rows and of its columns. */
struct panel_view {
    std::uint32_t first_i, first_j; // tiles
    std::uint32_t side;             // of either

    __device__ std::size_t sums_at(unsigned direction, std::uint32_t other, std::uint32_t place) const {
        return (std::size_t(direction) * side + other) * side * tile_k + place;
    }
};

/** Whether a tile holds coefficients: each pair of tiles is one of them, the lesser's places its rows. */
__device__ __forceinline__ bool is_live(tile_pair const& tile) {
    return tile.i <= tile.j && (tile.has_ambient() || tile.named);
}
__device__ __forceinline__ bool is_live(problem const& p, std::uint32_t i, std::uint32_t j) {
    return i < p.tiles && j < p.tiles && is_live(tile_pair(p, i, j));
}

/** Whether a panel may hold coefficients. Every thread of a warp answers the same. */
__device__ __forceinline__ bool may_be_live(problem const& p, panel_view const& block) {
    if (may_hold_ambient(p, block.first_i, block.first_j, block.side))
        return true;
    bool named = false;
    std::uint32_t const last = min(block.first_i + block.side, p.tiles);
    std::uint32_t const words = min((block.first_j + block.side + 31) / 32, p.tile_words);
    for (std::uint32_t i = block.first_i + threadIdx.x % warp_k; i < last; i += warp_k)
        for (std::uint32_t word = block.first_j / 32; word < words; ++word)
            named |= p.named_tiles[i * p.tile_words + word] != 0;
    return __any_sync(whole_warp_k, named);
}

/** A bit for each of a panel's tiles in a line. */
using tile_bits = std::uint64_t;
static_assert(panel_tiles_k == 64);

/** Which tiles of the panel in the line of tile `own`, its column or its row, are such that `holds(i, j)`. Every thread
 * of a warp takes part. */
template <typename holds_at>
__device__ __forceinline__ tile_bits find_others(panel_view const& block, bool columns, std::uint32_t own,
                                                 holds_at&& holds) {
    tile_bits found = 0;
#pragma unroll
    for (std::uint32_t first = 0; first != panel_tiles_k; first += warp_k) {
        std::uint32_t const other = first + threadIdx.x % warp_k;
        std::uint32_t const i = block.first_i + (columns ? other : own), j = block.first_j + (columns ? own : other);
        found |= tile_bits(__ballot_sync(whole_warp_k, other < block.side && holds(i, j))) << first;
    }
    return found;
}

/** Those that hold coefficients. */
__device__ __forceinline__ tile_bits live_others(problem const& p, panel_view const& block, bool columns,
                                                 std::uint32_t own) {
    return find_others(block, columns, own, [&](std::uint32_t i, std::uint32_t j) { return is_live(p, i, j); });
}

/** Those that hold ambient pairs. */
__device__ __forceinline__ tile_bits ambient_others(problem const& p, panel_view const& block, bool columns,
                                                    std::uint32_t own) {
    return find_others(block, columns, own, [&](std::uint32_t i, std::uint32_t j) {
        return i < p.tiles && j < p.tiles && i <= j && tile_pair(p, i, j).has_ambient();
    });
}

/** Adds up what lanes have of the sums of rows. */
template <typename tile_at>
__device__ __forceinline__ void put_row_sums(float const (&plain)[tile_at::downs_k][2],
                                             float const (&by_dot)[tile_at::downs_k][2],
                                             forces_memory<tile_at>& memory) {
#pragma unroll
    for (unsigned down = 0; down != tile_at::downs_k; ++down) {
#pragma unroll
        for (unsigned half = 0; half != 2; ++half) {
            coefficient_sums const sums{over_row(plain[down][half], add{}), over_row(by_dot[down][half], add{})};
            if (tile_at::lane() % 4 == 0)
                memory.by_row[tile_at::warp_across()][tile_at::row_of(down, half)] = sums;
        }
    }
}

/** What is known of a tile before its product is there. */
struct force_plan {
    bool shared; // one power serves both directions
    float slope; // then that of all lines
    float most;  // then minus the least offset
};

/**
 *  Softmax forms where both directions hold every pair and one temperature rules: 2^(x + a) + 2^(x + b) is
 *  2^(x - most) (2^(a + most) + 2^(b + most)), one power a pair. The factors lie in memory.
 */
template <typename tile_at>
__device__ __forceinline__ void take_shared(typename tile_at::sums_t& dots, force_plan const& plan,
                                            forces_memory<tile_at>& memory) {
    float const slope = plan.slope, most = plan.most;
    shared_factor rows[tile_at::downs_k][2];
    float by_dot[tile_at::downs_k][2] = {};
    constexpr float plain[tile_at::downs_k][2] = {}; // softmax has no bias
#pragma unroll
    for (unsigned down = 0; down != tile_at::downs_k; ++down)
#pragma unroll
        for (unsigned half = 0; half != 2; ++half)
            rows[down][half] = memory.factors.rows[tile_at::row_of(down, half)];
    auto const take = [&](float& at, shared_factor const& row, shared_factor const& column, float& sum) {
        float const power = power_of_2(fmaf(at, slope, -most)), weight = row.weight + column.weight;
        sum = fmaf(power, fmaf(weight, at, -(row.centered + column.centered)), sum);
        at = power * weight;
    };
#pragma unroll
    for (unsigned across = 0; across != tile_at::acrosses_k; ++across) {
        auto const two = *reinterpret_cast<float4 const*>(&memory.factors.columns[tile_at::column_of(across)]);
#pragma unroll
        for (unsigned down = 0; down != tile_at::downs_k; ++down) {
#pragma unroll
            for (unsigned half = 0; half != 2; ++half) {
                take(dots[down][across][2 * half], rows[down][half], {two.x, two.y}, by_dot[down][half]);
                take(dots[down][across][2 * half + 1], rows[down][half], {two.z, two.w}, by_dot[down][half]);
            }
        }
    }
    put_row_sums<tile_at>(plain, by_dot, memory);
}

/** An ambient pair's coefficient in one direction. */
template <bool sigmoid_ak> __device__ __forceinline__ float coefficient_of(row_terms const& terms, float dot) {
    float const x = fmaf(dot, terms.slope, terms.offset);
    if constexpr (sigmoid_ak)
        return __fdividef(terms.gain, 1 + power_of_2(-x));
    else
        return power_of_2(x);
}

/** SIGMOID where both directions hold every pair and one group rules: they are the same. */
template <typename tile_at>
__device__ __forceinline__ void take_twice(typename tile_at::sums_t& dots, forces_memory<tile_at>& memory) {
    row_terms terms = memory.row_side[0];
    terms.gain *= 2;
    float plain[tile_at::downs_k][2] = {}, by_dot[tile_at::downs_k][2] = {};
    auto const take = [&](float& at, unsigned down, unsigned half) {
        float const coefficient = coefficient_of<true>(terms, at);
        plain[down][half] += coefficient;
        by_dot[down][half] = fmaf(coefficient, at, by_dot[down][half]);
        at = coefficient;
    };
#pragma unroll
    for (unsigned across = 0; across != tile_at::acrosses_k; ++across)
#pragma unroll
        for (unsigned down = 0; down != tile_at::downs_k; ++down)
#pragma unroll
            for (unsigned half = 0; half != 2; ++half)
                take(dots[down][across][2 * half], down, half), take(dots[down][across][2 * half + 1], down, half);
    put_row_sums<tile_at>(plain, by_dot, memory);
}

/** Each direction by itself, with its own temperature and its own exclusions. */
template <bool sigmoid_ak, typename tile_at>
__device__ __forceinline__ void take_each(typename tile_at::sums_t& dots, forces_memory<tile_at>& memory) {
    float plain[tile_at::downs_k][2] = {}, by_dot[tile_at::downs_k][2] = {};
#pragma unroll
    for (unsigned strip = 0; strip != tile_at::acrosses_k / 4; ++strip) {
        float columns[strip_k] = {}, columns_by_dot[strip_k] = {};
#pragma unroll
        for (unsigned i = 0; i != strip_k; ++i) {
            unsigned const across = strip * 4 + i / 2, column = tile_at::column_of(across) + i % 2;
#pragma unroll
            for (unsigned down = 0; down != tile_at::downs_k; ++down) {
#pragma unroll
                for (unsigned half = 0; half != 2; ++half) {
                    unsigned const row = tile_at::row_of(down, half);
                    row_terms const &of_row = memory.row_side[row], &of_column = memory.column_side[column];
                    float& at = dots[down][across][2 * half + i % 2];
                    float const dot = at;
                    bool const no_forth = has_bit(memory.excluded.forth[row], column);
                    bool const no_back = has_bit(memory.excluded.back[column], row);
                    float const forth = no_forth ? 0 : coefficient_of<sigmoid_ak>(of_row, dot);
                    float const back = no_back ? 0 : coefficient_of<sigmoid_ak>(of_column, dot);
                    plain[down][half] += forth;
                    by_dot[down][half] = fmaf(forth, dot - of_row.center, by_dot[down][half]);
                    columns[i] += back;
                    columns_by_dot[i] = fmaf(back, dot - of_column.center, columns_by_dot[i]);
                    at = forth + back;
                }
            }
        }
        float const sum = sum_strip(columns), sum_by_dot = sum_strip(columns_by_dot);
        memory.by_column[tile_at::warp_down()][strip_column<tile_at>(strip)] = {sum, sum_by_dot};
    }
    put_row_sums<tile_at>(plain, by_dot, memory);
}

/** The least offset of a tile's rows and columns, or NaN where they lie too far apart for `take_shared`. */
__device__ __forceinline__ float shared_offset(problem const& p, std::uint32_t i, std::uint32_t j) {
    offset_range const of_rows = p.tile_offsets[i], of_columns = p.tile_offsets[j];
    float const least = fminf(of_rows.least, of_columns.least), largest = fmaxf(of_rows.largest, of_columns.largest);
    return largest - least <= shared_offsets_k ? least : NAN;
}

/** All threads of the tile take part. @param least See `shared_offset`; SIGMOID needs none. */
template <bool sigmoid_ak, typename tile_at>
__device__ __forceinline__ force_plan prepare_tile(problem const& p, tile_pair const& tile,
                                                   line_terms<tile_at> const& terms, float least,
                                                   forces_memory<tile_at>& memory) {
    bool const shared = tile.is_plain() && p.groups == 1 && (sigmoid_ak || !isnan(least));
    if (!sigmoid_ak && shared) {
        terms.each([&](unsigned own, bool columns, row_terms const& line) {
            float const weight = power_of_2(line.offset - least);
            (columns ? memory.factors.columns : memory.factors.rows)[own] = {weight, weight * line.center};
        });
    } else {
        terms.store(memory.row_side, memory.column_side);
    }
    if (!shared)
        exclude_all<tile_at>(p, tile, memory.excluded);
    tile_at::sync();
    return {shared, terms.lines[0].slope, -least};
}

/** Makes coefficients of a prepared tile's dot products, its ambient pairs' alone, and their sums into the panel's
 *  memory. All threads of the tile take part; a barrier must follow. */
template <bool sigmoid_ak, typename tile_at>
__device__ __forceinline__ void take_ambient(problem const& p, panel_view const& block, tile_pair const& tile,
                                             force_plan const& plan, typename tile_at::sums_t& dots,
                                             forces_memory<tile_at>& memory) {
    if (!plan.shared)
        take_each<sigmoid_ak, tile_at>(dots, memory);
    else if constexpr (sigmoid_ak)
        take_twice<tile_at>(dots, memory);
    else
        take_shared<tile_at>(dots, plan, memory);
    tile_at::sync();
    std::uint32_t const i = tile.i - block.first_i, j = tile.j - block.first_j;
    each_line<tile_at>([&](unsigned own, bool columns) {
        coefficient_sums sum{0, 0};
        unsigned const warps = !columns ? tile_at::warps_across_k : plan.shared ? 0 : tile_at::warps_down_k;
        for (unsigned warp = 0; warp != warps; ++warp) {
            coefficient_sums const part = columns ? memory.by_column[warp][own] : memory.by_row[warp][own];
            sum.plain += part.plain, sum.by_dot += part.by_dot;
        }
        p.panel_coefficients[block.sums_at(columns, columns ? i : j, (columns ? j : i) * tile_k + own)] = sum;
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

/** Adds the sums of a tile's rows or columns over the panel to those of their places, in the order of tiles.
 *  @param within The place within the tile. @param others See `ambient_others`. */
__device__ __forceinline__ void merge_sums(problem const& p, panel_view const& block, bool columns, std::uint32_t own,
                                           unsigned within, tile_bits others) {
    std::uint32_t const at = own * tile_k + within;
    coefficient_sums& to = p.coefficients[std::size_t(columns ? block.first_j : block.first_i) * tile_k + at];
    coefficient_sums sum = to;
    constexpr unsigned ahead_k = 4; // reads wait for one another otherwise
    for (unsigned first = 0; first != panel_tiles_k; first += ahead_k) {
        coefficient_sums parts[ahead_k];
#pragma unroll
        for (unsigned i = 0; i != ahead_k; ++i)
            parts[i] = others >> (first + i) & 1 ? p.panel_coefficients[block.sums_at(columns, first + i, at)]
                                                 : coefficient_sums{0, 0};
#pragma unroll
        for (unsigned i = 0; i != ahead_k; ++i)
            sum.plain += parts[i].plain, sum.by_dot += parts[i].by_dot;
    }
    to = sum;
}

} // namespace uform::vram::pairs

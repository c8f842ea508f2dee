#include <algorithm>

#include "vram/launch.cuh"
#include "vram/pairs_tiles.cuh"

namespace uform::vram::pairs {

namespace {

/** Exponents to base 2 so far apart may share one power's scale without one of them becoming zero. */
constexpr float shared_range_k = 80;

/** Shared memory of a tile after its product: it takes the place of the product's stages. */
struct forward_memory {
    row_terms row_side[tile_k], column_side[tile_k];
    partial_sum by_row[score_tile::warps_across_k][tile_k];
    partial_sum by_column[score_tile::warps_down_k][tile_k];
    exclusions excluded;
};
static_assert(sizeof(forward_memory) <= score_tile::shared_bytes_k);

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
__device__ __forceinline__ bool sum_shared(score_tile::sums_t const& dots, float slope, forward_memory& memory) {
    float high = -INFINITY, low = INFINITY;
#pragma unroll
    for (unsigned down = 0; down != score_tile::downs_k; ++down)
#pragma unroll
        for (unsigned across = 0; across != score_tile::acrosses_k; ++across)
#pragma unroll
            for (unsigned i = 0; i != 4; ++i)
                high = fmaxf(high, dots[down][across][i]), low = fminf(low, dots[down][across][i]);
    high = over_column(over_row(high, largest{}), largest{}) * slope;
    low = over_column(over_row(low, least{}), least{}) * slope;
    if (!(high - low <= shared_range_k))
        return false;

    float columns[score_tile::acrosses_k][2] = {};
#pragma unroll
    for (unsigned down = 0; down != score_tile::downs_k; ++down) {
#pragma unroll
        for (unsigned half = 0; half != 2; ++half) {
            float row = 0;
#pragma unroll
            for (unsigned across = 0; across != score_tile::acrosses_k; ++across) {
                float const first = power_of_2(fmaf(dots[down][across][2 * half], slope, -high));
                float const second = power_of_2(fmaf(dots[down][across][2 * half + 1], slope, -high));
                row += first + second;
                columns[across][0] += first;
                columns[across][1] += second;
            }
            row = over_row(row, add{});
            if (score_tile::lane() % 4 == 0)
                memory.by_row[score_tile::warp_across()][score_tile::row_of(down, half)] = {high, row};
        }
    }
#pragma unroll
    for (unsigned across = 0; across != score_tile::acrosses_k; ++across) {
#pragma unroll
        for (unsigned i = 0; i != 2; ++i) {
            float const column = over_column(columns[across][i], add{});
            if (score_tile::lane() < 4)
                memory.by_column[score_tile::warp_down()][score_tile::column_of(across) + i] = {high, column};
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
template <bool sigmoid_ak>
__device__ __forceinline__ void sum_each(score_tile::sums_t const& dots, bool masked, forward_memory& memory) {
#pragma unroll
    for (unsigned down = 0; down != score_tile::downs_k; ++down) {
#pragma unroll
        for (unsigned half = 0; half != 2; ++half) {
            unsigned const row = score_tile::row_of(down, half);
            row_terms const terms = memory.row_side[row];
            partial_sum const sum = sum_line<sigmoid_ak, 2 * score_tile::acrosses_k>(
                [&](unsigned i) {
                    unsigned const column = score_tile::column_of(i / 2) + i % 2;
                    if (masked && has_bit(memory.excluded.forth[row], column))
                        return -INFINITY;
                    return fmaf(dots[down][i / 2][2 * half + i % 2], terms.slope, terms.offset);
                },
                [](float value, auto&& combine) { return over_row(value, combine); });
            if (score_tile::lane() % 4 == 0)
                memory.by_row[score_tile::warp_across()][row] = sum;
        }
    }
#pragma unroll
    for (unsigned across = 0; across != score_tile::acrosses_k; ++across) {
#pragma unroll
        for (unsigned side = 0; side != 2; ++side) {
            unsigned const column = score_tile::column_of(across) + side;
            row_terms const terms = memory.column_side[column];
            partial_sum const sum = sum_line<sigmoid_ak, 2 * score_tile::downs_k>(
                [&](unsigned i) {
                    unsigned const row = score_tile::row_of(i / 2, i % 2);
                    if (masked && has_bit(memory.excluded.back[column], row))
                        return -INFINITY;
                    return fmaf(dots[i / 2][across][2 * (i % 2) + side], terms.slope, terms.offset);
                },
                [](float value, auto&& combine) { return over_column(value, combine); });
            if (score_tile::lane() < 4)
                memory.by_column[score_tile::warp_down()][column] = sum;
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

template <bool sigmoid_ak>
__global__ void __launch_bounds__(score_tile::threads_k, 2) sum_tiles(problem p, span_view span) {
    extern __shared__ __align__(128) std::byte shared[];
    forward_memory& memory = *reinterpret_cast<forward_memory*>(shared);
    if (!may_hold_ambient(p, span.first_i, span.first_j, span_tiles_k))
        return;
    std::uint32_t const down = min(span_tiles_k, p.tiles - span.first_i);
    std::uint32_t const across = min(span_tiles_k, p.tiles - span.first_j);
    for (std::uint32_t at = blockIdx.x; at < down * across; at += gridDim.x) {
        std::uint32_t const i = span.first_i + at / across, j = span.first_j + at % across;
        if (j < i)
            continue;
        tile_pair const tile(p, i, j);
        if (!tile.has_ambient())
            continue;
        score_tile::sums_t dots;
        multiply_tile(p, tile, shared_place(shared), dots);

        unsigned const own = threadIdx.x;
        memory.row_side[own] = p.terms[i * tile_k + own];
        memory.column_side[own] = p.terms[j * tile_k + own];
        bool const plain = tile.is_plain();
        if (!plain)
            exclude_all(p, tile, memory.excluded);
        __syncthreads();
        bool done = false;
        if constexpr (!sigmoid_ak)
            done = plain && p.groups == 1 && sum_shared(dots, memory.row_side[0].slope, memory);
        if (!done)
            sum_each<sigmoid_ak>(dots, !plain, memory);
        __syncthreads();
        partial_sum by_row = memory.by_row[0][own], by_column = memory.by_column[0][own];
        static_assert(score_tile::warps_across_k == 2 && score_tile::warps_down_k == 2);
        by_row = combine(by_row, memory.by_row[1][own]);
        by_column = combine(by_column, memory.by_column[1][own]);
        p.span_sums[span.at(0, j - span.first_j, (i - span.first_i) * tile_k + own)] = by_row;
        p.span_sums[span.at(1, i - span.first_i, (j - span.first_j) * tile_k + own)] = by_column;
        __syncthreads(); // the next product overwrites all this
    }
}

constexpr unsigned slices_k = 8;

/**
 *  A warp's lanes are places of one tile, its warps share the other span's tiles among them; then the first adds up.
 *  Direction 0 merges the rows' sums, 1 the columns'.
 */
__global__ void __launch_bounds__(slices_k* warp_k) merge_span(problem p, span_view span) {
    __shared__ partial_sum parts[slices_k][warp_k];
    if (!may_hold_ambient(p, span.first_i, span.first_j, span_tiles_k))
        return;
    bool const both = span.first_i == span.first_j;
    std::uint32_t const lane = threadIdx.x % warp_k, slice = threadIdx.x / warp_k;
    std::uint32_t const within = blockIdx.x * warp_k + lane; // of the span
    for (unsigned direction = both ? 0 : blockIdx.y; direction <= (both ? 1 : blockIdx.y); ++direction) {
        std::uint32_t const own = (direction ? span.first_j : span.first_i) + within / tile_k;
        std::uint32_t const first = direction ? span.first_i : span.first_j;
        std::uint32_t const others = min(span_tiles_k, p.tiles - first);
        partial_sum sum{-INFINITY, 0};
        for (std::uint32_t other = slice; own < p.tiles && other < others; other += slices_k) {
            std::uint32_t const tile = first + other, i = direction ? tile : own, j = direction ? own : tile;
            if (j < i || (direction && i == j) || !tile_pair(p, i, j).has_ambient())
                continue;
            sum = combine(sum, p.span_sums[span.at(direction, other, within)]);
        }
        __syncthreads();
        parts[slice][lane] = sum;
        __syncthreads();
        if (slice == 0 && own < p.tiles) {
            std::uint32_t const place = own * tile_k + within % tile_k;
            partial_sum total = p.sums[place];
            for (unsigned part = 0; part != slices_k; ++part)
                total = combine(total, parts[part][lane]);
            p.sums[place] = total;
        }
    }
}

} // namespace

void sum_ambient(stream const& stream, problem const& p, extents const&) {
    unsigned const side = std::min(p.tiles, span_tiles_k);
    auto const kernel = p.form == uform_pair_loss_form_sigmoid_k ? sum_tiles<true> : sum_tiles<false>;
    for (std::uint32_t i = 0; i < p.tiles; i += span_tiles_k) {
        for (std::uint32_t j = i; j < p.tiles; j += span_tiles_k) {
            span_view const span{i, j, side};
            std::uint32_t const down = std::min(span_tiles_k, p.tiles - i),
                                across = std::min(span_tiles_k, p.tiles - j);
            unsigned const blocks = std::min(2u * static_cast<unsigned>(stream.multiprocessors), down * across);
            launch(stream, kernel, blocks, score_tile::threads_k, score_tile::shared_bytes_k, p, span);
            dim3 const merge(std::max(down, across) * (tile_k / warp_k), i == j ? 1 : 2);
            launch(stream, merge_span, merge, slices_k * warp_k, 0, p, span);
        }
    }
}

} // namespace uform::vram::pairs

#include <algorithm>

#include "vram/launch.cuh"
#include "vram/pairs_sm90.h"

namespace uform::vram::pairs {

namespace {

static_assert(sizeof(sums_memory<score_tile>) <= score_tile::shared_bytes_k);

template <bool sigmoid_ak>
__global__ void __launch_bounds__(score_tile::threads_k, 2) sum_tiles(problem p, span_view span) {
    extern __shared__ __align__(128) std::byte shared[];
    auto& memory = *reinterpret_cast<sums_memory<score_tile>*>(shared); // in the place of the product's stages
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
        line_terms<score_tile> terms;
        terms.load(p, i, j);
        prepare_tile<score_tile>(p, tile, terms, memory);
        sum_tile<sigmoid_ak, score_tile>(p, span, tile, dot_bound(p, i, j), dots, memory);
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

void sum_span(stream const& stream, problem const& p, span_view const& span, std::uint32_t down, std::uint32_t across) {
#if UFORM_WITH_SM90
    if (sm90::serves_scores(stream, p))
        return sm90::sum_tiles(stream, p, span);
#endif
    auto const kernel = p.form == uform_pair_loss_form_sigmoid_k ? sum_tiles<true> : sum_tiles<false>;
    unsigned const most = 2 * static_cast<unsigned>(stream.multiprocessors);
    launch(stream, kernel, std::min(most, down * across), score_tile::threads_k, score_tile::shared_bytes_k, p, span);
}

} // namespace

void sum_ambient(stream const& stream, problem const& p, extents const&) {
    unsigned const side = std::min(p.tiles, span_tiles_k);
    for (std::uint32_t i = 0; i < p.tiles; i += span_tiles_k) {
        for (std::uint32_t j = i; j < p.tiles; j += span_tiles_k) {
            span_view const span{i, j, side};
            std::uint32_t const down = std::min(span_tiles_k, p.tiles - i),
                                across = std::min(span_tiles_k, p.tiles - j);
            sum_span(stream, p, span, down, across);
            dim3 const merge(std::max(down, across) * (tile_k / warp_k), i == j ? 1 : 2);
            launch(stream, merge_span, merge, slices_k * warp_k, 0, p, span);
        }
    }
}

} // namespace uform::vram::pairs

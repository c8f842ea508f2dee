#include <algorithm>

#include "vram/launch.cuh"
#include "vram/pairs_sm90.h"

namespace uform::vram::pairs {

namespace {

/** Shared memory of a tile after its product: it takes the place of the product's stages. */
struct panel_memory {
    __nv_bfloat16 coefficients[tile_k * tile_k]; // laid by `value_place`
    forces_memory<score_tile> forces;
};
static_assert(sizeof(panel_memory) <= score_tile::shared_bytes_k);

__device__ __forceinline__ void put_coefficients(score_tile::sums_t const& coefficients, panel_memory& memory) {
#pragma unroll
    for (unsigned down = 0; down != score_tile::downs_k; ++down)
#pragma unroll
        for (unsigned half = 0; half != 2; ++half)
#pragma unroll
            for (unsigned across = 0; across != score_tile::acrosses_k; ++across) {
                unsigned const at = value_place(score_tile::row_of(down, half), score_tile::column_of(across), tile_k);
                *reinterpret_cast<__nv_bfloat162*>(&memory.coefficients[at]) = __floats2bfloat162_rn(
                    coefficients[down][across][2 * half], coefficients[down][across][2 * half + 1]);
            }
}

__device__ __forceinline__ void store_panel(problem const& p, panel_view const& block, tile_pair const& tile,
                                            panel_memory const& memory) {
    constexpr unsigned chunks_k = tile_k / lanes_k;
    __nv_bfloat16* const to =
        p.panel + std::size_t(tile.i - block.first_i) * tile_k * p.panel_stride + (tile.j - block.first_j) * tile_k;
    for (unsigned at = threadIdx.x; at < tile_k * chunks_k; at += score_tile::threads_k) {
        unsigned const row = at / chunks_k, column = at % chunks_k * lanes_k;
        store8(to + std::size_t(row) * p.panel_stride + column,
               load8(&memory.coefficients[value_place(row, column, tile_k)]));
    }
}

/** The coefficients of a panel's pairs, both directions together, into the panel. */
template <bool sigmoid_ak>
__global__ void __launch_bounds__(score_tile::threads_k, 2) fill_panel(problem p, panel_view block) {
    extern __shared__ __align__(128) std::byte shared[];
    panel_memory& memory = *reinterpret_cast<panel_memory*>(shared);
    if (!may_be_live(p, block))
        return;
    std::uint32_t const down = min(block.side, p.tiles - block.first_i);
    std::uint32_t const across = min(block.side, p.tiles - block.first_j);
    for (std::uint32_t at = blockIdx.x; at < down * across; at += gridDim.x) {
        std::uint32_t const i = block.first_i + at / across, j = block.first_j + at % across;
        if (!is_live(p, i, j))
            continue;
        tile_pair const tile(p, i, j);
        score_tile::sums_t dots = {};
        if (tile.has_ambient()) {
            multiply_tile(p, tile, shared_place(shared), dots);
            line_terms<score_tile> terms;
            terms.load(p, i, j);
            force_plan const plan =
                prepare_tile<sigmoid_ak, score_tile>(p, tile, terms, shared_offset(p, i, j), memory.forces);
            take_ambient<sigmoid_ak, score_tile>(p, block, tile, plan, dots, memory.forces);
        }
        put_coefficients(dots, memory);
        __syncthreads();
        if (tile.named)
            each_named<score_tile>(p, tile, [&](unsigned row, unsigned column, float coefficient) {
                __nv_bfloat16& at = memory.coefficients[value_place(row, column, tile_k)];
                at = __float2bfloat16(__bfloat162float(at) + coefficient);
            });
        store_panel(p, block, tile, memory);
        __syncthreads(); // the next product overwrites all this
    }
}

/** The steps over the depth of those tiles only, in order. */
struct live_steps {
    tile_bits tiles;
    unsigned half = 0;

    __device__ unsigned count() const {
        return static_cast<unsigned>(__popcll(tiles)) * (tile_k / score_tile::depth_k);
    }
    /** The first place of the next step, within the panel. */
    __device__ unsigned next() {
        unsigned const at =
            static_cast<unsigned>(__ffsll(static_cast<long long>(tiles)) - 1) * tile_k + half * score_tile::depth_k;
        half ^= 1;
        tiles &= half ? tiles : tiles - 1;
        return at;
    }
};
static_assert(tile_k == 2 * score_tile::depth_k);

/** Adds a tile of the sums, [places of `own`, columns of vectors], to the gradients of the units there. */
__device__ __forceinline__ void add_gradient(problem const& p, std::uint32_t own, unsigned first_column,
                                             score_tile::sums_t const& sums) {
    bool const whole = p.width % 2 == 0 && reinterpret_cast<std::uintptr_t>(p.gradient) % 8 == 0;
#pragma unroll
    for (unsigned down = 0; down != score_tile::downs_k; ++down) {
#pragma unroll
        for (unsigned half = 0; half != 2; ++half) {
            std::uint32_t const place = own * tile_k + score_tile::row_of(down, half);
            if (place >= p.counts[0])
                continue;
            float* const to = p.gradient + std::size_t(p.vector_at[place]) * p.width;
#pragma unroll
            for (unsigned across = 0; across != score_tile::acrosses_k; ++across) {
                unsigned const column = first_column + score_tile::column_of(across);
                float const first = sums[down][across][2 * half], second = sums[down][across][2 * half + 1];
                if (whole && column < p.width) {
                    float2& at = *reinterpret_cast<float2*>(to + column);
                    at = make_float2(at.x + first, at.y + second);
                } else {
                    if (column < p.width)
                        to[column] += first;
                    if (column + 1 < p.width)
                        to[column + 1] += second;
                }
            }
        }
    }
}

/**
 *  The products of the panel with the vectors: a row gets its coefficients times the candidates, a candidate its
 *  coefficients times the rows. A block of threads makes one tile of one of them, over all of the panel's depth.
 *  @param first_side 0: rows, 1: columns; blockIdx.z counts on from it.
 */
__global__ void __launch_bounds__(score_tile::threads_k, 2)
    multiply_panel(problem p, panel_view block, unsigned first_side) {
    extern __shared__ __align__(128) std::byte shared[];
    bool const columns = first_side + blockIdx.z == 1;
    std::uint32_t const own = blockIdx.y;
    if ((columns ? block.first_j : block.first_i) + own >= p.tiles || !may_be_live(p, block))
        return;
    tile_bits const others = live_others(p, block, columns, own);
    if (others == 0)
        return;
    unsigned const first_column = blockIdx.x * tile_k;
    std::uint32_t const own_tile = (columns ? block.first_j : block.first_i) + own;
    std::size_t const other_places = std::size_t(columns ? block.first_i : block.first_j) * tile_k;
    std::size_t const end = p.panel_stride;
    operand const panel{p.panel, p.panel_stride}, vectors{p.vectors + other_places * p.padded_width, p.padded_width};

    score_tile::sums_t sums = {};
    live_steps steps{others};
    unsigned const count = steps.count();
    auto const load_vectors = [&](std::uint32_t to, unsigned depth) {
        score_tile::load<contiguous::rows, tile_k>(to, vectors, first_column, p.padded_width, depth, end);
    };
    if (columns) {
        score_tile::multiply<contiguous::rows, contiguous::rows>(
            sums, shared_place(shared), count, [&](std::uint32_t left, std::uint32_t right) {
                unsigned const depth = steps.next();
                score_tile::load<contiguous::rows, tile_k>(left, panel, own * tile_k, end, depth, end);
                load_vectors(right, depth);
            });
    } else {
        score_tile::multiply<contiguous::depth, contiguous::rows>(
            sums, shared_place(shared), count, [&](std::uint32_t left, std::uint32_t right) {
                unsigned const depth = steps.next();
                score_tile::load<contiguous::depth, tile_k>(left, panel, own * tile_k, end, depth, end);
                load_vectors(right, depth);
            });
    }
    add_gradient(p, own_tile, first_column, sums);
    if (blockIdx.x == 0) {
        static_assert(score_tile::threads_k == tile_k);
        merge_sums(p, block, columns, own, threadIdx.x, ambient_others(p, block, columns, own));
    }
}

void fill(stream const& stream, problem const& p, panel_view const& block, std::uint32_t down, std::uint32_t across) {
#if UFORM_WITH_SM90
    if (sm90::serves_scores(stream, p))
        return sm90::fill_panel(stream, p, block);
#endif
    auto const kernel = p.form == uform_pair_loss_form_sigmoid_k ? fill_panel<true> : fill_panel<false>;
    unsigned const most = 2 * static_cast<unsigned>(stream.multiprocessors);
    launch(stream, kernel, std::min(most, down * across), score_tile::threads_k, score_tile::shared_bytes_k, p, block);
}

void multiply(stream const& stream, problem const& p, panel_view const& block, std::uint32_t down,
              std::uint32_t across) {
#if UFORM_WITH_SM90
    if (sm90::serves(stream))
        return sm90::multiply_panel(stream, p, block);
#endif
    bool const twice = block.first_i == block.first_j; // rows and columns are the same places: one after the other
    dim3 const grid(ceil_divide(p.width, tile_k), std::max(down, across), twice ? 1 : 2);
    for (unsigned side = 0; side != (twice ? 2u : 1u); ++side)
        launch(stream, multiply_panel, grid, score_tile::threads_k, score_tile::shared_bytes_k, p, block, side);
}

constexpr unsigned zero_threads_k = 256;

__global__ void __launch_bounds__(zero_threads_k) zero_gradient(problem p) {
    std::size_t const count = std::size_t(p.counts[0]) * p.width;
    for (std::size_t i = std::size_t(blockIdx.x) * zero_threads_k + threadIdx.x; i < count;
         i += std::size_t(gridDim.x) * zero_threads_k)
        p.gradient[i] = 0;
}

} // namespace

void pull(stream const& stream, problem const& p, extents const&) {
    unsigned const most = static_cast<unsigned>(stream.multiprocessors);
    if (!p.indices) // else what is there already is added to
        launch(stream, zero_gradient, most * 8, zero_threads_k, 0, p);
    std::uint32_t const side = p.panel_side;
    for (std::uint32_t i = 0; i < p.tiles; i += side) {
        for (std::uint32_t j = i; j < p.tiles; j += side) {
            panel_view const block{i, j, side};
            std::uint32_t const down = std::min(side, p.tiles - i), across = std::min(side, p.tiles - j);
            fill(stream, p, block, down, across);
            multiply(stream, p, block, down, across);
        }
    }
}

} // namespace uform::vram::pairs

#include <algorithm>

#include "vram/launch.cuh"
#include "vram/pairs_tiles.cuh"

namespace uform::vram::pairs {

namespace {

/** Where offsets of a tile lie no further apart, one power serves both directions without one of them becoming zero. */
constexpr float shared_range_k = 60;

/** Shared memory of a tile after its product: it takes the place of the product's stages. */
struct backward_memory {
    __nv_bfloat16 coefficients[tile_k * tile_k]; // laid by `value_place`
    row_terms row_side[tile_k], column_side[tile_k];
    coefficient_sums by_row[score_tile::warps_across_k][tile_k];
    coefficient_sums by_column[score_tile::warps_down_k][tile_k];
    float extremes[score_tile::threads_k / warp_k][2];
    exclusions excluded;
};
static_assert(sizeof(backward_memory) <= score_tile::shared_bytes_k);

/** Two blocks of tiles: a panel's rows and its columns. */
struct block_view {
    std::uint32_t first_i, first_j; // tiles
    std::uint32_t side;             // in memory

    __device__ std::size_t sums_at(unsigned direction, std::uint32_t other, std::uint32_t place) const {
        return (std::size_t(direction) * side + other) * side * tile_k + place;
    }
};

/** Whether a tile of the block holds coefficients, for a tile that is there. */
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

__device__ __forceinline__ void put(backward_memory& memory, unsigned row, unsigned column, float first, float second) {
    *reinterpret_cast<__nv_bfloat162*>(&memory.coefficients[value_place(row, column, tile_k)]) =
        __floats2bfloat162_rn(first, second);
}

/** One row's or column's sums over this thread's part of it. */
struct running_sums {
    float plain = 0, by_dot = 0;

    __device__ __forceinline__ void add(float coefficient, float dot) {
        plain += coefficient;
        by_dot = fmaf(coefficient, dot, by_dot);
    }
};

__device__ __forceinline__ void store_row(backward_memory& memory, unsigned row, running_sums sums, float factor) {
    sums.plain = over_row(sums.plain, add{}) * factor, sums.by_dot = over_row(sums.by_dot, add{}) * factor;
    if (score_tile::lane() % 4 == 0)
        memory.by_row[score_tile::warp_across()][row] = {sums.plain, sums.by_dot};
}

__device__ __forceinline__ void store_column(backward_memory& memory, unsigned column, running_sums sums,
                                             float factor) {
    sums.plain = over_column(sums.plain, add{}) * factor, sums.by_dot = over_column(sums.by_dot, add{}) * factor;
    if (score_tile::lane() < 4)
        memory.by_column[score_tile::warp_down()][column] = {sums.plain, sums.by_dot};
}

/**
 *  Softmax forms where both directions hold every pair and one temperature rules: 2^(x + a) + 2^(x + b) is
 *  2^(x - most) (2^(a + most) + 2^(b + most)), one power a pair. Factors lie in the terms' `weight`.
 */
__device__ __forceinline__ void take_shared(score_tile::sums_t const& dots, float most, backward_memory& memory) {
    float const slope = memory.row_side[0].slope;
    running_sums columns[score_tile::acrosses_k][2];
#pragma unroll
    for (unsigned down = 0; down != score_tile::downs_k; ++down) {
#pragma unroll
        for (unsigned half = 0; half != 2; ++half) {
            unsigned const row = score_tile::row_of(down, half);
            float const row_weight = memory.row_side[row].weight;
            running_sums sums;
#pragma unroll
            for (unsigned across = 0; across != score_tile::acrosses_k; ++across) {
                unsigned const column = score_tile::column_of(across);
                float coefficients[2];
#pragma unroll
                for (unsigned i = 0; i != 2; ++i) {
                    float const dot = dots[down][across][2 * half + i];
                    float const power = power_of_2(fmaf(dot, slope, -most));
                    sums.add(power, dot);
                    columns[across][i].add(power, dot);
                    coefficients[i] = power * (row_weight + memory.column_side[column + i].weight);
                }
                put(memory, row, column, coefficients[0], coefficients[1]);
            }
            store_row(memory, row, sums, row_weight);
        }
    }
#pragma unroll
    for (unsigned across = 0; across != score_tile::acrosses_k; ++across)
#pragma unroll
        for (unsigned i = 0; i != 2; ++i) {
            unsigned const column = score_tile::column_of(across) + i;
            store_column(memory, column, columns[across][i], memory.column_side[column].weight);
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
template <bool sigmoid_ak>
__device__ __forceinline__ void take_each(score_tile::sums_t const& dots, bool masked, backward_memory& memory) {
    running_sums columns[score_tile::acrosses_k][2];
#pragma unroll
    for (unsigned down = 0; down != score_tile::downs_k; ++down) {
#pragma unroll
        for (unsigned half = 0; half != 2; ++half) {
            unsigned const row = score_tile::row_of(down, half);
            row_terms const of_row = memory.row_side[row];
            running_sums sums;
#pragma unroll
            for (unsigned across = 0; across != score_tile::acrosses_k; ++across) {
                unsigned const column = score_tile::column_of(across);
                float coefficients[2];
#pragma unroll
                for (unsigned i = 0; i != 2; ++i) {
                    float const dot = dots[down][across][2 * half + i];
                    bool const forth = !(masked && has_bit(memory.excluded.forth[row], column + i));
                    bool const back = !(masked && has_bit(memory.excluded.back[column + i], row));
                    float const of_forth = forth ? coefficient_of<sigmoid_ak>(of_row, dot) : 0;
                    float const of_back = back ? coefficient_of<sigmoid_ak>(memory.column_side[column + i], dot) : 0;
                    sums.add(of_forth, dot);
                    columns[across][i].add(of_back, dot);
                    coefficients[i] = of_forth + of_back;
                }
                put(memory, row, column, coefficients[0], coefficients[1]);
            }
            store_row(memory, row, sums, 1);
        }
    }
#pragma unroll
    for (unsigned across = 0; across != score_tile::acrosses_k; ++across)
#pragma unroll
        for (unsigned i = 0; i != 2; ++i)
            store_column(memory, score_tile::column_of(across) + i, columns[across][i], 1);
}

/** Answers whether the tile's offsets lie close enough for `take_shared`, and then puts its factors beside them. Every
 *  thread of the block takes part. @param most Minus the least offset. */
__device__ __forceinline__ bool share_powers(backward_memory& memory, float& most) {
    unsigned const own = threadIdx.x;
    float const of_row = -memory.row_side[own].offset, of_column = -memory.column_side[own].offset;
    float const high = over_column(over_row(fmaxf(of_row, of_column), largest{}), largest{});
    float const low = over_column(over_row(fminf(of_row, of_column), least{}), least{});
    if (own % warp_k == 0)
        memory.extremes[own / warp_k][0] = high, memory.extremes[own / warp_k][1] = low;
    __syncthreads();
    most = memory.extremes[0][0];
    float least_of_all = memory.extremes[0][1];
    for (unsigned warp = 1; warp != score_tile::threads_k / warp_k; ++warp) {
        most = fmaxf(most, memory.extremes[warp][0]);
        least_of_all = fminf(least_of_all, memory.extremes[warp][1]);
    }
    if (!(most - least_of_all <= shared_range_k))
        return false;
    memory.row_side[own].weight = power_of_2(most - of_row);
    memory.column_side[own].weight = power_of_2(most - of_column);
    __syncthreads();
    return true;
}

/** Adds the coefficients of named pairs: the rows' own, then the columns' in the rows. */
__device__ __forceinline__ void add_named(problem const& p, tile_pair const& tile, backward_memory& memory) {
    unsigned const own = threadIdx.x;
    auto const add_at = [&](unsigned row, unsigned column, float coefficient) {
        __nv_bfloat16& at = memory.coefficients[value_place(row, column, tile_k)];
        at = __float2bfloat16(__bfloat162float(at) + coefficient);
    };
    edge_range const forth = edges_in_tile(p, tile.i * tile_k + own, tile.j);
    for (std::uint32_t edge = forth.first; edge != forth.last; ++edge)
        add_at(own, p.named_places[edge] % tile_k, p.named_coefficients[edge]);
    __syncthreads();
    if (tile.diagonal())
        return;
    edge_range const back = edges_in_tile(p, tile.j * tile_k + own, tile.i);
    for (std::uint32_t edge = back.first; edge != back.last; ++edge)
        add_at(p.named_places[edge] % tile_k, own, p.named_coefficients[edge]);
    __syncthreads();
}

__device__ __forceinline__ void store_panel(problem const& p, block_view const& block, tile_pair const& tile,
                                            backward_memory const& memory) {
    constexpr unsigned chunks_k = tile_k / lanes_k;
    __nv_bfloat16* const to =
        p.panel + std::size_t(tile.i - block.first_i) * tile_k * p.panel_stride + (tile.j - block.first_j) * tile_k;
    for (unsigned at = threadIdx.x; at < tile_k * chunks_k; at += score_tile::threads_k) {
        unsigned const row = at / chunks_k, column = at % chunks_k * lanes_k;
        store8(to + std::size_t(row) * p.panel_stride + column,
               load8(&memory.coefficients[value_place(row, column, tile_k)]));
    }
}

/** Ambient coefficients of a tile and their sums. */
template <bool sigmoid_ak>
__device__ __forceinline__ void take_ambient(problem const& p, block_view const& block, tile_pair const& tile,
                                             std::byte* shared) {
    backward_memory& memory = *reinterpret_cast<backward_memory*>(shared);
    score_tile::sums_t dots;
    multiply_tile(p, tile, shared_place(shared), dots);
    unsigned const own = threadIdx.x;
    memory.row_side[own] = p.terms[tile.i * tile_k + own];
    memory.column_side[own] = p.terms[tile.j * tile_k + own];
    bool const plain = tile.is_plain();
    if (!plain)
        exclude_all(p, tile, memory.excluded);
    __syncthreads();
    float most = 0;
    if (!sigmoid_ak && plain && p.groups == 1 && share_powers(memory, most))
        take_shared(dots, most, memory);
    else
        take_each<sigmoid_ak>(dots, !plain, memory);
    __syncthreads();
    coefficient_sums row{0, 0}, column{0, 0};
    for (unsigned warp = 0; warp != score_tile::warps_across_k; ++warp)
        row.plain += memory.by_row[warp][own].plain, row.by_dot += memory.by_row[warp][own].by_dot;
    for (unsigned warp = 0; warp != score_tile::warps_down_k; ++warp)
        column.plain += memory.by_column[warp][own].plain, column.by_dot += memory.by_column[warp][own].by_dot;
    std::uint32_t const i = tile.i - block.first_i, j = tile.j - block.first_j;
    p.block_coefficients[block.sums_at(0, j, i * tile_k + own)] = row;
    p.block_coefficients[block.sums_at(1, i, j * tile_k + own)] = column;
}

/** The coefficients of a block's pairs, both directions together, into the panel. */
template <bool sigmoid_ak>
__global__ void __launch_bounds__(score_tile::threads_k, 2) fill_panel(problem p, block_view block) {
    extern __shared__ __align__(128) std::byte shared[];
    backward_memory& memory = *reinterpret_cast<backward_memory*>(shared);
    if (!may_be_live(p, block))
        return;
    std::uint32_t const down = min(block_tiles_k, p.tiles - block.first_i);
    std::uint32_t const across = min(block_tiles_k, p.tiles - block.first_j);
    for (std::uint32_t at = blockIdx.x; at < down * across; at += gridDim.x) {
        std::uint32_t const i = block.first_i + at / across, j = block.first_j + at % across;
        if (!is_live(p, i, j))
            continue;
        tile_pair const tile(p, i, j);
        if (tile.has_ambient()) {
            take_ambient<sigmoid_ak>(p, block, tile, shared);
        } else {
            for (unsigned at_value = threadIdx.x * lanes_k; at_value < tile_k * tile_k;
                 at_value += score_tile::threads_k * lanes_k)
                store8(&memory.coefficients[at_value], zero8());
            __syncthreads();
        }
        if (tile.named)
            add_named(p, tile, memory);
        store_panel(p, block, tile, memory);
        __syncthreads(); // the next product overwrites all this
    }
}

/** Which of a block's tiles beside one another hold coefficients: a bit for each that feeds this block of threads. */
__device__ __forceinline__ std::uint32_t live_others(problem const& p, block_view const& block, bool columns,
                                                     std::uint32_t own) {
    std::uint32_t const other = threadIdx.x % warp_k;
    std::uint32_t const i = block.first_i + (columns ? other : own), j = block.first_j + (columns ? own : other);
    return __ballot_sync(whole_warp_k, is_live(p, i, j));
}

/** The steps over the depth of those tiles only, in order. */
struct live_steps {
    std::uint32_t tiles;
    unsigned half = 0;

    __device__ unsigned count() const { return __popc(tiles) * (tile_k / score_tile::depth_k); }
    /** The first place of the next step, within its block. */
    __device__ unsigned next() {
        unsigned const at = (__ffs(tiles) - 1) * tile_k + half * score_tile::depth_k;
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
            float* const to = p.gradient + std::size_t(p.unit_at[place]) * p.width;
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

/** Adds the sums of a tile's rows or columns over the block to those of their places, in the order of tiles. */
__device__ __forceinline__ void merge_sums(problem const& p, block_view const& block, bool columns, std::uint32_t own,
                                           std::uint32_t others) {
    std::uint32_t const within = own * tile_k + threadIdx.x;
    std::uint32_t const first_i = block.first_i, first_j = block.first_j;
    coefficient_sums& to = p.coefficients[std::size_t(columns ? first_j : first_i) * tile_k + within];
    coefficient_sums sum = to;
    for (; others; others &= others - 1) {
        std::uint32_t const other = __ffs(others) - 1;
        if (!tile_pair(p, first_i + (columns ? other : own), first_j + (columns ? own : other)).has_ambient())
            continue;
        coefficient_sums const part = p.block_coefficients[block.sums_at(columns, other, within)];
        sum.plain += part.plain, sum.by_dot += part.by_dot;
    }
    to = sum;
}

/**
 *  The products of the panel with the vectors: a row gets its coefficients times the candidates, a candidate its
 *  coefficients times the rows. A block of threads makes one tile of one of them, over all of the panel's depth.
 *  @param first_side 0: rows, 1: columns; blockIdx.z counts on from it.
 */
__global__ void __launch_bounds__(score_tile::threads_k, 2)
    multiply_panel(problem p, block_view block, unsigned first_side) {
    extern __shared__ __align__(128) std::byte shared[];
    bool const columns = first_side + blockIdx.z == 1;
    std::uint32_t const own = blockIdx.y;
    if ((columns ? block.first_j : block.first_i) + own >= p.tiles || !may_be_live(p, block))
        return;
    std::uint32_t const others = live_others(p, block, columns, own);
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
    if (blockIdx.x == 0)
        merge_sums(p, block, columns, own, others);
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
    launch(stream, zero_gradient, most * 8, zero_threads_k, 0, p);
    unsigned const side = p.panel_stride / tile_k;
    auto const fill = p.form == uform_pair_loss_form_sigmoid_k ? fill_panel<true> : fill_panel<false>;
    for (std::uint32_t i = 0; i < p.tiles; i += block_tiles_k) {
        for (std::uint32_t j = i; j < p.tiles; j += block_tiles_k) {
            block_view const block{i, j, side};
            std::uint32_t const down = std::min(block_tiles_k, p.tiles - i),
                                across = std::min(block_tiles_k, p.tiles - j);
            launch(stream, fill, std::min(2 * most, down * across), score_tile::threads_k, score_tile::shared_bytes_k,
                   p, block);
            dim3 grid(ceil_divide(p.width, tile_k), std::max(down, across), i == j ? 1 : 2);
            launch(stream, multiply_panel, grid, score_tile::threads_k, score_tile::shared_bytes_k, p, block, 0u);
            if (i == j) // rows and columns are the same places: one after the other
                launch(stream, multiply_panel, grid, score_tile::threads_k, score_tile::shared_bytes_k, p, block, 1u);
        }
    }
}

} // namespace uform::vram::pairs

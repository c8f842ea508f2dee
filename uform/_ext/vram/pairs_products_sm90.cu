#include "vram/pairs_sm90.h"

#include <algorithm>

#include "vram/launch.cuh"
#include "vram/tensor_map.h"
#include "vram/wgmma.cuh"

namespace uform::vram::pairs::sm90 {

namespace {

using hopper::Major;

constexpr unsigned stages_k = 4;
constexpr unsigned groups_k = 2; // each has 64 of the tile's rows
constexpr unsigned threads_k = (1 + groups_k) * hopper::group_k;
constexpr unsigned left_bytes_k = tile_k / hopper::box_k * hopper::box_bytes_k;
static_assert(tile_k == groups_k * hopper::box_k);

/** @tparam columns_ak Of the vectors, in a block of threads. */
template <unsigned columns_ak> struct product_memory {
    std::byte left[stages_k][left_bytes_k];
    std::byte right[stages_k][columns_ak / hopper::box_k][hopper::box_bytes_k];
    hopper::barrier full[stages_k], empty[stages_k];
};

/** The steps over the depth: the halves of the panel's tiles that hold coefficients. */
struct panel_steps {
    tile_bits tiles; // of either block of the cluster
    tile_bits own;   // of this one
    unsigned half = 0;

    __device__ bool done() const { return tiles == 0; }
    __device__ unsigned count() const { return 2 * static_cast<unsigned>(__popcll(tiles)); }
    __device__ unsigned next() const { return static_cast<unsigned>(__ffsll(static_cast<long long>(tiles)) - 1); }
    /** The first place, within the panel. */
    __device__ unsigned place() const { return next() * tile_k + half * hopper::box_k; }
    /** Whether this block's tile holds coefficients there. */
    __device__ bool counts() const { return own >> next() & 1; }
    __device__ void advance() {
        half ^= 1;
        tiles &= half ? tiles : tiles - 1;
    }
};

/** Begins the copies of a step: the panel's boxes for this block, half of the vectors' boxes for both of the cluster.
 *  @param depth The step's first place within the panel. @param counts Else zeros are copied: the panel holds nothing.
 */
template <bool columns_side_ak, unsigned columns_ak>
__device__ __forceinline__ void copy_step(product_memory<columns_ak>& memory, unsigned stage, unsigned rank,
                                          CUtensorMap const& panel, CUtensorMap const& vectors, std::uint32_t own,
                                          unsigned depth, bool counts, std::uint32_t other_places,
                                          unsigned first_column, int outside) {
    using namespace hopper;
    constexpr unsigned rights_k = columns_ak / box_k;
    memory.full[stage].expect(left_bytes_k + rights_k * box_bytes_k);
    for (unsigned box = 0; box != groups_k; ++box) {
        int const side = static_cast<int>(own * tile_k + box * box_k);
        int const along = counts ? static_cast<int>(depth) : outside;
        copy_box(shared_place(memory.left[stage]) + box * box_bytes_k, panel, columns_side_ak ? side : along,
                 columns_side_ak ? along : side, memory.full[stage]);
    }
    for (unsigned box = rank * (rights_k / 2); box != (rank + 1) * (rights_k / 2); ++box)
        copy_box_to_both(shared_place(memory.right[stage][box]), vectors, static_cast<int>(first_column + box * box_k),
                         static_cast<int>(other_places + depth), memory.full[stage]);
}

/** Adds a pair of values, whole, in the L2 cache. */
__device__ __forceinline__ void add_pair(float* to, float first, float second) {
    asm volatile("red.relaxed.gpu.global.add.v2.f32 [%0], {%1, %2};" ::"l"(to), "f"(first), "f"(second) : "memory");
}

/** Adds a group's sums, [64 places, columns of vectors], to the gradients of the units there. A kernel adds to a
 *  place once, or twice by the same thread: the order is fixed. */
template <unsigned columns_ak>
__device__ __forceinline__ void add_gradient(problem const& p, std::uint32_t first_place, unsigned first_column,
                                             hopper::sums_of<columns_ak> const& sums) {
    bool const whole = p.width % 2 == 0 && reinterpret_cast<std::uintptr_t>(p.gradient) % 8 == 0;
    bool const inside = whole && first_column + columns_ak <= p.width;
    unsigned const lane = threadIdx.x % warp_k, warp = threadIdx.x % hopper::group_k / warp_k;
    std::uint32_t const upper = first_place + warp * 16 + lane / 4, places = p.counts[0];
    // Before anything is added, behind which reads would wait.
    std::uint32_t const rows[] = {p.vector_at[min(upper, places - 1)], p.vector_at[min(upper + 8, places - 1)]};
#pragma unroll
    for (unsigned half = 0; half != 2; ++half) {
        if (upper + half * 8 >= places)
            continue;
        unsigned const column = first_column + lane % 4 * 2;
        float* const to = p.gradient + std::size_t(rows[half]) * p.width + column;
        if (inside) { // a straight line of instructions, each run but once: they must be fetched, too
#pragma unroll
            for (unsigned across = 0; across != columns_ak / 8; ++across)
                add_pair(to + across * 8, sums[across][2 * half], sums[across][2 * half + 1]);
            continue;
        }
#pragma unroll
        for (unsigned across = 0; across != columns_ak / 8; ++across) {
            bool const first = column + across * 8 < p.width, second = column + across * 8 + 1 < p.width;
            if (whole && first)
                add_pair(to + across * 8, sums[across][2 * half], sums[across][2 * half + 1]);
            if (!whole && first)
                to[across * 8] += sums[across][2 * half];
            if (!whole && second)
                to[across * 8 + 1] += sums[across][2 * half + 1];
        }
    }
}

/** The steps of a side's tile `own`. Every thread of a warp takes part. */
__device__ __forceinline__ panel_steps steps_of(problem const& p, panel_view const& block, bool columns,
                                                std::uint32_t own) {
    tile_bits const others = live_others(p, block, columns, own);
    return {others | live_others(p, block, columns, own ^ 1), others};
}

/** Copies what `multiply_side` takes, by one thread. */
template <bool columns_side_ak, unsigned columns_ak>
__device__ __forceinline__ void copy_side(problem const& p, panel_view const& block, panel_steps steps, unsigned rank,
                                          CUtensorMap const& panel, CUtensorMap const& vectors,
                                          product_memory<columns_ak>& memory, hopper::ring_place<stages_k>& at) {
    std::uint32_t const other_places = (columns_side_ak ? block.first_i : block.first_j) * tile_k;
    for (; !steps.done(); steps.advance(), at.advance()) {
        memory.empty[at.stage].wait(at.parity ^ 1);
        copy_step<columns_side_ak>(memory, at.stage, rank, panel, vectors, blockIdx.y, steps.place(), steps.counts(),
                                   other_places, blockIdx.x * columns_ak, static_cast<int>(p.panel_stride));
    }
}

/** One tile of a product, [places of the block's tile, columns of vectors], over all of the panel's depth, by the
 *  groups that multiply. @param add Whether it holds anything. */
template <bool columns_side_ak, unsigned columns_ak>
__device__ __forceinline__ void multiply_side(problem const& p, panel_view const& block, unsigned steps, bool add,
                                              product_memory<columns_ak>& memory, hopper::ring_place<stages_k>& at) {
    using namespace hopper;
    constexpr Major left_k = columns_side_ak ? Major::MN : Major::K;
    if (steps == 0)
        return;
    unsigned const group = threadIdx.x / group_k - 1;
    sums_of<columns_ak> sums = {};
    auto const release = [&](unsigned stage) {
        if (threadIdx.x % group_k < 2)
            memory.empty[stage].arrive(threadIdx.x % group_k);
    };
    constexpr unsigned none_k = stages_k;
    unsigned before = none_k;
    for (unsigned step = 0; step != steps; ++step, at.advance()) {
        memory.full[at.stage].wait(at.parity);
        std::uint32_t const left = shared_place(memory.left[at.stage]) + group * box_bytes_k;
        std::uint32_t const right = shared_place(memory.right[at.stage]);
        fence_sums(sums);
        products_begin();
#pragma unroll
        for (unsigned depth = 0; depth != box_k / depth_k; ++depth)
            multiply_add<left_k, Major::MN>(sums, operand_at<left_k>(left + depth * depth_step_k<left_k>),
                                            by_rows(right + depth * depth_step_k<Major::MN>), true);
        products_commit();
        fence_sums(sums);
        if (before != none_k) {
            products_wait<1>();
            release(before);
        }
        before = at.stage;
    }
    products_wait<0>();
    fence_sums(sums);
    release(before);
    std::uint32_t const tile = (columns_side_ak ? block.first_j : block.first_i) + blockIdx.y;
    if (add)
        add_gradient<columns_ak>(p, tile * tile_k + group * box_k, blockIdx.x * columns_ak, sums);
}

/**
 *  The products of the panel with the vectors: a row gets its coefficients times the candidates, a candidate its
 *  coefficients times the rows. Two blocks of threads, a cluster, take tiles below each other.
 *  @param sides 2: of rows, then of columns. 1: of one of them, by blockIdx.z.
 */
template <unsigned columns_ak>
__global__ void __launch_bounds__(threads_k, 1)
    multiply_tiles(problem p, panel_view block, unsigned sides, __grid_constant__ CUtensorMap const panel,
                   __grid_constant__ CUtensorMap const vectors) {
    using namespace hopper;
    extern __shared__ __align__(1024) std::byte shared[];
    auto& memory = *reinterpret_cast<product_memory<columns_ak>*>(shared);
    let_later_kernels_begin();
    if (!may_be_live(p, block))
        return depend_on_earlier_kernels();
    unsigned const rank = block_of_cluster();
    std::uint32_t const own = blockIdx.y;
    panel_steps rows{0, 0}, columns{0, 0};
    if (sides == 2 || blockIdx.z == 0)
        rows = steps_of(p, block, false, own);
    if (sides == 2 || blockIdx.z == 1)
        columns = steps_of(p, block, true, own);
    depend_on_earlier_kernels();
    if (rows.done() && columns.done())
        return;
    if (threadIdx.x == 0) {
        prefetch(panel), prefetch(vectors);
        for (unsigned stage = 0; stage != stages_k; ++stage)
            memory.full[stage].init(1), memory.empty[stage].init(2 * groups_k);
        barriers_are_ready();
    }
    __syncthreads();
    cluster_meet();

    ring_place<stages_k> at;
    if (threadIdx.x < group_k) {
        give_registers<40>();
        if (threadIdx.x >= warp_k && blockIdx.x == 0) { // warps that have nothing else to do
            for (unsigned side = 0; side != 2; ++side) {
                tile_bits const ambient = ambient_others(p, block, side, own);
                if ((side ? columns : rows).own != 0)
                    for (unsigned within = threadIdx.x - warp_k; within < tile_k; within += group_k - warp_k)
                        merge_sums(p, block, side, own, within, ambient);
            }
        }
        if (threadIdx.x == 0) {
            copy_side<false>(p, block, rows, rank, panel, vectors, memory, at);
            copy_side<true>(p, block, columns, rank, panel, vectors, memory, at);
        }
    } else {
        take_registers<232>();
        multiply_side<false>(p, block, rows.count(), rows.own != 0, memory, at);
        multiply_side<true>(p, block, columns.count(), columns.own != 0, memory, at);
    }
    __syncwarp();
    cluster_meet(); // no block leaves while the other copies into it, or arrives at its barriers
}

template <unsigned columns_ak> void multiply(stream const& stream, problem const& p, panel_view const& block) {
    CUtensorMap const panel = tensor_map_of(stream, p.panel, p.panel_stride, p.panel_stride, p.panel_stride);
    CUtensorMap const vectors =
        tensor_map_of(stream, p.vectors, std::size_t(p.tiles) * tile_k, p.padded_width, p.padded_width);
    unsigned const down = std::min(block.side, p.tiles - block.first_i),
                   across = std::min(block.side, p.tiles - block.first_j);
    unsigned const tiles = ceil_divide(std::max(down, across), 2u) * 2, columns = ceil_divide(p.width, columns_ak);
    unsigned const most = static_cast<unsigned>(stream.multiprocessors), side = tiles * columns;
    // Rows and columns of the same places must follow each other. Others may, where that takes no longer: begun once.
    bool const both = block.first_i == block.first_j || 2 * ceil_divide(side, most) <= ceil_divide(2 * side, most);
    launch_clusters(stream, multiply_tiles<columns_ak>, beginning::early_k, dim3(1, 2),
                    dim3(columns, tiles, both ? 1 : 2), threads_k, sizeof(product_memory<columns_ak>), p, block,
                    both ? 2u : 1u, panel, vectors);
}

} // namespace

void multiply_panel(stream const& stream, problem const& p, panel_view const& block) {
    if (p.padded_width <= 128)
        multiply<128>(stream, p, block);
    else
        multiply<256>(stream, p, block);
}

} // namespace uform::vram::pairs::sm90

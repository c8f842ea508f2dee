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
    std::uint32_t tiles; // of either block of the cluster
    std::uint32_t own;   // of this one
    unsigned half = 0;

    __device__ bool done() const { return tiles == 0; }
    /** The first place, within the panel. */
    __device__ unsigned place() const { return (__ffs(tiles) - 1) * tile_k + half * hopper::box_k; }
    /** Whether this block's tile holds coefficients there. */
    __device__ bool counts() const { return own >> (__ffs(tiles) - 1) & 1; }
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

/** Adds a group's sums, [64 places, columns of vectors], to the gradients of the units there. A kernel adds once to a
 *  place, so that the order is that of the kernels. */
template <unsigned columns_ak>
__device__ __forceinline__ void add_gradient(problem const& p, std::uint32_t first_place, unsigned first_column,
                                             hopper::sums_of<columns_ak> const& sums) {
    bool const whole = p.width % 2 == 0 && reinterpret_cast<std::uintptr_t>(p.gradient) % 8 == 0;
    unsigned const lane = threadIdx.x % warp_k, warp = threadIdx.x % hopper::group_k / warp_k;
#pragma unroll
    for (unsigned half = 0; half != 2; ++half) {
        std::uint32_t const place = first_place + warp * 16 + half * 8 + lane / 4;
        if (place >= p.counts[0])
            continue;
        float* const to = p.gradient + std::size_t(p.unit_at[place]) * p.width;
#pragma unroll
        for (unsigned across = 0; across != columns_ak / 8; ++across) {
            unsigned const column = first_column + across * 8 + lane % 4 * 2;
            float const first = sums[across][2 * half], second = sums[across][2 * half + 1];
            if (whole) {
                if (column < p.width)
                    add_pair(to + column, first, second);
            } else {
                if (column < p.width)
                    to[column] += first;
                if (column + 1 < p.width)
                    to[column + 1] += second;
            }
        }
    }
}

/** One tile of a product, [places of `own`, columns of vectors], over all of the panel's depth. */
template <bool columns_side_ak, unsigned columns_ak>
__device__ __forceinline__ void multiply_side(problem const& p, block_view const& block, CUtensorMap const& panel,
                                              CUtensorMap const& vectors, product_memory<columns_ak>& memory) {
    using namespace hopper;
    constexpr Major left_k = columns_side_ak ? Major::MN : Major::K;
    unsigned const rank = block_of_cluster();
    std::uint32_t const own = blockIdx.y;
    std::uint32_t const others = live_others(p, block, columns_side_ak, own);
    panel_steps steps{others | live_others(p, block, columns_side_ak, own ^ 1), others};
    if (steps.done())
        return depend_on_earlier_kernels();
    std::uint32_t const own_tile = (columns_side_ak ? block.first_j : block.first_i) + own;
    std::uint32_t const other_places = (columns_side_ak ? block.first_i : block.first_j) * tile_k;
    unsigned const first_column = blockIdx.x * columns_ak;
    depend_on_earlier_kernels();
    if (threadIdx.x == 0) {
        prefetch(panel), prefetch(vectors);
        for (unsigned stage = 0; stage != stages_k; ++stage)
            memory.full[stage].init(1), memory.empty[stage].init(2 * groups_k);
        barriers_are_ready();
    }
    __syncthreads();
    cluster_sync();

    ring_place<stages_k> at;
    if (threadIdx.x < group_k) {
        give_registers<40>();
        if (threadIdx.x >= warp_k && blockIdx.x == 0) { // warps that have nothing else to do
            std::uint32_t const ambient = ambient_others(p, block, columns_side_ak, own);
            if (others != 0)
                for (unsigned within = threadIdx.x - warp_k; within < tile_k; within += group_k - warp_k)
                    merge_sums(p, block, columns_side_ak, own, within, ambient);
        }
        if (threadIdx.x == 0) {
            for (; !steps.done(); steps.advance(), at.advance()) {
                memory.empty[at.stage].wait(at.parity ^ 1);
                copy_step<columns_side_ak>(memory, at.stage, rank, panel, vectors, own, steps.place(), steps.counts(),
                                           other_places, first_column, static_cast<int>(p.panel_stride));
            }
        }
    } else {
        take_registers<232>();
        unsigned const group = threadIdx.x / group_k - 1;
        sums_of<columns_ak> sums = {};
        auto const release = [&](unsigned stage) {
            if (threadIdx.x % group_k < 2)
                memory.empty[stage].arrive(threadIdx.x % group_k);
        };
        constexpr unsigned none_k = stages_k;
        unsigned before = none_k;
        for (; !steps.done(); steps.advance(), at.advance()) {
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
        if (others != 0)
            add_gradient<columns_ak>(p, own_tile * tile_k + group * box_k, first_column, sums);
    }
    __syncwarp();
    cluster_sync(); // no block leaves while the other copies into it, or arrives at its barriers
}

/**
 *  The products of the panel with the vectors: a row gets its coefficients times the candidates, a candidate its
 *  coefficients times the rows. Two blocks of threads, a cluster, take tiles below each other of one of them.
 *  @param first_side 0: rows, 1: columns; blockIdx.z counts on from it.
 */
template <unsigned columns_ak>
__global__ void __launch_bounds__(threads_k, 1)
    multiply_tiles(problem p, block_view block, unsigned first_side, __grid_constant__ CUtensorMap const panel,
                   __grid_constant__ CUtensorMap const vectors) {
    extern __shared__ __align__(1024) std::byte shared[];
    auto& memory = *reinterpret_cast<product_memory<columns_ak>*>(shared);
    hopper::let_later_kernels_begin();
    if (!may_be_live(p, block))
        return hopper::depend_on_earlier_kernels();
    if (first_side + blockIdx.z == 1)
        multiply_side<true, columns_ak>(p, block, panel, vectors, memory);
    else
        multiply_side<false, columns_ak>(p, block, panel, vectors, memory);
}

template <unsigned columns_ak> void multiply(stream const& stream, problem const& p, block_view const& block) {
    CUtensorMap const panel = tensor_map_of(stream, p.panel, p.panel_stride, p.panel_stride, p.panel_stride);
    CUtensorMap const vectors =
        tensor_map_of(stream, p.vectors, std::size_t(p.tiles) * tile_k, p.padded_width, p.padded_width);
    unsigned const down = std::min(block_tiles_k, p.tiles - block.first_i),
                   across = std::min(block_tiles_k, p.tiles - block.first_j);
    bool const twice = block.first_i == block.first_j; // rows and columns are the same places: one after the other
    dim3 const grid(ceil_divide(p.width, columns_ak), ceil_divide(std::max(down, across), 2u) * 2, twice ? 1 : 2);
    for (unsigned side = 0; side != (twice ? 2u : 1u); ++side)
        launch_clusters(stream, multiply_tiles<columns_ak>, beginning::early_k, dim3(1, 2), grid, threads_k,
                        sizeof(product_memory<columns_ak>), p, block, side, panel, vectors);
}

} // namespace

void multiply_panel(stream const& stream, problem const& p, block_view const& block) {
    if (p.padded_width <= 128)
        multiply<128>(stream, p, block);
    else
        multiply<256>(stream, p, block);
}

} // namespace uform::vram::pairs::sm90

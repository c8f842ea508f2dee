#include "vram/pairs_sm90.h"

#include <algorithm>

#include "vram/launch.cuh"
#include "vram/tensor_map.h"
#include "vram/wgmma.cuh"

namespace uform::vram::pairs::sm90 {

namespace {

/** A tile of scores in the registers of one group of four warps: each has 16 rows of either half, and all columns. */
struct group_tile {
    static constexpr unsigned threads_k = hopper::group_k;
    static constexpr unsigned warps_down_k = 4, warps_across_k = 1;
    static constexpr unsigned downs_k = tile_k / hopper::box_k, acrosses_k = tile_k / 8;

    /** As mma_tile has them: [half of the tile][8 columns][rows 0 and 8 below, two columns each]. */
    using sums_t = float[downs_k][acrosses_k][4];

    static __device__ __forceinline__ unsigned thread() { return threadIdx.x % hopper::group_k; }
    static __device__ __forceinline__ void sync() { hopper::group_sync(); }
    static __device__ __forceinline__ unsigned lane() { return threadIdx.x % warp_k; }
    static __device__ __forceinline__ unsigned warp_down() { return thread() / warp_k; }
    static __device__ __forceinline__ unsigned warp_across() { return 0; }
    static __device__ __forceinline__ unsigned row_of(unsigned down, unsigned half) {
        return down * hopper::box_k + warp_down() * 16 + half * 8 + lane() / 4;
    }
    static __device__ __forceinline__ unsigned column_of(unsigned across) { return across * 8 + lane() % 4 * 2; }
};

/** Forward. */
template <bool sigmoid_ak> struct sum_pass {
    using view_t = span_view;
    using memory_t = sums_memory<group_tile>;
    static constexpr unsigned side_k = span_tiles_k;

    static __device__ bool may_be_live(problem const& p, view_t const& span) {
        return may_hold_ambient(p, span.first_i, span.first_j, span_tiles_k);
    }
    static __device__ bool is_live(problem const& p, std::uint32_t i, std::uint32_t j) {
        return i < p.tiles && j < p.tiles && i <= j && tile_pair(p, i, j).has_ambient();
    }
    static __device__ __forceinline__ void take(problem const& p, view_t const& span, tile_pair const& tile,
                                                group_tile::sums_t& dots, memory_t& memory) {
        sum_tile<sigmoid_ak, group_tile>(p, span, tile, dots, memory);
    }
};

/** Turns four values of four lanes about: lane l gives its value i to lane i, as that one's value l. */
__device__ __forceinline__ void turn_about(std::uint32_t (&values)[4]) {
    unsigned const lane = threadIdx.x;
    auto const exchange = [&](unsigned bit, unsigned low, unsigned high) {
        std::uint32_t const got =
            __shfl_xor_sync(whole_warp_k, lane & bit ? values[low] : values[high], static_cast<int>(bit));
        if (lane & bit)
            values[low] = got;
        else
            values[high] = got;
    };
    exchange(1, 0, 1), exchange(1, 2, 3);
    exchange(2, 0, 2), exchange(2, 1, 3);
}

/** Backward. */
template <bool sigmoid_ak> struct force_pass {
    using view_t = block_view;
    using memory_t = forces_memory<group_tile>;
    static constexpr unsigned side_k = block_tiles_k;

    static __device__ bool may_be_live(problem const& p, view_t const& block) { return pairs::may_be_live(p, block); }
    static __device__ bool is_live(problem const& p, std::uint32_t i, std::uint32_t j) {
        return pairs::is_live(p, i, j);
    }
    static __device__ __forceinline__ void take(problem const& p, view_t const& block, tile_pair const& tile,
                                                group_tile::sums_t& dots, memory_t& memory) {
        if (tile.has_ambient()) {
            take_ambient<sigmoid_ak, group_tile>(p, block, tile, dots, memory);
        } else {
#pragma unroll
            for (auto& down : dots)
#pragma unroll
                for (auto& across : down)
#pragma unroll
                    for (float& dot : across)
                        dot = 0;
        }
        __nv_bfloat16* const panel =
            p.panel + std::size_t(tile.i - block.first_i) * tile_k * p.panel_stride + (tile.j - block.first_j) * tile_k;
        store(dots, panel, p.panel_stride);
        if (!tile.named)
            return;
        group_tile::sync();
        each_named<group_tile>(p, tile, [&](unsigned row, unsigned column, float coefficient) {
            __nv_bfloat16& at = panel[std::size_t(row) * p.panel_stride + column];
            at = __float2bfloat16(__bfloat162float(at) + coefficient);
        });
    }

private:
    /** Four lanes hold 8 columns of a row: of 32 columns at a time, each stores 8. */
    static __device__ __forceinline__ void store(group_tile::sums_t const& values, __nv_bfloat16* panel,
                                                 std::size_t stride) {
#pragma unroll
        for (unsigned down = 0; down != group_tile::downs_k; ++down) {
#pragma unroll
            for (unsigned half = 0; half != 2; ++half) {
                __nv_bfloat16* const row =
                    panel + group_tile::row_of(down, half) * stride + group_tile::lane() % 4 * lanes_k;
#pragma unroll
                for (unsigned first = 0; first != group_tile::acrosses_k; first += 4) {
                    std::uint32_t packed[4];
#pragma unroll
                    for (unsigned i = 0; i != 4; ++i)
                        packed[i] =
                            pack(values[down][first + i][2 * half], values[down][first + i][2 * half + 1]);
                    turn_about(packed);
                    *reinterpret_cast<uint4*>(row + first * 8) =
                        make_uint4(packed[0], packed[1], packed[2], packed[3]);
                }
            }
        }
    }
};

constexpr unsigned stages_k = 4;
constexpr unsigned boxes_k = tile_k / hopper::box_k; // of 64 columns of a tile's vectors
constexpr unsigned steps_k = resident_width_k / hopper::box_k;
constexpr unsigned step_bytes_k = boxes_k * hopper::box_bytes_k;
constexpr unsigned groups_k = 2;
constexpr unsigned threads_k = (1 + groups_k) * hopper::group_k;
constexpr unsigned words_k = span_tiles_k / 32;
static_assert(boxes_k == 2, "either block of a cluster copies one of them");
static_assert(span_tiles_k <= hopper::group_k && block_tiles_k <= span_tiles_k);

template <typename pass_at> struct score_memory {
    std::byte rows[steps_k][step_bytes_k];
    std::byte ring[stages_k][step_bytes_k];
    typename pass_at::memory_t groups[groups_k];
    hopper::barrier rows_there, full[stages_k], empty[stages_k];
    std::uint32_t live[words_k];
};

/** The tiles whose bits are set, in order. */
struct live_tiles {
    std::uint32_t const* words;
    std::uint32_t next = 0;

    /** The next one's place, or the number of bits past the last one. */
    __device__ std::uint32_t take() {
        while (next < words_k * 32) {
            std::uint32_t const rest = words[next / 32] >> next % 32;
            if (rest) {
                next += __ffs(rest);
                return next - 1;
            }
            next = (next / 32 + 1) * 32;
        }
        return words_k * 32;
    }
};

/** The group's product of the block's rows with the columns that come through the ring. Groups take turns: a barrier
 *  tells only the last phase from the one before, so that no group may wait for a later one. */
template <typename pass_at>
__device__ __forceinline__ void multiply(score_memory<pass_at>& memory, unsigned steps, unsigned group,
                                         hopper::ring_place<stages_k>& at, group_tile::sums_t& dots) {
    using namespace hopper;
    auto const release = [&](unsigned stage) {
        if (group_tile::thread() < 2)
            memory.empty[stage].arrive(group_tile::thread());
    };
    std::uint32_t const rows = shared_place(memory.rows), ring = shared_place(memory.ring);
    unsigned before = 0;
    turn_wait(group);
    for (unsigned step = 0; step != steps; ++step) {
        memory.full[at.stage].wait(at.parity);
        std::uint32_t const left = rows + step * step_bytes_k, right = ring + at.stage * step_bytes_k;
#pragma unroll
        for (auto& half : dots)
            fence_sums(half);
        products_begin();
#pragma unroll
        for (unsigned depth = 0; depth != box_k; depth += depth_k)
#pragma unroll
            for (unsigned down = 0; down != group_tile::downs_k; ++down)
                multiply_add<Major::K, Major::K>(dots[down], by_depth(left + down * box_bytes_k + depth * 2),
                                                 by_depth(right + depth * 2), step + depth != 0);
        products_commit();
#pragma unroll
        for (auto& half : dots)
            fence_sums(half);
        if (step != 0) {
            products_wait<1>();
            release(before);
        }
        before = at.stage;
        at.advance();
    }
    turn_give(group ^ 1);
    products_wait<0>();
#pragma unroll
    for (auto& half : dots)
        fence_sums(half);
    release(before);
}

/**
 *  Two blocks of threads, a cluster, take two tiles of rows beside each other, which stay in shared memory; the tiles of
 *  columns pass by, each copied once for both. Two groups of warps take turns at them: while one multiplies, the other
 *  takes exponentials.
 *  @param chunk Tiles of columns of a cluster. @param vectors In places' order.
 */
template <typename pass_at>
__global__ void __launch_bounds__(threads_k, 1)
    score_tiles(problem p, typename pass_at::view_t view, unsigned chunk, __grid_constant__ CUtensorMap const vectors) {
    using namespace hopper;
    extern __shared__ __align__(1024) std::byte shared[];
    auto& memory = *reinterpret_cast<score_memory<pass_at>*>(shared);
    if (!pass_at::may_be_live(p, view))
        return;
    unsigned const rank = block_of_cluster();
    std::uint32_t const upper = view.first_i + blockIdx.z * 2, i = upper + rank;
    std::uint32_t const across = min(pass_at::side_k, p.tiles - view.first_j);
    std::uint32_t const first = blockIdx.y * chunk, count = first < across ? min(chunk, across - first) : 0;
    std::uint32_t const first_j = view.first_j + first;
    if (threadIdx.x < words_k * 32) {
        std::uint32_t const j = first_j + threadIdx.x;
        bool const live =
            threadIdx.x < count && (pass_at::is_live(p, upper, j) || pass_at::is_live(p, upper + 1, j));
        std::uint32_t const word = __ballot_sync(whole_warp_k, live);
        if (threadIdx.x % warp_k == 0)
            memory.live[threadIdx.x / warp_k] = word;
    }
    if (threadIdx.x == 0) {
        prefetch(vectors);
        memory.rows_there.init(1);
        for (unsigned stage = 0; stage != stages_k; ++stage)
            memory.full[stage].init(1), memory.empty[stage].init(2); // a group of either block
        barriers_are_ready();
    }
    __syncthreads();
    cluster_sync();

    unsigned const steps = p.padded_width / box_k;
    live_tiles tiles{memory.live};
    ring_place<stages_k> at;
    if (threadIdx.x < group_k) {
        give_registers<24>();
        if (threadIdx.x == 0) {
            memory.rows_there.expect(steps * step_bytes_k);
            for (unsigned step = 0; step != steps; ++step)
                for (unsigned box = 0; box != boxes_k; ++box)
                    copy_box(shared_place(memory.rows[step]) + box * box_bytes_k, vectors,
                             static_cast<int>(step * box_k), static_cast<int>(i * tile_k + box * box_k),
                             memory.rows_there);
            for (std::uint32_t j = tiles.take(); j != words_k * 32; j = tiles.take()) {
                for (unsigned step = 0; step != steps; ++step) {
                    memory.empty[at.stage].wait(at.parity ^ 1);
                    memory.full[at.stage].expect(step_bytes_k);
                    copy_box_to_both(shared_place(memory.ring[at.stage]) + rank * box_bytes_k, vectors,
                                     static_cast<int>(step * box_k),
                                     static_cast<int>((first_j + j) * tile_k + rank * box_k), memory.full[at.stage]);
                    at.advance();
                }
            }
        }
    } else {
        take_registers<240>();
        unsigned const group = threadIdx.x / group_k - 1;
        memory.rows_there.wait(0);
        if (group == 1)
            turn_give(0);
        unsigned turn = 0;
        for (std::uint32_t j = tiles.take(); j != words_k * 32; j = tiles.take()) {
            if (turn++ % groups_k != group) {
                at.advance(steps);
                continue;
            }
            group_tile::sums_t dots;
            multiply(memory, steps, group, at, dots);
            if (pass_at::is_live(p, i, first_j + j))
                pass_at::take(p, view, tile_pair(p, i, first_j + j), dots, memory.groups[group]);
        }
    }
    __syncwarp();
    cluster_sync(); // no block leaves while the other copies into it, or arrives at its barriers
}

/** Into how many chunks a side's columns are cut, so that few multiprocessors wait for the last ones. */
unsigned count_chunks(unsigned clusters, unsigned pairs, unsigned across) {
    constexpr double start_k = 0.7; // tiles that could be taken while a cluster's rows are copied
    unsigned best = 1;
    double least = 0;
    for (unsigned chunks = 1; chunks <= std::min(across, 16u); ++chunks) {
        double const rounds = ceil_divide(pairs * chunks, clusters);
        double const time = rounds * (ceil_divide(across, chunks) + start_k);
        if (chunks == 1 || time < least)
            least = time, best = chunks;
    }
    return best;
}

template <typename pass_at>
void score(stream const& stream, problem const& p, typename pass_at::view_t const& view) {
    unsigned const down = std::min(pass_at::side_k, p.tiles - view.first_i),
                   across = std::min(pass_at::side_k, p.tiles - view.first_j);
    unsigned const pairs = ceil_divide(down, 2u);
    unsigned const chunks =
        count_chunks(std::max(1u, static_cast<unsigned>(stream.multiprocessors) / 2), pairs, across);
    CUtensorMap const vectors =
        tensor_map_of(stream, p.vectors, std::size_t(p.tiles) * tile_k, p.padded_width, p.padded_width);
    launch_clusters(stream, score_tiles<pass_at>, dim3(2), dim3(2, chunks, pairs), threads_k,
                    sizeof(score_memory<pass_at>), p, view, ceil_divide(across, chunks), vectors);
}

} // namespace

void sum_tiles(stream const& stream, problem const& p, span_view const& span) {
    if (p.form == uform_pair_loss_form_sigmoid_k)
        score<sum_pass<true>>(stream, p, span);
    else
        score<sum_pass<false>>(stream, p, span);
}

void fill_panel(stream const& stream, problem const& p, block_view const& block) {
    if (p.form == uform_pair_loss_form_sigmoid_k)
        score<force_pass<true>>(stream, p, block);
    else
        score<force_pass<false>>(stream, p, block);
}

} // namespace uform::vram::pairs::sm90

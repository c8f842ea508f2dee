#include "vram/pairs_sm90.h"

#include <algorithm>

#include "vram/launch.cuh"
#include "vram/tensor_map.h"
#include "vram/wgmma.cuh"

namespace uform::vram::pairs::sm90 {

namespace {

/**
 *  A tile of scores in the registers of a team of warps, of which each has rows and all columns.
 *  @tparam groups_ak Groups of four warps in a team: one has more registers a thread, two have less to do each.
 */
template <unsigned groups_ak> struct team_tile {
    static constexpr unsigned groups_k = groups_ak;
    static constexpr unsigned threads_k = groups_k * hopper::group_k;
    static constexpr unsigned warps_down_k = threads_k / warp_k, warps_across_k = 1;
    static constexpr unsigned downs_k = tile_k / hopper::box_k / groups_k, acrosses_k = tile_k / 8;

    /** As mma_tile has them: [64 rows of the group's][8 columns][rows 0 and 8 below, two columns each]. */
    using sums_t = float[downs_k][acrosses_k][4];

    /** Which of the block's teams the thread is in: the first group of all copies. */
    static __device__ __forceinline__ unsigned team() { return (threadIdx.x - hopper::group_k) / threads_k; }
    static __device__ __forceinline__ unsigned thread() { return (threadIdx.x - hopper::group_k) % threads_k; }
    static __device__ __forceinline__ unsigned group() { return thread() / hopper::group_k; }
    static __device__ __forceinline__ void sync() { hopper::named_wait<threads_k>(1 + team()); }
    static __device__ __forceinline__ unsigned lane() { return threadIdx.x % warp_k; }
    static __device__ __forceinline__ unsigned warp_down() { return thread() / warp_k; }
    static __device__ __forceinline__ unsigned warp_across() { return 0; }
    static __device__ __forceinline__ unsigned row_of(unsigned down, unsigned half) {
        return (group() * downs_k + down) * hopper::box_k + warp_down() % 4 * 16 + half * 8 + lane() / 4;
    }
    /** Columns are dealt, see `dealt_map_of`: of each 32, a thread has 8 beside each other. */
    static __device__ __forceinline__ unsigned column_of(unsigned across) {
        return across / 4 * 32 + lane() % 4 * 8 + across % 4 * 2;
    }
};

/** Forward. */
template <bool sigmoid_ak> struct sum_pass {
    using view_t = span_view;
    using tile_t = team_tile<1>;
    using memory_t = sums_memory<tile_t>;
    static constexpr unsigned registers_k = 240;
    static constexpr beginning begin_k = beginning::after_k; // the kernels before it let none begin early

    static __device__ bool may_be_live(problem const& p, view_t const& span) {
        return may_hold_ambient(p, span.first_i, span.first_j, span_tiles_k);
    }
    static __device__ bool is_live(tile_pair const& tile) { return tile.i <= tile.j && tile.has_ambient(); }
    using plan_t = float; // see `dot_bound`
    static __device__ float look_ahead(problem const& p, std::uint32_t i, std::uint32_t j) {
        return dot_bound(p, i, j);
    }
    static __device__ __forceinline__ plan_t prepare(problem const& p, tile_pair const& tile, float bound,
                                                     line_terms<tile_t> const& terms, memory_t& memory) {
        prepare_tile<tile_t>(p, tile, terms, memory);
        return bound;
    }
    static __device__ __forceinline__ void take(problem const& p, view_t const& span, tile_pair const& tile,
                                                plan_t bound, tile_t::sums_t& dots, memory_t& memory) {
        sum_tile<sigmoid_ak, tile_t>(p, span, tile, bound, dots, memory);
    }
};

/** Backward. */
template <bool sigmoid_ak> struct force_pass {
    using view_t = panel_view;
    using tile_t = team_tile<1>;
    using memory_t = forces_memory<tile_t>;
    static constexpr unsigned registers_k = 240;
    static constexpr beginning begin_k = beginning::early_k;

    static __device__ bool may_be_live(problem const& p, view_t const& block) { return pairs::may_be_live(p, block); }
    static __device__ bool is_live(tile_pair const& tile) { return pairs::is_live(tile); }
    using plan_t = force_plan;
    static __device__ float look_ahead(problem const& p, std::uint32_t i, std::uint32_t j) {
        return shared_offset(p, i, j);
    }
    static __device__ __forceinline__ plan_t prepare(problem const& p, tile_pair const& tile, float offset,
                                                     line_terms<tile_t> const& terms, memory_t& memory) {
        return prepare_tile<sigmoid_ak, tile_t>(p, tile, terms, offset, memory);
    }
    static __device__ __forceinline__ void take(problem const& p, view_t const& block, tile_pair const& tile,
                                                plan_t const& plan, tile_t::sums_t& dots, memory_t& memory) {
        if (tile.has_ambient()) {
            take_ambient<sigmoid_ak, tile_t>(p, block, tile, plan, dots, memory);
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
        tile_t::sync();
        each_named<tile_t>(p, tile, [&](unsigned row, unsigned column, float coefficient) {
            __nv_bfloat16& at = panel[std::size_t(row) * p.panel_stride + column];
            at = __float2bfloat16(__bfloat162float(at) + coefficient);
        });
    }

private:
    /** Of 32 columns of a row at a time, each of four lanes stores 8. */
    static __device__ __forceinline__ void store(tile_t::sums_t const& values, __nv_bfloat16* panel,
                                                 std::size_t stride) {
        std::uint32_t packed[tile_t::downs_k][2][tile_t::acrosses_k];
#pragma unroll
        for (unsigned down = 0; down != tile_t::downs_k; ++down)
#pragma unroll
            for (unsigned half = 0; half != 2; ++half)
#pragma unroll
                for (unsigned across = 0; across != tile_t::acrosses_k; ++across) {
                    std::uint32_t& one = packed[down][half][across];
                    one = pack(values[down][across][2 * half], values[down][across][2 * half + 1]);
                    asm volatile("" : "+r"(one)); // all before the first store, behind which registers wait to be free
                }
#pragma unroll
        for (unsigned down = 0; down != tile_t::downs_k; ++down) {
#pragma unroll
            for (unsigned half = 0; half != 2; ++half) {
                __nv_bfloat16* const row = panel + tile_t::row_of(down, half) * stride;
#pragma unroll
                for (unsigned first = 0; first != tile_t::acrosses_k; first += 4) {
                    std::uint32_t const* const four = &packed[down][half][first];
                    *reinterpret_cast<uint4*>(row + tile_t::column_of(first)) =
                        make_uint4(four[0], four[1], four[2], four[3]);
                }
            }
        }
    }
};

constexpr unsigned stages_k = 4;
constexpr unsigned boxes_k = tile_k / hopper::box_k; // of 64 columns of a tile's vectors
constexpr unsigned steps_k = resident_width_k / hopper::box_k;
constexpr unsigned step_bytes_k = boxes_k * hopper::box_bytes_k;
constexpr unsigned teams_k = 2;
template <typename pass_at> constexpr unsigned threads_k = hopper::group_k + teams_k * pass_at::tile_t::threads_k;
constexpr unsigned words_k = span_tiles_k / 32;
static_assert(sum_pass<false>::tile_t::threads_k == tile_k && force_pass<false>::tile_t::threads_k == tile_k,
              "a thread has a row and a column");
static_assert(boxes_k == 2, "either block of a cluster copies one of them");
static_assert(span_tiles_k <= hopper::group_k && panel_tiles_k <= span_tiles_k);

template <typename pass_at> struct score_memory {
    std::byte rows[steps_k][step_bytes_k];
    std::byte ring[stages_k][step_bytes_k];
    typename pass_at::memory_t teams[teams_k];
    hopper::barrier rows_there[steps_k], full[stages_k], empty[stages_k];
    std::uint32_t live[words_k];
    std::uint8_t tiles[span_tiles_k]; // packed
    float ahead[span_tiles_k];        // what `look_ahead` answers
};

constexpr std::size_t shared_bytes_of_block_k = 227 * 1024;
static_assert(sizeof(score_memory<sum_pass<false>>) <= shared_bytes_of_block_k);
static_assert(sizeof(score_memory<force_pass<false>>) <= shared_bytes_of_block_k);

/** The tiles whose bits are set, in order. */
struct live_tiles {
    static constexpr std::uint32_t none_k = words_k * 32;
    std::uint32_t const* words;
    std::uint32_t next = 0;

    /** The next one's place, or none_k past the last one. */
    __device__ std::uint32_t take() {
        while (next < none_k) {
            std::uint32_t const rest = words[next / 32] >> next % 32;
            if (rest) {
                next += __ffs(rest);
                return next - 1;
            }
            next = (next / 32 + 1) * 32;
        }
        return none_k;
    }
};

/** The barrier at which a team waits for its turn. */
__device__ __forceinline__ unsigned turn_of(unsigned team) { return 1 + teams_k + team; }

/** The team's product of the block's rows with the columns that come through the ring. Teams take turns: a barrier
 *  tells only the last phase from the one before, so that none may wait for a later one. */
template <typename pass_at>
__device__ __forceinline__ void multiply(score_memory<pass_at>& memory, unsigned steps,
                                         hopper::ring_place<stages_k>& at, typename pass_at::tile_t::sums_t& dots) {
    using namespace hopper;
    using tile = typename pass_at::tile_t;
    auto const fence = [&] {
#pragma unroll
        for (auto& down : dots)
            fence_sums(down);
    };
    auto const release = [&](unsigned stage) {
        unsigned const own = threadIdx.x % group_k;
        if (own < 2)
            memory.empty[stage].arrive(own);
    };
    std::uint32_t const rows = shared_place(memory.rows) + tile::group() * tile::downs_k * box_bytes_k;
    std::uint32_t const ring = shared_place(memory.ring);
    unsigned before = 0;
    named_wait<teams_k * tile::threads_k>(turn_of(tile::team()));
    for (unsigned step = 0; step != steps; ++step) {
        memory.rows_there[step].wait(0);
        memory.full[at.stage].wait(at.parity);
        std::uint32_t const left = rows + step * step_bytes_k, right = ring + at.stage * step_bytes_k;
        fence();
        products_begin();
#pragma unroll
        for (unsigned depth = 0; depth != box_k; depth += depth_k)
#pragma unroll
            for (unsigned down = 0; down != tile::downs_k; ++down)
                multiply_add<Major::K, Major::K>(dots[down], by_depth(left + down * box_bytes_k + depth * 2),
                                                 by_depth(right + depth * 2), step + depth != 0);
        products_commit();
        fence();
        if (step != 0) {
            products_wait<1>();
            release(before);
        }
        before = at.stage;
        at.advance();
    }
    named_arrive<teams_k * tile::threads_k>(turn_of(tile::team() ^ 1));
    products_wait<0>();
    fence();
    release(before);
}

/**
 *  Two blocks of threads, a cluster, take two tiles of rows beside each other, which stay in shared memory; the tiles
 * of columns pass by, each copied once for both. Two teams of warps take turns at them: while one multiplies, the other
 *  takes exponentials.
 *  @param chunk Tiles of columns of a cluster. @param vectors, columns The same, see `dealt_map_of`.
 */
template <typename pass_at>
__global__ void __launch_bounds__(threads_k<pass_at>, 1)
    score_tiles(problem p, typename pass_at::view_t view, unsigned chunk, __grid_constant__ CUtensorMap const vectors,
                __grid_constant__ CUtensorMap const columns) {
    using namespace hopper;
    using tile_t = typename pass_at::tile_t;
    extern __shared__ __align__(1024) std::byte shared[];
    auto& memory = *reinterpret_cast<score_memory<pass_at>*>(shared);
    let_later_kernels_begin();
    if (!pass_at::may_be_live(p, view))
        return depend_on_earlier_kernels();
    unsigned const rank = block_of_cluster();
    std::uint32_t const upper = view.first_i + blockIdx.z * 2, i = upper + rank;
    std::uint32_t const across = min(view.side, p.tiles - view.first_j);
    std::uint32_t const first = blockIdx.y * chunk, count = first < across ? min(chunk, across - first) : 0;
    std::uint32_t const first_j = view.first_j + first;
    unsigned const steps = p.padded_width / box_k;
    if (threadIdx.x == 0) {
        prefetch(vectors), prefetch(columns);
        for (unsigned step = 0; step != steps; ++step)
            memory.rows_there[step].init(1);
        for (unsigned stage = 0; stage != stages_k; ++stage)
            memory.full[stage].init(1), memory.empty[stage].init(2 * tile_t::groups_k); // those of either block
        barriers_are_ready();
        for (unsigned step = 0; step != steps; ++step) {
            memory.rows_there[step].expect(step_bytes_k);
            for (unsigned box = 0; box != boxes_k; ++box)
                copy_box(shared_place(memory.rows[step]) + box * box_bytes_k, vectors, static_cast<int>(step * box_k),
                         static_cast<int>(i * tile_k + box * box_k), memory.rows_there[step]);
        }
    }
    if (threadIdx.x >= group_k && threadIdx.x < group_k + words_k * 32) {
        std::uint32_t const at = threadIdx.x - group_k, j = first_j + at;
        // Both, whether they are there or not: what is read of either is on its way at once.
        std::uint32_t const last = p.tiles - 1;
        tile_pair const first(p, min(upper, last), min(j, last)), second(p, min(upper + 1, last), min(j, last));
        bool const live = at < count && ((upper <= last && pass_at::is_live(first)) ||
                                         (upper + 1 <= last && pass_at::is_live(second)));
        memory.tiles[at] = (rank ? second : first).packed();
        memory.ahead[at] = pass_at::look_ahead(p, min(i, last), min(j, last));
        std::uint32_t const word = __ballot_sync(whole_warp_k, live);
        if (at % warp_k == 0)
            memory.live[at / warp_k] = word;
    }
    __syncthreads();
    cluster_meet();

    live_tiles tiles{memory.live};
    ring_place<stages_k> at;
    if (threadIdx.x < group_k) {
        give_registers<24>();
        if (threadIdx.x == 0) {
            for (std::uint32_t j = tiles.take(); j != live_tiles::none_k; j = tiles.take()) {
                for (unsigned step = 0; step != steps; ++step) {
                    memory.empty[at.stage].wait(at.parity ^ 1);
                    memory.full[at.stage].expect(step_bytes_k);
                    copy_dealt_box_to_both(shared_place(memory.ring[at.stage]) + rank * box_bytes_k, columns,
                                           static_cast<int>(step * box_k),
                                           static_cast<int>((first_j + j) * tile_k + rank * box_k),
                                           memory.full[at.stage]);
                    at.advance();
                }
            }
        }
    } else {
        take_registers<pass_at::registers_k>();
        unsigned const team = tile_t::team();
        if (team == 1) {
            named_arrive<teams_k * tile_t::threads_k>(turn_of(0));
            tiles.take();
            at.advance(steps);
        }
        std::uint32_t const own = min(i, p.tiles - 1);
        std::uint32_t next = tiles.take();
        auto& own_memory = memory.teams[team];
        own_memory.row_side[tile_t::thread()] = p.terms[own * tile_k + tile_t::thread()];
        row_terms column{}; // the thread's, of the next tile: memory answers late
        auto const load_column = [&] {
            if (next != live_tiles::none_k)
                column = p.terms[(first_j + next) * tile_k + tile_t::thread()];
        };
        load_column();
        bool first_of_all = true;
        while (next != live_tiles::none_k) {
            // What needs no product comes before it, while the other team multiplies.
            tile_pair const tile(own, first_j + next, memory.tiles[next]);
            line_terms<tile_t> const terms{{own_memory.row_side[tile_t::thread()], column}};
            auto const plan = pass_at::prepare(p, tile, memory.ahead[next], terms, own_memory);
            tiles.take(); // the other team's
            next = tiles.take();
            load_column();
            typename tile_t::sums_t dots;
            multiply(memory, steps, at, dots);
            at.advance(steps);
            if (first_of_all)
                depend_on_earlier_kernels(); // what is written from here on, they may still read
            first_of_all = false;
            if (i < p.tiles && pass_at::is_live(tile))
                pass_at::take(p, view, tile, plan, dots, own_memory);
        }
    }
    __syncwarp();
    for (unsigned step = 0; step != steps; ++step)
        memory.rows_there[step].wait(0); // where no tile is live, nothing else has waited
    depend_on_earlier_kernels();
    cluster_meet(); // no block leaves while the other copies into it, or arrives at its barriers
}

/** Into how many chunks a side's columns are cut, so that few multiprocessors wait for the last ones.
 *  @param pairs Of tiles of rows. @param diagonal Whether the sides are the same: a row meets only what follows it. */
unsigned count_chunks(unsigned clusters, unsigned pairs, unsigned across, bool diagonal) {
    constexpr double start_k = 0.7; // tiles that could be taken while a cluster's rows are copied
    unsigned best = 1;
    double least = 0;
    for (unsigned chunks = 1; chunks <= std::min(across, 16u); ++chunks) {
        unsigned const chunk = ceil_divide(across, chunks);
        unsigned busy = 0;
        for (unsigned pair = 0; pair != pairs; ++pair)
            busy += diagonal ? ceil_divide(across - std::min(across, 2 * pair), chunk) : chunks;
        double const time = ceil_divide(busy, clusters) * (chunk + start_k);
        if (chunks == 1 || time < least)
            least = time, best = chunks;
    }
    return best;
}

template <typename pass_at> void score(stream const& stream, problem const& p, typename pass_at::view_t const& view) {
    unsigned const down = std::min(view.side, p.tiles - view.first_i),
                   across = std::min(view.side, p.tiles - view.first_j);
    unsigned const pairs = ceil_divide(down, 2u);
    unsigned const chunks = count_chunks(std::max(1u, static_cast<unsigned>(stream.multiprocessors) / 2), pairs, across,
                                         view.first_i == view.first_j);
    std::size_t const places = std::size_t(p.tiles) * tile_k;
    CUtensorMap const vectors = tensor_map_of(stream, p.vectors, places, p.padded_width, p.padded_width);
    CUtensorMap const columns = dealt_map_of(stream, p.vectors, places, p.padded_width, p.padded_width);
    launch_clusters(stream, score_tiles<pass_at>, pass_at::begin_k, dim3(2), dim3(2, chunks, pairs), threads_k<pass_at>,
                    sizeof(score_memory<pass_at>), p, view, ceil_divide(across, chunks), vectors, columns);
}

} // namespace

void sum_tiles(stream const& stream, problem const& p, span_view const& span) {
    if (p.form == uform_pair_loss_form_sigmoid_k)
        score<sum_pass<true>>(stream, p, span);
    else
        score<sum_pass<false>>(stream, p, span);
}

void fill_panel(stream const& stream, problem const& p, panel_view const& block) {
    if (p.form == uform_pair_loss_form_sigmoid_k)
        score<force_pass<true>>(stream, p, block);
    else
        score<force_pass<false>>(stream, p, block);
}

} // namespace uform::vram::pairs::sm90

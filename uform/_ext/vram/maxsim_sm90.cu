#include "vram/maxsim_sm90.h"

#include <algorithm>

#include "vram/launch.cuh"
#include "vram/maxsim_tile.cuh"
#include "vram/tensor_map.h"
#include "vram/wgmma.cuh"

namespace uform::vram::maxsim::sm90 {

namespace {

using namespace hopper;

/** Groups of four warps that multiply, beside the one that copies. */
constexpr unsigned groups_of_block_k = 2;
/** A group has two products of 64 rows: it takes the maxima of one while the other is multiplied. */
constexpr unsigned products_k = 2;
constexpr unsigned rows_of_group_k = products_k * box_k;
constexpr unsigned rows_of_block_k = groups_of_block_k * rows_of_group_k;
static_assert(rows_of_block_k == query_padding_k);
constexpr unsigned threads_k = (1 + groups_of_block_k) * group_k;
constexpr unsigned registers_k = 240;
constexpr unsigned boxes_k = tile_columns_k / box_k;
constexpr unsigned step_bytes_k = boxes_k * box_bytes_k;

/** What of a document a stage of the ring holds. */
struct tile_of_document {
    std::uint32_t document, first, count; // its places from `first` on, of which so many are its own
};

/** In the place of a document: no more tiles of this piece of work come. */
constexpr std::uint32_t end_k = UINT32_MAX;

template <unsigned steps_ak> struct memory_of_block {
    static constexpr unsigned stages_k = steps_ak == 1 ? 8 : 6;
    std::byte ring[stages_k][steps_ak][step_bytes_k];
    tile_of_document tiles[stages_k];
    barrier full[stages_k], empty[stages_k];
};

/** How the work is shared: tiles of queries' rows, and the documents in so many parts. */
struct schedule {
    std::uint32_t tiles, documents, parts;

    __device__ explicit schedule(problem const& p)
        : tiles((p.counts[1] + rows_of_block_k - 1) / rows_of_block_k), documents(p.counts[2]), parts(1) {
        // The fewest documents that some block must go through.
        constexpr std::uint32_t most_parts = 64;
        std::uint32_t least = UINT32_MAX;
        for (std::uint32_t tried = 1; tried <= min(most_parts, documents); ++tried) {
            std::uint32_t const rounds = (tiles * tried + gridDim.x - 1) / gridDim.x;
            std::uint32_t const cost = rounds * ((documents + tried - 1) / tried);
            if (cost < least)
                least = cost, parts = tried;
        }
    }

    __device__ std::uint32_t count() const { return documents ? tiles * parts : 0; }
    __device__ std::uint32_t first_row(std::uint32_t work) const { return work / parts * rows_of_block_k; }
    __device__ std::uint32_t first_document(std::uint32_t work) const {
        return static_cast<std::uint32_t>(std::uint64_t(documents) * (work % parts) / parts);
    }
    __device__ std::uint32_t end_document(std::uint32_t work) const {
        return static_cast<std::uint32_t>(std::uint64_t(documents) * (work % parts + 1) / parts);
    }
};

/** Copies tiles of documents into the ring, by one thread. */
template <unsigned steps_ak>
__device__ void copy_documents(problem const& p, schedule const& plan, memory_of_block<steps_ak>& memory,
                               CUtensorMap const& vectors) {
    ring_place<memory_of_block<steps_ak>::stages_k> at;
    for (std::uint32_t work = blockIdx.x; work < plan.count(); work += gridDim.x) {
        for (std::uint32_t document = plan.first_document(work); document != plan.end_document(work); ++document) {
            uform_run_of_rows_t const run = p.documents[document];
            std::uint32_t const begin = p.first_row(run, document);
            for (std::uint32_t first = 0; first < run.count; first += tile_columns_k) {
                memory.empty[at.stage].wait(at.parity ^ 1);
                memory.tiles[at.stage] = {document, first, run.count - first};
                memory.full[at.stage].expect(steps_ak * step_bytes_k);
                for (unsigned step = 0; step != steps_ak; ++step)
                    for (unsigned box = 0; box != boxes_k; ++box)
                        copy_box(shared_place(memory.ring[at.stage][step]) + box * box_bytes_k, vectors,
                                 static_cast<int>(step * box_k), static_cast<int>(begin + first + box * box_k),
                                 memory.full[at.stage]);
                at.advance();
            }
        }
        memory.empty[at.stage].wait(at.parity ^ 1);
        memory.tiles[at.stage] = {end_k, 0, 0};
        memory.full[at.stage].expect(0);
        at.advance();
    }
}

/** What a thread has of 64 rows of queries, as the products read it. */
template <unsigned steps_ak> using rows_of_product = std::uint32_t[steps_ak * box_k / depth_k][4];

template <unsigned steps_ak>
__device__ __forceinline__ void load_rows(rows_of_product<steps_ak>& rows, problem const& p, std::size_t row) {
    __nv_bfloat16 const* const from = p.query_vectors + row * p.padded_width + threadIdx.x % 4 * 2;
#pragma unroll
    for (unsigned depth = 0; depth != steps_ak * box_k / depth_k; ++depth)
#pragma unroll
        for (unsigned part = 0; part != 4; ++part)
            rows[depth][part] = *reinterpret_cast<std::uint32_t const*>(
                from + part % 2 * 8 * std::size_t(p.padded_width) + depth * depth_k + part / 2 * 8);
}

template <std::size_t... at_ak>
__device__ __forceinline__ void multiply_depth(tile_sums& sums, std::uint32_t const (&left)[4], std::uint64_t right,
                                               bool add, std::index_sequence<at_ak...>) {
    using product = cute::SM90::GMMA::MMA_64x128x16_F32BF16BF16_RS<Major::K, Major::K>;
    product::fma(left[0], left[1], left[2], left[3], right, sums[at_ak / 4][at_ak % 4]...,
                 add ? cute::SM90::GMMA::ScaleOut::One : cute::SM90::GMMA::ScaleOut::Zero);
}

/** Begins the products of 64 rows with a stage of the ring. */
template <unsigned steps_ak>
__device__ __forceinline__ void begin_product(tile_sums& sums, rows_of_product<steps_ak> const& rows,
                                              std::uint32_t stage) {
    fence_sums(sums);
    products_begin();
#pragma unroll
    for (unsigned depth = 0; depth != steps_ak * box_k / depth_k; ++depth)
        multiply_depth(sums, rows[depth], by_depth(stage + depth / 4 * step_bytes_k + depth % 4 * depth_k * 2),
                       depth != 0, std::make_index_sequence<tile_blocks_k * 4>{});
    products_commit();
}

__device__ __forceinline__ void take_tile(tile_sums const& sums, tile_of_document const& tile, match& upper,
                                          match& lower) {
    take_columns(sums, 0, tile.first, tile.count, upper);
    take_columns(sums, 1, tile.first, tile.count, lower);
}

/** A group's rows from `first_row` on, of which the thread has four, through tiles until one that ends them. */
template <unsigned steps_ak>
__device__ __forceinline__ void go_through(problem const& p, memory_of_block<steps_ak>& memory,
                                           ring_place<memory_of_block<steps_ak>::stages_k>& at,
                                           std::uint32_t first_row) {
    rows_of_product<steps_ak> rows, rows_below;
    tile_sums sums, sums_below;
    match best[4];
    load_rows<steps_ak>(rows, p, first_row);
    load_rows<steps_ak>(rows_below, p, first_row + box_k);
    auto const next = [&] {
        memory.full[at.stage].wait(at.parity);
        return memory.tiles[at.stage];
    };
    // Each warp for itself: those of a group run apart, and a stage must not be filled anew before all have come to it.
    auto const release = [&](unsigned stage) {
        if (threadIdx.x % warp_k == 0)
            memory.empty[stage].arrive(block_of_cluster());
    };

    // The other group multiplies while this one takes its last maxima.
    for (tile_of_document tile = next(); tile.document != end_k; tile = next()) {
        unsigned const stage = at.stage;
        std::uint32_t const place = shared_place(memory.ring[stage]);
        begin_product<steps_ak>(sums, rows, place);
        begin_product<steps_ak>(sums_below, rows_below, place);
        products_wait<1>();
        fence_sums(sums);
        take_tile(sums, tile, best[0], best[1]);
        products_wait<0>();
        fence_sums(sums_below);
        release(stage);
        at.advance();
        take_tile(sums_below, tile, best[2], best[3]);
        if (tile.count > tile_columns_k)
            continue;
#pragma unroll
        for (unsigned own = 0; own != 4; ++own) {
            store_match(p, tile.document, first_row + own / 2 * box_k + own % 2 * 8, best[own]);
            best[own] = match{};
        }
    }
    release(at.stage);
    at.advance();
}

/** A block of threads goes through some documents with a tile of queries' rows, whose vectors stay in registers. */
template <unsigned steps_ak>
__global__ void __launch_bounds__(threads_k, 1) find_by_groups(problem p, __grid_constant__ CUtensorMap const vectors) {
    extern __shared__ __align__(1024) std::byte shared[];
    auto& memory = *reinterpret_cast<memory_of_block<steps_ak>*>(shared);
    if (threadIdx.x == 0) {
        prefetch(vectors);
        for (unsigned stage = 0; stage != memory.stages_k; ++stage)
            memory.full[stage].init(1), memory.empty[stage].init(groups_of_block_k * group_k / warp_k);
        barriers_are_ready();
    }
    __syncthreads();
    schedule const plan(p);
    if (threadIdx.x < group_k) {
        give_registers<24>();
        if (threadIdx.x == 0)
            copy_documents<steps_ak>(p, plan, memory, vectors);
        return;
    }
    take_registers<registers_k>();
    ring_place<memory_of_block<steps_ak>::stages_k> at;
    unsigned const group = threadIdx.x / group_k - 1, thread = threadIdx.x % group_k;
    unsigned const own_row = group * rows_of_group_k + thread / warp_k * 16 + thread % warp_k / 4;
    for (std::uint32_t work = blockIdx.x; work < plan.count(); work += gridDim.x)
        go_through<steps_ak>(p, memory, at, plan.first_row(work) + own_row);
}

template <unsigned steps_ak> void find(stream const& stream, problem const& p) {
    CUtensorMap const vectors =
        tensor_map_of(stream, p.document_vectors, p.document_rows, p.padded_width, p.padded_width);
    unsigned const tiles = ceil_divide(p.query_vectors_capacity, rows_of_block_k);
    std::size_t const most = std::size_t(tiles) * p.documents_capacity;
    unsigned const blocks = static_cast<unsigned>(std::min<std::size_t>(most, std::size_t(stream.multiprocessors)));
    launch(stream, find_by_groups<steps_ak>, blocks, threads_k, sizeof(memory_of_block<steps_ak>), p, vectors);
}

} // namespace

void find_matches(stream const& stream, problem const& p) {
    if (p.padded_width == box_k)
        find<1>(stream, p);
    else
        find<2>(stream, p);
}

} // namespace uform::vram::maxsim::sm90

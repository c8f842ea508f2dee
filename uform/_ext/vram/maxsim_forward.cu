#include "vram/launch.cuh"
#include "vram/maxsim_tile.cuh"
#include "vram/mma_tile.cuh"

namespace uform::vram::maxsim {

namespace {

/** A warp has 16 rows and all columns: a row's products meet in four lanes. */
using product_tile = mma_tile<128, tile_columns_k, 8, 1, 3>;
static_assert(product_tile::acrosses_k == tile_blocks_k && product_tile::downs_k == 1);

/** A block of threads a tile of queries' rows and a document, tile by tile of its own. */
__global__ void __launch_bounds__(product_tile::threads_k, 1) find_by_warps(problem p) {
    extern __shared__ __align__(128) std::byte shared[];
    std::uint32_t const document = blockIdx.x, first_row = blockIdx.y * product_tile::rows_k;
    if (document >= p.counts[2] || first_row >= p.counts[1])
        return;
    uform_run_of_rows_t const run = p.documents[document];
    std::size_t const begin = p.first_row(run, document), rows_end = p.counts[1];
    operand const queries{p.query_vectors, p.padded_width};
    operand const vectors{p.document_vectors + begin * p.padded_width, p.padded_width};
    match best[2];
    for (std::uint32_t first = 0; first < run.count; first += tile_columns_k) {
        product_tile::sums_t dots = {};
        std::size_t depth = 0;
        product_tile::multiply<contiguous::depth, contiguous::depth>(
            dots, shared_place(shared), p.padded_width / product_tile::depth_k,
            [&](std::uint32_t left, std::uint32_t right) {
                product_tile::load<contiguous::depth, product_tile::rows_k>(left, queries, first_row, rows_end, depth,
                                                                            p.padded_width);
                product_tile::load<contiguous::depth, tile_columns_k>(right, vectors, first, run.count, depth,
                                                                      p.padded_width);
                depth += product_tile::depth_k;
            });
#pragma unroll
        for (unsigned half = 0; half != 2; ++half)
            take_columns(dots[0], half, first, run.count - first, best[half]);
    }
#pragma unroll
    for (unsigned half = 0; half != 2; ++half)
        store_match(p, document, first_row + product_tile::row_of(0, half), best[half]);
}

} // namespace

void find_matches(stream const& stream, problem const& p) {
    dim3 const grid(p.documents_capacity, ceil_divide(p.query_vectors_capacity, product_tile::rows_k));
    launch(stream, find_by_warps, grid, product_tile::threads_k, product_tile::shared_bytes_k, p);
}

} // namespace uform::vram::maxsim

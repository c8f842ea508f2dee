#include "vram/maxsim.h"

#include <algorithm>

#include "vram/elementwise.cuh"
#include "vram/launch.cuh"
#include "vram/maxsim_sm90.h"
#include "vram/operations.h"

namespace uform::vram {

namespace maxsim {

namespace {

constexpr unsigned warps_k = 8;
constexpr unsigned threads_k = warps_k * warp_k;
/** Blocks of threads that share a document's rows, or its queries. */
constexpr unsigned document_blocks_k = 4;

__device__ __forceinline__ unsigned warp_of_block() { return threadIdx.x / warp_k; }

/** A warp rounds a vector, and pads it by zeros. */
__device__ __forceinline__ void round_vector(problem const& p, std::size_t from, __nv_bfloat16* to) {
    float const* const vector = p.vectors + from * p.width;
    // Those of a user's own array may begin at any float32.
    bool const aligned = p.width % lanes_k == 0 && reinterpret_cast<std::uintptr_t>(p.vectors) % 16 == 0;
    for (std::uint32_t first = threadIdx.x % warp_k * lanes_k; first < p.padded_width; first += warp_k * lanes_k) {
        floatx8 values{};
        if (aligned && first < p.width) {
            values = load8(vector + first);
        } else {
#pragma unroll
            for (unsigned i = 0; i != lanes_k; ++i)
                values[i] = first + i < p.width ? vector[first + i] : 0.f;
        }
        store8(to + first, narrow(values));
    }
}

/** The run that a row lies in, of runs end to end. */
__device__ __forceinline__ std::uint32_t run_of(uform_run_of_rows_t const* runs, std::uint32_t count,
                                                std::uint32_t row) {
    std::uint32_t begin = 0, end = count;
    while (end - begin > 1) {
        std::uint32_t const middle = begin + (end - begin) / 2;
        if (runs[middle].place <= row)
            begin = middle;
        else
            end = middle;
    }
    return begin;
}

/** A warp a vector of a query. */
__global__ void __launch_bounds__(threads_k) round_queries(problem p) {
    std::uint32_t const row = blockIdx.x * warps_k + warp_of_block();
    if (row >= p.counts[1])
        return;
    std::uint32_t const query = run_of(p.queries, p.counts[0], row);
    uform_run_of_rows_t const run = p.queries[query];
    round_vector(p, std::size_t(run.first) + (row - run.place), p.query_vectors + std::size_t(row) * p.padded_width);
    if (threadIdx.x % warp_k == 0)
        p.query_of[row] = query;
}

/** Some blocks of threads a document. */
__global__ void __launch_bounds__(threads_k) round_documents(problem p) {
    std::uint32_t const document = blockIdx.x;
    if (document >= p.counts[2])
        return;
    uform_run_of_rows_t const run = p.documents[document];
    __nv_bfloat16* const to = p.document_vectors + std::size_t(p.first_row(run, document)) * p.padded_width;
    for (std::uint32_t row = blockIdx.y * warps_k + warp_of_block(); row < run.count; row += gridDim.y * warps_k)
        round_vector(p, std::size_t(run.first) + row, to + std::size_t(row) * p.padded_width);
}

/** A warp a query and a document: the mean of its matches, in a fixed order. */
__global__ void __launch_bounds__(threads_k) average_matches(problem p) {
    std::uint32_t const document = blockIdx.x;
    if (document >= p.counts[2])
        return;
    float const* const matches = p.matches + std::size_t(document) * p.query_vectors_capacity;
    for (std::uint32_t query = blockIdx.y * warps_k + warp_of_block(); query < p.counts[0];
         query += gridDim.y * warps_k) {
        uform_run_of_rows_t const run = p.queries[query];
        float sum = 0;
        for (std::uint32_t row = threadIdx.x % warp_k; row < run.count; row += warp_k)
            sum += matches[run.place + row];
        sum = sum_warp(sum);
        if (threadIdx.x % warp_k == 0)
            p.similarities[std::size_t(query) * p.documents_capacity + document] = sum / static_cast<float>(run.count);
    }
}

std::uint32_t padded_width(std::uint32_t width) { return ceil_divide(width, width_padding_k) * width_padding_k; }

std::uint32_t document_rows(std::uint32_t documents, std::uint32_t document_vectors) {
    return ceil_divide(document_vectors, block_k) * block_k + documents * block_k;
}

} // namespace

problem describe(uform_maxsim_t const& given) {
    problem p{};
    p.counts = given.counts;
    p.width = given.width, p.padded_width = padded_width(given.width);
    p.queries_capacity = given.queries_capacity, p.query_vectors_capacity = given.query_vectors_capacity;
    p.documents_capacity = given.documents_capacity;
    p.document_rows = document_rows(given.documents_capacity, given.document_vectors_capacity);
    p.vectors = given.vectors;
    p.queries = given.queries, p.documents = given.documents;
    p.similarities = given.similarities, p.places = given.places;
    p.coefficients = given.coefficients, p.gradient = given.gradient;
    check_bytes("workspace_bytes", given.workspace_bytes,
                maxsim_workspace_bytes(given.width, given.query_vectors_capacity, given.documents_capacity,
                                       given.document_vectors_capacity));
    workspace_parts parts(given.workspace);
    std::size_t const rows = ceil_divide(given.query_vectors_capacity, query_padding_k) * query_padding_k;
    std::size_t const pairs = std::size_t(given.documents_capacity) * given.query_vectors_capacity;
    p.query_of = parts.take<std::uint32_t>(given.query_vectors_capacity);
    p.matches = parts.take<float>(pairs);
    p.query_vectors = parts.take<__nv_bfloat16>(rows * p.padded_width);
    p.document_vectors = parts.take<__nv_bfloat16>(std::size_t(p.document_rows) * p.padded_width);
    p.pulls = p.matches; // matches are not read in backward, and no query is without a vector
    return p;
}

} // namespace maxsim

std::size_t maxsim_workspace_bytes(std::uint32_t width, std::uint32_t query_vectors, std::uint32_t documents,
                                   std::uint32_t document_vectors) {
    using namespace maxsim;
    std::size_t const rows = ceil_divide(query_vectors, query_padding_k) * query_padding_k;
    return part_bytes<std::uint32_t>(query_vectors) + part_bytes<float>(std::size_t(documents) * query_vectors) +
           part_bytes<__nv_bfloat16>(rows * padded_width(width)) +
           part_bytes<__nv_bfloat16>(std::size_t(document_rows(documents, document_vectors)) * padded_width(width));
}

uform_status_t maxsim_forward(uform_stream_t* opaque, uform_maxsim_t const* given) {
    using namespace maxsim;
    return operate("maxsim_forward", opaque, [&](stream const& stream) {
        problem const p = describe(*given);
        if (p.query_vectors_capacity == 0 || p.documents_capacity == 0)
            return;
        dim3 const by_document(p.documents_capacity, document_blocks_k);
        launch(stream, round_queries, blocks_for(p.query_vectors_capacity, warps_k), threads_k, 0, p);
        launch(stream, round_documents, by_document, threads_k, 0, p);
#if UFORM_WITH_SM90
        if (sm90::serves(stream, p))
            sm90::find_matches(stream, p);
        else
#endif
            find_matches(stream, p);
        launch(stream, average_matches, by_document, threads_k, 0, p);
    });
}

uform_status_t maxsim_backward(uform_stream_t* opaque, uform_maxsim_t const* given) {
    using namespace maxsim;
    return operate("maxsim_backward", opaque, [&](stream const& stream) {
        problem const p = describe(*given);
        check_cuda(cudaMemsetAsync(p.gradient, 0, sizeof(float) * p.width * given->vectors_capacity, stream.handle),
                   stream);
        pull(stream, p, given->longest);
    });
}

} // namespace uform::vram

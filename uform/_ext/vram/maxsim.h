/**
 *  MaxSim on a GPU. Vectors are rounded to bfloat16 and laid end to end, each document from a new block of rows on. A
 *  tile of dot products, 128 rows of a document beside rows of queries, lives in registers: each row keeps the largest
 *  product and where it is, so that no array of products is in memory. Backward gathers by owner: a block of threads
 *  has some vectors of one document and sorts by them the queries' vectors that found their match there, a warp has one
 *  query's vector; every sum is in the order of its terms, without atomics. On Hopper groups of warps find the matches,
 *  see maxsim_sm90.h.
 */
#pragma once

#include <cstddef>
#include <cstdint>

#include <cuda_bf16.h>

#include <uform/plugin.h>

#include "vram/stream.h"

namespace uform::vram::maxsim {

/** Rows that a document begins at a multiple of. */
inline constexpr std::uint32_t block_k = 64;
/** Rows of a document in a tile. */
inline constexpr std::uint32_t tile_columns_k = 128;
/** Rows of queries are padded to a multiple of this. */
inline constexpr std::uint32_t query_padding_k = 256;
/** Values of a padded vector are a multiple of this. */
inline constexpr std::uint32_t width_padding_k = 64;

/** Everything that the kernels share. Pointers are device-side. */
struct problem {
    std::uint32_t const* counts; // [3]: queries, their vectors, documents
    std::uint32_t width, padded_width;
    std::uint32_t queries_capacity, query_vectors_capacity, documents_capacity;
    std::uint32_t document_rows; // of `document_vectors`
    float const* vectors;
    uform_run_of_rows_t const *queries, *documents;
    float* similarities;
    std::uint16_t* places;
    float const* coefficients;
    float* gradient;

    std::uint32_t* query_of;         // [query vectors]
    float* matches;                  // [documents, query vectors] the largest dot products
    float* pulls;                    // [documents, queries] backward: what moving one of a query's vectors counts
    __nv_bfloat16* query_vectors;    // [query vectors, padded width]
    __nv_bfloat16* document_vectors; // [document rows, padded width]; rows of no document hold anything

    /** Where a document begins in `document_vectors`: rounding up costs each at most a block. */
    __host__ __device__ std::uint32_t first_row(uform_run_of_rows_t const& run, std::uint32_t document) const {
        return (run.place / block_k + document) * block_k;
    }
};

/** The problem of an operation, laid out in its workspace; refuses one that is too small. */
problem describe(uform_maxsim_t const& given);

// maxsim_forward.cu
/** Finds every query vector's match in every document. */
void find_matches(stream const&, problem const&);

// maxsim_backward.cu
/** Adds what matches pull at to the gradient, which is zero. @param longest Bounds the rows of a document. */
void pull(stream const&, problem const&, std::uint32_t longest);

} // namespace uform::vram::maxsim

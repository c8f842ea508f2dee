/** What attention's backward on Hopper needs row by row beside the boxes, and what becomes of a row's gradients. */
#pragma once

#include "vram/attention_sm90.cuh"
#include "vram/rotary.h"

namespace uform::vram::sm90 {

/** What a query has of its own: its sum to base 2, and what it gives to its own normalisation. */
using query_values = float2;

/** What 128 queries have of their own, on its way: eight lanes a row. */
struct row_batch {
    static constexpr unsigned rows_at_once_k = block_threads_k / 8, passes_k = 4, rows_k = passes_k * rows_at_once_k;

    row_eighth eighths[passes_k];
    float log_sums[passes_k];

    static __device__ __forceinline__ unsigned row(unsigned pass) { return pass * rows_at_once_k + threadIdx.x / 8; }

    template <typename column_at>
    __device__ __forceinline__ void load(attention_problem const& problem, unsigned head, column_at&& column_of) {
        float const* const sums = problem.log_sums + std::size_t(head) * problem.columns.capacity;
#pragma unroll
        for (unsigned pass = 0; pass != passes_k; ++pass) {
            unsigned const column = min(column_of(row(pass)), problem.columns.active - 1);
            eighths[pass] = row_eighth::load(problem, head, column);
            log_sums[pass] = sums[column];
        }
    }
    __device__ __forceinline__ void store(query_values* rows, unsigned rows_count) const {
#pragma unroll
        for (unsigned pass = 0; pass != passes_k; ++pass) {
            float const along = eighths[pass].along();
            if (threadIdx.x % 8 == 0 && row(pass) < rows_count)
                rows[row(pass)] = make_float2(log_sums[pass] * base_2_k, along);
        }
    }
};

/**
 *  Writes what `rows_count` queries have of their own, a multiple of 64.
 *  @param known Whether `along` is read, or else computed.
 *  @param column_of Answers the column of one of them. Of those past the count, the rows are of no use.
 */
template <typename column_at>
__device__ __forceinline__ void fill_rows(query_values* rows, unsigned rows_count, attention_problem const& problem,
                                          unsigned head, bool known, column_at&& column_of) {
    float const* const log_sums = problem.log_sums + std::size_t(head) * problem.columns.capacity;
    unsigned const last = problem.columns.active - 1;
    if (known) {
        float const* const along = along_of(problem, head);
        for (unsigned row = threadIdx.x; row < rows_count; row += block_threads_k) {
            unsigned const column = min(column_of(row), last);
            rows[row] = make_float2(log_sums[column] * base_2_k, along[column]);
        }
        return;
    }
    for (unsigned begin = 0; begin < rows_count; begin += row_batch::rows_k) {
        row_batch batch;
        batch.load(problem, head, [&](unsigned row) { return column_of(min(begin + row, rows_count - 1)); });
        batch.store(rows + begin, rows_count - begin);
    }
}

/** Turns that are written ahead lie where other kernels keep sums of the queries' gradients. */
__host__ __device__ inline __half2* turns_of(attention_problem const& problem) {
    return reinterpret_cast<__half2*>(problem.scratch);
}

/** How the gradients of a thread's two queries, or keys, are scaled and turned back: two pairs of every eight. */
struct row_turns {
    uint2 pairs[2][4];

    /** @param first Column of the thread's warp. */
    static __device__ __forceinline__ row_turns load(attention_problem const& problem, unsigned first, unsigned count) {
        row_turns turns;
        unsigned const lane = threadIdx.x % warp_k;
#pragma unroll
        for (unsigned half = 0; half != 2; ++half) {
            std::size_t const column = min(first + half * 8 + lane / 4, count - 1);
            auto const* const of_column =
                reinterpret_cast<uint2 const*>(turns_of(problem) + column * rotary_pairs_k) + lane % 4;
#pragma unroll
            for (unsigned block = 0; block != 4; ++block)
                turns.pairs[half][block] = problem.turn_back ? of_column[block * 4] : still();
        }
        return turns;
    }
    __device__ __forceinline__ void apply(float (&sums)[8][4]) const {
#pragma unroll
        for (unsigned half = 0; half != 2; ++half)
#pragma unroll
            for (unsigned block = 0; block != 4; ++block) {
                std::uint32_t const words[2] = {pairs[half][block].x, pairs[half][block].y};
#pragma unroll
                for (unsigned i = 0; i != 2; ++i) {
                    unsigned const word = words[i];
                    float2 const turn = __half22float2(reinterpret_cast<__half2 const&>(word));
                    float &low = sums[block][half * 2 + i], &high = sums[block + 4][half * 2 + i];
                    float const turned = low * turn.x + high * turn.y;
                    high = high * turn.x - low * turn.y;
                    low = turned;
                }
            }
    }

private:
    /** Two that only scale. */
    static __device__ __forceinline__ uint2 still() {
        __half2 const one = __floats2half2_rn(score_scale_k, 0.f);
        unsigned const word = reinterpret_cast<unsigned const&>(one);
        return make_uint2(word, word);
    }
};

} // namespace uform::vram::sm90

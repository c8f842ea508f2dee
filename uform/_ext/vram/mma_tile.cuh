/**
 *  A block's tile of a product of two bfloat16 matrices, accumulated in float32 by `mma.sync`: every architecture since
 *  8.0 has it. The product is [rows, depth] times [columns, depth]^T; each operand lies with its depth or with its rows
 *  contiguous.
 */
#pragma once

#include <cstddef>
#include <cstdint>

#include "vram/attention_mma.cuh"
#include "vram/elementwise.cuh"

namespace uform::vram {

/** Which of an operand's extents is contiguous in memory. */
enum class contiguous { depth, rows };

/** An operand in global memory. Its base and its stride are multiples of 16 bytes. */
struct operand {
    __nv_bfloat16 const* values;
    std::size_t stride; // of the extent that is not contiguous
};

/**
 *  How a block shares a tile among its warps.
 *  @tparam rows_ak Of the tile, `warps_down_ak` warps share them; every warp takes a multiple of 16.
 *  @tparam columns_ak Of the tile, `warps_across_ak` warps share them; every warp takes a multiple of 16.
 *  @tparam stages_ak Steps of the depth that lie in shared memory at a time.
 */
template <unsigned rows_ak, unsigned columns_ak, unsigned warps_down_ak, unsigned warps_across_ak, unsigned stages_ak>
struct mma_tile {
    static constexpr unsigned rows_k = rows_ak;
    static constexpr unsigned columns_k = columns_ak;
    static constexpr unsigned warps_down_k = warps_down_ak;
    static constexpr unsigned warps_across_k = warps_across_ak;
    static constexpr unsigned threads_k = warps_down_ak * warps_across_ak * 32;
    /** The depth of one step. */
    static constexpr unsigned depth_k = 64;

    static constexpr unsigned warp_rows_k = rows_ak / warps_down_ak;
    static constexpr unsigned warp_columns_k = columns_ak / warps_across_ak;
    static constexpr unsigned downs_k = warp_rows_k / 16;      // products of a warp below each other
    static constexpr unsigned acrosses_k = warp_columns_k / 8; // beside each other

    static constexpr unsigned left_bytes_k = rows_ak * depth_k * 2;
    static constexpr unsigned stage_bytes_k = left_bytes_k + columns_ak * depth_k * 2;
    static constexpr unsigned shared_bytes_k = stages_ak * stage_bytes_k;

    /** A thread's part of the product: [down][across][of a 16x8 product, as the instruction has them]. */
    using sums_t = float[downs_k][acrosses_k][4];

    /** The thread's place among those that share the tile, `threads_k`, and their barrier. */
    static __device__ __forceinline__ unsigned thread() { return threadIdx.x; }
    static __device__ __forceinline__ void sync() { __syncthreads(); }

    static __device__ __forceinline__ unsigned lane() { return threadIdx.x % 32; }
    static __device__ __forceinline__ unsigned warp_down() { return threadIdx.x / 32 / warps_across_ak; }
    static __device__ __forceinline__ unsigned warp_across() { return threadIdx.x / 32 % warps_across_ak; }

    /** The row within the tile of sums [down][*][2 * half] and the next. */
    static __device__ __forceinline__ unsigned row_of(unsigned down, unsigned half) {
        return warp_down() * warp_rows_k + down * 16 + half * 8 + lane() / 4;
    }
    /** The column within the tile of sums [*][across][0] and [2]; those of [1] and [3] follow it. */
    static __device__ __forceinline__ unsigned column_of(unsigned across) {
        return warp_across() * warp_columns_k + across * 8 + lane() % 4 * 2;
    }

    /**
     *  Begins the copy of one step of an operand.
     *  @param first_row, end_row The tile's first and where the operand ends; where its rows are contiguous, the end is
     *      a multiple of 8.
     *  @param first_depth, end_depth The same of the depth.
     */
    template <contiguous order_ak, unsigned operand_rows_ak>
    static __device__ __forceinline__ void load(std::uint32_t to, operand const& from, std::size_t first_row,
                                                std::size_t end_row, std::size_t first_depth, std::size_t end_depth) {
        constexpr bool by_depth = order_ak == contiguous::depth;
        constexpr unsigned chunks_k = (by_depth ? depth_k : operand_rows_ak) / 8; // of 16 bytes, in a line
        constexpr unsigned lines_k = by_depth ? operand_rows_ak : depth_k;
        constexpr unsigned lines_at_once_k = threads_k / chunks_k;
        static_assert(threads_k % chunks_k == 0 && lines_k % lines_at_once_k == 0);
        std::size_t const first_line = by_depth ? first_row : first_depth, end_line = by_depth ? end_row : end_depth;
        std::size_t const first_place = by_depth ? first_depth : first_row, end = by_depth ? end_depth : end_row;
        unsigned const chunk = threadIdx.x % chunks_k;
        bool const inside = first_place + chunk * 8 < end;
#pragma unroll
        for (unsigned pass = 0; pass != lines_k / lines_at_once_k; ++pass) {
            unsigned const line = threadIdx.x / chunks_k + pass * lines_at_once_k;
            bool const present = inside && first_line + line < end_line;
            __nv_bfloat16 const* const at =
                from.values + (present ? (first_line + line) * from.stride + first_place + chunk * 8 : 0);
            copy_begin(to + line * chunks_k * 16 + ((chunk ^ line % 8) << 4), at, present);
        }
    }

    /** What multiplies: steps come in order, `load_step(left, right)` begins the copies of the next one. */
    template <contiguous left_ak, contiguous right_ak, typename load_at>
    static __device__ __forceinline__ void multiply(sums_t& sums, std::uint32_t shared, unsigned steps,
                                                    load_at&& load_step) {
#pragma unroll
        for (unsigned stage = 0; stage != stages_ak - 1; ++stage) {
            if (stage < steps)
                load_step(shared + stage * stage_bytes_k, shared + stage * stage_bytes_k + left_bytes_k);
            copies_commit();
        }
        unsigned stage = 0, next = stages_ak - 1;
        for (unsigned step = 0; step != steps; ++step) {
            copies_wait<stages_ak - 2>();
            __syncthreads(); // the step has arrived for all, and no warp reads the stage that is loaded next
            if (step + stages_ak - 1 < steps)
                load_step(shared + next * stage_bytes_k, shared + next * stage_bytes_k + left_bytes_k);
            copies_commit();
            multiply_step<left_ak, right_ak>(sums, shared + stage * stage_bytes_k);
            stage = stage + 1 == stages_ak ? 0 : stage + 1;
            next = next + 1 == stages_ak ? 0 : next + 1;
        }
        copies_wait<0>();
        __syncthreads();
    }

private:
    /** The place of a chunk of 16 bytes in an operand of a stage. */
    template <contiguous order_ak, unsigned operand_rows_ak>
    static __device__ __forceinline__ unsigned chunk_at(unsigned line, unsigned chunk) {
        constexpr unsigned line_bytes_k = (order_ak == contiguous::depth ? depth_k : operand_rows_ak) * 2;
        return line * line_bytes_k + ((chunk ^ line % 8) << 4);
    }

    template <contiguous left_ak, contiguous right_ak>
    static __device__ __forceinline__ void multiply_step(sums_t& sums, std::uint32_t stage) {
        unsigned const lane_ = lane();
        std::uint32_t const left = stage, right = stage + left_bytes_k;
        unsigned const row = warp_down() * warp_rows_k, column = warp_across() * warp_columns_k;
#pragma unroll
        for (unsigned depth = 0; depth != depth_k; depth += 16) {
            std::uint32_t a[downs_k][4], b[acrosses_k / 2][4];
#pragma unroll
            for (unsigned down = 0; down != downs_k; ++down) {
                if constexpr (left_ak == contiguous::depth)
                    load_matrices(a[down], left + chunk_at<left_ak, rows_ak>(row + down * 16 + lane_ % 16,
                                                                             depth / 8 + lane_ / 16));
                else
                    load_matrices_transposed(a[down],
                                             left + chunk_at<left_ak, rows_ak>(depth + lane_ % 8 + lane_ / 16 * 8,
                                                                               (row + down * 16) / 8 + lane_ / 8 % 2));
            }
#pragma unroll
            for (unsigned pair = 0; pair != acrosses_k / 2; ++pair) {
                if constexpr (right_ak == contiguous::depth)
                    load_matrices(
                        b[pair], right + chunk_at<right_ak, columns_ak>(column + pair * 16 + lane_ % 8 + lane_ / 16 * 8,
                                                                        depth / 8 + lane_ / 8 % 2));
                else
                    load_matrices_transposed(
                        b[pair], right + chunk_at<right_ak, columns_ak>(depth + lane_ % 16,
                                                                        (column + pair * 16) / 8 + lane_ / 16));
            }
#pragma unroll
            for (unsigned down = 0; down != downs_k; ++down)
#pragma unroll
                for (unsigned across = 0; across != acrosses_k; ++across)
                    multiply_add(sums[down][across], a[down], b[across / 2][across % 2 * 2],
                                 b[across / 2][across % 2 * 2 + 1]);
        }
    }
};

/** Reductions over the four lanes that share a row of sums, and over the eight that share a column. */
template <typename combine_at> __device__ __forceinline__ float over_row(float value, combine_at&& combine) {
    value = combine(value, __shfl_xor_sync(whole_warp_k, value, 1));
    return combine(value, __shfl_xor_sync(whole_warp_k, value, 2));
}

template <typename combine_at> __device__ __forceinline__ float over_column(float value, combine_at&& combine) {
    value = combine(value, __shfl_xor_sync(whole_warp_k, value, 4));
    value = combine(value, __shfl_xor_sync(whole_warp_k, value, 8));
    return combine(value, __shfl_xor_sync(whole_warp_k, value, 16));
}

struct add {
    __device__ float operator()(float a, float b) const { return a + b; }
};

struct largest {
    __device__ float operator()(float a, float b) const { return fmaxf(a, b); }
};

struct least {
    __device__ float operator()(float a, float b) const { return fminf(a, b); }
};

/** The place of a value in a tile of bfloat16 in shared memory, laid so that neither rows nor columns of chunks meet in
 *  a bank. @param width Of the tile, a multiple of 64. */
__device__ __forceinline__ unsigned value_place(unsigned row, unsigned column, unsigned width) {
    return row * width + (((column / 8) ^ row % 8) * 8) + column % 8;
}

} // namespace uform::vram

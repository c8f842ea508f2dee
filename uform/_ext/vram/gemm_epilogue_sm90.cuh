/** What the threads of a group do with a tile of 128 x 128 sums and boxes of 64 by 64 bfloat16, see `wgmma.cuh`. */
#pragma once

#include <cstdint>

#include "vram/elementwise.cuh"
#include "vram/wgmma.cuh"

namespace uform::vram::sm90 {

/** Columns of a box and rows of one: a tile has two halves of its columns, and two of its rows. */
inline constexpr unsigned half_k = hopper::box_k;
inline constexpr unsigned tile_side_k = 2 * half_k;

/** Four 8x8 matrices of bfloat16 to shared memory; lane l gives the place of row l % 8 of matrix l / 8. */
__device__ __forceinline__ void store_matrices(std::uint32_t row, std::uint32_t const (&matrices)[4]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row), "r"(matrices[0]),
                 "r"(matrices[1]), "r"(matrices[2]), "r"(matrices[3])
                 : "memory");
}

/** Begins the copy of a box to a matrix, by one thread; what lies outside of the matrix is not written. */
__device__ __forceinline__ void store_box(CUtensorMap const& to, unsigned column, unsigned row, std::uint32_t from) {
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];" ::"l"(&to), "r"(column),
                 "r"(row), "r"(from)
                 : "memory");
}
__device__ __forceinline__ void store_boxes_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
/** Until what this thread stores has been read: the boxes may be written again. */
__device__ __forceinline__ void store_boxes_wait() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }

/** Two neighbouring columns of one row, as they lie in a matrix's fragment. */
__device__ __forceinline__ float2 unpack(std::uint32_t pair) {
    return __bfloat1622float2(*reinterpret_cast<__nv_bfloat162 const*>(&pair));
}

/**
 *  One thread's part of a tile. Its group's warps have 16 rows each of either half; a fragment of four matrices is 16
 *  rows by 16 columns, of which a thread has rows `row_of(half, 0)` and `row_of(half, 1)`, and columns 2 (lane % 4) and
 *  the next of each eight.
 */
struct tile_thread {
    unsigned warp, lane;
    unsigned first_row, first_column; // of the tile

    __device__ tile_thread(unsigned thread, unsigned first_row, unsigned first_column)
        : warp(thread / warp_k), lane(thread % warp_k), first_row(first_row), first_column(first_column) {}

    /** @param below 0 or 1: the upper or the lower eight of the warp's rows. */
    __device__ __forceinline__ unsigned row_of(unsigned half, unsigned below) const {
        return first_row + half * half_k + warp * 16 + below * 8 + lane / 4;
    }
    /** The factors of the thread's rows of a half, [below]; of rows that there are not, of the last one. */
    __device__ __forceinline__ void factors_of(float (&to)[2], float const* of_rows, unsigned rows,
                                               unsigned half) const {
#pragma unroll
        for (unsigned below = 0; below != 2; ++below)
            to[below] = of_rows[min(row_of(half, below), rows - 1)];
    }
    /** Bits that words of the thread's rows of a half keep: none past the count. A branch would end what runs abreast.
     */
    __device__ __forceinline__ void masks_of(std::uint32_t (&to)[2], unsigned count, unsigned half) const {
#pragma unroll
        for (unsigned below = 0; below != 2; ++below)
            to[below] = row_of(half, below) < count ? ~0u : 0u;
    }
    /** Where this lane's row of a fragment lies within a box. @param block Of eight columns, the first of two. */
    __device__ __forceinline__ std::uint32_t place(std::uint32_t box, unsigned block) const {
        unsigned const row = warp * 16 + lane % 16, chunk = (block + lane / 16) ^ (lane % 8);
        return box + row * 128 + chunk * 16;
    }
};

/** The place of one of a thread's sums. @param half Of the rows. @param block Of eight columns. @param below See above.
 */
constexpr int sum_at(unsigned half, unsigned block, unsigned below, unsigned column) {
    return static_cast<int>(half * (tile_side_k / 2) + block * 4 + below * 2 + column);
}

/** Four words of a fragment as `word(f)` gives them: f / 2 is its block of columns, f % 2 the upper or lower rows. */
template <typename word_at> __device__ __forceinline__ void for_words(word_at&& word) {
#pragma unroll
    for (unsigned f = 0; f != 4; ++f)
        word(f / 2, f % 2, f);
}

} // namespace uform::vram::sm90

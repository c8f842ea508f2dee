/**
 *  Tiles of attention's kernels. A tile in shared memory has rows of 64 values: eight chunks of 16 bytes, chunk c of
 *  row r at place c ^ r % 8, so that neither eight rows of one chunk nor one row's chunks meet in a bank. A warp's sums
 *  of a 16x8 product lie in its lanes as the instruction has it: lane l holds columns 2 (l % 4) and the next of rows
 *  l / 4 and l / 4 + 8.
 */
#pragma once

#include "vram/attention.h"
#include "vram/attention_mma.cuh"
#include "vram/elementwise.cuh"
#include "vram/layer.h"

namespace uform::vram {

inline constexpr unsigned attention_threads_k = 128;
inline constexpr unsigned tile_row_bytes_k = 128;
inline constexpr unsigned warp_rows_k = 32; // rows of a block's tile that one warp owns

/** Scores are multiplied by 1 / sqrt(64) and exponentials are taken to base 2. */
inline constexpr float score_scale_k = 0.125f;
inline constexpr float base_2_k = 1.4426950408889634f;
inline constexpr float scores_to_base_2_k = score_scale_k * base_2_k;

/** This thread's warp within the block, which compilers then know to be the same in all lanes. */
__device__ __forceinline__ unsigned warp_place() { return __shfl_sync(whole_warp_k, threadIdx.x / warp_k, 0); }

/** Bytes of a tile of so many rows. */
constexpr unsigned tile_bytes(unsigned rows) { return rows * tile_row_bytes_k; }

/** The place of a chunk in a tile. */
__device__ __forceinline__ unsigned chunk_place(unsigned row, unsigned chunk) {
    return row * tile_row_bytes_k + ((chunk ^ row % 8) << 4);
}

/** What a lane adds to a tile's place to load four matrices, of which the second lies below the first. */
__device__ __forceinline__ unsigned lane_place_down(unsigned lane) { return chunk_place(lane % 16, lane / 16); }

/** The same where the second lies right of the first. */
__device__ __forceinline__ unsigned lane_place_across(unsigned lane) {
    return chunk_place(lane % 8 + lane / 16 * 8, lane / 8 % 2);
}

/** The place from which a lane loads four matrices, the first at `row`, a multiple of 8, and `chunk`, an even one. */
__device__ __forceinline__ std::uint32_t matrices_at(std::uint32_t tile, unsigned lane_place, unsigned row,
                                                     unsigned chunk) {
    return tile + row * tile_row_bytes_k + (lane_place ^ chunk << 4);
}

/** Begins the copy of rows [first, first + rows_ak) of 64 values into a tile; rows from `end` on become zeros. */
template <unsigned rows_ak>
__device__ __forceinline__ void load_rows(std::uint32_t tile, __nv_bfloat16 const* matrix, std::size_t stride,
                                          unsigned first, unsigned end) {
    constexpr unsigned rows_at_once = attention_threads_k / 8;
    unsigned const chunk = threadIdx.x % 8, begin = threadIdx.x / 8;
    __nv_bfloat16 const* const column = matrix + chunk * 8;
    std::uint32_t const to = tile + chunk_place(begin, chunk);
#pragma unroll
    for (unsigned pass = 0; pass != rows_ak / rows_at_once; ++pass) {
        unsigned const row = first + begin + pass * rows_at_once;
        bool const present = row < end;
        copy_begin(to + pass * rows_at_once * tile_row_bytes_k, column + (present ? row : 0) * stride, present);
    }
}

/** Zeros in 64 values of each row of [first, past). */
__device__ __forceinline__ void clear_rows(__nv_bfloat16* matrix, std::size_t stride, unsigned first, unsigned past) {
    for (unsigned row = first + threadIdx.x / 8; row < past; row += blockDim.x / 8)
        reinterpret_cast<uint4*>(matrix + row * stride)[threadIdx.x % 8] = make_uint4(0, 0, 0, 0);
}

/** The columns [x, y) of the segment that a column belongs to. */
__device__ __forceinline__ uint2 segment_bounds(uform_columns_t const& columns, unsigned column) {
    uform_segment_t const& segment = columns.segments[columns.segment_of[column]];
    return make_uint2(segment.first, segment.first + segment.columns);
}

/** What the rows of one warp have in common: the hull of their segments, and whether that is a single segment. */
struct warp_bounds {
    unsigned begin, end;
    bool single;

    /** Whether any column of [first, first + count) may belong to a segment of the rows. */
    __device__ __forceinline__ bool touches(unsigned first, unsigned count) const {
        return first < end && first + count > begin;
    }
    /** Whether every row and all of these columns belong to one segment. */
    __device__ __forceinline__ bool covers(unsigned first, unsigned count) const {
        return single && first >= begin && first + count <= end;
    }

    /** From a row a lane; a row that takes no part has bounds of 0 and 0. */
    static __device__ __forceinline__ warp_bounds of(uint2 row) {
        bool const present = row.y != 0;
        unsigned const begin = __reduce_min_sync(whole_warp_k, present ? row.x : 0xFFFFFFFFu);
        unsigned const last_begin = __reduce_max_sync(whole_warp_k, present ? row.x : 0xFFFFFFFFu);
        return {begin, __reduce_max_sync(whole_warp_k, row.y), begin == last_begin && begin != 0xFFFFFFFFu};
    }
};

/** Whether a column is among those of a row's segment. */
__device__ __forceinline__ bool within(uint2 bounds, unsigned column) {
    return column - bounds.x < bounds.y - bounds.x;
}

/** Four lanes hold a column each of four rows of words; afterwards each lane has the row of its number. */
__device__ __forceinline__ uint4 transpose_words(unsigned lane, std::uint32_t (&words)[4]) {
    bool const odd = lane & 1, upper = lane & 2;
#pragma unroll
    for (unsigned i = 0; i != 4; i += 2) {
        std::uint32_t const other = __shfl_xor_sync(whole_warp_k, odd ? words[i] : words[i + 1], 1);
        words[i] = odd ? other : words[i];
        words[i + 1] = odd ? words[i + 1] : other;
    }
    std::uint32_t const first = __shfl_xor_sync(whole_warp_k, upper ? words[0] : words[2], 2);
    std::uint32_t const second = __shfl_xor_sync(whole_warp_k, upper ? words[1] : words[3], 2);
    return upper ? make_uint4(first, second, words[2], words[3]) : make_uint4(words[0], words[1], first, second);
}

/**
 *  Writes 16 rows of sums, or 32, times a factor, in bfloat16, 16 bytes a lane.
 *  @param row_of Called with the row, 0 to 31; answers where its first value goes, null where it goes nowhere.
 */
template <unsigned uppers_ak, unsigned blocks_ak, typename row_at>
__device__ __forceinline__ void store_sums(float const (&sums)[uppers_ak][blocks_ak][4],
                                           float const (&factors)[uppers_ak][2], row_at&& row_of) {
    unsigned const lane = threadIdx.x % warp_k;
#pragma unroll
    for (unsigned upper = 0; upper != uppers_ak; ++upper)
#pragma unroll
        for (unsigned half = 0; half != 2; ++half) {
            __nv_bfloat16* const row = row_of(upper * 16 + half * 8 + lane / 4);
            float const factor = factors[upper][half];
#pragma unroll
            for (unsigned block = 0; block != blocks_ak; block += 4) {
                std::uint32_t words[4];
#pragma unroll
                for (unsigned i = 0; i != 4; ++i) {
                    float const* const pair = sums[upper][block + i] + half * 2;
                    words[i] = pack(pair[0] * factor, pair[1] * factor);
                }
                uint4 const chunk = transpose_words(lane, words);
                if (row)
                    reinterpret_cast<uint4*>(row)[block + lane % 4] = chunk;
            }
        }
}

template <unsigned uppers_ak, unsigned blocks_ak, typename row_at>
__device__ __forceinline__ void store_sums(float const (&sums)[uppers_ak][blocks_ak][4], float factor,
                                           row_at&& row_of) {
    float factors[uppers_ak][2];
#pragma unroll
    for (auto& pair : factors)
        pair[0] = pair[1] = factor;
    store_sums(sums, factors, row_of);
}

/** Where `along` of a head lies: for each row what it gives to its own normalisation, its output times its gradient. */
__device__ __forceinline__ float* along_of(attention_problem const& problem, unsigned head) {
    std::size_t const unit_floats = attention_unit_k * head_width_k, capacity = problem.columns.capacity;
    return problem.scratch + problem.heads * attention_scratch_units(capacity) * unit_floats + head * capacity;
}

/** Adds the products of two pairs of bfloat16, whose bits are float32's upper half. */
__device__ __forceinline__ float dot_words(std::uint32_t a, std::uint32_t b, float sum) {
    sum = fmaf(__uint_as_float(a << 16), __uint_as_float(b << 16), sum);
    return fmaf(__uint_as_float(a & 0xFFFF0000u), __uint_as_float(b & 0xFFFF0000u), sum);
}

/** A lane's eighth of what a row and head attended, and of its gradient. */
struct row_eighth {
    uint4 attended, gradient;

    static __device__ __forceinline__ row_eighth load(attention_problem const& problem, unsigned head, unsigned row) {
        std::size_t const at = (std::size_t(row) * problem.heads + head) * head_width_k + threadIdx.x % 8 * 8;
        return {*reinterpret_cast<uint4 const*>(problem.attended + at),
                *reinterpret_cast<uint4 const*>(problem.gradient + at)};
    }
    /** What the row gives to its own normalisation, from the eight lanes that call together; each has it. */
    __device__ __forceinline__ float along() const {
        float sum = dot_words(attended.x, gradient.x, 0.f);
        sum = dot_words(attended.y, gradient.y, sum);
        sum = dot_words(attended.z, gradient.z, sum);
        sum = dot_words(attended.w, gradient.w, sum);
#pragma unroll
        for (unsigned step = 1; step != 8; step *= 2)
            sum += __shfl_xor_sync(whole_warp_k, sum, step);
        return sum;
    }
};

__device__ __forceinline__ float row_along(attention_problem const& problem, unsigned head, unsigned row) {
    return row_eighth::load(problem, head, row).along();
}

/** A 32x16 piece of sums rounded to bfloat16 is the left operand of the next product, lane by lane. */
template <unsigned blocks_ak>
__device__ __forceinline__ void pack_operand(std::uint32_t (&operand)[4], float const (&sums)[blocks_ak][4],
                                             unsigned block) {
    operand[0] = pack(sums[block][0], sums[block][1]);
    operand[1] = pack(sums[block][2], sums[block][3]);
    operand[2] = pack(sums[block + 1][0], sums[block + 1][1]);
    operand[3] = pack(sums[block + 1][2], sums[block + 1][3]);
}

/** products [32 rows of a, 32 rows of b] = a b^T over 64 columns. */
__device__ __forceinline__ void multiply_rows(float (&products)[2][4][4], std::uint32_t a, unsigned a_row,
                                              std::uint32_t b, unsigned b_row, unsigned lane) {
    unsigned const down = lane_place_down(lane), across = lane_place_across(lane);
#pragma unroll
    for (unsigned step = 0; step != 4; ++step) {
        std::uint32_t left[2][4];
        load_matrices(left[0], matrices_at(a, down, a_row, step * 2));
        load_matrices(left[1], matrices_at(a, down, a_row + 16, step * 2));
#pragma unroll
        for (unsigned block = 0; block != 4; block += 2) {
            std::uint32_t right[4];
            load_matrices(right, matrices_at(b, across, b_row + block * 8, step * 2));
#pragma unroll
            for (unsigned upper = 0; upper != 2; ++upper) {
                multiply_add(products[upper][block], left[upper], right[0], right[1]);
                multiply_add(products[upper][block + 1], left[upper], right[2], right[3]);
            }
        }
    }
}

/** sums [32, 64] += weights [32, 32] times 32 rows of b. */
__device__ __forceinline__ void add_weighted(float (&sums)[2][8][4], float const (&weights)[2][4][4], std::uint32_t b,
                                             unsigned b_row, unsigned lane) {
    unsigned const down = lane_place_down(lane);
#pragma unroll
    for (unsigned step = 0; step != 2; ++step) {
        std::uint32_t left[2][4];
        pack_operand(left[0], weights[0], step * 2);
        pack_operand(left[1], weights[1], step * 2);
#pragma unroll
        for (unsigned block = 0; block != 8; block += 2) {
            std::uint32_t right[4];
            load_matrices_transposed(right, matrices_at(b, down, b_row + step * 16, block));
#pragma unroll
            for (unsigned upper = 0; upper != 2; ++upper) {
                multiply_add(sums[upper][block], left[upper], right[0], right[1]);
                multiply_add(sums[upper][block + 1], left[upper], right[2], right[3]);
            }
        }
    }
}

} // namespace uform::vram

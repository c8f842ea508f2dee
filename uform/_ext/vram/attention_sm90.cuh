/**
 *  What attention's kernels of Hopper share. A block of threads takes 128 columns of a head, each of its two groups of
 *  warps 64 of them, a box. It visits the boxes of columns that its columns' segments reach: its own two stay in shared
 *  memory, the others pass by in pairs, two at a time. A group's sums of 64 rows lie in its warps, 16 rows each,
 *  as `attention_tile.cuh` says.
 */
#pragma once

#include "vram/attention_tile.cuh"
#include "vram/wgmma.cuh"

namespace uform::vram::sm90 {

using hopper::box_bytes_k;
using hopper::box_k;

inline constexpr unsigned groups_k = attention_block_k / box_k;
inline constexpr unsigned block_threads_k = groups_k * hopper::group_k;
inline constexpr unsigned block_warps_k = block_threads_k / warp_k;
/** The thread that begins the first copies, of a warp that looks up no segments. */
inline constexpr unsigned copying_thread_k = attention_block_k;
inline constexpr unsigned own_boxes_k = groups_k;
/** Pairs of passing boxes that are there at a time. */
inline constexpr unsigned stages_k = 2;
static_assert(copying_thread_k < block_threads_k);
inline constexpr unsigned blocks_per_multiprocessor_k = 2;
/** Bytes from one product's part of a box to the next one's: along a row, and 16 rows further. */
inline constexpr unsigned along_row_k = hopper::depth_step_k<hopper::Major::K>;
inline constexpr unsigned along_rows_k = hopper::depth_step_k<hopper::Major::MN>;

/** Boxes in shared memory, each at a multiple of 1024 bytes. */
template <unsigned count_ak> using boxes_of = std::byte[count_ak][box_bytes_k];

/** The boxes that a block of threads visits, its own ones first: they arrive first. */
struct box_visits {
    unsigned first;  // the block's first column
    unsigned before; // boxes before its own ones
    unsigned count;  // all

    __device__ __forceinline__ unsigned passing() const { return count - own_boxes_k; }
    __device__ __forceinline__ unsigned column(unsigned visit) const {
        bool const earlier = visit >= own_boxes_k && visit - own_boxes_k < before;
        return earlier ? first - (before + own_boxes_k - visit) * box_k
                       : first + (visit - (visit < own_boxes_k ? 0 : before)) * box_k;
    }
};

/** Where the segments of the block's columns lie. */
struct segment_memory {
    uint2 bounds[attention_block_k]; // of a column without a segment 0 and 0
    uint2 hulls[attention_block_k / warp_k];
};

/** Columns [begin, end), none where `end` is 0. */
struct column_range {
    unsigned begin, end;

    __device__ __forceinline__ bool touches(unsigned first, unsigned count) const {
        return first < end && first + count > begin;
    }
};

/** The segments of a thread's two rows, and what those of its warp and of its group have in common. */
struct row_segments {
    uint2 const* bounds; // of the first row; the second one is 8 further
    column_range group;
    warp_bounds warp;

    /** Keeps what lies within a row's segment: a thread has two columns of every eight. */
    template <unsigned blocks_ak>
    __device__ __forceinline__ void mask(float (&values)[blocks_ak][4], unsigned column, float other) const {
#pragma unroll
        for (unsigned half = 0; half != 2; ++half) {
            uint2 const segment = bounds[half * 8];
#pragma unroll
            for (unsigned block = 0; block != blocks_ak; ++block)
#pragma unroll
                for (unsigned i = 0; i != 2; ++i)
                    if (!within(segment, column + block * 8 + threadIdx.x % 4 * 2 + i))
                        values[block][half * 2 + i] = other;
        }
    }
};

/** This thread's group within the block, which compilers then know to be the same in all lanes. */
__device__ __forceinline__ unsigned group_place() { return warp_place() / (hopper::group_k / warp_k); }

/** The row of the block that begins those of this thread's warp. */
__device__ __forceinline__ unsigned warp_row() { return warp_place() * 16; }

/** Looks up the segments of the block's columns; a barrier of the block must follow. @param segment Of the thread's. */
__device__ __forceinline__ void find_segments(segment_memory& memory, uform_columns_t const& columns, unsigned first,
                                              unsigned count, unsigned segment) {
    if (threadIdx.x >= attention_block_k)
        return;
    uint2 own = make_uint2(0, 0);
    if (first + threadIdx.x < count) {
        uform_segment_t const& found = columns.segments[segment];
        own = make_uint2(found.first, found.first + found.columns);
    }
    memory.bounds[threadIdx.x] = own;
    warp_bounds const warp = warp_bounds::of(own);
    if (threadIdx.x % warp_k == 0)
        memory.hulls[threadIdx.x / warp_k] = make_uint2(warp.begin, warp.end);
}

__device__ __forceinline__ column_range hull_of(segment_memory const& memory, unsigned first_warp, unsigned past_warp) {
    column_range hull{0xFFFFFFFFu, 0};
#pragma unroll
    for (unsigned i = first_warp; i != past_warp; ++i)
        hull = {min(hull.begin, memory.hulls[i].x), max(hull.end, memory.hulls[i].y)};
    return hull;
}

__device__ __forceinline__ row_segments segments_of_rows(segment_memory const& memory) {
    unsigned const lane = threadIdx.x % warp_k;
    constexpr unsigned group_hulls = box_k / warp_k;
    row_segments rows;
    rows.bounds = memory.bounds + warp_row() + lane / 4;
    rows.warp = warp_bounds::of(memory.bounds[warp_row() + lane % 16]);
    rows.group = group_place() == 0 ? hull_of(memory, 0, group_hulls) : hull_of(memory, group_hulls, 2 * group_hulls);
    return rows;
}

/** The segments of a column, as numbers that mean something where the column is one of the count. */
struct block_segments {
    unsigned first, last, own; // of the block's first column, of its last one, and of the thread's

    static __device__ __forceinline__ block_segments load(uform_columns_t const& columns, unsigned first) {
        auto const segment_of = [&](unsigned column) { return columns.segment_of[min(column, columns.active - 1)]; };
        return {segment_of(first), segment_of(first + attention_block_k - 1),
                segment_of(first + threadIdx.x % attention_block_k)};
    }
    /** The columns of all segments that the block's columns belong to, of which the first is one of the count. */
    __device__ __forceinline__ column_range hull(uform_columns_t const& columns, unsigned block_first,
                                                 unsigned count) const {
        unsigned end = count;
        if (block_first + attention_block_k <= count)
            end = columns.segments[last].first + columns.segments[last].columns;
        return {columns.segments[first].first, end};
    }
};

__device__ __forceinline__ box_visits visits_of(column_range hull, unsigned first) {
    unsigned const before = (first - hull.begin + box_k - 1) / box_k, past = first + attention_block_k;
    return {first, before, before + own_boxes_k + (hull.end > past ? (hull.end - past + box_k - 1) / box_k : 0)};
}

/** Zeros in the rows of a box that begins at `column` which lie past the count: what is there may be anything. */
__device__ __forceinline__ void clear_slack(std::byte* box, unsigned column, unsigned count, unsigned thread,
                                            unsigned threads) {
    unsigned const begin = count > column ? (count - column) * (tile_row_bytes_k / 16) : 0;
    for (unsigned at = begin + thread; at < box_bytes_k / 16; at += threads)
        reinterpret_cast<uint4*>(box)[at] = make_uint4(0, 0, 0, 0);
}

/** Boxes of a matrix: those that begin at a column of it. */
struct box_column {
    CUtensorMap const* map;
    unsigned column;
};

/** Begins the copy of a box, by one thread. */
__device__ __forceinline__ void copy_box(std::byte* to, box_column from, unsigned row, hopper::barrier const& arrived) {
    hopper::copy_box(shared_place(to), *from.map, static_cast<int>(from.column), static_cast<int>(row), arrived);
}

/** This warp has read what `readings` counts for. True for one thread: so have all `warps_ak`, it may write there. */
template <unsigned warps_ak> __device__ __forceinline__ bool read_by_all(unsigned& readings) {
    __syncwarp();
    if (threadIdx.x % warp_k != 0)
        return false;
    unsigned before;
    asm volatile("atom.acq_rel.cta.shared::cta.add.u32 %0, [%1], 1;"
                 : "=r"(before)
                 : "r"(shared_place(&readings))
                 : "memory");
    return before % warps_ak == warps_ak - 1;
}

/** The stages through which pairs of boxes pass, and who has read them. */
struct passing_memory {
    boxes_of<2> stages[stages_k];
    hopper::barrier full[stages_k];
    unsigned readings[stages_k]; // by warps, since the kernel began

    __device__ __forceinline__ boxes_of<2>& boxes_at(unsigned step) { return stages[step % stages_k]; }

    /** By one thread, before any copy begins. */
    __device__ __forceinline__ void init() {
#pragma unroll
        for (unsigned stage = 0; stage != stages_k; ++stage)
            full[stage].init(1), readings[stage] = 0;
    }
    /** Begins the copies of a step, by one thread: of the same rows of two matrices. */
    __device__ __forceinline__ void copy(unsigned step, box_column first, box_column second, unsigned row) {
        unsigned const stage = step % stages_k;
        full[stage].expect(2 * box_bytes_k);
        copy_box(stages[stage][0], first, row, full[stage]);
        copy_box(stages[stage][1], second, row, full[stage]);
    }
    __device__ __forceinline__ void wait(unsigned step) const { full[step % stages_k].wait(step / stages_k % 2); }
    /** This warp needs a step's boxes no more. True for one thread: all warps have said so, it may copy there. */
    __device__ __forceinline__ bool release(unsigned step) {
        return read_by_all<block_warps_k>(readings[step % stages_k]);
    }
    /** Clears what lies past the count in a step's boxes, for the products of this thread's group. */
    __device__ __forceinline__ void clear(unsigned step, unsigned column, unsigned count) {
        for (std::byte* box : {stages[step % stages_k][0], stages[step % stages_k][1]})
            clear_slack(box, column, count, threadIdx.x % hopper::group_k, hopper::group_k);
        hopper::show_to_products();
        hopper::named_wait<hopper::group_k>(1 + group_place());
    }
};

/** How products find a box, of either order: where a box is as wide as an operand, what tells them apart is not read.
 */
__device__ __forceinline__ std::uint64_t operand_of(std::byte const* box) { return hopper::by_rows(shared_place(box)); }

/** The two boxes of a visit, as products find them. */
struct visited_boxes {
    std::uint64_t first, second; // queries and gradients, or keys and values
};

/** Begins sums [64, rows of b] = a b^T over 64 columns. @param b A box, or half of one. */
template <unsigned blocks_ak>
__device__ __forceinline__ void multiply_rows(float (&sums)[blocks_ak][4], std::uint64_t a, std::uint64_t b) {
    using hopper::Major, hopper::further;
#pragma unroll
    for (unsigned step = 0; step != box_k / hopper::depth_k; ++step)
        hopper::multiply_add<Major::K, Major::K>(sums, further(a, step * along_row_k), further(b, step * along_row_k),
                                                 step != 0);
    hopper::products_commit();
}

/** Begins sums [64, 64] += weights times rows of b, of which there are as many as weights have columns. */
template <unsigned blocks_ak>
__device__ __forceinline__ void add_weighted(float (&sums)[8][4], float const (&weights)[blocks_ak][4],
                                             std::uint64_t b) {
    std::uint32_t left[blocks_ak / 2][4];
#pragma unroll
    for (unsigned step = 0; step != blocks_ak / 2; ++step)
        pack_operand(left[step], weights, step * 2);
    hopper::products_begin();
#pragma unroll
    for (unsigned step = 0; step != blocks_ak / 2; ++step)
        hopper::add_product<hopper::Major::MN>(sums, left[step], hopper::further(b, step * along_rows_k));
    hopper::products_commit();
}

} // namespace uform::vram::sm90

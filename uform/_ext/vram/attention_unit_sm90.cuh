/** A unit of whole segments and a head, of at most 256 columns: where a block of threads finds it, copies and keeps it.
 */
#pragma once

#include "vram/attention_rows_sm90.cuh"

namespace uform::vram::sm90 {

inline constexpr unsigned unit_boxes_k = attention_unit_columns_k / box_k;
inline constexpr unsigned unit_groups_k = unit_boxes_k;
inline constexpr unsigned unit_threads_k = unit_groups_k * hopper::group_k;
inline constexpr unsigned unit_warps_k = unit_threads_k / warp_k;
inline constexpr unsigned unit_width_k = head_width_k;

/** Columns of whole segments, and a head. No columns: there are no more units. */
struct attention_unit {
    unsigned head, first, columns;

    __device__ __forceinline__ unsigned boxes() const { return (columns + box_k - 1) / box_k; }
};

/** A column's segment within its unit: [x, y], nothing where x is past y. */
using column_bounds = uchar2;

/** Boxes of a unit that arrive together, again and again, and how many warps have read them. */
struct unit_arrival {
    hopper::barrier there;
    unsigned readings; // since the kernel began

    /** By one thread. */
    __device__ __forceinline__ void init() { there.init(1), readings = 0; }
    /** This warp needs the boxes no more. True for one thread: all warps have said so, it may copy there. */
    __device__ __forceinline__ bool release() { return read_by_all<unit_warps_k>(readings); }
};

struct unit_memory {
    boxes_of<unit_boxes_k> queries, keys, values, gradients;
    /** Gradients of scores, [queries' box][keys' box]: a line a key. Those of the last queries lie on the values. */
    boxes_of<unit_groups_k> deltas[unit_boxes_k - 1];
    alignas(16) float log_sums[attention_unit_columns_k]; // to base 2
    alignas(16) float along[attention_unit_columns_k];
    column_bounds bounds[attention_unit_columns_k];
    attention_unit units[2];                        // the one that is worked on, and the next
    unit_arrival of_gradients, of_queries, of_keys; // keys' with the values'
    hopper::barrier rows_there;                     // what columns have of their own
    hopper::barrier deltas_there;

    __device__ __forceinline__ std::byte* deltas_of(unsigned queries_box, unsigned keys_box) {
        return queries_box == unit_boxes_k - 1 ? values[keys_box] : deltas[queries_box][keys_box];
    }
    /** By one thread. */
    __device__ __forceinline__ void init() {
        of_gradients.init(), of_queries.init(), of_keys.init();
        rows_there.init(unit_threads_k), deltas_there.init(unit_threads_k);
        hopper::barriers_are_ready();
    }
};
static_assert(sizeof(unit_memory) <= 227 * 1024);

/** An arrival for this thread: it shows what the thread itself has written. */
__device__ __forceinline__ void arrive(hopper::barrier const& at) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(at.place()) : "memory");
}

/** Brings a box nearer, into the L2 cache. */
__device__ __forceinline__ void prefetch_box(box_column from, unsigned row) {
    asm volatile("cp.async.bulk.prefetch.tensor.2d.L2.global [%0, {%1, %2}];" ::"l"(from.map), "r"(from.column),
                 "r"(row)
                 : "memory");
}

/** Stores four 8x8 matrices of bfloat16; lane l gives the place of row l % 8 of matrix l / 8. */
__device__ __forceinline__ void store_matrices(std::uint32_t row, std::uint32_t const (&matrices)[4]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row), "r"(matrices[0]),
                 "r"(matrices[1]), "r"(matrices[2]), "r"(matrices[3])
                 : "memory");
}

/** Finds a block's units, a thread for all. A window without any is the last one that has columns. */
struct unit_walk {
    unsigned item;            // a window of columns and a head
    bool second;              // whether the window's second unit is the next one
    unsigned lowest, highest; // segments of the window's first and last column

    /** Begins the look-up of the next unit. */
    __device__ __forceinline__ void begin(attention_problem const& problem, unsigned count) {
        unsigned const first = item / problem.heads * attention_unit_columns_k;
        if (first >= count)
            return;
        lowest = problem.columns.segment_of[first];
        highest = problem.columns.segment_of[min(first + attention_unit_columns_k, count) - 1];
    }
    /** Segments that begin in the window are the next unit; where they are too many, the last one is a unit of its own.
     */
    __device__ __forceinline__ attention_unit finish(attention_problem const& problem, unsigned count) {
        unsigned const head = item % problem.heads, window = item / problem.heads * attention_unit_columns_k;
        if (window >= count)
            return {0, 0, 0};
        uform_segment_t const &low = problem.columns.segments[lowest], &high = problem.columns.segments[highest];
        unsigned const low_first = low.first, high_first = high.first, end = high_first + high.columns;
        unsigned const first = low_first == window ? window : low_first + low.columns;
        if (second || end - first <= attention_unit_columns_k) {
            unsigned const begin = second ? high_first : first;
            second = false, item += gridDim.x;
            return {head, begin, end - begin}; // none: the count's last columns are of the window before
        }
        second = true;
        return {head, first, high_first - first};
    }
};

/** Copies the boxes of units, by one thread. */
struct unit_copies {
    unit_memory& memory;
    CUtensorMap const &qkv, &gradient;
    unsigned hidden;

    __device__ __forceinline__ void copy(std::byte (*to)[box_bytes_k], CUtensorMap const& map, unsigned column,
                                         attention_unit const& unit, hopper::barrier const& there) const {
#pragma unroll 1
        for (unsigned box = 0; box != unit.boxes(); ++box)
            copy_box(to[box], {&map, column + unit.head * unit_width_k}, unit.first + box * box_k, there);
    }
    __device__ __forceinline__ void copy_gradients(attention_unit const& unit) const {
        memory.of_gradients.there.expect(unit.boxes() * box_bytes_k);
        copy(memory.gradients, gradient, 0, unit, memory.of_gradients.there);
    }
    __device__ __forceinline__ void copy_queries(attention_unit const& unit) const {
        memory.of_queries.there.expect(unit.boxes() * box_bytes_k);
        copy(memory.queries, qkv, 0, unit, memory.of_queries.there);
    }
    __device__ __forceinline__ void copy_keys(attention_unit const& unit) const {
        memory.of_keys.there.expect(2 * unit.boxes() * box_bytes_k);
        copy(memory.keys, qkv, hidden, unit, memory.of_keys.there);
        copy(memory.values, qkv, 2 * hidden, unit, memory.of_keys.there);
    }
    __device__ __forceinline__ void prefetch(attention_unit const& unit) const {
        unsigned const column = unit.head * unit_width_k;
#pragma unroll 1
        for (unsigned box = 0; box != unit.boxes(); ++box) {
            unsigned const row = unit.first + box * box_k;
            prefetch_box({&gradient, column}, row);
#pragma unroll 1
            for (unsigned part = 0; part != 3; ++part)
                prefetch_box({&qkv, part * hidden + column}, row);
        }
    }
};

/** What a unit's columns have of their own, on its way: eight lanes a column. Gradients are read from their boxes. */
struct unit_rows {
    static constexpr unsigned rows_at_once_k = unit_threads_k / 8, passes_k = attention_unit_columns_k / rows_at_once_k;

    uint4 attended[passes_k]; // an eighth of a row
    float log_sums[passes_k];
    column_bounds bounds; // a thread a column

    static __device__ __forceinline__ unsigned row(unsigned pass) { return pass * rows_at_once_k + threadIdx.x / 8; }
    static __device__ __forceinline__ __nv_bfloat16 const* attended_at(attention_problem const& problem,
                                                                       attention_unit const& unit, unsigned row) {
        std::size_t const column = unit.first + min(row, unit.columns - 1);
        return problem.attended + (column * problem.heads + unit.head) * unit_width_k;
    }

    __device__ __forceinline__ void load(attention_problem const& problem, attention_unit const& unit) {
        float const* const sums = problem.log_sums + std::size_t(unit.head) * problem.columns.capacity;
#pragma unroll
        for (unsigned pass = 0; pass != passes_k; ++pass) {
            attended[pass] =
                *reinterpret_cast<uint4 const*>(attended_at(problem, unit, row(pass)) + threadIdx.x % 8 * 8);
            log_sums[pass] = sums[unit.first + min(row(pass), unit.columns - 1)];
        }
        bounds = make_uchar2(1, 0);
        if (threadIdx.x < unit.columns) {
            uint2 const found = segment_bounds(problem.columns, unit.first + threadIdx.x);
            bounds = make_uchar2(static_cast<unsigned char>(found.x - unit.first),
                                 static_cast<unsigned char>(found.y - 1 - unit.first));
        }
    }
    __device__ __forceinline__ void store(unit_memory& memory) const {
#pragma unroll
        for (unsigned pass = 0; pass != passes_k; ++pass) {
            std::byte const* const box = memory.gradients[row(pass) / box_k];
            row_eighth const eighth{
                attended[pass], *reinterpret_cast<uint4 const*>(box + chunk_place(row(pass) % box_k, threadIdx.x % 8))};
            float const along = eighth.along();
            if (threadIdx.x % 8 == 0)
                memory.log_sums[row(pass)] = log_sums[pass] * base_2_k, memory.along[row(pass)] = along;
        }
        if (threadIdx.x < attention_unit_columns_k)
            memory.bounds[threadIdx.x] = bounds;
    }
    /** Brings what columns attended nearer, into the L2 cache. */
    static __device__ __forceinline__ void prefetch(attention_problem const& problem, attention_unit const& unit) {
        if (threadIdx.x < unit.columns)
            asm volatile("prefetch.global.L2 [%0];" ::"l"(__cvta_generic_to_global(
                problem.attended + (std::size_t(unit.first + threadIdx.x) * problem.heads + unit.head) * unit_width_k))
                         : "memory");
    }
};

} // namespace uform::vram::sm90

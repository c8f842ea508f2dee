/**
 *  The tile of `mma_tile.cuh` by groups of four warps on Hopper: the same members, so that a kernel may be written for
 *  either. A tile's operands lie in shared memory as boxes of 64 lines of 128 bytes, see `wgmma.cuh`.
 */
#pragma once

#include "vram/mma_tile.cuh"
#include "vram/wgmma.cuh"

namespace uform::vram {

/**
 *  @tparam rows_ak Of the tile: a group of warps has 64.
 *  @tparam columns_ak Of the tile: 64, 128 or 256, of which every group has all.
 *  @tparam stages_ak Steps of the depth that lie in shared memory at a time.
 *  @tparam pending_ak Steps whose products go on while the next one's begin, 0 or 1: then a stage less is on its way.
 */
template <unsigned rows_ak, unsigned columns_ak, unsigned stages_ak, unsigned pending_ak> struct wgmma_tile {
    static constexpr unsigned rows_k = rows_ak;
    static constexpr unsigned columns_k = columns_ak;
    static constexpr unsigned groups_k = rows_ak / hopper::box_k;
    static constexpr unsigned threads_k = groups_k * hopper::group_k;
    static constexpr unsigned warps_across_k = 1;
    /** The depth of one step. */
    static constexpr unsigned depth_k = hopper::box_k;

    static constexpr unsigned downs_k = 1;
    static constexpr unsigned acrosses_k = columns_ak / 8;

    static constexpr unsigned left_bytes_k = rows_ak * depth_k * 2;
    static constexpr unsigned stage_bytes_k = left_bytes_k + columns_ak * depth_k * 2;
    static constexpr unsigned box_alignment_k = 1024;
    static constexpr unsigned shared_bytes_k = stages_ak * stage_bytes_k + box_alignment_k;
    static_assert(stages_ak >= 2 + pending_ak && rows_ak % hopper::box_k == 0 && columns_ak % hopper::box_k == 0);

    /** A thread's part of the product, as that of `mma_tile`. */
    using sums_t = float[downs_k][acrosses_k][4];

    static __device__ __forceinline__ unsigned lane() { return threadIdx.x % warp_k; }
    static __device__ __forceinline__ unsigned warp_across() { return 0; }

    /** The row within the tile of sums [0][*][2 * half] and the next. */
    static __device__ __forceinline__ unsigned row_of(unsigned, unsigned half) {
        return threadIdx.x / warp_k * 16 + half * 8 + lane() / 4;
    }
    /** The column within the tile of sums [0][across][0] and [2]; those of [1] and [3] follow it. */
    static __device__ __forceinline__ unsigned column_of(unsigned across) { return across * 8 + lane() % 4 * 2; }

    /** Begins the copy of one step of an operand, as that of `mma_tile`. */
    template <contiguous order_ak, unsigned operand_rows_ak>
    static __device__ __forceinline__ void load(std::uint32_t to, operand const& from, std::size_t first_row,
                                                std::size_t end_row, std::size_t first_depth, std::size_t end_depth) {
        constexpr bool by_depth = order_ak == contiguous::depth;
        constexpr unsigned chunks_k = (by_depth ? depth_k : operand_rows_ak) / 8; // of 16 bytes, in a line of memory
        constexpr unsigned lines_k = by_depth ? operand_rows_ak : depth_k;
        constexpr unsigned lines_at_once_k = threads_k / chunks_k;
        static_assert(threads_k % chunks_k == 0 && lines_k % lines_at_once_k == 0);
        std::size_t const first_line = by_depth ? first_row : first_depth, end_line = by_depth ? end_row : end_depth;
        std::size_t const first_place = by_depth ? first_depth : first_row, end = by_depth ? end_depth : end_row;
        unsigned const chunk = threadIdx.x % chunks_k, of_box = chunk % 8;
        bool const inside = first_place + chunk * 8 < end;
        to += chunk / 8 * hopper::box_bytes_k;
#pragma unroll
        for (unsigned pass = 0; pass != lines_k / lines_at_once_k; ++pass) {
            unsigned const line = threadIdx.x / chunks_k + pass * lines_at_once_k;
            bool const present = inside && first_line + line < end_line;
            __nv_bfloat16 const* const at =
                from.values + (present ? (first_line + line) * from.stride + first_place + chunk * 8 : 0);
            copy_begin(to + line * 128 + ((of_box ^ line % 8) << 4), at, present);
        }
    }

    /** What multiplies: steps come in order, `load_step(left, right)` begins the copies of the next one. */
    template <contiguous left_ak, contiguous right_ak, typename load_at>
    static __device__ __forceinline__ void multiply(sums_t& sums, std::uint32_t shared, unsigned steps,
                                                    load_at&& load_step) {
        using namespace hopper;
        constexpr Major left_k = left_ak == contiguous::depth ? Major::K : Major::MN;
        constexpr Major right_k = right_ak == contiguous::depth ? Major::K : Major::MN;
        // A stage is loaded again when its products are done, which all threads know one step later.
        constexpr unsigned ahead_k = stages_ak - 1 - pending_ak;
        shared = (shared + box_alignment_k - 1) / box_alignment_k * box_alignment_k;
        auto const stage_at = [&](unsigned stage) { return shared + stage * stage_bytes_k; };
#pragma unroll
        for (unsigned stage = 0; stage != ahead_k; ++stage) {
            if (stage < steps)
                load_step(stage_at(stage), stage_at(stage) + left_bytes_k);
            copies_commit();
        }
        unsigned stage = 0, next = ahead_k;
        for (unsigned step = 0; step != steps; ++step) {
            copies_wait<ahead_k - 1>();
            show_to_products();
            __syncthreads(); // the step has arrived for all
            std::uint32_t const left = stage_at(stage) + threadIdx.x / group_k * box_bytes_k;
            std::uint32_t const right = stage_at(stage) + left_bytes_k;
            fence_sums(sums[0]);
            products_begin();
#pragma unroll
            for (unsigned depth = 0; depth != box_k / hopper::depth_k; ++depth)
                multiply_add<left_k, right_k>(sums[0], operand_at<left_k>(left + depth * depth_step_k<left_k>),
                                              operand_at<right_k>(right + depth * depth_step_k<right_k>), true);
            products_commit();
            fence_sums(sums[0]);
            if (step + ahead_k < steps)
                load_step(stage_at(next), stage_at(next) + left_bytes_k);
            copies_commit();
            products_wait<pending_ak>();
            stage = stage + 1 == stages_ak ? 0 : stage + 1;
            next = next + 1 == stages_ak ? 0 : next + 1;
        }
        products_wait<0>();
        fence_sums(sums[0]);
        copies_wait<0>();
        __syncthreads();
    }
};

} // namespace uform::vram

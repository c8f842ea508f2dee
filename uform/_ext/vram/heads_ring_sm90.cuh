/**
 *  Products of the heads on Hopper: boxes of both operands come through a ring in shared memory, begun by one thread;
 *  two blocks, a cluster, take tiles below each other and copy the right operand once for both.
 */
#pragma once

#include "vram/heads.cuh"
#include "vram/tensor_map.h"
#include "vram/wgmma.cuh"

namespace uform::vram::sm90 {

/**
 *  Steps of the depth, 64 places each, on their way.
 *  @tparam lefts_ak Boxes of the left operand, 64 of the tile's rows each. @tparam rights_ak Of the right one.
 *  @tparam readers_ak Groups of warps that read each step.
 */
template <unsigned lefts_ak, unsigned rights_ak, unsigned stages_ak, unsigned readers_ak> struct head_ring {
    static constexpr unsigned stages_k = stages_ak, rights_k = rights_ak;
    static constexpr unsigned step_bytes_k = (lefts_ak + rights_ak) * hopper::box_bytes_k;
    static_assert(rights_ak % 2 == 0, "either block of a cluster copies half of them");
    using place_t = hopper::ring_place<stages_ak>;

    std::byte left[stages_ak][lefts_ak][hopper::box_bytes_k];
    std::byte right[stages_ak][rights_ak][hopper::box_bytes_k];
    hopper::barrier full[stages_ak], empty[stages_ak];

    /** By one thread; the cluster must meet behind it. */
    __device__ void init() const {
        for (unsigned stage = 0; stage != stages_ak; ++stage)
            full[stage].init(1), empty[stage].init(2 * readers_ak); // of either block
        hopper::barriers_are_ready();
    }
    /** Waits for room and begins the copies of a step.
     *  @param copy_left (to, box). @param copy_right The same, to both blocks of the cluster. */
    template <typename left_at, typename right_at>
    __device__ __forceinline__ void copy(place_t const& at, hopper::barrier const& arrived, unsigned rank,
                                         left_at&& copy_left, right_at&& copy_right) const {
        empty[at.stage].wait(at.parity ^ 1);
        arrived.expect(step_bytes_k);
        for (unsigned box = rank * (rights_ak / 2); box != (rank + 1) * (rights_ak / 2); ++box)
            copy_right(shared_place(right[at.stage][box]), box);
        for (unsigned box = 0; box != lefts_ak; ++box)
            copy_left(shared_place(left[at.stage][box]), box);
    }
    /** A group is done with a stage. */
    __device__ __forceinline__ void release(unsigned stage) const {
        unsigned const thread = threadIdx.x % hopper::group_k;
        if (thread < 2)
            empty[stage].arrive(thread);
    }
};

/** The rows of one box of 64: those of a panel's last box end with the panel, so that no memory behind it is read. Rows
 *  before `nominal` are another box's, too, or none. */
struct box_rows {
    int nominal, first;

    __device__ box_rows(std::uint32_t nominal_, std::uint32_t rows)
        : nominal(static_cast<int>(nominal_)),
          first(min(nominal, static_cast<int>(rows) - static_cast<int>(hopper::box_k))) {}

    /** The row at a place of the box, and whether it is this box's. */
    __device__ int row(unsigned place) const { return first + static_cast<int>(place); }
    __device__ bool has(unsigned place) const { return row(place) >= nominal; }
};

/**
 *  A group's product over so many steps of the ring.
 *  @param left_box The first of the group's boxes. @param released (): a step's room is free. @param last (): all
 * products have begun.
 */
template <hopper::Major left_ak, hopper::Major right_ak, typename ring_at, unsigned downs_ak, unsigned acrosses_ak,
          typename released_at, typename last_at>
__device__ __forceinline__ void multiply_steps(ring_at const& ring, typename ring_at::place_t& at, unsigned steps,
                                               unsigned left_box, float (&sums)[downs_ak][acrosses_ak][4],
                                               released_at&& released, last_at&& last) {
    using namespace hopper;
    auto const fence = [&] {
#pragma unroll
        for (auto& down : sums)
            fence_sums(down);
    };
    unsigned before = 0;
    for (unsigned step = 0; step != steps; ++step) {
        ring.full[at.stage].wait(at.parity);
        std::uint32_t const left = shared_place(ring.left[at.stage][left_box]);
        std::uint32_t const right = shared_place(ring.right[at.stage]);
        fence();
        products_begin();
#pragma unroll
        for (unsigned depth = 0; depth != box_k / depth_k; ++depth)
#pragma unroll
            for (unsigned down = 0; down != downs_ak; ++down)
                multiply_add<left_ak, right_ak>(
                    sums[down], operand_at<left_ak>(left + down * box_bytes_k + depth * depth_step_k<left_ak>),
                    operand_at<right_ak>(right + depth * depth_step_k<right_ak>), step + depth != 0);
        products_commit();
        fence();
        if (step != 0) {
            products_wait<1>();
            ring.release(before);
            released();
        }
        before = at.stage;
        at.advance();
    }
    last();
    products_wait<0>();
    fence();
    ring.release(before);
    released();
}

/** Two groups take turns at the products: while one multiplies, the other ends its tile. */
struct group_turns {
    static constexpr unsigned groups_k = 2, threads_k = groups_k * hopper::group_k;

    /** Of those that multiply. */
    static __device__ __forceinline__ unsigned group() { return threadIdx.x / hopper::group_k - 1; }
    static __device__ __forceinline__ void begin() {
        if (group() == 1)
            hopper::named_arrive<threads_k>(1);
    }
    static __device__ __forceinline__ void wait() { hopper::named_wait<threads_k>(1 + group()); }
    static __device__ __forceinline__ void pass_on() { hopper::named_arrive<threads_k>(1 + (group() ^ 1)); }
    /** The group's own threads. */
    static __device__ __forceinline__ void meet() { hopper::named_wait<hopper::group_k>(3 + group()); }
};

/** Rows of a matrix in memory, how many is known to the device alone: none is read that is not there. */
inline constexpr std::size_t any_rows_k = 0x7FFFFFFF;

/** Clusters that run at a time, at most so many. */
inline unsigned clusters_of(stream const& stream, std::size_t most) {
    std::size_t const at_once = std::max(1u, static_cast<unsigned>(stream.multiprocessors) / 2);
    return static_cast<unsigned>(std::min(at_once, std::max<std::size_t>(most, 1)));
}

} // namespace uform::vram::sm90

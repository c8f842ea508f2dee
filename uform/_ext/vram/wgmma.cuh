/**
 *  Hopper's own instructions: tensors copied in bulk, barriers that count their bytes, products of a group of four
 *  warps. Operands lie in shared memory as boxes of 64 by 64 bfloat16, 8 KiB each, with the 128-byte swizzle: chunk c
 * of line l lies at c ^ (l % 8).
 */
#pragma once

#include <cstdint>
#include <utility>

#include <cuda.h>
#include <cute/arch/mma_sm90_gmma.hpp>

#include "vram/attention_mma.cuh"

namespace uform::vram::hopper {

/** Places of a box's side, and its bytes. */
inline constexpr unsigned box_k = 64;
inline constexpr unsigned box_bytes_k = box_k * box_k * 2;
/** Depth of one product. */
inline constexpr unsigned depth_k = 16;
/** Threads of a group of warps. */
inline constexpr unsigned group_k = 128;

/** A barrier in shared memory that counts arrivals and, within a phase, bytes. */
struct barrier {
    std::uint64_t bits;

    __device__ __forceinline__ std::uint32_t place() const { return shared_place(this); }

    __device__ __forceinline__ void init(unsigned arrivals) const {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(place()), "r"(arrivals) : "memory");
    }
    /** One arrival, and so many bytes to come in this phase. */
    __device__ __forceinline__ void expect(unsigned bytes) const {
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(place()), "r"(bytes) : "memory");
    }
    /** An arrival at the same barrier of a block of the cluster. */
    __device__ __forceinline__ void arrive(unsigned block) const {
        asm volatile("{\n"
                     ".reg .b32 there;\n"
                     "mapa.shared::cluster.u32 there, %0, %1;\n"
                     "mbarrier.arrive.shared::cluster.b64 _, [there];\n"
                     "}" ::"r"(place()),
                     "r"(block)
                     : "memory");
    }
    /** Until the phase of this parity is over. */
    __device__ __forceinline__ void wait(unsigned parity) const {
        asm volatile("{\n"
                     ".reg .pred over;\n"
                     "again:\n"
                     "mbarrier.try_wait.parity.shared::cta.b64 over, [%0], %1;\n"
                     "@over bra done;\n"
                     "bra again;\n"
                     "done:\n"
                     "}" ::"r"(place()),
                     "r"(parity)
                     : "memory");
    }
};

/** Barriers were initialised: shown to the cluster and to copies in bulk. */
__device__ __forceinline__ void barriers_are_ready() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ unsigned block_of_cluster() {
    unsigned rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

/** Every thread of every block of the cluster comes this far; what they wrote is not waited for. Barriers that were
 *  initialised are seen behind it. */
__device__ __forceinline__ void cluster_meet() {
    asm volatile("barrier.cluster.arrive.relaxed.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

/** Every thread of every block of the cluster. */
__device__ __forceinline__ void cluster_sync() {
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

/** A barrier of the block among so many of its threads. 0 is that of all. */
template <unsigned threads_ak> __device__ __forceinline__ void named_wait(unsigned name) {
    asm volatile("bar.sync %0, %1;" ::"r"(name), "n"(threads_ak) : "memory");
}
/** An arrival at it by a thread that does not wait there. */
template <unsigned threads_ak> __device__ __forceinline__ void named_arrive(unsigned name) {
    asm volatile("bar.arrive %0, %1;" ::"r"(name), "n"(threads_ak) : "memory");
}

/** The kernel that follows on the stream may be placed where this one leaves room, if it was launched to. */
__device__ __forceinline__ void let_later_kernels_begin() { asm volatile("griddepcontrol.launch_dependents;"); }
/** Until all that came before on the stream is done and seen. A kernel that was launched early must not end without:
 *  those behind it wait for it alone. */
__device__ __forceinline__ void depend_on_earlier_kernels() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

/** Registers that each thread of the group has from here on. */
template <unsigned count_ak> __device__ __forceinline__ void take_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(count_ak));
}
template <unsigned count_ak> __device__ __forceinline__ void give_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(count_ak));
}

__device__ __forceinline__ void prefetch(CUtensorMap const& map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

/** Begins the copy of a box, by one thread. Places outside the tensor become zero, and count as bytes all the same. */
__device__ __forceinline__ void copy_box(std::uint32_t to, CUtensorMap const& from, int column, int row,
                                         barrier const& arrived) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], "
                 "[%2];" ::"r"(to),
                 "l"(&from), "r"(arrived.place()), "r"(column), "r"(row)
                 : "memory");
}

/** The same into both blocks of a cluster of two, at the same place of each, and counted at the barrier of each. */
__device__ __forceinline__ void copy_box_to_both(std::uint32_t to, CUtensorMap const& from, int column, int row,
                                                 barrier const& arrived) {
    constexpr std::uint16_t both = 3;
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
                 "[%0], [%1, {%3, %4}], [%2], %5;" ::"r"(to),
                 "l"(&from), "r"(arrived.place()), "r"(column), "r"(row), "h"(both)
                 : "memory");
}

/** The same of a matrix whose rows are dealt, see `dealt_map_of`. @param row A multiple of 32. */
__device__ __forceinline__ void copy_dealt_box_to_both(std::uint32_t to, CUtensorMap const& from, int column, int row,
                                                       barrier const& arrived) {
    constexpr std::uint16_t both = 3;
    asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
                 "[%0], [%1, {%3, %4, %4, %4, %5}], [%2], %6;" ::"r"(to),
                 "l"(&from), "r"(arrived.place()), "r"(column), "r"(0), "r"(row / 32), "h"(both)
                 : "memory");
}

using cute::SM90::GMMA::Major;

/** How a product finds an operand whose lines have their depth contiguous: lines follow each other in boxes. */
__device__ __forceinline__ std::uint64_t by_depth(std::uint32_t place) {
    constexpr std::uint64_t swizzle_128 = 1ull << 62, eight_lines = std::uint64_t(1024 >> 4) << 32;
    return swizzle_128 | eight_lines | (1ull << 16) | ((place & 0x3FFFF) >> 4);
}

/** The same where its rows are contiguous: a line is a place of the depth, a box holds 64 rows, the next 64 follow. */
__device__ __forceinline__ std::uint64_t by_rows(std::uint32_t place) {
    constexpr std::uint64_t swizzle_128 = 1ull << 62, eight_lines = std::uint64_t(1024 >> 4) << 32;
    return swizzle_128 | eight_lines | (std::uint64_t(box_bytes_k >> 4) << 16) | ((place & 0x3FFFF) >> 4);
}

/** The same operand so many bytes further, a multiple of 16. */
__device__ __forceinline__ std::uint64_t further(std::uint64_t operand, unsigned bytes) {
    // Places end far below the word's end: nothing is carried.
    return (operand & ~std::uint64_t(0xFFFFFFFF)) | (static_cast<std::uint32_t>(operand) + (bytes >> 4));
}

/** Bytes from one product's part of a box to the next one's. */
template <Major order_ak> inline constexpr unsigned depth_step_k = order_ak == Major::K ? depth_k * 2 : depth_k * 128;

template <Major order_ak> __device__ __forceinline__ std::uint64_t operand_at(std::uint32_t place) {
    return order_ak == Major::K ? by_depth(place) : by_rows(place);
}

template <unsigned columns_ak, Major left_ak, Major right_ak> struct product_of;
template <Major left_ak, Major right_ak> struct product_of<32, left_ak, right_ak> {
    using type = cute::SM90::GMMA::MMA_64x32x16_F32BF16BF16_SS<left_ak, right_ak>;
};
template <Major left_ak, Major right_ak> struct product_of<64, left_ak, right_ak> {
    using type = cute::SM90::GMMA::MMA_64x64x16_F32BF16BF16_SS<left_ak, right_ak>;
};
template <Major left_ak, Major right_ak> struct product_of<128, left_ak, right_ak> {
    using type = cute::SM90::GMMA::MMA_64x128x16_F32BF16BF16_SS<left_ak, right_ak>;
};
template <Major left_ak, Major right_ak> struct product_of<256, left_ak, right_ak> {
    using type = cute::SM90::GMMA::MMA_64x256x16_F32BF16BF16_SS<left_ak, right_ak>;
};

/** A group's sums of a product of 64 rows: [columns / 8][of each 8 columns: rows 0 and 8 below, two columns each]. */
template <unsigned columns_ak> using sums_of = float[columns_ak / 8][4];

template <Major left_ak, Major right_ak, unsigned blocks_ak, std::size_t... at_ak>
__device__ __forceinline__ void multiply_add(float (&sums)[blocks_ak][4], std::uint64_t left, std::uint64_t right,
                                             bool add, std::index_sequence<at_ak...>) {
    using product = typename product_of<blocks_ak * 8, left_ak, right_ak>::type;
    product::fma(left, right, sums[at_ak / 4][at_ak % 4]...,
                 add ? cute::SM90::GMMA::ScaleOut::One : cute::SM90::GMMA::ScaleOut::Zero);
}

/** Begins sums (+)= left [64, 16] right [16, columns]. */
template <Major left_ak, Major right_ak, unsigned blocks_ak>
__device__ __forceinline__ void multiply_add(float (&sums)[blocks_ak][4], std::uint64_t left, std::uint64_t right,
                                             bool add) {
    multiply_add<left_ak, right_ak>(sums, left, right, add, std::make_index_sequence<blocks_ak * 4>{});
}

/** The same where a thread's registers hold its part of the left operand. */
template <unsigned columns_ak, Major right_ak> struct register_product_of;
template <Major right_ak> struct register_product_of<64, right_ak> {
    using type = cute::SM90::GMMA::MMA_64x64x16_F32BF16BF16_RS<Major::K, right_ak>;
};

template <Major right_ak, unsigned blocks_ak, std::size_t... at_ak>
__device__ __forceinline__ void add_product(float (&sums)[blocks_ak][4], std::uint32_t const (&left)[4],
                                            std::uint64_t right, std::index_sequence<at_ak...>) {
    register_product_of<blocks_ak * 8, right_ak>::type::fma(left[0], left[1], left[2], left[3], right,
                                                            sums[at_ak / 4][at_ak % 4]...);
}

/** Begins sums += left [64, 16] right [16, columns]. */
template <Major right_ak, unsigned blocks_ak>
__device__ __forceinline__ void add_product(float (&sums)[blocks_ak][4], std::uint32_t const (&left)[4],
                                            std::uint64_t right) {
    add_product<right_ak>(sums, left, right, std::make_index_sequence<blocks_ak * 4>{});
}

/** Keeps a value from being moved across. */
__device__ __forceinline__ void fence_value(float& value) { asm volatile("" : "+f"(value)::"memory"); }

// Not by a loop: until it is unrolled, compilers keep the sums in memory.
template <unsigned blocks_ak, std::size_t... at_ak>
__device__ __forceinline__ void fence_sums(float (&sums)[blocks_ak][4], std::index_sequence<at_ak...>) {
    (fence_value(sums[at_ak / 4][at_ak % 4]), ...);
}

/** Between a thread's own use of sums and the products'. */
template <unsigned blocks_ak> __device__ __forceinline__ void fence_sums(float (&sums)[blocks_ak][4]) {
    fence_sums(sums, std::make_index_sequence<blocks_ak * 4>{});
}

__device__ __forceinline__ void products_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void products_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
/** Until all groups of products but the last `pending_ak` are done. */
template <unsigned pending_ak> __device__ __forceinline__ void products_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending_ak) : "memory");
}

/** What this thread wrote to shared memory is there for products and copies in bulk that begin later. */
__device__ __forceinline__ void show_to_products() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

/** Goes round the stages of a ring: the parity of a stage's barrier turns with each round. */
template <unsigned stages_ak> struct ring_place {
    unsigned stage = 0, parity = 0;

    __device__ __forceinline__ void advance(unsigned by = 1) {
        stage += by;
        while (stage >= stages_ak)
            stage -= stages_ak, parity ^= 1;
    }
};

} // namespace uform::vram::hopper

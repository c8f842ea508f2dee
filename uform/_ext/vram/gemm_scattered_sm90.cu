#include "vram/gemm_scattered_sm90.h"

#include "vram/gemm_fused_sm90.cuh"

namespace uform::vram::sm90 {
namespace {

constexpr unsigned blocks_k = half_k / lanes_k; // of eight columns, in a box

__device__ __forceinline__ uint4 load_shared(std::uint32_t place) {
    uint4 words;
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w)
                 : "r"(place)
                 : "memory");
    return words;
}

/** Each warp stores its own rows, from boxes that it alone writes: copies in bulk know no rows' places. */
struct scattered {
    struct arguments {
        __nv_bfloat16* y;
        std::uint32_t const* places;
        unsigned rows, columns;
    };
    static constexpr unsigned sources_k = 0, slots_k = 0, boxes_k = 4;
    static constexpr unsigned rows_at_once_k = warp_k / blocks_k, passes_k = 16 / rows_at_once_k;

    static __device__ void prefetch(arguments const&) {}

    /** Nothing comes in by boxes or goes out by copies of them: no one is told. */
    template <typename sums_at, typename... told_at>
    static __device__ __forceinline__ void finish(arguments const& to, sums_at const& sums, tile_thread const& own,
                                                  std::uint32_t boxes, told_at&&...) {
        unsigned const chunk = own.lane % blocks_k;
        std::uint32_t places[2][passes_k];
#pragma unroll
        for (unsigned half = 0; half != 2; ++half)
#pragma unroll
            for (unsigned pass = 0; pass != passes_k; ++pass) {
                unsigned const row = own.first_row + half * half_k + row_of(own, pass);
                places[half][pass] = row < to.rows ? to.places[row] : no_place_k;
            }
#pragma unroll
        for (unsigned part = 0; part != 2; ++part)
#pragma unroll
            for (unsigned half = 0; half != 2; ++half)
#pragma unroll
                for (unsigned first = 0; first != blocks_k; first += 2) {
                    std::uint32_t words[4];
                    for_words([&](unsigned block, unsigned below, unsigned f) {
                        unsigned const at = part * blocks_k + first + block;
                        words[f] = pack(sums(sum_at(half, at, below, 0)), sums(sum_at(half, at, below, 1)));
                    });
                    store_matrices(own.place(box_of(boxes, part, half), first), words);
                }
        __syncwarp();
#pragma unroll
        for (unsigned half = 0; half != 2; ++half)
#pragma unroll
            for (unsigned pass = 0; pass != passes_k; ++pass)
#pragma unroll
                for (unsigned part = 0; part != 2; ++part) {
                    unsigned const row = row_of(own, pass), column = own.first_column + part * half_k + chunk * lanes_k;
                    uint4 const words = load_shared(box_of(boxes, part, half) + row * 128 + ((chunk ^ row % 8) << 4));
                    if (places[half][pass] != no_place_k && column < to.columns)
                        *reinterpret_cast<uint4*>(to.y + std::size_t(places[half][pass]) * to.columns + column) = words;
                }
        __syncwarp(); // the boxes may be written again
    }

private:
    /** The row within a half that this lane stores. */
    static __device__ __forceinline__ unsigned row_of(tile_thread const& own, unsigned pass) {
        return own.warp * 16 + pass * rows_at_once_k + own.lane / blocks_k;
    }
    static __device__ __forceinline__ std::uint32_t box_of(std::uint32_t boxes, unsigned part, unsigned half) {
        return boxes + (part * 2 + half) * hopper::box_bytes_k;
    }
};

using forward = fused_kernel<cutlass::layout::ColumnMajor, second_rows::follow, scattered>;

} // namespace

void gemm_scattered_forward(stream const& stream, linear_extents const& extents, __nv_bfloat16 const* x,
                            __nv_bfloat16 const* weight, std::uint32_t const* places, __nv_bfloat16* y) {
    auto const [rows, outs, ins] = extents;
    launch_fused<forward>(stream, {rows, outs, ins, 1, x, weight, nullptr, y}, {y, places, rows, outs});
}

} // namespace uform::vram::sm90

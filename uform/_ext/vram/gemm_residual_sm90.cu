/** y = x weight^T + residual on Hopper, in bfloat16. */
#include "vram/gemm_fused_sm90.cuh"

namespace uform::vram::sm90 {
namespace {

constexpr unsigned blocks_k = half_k / lanes_k; // of eight columns, in a box

/** What is added comes in by boxes, and leaves in them as the sum. */
struct added {
    struct arguments {
        CUtensorMap residual, answer;
        float* squares; // [rows, columns / 64] of the answer, or null
        unsigned rows, columns;
    };
    static constexpr unsigned units_k = 2, sources_k = 2, slots_k = 2, boxes_k = slots_k * sources_k;

    static __device__ void prefetch(arguments const& of) {
        hopper::prefetch(of.residual);
        hopper::prefetch(of.answer);
    }

    static __device__ __forceinline__ void load(arguments const& of, unsigned row, unsigned column, unsigned unit,
                                                std::uint32_t boxes, hopper::barrier const& barrier) {
#pragma unroll
        for (unsigned half = 0; half != 2; ++half)
            hopper::copy_box(boxes + half * hopper::box_bytes_k, of.residual, static_cast<int>(column + unit * half_k),
                             static_cast<int>(row + half * half_k), barrier);
    }

    /** Of a row four lanes have sums over a box's columns. */
    static __device__ __forceinline__ void keep(arguments const& of, tile_thread const& own, unsigned half,
                                                unsigned column, float const (&squares)[2]) {
#pragma unroll
        for (unsigned below = 0; below != 2; ++below) {
            float sum = squares[below] + __shfl_xor_sync(whole_warp_k, squares[below], 1);
            sum += __shfl_xor_sync(whole_warp_k, sum, 2);
            unsigned const row = own.row_of(half, below);
            if (own.lane % 4 == 0 && row < of.rows && column < of.columns)
                of.squares[std::size_t(row) * (of.columns / half_k) + column / half_k] = sum;
        }
    }

    template <typename sums_at, typename come_at, typename gone_at>
    static __device__ __forceinline__ void finish(arguments const& of, sums_at const& sums, tile_thread const& own,
                                                  std::uint32_t boxes, come_at&& come, gone_at&& gone) {
#pragma unroll
        for (unsigned part = 0; part != 2; ++part) {
            auto const box = [&](unsigned half) { return boxes + (part * 2 + half) * hopper::box_bytes_k; };
            come();
#pragma unroll
            for (unsigned half = 0; half != 2; ++half) {
                float squares[2] = {};
#pragma unroll
                for (unsigned first = 0; first != blocks_k; first += 2) {
                    std::uint32_t words[4];
                    load_matrices(words, own.place(box(half), first));
                    for_words([&](unsigned block, unsigned below, unsigned f) {
                        unsigned const at = part * blocks_k + first + block;
                        float2 const more = unpack(words[f]);
                        words[f] =
                            pack(sums(sum_at(half, at, below, 0)) + more.x, sums(sum_at(half, at, below, 1)) + more.y);
                        float2 const stored = unpack(words[f]);
                        squares[below] += stored.x * stored.x + stored.y * stored.y;
                    });
                    store_matrices(own.place(box(half), first), words);
                }
                if (of.squares)
                    keep(of, own, half, own.first_column + part * half_k, squares);
            }
            gone([&] {
#pragma unroll
                for (unsigned half = 0; half != 2; ++half)
                    store_box(of.answer, own.first_column + part * half_k, own.first_row + half * half_k, box(half));
            });
        }
    }
};

using forward = fused_kernel<cutlass::layout::ColumnMajor, second_rows::follow, added>;

} // namespace

void gemm_residual_forward(stream const& stream, gemm_problem const& problem, float* squares) {
    static_assert(norm_part_k == half_k);
    auto const map = [&](void const* matrix) {
        return tensor_map_of(stream, static_cast<__nv_bfloat16 const*>(matrix), problem.m, problem.n, problem.n);
    };
    launch_fused<forward>(stream, problem, {map(problem.c), map(problem.d), squares, problem.m, problem.n});
}

} // namespace uform::vram::sm90

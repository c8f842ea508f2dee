/** Queries, keys and values of a block on Hopper: queries and keys are turned before they are stored. */
#include "vram/gemm_fused_sm90.cuh"

namespace uform::vram::sm90 {
namespace {

constexpr unsigned blocks_k = half_k / lanes_k; // of eight columns, in a box: one head
constexpr unsigned pairs_k = half_k / 2;        // of a head's columns j and j + 32

/** Half a tile's columns are a head. */
struct turned {
    struct arguments {
        CUtensorMap qkv;
        float2 const* turns;  // [rows, pairs]
        float const* factors; // [rows] of the sums
        unsigned rows, turned_columns;
    };
    static constexpr unsigned sources_k = 0, slots_k = 0, boxes_k = 4;

    static __device__ void prefetch(arguments const& to) { hopper::prefetch(to.qkv); }

    template <typename sums_at, typename come_at, typename gone_at>
    static __device__ __forceinline__ void finish(arguments const& to, sums_at const& sums, tile_thread const& own,
                                                  std::uint32_t boxes, come_at&&, gone_at&& gone) {
        // A tile is two heads, and there are as many of queries as of keys.
        if (own.first_column < to.turned_columns)
            store_heads<true>(to, sums, own, boxes);
        else
            store_heads<false>(to, sums, own, boxes);
        gone([&] {
#pragma unroll
            for (unsigned part = 0; part != 2; ++part)
#pragma unroll
                for (unsigned half = 0; half != 2; ++half)
                    store_box(to.qkv, own.first_column + part * half_k, own.first_row + half * half_k,
                              box_of(boxes, part, half));
        });
    }

private:
    static __device__ __forceinline__ std::uint32_t box_of(std::uint32_t boxes, unsigned part, unsigned half) {
        return boxes + (part * 2 + half) * hopper::box_bytes_k;
    }

    /** The sums times their rows' factors, turned or not, to shared memory. */
    template <bool turn_ak, typename sums_at>
    static __device__ __forceinline__ void store_heads(arguments const& to, sums_at const& sums, tile_thread const& own,
                                                       std::uint32_t boxes) {
        // All that is loaded is waited for once.
        float factors[2][2];
        float4 pairs[2][blocks_k / 4][4]; // two neighbouring pairs' cosines and sines
#pragma unroll
        for (unsigned half = 0; half != 2; ++half) {
            own.factors_of(factors[half], to.factors, to.rows, half);
            if constexpr (turn_ak) {
#pragma unroll
                for (unsigned fragment = 0; fragment != blocks_k / 4; ++fragment)
                    for_words([&](unsigned block, unsigned below, unsigned f) {
                        unsigned const row = min(own.row_of(half, below), to.rows - 1);
                        unsigned const pair = (2 * fragment + block) * lanes_k + 2 * (own.lane % 4);
                        pairs[half][fragment][f] =
                            *reinterpret_cast<float4 const*>(to.turns + std::size_t(row) * pairs_k + pair);
                    });
            }
        }
#pragma unroll
        for (unsigned half = 0; half != 2; ++half) {
#pragma unroll
            for (unsigned fragment = 0; fragment != blocks_k / 4; ++fragment) {
                unsigned const first = 2 * fragment;
#pragma unroll
                for (unsigned part = 0; part != 2; ++part) {
                    std::uint32_t firsts[4], seconds[4];
                    for_words([&](unsigned block, unsigned below, unsigned f) {
                        unsigned const at = part * blocks_k + first + block;
                        auto const value = [&](unsigned block_at, unsigned column) {
                            return sums(sum_at(half, block_at, below, column)) * factors[half][below];
                        };
                        float const a = value(at, 0), b = value(at, 1);
                        float const c = value(at + blocks_k / 2, 0), d = value(at + blocks_k / 2, 1);
                        if constexpr (turn_ak) {
                            float4 const by = pairs[half][fragment][f];
                            firsts[f] = pack(a * by.x - c * by.y, b * by.z - d * by.w);
                            seconds[f] = pack(c * by.x + a * by.y, d * by.z + b * by.w);
                        } else {
                            firsts[f] = pack(a, b), seconds[f] = pack(c, d);
                        }
                    });
                    store_matrices(own.place(box_of(boxes, part, half), first), firsts);
                    store_matrices(own.place(box_of(boxes, part, half), first + blocks_k / 2), seconds);
                }
            }
        }
    }
};

using forward = fused_kernel<cutlass::layout::ColumnMajor, second_rows::follow, turned>;

} // namespace

void gemm_turned_forward(stream const& stream, turned_problem const& problem) {
    auto const& [norm, columns, weight, qkv, turns] = problem;
    std::uint32_t const rows = norm.rows.active, hidden = norm.rows.hidden, outs = 3 * hidden;
    launch_fused<forward>(stream, {rows, outs, hidden, 1, norm.x, norm.scaled, nullptr, nullptr},
                          {tensor_map_of(stream, qkv, rows, outs, outs), turns, norm.inverses, rows, 2 * hidden});
}

} // namespace uform::vram::sm90

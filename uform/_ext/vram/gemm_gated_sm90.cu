/** GeGLU between the two products of a feed-forward, in the epilogues of the one before it on Hopper. */
#include "vram/gelu.cuh"
#include "vram/gemm_fused_sm90.cuh"

namespace uform::vram::sm90 {
namespace {

using cutlass::layout::ColumnMajor;
using cutlass::layout::RowMajor;

constexpr unsigned blocks_k = half_k / lanes_k; // of eight columns, in a box

/** Sums are 64 gates, and the 64 that they gate, but for their rows' factors: all are stored, and their products. */
struct gated_forward {
    struct arguments {
        CUtensorMap gates, ups, product;
        std::uint32_t const* count;
        float const* factors; // [rows]
        unsigned rows;
    };
    static constexpr unsigned sources_k = 0, slots_k = 0, boxes_k = 6;

    static __device__ void prefetch(arguments const& to) {
        hopper::prefetch(to.gates);
        hopper::prefetch(to.ups);
        hopper::prefetch(to.product);
    }

    template <typename sums_at, typename come_at, typename gone_at>
    static __device__ __forceinline__ void finish(arguments const& to, sums_at const& sums, tile_thread const& own,
                                                  std::uint32_t boxes, come_at&&, gone_at&& gone) {
        std::uint32_t const count = *to.count;
        auto const box = [&](unsigned matrix, unsigned half) {
            return boxes + (matrix * 2 + half) * hopper::box_bytes_k;
        };
        float factors[2][2]; // all that is loaded, waited for once
        std::uint32_t kept[2][2];
#pragma unroll
        for (unsigned half = 0; half != 2; ++half) {
            own.factors_of(factors[half], to.factors, to.rows, half);
            own.masks_of(kept[half], count, half);
        }
#pragma unroll
        for (unsigned half = 0; half != 2; ++half) {
#pragma unroll
            for (unsigned first = 0; first != blocks_k; first += 2) {
                std::uint32_t gates[4], ups[4], products[4];
                for_words([&](unsigned block, unsigned below, unsigned f) {
                    unsigned const at = first + block;
                    auto const value = [&](unsigned block_at, unsigned column) {
                        return sums(sum_at(half, block_at, below, column)) * factors[half][below];
                    };
                    gates[f] = pack(value(at, 0), value(at, 1));
                    ups[f] = pack(value(at + blocks_k, 0), value(at + blocks_k, 1));
                    float2 const gate = unpack(gates[f]), up = unpack(ups[f]);
                    products[f] = pack(gelu(gate.x) * up.x, gelu(gate.y) * up.y) & kept[half][below];
                });
                store_matrices(own.place(box(0, half), first), gates);
                store_matrices(own.place(box(1, half), first), ups);
                store_matrices(own.place(box(2, half), first), products);
            }
        }
        gone([&] {
#pragma unroll
            for (unsigned half = 0; half != 2; ++half) {
                unsigned const row = own.first_row + half * half_k, column = own.first_column / 2;
                store_box(to.gates, column, row, box(0, half));
                store_box(to.ups, column, row, box(1, half));
                store_box(to.product, column, row, box(2, half));
            }
        });
    }
};

/** Sums are the gradient of the product; the gradients of what it is the product of. */
struct gated_backward {
    struct arguments {
        CUtensorMap gates, ups, gate_slopes, up_slopes;
        std::uint32_t const* count;
    };
    // A quarter of the tile at a time: gates and ups, whose gradients take their places. The next quarter is on its way
    // meanwhile.
    static constexpr unsigned units_k = 4, sources_k = 2, slots_k = 2, boxes_k = slots_k * sources_k;

    static __device__ void prefetch(arguments const& of) {
        hopper::prefetch(of.gates);
        hopper::prefetch(of.ups);
        hopper::prefetch(of.gate_slopes);
        hopper::prefetch(of.up_slopes);
    }

    static __device__ __forceinline__ void load(arguments const& of, unsigned row, unsigned column, unsigned unit,
                                                std::uint32_t boxes, hopper::barrier const& barrier) {
        int const x = static_cast<int>(column + unit % 2 * half_k), y = static_cast<int>(row + unit / 2 * half_k);
        hopper::copy_box(boxes, of.gates, x, y, barrier);
        hopper::copy_box(boxes + hopper::box_bytes_k, of.ups, x, y, barrier);
    }

    template <typename sums_at, typename come_at, typename gone_at>
    static __device__ __forceinline__ void finish(arguments const& of, sums_at const& sums, tile_thread const& own,
                                                  std::uint32_t boxes, come_at&& come, gone_at&& gone) {
        static_assert(units_k % slots_k == 0);
        std::uint32_t const count = *of.count;
#pragma unroll
        for (unsigned unit = 0; unit != units_k; ++unit) {
            unsigned const half = unit / 2, part = unit % 2;
            std::uint32_t const gate_box = boxes + unit % slots_k * sources_k * hopper::box_bytes_k,
                                up_box = gate_box + hopper::box_bytes_k;
            std::uint32_t kept[2];
            own.masks_of(kept, count, half);
            come();
#pragma unroll
            for (unsigned first = 0; first != blocks_k; first += 2) {
                std::uint32_t gates[4], ups[4];
                load_matrices(gates, own.place(gate_box, first));
                load_matrices(ups, own.place(up_box, first));
                for_words([&](unsigned block, unsigned below, unsigned f) {
                    unsigned const at = part * blocks_k + first + block;
                    float const incoming[2] = {sums(sum_at(half, at, below, 0)), sums(sum_at(half, at, below, 1))};
                    float2 const gate = unpack(gates[f]), up = unpack(ups[f]);
                    gelu_pair const left = gelu_with_slope(gate.x), right = gelu_with_slope(gate.y);
                    gates[f] = pack(incoming[0] * up.x * left.slope, incoming[1] * up.y * right.slope) & kept[below];
                    ups[f] = pack(incoming[0] * left.value, incoming[1] * right.value) & kept[below];
                });
                store_matrices(own.place(gate_box, first), gates);
                store_matrices(own.place(up_box, first), ups);
            }
            gone([&] {
                unsigned const row = own.first_row + half * half_k, column = own.first_column + part * half_k;
                store_box(of.gate_slopes, column, row, gate_box);
                store_box(of.up_slopes, column, row, up_box);
            });
        }
    }
};

using forward = fused_kernel<ColumnMajor, second_rows::pair, gated_forward>;
using backward = fused_kernel<RowMajor, second_rows::follow, gated_backward>;

} // namespace

void gemm_gated_forward(stream const& stream, gated_problem const& problem) {
    auto const& [norm, inner, weight, gate_up, product] = problem;
    std::uint32_t const rows = norm.rows.active;
    auto const map = [&](__nv_bfloat16* matrix, std::uint32_t columns, std::size_t stride) {
        return tensor_map_of(stream, matrix, rows, columns, stride);
    };
    std::size_t const both = 2 * std::size_t(inner);
    launch_fused<forward>(stream, {rows, 2 * inner, norm.rows.hidden, 1, norm.x, norm.scaled, nullptr, nullptr},
                          {map(gate_up, inner, both), map(gate_up + inner, inner, both), map(product, inner, inner),
                           norm.rows.count, norm.inverses, rows});
}

void gemm_gated_backward(stream const& stream, gated_gradient_problem const& problem) {
    auto const& [rows, inner, hidden, count, dy, weight, gate_up, gate_up_gradient, incoming] = problem;
    std::size_t const both = 2 * std::size_t(inner);
    auto const map = [&](__nv_bfloat16 const* matrix) { return tensor_map_of(stream, matrix, rows, inner, both); };
    launch_fused<backward>(
        stream, {rows, inner, hidden, 1, dy, weight, nullptr, nullptr},
        {map(gate_up), map(gate_up + inner), map(gate_up_gradient), map(gate_up_gradient + inner), count});
}

} // namespace uform::vram::sm90

#include "vram/geglu.h"

#include "vram/elementwise.cuh"
#include "vram/gelu.cuh"
#include "vram/launch.cuh"
#include "vram/succession.cuh"

namespace uform::vram {

namespace {

__global__ void __launch_bounds__(256)
    multiply_gated(geglu_rows rows, __nv_bfloat16 const* __restrict__ gate_up, __nv_bfloat16* __restrict__ product) {
    follow_earlier_kernels();
    std::uint32_t const row = row_of_thread();
    if (row >= rows.active)
        return;
    bool const used = row < *rows.count;
    __nv_bfloat16 const* const gates = gate_up + std::size_t(row) * 2 * rows.inner;
    __nv_bfloat16* const products = product + std::size_t(row) * rows.inner;
    for_row_vectors(rows.inner, [&](std::uint32_t first) {
        if (!used)
            return store8(products + first, zero8());
        floatx8 const gate = widen(load8(gates + first)), up = widen(load8(gates + rows.inner + first));
        floatx8 result;
#pragma unroll
        for (unsigned i = 0; i != lanes_k; ++i)
            result[i] = gelu(gate[i]) * up[i];
        store8(products + first, narrow(result));
    });
}

/** Every thread reads its places before it writes any, so that results may lie where operands do. */
__global__ void __launch_bounds__(256)
    differentiate_gated(geglu_rows rows, __nv_bfloat16 const* gate_up, __nv_bfloat16 const* product_gradient,
                        __nv_bfloat16* gate_up_gradient) {
    follow_earlier_kernels();
    std::uint32_t const row = row_of_thread();
    if (row >= rows.active)
        return;
    bool const used = row < *rows.count;
    std::size_t const single = std::size_t(row) * rows.inner, pair = 2 * single;
    for_row_vectors(rows.inner, [&](std::uint32_t first) {
        bf16x8 gate_slopes = zero8(), up_slopes = zero8();
        if (used) {
            floatx8 const gate = widen(load8(gate_up + pair + first));
            floatx8 const up = widen(load8(gate_up + pair + rows.inner + first));
            floatx8 const incoming = widen(load8(product_gradient + single + first));
            floatx8 gate_slope, up_slope;
#pragma unroll
            for (unsigned i = 0; i != lanes_k; ++i) {
                gelu_pair const activated = gelu_with_slope(gate[i]);
                gate_slope[i] = incoming[i] * up[i] * activated.slope;
                up_slope[i] = incoming[i] * activated.value;
            }
            gate_slopes = narrow(gate_slope), up_slopes = narrow(up_slope);
        }
        store8(gate_up_gradient + pair + first, gate_slopes);
        store8(gate_up_gradient + pair + rows.inner + first, up_slopes);
    });
}

} // namespace

void launch_geglu_forward(stream const& stream, geglu_rows const& rows, __nv_bfloat16 const* gate_up,
                          __nv_bfloat16* product) {
    rows_shape const shape(rows.active, rows.inner / lanes_k);
    launch_early(stream, multiply_gated, shape.grid, shape.block, 0, rows, gate_up, product);
}

void launch_geglu_backward(stream const& stream, geglu_rows const& rows, __nv_bfloat16 const* gate_up,
                           __nv_bfloat16 const* product_gradient, __nv_bfloat16* gate_up_gradient) {
    rows_shape const shape(rows.active, rows.inner / lanes_k);
    launch_early(stream, differentiate_gated, shape.grid, shape.block, 0, rows, gate_up, product_gradient,
                 gate_up_gradient);
}

} // namespace uform::vram

/** The last step of a weight's gradient: partial sums of slices of rows, added in their order. */
#include "vram/elementwise.cuh"
#include "vram/gemm_family.h"
#include "vram/launch.cuh"
#include "vram/succession.cuh"

namespace uform::vram {
namespace {

constexpr unsigned threads_k = 256;
constexpr unsigned values_k = 4; // of one row of the gradient, in one thread

__device__ __forceinline__ void add(float4& sum, float4 const& more) {
    sum.x += more.x, sum.y += more.y, sum.z += more.z, sum.w += more.w;
}

/** A thread's four values: its slices, then the rows that no slice has, then what the gradient holds. */
__global__ void __launch_bounds__(threads_k) sum_partials_kernel(partial_sums const sums, float* dw) {
    follow_earlier_kernels();
    std::size_t const stride = std::size_t(sums.outs) * sums.ins;
    std::size_t const at = (std::size_t(blockIdx.x) * threads_k + threadIdx.x) * values_k;
    if (at >= stride)
        return;
    float4 sum = make_float4(0, 0, 0, 0);
    float const* from = sums.partials + at;
#pragma unroll 4
    for (unsigned slice = 0; slice != sums.slices; ++slice, from += stride)
        add(sum, __ldcs(reinterpret_cast<float4 const*>(from)));

    unsigned const out = static_cast<unsigned>(at / sums.ins), in = static_cast<unsigned>(at % sums.ins);
    auto const* dy = static_cast<__nv_bfloat16 const*>(sums.rest_dy) + out;
    auto const* x = static_cast<__nv_bfloat16 const*>(sums.rest_x) + in;
    for (unsigned row = 0; row != sums.rest_rows; ++row, dy += sums.outs, x += sums.ins) {
        float const factor = __bfloat162float(*dy);
        auto const* pairs = reinterpret_cast<__nv_bfloat162 const*>(x);
        float2 const low = __bfloat1622float2(pairs[0]), high = __bfloat1622float2(pairs[1]);
        add(sum, make_float4(factor * low.x, factor * low.y, factor * high.x, factor * high.y));
    }
    add(sum, *reinterpret_cast<float4 const*>(dw + at));
    *reinterpret_cast<float4*>(dw + at) = sum;
}

} // namespace

void launch_sum_partials(stream const& stream, partial_sums const& sums, float* dw) {
    std::size_t const threads = std::size_t(sums.outs) * sums.ins / values_k;
    launch_early(stream, sum_partials_kernel, blocks_for(threads, threads_k), threads_k, 0, sums, dw);
}

} // namespace uform::vram

/** Rows of bfloat16 eight values at a time, and reductions within a warp and a block. */
#pragma once

#include <cstdint>

#include <cuda_bf16.h>
#include <cuda_runtime.h>

namespace uform::vram {

inline constexpr unsigned warp_k = 32;
inline constexpr unsigned whole_warp_k = 0xFFFFFFFFu;

/** Values that one thread loads or stores at once. */
inline constexpr unsigned lanes_k = 8;

/** Eight values of bfloat16 as they lie in memory: 16 bytes. */
struct alignas(16) bf16x8 {
    __nv_bfloat162 pairs[lanes_k / 2];
};

/** Eight float32. */
struct floatx8 {
    float values[lanes_k];

    __device__ float& operator[](unsigned i) { return values[i]; }
    __device__ float operator[](unsigned i) const { return values[i]; }
};

// By way of uint4, for compilers copy the pairs one after another: four accesses for one.
__device__ __forceinline__ bf16x8 load8(__nv_bfloat16 const* from) {
    uint4 const whole = *reinterpret_cast<uint4 const*>(from);
    return *reinterpret_cast<bf16x8 const*>(&whole);
}

__device__ __forceinline__ void store8(__nv_bfloat16* to, bf16x8 const& values) {
    *reinterpret_cast<uint4*>(to) = *reinterpret_cast<uint4 const*>(&values);
}

__device__ __forceinline__ floatx8 widen(bf16x8 const& packed) {
    floatx8 wide;
#pragma unroll
    for (unsigned i = 0; i != lanes_k / 2; ++i) {
        float2 const pair = __bfloat1622float2(packed.pairs[i]);
        wide[2 * i] = pair.x, wide[2 * i + 1] = pair.y;
    }
    return wide;
}

__device__ __forceinline__ bf16x8 narrow(floatx8 const& wide) {
    bf16x8 packed;
#pragma unroll
    for (unsigned i = 0; i != lanes_k / 2; ++i)
        packed.pairs[i] = __floats2bfloat162_rn(wide[2 * i], wide[2 * i + 1]);
    return packed;
}

__device__ __forceinline__ bf16x8 zero8() {
    bf16x8 packed;
#pragma unroll
    for (unsigned i = 0; i != lanes_k / 2; ++i)
        packed.pairs[i] = __floats2bfloat162_rn(0.f, 0.f);
    return packed;
}

/** Eight float32 from memory aligned to 16 bytes. */
__device__ __forceinline__ floatx8 load8(float const* from) {
    float4 const low = reinterpret_cast<float4 const*>(from)[0], high = reinterpret_cast<float4 const*>(from)[1];
    return {{low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w}};
}

__device__ __forceinline__ void store8(float* to, floatx8 const& values) {
    reinterpret_cast<float4*>(to)[0] = make_float4(values[0], values[1], values[2], values[3]);
    reinterpret_cast<float4*>(to)[1] = make_float4(values[4], values[5], values[6], values[7]);
}

/** The sum over a warp, in every lane; the order is fixed. */
template <typename value_at> __device__ __forceinline__ value_at sum_warp(value_at value) {
#pragma unroll
    for (unsigned step = warp_k / 2; step != 0; step /= 2)
        value += __shfl_xor_sync(whole_warp_k, value, step);
    return value;
}

/**
 *  The sum over a block of whole warps, in every thread; the order is fixed.
 *  @param scratch [warps] in shared memory, which may be used again after the next barrier.
 */
template <typename value_at> __device__ __forceinline__ value_at sum_block(value_at value, value_at* scratch) {
    unsigned const thread = threadIdx.x + blockDim.x * threadIdx.y;
    unsigned const warps = (blockDim.x * blockDim.y) / warp_k;
    value = sum_warp(value);
    if (warps == 1)
        return value;
    if (thread % warp_k == 0)
        scratch[thread / warp_k] = value;
    __syncthreads();
    value_at sum = 0;
    for (unsigned warp = 0; warp != warps; ++warp)
        sum += scratch[warp];
    return sum;
}

/** The row of this thread where a kernel was shaped by `rows_shape`. */
__device__ __forceinline__ std::uint32_t row_of_thread() { return blockIdx.x * blockDim.y + threadIdx.y; }

/** Calls `body(first)` for each vector that this thread has of a row, `first` being the vector's place in the row. */
template <typename body_at> __device__ __forceinline__ void for_row_vectors(std::uint32_t width, body_at&& body) {
    for (std::uint32_t first = threadIdx.x * lanes_k; first < width; first += blockDim.x * lanes_k)
        body(first);
}

} // namespace uform::vram

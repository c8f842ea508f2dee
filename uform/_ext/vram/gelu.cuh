/** GELU in tanh's form and its derivative, by the special function units' own exponential and reciprocal. */
#pragma once

#include "vram/attention_mma.cuh"

namespace uform::vram {

/** gelu(x) = x sigmoid(2 u), u = sqrt(2 / pi) (x + 0.044715 x^3). */
inline constexpr float gelu_linear_k = 1.5957691216057308f; // 2 sqrt(2 / pi)
inline constexpr float gelu_cubic_k = 0.0713548162726009f;  // its product with 0.044715
inline constexpr float base_2_k = 1.4426950408889634f;      // log2(e)

/** GELU's value and its derivative. */
struct gelu_pair {
    float value, slope;
};

/** 1 / x to float32's last bits; 0 for infinity. */
__device__ __forceinline__ float reciprocal(float x) {
    float inverse;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(x));
    return inverse;
}

__device__ __forceinline__ float gelu(float x) {
    float const exponent = x * fmaf(x * x, -base_2_k * gelu_cubic_k, -base_2_k * gelu_linear_k);
    return x * reciprocal(1.f + power_of_2(exponent));
}

__device__ __forceinline__ gelu_pair gelu_with_slope(float x) {
    float const square = x * x;
    float const exponent = x * fmaf(square, -base_2_k * gelu_cubic_k, -base_2_k * gelu_linear_k);
    // A tail past float32's largest value would make infinity times zero of the slope.
    float const tail = power_of_2(fminf(exponent, 80.f));
    float const sigmoid = reciprocal(1.f + tail);
    float const value = x * sigmoid;
    // tail * sigmoid is 1 - sigmoid without cancellation
    return {value, fmaf(value * (tail * sigmoid), fmaf(square, 3.f * gelu_cubic_k, gelu_linear_k), sigmoid)};
}

} // namespace uform::vram

/** Lengths of float32 vectors, of which a warp has one, and what divides by them. */
#pragma once

#include <cfloat>
#include <cstdint>

#include "vram/elementwise.cuh"

namespace uform::vram {

template <typename value_at> inline constexpr value_at smallest_length_k = value_at(1e-12);

/** Calls `body(column)` for the columns of this lane. */
template <typename body_at> __device__ __forceinline__ void each_column(std::uint32_t width, body_at&& body) {
    for (std::uint32_t column = threadIdx.x % warp_k; column < width; column += warp_k)
        body(column);
}

/** A vector's length, in every lane. */
__device__ __forceinline__ float length_of(float const* vector, std::uint32_t width) {
    auto const sum_squares = [&](float factor) {
        float sum = 0;
        each_column(width, [&](std::uint32_t column) {
            float const value = vector[column] * factor;
            sum = fmaf(value, value, sum);
        });
        return sum_warp(sum);
    };
    float const sum = sum_squares(1);
    if (!(sum > FLT_MAX))
        return sqrtf(sum);
    // Squares overflow long before values do.
    constexpr float smaller = 0x1p-80f;
    return sqrtf(sum_squares(smaller)) / smaller;
}

/** What a vector of a length is divided by: never next to nothing, and NaN stays NaN. */
template <typename value_at> __device__ __forceinline__ value_at divisor_of(value_at length) {
    return length < smallest_length_k<value_at> ? smallest_length_k<value_at> : length;
}

} // namespace uform::vram

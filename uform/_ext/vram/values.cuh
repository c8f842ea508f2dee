/** Raw values of patches as scaled bfloat16, in rows padded to whole vectors. */
#pragma once

#include <type_traits>

#include <uform/plugin.h>

#include "core/error.h"
#include "vram/elementwise.cuh"

namespace uform::vram {

/** The width of a padded row: what vectors and the tensor cores' copies can step over. */
__host__ __device__ constexpr std::uint32_t padded_width(std::uint32_t width) {
    return (width + lanes_k - 1) / lanes_k * lanes_k;
}

/** How raw values become numbers: values[i] * multiplier + offset. */
struct value_scale {
    float multiplier, offset;
};

/**
 *  Eight values of a padded row, zero past its width.
 *  @tparam whole_ak Whether 8 divides the width. @param row Of `width` values; `first` is a multiple of 8.
 */
template <bool whole_ak, typename element_at>
__device__ __forceinline__ floatx8 load_scaled(element_at const* row, std::uint32_t first, std::uint32_t width,
                                               value_scale scale) {
    floatx8 values;
    if constexpr (whole_ak) {
        // Rows then begin on whole vectors; a vector of bytes is one load, of wider values one or two.
        struct alignas(sizeof(element_at) * lanes_k < 16 ? sizeof(element_at) * lanes_k : 16) vector {
            element_at elements[lanes_k];
        };
        vector const loaded = *reinterpret_cast<vector const*>(row + first);
#pragma unroll
        for (unsigned i = 0; i != lanes_k; ++i)
            values[i] = fmaf(static_cast<float>(loaded.elements[i]), scale.multiplier, scale.offset);
    } else {
#pragma unroll
        for (unsigned i = 0; i != lanes_k; ++i)
            values[i] =
                first + i < width ? fmaf(static_cast<float>(row[first + i]), scale.multiplier, scale.offset) : 0.f;
    }
    return values;
}

/** Eight values that lie in so many words. */
template <typename element_at>
__device__ __forceinline__ floatx8 scale_words(std::uint32_t const (&words)[sizeof(element_at) * lanes_k / 4],
                                               value_scale scale) {
    floatx8 values;
    if constexpr (std::is_same_v<element_at, std::uint8_t>) {
        // By the mantissa of 2^23, exactly: a conversion of integers takes several times as long.
#pragma unroll
        for (unsigned i = 0; i != lanes_k; ++i)
            values[i] = __uint_as_float(__byte_perm(words[i / 4], 0x4B000000, 0x7440 | i % 4)) - 0x1p23f;
    } else {
        static_assert(std::is_same_v<element_at, std::int16_t>);
#pragma unroll
        for (unsigned i = 0; i != lanes_k; ++i)
            values[i] = static_cast<float>(static_cast<std::int16_t>(words[i / 2] >> i % 2 * 16));
    }
#pragma unroll
    for (unsigned i = 0; i != lanes_k; ++i)
        values[i] = fmaf(values[i], scale.multiplier, scale.offset);
    return values;
}

/** Calls `body` with a value of the C++ type of an `uform_element_t`. */
template <typename body_at> void with_element(std::uint32_t element, body_at&& body) {
    switch (element) {
    case uform_element_uint8_k:
        return body(std::uint8_t{});
    case uform_element_int16_k:
        return body(std::int16_t{});
    case uform_element_float32_k:
        return body(float{});
    default:
        fail(uform_status_internal_k, "element: ", element, " is no type of values");
    }
}

} // namespace uform::vram

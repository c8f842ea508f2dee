#include "core/scalar.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "core/error.h"

namespace uform {

namespace {

constexpr float int8_scale_k = 127.0f;

std::int8_t int8_of(float value) noexcept {
    if (std::isnan(value))
        return 0;
    return static_cast<std::int8_t>(std::nearbyint(std::clamp(value * int8_scale_k, -int8_scale_k, int8_scale_k)));
}

void pack_bits(float const* from, std::size_t width, std::uint8_t* to) noexcept {
    for (std::size_t first = 0; first < width; first += 8) {
        unsigned byte = 0;
        for (std::size_t bit = 0; bit != 8 && first + bit != width; ++bit)
            byte |= (from[first + bit] > 0.0f) ? 0x80u >> bit : 0u;
        *to++ = static_cast<std::uint8_t>(byte);
    }
}

/** Writes element by element without assuming that the target is aligned. */
template <typename element_at, typename convert_at>
void convert_elements(float const* from, std::size_t count, void* to, convert_at&& convert) noexcept {
    auto* bytes = static_cast<unsigned char*>(to);
    for (std::size_t i = 0; i != count; ++i) {
        element_at const element = convert(from[i]);
        std::memcpy(bytes + i * sizeof element, &element, sizeof element);
    }
}

/** Bits of one value. */
std::size_t scalar_bits(std::int32_t scalar) {
    switch (scalar) {
    case uform_scalar_float32_k:
        return 32;
    case uform_scalar_float16_k:
    case uform_scalar_bfloat16_k:
        return 16;
    case uform_scalar_int8_k:
        return 8;
    case uform_scalar_bit_k:
        return 1;
    default:
        fail(uform_status_invalid_argument_k, "scalar is ", scalar, ", expected 0 to 4");
    }
}

} // namespace

std::uint16_t float16_bits(float value) noexcept {
    constexpr std::uint32_t infinity = 0x7F800000,
                            first_infinite = 0x477FF000; // 65520 is halfway past the largest half
    constexpr std::uint32_t least_normal = 0x38800000, half_of_least = 0x33000000; // 2^-14 and 2^-25
    std::uint32_t const bits = std::bit_cast<std::uint32_t>(value);
    std::uint32_t const sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7FFFFFFFu;
    std::uint32_t half;
    if (magnitude > infinity) {
        half = 0x7E00u | (magnitude >> 13 & 0x3FFu);
    } else if (magnitude >= first_infinite) {
        half = 0x7C00u;
    } else if (magnitude >= least_normal) {
        constexpr std::uint32_t exponent_shift = (127u - 15u) << 23;
        half = (magnitude - exponent_shift + 0xFFFu + (magnitude >> 13 & 1u)) >> 13;
    } else if (magnitude > half_of_least) {
        std::uint32_t const significand = (magnitude & 0x7FFFFFu) | 0x800000u, shift = 126u - (magnitude >> 23);
        half = (significand + (1u << (shift - 1)) - 1u + (significand >> shift & 1u)) >> shift;
    } else {
        half = 0;
    }
    return static_cast<std::uint16_t>(sign | half);
}

std::uint16_t bfloat16_bits(float value) noexcept {
    std::uint32_t const bits = std::bit_cast<std::uint32_t>(value);
    if (std::isnan(value))
        return static_cast<std::uint16_t>(bits >> 16 | 0x40u);
    return static_cast<std::uint16_t>((bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16);
}

std::size_t scalar_row_bytes(std::int32_t scalar, std::size_t width) {
    std::size_t const bits = scalar_bits(scalar);
    if (width > SIZE_MAX / 32)
        fail(uform_status_invalid_argument_k, "width is ", width, ", too large for a row");
    return (width * bits + 7) / 8;
}

void scalar_convert(float const* from, std::size_t rows, std::size_t width, std::int32_t scalar, void* to) {
    std::size_t const row_bytes = scalar_row_bytes(scalar, width);
    std::size_t const count = rows * width;
    if (!count)
        return;
    switch (scalar) {
    case uform_scalar_float32_k:
        std::memcpy(to, from, count * sizeof(float));
        break;
    case uform_scalar_float16_k:
        convert_elements<std::uint16_t>(from, count, to, float16_bits);
        break;
    case uform_scalar_bfloat16_k:
        convert_elements<std::uint16_t>(from, count, to, bfloat16_bits);
        break;
    case uform_scalar_int8_k:
        convert_elements<std::int8_t>(from, count, to, int8_of);
        break;
    case uform_scalar_bit_k:
        for (std::size_t row = 0; row != rows; ++row)
            pack_bits(from + row * width, width, static_cast<std::uint8_t*>(to) + row * row_bytes);
        break;
    }
}

} // namespace uform

uform_status_t uform_scalar_row_bytes(int32_t scalar, size_t width, size_t* bytes) {
    return uform::guard([&] {
        if (!bytes)
            uform::fail(uform_status_invalid_argument_k, "bytes is null");
        *bytes = uform::scalar_row_bytes(scalar, width);
    });
}

uform_status_t uform_scalar_convert(float const* from, size_t rows, size_t width, int32_t scalar, void* to) {
    return uform::guard([&] {
        if ((!from || !to) && rows && width)
            uform::fail(uform_status_invalid_argument_k, from ? "to" : "from", " is null, but ", rows, " rows of ",
                        width, " values are to be converted");
        uform::scalar_convert(from, rows, width, scalar, to);
    });
}

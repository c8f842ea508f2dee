// Element types of outputs: sizes, rounding of halves against exact arithmetic, int8 and bits.
#include "core/scalar.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "check.h"
#include "core/error.h"

using namespace uform;

namespace {

constexpr float infinity_k = std::numeric_limits<float>::infinity();
constexpr float nan_k = std::numeric_limits<float>::quiet_NaN();

/** The value of a floating-point number of 16 bits with so many bits of mantissa. */
double value_of(std::uint16_t bits, int mantissa_bits) {
    int const exponent_bits = 15 - mantissa_bits, bias = (1 << (exponent_bits - 1)) - 1;
    int const exponent = bits >> mantissa_bits & ((1 << exponent_bits) - 1);
    double const mantissa = bits & ((1 << mantissa_bits) - 1);
    double const magnitude = exponent ? std::ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits)
                                      : std::ldexp(mantissa, 1 - bias - mantissa_bits);
    return bits >> 15 ? -magnitude : magnitude;
}

/** Between every two neighbours: the lower, just below the middle, the middle (to even), just above, the upper. */
void test_nearest_even(std::uint16_t (*convert)(float), int mantissa_bits) {
    auto const infinite = static_cast<std::uint16_t>(((1 << (15 - mantissa_bits)) - 1) << mantissa_bits);
    bool exact = true, nearest = true, negative = true;
    for (std::uint32_t bits = 0; bits != infinite; ++bits) {
        auto const low = static_cast<std::uint16_t>(bits);
        float const middle = static_cast<float>((value_of(low, mantissa_bits) + value_of(low + 1, mantissa_bits)) / 2);
        exact = exact && convert(static_cast<float>(value_of(low, mantissa_bits))) == low;
        nearest = nearest && convert(middle) == (low & 1 ? low + 1 : low);
        nearest = nearest && convert(std::nextafter(middle, 0.0f)) == low;
        nearest = nearest && convert(std::nextafter(middle, infinity_k)) == low + 1;
        negative = negative && convert(-middle) == (convert(middle) | 0x8000);
    }
    CHECK(exact);
    CHECK(nearest);
    CHECK(negative);
    CHECK(convert(infinity_k) == infinite && convert(-infinity_k) == (infinite | 0x8000));
    CHECK(convert(std::numeric_limits<float>::max()) == infinite);
    CHECK(convert(0.0f) == 0 && convert(-0.0f) == 0x8000);
    for (std::uint32_t payload : {0x7F800001u, 0x7FC00000u, 0x7FFFFFFFu, 0xFF800001u, 0xFFFFFFFFu}) {
        std::uint16_t const half = convert(std::bit_cast<float>(payload));
        CHECK((half & 0x7FFF) > infinite && half >> 15 == payload >> 31);
    }
}

void test_float16() {
    CHECK(float16_bits(1.0f) == 0x3C00 && float16_bits(65504.0f) == 0x7BFF && float16_bits(65519.996f) == 0x7BFF);
    CHECK(float16_bits(65520.0f) == 0x7C00 && float16_bits(0x1p-24f) == 1 && float16_bits(0x1p-25f) == 0);
    CHECK(float16_bits(0x1.000002p-25f) == 1 && float16_bits(0x1p-14f) == 0x400);
    CHECK(float16_bits(std::numeric_limits<float>::denorm_min()) == 0);
}

void test_row_bytes() {
    struct {
        std::int32_t scalar;
        std::size_t width, bytes;
    } const expected[] = {{0, 10, 40}, {1, 10, 20}, {2, 10, 20}, {3, 10, 10},
                          {4, 10, 2},  {4, 16, 2},  {4, 0, 0},   {0, 0, 0}};
    for (auto const& [scalar, width, bytes] : expected) {
        std::size_t answer = 99;
        CHECK(!uform_scalar_row_bytes(scalar, width, &answer) && answer == bytes);
    }
    std::size_t answer = 0;
    CHECK(uform_scalar_row_bytes(5, 10, &answer) == uform_status_invalid_argument_k);
    CHECK(std::string(last_error()) == "scalar is 5, expected 0 to 4");
    CHECK(uform_scalar_row_bytes(-1, 10, &answer) == uform_status_invalid_argument_k);
    CHECK(uform_scalar_row_bytes(0, SIZE_MAX, &answer) == uform_status_invalid_argument_k);
    CHECK(uform_scalar_row_bytes(0, 10, nullptr) == uform_status_invalid_argument_k);
}

void test_float32_and_halves() {
    std::vector<float> const values = {1.0f, -0.5f, 0x1p-24f, 3.14159274f};
    std::vector<float> copy(values.size());
    CHECK(!uform_scalar_convert(values.data(), 2, 2, uform_scalar_float32_k, copy.data()) && copy == values);
    std::vector<std::uint8_t> bytes(9);
    // An odd address: nothing promises that rows are aligned.
    CHECK(!uform_scalar_convert(values.data(), 1, 4, uform_scalar_float16_k, bytes.data() + 1));
    CHECK(bytes == std::vector<std::uint8_t>{0, 0x00, 0x3C, 0x00, 0xB8, 0x01, 0x00, 0x48, 0x42});
    CHECK(!uform_scalar_convert(values.data(), 1, 4, uform_scalar_bfloat16_k, bytes.data() + 1));
    CHECK(bytes == std::vector<std::uint8_t>{0, 0x80, 0x3F, 0x00, 0xBF, 0x80, 0x33, 0x49, 0x40});
}

void test_int8() {
    std::vector<float> const values = {0.0f, 1.0f, -1.0f, 0.5f, -0.5f, 0.004f, 1.5f, -infinity_k, nan_k, infinity_k};
    std::vector<std::int8_t> bytes(values.size());
    CHECK(!uform_scalar_convert(values.data(), 1, values.size(), uform_scalar_int8_k, bytes.data()));
    CHECK(bytes == std::vector<std::int8_t>{0, 127, -127, 64, -64, 1, 127, -127, 0, 127});
}

void test_bits() {
    std::vector<float> const values = {1,  -1, 0, -0.0f, 2, 3, nan_k, 0.1f, 5, -5, 0x1p-149f,
                                       -1, 1,  1, 1,     1, 1, 1,     1,    1, 1,  1};
    std::vector<std::uint8_t> bytes(4, 0xAA);
    CHECK(!uform_scalar_convert(values.data(), 2, 11, uform_scalar_bit_k, bytes.data()));
    CHECK(bytes == std::vector<std::uint8_t>{0b10001101, 0b10100000, 0b01111111, 0b11100000});
}

void test_refusals() {
    float value = 1;
    CHECK(uform_scalar_convert(nullptr, 1, 1, 0, &value) == uform_status_invalid_argument_k);
    CHECK(uform_scalar_convert(&value, 1, 1, 0, nullptr) == uform_status_invalid_argument_k);
    CHECK(uform_scalar_convert(&value, 1, 1, 9, &value) == uform_status_invalid_argument_k);
    CHECK(!uform_scalar_convert(nullptr, 0, 4, 0, nullptr));
}

} // namespace

int main() {
    test_float16();
    test_nearest_even(float16_bits, 10);
    test_nearest_even(bfloat16_bits, 7);
    test_row_bytes();
    test_float32_and_halves();
    test_int8();
    test_bits();
    test_refusals();
    return native_test::report();
}

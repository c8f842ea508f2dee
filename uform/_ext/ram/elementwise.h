/** Loops over rows of float32, four values at a time: sums of products, the exponential, GELU. */
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace uform::ram {

/** Four values that the compiler keeps in one register. Sums over them have a fixed order. */
using lanes_t __attribute__((vector_size(16))) = float;
using lane_bits_t __attribute__((vector_size(16))) = std::uint32_t;
inline constexpr std::size_t lanes_k = 4;

inline lanes_t spread(float value) noexcept { return lanes_t{value, value, value, value}; }

inline lanes_t load_lanes(float const* values) noexcept {
    lanes_t lanes;
    std::memcpy(&lanes, values, sizeof lanes);
    return lanes;
}

inline float sum_lanes(lanes_t lanes) noexcept { return (lanes[0] + lanes[1]) + (lanes[2] + lanes[3]); }

/** Four places of a row. */
struct whole_lanes {
    std::size_t at;

    lanes_t load(float const* row) const noexcept { return load_lanes(row + at); }
    void store(float* row, lanes_t lanes) const noexcept { std::memcpy(row + at, &lanes, sizeof lanes); }
};

/** The last places of a row, fewer than four. */
struct partial_lanes {
    std::size_t at, count;

    lanes_t load(float const* row) const noexcept {
        lanes_t lanes = {};
        std::memcpy(&lanes, row + at, count * sizeof(float));
        return lanes;
    }
    void store(float* row, lanes_t lanes) const noexcept { std::memcpy(row + at, &lanes, count * sizeof(float)); }
};

/** Calls `body(places)` for a row of `count` values. */
template <typename body_at> void for_lanes(std::size_t count, body_at&& body) noexcept {
    std::size_t const whole = count / lanes_k * lanes_k;
    for (std::size_t at = 0; at != whole; at += lanes_k)
        body(whole_lanes{at});
    if (whole != count)
        body(partial_lanes{whole, count - whole});
}

/** The sum of a[i] * b[i]. */
inline float dot(float const* a, float const* b, std::size_t count) noexcept {
    constexpr std::size_t sums_count = 4; // independent, so that additions need not wait for each other
    lanes_t sums[sums_count] = {};
    std::size_t const whole = count / (sums_count * lanes_k) * (sums_count * lanes_k);
    for (std::size_t i = 0; i != whole; i += sums_count * lanes_k)
        for (std::size_t part = 0; part != sums_count; ++part)
            sums[part] += load_lanes(a + i + part * lanes_k) * load_lanes(b + i + part * lanes_k);
    float total = sum_lanes((sums[0] + sums[1]) + (sums[2] + sums[3]));
    for (std::size_t i = whole; i < count; ++i)
        total += a[i] * b[i];
    return total;
}

/** The largest value and `start`; NaN is passed over. */
inline float largest(float const* values, std::size_t count, float start) noexcept {
    lanes_t most = spread(start);
    std::size_t const whole = count / lanes_k * lanes_k;
    for (std::size_t i = 0; i != whole; i += lanes_k) {
        lanes_t const lanes = load_lanes(values + i);
        most = lanes > most ? lanes : most;
    }
    float result = std::max(std::max(most[0], most[1]), std::max(most[2], most[3]));
    for (std::size_t i = whole; i < count; ++i)
        result = values[i] > result ? values[i] : result;
    return result;
}

/** to[i] += factor * from[i]; the two do not overlap. */
inline void add_scaled(float* __restrict to, float const* __restrict from, float factor, std::size_t count) noexcept {
    for (std::size_t i = 0; i != count; ++i)
        to[i] += factor * from[i];
}

/**
 *  e^x of each, with a relative error of at most 2e-7. Below -87.3 it is 0, above 88.3 it stays at 2.2e38; NaN stays
 * NaN. x = whole ln 2 + rest, so e^x is 2^whole times a short series in the rest.
 */
inline lanes_t exponential(lanes_t x) noexcept {
    lanes_t const lowest = spread(-87.3f), highest = spread(88.3f);
    lanes_t const rounding =
        spread(12582912.f); // 1.5 * 2^23: a sum with it has no fraction and ends in the integer's bits
    lanes_t held = x > highest ? highest : x;
    held = held < lowest ? lowest : held;
    lanes_t const rounded = held * 1.44269504088896341f + rounding;
    lanes_t const whole = rounded - rounding;
    // ln 2 in two parts, the first of which has few enough digits for an exact product
    lanes_t const rest = (held - whole * 0.693359375f) - whole * -2.12194440054690583e-4f;
    lanes_t series = rest * (1.f / 5040) + 1.f / 720;
    series = series * rest + 1.f / 120;
    series = series * rest + 1.f / 24;
    series = series * rest + 1.f / 6;
    series = series * rest + 0.5f;
    series = series * rest + 1.f;
    series = series * rest + 1.f;
    lane_bits_t const power = (reinterpret_cast<lane_bits_t>(rounded) + 127u) << 23;
    lanes_t const value = series * reinterpret_cast<lanes_t>(power);
    return x < lowest ? lanes_t{} : value;
}

inline float exponential(float x) noexcept { return exponential(spread(x))[0]; }

/** values[i] = e^(values[i] - shift); answers their sum. */
inline float exponentials(float* values, std::size_t count, float shift) noexcept {
    lanes_t sums = {};
    std::size_t const whole = count / lanes_k * lanes_k;
    for (std::size_t i = 0; i != whole; i += lanes_k) {
        lanes_t const lanes = exponential(load_lanes(values + i) - shift);
        std::memcpy(values + i, &lanes, sizeof lanes);
        sums += lanes;
    }
    float total = sum_lanes(sums);
    for (std::size_t i = whole; i < count; ++i)
        total += values[i] = exponential(values[i] - shift);
    return total;
}

/** The constants of tanh's form of GELU: gelu(x) = x sigmoid(2 u), u = sqrt(2 / pi) (x + 0.044715 x^3). */
inline constexpr float gelu_linear_k = 1.5957691216057308f; // 2 sqrt(2 / pi)
inline constexpr float gelu_cubic_k = 0.0713548162726009f;  // its product with 0.044715

inline lanes_t gelu(lanes_t x) noexcept {
    return x / (1.f + exponential(-x * (gelu_linear_k + gelu_cubic_k * (x * x))));
}

/** GELU's value and its derivative. */
struct gelu_pair {
    lanes_t value, slope;
};

inline gelu_pair gelu_with_slope(lanes_t x) noexcept {
    lanes_t const square = x * x;
    lanes_t const tail = exponential(-x * (gelu_linear_k + gelu_cubic_k * square));
    lanes_t const sigmoid = 1.f / (1.f + tail);
    lanes_t const inner_slope = gelu_linear_k + (3 * gelu_cubic_k) * square;
    // tail * sigmoid is 1 - sigmoid without cancellation
    return {x * sigmoid, sigmoid + (x * inner_slope) * (tail * sigmoid) * sigmoid};
}

} // namespace uform::ram

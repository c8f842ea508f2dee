// Philox4x32-10 against its published vectors, its place in the run's counters, and normal values.
#include "core/random.h"

#include <cmath>
#include <limits>
#include <set>
#include <vector>

#include "check.h"

using namespace uform;

namespace {

// The known answers that the authors publish beside their paper.
void test_known_answers() {
    CHECK(philox4x32({0, 0, 0, 0}, {0, 0}) == random_words_t{0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8});
    CHECK(philox4x32({~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}) ==
          random_words_t{0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD});
    CHECK(philox4x32({0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344}, {0xA4093822, 0x299F31D0}) ==
          random_words_t{0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1});
}

void test_counter_layout() {
    std::uint64_t const seed = 0x0123456789ABCDEF, call = 0x00AABBCC11223344;
    CHECK(philox_block(seed, call, 0x7F, 5, 9) == philox4x32({9, 5, 0x11223344, 0x7FAABBCC}, {0x89ABCDEF, 0x01234567}));
    std::set<random_words_t> blocks = {
        philox_block(1, 1, 1, 1, 1),
        philox_block(2, 1, 1, 1, 1),
        philox_block(1, 2, 1, 1, 1),
        philox_block(1, 1, 2, 1, 1),
        philox_block(1, 1, 1, 2, 1),
        philox_block(1, 1, 1, 1, 2),
        philox_block(1ull << 32 | 1, 1, 1, 1, 1),
        philox_block(1, 1ull << 32 | 1, 1, 1, 1),
    };
    CHECK(blocks.size() == 8);
}

void test_uniform_bounds() {
    CHECK(uniform_double(0) == 0.0 && uniform_float(0) == 0.0f);
    CHECK(uniform_double(~0u) < 1.0 && uniform_float(~0u) < 1.0f);
    CHECK(uniform_double(0x80000000) == 0.5 && uniform_float(0x80000000) == 0.5f);
}

void test_normal_pair() {
    auto const [largest, none] = normal_pair(0, 0);
    CHECK(std::abs(largest - std::sqrt(2.0 * 32.0 * std::log(2.0))) < 1e-12 && none == 0.0);
    auto const [zero, also_zero] = normal_pair(~0u, 0x12345678);
    CHECK(zero == 0.0 && also_zero == 0.0);
    auto const [cosine, sine] = normal_pair(0x7FFFFFFF, 0x40000000); // a quarter turn
    CHECK(std::abs(cosine) < 1e-12 && std::abs(sine - std::sqrt(2.0 * std::log(2.0))) < 1e-12);
}

void test_fill_is_the_same_in_parts() {
    std::vector<float> whole(1003), parts(1003);
    fill_normal(42, random_purpose_initial_values_k, 3, 0.02, whole);
    for (std::size_t begin = 0, step = 1; begin < parts.size(); begin += step, step = step * 2 + 1)
        fill_normal(42, random_purpose_initial_values_k, 3, 0.02,
                    std::span(parts).subspan(begin, std::min(step, parts.size() - begin)), begin);
    CHECK(whole == parts);

    std::vector<float> other(1003);
    fill_normal(42, random_purpose_initial_values_k, 4, 0.02, other);
    CHECK(whole != other);
    fill_normal(43, random_purpose_initial_values_k, 3, 0.02, other);
    CHECK(whole != other);
    fill_normal(42, random_purpose_initial_values_k, 3, 0.02, {});
}

void test_fill_far_into_a_parameter() {
    std::vector<float> far(8), near(8);
    std::uint64_t const first = 4ull << 32; // where the number of the block passes 32 bits
    fill_normal(1, 0, 0, 1.0, far, first);
    fill_normal(1, 0, 0, 1.0, near, 0);
    CHECK(far != near);
}

void test_moments() {
    std::vector<float> values(1 << 18);
    fill_normal(7, random_purpose_initial_values_k, 0, 1.0, values);
    double sum = 0, squares = 0, cubes = 0, fourths = 0;
    for (double const value : values)
        sum += value, squares += value * value, cubes += value * value * value, fourths += std::pow(value, 4);
    double const count = static_cast<double>(values.size());
    // Five standard errors of each moment: 1, sqrt(2), sqrt(15), sqrt(96) over the root of the count.
    double const error = 5.0 / std::sqrt(count);
    CHECK(std::abs(sum / count) < error);
    CHECK(std::abs(squares / count - 1.0) < error * std::sqrt(2.0));
    CHECK(std::abs(cubes / count) < error * std::sqrt(15.0));
    CHECK(std::abs(fourths / count - 3.0) < error * std::sqrt(96.0));
}

} // namespace

int main() {
    test_known_answers();
    test_counter_layout();
    test_uniform_bounds();
    test_normal_pair();
    test_fill_is_the_same_in_parts();
    test_fill_far_into_a_parameter();
    test_moments();
    return native_test::report();
}

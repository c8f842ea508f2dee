#include "core/random.h"

#include <cmath>
#include <numbers>

namespace uform {

namespace {

constexpr int rounds_k = 10;
constexpr std::uint64_t multiplier0_k = 0xD2511F53, multiplier1_k = 0xCD9E8D57;
constexpr std::uint32_t key_step0_k = 0x9E3779B9, key_step1_k = 0xBB67AE85;
constexpr std::size_t normals_per_block_k = 4;

constexpr std::uint32_t low_word(std::uint64_t value) noexcept { return static_cast<std::uint32_t>(value); }
constexpr std::uint32_t high_word(std::uint64_t value) noexcept { return static_cast<std::uint32_t>(value >> 32); }

} // namespace

random_words_t philox4x32(random_words_t counter, std::array<std::uint32_t, 2> key) noexcept {
    for (int round = 0; round != rounds_k; ++round) {
        std::uint64_t const product0 = multiplier0_k * counter[0];
        std::uint64_t const product1 = multiplier1_k * counter[2];
        counter = {high_word(product1) ^ counter[1] ^ key[0], low_word(product1),
                   high_word(product0) ^ counter[3] ^ key[1], low_word(product0)};
        key[0] += key_step0_k;
        key[1] += key_step1_k;
    }
    return counter;
}

random_words_t philox_block(std::uint64_t seed, std::uint64_t call, std::uint32_t purpose, std::uint32_t item,
                            std::uint32_t column) noexcept {
    std::uint32_t const purpose_and_call = purpose << 24 | (high_word(call) & 0xFFFFFFu);
    return philox4x32({column, item, low_word(call), purpose_and_call}, {low_word(seed), high_word(seed)});
}

std::array<double, 2> normal_pair(std::uint32_t radius_word, std::uint32_t angle_word) noexcept {
    // In (0, 1]: the logarithm is finite, and the largest normal is 6.66.
    double const uniform = (radius_word + 1.0) * 0x1p-32;
    double const radius = std::sqrt(-2.0 * std::log(uniform));
    double const angle = 2.0 * std::numbers::pi * uniform_double(angle_word);
    return {radius * std::cos(angle), radius * std::sin(angle)};
}

void fill_normal(std::uint64_t seed, std::uint32_t purpose, std::uint32_t parameter, double deviation,
                 std::span<float> values, std::uint64_t first) noexcept {
    std::size_t filled = 0;
    while (filled != values.size()) {
        std::uint64_t const block = (first + filled) / normals_per_block_k;
        random_words_t const words = philox_block(seed, high_word(block), purpose, parameter, low_word(block));
        auto const [a, b] = normal_pair(words[0], words[1]);
        auto const [c, d] = normal_pair(words[2], words[3]);
        std::array<double, normals_per_block_k> const normals = {a, b, c, d};
        std::size_t lane = (first + filled) % normals_per_block_k;
        for (; lane != normals_per_block_k && filled != values.size(); ++lane, ++filled)
            values[filled] = static_cast<float>(deviation * normals[lane]);
    }
}

} // namespace uform

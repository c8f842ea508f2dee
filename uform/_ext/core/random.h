/** Counted random numbers: Philox4x32-10 (Salmon, Moraes, Dror and Shaw, 2011), the same wherever they are drawn. */
#pragma once

#include <array>
#include <cstdint>
#include <span>

namespace uform {

/** What a number is drawn for: two purposes never share numbers. A purpose is one byte. */
enum random_purpose_t : std::uint32_t {
    random_purpose_initial_values_k = 0,
    random_purpose_masks_k = 1,    // the first of those that cover columns, up to the next
    random_purpose_plugins_k = 16, // the first that a third party may use
    random_purpose_last_k = 255,
};

using random_words_t = std::array<std::uint32_t, 4>;

/** The generator itself: four words that are a function of a counter and a key. */
random_words_t philox4x32(random_words_t counter, std::array<std::uint32_t, 2> key) noexcept;

/**
 *  Four words of a run.
 *  @param seed The run's seed: the key.
 *  @param call The number of the step; its lowest 56 bits count.
 *  @param purpose A `random_purpose_t` or a plugin's own; one byte.
 *  @param item The item's place in the world.
 *  @param column Numbers the draws of one item.
 */
random_words_t philox_block(std::uint64_t seed, std::uint64_t call, std::uint32_t purpose, std::uint32_t item,
                            std::uint32_t column) noexcept;

/** Uniform in [0, 1), of 32 and of 24 bits. */
constexpr double uniform_double(std::uint32_t word) noexcept { return word * 0x1p-32; }
constexpr float uniform_float(std::uint32_t word) noexcept { return static_cast<float>(word >> 8) * 0x1p-24f; }

/** Two independent standard normals from two words (Box and Muller, 1958). */
std::array<double, 2> normal_pair(std::uint32_t radius_word, std::uint32_t angle_word) noexcept;

/**
 *  Normal values of a parameter: each is a function of the seed, the purpose, the parameter's index and its own place,
 * so that parts may be filled by different threads.
 *  @param deviation The standard deviation; the mean is 0.
 *  @param first The place of `values[0]` in the parameter.
 */
void fill_normal(std::uint64_t seed, std::uint32_t purpose, std::uint32_t parameter, double deviation,
                 std::span<float> values, std::uint64_t first = 0) noexcept;

} // namespace uform

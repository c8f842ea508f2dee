/** Rotary positions: the cosines and sines by which the pairs of a head's vector turn. */
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <uform/plugin.h>

namespace uform::ram {

/** Columns of one attention head, and the pairs (k, k + 32) among them. */
inline constexpr std::size_t head_width_k = 64;
inline constexpr std::size_t head_pairs_k = head_width_k / 2;

/** Cosine and sine of the 32 angles of one column. */
struct rotary_turn {
    float cosine[head_pairs_k];
    float sine[head_pairs_k];
};

/**
 *  Angles of every 16-bit position, base 10000: an axis with n pairs turns pair j by position * 10000^(-j / n). One
 * axis has all 32 pairs, two have 16 each, three have 8, 12 and 12. A position is split into a coarse and a fine part,
 * whose turns are multiplied as complex numbers.
 */
class rotary_table {
public:
    rotary_table();

    /** The turn of a column at `positions` on the first `axes` axes. */
    rotary_turn turn(unsigned axes, std::uint16_t const positions[UFORM_AXES]) const noexcept;

private:
    static constexpr std::size_t fine_k = 256;   // positions that differ in the fine part alone
    static constexpr std::size_t coarse_k = 256; // steps of the coarse part

    struct scheme {
        std::vector<rotary_turn> fine, coarse;
    };
    std::array<scheme, UFORM_AXES> schemes_;
};

/** Turns one head's vector in place. */
void rotate(float vector[head_width_k], rotary_turn const& turn) noexcept;

/** Turns it back, which is also how a gradient passes. */
void rotate_back(float vector[head_width_k], rotary_turn const& turn) noexcept;

} // namespace uform::ram

#include "ram/rotary.h"

#include <cmath>

namespace uform::ram {

namespace {

constexpr double base_k = 10000;

// How many pairs each axis takes, by the number of axes.
constexpr std::size_t axis_pairs_k[UFORM_AXES][UFORM_AXES] = {{32, 0, 0}, {16, 16, 0}, {8, 12, 12}};

rotary_turn turn_at(double position, unsigned axes) {
    rotary_turn turn;
    std::size_t pair = 0;
    for (std::size_t pairs : axis_pairs_k[axes - 1])
        for (std::size_t j = 0; j != pairs; ++j, ++pair) {
            double const angle = position * std::pow(base_k, -static_cast<double>(j) / static_cast<double>(pairs));
            turn.cosine[pair] = static_cast<float>(std::cos(angle));
            turn.sine[pair] = static_cast<float>(std::sin(angle));
        }
    return turn;
}

} // namespace

rotary_table::rotary_table() {
    for (unsigned axes = 1; axes <= UFORM_AXES; ++axes) {
        scheme& made = schemes_[axes - 1];
        for (std::size_t step = 0; step != fine_k; ++step)
            made.fine.push_back(turn_at(static_cast<double>(step), axes));
        for (std::size_t step = 0; step != coarse_k; ++step)
            made.coarse.push_back(turn_at(static_cast<double>(step * fine_k), axes));
    }
}

rotary_turn rotary_table::turn(unsigned axes, std::uint16_t const positions[UFORM_AXES]) const noexcept {
    scheme const& known = schemes_[axes - 1];
    rotary_turn turn;
    std::size_t begin = 0;
    for (unsigned axis = 0; axis != axes; ++axis) {
        rotary_turn const& fine = known.fine[positions[axis] % fine_k];
        rotary_turn const& coarse = known.coarse[positions[axis] / fine_k];
        std::size_t const end = begin + axis_pairs_k[axes - 1][axis];
        for (std::size_t pair = begin; pair != end; ++pair) {
            turn.cosine[pair] = fine.cosine[pair] * coarse.cosine[pair] - fine.sine[pair] * coarse.sine[pair];
            turn.sine[pair] = fine.sine[pair] * coarse.cosine[pair] + fine.cosine[pair] * coarse.sine[pair];
        }
        begin = end;
    }
    return turn;
}

void rotate(float vector[head_width_k], rotary_turn const& turn) noexcept {
    for (std::size_t pair = 0; pair != head_pairs_k; ++pair) {
        float const first = vector[pair], second = vector[pair + head_pairs_k];
        vector[pair] = first * turn.cosine[pair] - second * turn.sine[pair];
        vector[pair + head_pairs_k] = second * turn.cosine[pair] + first * turn.sine[pair];
    }
}

void rotate_back(float vector[head_width_k], rotary_turn const& turn) noexcept {
    for (std::size_t pair = 0; pair != head_pairs_k; ++pair) {
        float const first = vector[pair], second = vector[pair + head_pairs_k];
        vector[pair] = first * turn.cosine[pair] + second * turn.sine[pair];
        vector[pair + head_pairs_k] = second * turn.cosine[pair] - first * turn.sine[pair];
    }
}

} // namespace uform::ram

/** Turns of rotary positions, for kernels. */
#pragma once

#include <cstdint>

#include <uform/plugin.h>

#include "vram/rotary.h"

namespace uform::vram {

/** How far a pair turns from one position to the next, in half turns: the nearest float32, and what it leaves out. */
struct pair_step {
    float most, rest;
};

/** Every pair's step and axis, by the number of axes. */
struct rotary_scheme {
    pair_step steps[UFORM_AXES][rotary_pairs_k];
    std::uint8_t axes[UFORM_AXES][rotary_pairs_k];

    /** The one that all kernels are given. */
    static rotary_scheme const& get();
};

struct turn {
    float cosine, sine;
};

/** Half turns at a position, from -1 to 1. The product with the step's larger part is exact, so that far positions lose
 *  no digits. */
__device__ __forceinline__ float half_turns_at(float position, pair_step step) {
    float const product = position * step.most;
    float const rest = fmaf(position, step.most, -product) + position * step.rest;
    // whole turns are two half turns
    return (product - 2.f * rintf(product * 0.5f)) + rest;
}

/** The turn at a position. */
__device__ __forceinline__ turn turn_at(float position, pair_step step) {
    turn result;
    sincospif(half_turns_at(position, step), &result.sine, &result.cosine);
    return result;
}

/** The same to 2^-20, which bfloat16 does not see, where there are more turns to compute than values to move. */
__device__ __forceinline__ turn rough_turn_at(float position, pair_step step) {
    constexpr float pi_k = 3.14159265358979f;
    turn result;
    __sincosf(half_turns_at(position, step) * pi_k, &result.sine, &result.cosine);
    return result;
}

} // namespace uform::vram

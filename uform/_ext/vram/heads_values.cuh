/** What covered patches are predicted to be. */
#pragma once

#include "vram/heads.cuh"

namespace uform::vram {

/** Raw values of covered patches and how they become numbers. */
template <typename element_at> struct patch_values {
    element_at const* values;     // [*, width]
    std::uint32_t const* patches; // [count] the patch of each covered row
    std::uint32_t width;
    value_scale scale;

    explicit patch_values(patch_targets const& targets)
        : values(static_cast<element_at const*>(targets.values)), patches(targets.patches), width(targets.width),
          scale(targets.scale) {}

    __device__ element_at const* row(std::size_t covered) const {
        return values + std::size_t(patches[covered]) * width;
    }
    __device__ float number(element_at value) const {
        return fmaf(static_cast<float>(value), scale.multiplier, scale.offset);
    }
    /** Four of a patch's numbers from a multiple of four on; zero past the width. */
    __device__ float4 four(std::uint32_t patch, std::uint32_t place) const {
        struct alignas(4 * sizeof(element_at)) vector {
            element_at elements[4];
        };
        element_at const* const from = values + std::size_t(patch) * width + place;
        float numbers[4] = {};
        if (width % 4 == 0) {
            if (place < width) {
                vector const loaded = *reinterpret_cast<vector const*>(from);
#pragma unroll
                for (unsigned i = 0; i != 4; ++i)
                    numbers[i] = number(loaded.elements[i]);
            }
        } else {
#pragma unroll
            for (unsigned i = 0; i != 4; ++i)
                if (place + i < width)
                    numbers[i] = number(from[i]);
        }
        return make_float4(numbers[0], numbers[1], numbers[2], numbers[3]);
    }
};

} // namespace uform::vram

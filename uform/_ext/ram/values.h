/** Raw values of patches as float32. */
#pragma once

#include <cstddef>
#include <cstdint>

#include <uform/plugin.h>

namespace uform::ram {

/** to[i] = values[first + i] * multiplier + offset, where the values are of an `uform_element_t`. */
inline void scale_values(void const* values, std::uint32_t element, std::size_t first, std::size_t count,
                         float multiplier, float offset, float* to) noexcept {
    auto const convert = [&](auto const* from) {
        for (std::size_t i = 0; i != count; ++i)
            to[i] = static_cast<float>(from[i]) * multiplier + offset;
    };
    switch (element) {
    case uform_element_uint8_k:
        return convert(static_cast<std::uint8_t const*>(values) + first);
    case uform_element_int16_k:
        return convert(static_cast<std::int16_t const*>(values) + first);
    default:
        return convert(static_cast<float const*>(values) + first);
    }
}

} // namespace uform::ram

/** Pixels of one picture on the host: read through strides, mixed to the run's channels, scaled down. */
#pragma once

#include <cstdint>
#include <vector>

#include <uform/uform.h>

namespace uform::image {

/** The most channels of a pixel: red, green, blue, alpha. */
constexpr uint32_t channels_most_k = 4;

/** An array of 8-bit pixels [height, width] or [height, width, channels], with byte strides. */
struct picture {
    uint8_t const* data;
    uint64_t height, width;
    uint32_t channels;
    int64_t row_stride, pixel_stride, channel_stride;

    explicit picture(uform_content_t const& content);
    /** Pixels end to end. */
    picture(uint8_t const* data, uint64_t height, uint64_t width, uint32_t channels);

    uint8_t const* at(uint64_t y, uint64_t x) const {
        return data + static_cast<int64_t>(y) * row_stride + static_cast<int64_t>(x) * pixel_stride;
    }
    bool has_whole_pixels() const { return channels == 1 || channel_stride == 1; }
};

/**
 *  Writes a pixel in the run's channels. Grey is repeated; colours are mixed down by their mean; where the run keeps no
 *  alpha, alpha is laid over white. Everything rounds to nearest.
 */
void mix_pixel(picture const& from, uint64_t y, uint64_t x, uint32_t channels, uint8_t* to);

/** Scales down by averaging areas, in the run's channels; `to` is [height, width, channels] end to end. */
void scale_down(picture const& from, uint64_t height, uint64_t width, uint32_t channels, std::vector<uint8_t>& to);

} // namespace uform::image

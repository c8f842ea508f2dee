/** Pixels on their way into patches: channels converted, pictures scaled down, partial patches padded. */
#pragma once

#include <cstdint>

#include "plugins/modalities/image/grid.h"

namespace uform::image {

/** The longest side of a patch, in pixels. */
constexpr uint32_t most_side_k = 256;

/** A picture as it is given: 1 (grey), 2 (grey, alpha), 3 (red, green, blue) or 4 (with alpha) channels of uint8. */
struct picture {
    uint8_t const* pixels;
    uint32_t height;
    uint32_t width;
    uint32_t channels;
    int64_t row_stride; /* strides are in bytes and may be negative or zero */
    int64_t column_stride;
    int64_t channel_stride;
};

/**
 *  Writes a picture's patches in raster order, each in the order (y, x, channel).
 *
 *  Grey is repeated for colours, and colours are mixed down to grey by their mean. Alpha is laid over white where
 *  `channels` is 1 or 3, (v a + 255 (255 - a)) / 255, and is 255 where the picture has none. A picture larger than
 *  its grid is scaled down by averaging exact areas, channel by channel. Every step rounds to the nearest integer. What
 *  lies past the picture in a partial patch repeats its edge.
 *
 *  @param channels Of the patches: 1, 3 or 4.
 *  @param values [grid.rows * grid.columns, side, side, channels]
 */
void cut_patches(picture const& from, grid const& grid, uint32_t side, uint32_t channels, uint8_t* values);

} // namespace uform::image

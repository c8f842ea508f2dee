#include "plugins/modalities/image/pixels.h"

#include <algorithm>
#include <cmath>

namespace uform::image {
namespace {

uint8_t over_white(uint32_t value, uint32_t alpha) {
    return static_cast<uint8_t>((value * alpha + 255 * (255 - alpha) + 127) / 255);
}

} // namespace

picture::picture(uform_content_t const& content)
    : data(static_cast<uint8_t const*>(content.data)), height(content.extents[0]), width(content.extents[1]),
      channels(content.rank == 3 ? static_cast<uint32_t>(content.extents[2]) : 1), row_stride(content.strides[0]),
      pixel_stride(content.strides[1]), channel_stride(content.rank == 3 ? content.strides[2] : 1) {}

picture::picture(uint8_t const* data, uint64_t height, uint64_t width, uint32_t channels)
    : data(data), height(height), width(width), channels(channels), row_stride(static_cast<int64_t>(width * channels)),
      pixel_stride(channels), channel_stride(1) {}

void mix_pixel(picture const& from, uint64_t y, uint64_t x, uint32_t channels, uint8_t* to) {
    uint8_t const* const pixel = from.at(y, x);
    uint8_t colours[channels_most_k];
    bool const grey = from.channels < 3;
    bool const has_alpha = from.channels == 2 || from.channels == 4;
    uint32_t const colours_count = grey ? 1 : 3;
    for (uint32_t c = 0; c < colours_count; ++c)
        colours[c] = pixel[static_cast<int64_t>(c) * from.channel_stride];
    uint8_t const alpha = has_alpha ? pixel[static_cast<int64_t>(colours_count) * from.channel_stride] : uint8_t(255);
    if (channels == 4)
        to[3] = alpha;
    else if (has_alpha)
        for (uint32_t c = 0; c < colours_count; ++c)
            colours[c] = over_white(colours[c], alpha);
    if (channels == 1)
        to[0] = grey ? colours[0] : static_cast<uint8_t>((colours[0] + colours[1] + colours[2] + 1) / 3);
    else
        for (uint32_t c = 0; c < 3; ++c)
            to[c] = colours[grey ? 0 : c];
}

void scale_down(picture const& from, uint64_t height, uint64_t width, uint32_t channels, std::vector<uint8_t>& to) {
    to.resize(height * width * channels);
    double const rows = static_cast<double>(from.height) / static_cast<double>(height);
    double const columns = static_cast<double>(from.width) / static_cast<double>(width);
    // The part of source line `at` that lies within [begin, end).
    auto const share = [](uint64_t at, double begin, double end) {
        return std::min<double>(static_cast<double>(at + 1), end) - std::max<double>(static_cast<double>(at), begin);
    };
    for (uint64_t y = 0; y < height; ++y)
        for (uint64_t x = 0; x < width; ++x) {
            double const top = static_cast<double>(y) * rows, bottom = top + rows;
            double const left = static_cast<double>(x) * columns, right = left + columns;
            uint64_t const last_row = std::min(from.height, static_cast<uint64_t>(std::ceil(bottom)));
            uint64_t const last_column = std::min(from.width, static_cast<uint64_t>(std::ceil(right)));
            double sums[channels_most_k] = {}, area = 0;
            for (uint64_t sy = static_cast<uint64_t>(top); sy < last_row; ++sy)
                for (uint64_t sx = static_cast<uint64_t>(left); sx < last_column; ++sx) {
                    double const weight = share(sy, top, bottom) * share(sx, left, right);
                    if (weight <= 0)
                        continue;
                    uint8_t mixed[channels_most_k];
                    mix_pixel(from, sy, sx, channels, mixed);
                    for (uint32_t c = 0; c < channels; ++c)
                        sums[c] += weight * mixed[c];
                    area += weight;
                }
            for (uint32_t c = 0; c < channels; ++c)
                to[(y * width + x) * channels + c] = static_cast<uint8_t>(std::lround(sums[c] / area));
        }
}

} // namespace uform::image

#include "plugins/modalities/image/patches.h"

#include <algorithm>
#include <cstring>

namespace uform::image {

namespace {

uint8_t over_white(uint32_t value, uint32_t alpha) {
    return static_cast<uint8_t>((value * alpha + 255 * (255 - alpha) + 127) / 255);
}

/** One pixel of `from` channels as one of `to`. */
template <uint32_t from, uint32_t to> void read_pixel(uint8_t const* at, int64_t stride, uint8_t* pixel) {
    constexpr bool is_grey = from < 3, has_alpha = from % 2 == 0;
    uint8_t const alpha = has_alpha ? at[int64_t(from - 1) * stride] : uint8_t(255);
    uint8_t colours[3];
    for (uint32_t channel = 0; channel != 3; ++channel) {
        uint8_t const value = at[is_grey ? 0 : int64_t(channel) * stride];
        colours[channel] = has_alpha && to != 4 ? over_white(value, alpha) : value;
    }
    if constexpr (to == 1) {
        pixel[0] = is_grey ? colours[0] : static_cast<uint8_t>((colours[0] + colours[1] + colours[2] + 1) / 3);
    } else {
        std::copy_n(colours, 3, pixel);
        if constexpr (to == 4)
            pixel[3] = alpha;
    }
}

/** Pixels of one row as they are. */
template <uint32_t from, uint32_t to> class row_reader {
public:
    explicit row_reader(picture const& from_picture)
        : from_(from_picture), is_plain_(from == to && from_.column_stride == from && from_.channel_stride == 1) {}

    /** Writes the pixels [x, x + count) of row y. */
    void read(uint32_t y, uint32_t x, uint32_t count, uint8_t* to_pixels) {
        uint8_t const* at = from_.pixels + int64_t(y) * from_.row_stride + int64_t(x) * from_.column_stride;
        if (is_plain_) {
            std::memcpy(to_pixels, at, size_t(count) * to);
            return;
        }
        for (uint32_t pixel = 0; pixel != count; ++pixel, at += from_.column_stride)
            read_pixel<from, to>(at, from_.channel_stride, to_pixels + size_t(pixel) * to);
    }

private:
    picture const& from_;
    bool is_plain_;
};

/** The source pixels under one scaled pixel along one axis, weighted by what they share with it. */
struct span {
    uint32_t first;
    uint32_t last;
    uint32_t first_weight;
    uint32_t last_weight; /* 0 where the first is the last */

    /** Of the pixel `index` out of `scaled`, which `whole` source pixels make: weights sum to `whole`. */
    span(uint64_t index, uint64_t scaled, uint64_t whole) {
        uint64_t const begin = index * whole, end = begin + whole; // in units of 1 / scaled of a source pixel
        first = static_cast<uint32_t>(begin / scaled);
        last = static_cast<uint32_t>((end - 1) / scaled);
        uint64_t const first_end = std::min(end, (uint64_t(first) + 1) * scaled);
        first_weight = static_cast<uint32_t>(first_end - begin);
        last_weight = first == last ? 0 : static_cast<uint32_t>(end - uint64_t(last) * scaled);
    }
    span() = default;

    uint32_t weight(uint32_t at, uint32_t scaled) const {
        return at == first ? first_weight : at == last ? last_weight : scaled;
    }
};

/** Pixels of one row of the scaled picture, each the average of the area that it covers: exact until rounded once. */
template <uint32_t from, uint32_t to> class area_reader {
public:
    area_reader(picture const& from_picture, grid const& grid)
        : reader_(from_picture), height_(from_picture.height), width_(from_picture.width), grid_(grid) {}

    /** At most `most_side_k` pixels at a time. */
    void read(uint32_t y, uint32_t x, uint32_t count, uint8_t* to_pixels) {
        for (uint32_t pixel = 0; pixel != count; ++pixel)
            spans_[pixel] = span(x + pixel, grid_.width, width_);
        std::fill_n(sums_, size_t(count) * to, uint64_t(0));
        span const rows(y, grid_.height, height_);
        uint32_t const end = spans_[count - 1].last + 1;
        for (uint32_t begin = spans_[0].first; begin < end; begin += strip_k) {
            uint32_t const columns = std::min(strip_k, end - begin);
            sum_rows(rows, begin, columns);
            share_columns(begin, columns, count);
        }
        uint64_t const area = uint64_t(height_) * width_;
        for (size_t value = 0; value != size_t(count) * to; ++value)
            to_pixels[value] = static_cast<uint8_t>((sums_[value] + area / 2) / area);
    }

private:
    static constexpr uint32_t strip_k = 512; // source columns at a time

    /** Sums every source column of a strip over the rows: at most 255 times the picture's height. */
    void sum_rows(span const& rows, uint32_t begin, uint32_t columns) {
        size_t const values = size_t(columns) * to;
        std::fill_n(column_sums_, values, 0u);
        for (uint32_t row = rows.first; row <= rows.last; ++row) {
            uint32_t const weight = rows.weight(row, grid_.height);
            reader_.read(row, begin, columns, line_);
            for (size_t value = 0; value != values; ++value)
                column_sums_[value] += weight * line_[value];
        }
    }

    void share_columns(uint32_t begin, uint32_t columns, uint32_t count) {
        for (uint32_t pixel = 0; pixel != count; ++pixel) {
            span const& covered = spans_[pixel];
            uint32_t const last = std::min(covered.last, begin + columns - 1);
            for (uint32_t column = std::max(covered.first, begin); column <= last; ++column) {
                uint64_t const weight = covered.weight(column, grid_.width);
                for (uint32_t channel = 0; channel != to; ++channel)
                    sums_[size_t(pixel) * to + channel] += weight * column_sums_[(column - begin) * to + channel];
            }
        }
    }

    row_reader<from, to> reader_;
    uint32_t height_;
    uint32_t width_;
    grid const& grid_;
    span spans_[most_side_k];
    uint8_t line_[strip_k * to];
    uint32_t column_sums_[strip_k * to];
    uint64_t sums_[most_side_k * to];
};

/** Shares the rows of a picture among the patches that they cross. */
template <uint32_t to, typename reader_at>
void cut_rows(reader_at&& reader, grid const& grid, uint32_t side, uint8_t* values) {
    size_t const row_values = size_t(side) * to, patch_values = row_values * side;
    for (uint32_t y = 0; y != grid.rows * side; ++y) {
        uint8_t* row = values + size_t(y / side) * grid.columns * patch_values + y % side * row_values;
        for (uint32_t patch = 0; patch != grid.columns; ++patch, row += patch_values) {
            if (y >= grid.height) {
                std::memcpy(row, row - row_values, row_values);
                continue;
            }
            uint32_t const x = patch * side, count = std::min(side, grid.width - x);
            reader.read(y, x, count, row);
            for (uint8_t* pixel = row + size_t(count) * to; pixel != row + row_values; pixel += to)
                std::memcpy(pixel, pixel - to, to);
        }
    }
}

template <uint32_t from, uint32_t to>
void cut(picture const& picture, grid const& grid, uint32_t side, uint8_t* values) {
    if (picture.height == grid.height && picture.width == grid.width)
        cut_rows<to>(row_reader<from, to>(picture), grid, side, values);
    else
        cut_rows<to>(area_reader<from, to>(picture, grid), grid, side, values);
}

template <uint32_t to> void cut_from(picture const& picture, grid const& grid, uint32_t side, uint8_t* values) {
    switch (picture.channels) {
    case 1:
        return cut<1, to>(picture, grid, side, values);
    case 2:
        return cut<2, to>(picture, grid, side, values);
    case 3:
        return cut<3, to>(picture, grid, side, values);
    default:
        return cut<4, to>(picture, grid, side, values);
    }
}

} // namespace

void cut_patches(picture const& from, grid const& grid, uint32_t side, uint32_t channels, uint8_t* values) {
    switch (channels) {
    case 1:
        return cut_from<1>(from, grid, side, values);
    case 3:
        return cut_from<3>(from, grid, side, values);
    default:
        return cut_from<4>(from, grid, side, values);
    }
}

} // namespace uform::image

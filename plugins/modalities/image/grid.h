/** How many patches a picture makes, and what it is scaled down to where they are too many. */
#pragma once

#include <cstdint>

namespace uform::image {

/** A picture's size in pixels once scaled, and its patches: the last of a row or column may be filled in part only. */
struct grid {
    uint32_t height;
    uint32_t width;
    uint32_t rows;
    uint32_t columns;
};

/** The largest picture of at most `limit` patches that keeps the aspect; sides are from 1 to 2^24, `limit` is not 0. */
grid fit(uint32_t height, uint32_t width, uint32_t side, uint32_t limit);

} // namespace uform::image

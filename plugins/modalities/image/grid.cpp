#include "plugins/modalities/image/grid.h"

#include <algorithm>

namespace uform::image {

namespace {

grid grid_of(uint32_t height, uint32_t width, uint32_t side) {
    return {height, width, (height + side - 1) / side, (width + side - 1) / side};
}

/** The size whose longer side is `longer`, the other rounded to the nearest pixel. */
grid shrink(uint32_t height, uint32_t width, uint32_t side, uint32_t longer) {
    uint64_t const most = std::max(height, width), least = std::min(height, width);
    auto const shorter = static_cast<uint32_t>(std::max<uint64_t>(1, (2 * least * longer + most) / (2 * most)));
    return height < width ? grid_of(shorter, longer, side) : grid_of(longer, shorter, side);
}

bool fits(grid const& tried, uint32_t limit) { return uint64_t(tried.rows) * tried.columns <= limit; }

} // namespace

grid fit(uint32_t height, uint32_t width, uint32_t side, uint32_t limit) {
    grid const whole = grid_of(height, width, side);
    if (fits(whole, limit))
        return whole;
    // Patches never get fewer as the longer side grows: one pixel fits, the whole side does not.
    uint32_t fitting = 1, too_long = std::max(height, width);
    while (too_long - fitting > 1) {
        uint32_t const middle = fitting + (too_long - fitting) / 2;
        (fits(shrink(height, width, side, middle), limit) ? fitting : too_long) = middle;
    }
    return shrink(height, width, side, fitting);
}

} // namespace uform::image

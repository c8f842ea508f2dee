#include "ram/operations.h"

namespace uform::ram {

namespace {

/** Positions of a segment's column: the marker at 0 on every axis, then the grid in raster order, counted from 1. */
void locate(uform_segment_t const& segment, std::uint32_t column, std::uint16_t position[UFORM_AXES]) noexcept {
    for (unsigned axis = 0; axis != UFORM_AXES; ++axis)
        position[axis] = 0;
    if (column == 0)
        return;
    // Axis 0 is not wrapped: columns past the content go on counting there.
    std::uint32_t place = column - 1;
    for (unsigned axis = segment.axes - 1u; axis != 0; --axis) {
        std::uint32_t const extent = segment.extents[axis] ? segment.extents[axis] : 1;
        position[axis] = static_cast<std::uint16_t>(place % extent + 1);
        place /= extent;
    }
    position[0] = static_cast<std::uint16_t>(place + 1);
}

} // namespace

void columns_expand(stream const& stream, uform_columns_t const& columns) {
    constexpr std::size_t segments_per_task = 16;
    stream.backend.parallel_chunks(columns.counts[1], segments_per_task, [&](std::size_t begin, std::size_t end) {
        for (std::size_t s = begin; s != end; ++s) {
            uform_segment_t const& segment = columns.segments[s];
            for (std::uint32_t column = 0; column != segment.columns; ++column) {
                std::size_t const place = segment.first + column;
                columns.segment_of[place] = static_cast<std::uint32_t>(s);
                locate(segment, column, columns.positions + place * UFORM_AXES);
            }
        }
    });
}

} // namespace uform::ram

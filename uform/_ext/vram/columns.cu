#include <algorithm>

#include "vram/elementwise.cuh"
#include "vram/launch.cuh"
#include "vram/operations.h"

namespace uform::vram {

namespace {

constexpr unsigned warps_k = 8;

/** Positions of a segment's column: the marker at 0 on every axis, then the grid in raster order, counted from 1. */
__device__ void locate(uform_segment_t const& segment, std::uint32_t column, std::uint16_t position[UFORM_AXES]) {
    std::uint32_t axes[UFORM_AXES] = {0, 0, 0};
    if (column != 0) {
        // Axis 0 is not wrapped: columns past the content go on counting there.
        std::uint32_t place = column - 1;
#pragma unroll
        for (unsigned axis = UFORM_AXES - 1; axis != 0; --axis) {
            if (axis >= segment.axes)
                continue;
            std::uint32_t const extent = segment.extents[axis] ? segment.extents[axis] : 1;
            axes[axis] = place % extent + 1;
            place /= extent;
        }
        axes[0] = place + 1;
    }
#pragma unroll
    for (unsigned axis = 0; axis != UFORM_AXES; ++axis)
        position[axis] = static_cast<std::uint16_t>(axes[axis]);
}

/** A warp a segment, as far as the grid reaches, then on. */
__global__ void __launch_bounds__(warps_k* warp_k) expand(uform_columns_t columns) {
    std::uint32_t const segments = columns.counts[1], lane = threadIdx.x % warp_k;
    for (std::uint32_t s = blockIdx.x * warps_k + threadIdx.x / warp_k; s < segments; s += gridDim.x * warps_k) {
        uform_segment_t const segment = columns.segments[s];
        for (std::uint32_t column = lane; column < segment.columns; column += warp_k) {
            std::size_t const place = std::size_t(segment.first) + column;
            columns.segment_of[place] = s;
            locate(segment, column, columns.positions + place * UFORM_AXES);
        }
    }
}

} // namespace

uform_status_t columns_expand(uform_stream_t* opaque, uform_columns_t const* columns) {
    return operate("columns_expand", opaque, [&](stream const& stream) {
        unsigned const most = static_cast<unsigned>(stream.multiprocessors) * 8;
        unsigned const blocks = std::min(most, blocks_for(columns->segments_capacity, warps_k));
        launch(stream, expand, blocks, warps_k * warp_k, 0, *columns);
    });
}

} // namespace uform::vram

#include "vram/launch.cuh"
#include "vram/lengths.cuh"
#include "vram/operations.h"

namespace uform::vram {

namespace {

constexpr unsigned warps_k = 8;
constexpr unsigned threads_k = warps_k * warp_k;

/** A warp a vector. */
__global__ void __launch_bounds__(threads_k) take_prefix(uform_prefix_t prefix) {
    std::uint32_t const row = blockIdx.x * warps_k + threadIdx.x / warp_k;
    if (row >= *prefix.count)
        return;
    float const* const from = prefix.source + std::size_t(prefix.indices[row]) * prefix.stride;
    float* const to = prefix.vectors + std::size_t(row) * prefix.width;
    float const length = length_of(from, prefix.width), divisor = prefix.normalize ? divisor_of(length) : 1;
    each_column(prefix.width, [&](std::uint32_t column) { to[column] = from[column] / divisor; });
    if (threadIdx.x % warp_k == 0)
        prefix.lengths[row] = length;
}

__global__ void __launch_bounds__(threads_k) return_prefix(uform_prefix_t prefix) {
    std::uint32_t const row = blockIdx.x * warps_k + threadIdx.x / warp_k;
    if (row >= *prefix.count)
        return;
    float const* const unit = prefix.vectors + std::size_t(row) * prefix.width;
    float const* const gradient = prefix.vectors_gradient + std::size_t(row) * prefix.width;
    float* const to = prefix.source_gradient + std::size_t(prefix.indices[row]) * prefix.stride;
    // Below the smallest length the divisor is a constant, and above it only what is across the vector moves it.
    float const length = prefix.lengths[row];
    float along = 0;
    if (prefix.normalize && length > smallest_length_k<float>)
        each_column(prefix.width, [&](std::uint32_t column) { along = fmaf(unit[column], gradient[column], along); });
    along = sum_warp(along);
    float const divisor = prefix.normalize ? divisor_of(length) : 1;
    each_column(prefix.width,
                [&](std::uint32_t column) { to[column] += fmaf(-along, unit[column], gradient[column]) / divisor; });
}

} // namespace

uform_status_t prefix_forward(uform_stream_t* opaque, uform_prefix_t const* prefix) {
    return operate("prefix_forward", opaque, [&](stream const& stream) {
        launch(stream, take_prefix, blocks_for(prefix->active, warps_k), threads_k, 0, *prefix);
    });
}

uform_status_t prefix_backward(uform_stream_t* opaque, uform_prefix_t const* prefix) {
    return operate("prefix_backward", opaque, [&](stream const& stream) {
        launch(stream, return_prefix, blocks_for(prefix->active, warps_k), threads_k, 0, *prefix);
    });
}

} // namespace uform::vram

/** Every column's hidden state mapped to a vector of unit length. */
#include <algorithm>

#include "vram/gemm.h"
#include "vram/launch.cuh"
#include "vram/lengths.cuh"
#include "vram/operations.h"

namespace uform::vram {

namespace {

constexpr unsigned warps_k = 8;
constexpr unsigned threads_k = warps_k * warp_k;

/** A warp a vector. */
__global__ void __launch_bounds__(threads_k) scale_vectors(uform_vectors_t given) {
    std::uint32_t const row = blockIdx.x * warps_k + threadIdx.x / warp_k;
    if (row >= given.columns.counts[0])
        return;
    float* const vector = given.vectors + std::size_t(row) * given.width;
    float const length = length_of(vector, given.width), divisor = divisor_of(length);
    each_column(given.width, [&](std::uint32_t column) { vector[column] /= divisor; });
    if (threadIdx.x % warp_k == 0)
        given.lengths[row] = length;
}

/** The gradient by what was scaled, rounded; zero for rows past the count, which a product over all of them reads. */
__global__ void __launch_bounds__(threads_k) unscale_vectors(uform_vectors_t given, __nv_bfloat16* mapped) {
    std::uint32_t const row = blockIdx.x * warps_k + threadIdx.x / warp_k;
    if (row >= given.columns.active)
        return;
    std::size_t const at = std::size_t(row) * given.width;
    if (row >= given.columns.counts[0]) {
        each_column(given.width, [&](std::uint32_t column) { mapped[at + column] = __float2bfloat16(0.f); });
        return;
    }
    float const* const unit = given.vectors + at;
    float const* const gradient = given.vectors_gradient + at;
    // Below the smallest length the divisor is a constant, and above it only what is across the vector moves it.
    float const length = given.lengths[row];
    float along = 0;
    if (length > smallest_length_k<float>)
        each_column(given.width, [&](std::uint32_t column) { along = fmaf(unit[column], gradient[column], along); });
    along = sum_warp(along);
    float const divisor = divisor_of(length);
    each_column(given.width, [&](std::uint32_t column) {
        mapped[at + column] = __float2bfloat16(fmaf(-along, unit[column], gradient[column]) / divisor);
    });
}

linear_extents extents_of(uform_vectors_t const& given, std::uint32_t rows) {
    return {rows, given.width, given.hidden};
}

} // namespace

std::size_t vectors_workspace_bytes(std::uint32_t hidden, std::uint32_t width, std::uint32_t columns) {
    return part_bytes<__nv_bfloat16>(std::size_t(columns) * width) +
           gemm_weight_gradient_workspace_bytes({columns, width, hidden});
}

uform_status_t vectors_forward(uform_stream_t* opaque, uform_vectors_t const* given) {
    return operate("vectors_forward", opaque, [&](stream const& stream) {
        std::uint32_t const rows = given->columns.active;
        gemm_forward(stream, extents_of(*given, rows), static_cast<__nv_bfloat16 const*>(given->states),
                     static_cast<__nv_bfloat16 const*>(given->weight), given->vectors);
        launch(stream, scale_vectors, blocks_for(rows, warps_k), threads_k, 0, *given);
    });
}

uform_status_t vectors_backward(uform_stream_t* opaque, uform_vectors_t const* given) {
    return operate("vectors_backward", opaque, [&](stream const& stream) {
        std::uint32_t const rows = given->columns.active;
        linear_extents const extents = extents_of(*given, rows);
        check_bytes("workspace_bytes", given->workspace_bytes,
                    vectors_workspace_bytes(given->hidden, given->width, rows));
        workspace_parts parts(given->workspace);
        __nv_bfloat16* const mapped = parts.take<__nv_bfloat16>(std::size_t(rows) * given->width);
        std::size_t const rest = gemm_weight_gradient_workspace_bytes(extents);
        std::byte* const scratch = parts.take<std::byte>(rest);
        auto* const gradient = static_cast<__nv_bfloat16*>(given->gradient);
        launch(stream, unscale_vectors, blocks_for(rows, warps_k), threads_k, 0, *given, mapped);
        gemm_data_gradient(stream, extents, mapped, static_cast<__nv_bfloat16 const*>(given->weight), gradient,
                           gradient);
        gemm_weight_gradient(stream, extents, mapped, static_cast<__nv_bfloat16 const*>(given->states),
                             given->weight_gradient, scratch, rest);
    });
}

} // namespace uform::vram

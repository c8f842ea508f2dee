#include "vram/weights.h"

#include "vram/elementwise.cuh"
#include "vram/launch.cuh"
#include "vram/operations.h"
#include "vram/succession.cuh"

namespace uform::vram {

namespace {

constexpr unsigned threads_k = 256;

__global__ void __launch_bounds__(threads_k)
    round_values(float const* plain, __nv_bfloat16* working, std::size_t count) {
    std::size_t const first = (std::size_t(blockIdx.x) * threads_k + threadIdx.x) * lanes_k;
    if (first + lanes_k <= count) {
        store8(working + first, narrow(load8(plain + first)));
        return;
    }
    for (std::size_t i = first; i < count; ++i)
        working[i] = __float2bfloat16(plain[i]);
}

__global__ void __launch_bounds__(threads_k)
    scale_columns(__nv_bfloat16 const* __restrict__ weight, float const* __restrict__ gain,
                  __nv_bfloat16* __restrict__ scaled, std::uint32_t ins, std::size_t count) {
    follow_earlier_kernels();
    std::size_t const first = (std::size_t(blockIdx.x) * threads_k + threadIdx.x) * lanes_k;
    if (first >= count)
        return;
    floatx8 values = widen(load8(weight + first));
    floatx8 const gains = load8(gain + first % ins);
#pragma unroll
    for (unsigned i = 0; i != lanes_k; ++i)
        values[i] *= gains[i];
    store8(scaled + first, narrow(values));
}

/** Whether the backend keeps a rounded copy: of what its products and gathers read. */
bool has_copy(std::uint32_t kind) noexcept {
    return kind == uform_parameter_kind_matrix_k || kind == uform_parameter_kind_embedding_k;
}

} // namespace

void launch_scale_columns(stream const& stream, std::uint32_t outs, std::uint32_t ins, __nv_bfloat16 const* weight,
                          float const* gain, __nv_bfloat16* scaled) {
    std::size_t const count = std::size_t(outs) * ins;
    launch_early(stream, scale_columns, blocks_for(count, threads_k * lanes_k), threads_k, 0, weight, gain, scaled, ins,
                 count);
}

std::size_t state_bytes(std::uint32_t hidden) { return hidden * sizeof(__nv_bfloat16); }

std::size_t weights_bytes(std::uint32_t kind, std::uint32_t rows, std::uint32_t columns) {
    return has_copy(kind) ? std::size_t(rows) * columns * sizeof(__nv_bfloat16) : 0;
}

uform_status_t weights_import(uform_stream_t* opaque, std::uint32_t kind, std::uint32_t rows, std::uint32_t columns,
                              float const* plain, void* working) {
    return operate("weights_import", opaque, [&](stream const& stream) {
        if (!has_copy(kind))
            return;
        std::size_t const count = std::size_t(rows) * columns;
        launch(stream, round_values, blocks_for(count, threads_k * lanes_k), threads_k, 0, plain,
               static_cast<__nv_bfloat16*>(working), count);
    });
}

} // namespace uform::vram

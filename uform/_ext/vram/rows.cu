#include "vram/elementwise.cuh"
#include "vram/launch.cuh"
#include "vram/moves.cuh"
#include "vram/operations.h"

namespace uform::vram {

namespace {

__global__ void __launch_bounds__(moving_threads_k, 4) gather_rows(uform_rows_t rows) {
    follow_earlier_kernels();
    auto const* const states = static_cast<__nv_bfloat16 const*>(rows.states);
    auto* const gathered = static_cast<__nv_bfloat16*>(rows.rows);
    move_rows(
        min(*rows.count, rows.active), rows.hidden, [&](std::uint32_t row) { return rows.indices[row]; },
        [&](std::uint32_t, std::uint32_t index, std::uint32_t first) {
            return load8(states + std::size_t(index) * rows.hidden + first);
        },
        [&](std::uint32_t row, std::uint32_t, std::uint32_t first, bf16x8 const& vector) {
            store8(gathered + std::size_t(row) * rows.hidden + first, vector);
        });
}

/** Indices are distinct: no two rows meet. */
template <bool accumulate_ak> __global__ void __launch_bounds__(moving_threads_k, 3) scatter_rows(uform_rows_t rows) {
    follow_earlier_kernels();
    std::uint32_t const count = min(*rows.count, rows.active);
    auto* const gradient = static_cast<__nv_bfloat16*>(rows.gradient);
    move_rows(
        count, rows.hidden, [&](std::uint32_t row) { return rows.indices[row]; },
        [&](std::uint32_t row, std::uint32_t index, std::uint32_t first) {
            floatx8 values = load8(rows.rows_gradient + std::size_t(row) * rows.hidden + first);
            if constexpr (accumulate_ak) {
                floatx8 const before = widen(load8(gradient + std::size_t(index) * rows.hidden + first));
#pragma unroll
                for (unsigned i = 0; i != lanes_k; ++i)
                    values[i] += before[i];
            }
            return narrow(values);
        },
        [&](std::uint32_t, std::uint32_t index, std::uint32_t first, bf16x8 const& vector) {
            store8(gradient + std::size_t(index) * rows.hidden + first, vector);
        });
}

} // namespace

uform_status_t rows_gather(uform_stream_t* opaque, uform_rows_t const* rows) {
    return operate("rows_gather", opaque,
                   [&](stream const& stream) { launch_moves(stream, gather_rows, rows->active, rows->hidden, *rows); });
}

uform_status_t rows_scatter(uform_stream_t* opaque, uform_rows_t const* rows) {
    return operate("rows_scatter", opaque, [&](stream const& stream) {
        if (rows->accumulate)
            return launch_moves(stream, scatter_rows<true>, rows->active, rows->hidden, *rows);
        std::size_t const bytes = std::size_t(rows->columns_active) * rows->hidden * sizeof(__nv_bfloat16);
        if (bytes)
            check_cuda(cudaMemsetAsync(rows->gradient, 0, bytes, stream.handle), stream);
        launch_moves(stream, scatter_rows<false>, rows->active, rows->hidden, *rows);
    });
}

} // namespace uform::vram

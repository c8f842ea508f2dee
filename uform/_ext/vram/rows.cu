#include "vram/elementwise.cuh"
#include "vram/launch.cuh"
#include "vram/operations.h"

namespace uform::vram {

namespace {

/** Rows past the count become zero: they may feed a product over all active rows. */
__global__ void __launch_bounds__(256) gather_rows(uform_rows_t rows) {
    std::uint32_t const row = row_of_thread();
    if (row >= rows.active)
        return;
    bool const used = row < *rows.count;
    __nv_bfloat16 const* const from =
        static_cast<__nv_bfloat16 const*>(rows.states) + (used ? std::size_t(rows.indices[row]) * rows.hidden : 0);
    __nv_bfloat16* const to = static_cast<__nv_bfloat16*>(rows.rows) + std::size_t(row) * rows.hidden;
    for_row_vectors(rows.hidden,
                    [&](std::uint32_t first) { store8(to + first, used ? load8(from + first) : zero8()); });
}

/** Indices are distinct: no two rows meet. */
template <bool accumulate_ak> __global__ void __launch_bounds__(256) scatter_rows(uform_rows_t rows) {
    std::uint32_t const row = row_of_thread();
    if (row >= min(*rows.count, rows.active))
        return;
    float const* const from = rows.rows_gradient + std::size_t(row) * rows.hidden;
    __nv_bfloat16* const to = static_cast<__nv_bfloat16*>(rows.gradient) + std::size_t(rows.indices[row]) * rows.hidden;
    for_row_vectors(rows.hidden, [&](std::uint32_t first) {
        floatx8 values = load8(from + first);
        if constexpr (accumulate_ak) {
            floatx8 const before = widen(load8(to + first));
#pragma unroll
            for (unsigned i = 0; i != lanes_k; ++i)
                values[i] += before[i];
        }
        store8(to + first, narrow(values));
    });
}

} // namespace

uform_status_t rows_gather(uform_stream_t* opaque, uform_rows_t const* rows) {
    return operate("rows_gather", opaque, [&](stream const& stream) {
        rows_shape const shape(rows->active, rows->hidden / lanes_k);
        launch(stream, gather_rows, shape.grid, shape.block, 0, *rows);
    });
}

uform_status_t rows_scatter(uform_stream_t* opaque, uform_rows_t const* rows) {
    return operate("rows_scatter", opaque, [&](stream const& stream) {
        rows_shape const shape(rows->active, rows->hidden / lanes_k);
        if (rows->accumulate)
            return launch(stream, scatter_rows<true>, shape.grid, shape.block, 0, *rows);
        std::size_t const bytes = std::size_t(rows->columns_active) * rows->hidden * sizeof(__nv_bfloat16);
        if (bytes)
            check_cuda(cudaMemsetAsync(rows->gradient, 0, bytes, stream.handle), stream);
        launch(stream, scatter_rows<false>, shape.grid, shape.block, 0, *rows);
    });
}

} // namespace uform::vram

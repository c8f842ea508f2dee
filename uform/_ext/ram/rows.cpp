#include <cstring>

#include "ram/elementwise.h"
#include "ram/operations.h"

namespace uform::ram {

void rows_gather(stream const& stream, uform_rows_t const& rows) {
    std::size_t const hidden = rows.hidden;
    float const* const states = static_cast<float const*>(rows.states);
    float* const gathered = static_cast<float*>(rows.rows);
    stream.backend.parallel_chunks(*rows.count, rows_per_task_k, [&](std::size_t begin, std::size_t end) {
        for (std::size_t row = begin; row != end; ++row)
            std::memcpy(gathered + row * hidden, states + rows.indices[row] * hidden, hidden * sizeof(float));
    });
}

void rows_scatter(stream const& stream, uform_rows_t const& rows) {
    std::size_t const hidden = rows.hidden;
    float* const gradient = static_cast<float*>(rows.gradient);
    if (!rows.accumulate)
        stream.backend.parallel_chunks(rows.columns_active, rows_per_task_k, [&](std::size_t begin, std::size_t end) {
            std::fill(gradient + begin * hidden, gradient + end * hidden, 0.f);
        });
    stream.backend.parallel_chunks(*rows.count, rows_per_task_k, [&](std::size_t begin, std::size_t end) {
        for (std::size_t row = begin; row != end; ++row)
            add_scaled(gradient + rows.indices[row] * hidden, rows.rows_gradient + row * hidden, 1, hidden);
    });
}

} // namespace uform::ram

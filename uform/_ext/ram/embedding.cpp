#include <cstring>

#include "ram/elementwise.h"
#include "ram/operations.h"

namespace uform::ram {

namespace {

constexpr std::size_t table_rows_per_task_k = 32;

/** Whether the column's state is a row of this modality's table. */
bool is_coded(uform_embedding_t const& embedding, std::size_t column) noexcept {
    uform_columns_t const& columns = embedding.columns;
    return columns.codes[column] < embedding.table_rows &&
           columns.segments[columns.segment_of[column]].modality == embedding.modality;
}

} // namespace

std::size_t embedding_workspace_bytes(std::uint32_t hidden, std::uint32_t table_rows, std::uint32_t) {
    return part_bytes<double>(std::size_t(table_rows) * hidden);
}

void embedding_forward(stream const& stream, uform_embedding_t const& embedding) {
    std::size_t const hidden = embedding.hidden;
    float const* const table = static_cast<float const*>(embedding.table);
    float* const states = static_cast<float*>(embedding.states);
    stream.backend.parallel_chunks(
        embedding.columns.counts[0], rows_per_task_k, [&](std::size_t begin, std::size_t end) {
            for (std::size_t column = begin; column != end; ++column)
                if (is_coded(embedding, column))
                    std::memcpy(states + column * hidden, table + embedding.columns.codes[column] * hidden,
                                hidden * sizeof(float));
        });
}

void embedding_backward(stream const& stream, uform_embedding_t const& embedding) {
    std::size_t const hidden = embedding.hidden;
    std::size_t const columns = embedding.columns.counts[0];
    float const* const gradient = static_cast<float const*>(embedding.gradient);
    double* const sums = workspace_parts(embedding.workspace).take<double>(embedding.table_rows * hidden);
    // A task owns some rows of the table and looks for their columns: the order of every sum is that of the columns.
    stream.backend.parallel_chunks(embedding.table_rows, table_rows_per_task_k,
                                   [&](std::size_t begin, std::size_t end) {
                                       std::fill(sums + begin * hidden, sums + end * hidden, 0.0);
                                       for (std::size_t column = 0; column != columns; ++column) {
                                           std::size_t const code = embedding.columns.codes[column];
                                           if (code < begin || code >= end || !is_coded(embedding, column))
                                               continue;
                                           for (std::size_t i = 0; i != hidden; ++i)
                                               sums[code * hidden + i] += gradient[column * hidden + i];
                                       }
                                       for (std::size_t i = begin * hidden; i != end * hidden; ++i)
                                           embedding.table_gradient[i] += static_cast<float>(sums[i]);
                                   });
}

} // namespace uform::ram

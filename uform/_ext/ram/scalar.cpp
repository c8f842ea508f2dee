/** Rows between float32 and the element types that others take and give. */
#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>

#include "ram/operations.h"

namespace uform::ram {

namespace {

float widened(float value) noexcept { return value; }

/** The bits of a bfloat16 are the upper half of a float32's. */
float widened(std::uint16_t bits) noexcept { return std::bit_cast<float>(std::uint32_t(bits) << 16); }

/** Answers the column of the row's first value that is not finite, or the width. */
template <typename value_at>
std::size_t widen_row(value_at const* from, std::int64_t stride, std::size_t width, float* to) noexcept {
    std::size_t first = width;
    for (std::size_t column = 0; column != width; ++column) {
        float const value = widened(from[static_cast<std::int64_t>(column) * stride]);
        if (first == width && !std::isfinite(value))
            first = column;
        if (to)
            to[column] = value;
    }
    return first;
}

template <typename value_at> void widen(stream const& stream, uform_widen_t const& given) {
    auto const* const values = static_cast<value_at const*>(given.from);
    std::size_t const width = given.width;
    std::atomic<std::uint64_t> least = UINT64_MAX;
    stream.backend.parallel_chunks(given.rows, rows_per_task_k, [&](std::size_t begin, std::size_t end) {
        std::uint64_t own = UINT64_MAX;
        for (std::size_t row = begin; row != end; ++row) {
            std::size_t const column =
                widen_row(values + static_cast<std::int64_t>(row) * given.row_stride, given.column_stride, width,
                          given.to ? given.to + row * width : nullptr);
            if (column != width)
                own = std::min<std::uint64_t>(own, row * width + column);
        }
        for (std::uint64_t known = least; own < known && !least.compare_exchange_weak(known, own);)
            ;
    });
    *given.not_finite = least;
}

} // namespace

void rows_narrow(stream const& stream, uform_narrow_t const& rows) {
    auto* const to = static_cast<std::byte*>(rows.to);
    stream.backend.parallel_chunks(rows.count, rows_per_task_k, [&](std::size_t begin, std::size_t end) {
        for (std::size_t row = begin; row != end; ++row) {
            std::size_t const place = rows.places ? rows.places[row] : row;
            check(uform_scalar_convert(rows.from + row * rows.width, 1, rows.width, rows.scalar,
                                       to + place * rows.to_bytes));
        }
    });
}

void rows_widen(stream const& stream, uform_widen_t const& given) {
    switch (given.scalar) {
    case uform_scalar_float32_k:
        return widen<float>(stream, given);
    case uform_scalar_bfloat16_k:
        return widen<std::uint16_t>(stream, given);
    default:
        fail(uform_status_invalid_argument_k, "scalar is ", given.scalar, ", expected FLOAT32 or BFLOAT16");
    }
}

} // namespace uform::ram

/** Every column's hidden state mapped to a vector of unit length. */
#include <algorithm>
#include <cmath>

#include "ram/elementwise.h"
#include "ram/operations.h"

namespace uform::ram {

namespace {

constexpr double smallest_length_k = 1e-12;

double dot_exactly(float const* left, float const* right, std::size_t width) {
    double sum = 0;
    for (std::size_t i = 0; i != width; ++i)
        sum += double(left[i]) * right[i];
    return sum;
}

/** The gradient by what was scaled to unit length. Below the smallest length the divisor is a constant, and above it
 *  only what is across the vector moves it. */
void unscale(uform_vectors_t const& given, std::size_t row, float* to) {
    std::size_t const width = given.width;
    float const* const unit = given.vectors + row * width;
    float const* const gradient = given.vectors_gradient + row * width;
    double const length = given.lengths[row];
    double const along = length > smallest_length_k ? dot_exactly(unit, gradient, width) : 0;
    double const divisor = std::max(length, smallest_length_k);
    for (std::size_t i = 0; i != width; ++i)
        to[i] = static_cast<float>((gradient[i] - along * unit[i]) / divisor);
}

} // namespace

std::size_t vectors_workspace_bytes(std::uint32_t, std::uint32_t width, std::uint32_t columns) {
    return part_bytes<float>(std::size_t(columns) * width);
}

void vectors_forward(stream const& stream, uform_vectors_t const& given) {
    std::size_t const columns = given.columns.counts[0], width = given.width;
    linear_forward(stream.backend, columns, width, given.hidden, static_cast<float const*>(given.states),
                   static_cast<float const*>(given.weight), given.vectors);
    stream.backend.parallel_chunks(columns, rows_per_task_k, [&](std::size_t begin, std::size_t end) {
        for (std::size_t row = begin; row != end; ++row) {
            float* const vector = given.vectors + row * width;
            double const length = std::sqrt(dot_exactly(vector, vector, width));
            double const factor = 1 / std::max(length, smallest_length_k);
            given.lengths[row] = static_cast<float>(length);
            for (std::size_t i = 0; i != width; ++i)
                vector[i] = static_cast<float>(vector[i] * factor);
        }
    });
}

void vectors_backward(stream const& stream, uform_vectors_t const& given) {
    std::size_t const columns = given.columns.counts[0], width = given.width, hidden = given.hidden;
    float* const mapped = static_cast<float*>(given.workspace);
    float const* const weight = static_cast<float const*>(given.weight);
    float* const gradient = static_cast<float*>(given.gradient);
    stream.backend.parallel_chunks(columns, rows_per_task_k, [&](std::size_t begin, std::size_t end) {
        for (std::size_t row = begin; row != end; ++row)
            unscale(given, row, mapped + row * width);
        stream.backend.gemm().nn(end - begin, hidden, width, 1, mapped + begin * width, width, weight, hidden, 1,
                                 gradient + begin * hidden, hidden);
    });
    linear_weight_gradient(stream.backend, columns, width, hidden, mapped, static_cast<float const*>(given.states),
                           given.weight_gradient);
}

} // namespace uform::ram

#include "ram/norm.h"

#include <algorithm>
#include <cmath>

#include "ram/elementwise.h"
#include "ram/operations.h"

namespace uform::ram {

namespace {

constexpr float epsilon_k = 1e-6f;

/** The sum of a[i] * b[i] * c[i]. */
float dot(float const* a, float const* b, float const* c, std::size_t count) noexcept {
    lanes_t sums[2] = {};
    std::size_t const whole = count / (2 * lanes_k) * (2 * lanes_k);
    for (std::size_t i = 0; i != whole; i += 2 * lanes_k)
        for (std::size_t part = 0; part != 2; ++part) {
            std::size_t const at = i + part * lanes_k;
            sums[part] += load_lanes(a + at) * load_lanes(b + at) * load_lanes(c + at);
        }
    float sum = sum_lanes(sums[0] + sums[1]);
    for (std::size_t i = whole; i < count; ++i)
        sum += a[i] * b[i] * c[i];
    return sum;
}

} // namespace

float inverse_rms(float const* x, std::size_t hidden) noexcept {
    return 1.f / std::sqrt(dot(x, x, hidden) / static_cast<float>(hidden) + epsilon_k);
}

void norm_row(float const* x, float const* gain, float inverse, std::size_t hidden, float* y) noexcept {
    for (std::size_t i = 0; i != hidden; ++i)
        y[i] = x[i] * inverse * gain[i];
}

void norm_row_backward(float const* x, float const* gain, float inverse, float const* dy, std::size_t hidden,
                       norm_gradient how, float* dx, double* gain_sums) noexcept {
    float const along = dot(dy, gain, x, hidden) * inverse * inverse * inverse / static_cast<float>(hidden);
    for (std::size_t i = 0; i != hidden; ++i)
        gain_sums[i] += dy[i] * x[i] * inverse;
    if (how == norm_gradient::add)
        for (std::size_t i = 0; i != hidden; ++i)
            dx[i] += inverse * gain[i] * dy[i] - along * x[i];
    else
        for (std::size_t i = 0; i != hidden; ++i)
            dx[i] = inverse * gain[i] * dy[i] - along * x[i];
}

std::size_t gain_sums::bytes(std::size_t hidden, std::size_t rows) noexcept {
    return part_bytes<double>((rows + rows_per_task_k - 1) / rows_per_task_k * hidden);
}

double* gain_sums::begin_task(std::size_t row) const noexcept {
    double* const sums = sums_ + row / rows_per_task_k * hidden_;
    std::fill_n(sums, hidden_, 0.0);
    return sums;
}

void gain_sums::add_to(backend const& backend, std::size_t rows, float* gradient) const {
    constexpr std::size_t values_per_task = 256;
    std::size_t const tasks = (rows + rows_per_task_k - 1) / rows_per_task_k;
    backend.parallel_chunks(hidden_, values_per_task, [&](std::size_t begin, std::size_t end) {
        for (std::size_t i = begin; i != end; ++i) {
            double sum = 0;
            for (std::size_t task = 0; task != tasks; ++task)
                sum += sums_[task * hidden_ + i];
            gradient[i] += static_cast<float>(sum);
        }
    });
}

std::size_t norm_workspace_bytes(std::uint32_t hidden, std::uint32_t columns) {
    return gain_sums::bytes(hidden, columns);
}

void norm_forward(stream const& stream, uform_norm_t const& norm) {
    std::size_t const hidden = norm.hidden;
    float const* const gain = static_cast<float const*>(norm.gain);
    float const* const input = static_cast<float const*>(norm.input);
    float* const output = static_cast<float*>(norm.output);
    stream.backend.parallel_chunks(norm.columns.counts[0], rows_per_task_k, [&](std::size_t begin, std::size_t end) {
        for (std::size_t row = begin; row != end; ++row) {
            norm.inverse_rms[row] = inverse_rms(input + row * hidden, hidden);
            norm_row(input + row * hidden, gain, norm.inverse_rms[row], hidden, output + row * hidden);
        }
    });
}

void norm_backward(stream const& stream, uform_norm_t const& norm) {
    std::size_t const hidden = norm.hidden, rows = norm.columns.counts[0];
    float const* const gain = static_cast<float const*>(norm.gain);
    float const* const input = static_cast<float const*>(norm.input);
    float* const gradient = static_cast<float*>(norm.gradient);
    gain_sums const sums(static_cast<double*>(norm.workspace), hidden);
    stream.backend.parallel_chunks(rows, rows_per_task_k, [&](std::size_t begin, std::size_t end) {
        double* const task_sums = sums.begin_task(begin);
        for (std::size_t row = begin; row != end; ++row) {
            float* const values = gradient + row * hidden;
            norm_row_backward(input + row * hidden, gain, norm.inverse_rms[row], values, hidden,
                              norm_gradient::overwrite, values, task_sums);
        }
    });
    sums.add_to(stream.backend, rows, norm.gain_gradient);
}

} // namespace uform::ram

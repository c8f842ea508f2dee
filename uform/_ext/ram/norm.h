/** RMSNorm with a gain, row by row, which the encoder's blocks and the last norm share. */
#pragma once

#include <cstddef>

#include "ram/backend.h"

namespace uform::ram {

/** 1 / sqrt(mean(x^2) + 1e-6). */
float inverse_rms(float const* x, std::size_t hidden) noexcept;

/** y = x * inverse * gain. */
void norm_row(float const* x, float const* gain, float inverse, std::size_t hidden, float* y) noexcept;

/** What a row's gradient does to that of its input. */
enum class norm_gradient { overwrite, add };

/**
 *  The gradient of one row through the norm.
 *  @param dy Of the output; `dx` may be the same row.
 *  @param gain_sums [hidden] += the row's share of the gain's gradient.
 */
void norm_row_backward(float const* x, float const* gain, float inverse, float const* dy, std::size_t hidden,
                       norm_gradient how, float* dx, double* gain_sums) noexcept;

/** Gradients of a gain, summed for each task of `rows_per_task_k` rows, then over the tasks in their order. */
class gain_sums {
public:
    static std::size_t bytes(std::size_t hidden, std::size_t rows) noexcept;

    gain_sums(double* sums, std::size_t hidden) noexcept : sums_(sums), hidden_(hidden) {}

    /** The sums of the task that begins at a row, set to zero. */
    double* begin_task(std::size_t row) const noexcept;

    /** gradient += the sum over all tasks of `rows` rows. */
    void add_to(backend const& backend, std::size_t rows, float* gradient) const;

private:
    double* sums_;
    std::size_t hidden_;
};

} // namespace uform::ram

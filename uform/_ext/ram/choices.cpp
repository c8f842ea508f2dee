/** A softmax over each item's choices, read from the hidden states at their columns. */
#include <algorithm>
#include <cmath>

#include "ram/elementwise.h"
#include "ram/operations.h"

namespace uform::ram {

namespace {

constexpr std::size_t items_per_task_k = 32;
constexpr std::size_t columns_per_task_k = 64;

/** The parts of the workspace. */
struct choices_workspace {
    float* slopes;              /* [rows] raw scores, then the loss's derivative by them */
    double* losses;             /* [items] */
    double* temperature_slopes; /* [items] */
    double* sums;               /* [hidden] */

    explicit choices_workspace(uform_choices_head_t const& head) {
        workspace_parts parts(head.workspace);
        slopes = parts.take<float>(head.rows_capacity);
        losses = parts.take<double>(head.items_capacity);
        temperature_slopes = parts.take<double>(head.items_capacity);
        sums = parts.take<double>(head.hidden);
    }
};

/** Probabilities of one item from its raw scores; where there are targets, its loss, and slopes in place of scores. */
void choose(uform_choices_head_t const& head, choices_workspace const& work, std::size_t item, double factor) {
    double const sharpness = std::exp(double(*head.log_inverse_temperature));
    std::size_t const begin = head.offsets[item], end = head.offsets[item + 1];
    double const maximum = sharpness * *std::max_element(work.slopes + begin, work.slopes + end);
    double sum = 0;
    for (std::size_t row = begin; row != end; ++row)
        sum += std::exp(sharpness * work.slopes[row] - maximum);
    double const log_sum = maximum + std::log(sum);
    double loss = 0, temperature_slope = 0, mass = 0;
    if (head.targets)
        for (std::size_t row = begin; row != end; ++row)
            mass += head.targets[row];
    for (std::size_t row = begin; row != end; ++row) {
        double const logit = sharpness * work.slopes[row], probability = std::exp(logit - log_sum);
        head.probabilities[row] = static_cast<float>(probability);
        if (!head.targets)
            continue;
        double const slope = mass * probability - head.targets[row];
        // A target of zero is free of its logarithm, however unlikely its choice has become.
        loss += head.targets[row] != 0 ? head.targets[row] * (log_sum - logit) : 0;
        temperature_slope += factor * slope * logit;
        work.slopes[row] = static_cast<float>(factor * slope * sharpness);
    }
    work.losses[item] = loss;
    work.temperature_slopes[item] = temperature_slope;
}

/** Rows and vector: each is the other, times the slopes. */
void choices_backward(stream const& stream, uform_choices_head_t const& head, choices_workspace const& work) {
    std::size_t const hidden = head.hidden, rows = head.counts[1];
    float const* const states = static_cast<float const*>(head.rows);
    stream.backend.parallel_chunks(rows, rows_per_task_k, [&](std::size_t begin, std::size_t end) {
        for (std::size_t row = begin; row != end; ++row)
            for (std::size_t i = 0; i != hidden; ++i)
                head.rows_gradient[row * hidden + i] = work.slopes[row] * head.vector[i];
    });
    // A task owns some columns: the order of every sum is that of the rows.
    stream.backend.parallel_chunks(hidden, columns_per_task_k, [&](std::size_t begin, std::size_t end) {
        std::fill(work.sums + begin, work.sums + end, 0.0);
        for (std::size_t row = 0; row != rows; ++row)
            for (std::size_t i = begin; i != end; ++i)
                work.sums[i] += double(work.slopes[row]) * states[row * hidden + i];
        for (std::size_t i = begin; i != end; ++i)
            head.vector_gradient[i] += static_cast<float>(work.sums[i]);
    });
}

} // namespace

std::size_t choices_head_workspace_bytes(std::uint32_t hidden, std::uint32_t items, std::uint32_t rows) {
    return part_bytes<float>(rows) + 2 * part_bytes<double>(items) + part_bytes<double>(hidden);
}

void choices_head(stream const& stream, uform_choices_head_t const& head) {
    std::size_t const hidden = head.hidden, items = head.counts[0], rows = head.counts[1];
    choices_workspace const work(head);
    float const* const states = static_cast<float const*>(head.rows);
    stream.backend.parallel_chunks(rows, rows_per_task_k, [&](std::size_t begin, std::size_t end) {
        for (std::size_t row = begin; row != end; ++row)
            work.slopes[row] = dot(states + row * hidden, head.vector, hidden);
    });
    double const factor = head.targets ? double(*head.scale) * *head.weight : 0;
    stream.backend.parallel_chunks(items, items_per_task_k, [&](std::size_t begin, std::size_t end) {
        for (std::size_t item = begin; item != end; ++item)
            choose(head, work, item, factor);
    });
    if (!head.targets)
        return;
    double loss = 0, temperature_slope = 0;
    for (std::size_t item = 0; item != items; ++item)
        loss += work.losses[item], temperature_slope += work.temperature_slopes[item];
    *head.loss += *head.scale * loss;
    if (!head.rows_gradient)
        return;
    choices_backward(stream, head, work);
    *head.log_inverse_temperature_gradient += static_cast<float>(temperature_slope);
}

} // namespace uform::ram

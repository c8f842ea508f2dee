/** Losses of what is predicted from hidden states: covered bytes, covered patches, classes. */
#include <algorithm>
#include <cmath>

#include "ram/operations.h"
#include "ram/values.h"

namespace uform::ram {

namespace {

/** Rows whose predictions are in memory at a time. */
constexpr std::size_t panel_rows_k = 1024;
constexpr std::size_t bytes_k = 256;
constexpr double variance_epsilon_k = 1e-6;

/** The parts of a head's workspace. */
struct head_workspace {
    float* predictions; /* [panel rows, outputs], then their gradients */
    float* values;      /* [panel rows, values], where the targets are computed */
    double* row_losses; /* [panel rows] */

    head_workspace(void* base, std::size_t rows, std::size_t outputs, std::size_t value_width = 0) {
        workspace_parts parts(base);
        predictions = parts.take<float>(std::min(rows, panel_rows_k) * outputs);
        values = parts.take<float>(std::min(rows, panel_rows_k) * value_width);
        row_losses = parts.take<double>(std::min(rows, panel_rows_k));
    }

    static std::size_t bytes(std::size_t rows, std::size_t outputs, std::size_t value_width = 0) {
        return part_bytes<float>(std::min(rows, panel_rows_k) * outputs) +
               part_bytes<float>(std::min(rows, panel_rows_k) * value_width) +
               part_bytes<double>(std::min(rows, panel_rows_k));
    }
};

/** A linear head over some rows of the hidden states. */
struct linear_head {
    std::size_t hidden, outputs;
    float const* rows;   /* [count, hidden] */
    float const* weight; /* [outputs, hidden] */
    float* rows_gradient;
    float* weight_gradient;
};

/** The first row of the hidden states that is the head's. */
template <typename head_at> std::size_t first_row(head_at const& head) {
    return std::size_t(head.first) + (head.before ? *head.before : 0);
}

/**
 *  Predicts panel by panel, has `score(row, prediction)` answer each row's loss and replace the prediction by its
 * gradient, and answers the sum of the losses in the order of rows.
 */
template <typename score_at>
double apply_head(stream const& stream, linear_head const& head, std::size_t count, head_workspace const& workspace,
                  score_at&& score) {
    double sum = 0;
    for (std::size_t first = 0; first < count; first += panel_rows_k) {
        std::size_t const rows = std::min(panel_rows_k, count - first);
        float const* const states = head.rows + first * head.hidden;
        linear_forward(stream.backend, rows, head.outputs, head.hidden, states, head.weight, workspace.predictions);
        stream.backend.parallel_chunks(rows, rows_per_task_k, [&](std::size_t begin, std::size_t end) {
            for (std::size_t row = begin; row < end; ++row)
                workspace.row_losses[row] = score(first + row, workspace.predictions + row * head.outputs);
        });
        for (std::size_t row = 0; row < rows; ++row)
            sum += workspace.row_losses[row];
        if (head.rows_gradient)
            linear_backward(stream.backend, rows, head.outputs, head.hidden, workspace.predictions, head.weight,
                            head.rows_gradient + first * head.hidden);
        if (head.weight_gradient)
            linear_weight_gradient(stream.backend, rows, head.outputs, head.hidden, workspace.predictions, states,
                                   head.weight_gradient);
    }
    return sum;
}

/** The cross-entropy of one row of logits; writes `factor` times its gradient, which may lie over the logits. */
double score_classes(float const* logits, std::size_t classes, std::size_t target, double factor, float* gradient) {
    double const maximum = *std::max_element(logits, logits + classes);
    double sum = 0;
    for (std::size_t i = 0; i < classes; ++i)
        sum += std::exp(logits[i] - maximum);
    double const loss = maximum - logits[target] + std::log(sum);
    if (gradient) {
        for (std::size_t i = 0; i < classes; ++i)
            gradient[i] = static_cast<float>(factor * (std::exp(logits[i] - maximum) / sum - (i == target ? 1 : 0)));
    }
    return loss;
}

/** The squared error of one patch, mean over its width, against its values normalised by their own mean and variance;
 *  replaces the prediction by `factor` times the gradient. */
double score_patch(float const* values, std::size_t width, double factor, float* prediction) {
    double mean = 0;
    for (std::size_t i = 0; i < width; ++i)
        mean += values[i];
    mean /= width;
    double variance = 0;
    for (std::size_t i = 0; i < width; ++i)
        variance += (values[i] - mean) * (values[i] - mean);
    double const inverse = 1 / std::sqrt(variance / width + variance_epsilon_k);
    double squares = 0;
    for (std::size_t i = 0; i < width; ++i) {
        double const error = prediction[i] - (values[i] - mean) * inverse;
        squares += error * error;
        prediction[i] = static_cast<float>(factor * 2 * error / width);
    }
    return squares / width;
}

} // namespace

std::size_t bytes_head_workspace_bytes(std::uint32_t, std::uint32_t rows) {
    return head_workspace::bytes(rows, bytes_k);
}

void bytes_head(stream const& stream, uform_bytes_head_t const& head) {
    std::size_t const first = first_row(head) * head.hidden;
    linear_head const linear{head.hidden,
                             bytes_k,
                             static_cast<float const*>(head.rows) + first,
                             static_cast<float const*>(head.table),
                             head.rows_gradient ? head.rows_gradient + first : nullptr,
                             head.table_gradient};
    double const factor = double(*head.scale) * *head.weight;
    head_workspace const workspace(head.workspace, head.capacity, bytes_k);
    double const sum = apply_head(stream, linear, *head.count, workspace, [&](std::size_t row, float* logits) {
        return score_classes(logits, bytes_k, head.targets[row], factor, logits);
    });
    *head.loss += *head.scale * sum;
}

std::size_t patches_head_workspace_bytes(std::uint32_t, std::uint32_t width, std::uint32_t rows) {
    return head_workspace::bytes(rows, width, width);
}

void patches_head(stream const& stream, uform_patches_head_t const& head) {
    std::size_t const first = first_row(head) * head.hidden;
    linear_head const linear{head.hidden,
                             head.width,
                             static_cast<float const*>(head.rows) + first,
                             static_cast<float const*>(head.head),
                             head.rows_gradient ? head.rows_gradient + first : nullptr,
                             head.head_gradient};
    double const factor = double(*head.scale) * *head.weight;
    head_workspace const workspace(head.workspace, head.capacity, head.width, head.width);
    double const sum = apply_head(stream, linear, *head.count, workspace, [&](std::size_t row, float* prediction) {
        float* const values = workspace.values + row % panel_rows_k * head.width;
        scale_values(head.values, head.element, std::size_t(head.covered_patches[row]) * head.width, head.width,
                     head.multiplier, head.offset, values);
        return score_patch(values, head.width, factor, prediction);
    });
    *head.loss += *head.scale * sum;
}

std::size_t cross_entropy_workspace_bytes(std::uint32_t, std::uint64_t count) {
    return part_bytes<double>((count + rows_per_task_k - 1) / rows_per_task_k);
}

void cross_entropy(stream const& stream, uform_cross_entropy_t const& problem) {
    std::size_t const tasks = (problem.count + rows_per_task_k - 1) / rows_per_task_k;
    double* const losses = workspace_parts(problem.workspace).take<double>(tasks);
    stream.backend.parallel_chunks(problem.count, rows_per_task_k, [&](std::size_t begin, std::size_t end) {
        double sum = 0;
        for (std::size_t row = begin; row < end; ++row) {
            std::size_t const place = row * problem.classes;
            sum += score_classes(problem.logits + place, problem.classes, problem.targets[row], problem.scale,
                                 problem.gradient ? problem.gradient + place : nullptr);
        }
        losses[begin / rows_per_task_k] = sum;
    });
    double sum = 0;
    for (std::size_t task = 0; task < tasks; ++task)
        sum += losses[task];
    *problem.loss += problem.scale * sum;
}

} // namespace uform::ram

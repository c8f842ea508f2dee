#include <algorithm>
#include <cmath>
#include <numbers>

#include "ram/operations.h"

namespace uform::ram {

namespace {

constexpr std::size_t values_per_task_k = 16384;

std::size_t tasks_of(std::uint64_t count) noexcept { return (count + values_per_task_k - 1) / values_per_task_k; }

/** The learning rate of an applied step, counted from 1: a linear warmup, a cosine to the floor, then the floor. */
double learning_rate(uform_update_t const& update, std::uint64_t step) noexcept {
    double const at = static_cast<double>(step);
    double const warmup = static_cast<double>(update.warmup_steps), steps = static_cast<double>(update.steps);
    if (at <= warmup)
        return update.peak * at / warmup;
    if (at >= steps)
        return update.floor;
    double const progress = (at - warmup) / (steps - warmup);
    return update.floor + (update.peak - update.floor) * 0.5 * (1 + std::cos(std::numbers::pi * progress));
}

/** The 2-norm of the whole gradient: a sum for each task, then over the tasks in their order. */
double gradient_norm(stream const& stream, uform_update_t const& update) {
    double* const sums = static_cast<double*>(update.workspace);
    stream.backend.parallel_chunks(update.count, values_per_task_k, [&](std::size_t begin, std::size_t end) {
        double lanes[4] = {};
        std::size_t i = begin;
        for (; i + 4 <= end; i += 4)
            for (std::size_t lane = 0; lane != 4; ++lane) {
                double const value = update.gradient[i + lane];
                lanes[lane] += value * value;
            }
        for (; i < end; ++i)
            lanes[0] += double(update.gradient[i]) * double(update.gradient[i]);
        sums[begin / values_per_task_k] = (lanes[0] + lanes[1]) + (lanes[2] + lanes[3]);
    });
    double square = 0;
    for (std::size_t task = 0; task != tasks_of(update.count); ++task)
        square += sums[task];
    return std::sqrt(square);
}

bool all_finite(uform_update_t const& update, double norm) noexcept {
    return std::isfinite(norm) && std::all_of(update.state->terms, update.state->terms + update.terms_count,
                                              [](double term) { return std::isfinite(term); });
}

/** One step's numbers, the same for every value. */
struct step_factors {
    float clip, beta1, beta2, rest1, rest2, rate, correction2, epsilon, decay;

    step_factors(uform_update_t const& update, std::uint64_t step, double rate_of_step, double norm) {
        double const at = static_cast<double>(step);
        clip = static_cast<float>(update.max_norm > 0 && norm > update.max_norm ? update.max_norm / norm : 1);
        beta1 = static_cast<float>(update.beta1);
        beta2 = static_cast<float>(update.beta2);
        rest1 = static_cast<float>(1 - update.beta1);
        rest2 = static_cast<float>(1 - update.beta2);
        rate = static_cast<float>(rate_of_step / (1 - std::pow(update.beta1, at)));
        correction2 = static_cast<float>(1 / (1 - std::pow(update.beta2, at)));
        epsilon = static_cast<float>(update.epsilon);
        decay = static_cast<float>(rate_of_step * update.decay);
    }
};

/** AdamW (Loshchilov and Hutter, 2019) on values [begin, end), which are of one span. */
void apply(uform_update_t const& update, step_factors const& factors, uform_parameter_span_t const& span,
           std::size_t begin, std::size_t end) noexcept {
    float* __restrict const values = update.parameters;
    float* __restrict const first = update.first_moment;
    float* __restrict const second = update.second_moment;
    float const* __restrict const gradient = update.gradient;
    float const decay = span.decay != 0 ? factors.decay : 0.f;
    float const minimum = span.minimum, maximum = span.maximum;
    for (std::size_t i = begin; i != end; ++i) {
        float const slope = gradient[i] * factors.clip;
        first[i] = factors.beta1 * first[i] + factors.rest1 * slope;
        second[i] = factors.beta2 * second[i] + factors.rest2 * slope * slope;
        float const spread = std::sqrt(second[i] * factors.correction2) + factors.epsilon;
        float const moved = values[i] - (factors.rate * first[i] / spread + decay * values[i]);
        float const above = moved < minimum ? minimum : moved;
        values[i] = above > maximum ? maximum : above;
    }
}

/** Applies the step to a task's part of the flat buffers, span by span. */
void apply_to_spans(uform_update_t const& update, step_factors const& factors, std::size_t begin,
                    std::size_t end) noexcept {
    uform_parameter_span_t const* const last = update.spans + update.spans_count;
    uform_parameter_span_t const* span =
        std::lower_bound(update.spans, last, begin, [](uform_parameter_span_t const& one, std::size_t place) {
            return one.offset + one.count <= place;
        });
    for (; span != last && span->offset < end; ++span)
        apply(update, factors, *span, std::max<std::size_t>(begin, span->offset),
              std::min<std::size_t>(end, span->offset + span->count));
}

} // namespace

std::size_t update_workspace_bytes(std::uint64_t count) { return part_bytes<double>(tasks_of(count)); }

void update(stream const& stream, uform_update_t const& update) {
    uform_update_state_t& state = *update.state;
    state.gradient_norm = gradient_norm(stream, update);
    state.refused = all_finite(update, state.gradient_norm) ? 0 : 1;
    if (state.refused)
        return;
    state.applied += 1;
    state.learning_rate = learning_rate(update, state.applied);
    step_factors const factors(update, state.applied, state.learning_rate, state.gradient_norm);
    stream.backend.parallel_chunks(update.count, values_per_task_k, [&](std::size_t begin, std::size_t end) {
        apply_to_spans(update, factors, begin, end);
    });
}

} // namespace uform::ram

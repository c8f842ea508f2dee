#include <algorithm>
#include <cmath>

#include "ram/elementwise.h"
#include "ram/operations.h"

namespace uform::ram {

namespace {

constexpr std::size_t bags_per_task_k = 32;
constexpr double shortest_k = 1e-12;

/** sums += the pooled columns of one segment. */
void add_segment(uform_pool_t const& pool, uform_segment_t const& segment, double* sums) noexcept {
    std::size_t const hidden = pool.hidden;
    float const* row = static_cast<float const*>(pool.hidden_states) + std::size_t(segment.first) * hidden;
    for (std::uint32_t column = 0; column != segment.pooled; ++column, row += hidden)
        for (std::size_t i = 0; i != hidden; ++i)
            sums[i] += row[i];
}

/** From the sum of a bag's columns to its embedding. */
void finish_bag(uform_pool_t const& pool, std::size_t bag, double const* sums) noexcept {
    std::size_t const hidden = pool.hidden;
    double const columns = std::max(pool.bag_columns[bag], 1u);
    double square = 0;
    for (std::size_t i = 0; i != hidden; ++i)
        square += sums[i] * sums[i];
    double const length = std::sqrt(square) / columns;
    double const factor = 1 / (columns * std::max(length, shortest_k));
    pool.lengths[bag] = static_cast<float>(length);
    for (std::size_t i = 0; i != hidden; ++i)
        pool.pooled[bag * hidden + i] = static_cast<float>(sums[i] * factor);
}

/** The gradient of each of a bag's columns: through the unit length, then through the mean. */
void bag_backward(uform_pool_t const& pool, std::size_t bag, float* to) noexcept {
    std::size_t const hidden = pool.hidden;
    float const* const pooled = pool.pooled + bag * hidden;
    float const* const gradient = pool.pooled_gradient + bag * hidden;
    // A mean shorter than the bound is divided by a constant: then nothing is taken away along it.
    bool const constant = pool.lengths[bag] < static_cast<float>(shortest_k);
    float const along = constant ? 0.f : dot(pooled, gradient, hidden);
    double const length = std::max<double>(pool.lengths[bag], shortest_k);
    float const factor = static_cast<float>(1 / (length * std::max(pool.bag_columns[bag], 1u)));
    for (std::size_t i = 0; i != hidden; ++i)
        to[i] = factor * (gradient[i] - along * pooled[i]);
}

} // namespace

std::size_t pool_workspace_bytes(std::uint32_t hidden, std::uint32_t bags) {
    return part_bytes<double>(std::size_t(bags) * hidden);
}

void pool_forward(stream const& stream, uform_pool_t const& pool) {
    std::size_t const hidden = pool.hidden, bags = pool.columns.counts[2], segments = pool.columns.counts[1];
    double* const sums = static_cast<double*>(pool.workspace);
    // A task owns some bags and looks for their segments: the order of every sum is that of the columns.
    stream.backend.parallel_chunks(pool.columns.bags_capacity, bags_per_task_k,
                                   [&](std::size_t begin, std::size_t end) {
                                       std::size_t const last = std::clamp(bags, begin, end);
                                       std::fill(sums + begin * hidden, sums + last * hidden, 0.0);
                                       std::fill(pool.bag_columns + begin, pool.bag_columns + end, 0u);
                                       for (std::size_t s = 0; s != segments; ++s) {
                                           uform_segment_t const& segment = pool.columns.segments[s];
                                           if (segment.bag < begin || segment.bag >= last)
                                               continue;
                                           add_segment(pool, segment, sums + segment.bag * hidden);
                                           pool.bag_columns[segment.bag] += segment.pooled;
                                       }
                                       for (std::size_t bag = begin; bag != last; ++bag)
                                           finish_bag(pool, bag, sums + bag * hidden);
                                       std::fill(pool.pooled + last * hidden, pool.pooled + end * hidden, 0.f);
                                       std::fill(pool.lengths + last, pool.lengths + end, 0.f);
                                   });
}

void pool_backward(stream const& stream, uform_pool_t const& pool) {
    std::size_t const hidden = pool.hidden;
    float* const bag_gradients = static_cast<float*>(pool.workspace);
    float* const gradient = static_cast<float*>(pool.gradient);
    stream.backend.parallel_chunks(pool.columns.counts[2], bags_per_task_k, [&](std::size_t begin, std::size_t end) {
        for (std::size_t bag = begin; bag != end; ++bag)
            bag_backward(pool, bag, bag_gradients + bag * hidden);
    });
    std::size_t const columns = pool.columns.counts[0], active = std::max<std::size_t>(pool.columns.active, columns);
    stream.backend.parallel_chunks(active, rows_per_task_k, [&](std::size_t begin, std::size_t end) {
        if (!pool.accumulate)
            std::fill(gradient + begin * hidden, gradient + end * hidden, 0.f);
        for (std::size_t column = begin; column < std::min(end, columns); ++column) {
            uform_segment_t const& segment = pool.columns.segments[pool.columns.segment_of[column]];
            if (column - segment.first < segment.pooled)
                add_scaled(gradient + column * hidden, bag_gradients + segment.bag * hidden, 1, hidden);
        }
    });
}

} // namespace uform::ram

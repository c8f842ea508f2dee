// A block of the encoder and the last norm, against plain loops in double: values, then gradients by central
// differences.
#include <algorithm>
#include <cmath>
#include <functional>
#include <numbers>

#include "tests/native/ram_device.h"

using namespace native_test;

namespace {

using matrix = std::vector<double>;

constexpr std::size_t head_width_k = 64;

double norm_factor(double const* x, std::size_t hidden) {
    double square = 0;
    for (std::size_t i = 0; i != hidden; ++i)
        square += x[i] * x[i];
    return 1 / std::sqrt(square / static_cast<double>(hidden) + 1e-6);
}

matrix normed(matrix const& x, matrix const& gain) {
    std::size_t const hidden = gain.size();
    matrix y(x.size());
    for (std::size_t at = 0; at != x.size(); at += hidden) {
        double const factor = norm_factor(&x[at], hidden);
        for (std::size_t i = 0; i != hidden; ++i)
            y[at + i] = x[at + i] * factor * gain[i];
    }
    return y;
}

/** y = x weight^T. */
matrix linear(matrix const& x, matrix const& weight, std::size_t ins) {
    std::size_t const rows = x.size() / ins, outs = weight.size() / ins;
    matrix y(rows * outs);
    for (std::size_t r = 0; r != rows; ++r)
        for (std::size_t o = 0; o != outs; ++o) {
            double sum = 0;
            for (std::size_t i = 0; i != ins; ++i)
                sum += x[r * ins + i] * weight[o * ins + i];
            y[r * outs + o] = sum;
        }
    return y;
}

/** One block's parameters and input: what the loss is a function of. */
struct block_values {
    matrix norm1, qkv, out, norm2, up, down, input;

    static constexpr matrix block_values::* members_k[] = {
        &block_values::norm1, &block_values::qkv,  &block_values::out,  &block_values::norm2,
        &block_values::up,    &block_values::down, &block_values::input};
};

struct block_reference {
    columns_fixture const& columns;
    std::size_t hidden, inner;

    void turn(double* vector, std::uint32_t column, unsigned axes) const {
        std::size_t const pairs[3][3] = {{32, 0, 0}, {16, 16, 0}, {8, 12, 12}};
        std::size_t pair = 0;
        for (unsigned axis = 0; axis != axes; ++axis)
            for (std::size_t j = 0; j != pairs[axes - 1][axis]; ++j, ++pair) {
                double const frequency = std::pow(10000.0, -double(j) / double(pairs[axes - 1][axis]));
                double const angle = columns.positions[column * UFORM_AXES + axis] * frequency;
                double const first = vector[pair], second = vector[pair + 32];
                vector[pair] = first * std::cos(angle) - second * std::sin(angle);
                vector[pair + 32] = second * std::cos(angle) + first * std::sin(angle);
            }
    }

    void attend(matrix const& qkv, uform_segment_t const& segment, std::size_t head, matrix& attended) const {
        std::size_t const stride = 3 * hidden, length = segment.columns;
        double const* const base = &qkv[segment.first * stride + head * head_width_k];
        for (std::size_t i = 0; i != length; ++i) {
            matrix weights(length);
            double total = 0;
            for (std::size_t j = 0; j != length; ++j) {
                double score = 0;
                for (std::size_t k = 0; k != head_width_k; ++k)
                    score += base[i * stride + k] * base[j * stride + hidden + k];
                total += weights[j] = std::exp(score / 8);
            }
            double* const to = &attended[(segment.first + i) * hidden + head * head_width_k];
            for (std::size_t j = 0; j != length; ++j)
                for (std::size_t k = 0; k != head_width_k; ++k)
                    to[k] += weights[j] / total * base[j * stride + 2 * hidden + k];
        }
    }

    matrix output(block_values const& v) const {
        matrix qkv = linear(normed(v.input, v.norm1), v.qkv, hidden);
        for (std::uint32_t c = 0; c != columns.used(); ++c)
            for (std::size_t head = 0; head != 2 * hidden / head_width_k; ++head)
                turn(&qkv[c * 3 * hidden + head * head_width_k], c, columns.segments[columns.segment_of[c]].axes);
        matrix attended(columns.used() * hidden, 0.0);
        for (std::uint32_t s = 0; s != columns.counts[1]; ++s)
            for (std::size_t head = 0; head != hidden / head_width_k; ++head)
                attend(qkv, columns.segments[s], head, attended);
        matrix middle = linear(attended, v.out, hidden);
        for (std::size_t i = 0; i != middle.size(); ++i)
            middle[i] += v.input[i];
        matrix const gate_up = linear(normed(middle, v.norm2), v.up, hidden);
        matrix activated(columns.used() * inner);
        for (std::size_t r = 0; r != columns.used(); ++r)
            for (std::size_t i = 0; i != inner; ++i) {
                double const gate = gate_up[r * 2 * inner + i];
                double const tangent =
                    std::tanh(std::sqrt(2 / std::numbers::pi) * (gate + 0.044715 * gate * gate * gate));
                activated[r * inner + i] = 0.5 * gate * (1 + tangent) * gate_up[r * 2 * inner + inner + i];
            }
        matrix result = linear(activated, v.down, inner);
        for (std::size_t i = 0; i != result.size(); ++i)
            result[i] += middle[i];
        return result;
    }
};

/** A single column, texts, a picture and a film. */
std::vector<columns_fixture::shape> short_shapes() {
    return {{1, 1, {0, 0, 0}, 1, 0, 0},
            {2, 1, {1, 0, 0}, 2, 1, 0},
            {7, 2, {2, 3, 0}, 7, 2, 1},
            {13, 3, {2, 2, 3}, 13, 3, 2},
            {25, 1, {24, 0, 0}, 25, 4, 0}};
}

/** Texts longer than a block of scores as well. */
std::vector<columns_fixture::shape> long_shapes() {
    std::vector<columns_fixture::shape> shapes = short_shapes();
    shapes.push_back({65, 1, {64, 0, 0}, 65, 5, 0});
    shapes.push_back({131, 1, {130, 0, 0}, 131, 6, 0});
    return shapes;
}

/** A block in float32 as an operation takes it: poisoned wherever nothing was written. */
struct block_run {
    static constexpr std::size_t members_k = std::size(block_values::members_k);

    columns_fixture columns;
    std::size_t hidden, inner;
    std::vector<float> values[members_k], gradients[members_k]; // the last is the input's: its gradient is `gradient`
    std::vector<float> output, weights, gradient;               // the loss is sum(weights * output)

    block_run(std::vector<columns_fixture::shape> const& shapes, std::size_t hidden, std::size_t inner)
        : columns(shapes), hidden(hidden), inner(inner) {
        random_values random(29);
        std::size_t const used = columns.used() * hidden, capacity = columns.view.capacity * hidden;
        values[0] = random.normal(hidden);
        values[1] = random.normal(3 * hidden * hidden, 0.15f);
        values[2] = random.normal(hidden * hidden, 0.1f);
        values[3] = random.normal(hidden);
        values[4] = random.normal(2 * inner * hidden, 0.15f);
        values[5] = random.normal(hidden * inner, 0.2f);
        values[6] = random.normal(used, 1, capacity);
        for (std::size_t i = 0; i != members_k - 1; ++i)
            gradients[i] = random.normal(values[i].size());
        weights = random.normal(used, 1, capacity);
        output.assign(capacity, poison());
        gradient = weights;
    }

    block_values to_reference() const {
        block_values result;
        for (std::size_t i = 0; i != members_k; ++i)
            result.*block_values::members_k[i] = to_double(values[i]);
        result.input.resize(columns.used() * hidden);
        return result;
    }

    void run(ram_device const& device) {
        uform_operations_t const& table = device.operations();
        device.run(table.columns_expand, columns.view);
        uform_extents_t const extents{1, static_cast<std::uint32_t>(hidden), static_cast<std::uint32_t>(inner),
                                      static_cast<std::uint32_t>(hidden / head_width_k)};
        std::size_t const saved_bytes = table.layer_saved_bytes(&extents, columns.view.capacity);
        std::size_t const bytes =
            table.layer_workspace_bytes(&extents, columns.view.capacity, columns.view.segments_capacity);
        poisoned_memory saved(saved_bytes), workspace(bytes), backward_workspace(bytes);
        uform_layer_t layer{};
        layer.extents = extents, layer.columns = columns.view;
        layer.norm1 = values[0].data(), layer.norm1_gradient = gradients[0].data();
        layer.qkv = values[1].data(), layer.qkv_gradient = gradients[1].data();
        layer.out = values[2].data(), layer.out_gradient = gradients[2].data();
        layer.norm2 = values[3].data(), layer.norm2_gradient = gradients[3].data();
        layer.up = values[4].data(), layer.up_gradient = gradients[4].data();
        layer.down = values[5].data(), layer.down_gradient = gradients[5].data();
        layer.input = values[6].data(), layer.output = output.data(), layer.gradient = gradient.data();
        layer.saved = saved.data(), layer.saved_bytes = saved_bytes;
        layer.workspace = workspace.data(), layer.workspace_bytes = bytes;
        for (auto operation : {table.norm_qkv_forward, table.attention_forward, table.out_residual_forward,
                               table.norm_geglu_forward, table.down_residual_forward})
            device.run(operation, layer);
        // nothing of the workspace may outlive the block's forward pass
        layer.workspace = backward_workspace.data();
        for (auto operation : {table.down_residual_backward, table.norm_geglu_backward, table.out_residual_backward,
                               table.attention_backward, table.norm_qkv_backward})
            device.run(operation, layer);
    }
};

double weighted_sum(matrix const& values, std::vector<float> const& weights) {
    double sum = 0;
    for (std::size_t i = 0; i != values.size(); ++i)
        sum += values[i] * double(weights[i]);
    return sum;
}

/** The derivative of `loss` at `values` along a direction in one of its members. */
double slope_along(std::function<double(block_values const&)> const& loss, block_values values,
                   matrix block_values::* member, matrix const& direction, double step) {
    matrix const kept = values.*member;
    double sides[2];
    for (int side = 0; side != 2; ++side) {
        for (std::size_t i = 0; i != kept.size(); ++i)
            (values.*member)[i] = kept[i] + (side ? step : -step) * direction[i];
        sides[side] = loss(values);
    }
    return (sides[1] - sides[0]) / (2 * step);
}

/** Holds what a block computed against central differences: single values, and random directions. */
void check_gradients(block_run const& run, block_run const& start) {
    block_reference const reference{run.columns, run.hidden, run.inner};
    block_values const values = start.to_reference();
    auto const loss = [&](block_values const& at) { return weighted_sum(reference.output(at), start.weights); };
    random_values random(31);
    for (std::size_t member = 0; member != block_run::members_k; ++member) {
        bool const input = member + 1 == block_run::members_k;
        std::size_t const count = (values.*block_values::members_k[member]).size();
        matrix computed(count);
        double square = 0;
        for (std::size_t i = 0; i != count; ++i) {
            // operations add to the gradients of parameters, and replace the one that passes through
            computed[i] =
                input ? double(run.gradient[i]) : double(run.gradients[member][i]) - double(start.gradients[member][i]);
            square += computed[i] * computed[i];
        }
        double const typical = std::sqrt(square / static_cast<double>(count));
        for (int probe = 0; probe != 2; ++probe) {
            matrix direction(count, 0.0);
            std::size_t const place = random.below(count);
            direction[place] = 1;
            double const expected = slope_along(loss, values, block_values::members_k[member], direction, 1e-5);
            CHECK(std::abs(computed[place] - expected) < 1e-4 * (typical + std::abs(expected)));
        }
        matrix const direction = to_double(random.normal(count));
        double const expected = slope_along(loss, values, block_values::members_k[member], direction, 1e-6);
        double along = 0;
        for (std::size_t i = 0; i != count; ++i)
            along += computed[i] * direction[i];
        CHECK(std::abs(along - expected) < 1e-4 * std::sqrt(square));
    }
}

void test_block(char const* blas, std::vector<columns_fixture::shape> const& shapes, std::size_t hidden,
                std::size_t inner) {
    block_run const start(shapes, hidden, inner);
    bool checked = false;
    auto const compute = [&](ram_device const& device) {
        block_run run(shapes, hidden, inner);
        run.run(device);
        matrix const expected = block_reference{run.columns, hidden, inner}.output(run.to_reference());
        CHECK(relative_error(run.output, expected) < 3e-6);
        std::size_t const used = run.columns.used() * hidden;
        CHECK(all_poison(std::span(run.output).subspan(used)));
        CHECK(all_poison(std::span(run.gradient).subspan(used)));
        if (!checked)
            check_gradients(run, start); // once is enough: the other device has to give the same bits
        checked = true;
        std::vector<float> all(run.output.begin(), run.output.begin() + static_cast<std::ptrdiff_t>(used));
        all.insert(all.end(), run.gradient.begin(), run.gradient.begin() + static_cast<std::ptrdiff_t>(used));
        for (auto const& gradient : run.gradients)
            all.insert(all.end(), gradient.begin(), gradient.end());
        CHECK(all_finite(all));
        return all;
    };
    same_on_threads(blas, compute);
}

/** A segment of one column attends to itself alone: attention answers its value. */
void test_PKG_05_tiny_segments() {
    std::vector<columns_fixture::shape> shapes(5, {1, 1, {0, 0, 0}, 1, 0, 0});
    shapes.push_back({2, 1, {1, 0, 0}, 2, 0, 0});
    shapes.push_back({3, 1, {2, 0, 0}, 3, 0, 0});
    shapes.push_back({256, 1, {255, 0, 0}, 256, 0, 0});
    on_every_device([&](ram_device const& device) {
        block_run run(shapes, 64, 20);
        run.run(device);
        CHECK(all_finite({run.gradient.data(), run.columns.used() * 64}));
        matrix const expected = block_reference{run.columns, 64, 20}.output(run.to_reference());
        CHECK(relative_error(run.output, expected) < 3e-6);
    });
}

/** Scores of hundreds: the softmax keeps its running maximum. */
void test_large_scores() {
    on_every_device([&](ram_device const& device) {
        block_run run(long_shapes(), 64, 20);
        for (float& value : run.values[1])
            value *= 8;
        run.run(device);
        matrix const expected = block_reference{run.columns, 64, 20}.output(run.to_reference());
        CHECK(relative_error(run.output, expected) < 1e-4);
        CHECK(all_finite({run.gradient.data(), run.columns.used() * 64}));
    });
}

void test_no_columns() {
    on_every_device([](ram_device const& device) {
        block_run run({}, 64, 20);
        auto const before = run.gradients[1];
        run.run(device);
        CHECK(run.gradients[1] == before);
        CHECK(all_poison(run.output));
    });
}

void test_layer_too_small() {
    ram_device const device(1);
    columns_fixture columns({{3, 1, {2, 0, 0}, 3, 0, 0}});
    uform_layer_t layer{};
    layer.extents = {1, 64, 20, 1};
    layer.columns = columns.view;
    CHECK(device.operations().norm_qkv_forward(device.stream(), &layer) == uform_status_internal_k);
    CHECK(std::string(uform::last_error()).find("saved_bytes: 0 bytes") != std::string::npos);
}

void test_norm() {
    constexpr std::uint32_t hidden = 67;
    same_on_threads(nullptr, [](ram_device const& device) {
        columns_fixture columns({{301, 1, {300, 0, 0}, 301, 0, 0}});
        random_values random(37);
        std::size_t const used = columns.used() * hidden, capacity = columns.view.capacity * hidden;
        std::vector<float> const gain = random.normal(hidden), input = random.normal(used, 1, capacity);
        std::vector<float> gain_gradient = random.normal(hidden), gradient = random.normal(used, 1, capacity);
        std::vector<float> const weights = gradient, gain_before = gain_gradient;
        std::vector<float> output(capacity, poison()), inverse_rms(columns.view.capacity, poison());
        std::size_t const bytes = device.operations().norm_workspace_bytes(hidden, columns.view.capacity);
        poisoned_memory workspace(bytes);
        uform_norm_t const norm{columns.view,     hidden,        gain.data(),        gain_gradient.data(),
                                input.data(),     output.data(), inverse_rms.data(), gradient.data(),
                                workspace.data(), bytes};
        device.run(device.operations().norm_forward, norm);
        device.run(device.operations().norm_backward, norm);
        matrix x(input.begin(), input.begin() + used), g = to_double(gain);
        CHECK(relative_error(output, normed(x, g)) < 1e-6);
        auto const slope = [&](double& place) {
            double const kept = place, step = 1e-5;
            place = kept + step;
            double const above = weighted_sum(normed(x, g), weights);
            place = kept - step;
            double const below = weighted_sum(normed(x, g), weights);
            place = kept;
            return (above - below) / (2 * step);
        };
        for (int probe = 0; probe != 10; ++probe) {
            std::size_t const place = random.below(used), column = random.below(hidden);
            CHECK(std::abs(slope(x[place]) - double(gradient[place])) < 1e-5);
            double const added = double(gain_gradient[column]) - double(gain_before[column]);
            CHECK(std::abs(slope(g[column]) - added) < 1e-4);
        }
        CHECK(all_poison(std::span(gradient).subspan(used)));
        gradient.resize(used);
        gradient.insert(gradient.end(), gain_gradient.begin(), gain_gradient.end());
        return gradient;
    });
}

} // namespace

int main() {
    for (char const* blas : blas_choices()) {
        test_block(blas, long_shapes(), 64, 20);
        test_block(blas, short_shapes(), 128, 24);
    }
    test_PKG_05_tiny_segments();
    test_large_scores();
    test_no_columns();
    test_layer_too_small();
    test_norm();
    return report();
}

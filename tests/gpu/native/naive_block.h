/** A block of the encoder as a plain implementation computes it, operation by operation: see `naive_attention.h`. */
#pragma once

#include <numbers>

#include "tests/gpu/native/naive_attention.h"

namespace gpu_test {

template <typename value_at> struct gelu_pair {
    value_at value, slope;
};

/** GELU by tanh, as x sigmoid(2 u), and its derivative. */
template <typename value_at> gelu_pair<value_at> naive_gelu(value_at x) {
    value_at const linear = 2 * std::sqrt(2 / std::numbers::pi_v<value_at>), cubic = value_at(0.044715);
    value_at const sigmoid = 1 / (1 + std::exp(-linear * (x + cubic * x * x * x)));
    return {x * sigmoid, sigmoid + x * sigmoid * (1 - sigmoid) * linear * (1 + 3 * cubic * x * x)};
}

/** Turns the queries and keys of `rows` [columns, 3 * heads * 64] by their positions, or back: `direction` 1 or -1. */
template <typename value_at>
void turn_naively(native_test::columns_fixture const& columns, std::size_t heads, int direction,
                  std::vector<value_at>& rows) {
    constexpr std::size_t width = naive_head<value_at>::width_k, pairs = width / 2;
    constexpr std::size_t axis_pairs[UFORM_AXES][UFORM_AXES] = {{32, 0, 0}, {16, 16, 0}, {8, 12, 12}};
    for (std::size_t column = 0; column != columns.used(); ++column) {
        std::size_t const axes = columns.segments[columns.segment_of[column]].axes;
        std::size_t pair = 0;
        for (std::size_t axis = 0; axis != axes; ++axis)
            for (std::size_t j = 0; j != axis_pairs[axes - 1][axis]; ++j, ++pair) {
                double const angle = direction * columns.positions[column * UFORM_AXES + axis] *
                                     std::pow(1e4, -double(j) / double(axis_pairs[axes - 1][axis]));
                value_at const cosine = value_at(std::cos(angle)), sine = value_at(std::sin(angle));
                for (std::size_t head = 0; head != 2 * heads; ++head) {
                    value_at& first = rows[(column * 3 * heads + head) * width + pair];
                    value_at& second = (&first)[pairs];
                    value_at const turned = stored(first * cosine - second * sine);
                    second = stored(second * cosine + first * sine);
                    first = turned;
                }
            }
    }
}

/** A block's parameters, in the order in which its layer lists them. */
inline constexpr std::size_t weights_k = 6;
enum weight_at : std::size_t { norm1_k, qkv_k, out_k, norm2_k, up_k, down_k };

/**
 *  The block's memory and its ten operations, over the rows in use alone. Whatever a backend stores in bfloat16 is
 *  stored as such: outputs of norms, products, turned queries and keys, GeGLU, and all their gradients.
 */
template <typename value_at> struct naive_block {
    using values = std::vector<value_at>;

    native_test::columns_fixture const& columns;
    std::size_t rows, hidden, inner;
    values weights[weights_k], gradients[weights_k];
    values input, output, gradient;
    values normed, qkv, middle, gate_up, activated, inverse1, inverse2;
    values delta; // the gradient of a norm's output, or of attention's
    values wide;  // the gradient of gate_up; that of qkv lies in `attention`
    naive_attention<value_at> attention;

    naive_block(native_test::columns_fixture const& columns, std::size_t hidden, std::size_t inner,
                std::vector<float> const (&weights_)[weights_k], std::vector<float> const (&gradients_)[weights_k],
                std::vector<float> const& input_, std::vector<float> const& gradient_)
        : columns(columns), rows(columns.used()), hidden(hidden), inner(inner), input(first_rows(input_)),
          output(rows * hidden), gradient(first_rows(gradient_)), normed(rows * hidden), qkv(rows * 3 * hidden),
          middle(rows * hidden), gate_up(rows * 2 * inner), activated(rows * inner), inverse1(rows), inverse2(rows),
          delta(rows * hidden), wide(rows * 2 * inner), attention(columns, hidden / naive_head<value_at>::width_k) {
        for (std::size_t i = 0; i != weights_k; ++i) {
            weights[i].assign(weights_[i].begin(), weights_[i].end());
            gradients[i].assign(gradients_[i].begin(), gradients_[i].end());
        }
    }

    void norm_qkv_forward() {
        norm(input, weights[norm1_k], inverse1);
        multiply(normed, weights[qkv_k], qkv);
        turn_naively(columns, attention.heads, 1, qkv);
    }
    void attention_forward() { attention.forward(qkv); }
    void out_residual_forward() {
        middle = input;
        multiply_and_add(attention.attended, weights[out_k], middle);
    }
    void norm_geglu_forward() {
        norm(middle, weights[norm2_k], inverse2);
        multiply(normed, weights[up_k], gate_up);
        for (std::size_t row = 0; row != rows; ++row)
            for (std::size_t i = 0; i != inner; ++i)
                activated[row * inner + i] = stored(naive_gelu(gate(row, i)).value * up(row, i));
    }
    void down_residual_forward() {
        output = middle;
        multiply_and_add(activated, weights[down_k], output);
    }

    void down_residual_backward() {
        values slopes(activated.size());
        multiply_back(gradient, weights[down_k], slopes);
        for (std::size_t row = 0; row != rows; ++row)
            for (std::size_t i = 0; i != inner; ++i) {
                auto const [value, slope] = naive_gelu(gate(row, i));
                value_at const incoming = slopes[row * inner + i];
                activated[row * inner + i] = stored(value * up(row, i));
                wide[row * 2 * inner + i] = stored(incoming * up(row, i) * slope);
                wide[row * 2 * inner + inner + i] = stored(incoming * value);
            }
        add_weight_gradient(gradient, activated, gradients[down_k]);
    }
    void norm_geglu_backward() {
        multiply_back(wide, weights[up_k], delta);
        norm_backward(middle, weights[norm2_k], inverse2, gradients[norm2_k]);
        add_weight_gradient(wide, normed, gradients[up_k]);
    }
    void out_residual_backward() {
        multiply_back(gradient, weights[out_k], delta);
        add_weight_gradient(gradient, attention.attended, gradients[out_k]);
    }
    void attention_backward() {
        attention.backward(qkv, delta);
        turn_naively(columns, attention.heads, -1, attention.qkv_gradient);
    }
    void norm_qkv_backward() {
        multiply_back(attention.qkv_gradient, weights[qkv_k], delta);
        norm_backward(input, weights[norm1_k], inverse1, gradients[norm1_k]);
        add_weight_gradient(attention.qkv_gradient, normed, gradients[qkv_k]);
    }

    void forward() {
        norm_qkv_forward();
        attention_forward();
        out_residual_forward();
        norm_geglu_forward();
        down_residual_forward();
    }
    void backward() {
        down_residual_backward();
        norm_geglu_backward();
        out_residual_backward();
        attention_backward();
        norm_qkv_backward();
    }

private:
    values first_rows(std::vector<float> const& from) const {
        return values(from.begin(), from.begin() + static_cast<std::ptrdiff_t>(rows * hidden));
    }
    value_at gate(std::size_t row, std::size_t i) const { return gate_up[row * 2 * inner + i]; }
    value_at up(std::size_t row, std::size_t i) const { return gate_up[row * 2 * inner + inner + i]; }

    void norm(values const& x, values const& gain, values& inverses) {
        for (std::size_t row = 0; row != rows; ++row) {
            value_at const* const from = &x[row * hidden];
            inverses[row] = 1 / std::sqrt(dot(from, from, hidden) / value_at(hidden) + value_at(1e-6));
            for (std::size_t i = 0; i != hidden; ++i)
                normed[row * hidden + i] = stored(from[i] * inverses[row] * gain[i]);
        }
    }

    /** Adds to `gradient` what passes through a norm from `delta`, and makes its output again. */
    void norm_backward(values const& x, values const& gain, values const& inverses, values& gain_gradient) {
        values sums(hidden);
        for (std::size_t row = 0; row != rows; ++row) {
            value_at const *const from = &x[row * hidden], *const slope = &delta[row * hidden];
            value_at const inverse = inverses[row];
            value_at along = 0;
            for (std::size_t i = 0; i != hidden; ++i) {
                along += slope[i] * gain[i] * from[i];
                sums[i] += slope[i] * from[i] * inverse;
                normed[row * hidden + i] = stored(from[i] * inverse * gain[i]);
            }
            along *= inverse * inverse * inverse / value_at(hidden);
            for (std::size_t i = 0; i != hidden; ++i) {
                value_at& to = gradient[row * hidden + i];
                to = stored(to + inverse * gain[i] * slope[i] - along * from[i]);
            }
        }
        add_scaled(gain_gradient.data(), value_at(1), sums.data(), hidden);
    }

    /** y += x weight^T, before it is stored. Sums go over the terms in order, each over all outputs at once. */
    void multiply_and_add(values const& x, values const& weight, values& y) const {
        std::size_t const ins = x.size() / rows, outs = y.size() / rows;
        values turned(weight.size());
        for (std::size_t out = 0; out != outs; ++out)
            for (std::size_t in = 0; in != ins; ++in)
                turned[in * outs + out] = weight[out * ins + in];
        values sums(outs);
        for (std::size_t row = 0; row != rows; ++row) {
            std::fill(sums.begin(), sums.end(), value_at(0));
            for (std::size_t in = 0; in != ins; ++in)
                add_scaled(sums.data(), x[row * ins + in], &turned[in * outs], outs);
            for (std::size_t out = 0; out != outs; ++out)
                y[row * outs + out] = stored(y[row * outs + out] + sums[out]);
        }
    }

    void multiply(values const& x, values const& weight, values& y) const {
        std::fill(y.begin(), y.end(), value_at(0));
        multiply_and_add(x, weight, y);
    }

    /** dx = dy weight */
    void multiply_back(values const& dy, values const& weight, values& dx) const {
        std::size_t const outs = dy.size() / rows, ins = dx.size() / rows;
        std::fill(dx.begin(), dx.end(), value_at(0));
        for (std::size_t row = 0; row != rows; ++row) {
            for (std::size_t out = 0; out != outs; ++out)
                add_scaled(&dx[row * ins], dy[row * outs + out], &weight[out * ins], ins);
            for (std::size_t in = 0; in != ins; ++in)
                dx[row * ins + in] = stored(dx[row * ins + in]);
        }
    }

    /** dw += dy^T x */
    void add_weight_gradient(values const& dy, values const& x, values& dw) const {
        std::size_t const outs = dy.size() / rows, ins = x.size() / rows;
        values sums(dw.size());
        for (std::size_t row = 0; row != rows; ++row)
            for (std::size_t out = 0; out != outs; ++out)
                add_scaled(&sums[out * ins], dy[row * outs + out], &x[row * ins], ins);
        add_scaled(dw.data(), value_at(1), sums.data(), dw.size());
    }
};

} // namespace gpu_test

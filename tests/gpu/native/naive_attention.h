/**
 *  Attention as a plain implementation computes it, in either of two precisions: `double`, the reference, and `float`
 *  with all that the operations keep in bfloat16 rounded to it, the measure of the tolerance policy.
 */
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

#include <cuda_bf16.h>

#include "tests/native/ram_device.h"

namespace gpu_test {

inline double stored(double value) { return value; }
inline float stored(float value) { return __bfloat162float(__float2bfloat16(value)); }

template <typename value_at> value_at dot(value_at const* a, value_at const* b, std::size_t count) {
    value_at sum = 0;
    for (std::size_t i = 0; i != count; ++i)
        sum += a[i] * b[i];
    return sum;
}

/** sum += factor * row */
template <typename value_at> void add_scaled(value_at* sum, value_at factor, value_at const* row, std::size_t count) {
    for (std::size_t i = 0; i != count; ++i)
        sum[i] += factor * row[i];
}

/** One head of one segment: its queries, keys and values, and what follows from them; rows of 64 values. */
template <typename value_at> struct naive_head {
    static constexpr std::size_t width_k = 64;
    static constexpr value_at scale_k = value_at(0.125);

    std::size_t length;
    std::vector<value_at> parts[3];
    std::vector<value_at> attended, log_sums;
    std::vector<value_at> gradients[3]; // of the parts

    explicit naive_head(std::size_t length) : length(length), attended(length * width_k), log_sums(length) {
        for (std::size_t part = 0; part != 3; ++part)
            parts[part].resize(attended.size()), gradients[part].resize(attended.size());
    }

    void forward() {
        for (std::size_t i = 0; i != length; ++i)
            forward_query(i, &attended[i * width_k]);
    }

    /** @param gradient Of `attended`, with which begins what `forward` left. */
    void backward(std::vector<value_at> const& gradient) {
        for (auto& one : gradients)
            std::fill(one.begin(), one.end(), value_at(0));
        for (std::size_t i = 0; i != length; ++i) {
            value_at const* const slope = &gradient[i * width_k];
            value_at const along = dot(&attended[i * width_k], slope, width_k);
            for (std::size_t j = 0; j != length; ++j) {
                value_at const weight = std::exp(score(i, j) - log_sums[i]);
                value_at const delta = stored(weight * (dot(slope, row(2, j), width_k) - along));
                add_scaled(&gradients[0][i * width_k], delta, row(1, j), width_k);
                add_scaled(&gradients[1][j * width_k], delta, row(0, i), width_k);
                add_scaled(&gradients[2][j * width_k], stored(weight), slope, width_k);
            }
        }
        for (std::size_t part = 0; part != 3; ++part)
            for (value_at& value : gradients[part])
                value = stored(part == 2 ? value : value * scale_k);
    }

private:
    value_at const* row(std::size_t part, std::size_t at) const { return &parts[part][at * width_k]; }
    value_at score(std::size_t i, std::size_t j) const { return dot(row(0, i), row(1, j), width_k) * scale_k; }

    void forward_query(std::size_t i, value_at* to) {
        std::vector<value_at> scores(length);
        value_at peak = -std::numeric_limits<value_at>::infinity(), sum = 0;
        for (std::size_t j = 0; j != length; ++j)
            peak = std::max(peak, scores[j] = score(i, j));
        std::fill_n(to, width_k, value_at(0));
        for (std::size_t j = 0; j != length; ++j) {
            value_at const weight = std::exp(scores[j] - peak);
            sum += weight;
            add_scaled(to, stored(weight), row(2, j), width_k);
        }
        for (std::size_t d = 0; d != width_k; ++d)
            to[d] = stored(to[d] / sum);
        log_sums[i] = peak + std::log(sum);
    }
};

/** Attention of a batch; rows are its columns, without those past the count. */
template <typename value_at> struct naive_attention {
    native_test::columns_fixture const& columns;
    std::size_t heads, hidden;
    std::vector<value_at> attended;     // [rows, hidden]
    std::vector<value_at> log_sums;     // [heads, rows]
    std::vector<value_at> qkv_gradient; // [rows, 3 * hidden]

    naive_attention(native_test::columns_fixture const& columns, std::size_t heads)
        : columns(columns), heads(heads), hidden(heads * head::width_k), attended(columns.used() * hidden),
          log_sums(columns.used() * heads), qkv_gradient(3 * attended.size()) {}

    /** @param qkv [rows, 3 * hidden] */
    void forward(std::vector<value_at> const& qkv) {
        for_heads([&](uform_segment_t const& segment, std::size_t at) {
            head one = head_of(qkv, segment, at);
            one.forward();
            scatter(one.attended, segment, attended, hidden, at * head::width_k);
            std::copy(one.log_sums.begin(), one.log_sums.end(), &log_sums[at * columns.used() + segment.first]);
        });
    }

    /** @param gradient [rows, hidden] of `attended`, which is still what `forward` answered. */
    void backward(std::vector<value_at> const& qkv, std::vector<value_at> const& gradient) {
        for_heads([&](uform_segment_t const& segment, std::size_t at) {
            head one = head_of(qkv, segment, at);
            gather(attended, segment, hidden, at * head::width_k, one.attended);
            std::copy_n(&log_sums[at * columns.used() + segment.first], one.length, one.log_sums.begin());
            std::vector<value_at> slopes(one.attended.size());
            gather(gradient, segment, hidden, at * head::width_k, slopes);
            one.backward(slopes);
            for (std::size_t part = 0; part != 3; ++part)
                scatter(one.gradients[part], segment, qkv_gradient, 3 * hidden, part * hidden + at * head::width_k);
        });
    }

private:
    using head = naive_head<value_at>;

    template <typename body_at> void for_heads(body_at&& body) {
        for (std::uint32_t s = 0; s != columns.counts[1]; ++s)
            for (std::size_t at = 0; at != heads; ++at)
                body(columns.segments[s], at);
    }

    head head_of(std::vector<value_at> const& qkv, uform_segment_t const& segment, std::size_t at) const {
        head one(segment.columns);
        for (std::size_t part = 0; part != 3; ++part)
            gather(qkv, segment, 3 * hidden, part * hidden + at * head::width_k, one.parts[part]);
        return one;
    }

    /** Takes 64 values, from `offset` on, of each of a segment's rows, which are `stride` apart. */
    static void gather(std::vector<value_at> const& from, uform_segment_t const& segment, std::size_t stride,
                       std::size_t offset, std::vector<value_at>& to) {
        for (std::size_t i = 0; i != segment.columns; ++i)
            std::copy_n(&from[(segment.first + i) * stride + offset], head::width_k, &to[i * head::width_k]);
    }

    static void scatter(std::vector<value_at> const& from, uform_segment_t const& segment, std::vector<value_at>& to,
                        std::size_t stride, std::size_t offset) {
        for (std::size_t i = 0; i != segment.columns; ++i)
            std::copy_n(&from[i * head::width_k], head::width_k, &to[(segment.first + i) * stride + offset]);
    }
};

} // namespace gpu_test

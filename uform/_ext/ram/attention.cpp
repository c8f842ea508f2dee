#include <algorithm>
#include <cmath>
#include <limits>

#include "ram/elementwise.h"
#include "ram/layer.h"
#include "ram/operations.h"

namespace uform::ram {

namespace {

constexpr std::size_t block_k = 64; // queries, and keys, whose scores a task holds at a time
constexpr float scale_k = 0.125f;   // 1 / sqrt(head_width_k)

/** One head of one segment: row i of each matrix is the segment's column i. */
struct attention_head {
    ram::gemm const& gemm;
    std::size_t columns;
    std::size_t qkv_stride, stride, heads;
    float const *queries, *keys, *values; // [columns, 64], rows `qkv_stride` apart
    float* attended;                      // [columns, 64], rows `stride` apart
    float* log_sums;                      // [columns], `heads` apart
    // backward alone
    float const* delta;                               // of `attended`
    float *queries_delta, *keys_delta, *values_delta; // like queries, keys and values
};

/** Calls `body` for every head of every segment, each a task. */
template <typename body_at> void for_heads(stream const& stream, uform_layer_t const& layer, body_at&& body) {
    std::size_t const heads = layer.extents.heads, hidden = layer.extents.hidden;
    layer_saved const saved = layer_saved::of(layer);
    layer_workspace const work = layer_workspace::of(layer);
    stream.backend.parallel_for(layer.columns.counts[1] * heads, [&](std::size_t task) {
        uform_segment_t const& segment = layer.columns.segments[task / heads];
        std::size_t const first = segment.first, head = task % heads;
        float* const qkv = saved.qkv + first * 3 * hidden + head * head_width_k;
        float* const wide = work.wide + first * 3 * hidden + head * head_width_k;
        std::size_t const at = first * hidden + head * head_width_k;
        body(attention_head{stream.backend.gemm(), segment.columns, 3 * hidden, hidden, heads, qkv, qkv + hidden,
                            qkv + 2 * hidden, saved.attended + at, saved.log_sums + first * heads + head,
                            work.delta + at, wide, wide + hidden, wide + 2 * hidden});
    });
}

using score_block = float[block_k][block_k];

/** scores = scale * queries keys^T for one block of each. */
void score(attention_head const& head, std::size_t query, std::size_t queries, std::size_t key, std::size_t keys,
           score_block& scores) noexcept {
    head.gemm.nt(queries, keys, head_width_k, scale_k, head.queries + query * head.qkv_stride, head.qkv_stride,
                 head.keys + key * head.qkv_stride, head.qkv_stride, 0, scores[0], block_k);
}

void scale_row(float* row, float factor) noexcept {
    for (std::size_t i = 0; i != head_width_k; ++i)
        row[i] *= factor;
}

/** The running softmax of a block of queries over their keys so far. */
struct running_softmax {
    float peaks[block_k];
    float sums[block_k];

    running_softmax() noexcept {
        std::fill_n(peaks, block_k, -std::numeric_limits<float>::infinity());
        std::fill_n(sums, block_k, 0.f);
    }

    /** Takes one more block of scores, which become exponentials, and rescales what was attended so far. */
    void take(score_block& scores, std::size_t queries, std::size_t keys, float* attended,
              std::size_t stride) noexcept {
        for (std::size_t i = 0; i != queries; ++i) {
            float const peak = largest(scores[i], keys, peaks[i]);
            float const shrink = exponential(peaks[i] - peak);
            if (sums[i] != 0 && shrink != 1)
                scale_row(attended + i * stride, shrink);
            sums[i] = sums[i] * shrink + exponentials(scores[i], keys, peak);
            peaks[i] = peak;
        }
    }
};

void attend_block(attention_head const& head, std::size_t query, std::size_t queries) noexcept {
    alignas(alignment_k) score_block scores;
    running_softmax softmax;
    float* const attended = head.attended + query * head.stride;
    for (std::size_t key = 0; key < head.columns; key += block_k) {
        std::size_t const keys = std::min(block_k, head.columns - key);
        score(head, query, queries, key, keys, scores);
        softmax.take(scores, queries, keys, attended, head.stride);
        head.gemm.nn(queries, head_width_k, keys, 1, scores[0], block_k, head.values + key * head.qkv_stride,
                     head.qkv_stride, key == 0 ? 0.f : 1.f, attended, head.stride);
    }
    for (std::size_t i = 0; i != queries; ++i) {
        scale_row(attended + i * head.stride, 1 / softmax.sums[i]);
        head.log_sums[(query + i) * head.heads] = softmax.peaks[i] + std::log(softmax.sums[i]);
    }
}

/** Adds what a block of queries gives to the gradients of its queries and of all keys and values. */
void attend_block_backward(attention_head const& head, std::size_t query, std::size_t queries) noexcept {
    alignas(alignment_k) score_block weights;
    alignas(alignment_k) score_block deltas;
    float along[block_k]; // what a row's weights give to its own normalisation
    float const* const delta = head.delta + query * head.stride;
    for (std::size_t i = 0; i != queries; ++i)
        along[i] = dot(delta + i * head.stride, head.attended + (query + i) * head.stride, head_width_k);
    float const first_queries = query == 0 ? 0.f : 1.f; // the first block of queries overwrites
    std::size_t const stride = head.qkv_stride;
    for (std::size_t key = 0; key < head.columns; key += block_k) {
        std::size_t const keys = std::min(block_k, head.columns - key);
        score(head, query, queries, key, keys, weights);
        for (std::size_t i = 0; i != queries; ++i)
            exponentials(weights[i], keys, head.log_sums[(query + i) * head.heads]);
        head.gemm.tn(keys, head_width_k, queries, 1, weights[0], block_k, delta, head.stride, first_queries,
                     head.values_delta + key * stride, stride);
        head.gemm.nt(queries, keys, head_width_k, 1, delta, head.stride, head.values + key * stride, stride, 0,
                     deltas[0], block_k);
        for (std::size_t i = 0; i != queries; ++i)
            for (std::size_t j = 0; j != keys; ++j)
                deltas[i][j] = weights[i][j] * (deltas[i][j] - along[i]);
        head.gemm.nn(queries, head_width_k, keys, scale_k, deltas[0], block_k, head.keys + key * stride, stride,
                     key == 0 ? 0.f : 1.f, head.queries_delta + query * stride, stride);
        head.gemm.tn(keys, head_width_k, queries, scale_k, deltas[0], block_k, head.queries + query * stride, stride,
                     first_queries, head.keys_delta + key * stride, stride);
    }
}

} // namespace

void attention_forward(stream const& stream, uform_layer_t const& layer) {
    for_heads(stream, layer, [](attention_head const& head) {
        for (std::size_t query = 0; query < head.columns; query += block_k)
            attend_block(head, query, std::min(block_k, head.columns - query));
    });
}

void attention_backward(stream const& stream, uform_layer_t const& layer) {
    for_heads(stream, layer, [](attention_head const& head) {
        for (std::size_t query = 0; query < head.columns; query += block_k)
            attend_block_backward(head, query, std::min(block_k, head.columns - query));
    });
}

} // namespace uform::ram

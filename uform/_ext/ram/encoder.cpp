#include "ram/elementwise.h"
#include "ram/layer.h"
#include "ram/operations.h"

#include <cstring>

namespace uform::ram {

namespace {

/** One block while an operation works on it: extents, weights and memory in their own types. */
struct block {
    ram::stream const& stream;
    uform_layer_t const& layer;
    std::size_t columns, hidden, inner, heads;
    layer_saved saved;
    layer_workspace work;
    float const* input;
    float* output;
    float* gradient;

    block(ram::stream const& stream, uform_layer_t const& layer)
        : stream(stream), layer(layer), columns(layer.columns.counts[0]), hidden(layer.extents.hidden),
          inner(layer.extents.inner), heads(layer.extents.heads), saved(layer_saved::of(layer)),
          work(layer_workspace::of(layer)), input(static_cast<float const*>(layer.input)),
          output(static_cast<float*>(layer.output)), gradient(static_cast<float*>(layer.gradient)) {}

    ram::gemm const& gemm() const noexcept { return stream.backend.gemm(); }

    /** Calls `body(begin, end)` for all columns; a task's rows stay in its processor's cache. */
    template <typename body_at> void for_rows(body_at&& body) const {
        stream.backend.parallel_chunks(columns, rows_per_task_k, body);
    }

    void weight_gradient(std::size_t outs, std::size_t ins, float const* dy, float const* x, float* dw) const {
        linear_weight_gradient(stream.backend, columns, outs, ins, dy, x, dw);
    }
};

float const* weights(void const* opaque) noexcept { return static_cast<float const*>(opaque); }

/** Turns the queries and keys of one column, or their gradients back. */
template <void (*turn_ak)(float*, rotary_turn const&) noexcept>
void turn_column(block const& block, std::size_t column, float* qkv) noexcept {
    uform_columns_t const& columns = block.layer.columns;
    unsigned const axes = columns.segments[columns.segment_of[column]].axes;
    rotary_turn const turn = block.stream.backend.rotary().turn(axes, columns.positions + column * UFORM_AXES);
    for (std::size_t head = 0; head != 2 * block.heads; ++head)
        turn_ak(qkv + head * head_width_k, turn);
}

/** to = gelu(gate) * up, for one row of `inner` gates and as many values. */
void geglu_row(float const* gate_up, std::size_t inner, float* to) noexcept {
    float const *const gates = gate_up, *const ups = gate_up + inner;
    for_lanes(inner, [&](auto places) { places.store(to, gelu(places.load(gates)) * places.load(ups)); });
}

/**
 *  The same again in backward, and the gradients of both halves.
 *  @param delta Its second half holds the gradient of `to` and is overwritten, as is the first.
 */
void geglu_row_backward(float const* gate_up, std::size_t inner, float* to, float* delta) noexcept {
    float const *const gates = gate_up, *const ups = gate_up + inner;
    float *const gate_deltas = delta, *const up_deltas = delta + inner;
    for_lanes(inner, [&](auto places) {
        gelu_pair const gate = gelu_with_slope(places.load(gates));
        lanes_t const up = places.load(ups), incoming = places.load(up_deltas);
        places.store(to, gate.value * up);
        places.store(gate_deltas, incoming * up * gate.slope);
        places.store(up_deltas, incoming * gate.value);
    });
}

/** Norms rows [begin, end) of `x` into the workspace, with the inverses that forward saved. */
void norm_rows_again(block const& block, float const* x, float const* gain, float const* inverses, std::size_t begin,
                     std::size_t end) noexcept {
    for (std::size_t row = begin; row != end; ++row)
        norm_row(x + row * block.hidden, gain, inverses[row], block.hidden, block.work.normed + row * block.hidden);
}

void norm_rows(block const& block, float const* x, float const* gain, float* inverses, std::size_t begin,
               std::size_t end) noexcept {
    for (std::size_t row = begin; row != end; ++row)
        inverses[row] = inverse_rms(x + row * block.hidden, block.hidden);
    norm_rows_again(block, x, gain, inverses, begin, end);
}

/** Adds to the block's gradient what passes through a norm whose output's gradient is in `delta`. */
void norm_rows_backward(block const& block, float const* x, float const* gain, float const* inverses, std::size_t begin,
                        std::size_t end) noexcept {
    double* const sums = block.work.gains.begin_task(begin);
    for (std::size_t row = begin; row != end; ++row) {
        std::size_t const at = row * block.hidden;
        norm_row_backward(x + at, gain, inverses[row], block.work.delta + at, block.hidden, norm_gradient::add,
                          block.gradient + at, sums);
    }
}

} // namespace

std::size_t layer_saved_bytes(uform_extents_t const* extents, std::uint32_t columns) {
    return layer_saved::bytes(*extents, columns);
}

std::size_t layer_workspace_bytes(uform_extents_t const* extents, std::uint32_t columns, std::uint32_t) {
    return layer_workspace::bytes(*extents, columns);
}

void norm_qkv_forward(stream const& stream, uform_layer_t const& layer) {
    block const block(stream, layer);
    std::size_t const hidden = block.hidden, outs = 3 * hidden;
    block.for_rows([&](std::size_t begin, std::size_t end) {
        norm_rows(block, block.input, weights(layer.norm1), block.saved.inverse1, begin, end);
        block.gemm().nt(end - begin, outs, hidden, 1, block.work.normed + begin * hidden, hidden, weights(layer.qkv),
                        hidden, 0, block.saved.qkv + begin * outs, outs);
        for (std::size_t row = begin; row != end; ++row)
            turn_column<rotate>(block, row, block.saved.qkv + row * outs);
    });
}

void out_residual_forward(stream const& stream, uform_layer_t const& layer) {
    block const block(stream, layer);
    std::size_t const hidden = block.hidden;
    block.for_rows([&](std::size_t begin, std::size_t end) {
        std::size_t const at = begin * hidden;
        std::memcpy(block.saved.middle + at, block.input + at, (end - begin) * hidden * sizeof(float));
        block.gemm().nt(end - begin, hidden, hidden, 1, block.saved.attended + at, hidden, weights(layer.out), hidden,
                        1, block.saved.middle + at, hidden);
    });
}

void norm_geglu_forward(stream const& stream, uform_layer_t const& layer) {
    block const block(stream, layer);
    std::size_t const hidden = block.hidden, inner = block.inner;
    block.for_rows([&](std::size_t begin, std::size_t end) {
        norm_rows(block, block.saved.middle, weights(layer.norm2), block.saved.inverse2, begin, end);
        block.gemm().nt(end - begin, 2 * inner, hidden, 1, block.work.normed + begin * hidden, hidden,
                        weights(layer.up), hidden, 0, block.saved.gate_up + begin * 2 * inner, 2 * inner);
        for (std::size_t row = begin; row != end; ++row)
            geglu_row(block.saved.gate_up + row * 2 * inner, inner, block.work.activated + row * inner);
    });
}

void down_residual_forward(stream const& stream, uform_layer_t const& layer) {
    block const block(stream, layer);
    std::size_t const hidden = block.hidden, inner = block.inner;
    block.for_rows([&](std::size_t begin, std::size_t end) {
        std::size_t const at = begin * hidden;
        std::memcpy(block.output + at, block.saved.middle + at, (end - begin) * hidden * sizeof(float));
        block.gemm().nt(end - begin, hidden, inner, 1, block.work.activated + begin * inner, inner, weights(layer.down),
                        inner, 1, block.output + at, hidden);
    });
}

void down_residual_backward(stream const& stream, uform_layer_t const& layer) {
    block const block(stream, layer);
    std::size_t const hidden = block.hidden, inner = block.inner;
    block.for_rows([&](std::size_t begin, std::size_t end) {
        block.gemm().nn(end - begin, inner, hidden, 1, block.gradient + begin * hidden, hidden, weights(layer.down),
                        inner, 0, block.work.wide + begin * 2 * inner + inner, 2 * inner);
        for (std::size_t row = begin; row != end; ++row)
            geglu_row_backward(block.saved.gate_up + row * 2 * inner, inner, block.work.activated + row * inner,
                               block.work.wide + row * 2 * inner);
    });
    block.weight_gradient(hidden, inner, block.gradient, block.work.activated, layer.down_gradient);
}

void norm_geglu_backward(stream const& stream, uform_layer_t const& layer) {
    block const block(stream, layer);
    std::size_t const hidden = block.hidden, outs = 2 * block.inner;
    block.for_rows([&](std::size_t begin, std::size_t end) {
        norm_rows_again(block, block.saved.middle, weights(layer.norm2), block.saved.inverse2, begin, end);
        block.gemm().nn(end - begin, hidden, outs, 1, block.work.wide + begin * outs, outs, weights(layer.up), hidden,
                        0, block.work.delta + begin * hidden, hidden);
        norm_rows_backward(block, block.saved.middle, weights(layer.norm2), block.saved.inverse2, begin, end);
    });
    block.weight_gradient(outs, hidden, block.work.wide, block.work.normed, layer.up_gradient);
    block.work.gains.add_to(stream.backend, block.columns, layer.norm2_gradient);
}

void out_residual_backward(stream const& stream, uform_layer_t const& layer) {
    block const block(stream, layer);
    std::size_t const hidden = block.hidden;
    block.for_rows([&](std::size_t begin, std::size_t end) {
        std::size_t const at = begin * hidden;
        block.gemm().nn(end - begin, hidden, hidden, 1, block.gradient + at, hidden, weights(layer.out), hidden, 0,
                        block.work.delta + at, hidden);
    });
    block.weight_gradient(hidden, hidden, block.gradient, block.saved.attended, layer.out_gradient);
}

void norm_qkv_backward(stream const& stream, uform_layer_t const& layer) {
    block const block(stream, layer);
    std::size_t const hidden = block.hidden, outs = 3 * hidden;
    block.for_rows([&](std::size_t begin, std::size_t end) {
        for (std::size_t row = begin; row != end; ++row)
            turn_column<rotate_back>(block, row, block.work.wide + row * outs);
        norm_rows_again(block, block.input, weights(layer.norm1), block.saved.inverse1, begin, end);
        block.gemm().nn(end - begin, hidden, outs, 1, block.work.wide + begin * outs, outs, weights(layer.qkv), hidden,
                        0, block.work.delta + begin * hidden, hidden);
        norm_rows_backward(block, block.input, weights(layer.norm1), block.saved.inverse1, begin, end);
    });
    block.weight_gradient(outs, hidden, block.work.wide, block.work.normed, layer.qkv_gradient);
    block.work.gains.add_to(stream.backend, block.columns, layer.norm1_gradient);
}

} // namespace uform::ram

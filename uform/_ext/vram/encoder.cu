/**
 *  The block of the encoder, composed of products, norms, rotary positions and GeGLU; attention's two operations lie in
 *  files of their own. Products run over all active rows: see `layer_workspace` for what holds past the count.
 */
#include "vram/elementwise.cuh"
#include "vram/gemm.h"
#include "vram/gemm_fused.h"
#include "vram/launch.cuh"
#include "vram/layer.h"
#include "vram/norm.h"
#include "vram/operations.h"
#include "vram/rotary.h"
#include "vram/succession.cuh"

namespace uform::vram {
namespace {

/* ------------------------------------------------------------------------------------------------------ kernels */

constexpr unsigned slack_threads_k = 128;
constexpr unsigned slack_blocks_k = 64;

/** Zeros in rows [count, active), a row for a block at a time. */
__global__ void __launch_bounds__(slack_threads_k)
    zero_slack_kernel(unsigned const* count, unsigned active, unsigned width, __nv_bfloat16* rows) {
    follow_earlier_kernels();
    for (unsigned row = *count + blockIdx.x; row < active; row += gridDim.x)
        for (unsigned at = threadIdx.x * lanes_k; at < width; at += slack_threads_k * lanes_k)
            store8(rows + std::size_t(row) * width + at, zero8());
}

/* -------------------------------------------------------------------------------------------------- the operations */

/** One block while an operation works on it: extents, weights and memory in their own types. */
struct block {
    vram::stream const& stream;
    uform_layer_t const& layer;
    std::uint32_t rows, hidden, inner, heads;
    layer_saved saved;
    layer_workspace work;
    __nv_bfloat16 const* input;
    __nv_bfloat16* output;
    __nv_bfloat16* gradient;

    block(vram::stream const& stream, uform_layer_t const& layer)
        : stream(stream), layer(layer), rows(layer.columns.active), hidden(layer.extents.hidden),
          inner(layer.extents.inner), heads(layer.extents.heads), saved(layer_saved::of(layer)),
          work(layer_workspace::of(layer)), input(static_cast<__nv_bfloat16 const*>(layer.input)),
          output(static_cast<__nv_bfloat16*>(layer.output)), gradient(static_cast<__nv_bfloat16*>(layer.gradient)) {}

    /** The norm of what the map from `hidden` values next to it multiplies. */
    norm_before norm(__nv_bfloat16 const* x, void const* gain, float const* squares, float* inverses) const {
        auto* const scaled = reinterpret_cast<__nv_bfloat16*>(work.scratch); // the weights' partial sums would fit, too
        return {norm_extents(), x, static_cast<float const*>(gain), squares, inverses, work.normed, scaled};
    }

    /** Adds to `gradient` what passes through a norm from `delta`, and makes its output again in `normed`. */
    void norm_backward(__nv_bfloat16 const* x, void const* gain, float const* inverses, float* gain_gradient) const {
        launch_norm_backward(stream, norm_extents(),
                             {.x = x,
                              .gain = static_cast<float const*>(gain),
                              .inverse_rms = inverses,
                              .output_gradient = work.delta,
                              .residual_gradient = gradient,
                              .input_gradient = gradient,
                              .output = work.normed,
                              .gain_gradient = gain_gradient,
                              .workspace = work.scratch});
    }

    /** In forward, of `middle` for its norm, [columns, hidden / norm_part_k]. */
    float* squares() const noexcept { return reinterpret_cast<float*>(work.delta); }

    /** y = x weight^T + residual. @param squares Of y, for a norm of it, or null. */
    void multiply(std::uint32_t ins, __nv_bfloat16 const* x, void const* weight, __nv_bfloat16 const* residual,
                  __nv_bfloat16* y, float* squares) const {
        gemm_residual_forward(stream, {rows, hidden, ins}, x, static_cast<__nv_bfloat16 const*>(weight), residual, y,
                              squares);
    }

    /** dx = dy weight. */
    void multiply_back(std::uint32_t outs, std::uint32_t ins, __nv_bfloat16 const* dy, void const* weight,
                       __nv_bfloat16* dx) const {
        gemm_data_gradient(stream, {rows, outs, ins}, dy, static_cast<__nv_bfloat16 const*>(weight), nullptr, dx);
    }

    void weight_gradient(std::uint32_t outs, std::uint32_t ins, __nv_bfloat16 const* dy, __nv_bfloat16 const* x,
                         float* dw) const {
        gemm_weight_gradient(stream, {rows, outs, ins}, dy, x, dw, work.scratch, work.scratch_bytes);
    }

    norm_rows norm_extents() const noexcept { return {rows, layer.columns.counts, hidden}; }
};

/** Runs an operation on a block, unless it has no columns. */
template <typename body_at>
uform_status_t operate_on(char const* name, uform_stream_t* opaque, uform_layer_t const* layer,
                          body_at&& body) noexcept {
    return operate(name, opaque, [&](stream const& on) {
        if (layer->columns.active != 0)
            body(block(on, *layer));
    });
}

} // namespace

std::size_t layer_saved_bytes(uform_extents_t const* extents, std::uint32_t columns) {
    return layer_saved::bytes(*extents, columns);
}

std::size_t layer_workspace_bytes(uform_extents_t const* extents, std::uint32_t columns, std::uint32_t segments) {
    return layer_workspace::bytes(*extents, columns, segments);
}

uform_status_t norm_qkv_forward(uform_stream_t* stream, uform_layer_t const* layer) {
    return operate_on("norm_qkv_forward", stream, layer, [&](block const& on) {
        gemm_turned_forward(on.stream, {.norm = on.norm(on.input, layer->norm1, nullptr, on.saved.inverse1),
                                        .columns = layer->columns,
                                        .weight = static_cast<__nv_bfloat16 const*>(layer->qkv),
                                        .qkv = on.saved.qkv,
                                        .turns = on.work.turns()});
    });
}

uform_status_t out_residual_forward(uform_stream_t* stream, uform_layer_t const* layer) {
    return operate_on("out_residual_forward", stream, layer, [&](block const& on) {
        on.multiply(on.hidden, on.saved.attended, layer->out, on.input, on.saved.middle, on.squares());
    });
}

uform_status_t norm_geglu_forward(uform_stream_t* stream, uform_layer_t const* layer) {
    return operate_on("norm_geglu_forward", stream, layer, [&](block const& on) {
        gemm_gated_forward(on.stream, {.norm = on.norm(on.saved.middle, layer->norm2, on.squares(), on.saved.inverse2),
                                       .inner = on.inner,
                                       .weight = static_cast<__nv_bfloat16 const*>(layer->up),
                                       .gate_up = on.saved.gate_up,
                                       .product = on.saved.activated});
    });
}

uform_status_t down_residual_forward(uform_stream_t* stream, uform_layer_t const* layer) {
    return operate_on("down_residual_forward", stream, layer, [&](block const& on) {
        on.multiply(on.inner, on.saved.activated, layer->down, on.saved.middle, on.output, nullptr);
    });
}

uform_status_t down_residual_backward(uform_stream_t* stream, uform_layer_t const* layer) {
    return operate_on("down_residual_backward", stream, layer, [&](block const& on) {
        // The weights' gradients sum over all active rows, and no one promises what the caller's hold past the count.
        launch_early(on.stream, zero_slack_kernel, slack_blocks_k, slack_threads_k, 0, layer->columns.counts, on.rows,
                     on.hidden, on.gradient);
        // First, for where no kernel goes on from the product's gradient it takes the product's place.
        on.weight_gradient(on.hidden, on.inner, on.gradient, on.saved.activated, layer->down_gradient);
        gemm_gated_backward(on.stream, {.rows = on.rows,
                                        .inner = on.inner,
                                        .hidden = on.hidden,
                                        .count = layer->columns.counts,
                                        .dy = on.gradient,
                                        .weight = static_cast<__nv_bfloat16 const*>(layer->down),
                                        .gate_up = on.saved.gate_up,
                                        .gate_up_gradient = on.work.wide,
                                        .incoming = on.saved.activated});
    });
}

uform_status_t norm_geglu_backward(uform_stream_t* stream, uform_layer_t const* layer) {
    return operate_on("norm_geglu_backward", stream, layer, [&](block const& on) {
        on.multiply_back(2 * on.inner, on.hidden, on.work.wide, layer->up, on.work.delta);
        on.norm_backward(on.saved.middle, layer->norm2, on.saved.inverse2, layer->norm2_gradient);
        on.weight_gradient(2 * on.inner, on.hidden, on.work.wide, on.work.normed, layer->up_gradient);
    });
}

uform_status_t out_residual_backward(uform_stream_t* stream, uform_layer_t const* layer) {
    return operate_on("out_residual_backward", stream, layer, [&](block const& on) {
        on.multiply_back(on.hidden, on.hidden, on.gradient, layer->out, on.work.delta);
        on.weight_gradient(on.hidden, on.hidden, on.gradient, on.saved.attended, layer->out_gradient);
    });
}

uform_status_t norm_qkv_backward(uform_stream_t* stream, uform_layer_t const* layer) {
    return operate_on("norm_qkv_backward", stream, layer, [&](block const& on) {
        on.multiply_back(3 * on.hidden, on.hidden, on.work.wide, layer->qkv, on.work.delta);
        on.norm_backward(on.input, layer->norm1, on.saved.inverse1, layer->norm1_gradient);
        on.weight_gradient(3 * on.hidden, on.hidden, on.work.wide, on.work.normed, layer->qkv_gradient);
    });
}

} // namespace uform::vram

#include "vram/attention.h"

#include "vram/launch.cuh"
#include "vram/layer.h"
#include "vram/operations.h"

namespace uform::vram {

namespace {

attention_problem problem_of(uform_layer_t const& layer) {
    layer_saved const saved = layer_saved::of(layer);
    if (layer.extents.hidden != layer.extents.heads * head_width_k)
        fail(uform_status_internal_k, "extents.heads: ", layer.extents.heads, " of ", head_width_k,
             " columns, but hidden is ", layer.extents.hidden);
    return {layer.columns, layer.extents.heads, saved.qkv, saved.attended, saved.log_sums};
}

} // namespace

std::size_t attention_scratch_bytes(uform_extents_t const& extents, std::size_t columns, std::size_t) noexcept {
    return attention_scratch_floats(columns, extents.heads) * sizeof(float);
}

uform_status_t attention_forward(uform_stream_t* opaque, uform_layer_t const* layer) {
    return operate("attention_forward", opaque,
                   [&](stream const& on) { launch_attention_forward(on, problem_of(*layer)); });
}

uform_status_t attention_backward(uform_stream_t* opaque, uform_layer_t const* layer) {
    return operate("attention_backward", opaque, [&](stream const& on) {
        layer_workspace const work = layer_workspace::of(*layer);
        attention_problem problem = problem_of(*layer);
        problem.gradient = work.delta;
        problem.qkv_gradient = work.wide;
        problem.turn_back = true;
        problem.scratch = reinterpret_cast<float*>(work.scratch);
        problem.owned_columns =
            attention_owned_columns(layer->columns.active, layer->extents.heads, on.multiprocessors);
        launch_attention_backward(on, problem);
    });
}

} // namespace uform::vram

#include "vram/layer.h"

#include <algorithm>

#include "vram/gemm.h"
#include "vram/launch.cuh"
#include "vram/operations.h"

namespace uform::vram {

namespace {

std::size_t wide_columns(uform_extents_t const& extents) noexcept {
    return std::max<std::size_t>(2 * std::size_t(extents.inner), 3 * std::size_t(extents.hidden));
}

/** Of the operation of a block that needs most. */
std::size_t most_scratch_bytes(uform_extents_t const& extents, std::size_t columns, std::size_t segments) noexcept {
    std::uint32_t const hidden = extents.hidden, inner = extents.inner, rows = static_cast<std::uint32_t>(columns);
    return std::max({gemm_weight_gradient_workspace_bytes({rows, 3 * hidden, hidden}),
                     gemm_weight_gradient_workspace_bytes({rows, hidden, hidden}),
                     gemm_weight_gradient_workspace_bytes({rows, 2 * inner, hidden}),
                     gemm_weight_gradient_workspace_bytes({rows, hidden, inner}), norm_workspace_bytes(hidden, rows),
                     attention_scratch_bytes(extents, columns, segments)});
}

} // namespace

std::size_t layer_saved::bytes(uform_extents_t const& extents, std::size_t columns) noexcept {
    return part_bytes<__nv_bfloat16>(columns * 3 * extents.hidden) +
           2 * part_bytes<__nv_bfloat16>(columns * extents.hidden) +
           part_bytes<__nv_bfloat16>(columns * 2 * extents.inner) + part_bytes<__nv_bfloat16>(columns * extents.inner) +
           part_bytes<float>(columns * extents.heads) + 2 * part_bytes<float>(columns);
}

layer_saved layer_saved::of(uform_layer_t const& layer) {
    uform_extents_t const& extents = layer.extents;
    std::size_t const columns = layer.columns.capacity;
    check_bytes("saved_bytes", layer.saved_bytes, bytes(extents, columns));
    workspace_parts parts(layer.saved);
    layer_saved saved;
    saved.qkv = parts.take<__nv_bfloat16>(columns * 3 * extents.hidden);
    saved.attended = parts.take<__nv_bfloat16>(columns * extents.hidden);
    saved.middle = parts.take<__nv_bfloat16>(columns * extents.hidden);
    saved.gate_up = parts.take<__nv_bfloat16>(columns * 2 * extents.inner);
    saved.activated = parts.take<__nv_bfloat16>(columns * extents.inner);
    saved.log_sums = parts.take<float>(columns * extents.heads);
    saved.inverse1 = parts.take<float>(columns);
    saved.inverse2 = parts.take<float>(columns);
    return saved;
}

std::size_t layer_workspace::bytes(uform_extents_t const& extents, std::size_t columns, std::size_t segments) noexcept {
    return 2 * part_bytes<__nv_bfloat16>(columns * extents.hidden) +
           part_bytes<__nv_bfloat16>(columns * wide_columns(extents)) +
           part_bytes<std::byte>(most_scratch_bytes(extents, columns, segments));
}

layer_workspace layer_workspace::of(uform_layer_t const& layer) {
    uform_extents_t const& extents = layer.extents;
    std::size_t const columns = layer.columns.capacity, segments = layer.columns.segments_capacity;
    check_bytes("workspace_bytes", layer.workspace_bytes, bytes(extents, columns, segments));
    workspace_parts parts(layer.workspace);
    layer_workspace work;
    work.normed = parts.take<__nv_bfloat16>(columns * extents.hidden);
    work.delta = parts.take<__nv_bfloat16>(columns * extents.hidden);
    work.wide = parts.take<__nv_bfloat16>(columns * wide_columns(extents));
    work.scratch_bytes = most_scratch_bytes(extents, columns, segments);
    work.scratch = parts.take<std::byte>(work.scratch_bytes);
    return work;
}

} // namespace uform::vram

#include "ram/layer.h"

#include <algorithm>

namespace uform::ram {

namespace {

std::size_t wide_columns(uform_extents_t const& extents) noexcept {
    return std::max<std::size_t>(2 * extents.inner, 3 * extents.hidden);
}

void check_bytes(char const* field, std::size_t given, std::size_t needed) {
    if (given < needed)
        fail(uform_status_internal_k, field, ": ", given, " bytes, but a layer takes ", needed);
}

} // namespace

std::size_t layer_saved::bytes(uform_extents_t const& extents, std::size_t columns) noexcept {
    return part_bytes<float>(columns * 3 * extents.hidden) + 2 * part_bytes<float>(columns * extents.hidden) +
           part_bytes<float>(columns * 2 * extents.inner) + part_bytes<float>(columns * extents.heads) +
           2 * part_bytes<float>(columns);
}

layer_saved layer_saved::of(uform_layer_t const& layer) {
    uform_extents_t const& extents = layer.extents;
    std::size_t const columns = layer.columns.capacity;
    check_bytes("saved_bytes", layer.saved_bytes, bytes(extents, columns));
    workspace_parts parts(layer.saved);
    layer_saved saved;
    saved.qkv = parts.take<float>(columns * 3 * extents.hidden);
    saved.attended = parts.take<float>(columns * extents.hidden);
    saved.middle = parts.take<float>(columns * extents.hidden);
    saved.gate_up = parts.take<float>(columns * 2 * extents.inner);
    saved.log_sums = parts.take<float>(columns * extents.heads);
    saved.inverse1 = parts.take<float>(columns);
    saved.inverse2 = parts.take<float>(columns);
    return saved;
}

std::size_t layer_workspace::bytes(uform_extents_t const& extents, std::size_t columns) noexcept {
    return 2 * part_bytes<float>(columns * extents.hidden) + part_bytes<float>(columns * extents.inner) +
           part_bytes<float>(columns * wide_columns(extents)) + gain_sums::bytes(extents.hidden, columns);
}

layer_workspace layer_workspace::of(uform_layer_t const& layer) {
    uform_extents_t const& extents = layer.extents;
    std::size_t const columns = layer.columns.capacity;
    check_bytes("workspace_bytes", layer.workspace_bytes, bytes(extents, columns));
    workspace_parts parts(layer.workspace);
    float* const normed = parts.take<float>(columns * extents.hidden);
    float* const delta = parts.take<float>(columns * extents.hidden);
    float* const activated = parts.take<float>(columns * extents.inner);
    float* const wide = parts.take<float>(columns * wide_columns(extents));
    return {normed, delta, activated, wide, gain_sums(parts.take<double>(0), extents.hidden)};
}

} // namespace uform::ram

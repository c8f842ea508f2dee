#include "vram/pairs.h"

#include <algorithm>
#include <limits>

#include "vram/launch.cuh"
#include "vram/operations.h"

namespace uform::vram {

namespace pairs {

namespace {

constexpr unsigned width_step_k = 64;

/** What a workspace must hold at most. */
struct capacities {
    std::uint32_t units, rows, edges, width;
};

/** Tiles of a panel's side, of so many. */
std::uint32_t panel_side(std::uint32_t tiles) {
    return std::min(tiles, tiles < large_tiles_k ? block_tiles_k : panel_tiles_k);
}

std::uint32_t tiles_of(std::uint32_t units) { return ceil_divide(std::max(units, 1u), tile_k); }

/** Takes the parts of a workspace, and answers their bytes. */
std::size_t lay_out(problem& to, capacities const& most, void* base) {
    std::uint32_t const tiles = tiles_of(most.units);
    to.padded_width = ceil_divide(most.width, width_step_k) * width_step_k;
    // Whole words a block, so that a block's line is one word.
    to.tile_words = ceil_divide(tiles, block_tiles_k);
    std::size_t const places = std::size_t(tiles) * tile_k;
    std::size_t const span = std::size_t(std::min(tiles, span_tiles_k)) * tile_k;
    std::size_t const panel = std::size_t(panel_side(tiles)) * tile_k;
    to.panel_stride = static_cast<std::uint32_t>(panel);

    workspace_parts parts(base);
    to.vectors = parts.take<__nv_bfloat16>(places * to.padded_width);
    to.place_of = parts.take<std::uint32_t>(most.units);
    to.unit_rows = parts.take<std::uint32_t>(most.units);
    to.keys = parts.take<std::uint8_t>(most.units);
    to.key_counts = parts.take<std::uint32_t>(std::size_t(keys_k) * ceil_divide(std::max(most.units, 1u), key_chunk_k));
    to.vector_at = parts.take<std::uint32_t>(places);
    to.row_at = parts.take<std::uint32_t>(places);
    to.look = parts.take<std::uint32_t>(places);
    to.face = parts.take<std::uint32_t>(places);
    to.terms = parts.take<row_terms>(places);
    to.lengths = parts.take<float>(places);
    to.sums = parts.take<partial_sum>(places);
    to.tile_views = parts.take<visibility>(tiles);
    to.tile_lengths = parts.take<float>(tiles);
    to.tile_offsets = parts.take<offset_range>(tiles);
    to.block_views = parts.take<visibility>(to.tile_words);
    to.named_tiles = parts.take<std::uint32_t>(std::size_t(tiles) * to.tile_words);
    to.row_places = parts.take<std::uint32_t>(most.rows);
    to.row_values = parts.take<double>(most.rows);
    to.gradients = parts.take<row_gradients>(most.rows);
    to.named_places = parts.take<std::uint32_t>(most.edges);
    to.named_edges = parts.take<std::uint32_t>(most.edges);
    to.named_rows = parts.take<std::uint32_t>(most.edges);
    to.named_dots = parts.take<float>(most.edges);
    to.named_coefficients = parts.take<float>(most.edges);

    // Forward's spans and backward's panels take turns in one part.
    std::size_t const forward = part_bytes<partial_sum>(2 * span / tile_k * span);
    std::size_t const sums = part_bytes<coefficient_sums>(2 * panel / tile_k * panel);
    std::size_t const backward = sums + part_bytes<__nv_bfloat16>(panel * panel);
    std::byte* const shared = parts.take<std::byte>(std::max(forward, backward));
    to.span_sums = reinterpret_cast<partial_sum*>(shared);
    to.panel = reinterpret_cast<__nv_bfloat16*>(shared + sums);
    return static_cast<std::size_t>(parts.take<std::byte>(0) - static_cast<std::byte*>(base));
}

extents extents_of(uform_pairs_t const& pairs) { return {pairs.units_active, pairs.rows_active, pairs.edges_capacity}; }

} // namespace

problem describe(uform_pairs_t const& pairs) {
    problem to{};
    to.counts = pairs.counts;
    to.width = pairs.width;
    to.groups = pairs.groups;
    to.unit_vectors = pairs.vectors, to.indices = pairs.indices;
    to.rows = pairs.rows, to.row_groups = pairs.row_groups, to.modalities = pairs.modalities;
    to.edge_offsets = pairs.edge_offsets, to.edge_units = pairs.edge_units;
    to.sides = pairs.sides, to.targets = pairs.targets, to.edge_classes = pairs.edge_classes;
    to.edge_weights = pairs.edge_weights;
    to.log_inverse_temperature = static_cast<float const*>(pairs.log_inverse_temperature);
    to.bias = static_cast<float const*>(pairs.bias);
    to.scale = pairs.scale;
    to.form = pairs.form, to.scope = pairs.scope;
    to.ambient = pairs.negatives == uform_negatives_ambient_k && pairs.ambient_weight > 0;
    to.ambient_weight = pairs.ambient_weight;
    to.loss = pairs.loss;
    to.row_losses = pairs.row_losses;
    to.row_losses_scale = pairs.row_losses_scale;
    to.row_logs = pairs.row_logs, to.row_forces = pairs.row_forces;
    to.gradient = pairs.gradient;
    to.log_inverse_temperature_gradient = pairs.log_inverse_temperature_gradient;
    to.bias_gradient = pairs.bias_gradient;
    capacities const most{pairs.units_capacity, pairs.rows_capacity, pairs.edges_capacity, pairs.width};
    to.tiles = tiles_of(pairs.units_active);
    to.panel_side = panel_side(to.tiles);
    to.key_chunks = ceil_divide(pairs.units_active, key_chunk_k);
    check_bytes("workspace_bytes", pairs.workspace_bytes, lay_out(to, most, pairs.workspace));
    return to;
}

} // namespace pairs

std::size_t pairs_workspace_bytes(std::uint32_t units, std::uint32_t rows, std::uint32_t edges, std::uint32_t width,
                                  std::uint32_t) {
    pairs::problem unused{};
    return pairs::lay_out(unused, {units, rows, edges, width}, nullptr);
}

uform_status_t pairs_forward(uform_stream_t* opaque, uform_pairs_t const* pairs) {
    return operate("pairs_forward", opaque, [&](stream const& stream) {
        pairs::problem const problem = pairs::describe(*pairs);
        pairs::extents const extents = pairs::extents_of(*pairs);
        pairs::prepare(stream, problem, extents, {-std::numeric_limits<float>::infinity(), 0});
        pairs::set_temperatures(stream, problem, extents);
        if (problem.ambient)
            pairs::sum_ambient(stream, problem, extents);
        pairs::finish_losses(stream, problem, extents);
    });
}

uform_status_t pairs_backward(uform_stream_t* opaque, uform_pairs_t const* pairs) {
    return operate("pairs_backward", opaque, [&](stream const& stream) {
        pairs::problem const problem = pairs::describe(*pairs);
        pairs::extents const extents = pairs::extents_of(*pairs);
        pairs::prepare(stream, problem, extents, {0, 0});
        pairs::find_forces(stream, problem, extents);
        pairs::pull(stream, problem, extents);
        pairs::finish_groups(stream, problem, extents);
    });
}

} // namespace uform::vram

#include "core/composition.h"

#include <algorithm>

#include "core/fields.h"

namespace uform {

namespace {

json const* saved_plugin(json const* saved, char const* kind, std::string const& name) {
    return saved ? saved->at(kind).find(name) : nullptr;
}

template <typename instance_at> json describe_plugins(std::vector<instance_at> const& instances) {
    json all = json::make_object();
    for (instance_at const& one : instances)
        all.set(one.name, describe_fields(one.plugin->fields, one.plugin->fields_count, one.config.data()));
    return all;
}

uform_run_t run_of(settings const& derived, uint32_t devices, bool training) {
    uform_run_t run{};
    run.hidden = static_cast<uint32_t>(derived.hidden);
    run.devices = devices;
    run.world_devices = devices;
    run.row_columns = static_cast<uint32_t>(derived.batch.max_columns_per_row);
    run.columns_capacity = run.row_columns * static_cast<uint32_t>(derived.batch.max_rows_per_device);
    run.segments_capacity = static_cast<uint32_t>(derived.batch.max_segments_per_device);
    run.bags_capacity = static_cast<uint32_t>(derived.batch.max_bags_per_device);
    run.choices_capacity = static_cast<uint32_t>(derived.batch.max_choices_per_item);
    run.training = training;
    run.seed = derived.seed;
    return run;
}

template <typename instance_at> void place_parts(memory_plan& plan, std::vector<instance_at>& instances) {
    for (instance_at& one : instances)
        one.workspace_offset = plan.add("plugins", one.workspace_bytes);
}

template <typename instance_at> void place_staging(size_t& bytes, std::vector<instance_at>& instances) {
    for (instance_at& one : instances) {
        one.staging_offset = bytes;
        bytes += one.staging_bytes;
    }
}

size_t aligned(size_t bytes) {
    return (bytes + memory_plan::alignment_k - 1) / memory_plan::alignment_k * memory_plan::alignment_k;
}

staging_layout lay_out_staging(composition& whole) {
    staging_layout parts;
    auto const take = [&](size_t bytes) {
        size_t const offset = parts.bytes;
        parts.bytes += aligned(bytes);
        return offset;
    };
    parts.counts = take(sizeof(batch_counts));
    parts.segments = take(sizeof(uform_segment_t) * whole.run.segments_capacity);
    parts.codes = take(sizeof(uint16_t) * whole.run.columns_capacity);
    parts.covered = take(sizeof(uint32_t) * whole.covered_capacity);
    place_staging(parts.bytes, whole.modalities);
    place_staging(parts.bytes, whole.objectives);
    return parts;
}

void lay_out_parameters(composition const& whole, replica_layout& layout) {
    memory_plan& plan = layout.plan;
    uform_operations_t const& operations = *whole.operations;
    size_t const flat = sizeof(float) * whole.declared.parameters.flat();
    layout.parameters = plan.add("parameters", flat);
    for (parameter const& one : whole.declared.parameters.all()) {
        size_t const bytes = operations.weights_bytes(one.kind, one.rows, one.columns);
        layout.has_working.push_back(bytes != 0);
        layout.working.push_back(bytes ? plan.add("working weights", bytes) : 0);
    }
    if (!whole.training())
        return;
    layout.spans = plan.add("optimizer", sizeof(uform_parameter_span_t) * whole.declared.parameters.all().size());
    layout.gradient = plan.add("gradients", flat);
    layout.first_moment = plan.add("optimizer", flat);
    layout.second_moment = plan.add("optimizer", flat);
    layout.state = plan.add("optimizer", sizeof(uform_update_state_t));
    layout.update_workspace =
        plan.add("optimizer", operations.update_workspace_bytes(whole.declared.parameters.flat()));
}

void lay_out_encoder(composition const& whole, replica_layout& layout) {
    memory_plan& plan = layout.plan;
    uform_operations_t const& operations = *whole.operations;
    uint32_t const columns = whole.run.columns_capacity, hidden = whole.run.hidden;
    size_t const states = operations.state_bytes(hidden) * columns;
    uint32_t const depth = whole.extents.depth;
    layout.segment_of = plan.add("columns", sizeof(uint32_t) * columns);
    layout.positions = plan.add("columns", sizeof(uint16_t) * UFORM_AXES * columns);
    layout.saved_bytes = operations.layer_saved_bytes(&whole.extents, columns);
    // Inference needs no block's activations once the next one has run.
    uint32_t const kept_states = whole.training() ? depth + 1 : 2;
    uint32_t const kept_blocks = whole.training() ? depth : 1;
    for (uint32_t block = 0; block != kept_states; ++block)
        layout.states.push_back(plan.add("activations", states));
    for (uint32_t block = 0; block != kept_blocks; ++block)
        layout.saved.push_back(plan.add("activations", layout.saved_bytes));
    layout.layer_workspace_bytes =
        operations.layer_workspace_bytes(&whole.extents, columns, whole.run.segments_capacity);
    layout.layer_workspace = plan.add("workspace", layout.layer_workspace_bytes);
    layout.hidden_states = plan.add("activations", states);
    layout.inverse_rms = plan.add("activations", sizeof(float) * columns);
    layout.norm_workspace_bytes = operations.norm_workspace_bytes(hidden, columns);
    layout.norm_workspace = plan.add("workspace", layout.norm_workspace_bytes);
    if (whole.training())
        layout.gradient_states = plan.add("activation gradients", states);
}

void lay_out_taps(composition const& whole, replica_layout& layout) {
    memory_plan& plan = layout.plan;
    uform_operations_t const& operations = *whole.operations;
    uint32_t const hidden = whole.run.hidden, bags = whole.run.bags_capacity;
    size_t const pooled = sizeof(float) * hidden * bags;
    layout.bags = plan.add("embeddings", pooled);
    layout.lengths = plan.add("embeddings", sizeof(float) * bags);
    layout.bag_columns = plan.add("embeddings", sizeof(uint32_t) * bags);
    layout.pool_workspace_bytes = operations.pool_workspace_bytes(hidden, bags);
    layout.pool_workspace = plan.add("workspace", layout.pool_workspace_bytes);
    if (!whole.training())
        return;
    layout.bags_gradient = plan.add("embeddings", pooled);
    if (whole.taps & uform_tap_world_bags_k) {
        layout.world_bags = plan.add("embeddings", pooled * whole.run.world_devices);
        layout.world_bags_gradient = plan.add("embeddings", pooled * whole.run.world_devices);
    }
    layout.covered_rows = plan.add("covered columns", operations.state_bytes(hidden) * whole.covered_capacity);
    layout.covered_gradient = plan.add("covered columns", sizeof(float) * hidden * whole.covered_capacity);
}

} // namespace

int composition::find(uint32_t modality) const {
    for (size_t place = 0; place != modalities.size(); ++place)
        if (modalities[place].plugin->modality == modality)
            return static_cast<int>(place);
    return -1;
}

std::unique_ptr<composition> compose(settings given, json const* saved, uform_operations_t const& operations,
                                     uint32_t devices, bool training) {
    auto whole = std::make_unique<composition>();
    derive(given, saved);
    whole->derived = std::move(given);
    whole->run = run_of(whole->derived, devices, training);
    whole->extents = extents_of(whole->derived);
    whole->operations = &operations;
    whole->blocks = add_encoder_parameters(whole->declared.parameters, whole->extents, whole->norm);
    for (selection const& chosen : whole->derived.modalities) {
        modality_instance instance;
        if (start_modality(instance, chosen, saved_plugin(saved, "modalities", chosen.name), whole->run, operations,
                           whole->declared))
            whole->modalities.push_back(std::move(instance));
    }
    if (whole->modalities.size() > modalities_capacity_k)
        fail(uform_status_invalid_argument_k, "plugins: at most ", modalities_capacity_k,
             " modalities in one run, not ", whole->modalities.size());
    if (!training)
        return whole;
    for (selection const& chosen : whole->derived.objectives) {
        objective_instance instance;
        start_objective(instance, chosen, saved_plugin(saved, "objectives", chosen.name), whole->run, operations,
                        whole->declared);
        whole->taps |= instance.plugin->taps;
        whole->covered_capacity = std::max(whole->covered_capacity, instance.plugin->covered_capacity(instance.self));
        whole->objectives.push_back(std::move(instance));
    }
    whole->covered_capacity = std::min<size_t>(whole->covered_capacity, whole->run.columns_capacity);
    return whole;
}

json describe(composition const& whole) {
    json description = describe(whole.derived);
    description.set("modalities", describe_plugins(whole.modalities));
    description.set("objectives", describe_plugins(whole.objectives));
    return description;
}

replica_layout lay_out(composition& whole) {
    replica_layout layout;
    lay_out_parameters(whole, layout);
    layout.staging_parts = lay_out_staging(whole);
    layout.staging = layout.plan.add("staging", layout.staging_parts.bytes);
    lay_out_encoder(whole, layout);
    lay_out_taps(whole, layout);
    place_parts(layout.plan, whole.modalities);
    place_parts(layout.plan, whole.objectives);
    return layout;
}

} // namespace uform

#include "core/composition.h"

#include <algorithm>
#include <cctype>
#include <string>

#include "core/fields.h"
#include "core/resume.h"

namespace uform {

namespace {

template <typename instance_at> json describe_plugins(std::vector<instance_at> const& instances) {
    json all = json::make_object();
    for (instance_at const& one : instances)
        all.set(one.name, describe_fields(one.plugin->fields, one.plugin->fields_count, one.config.data()));
    return all;
}

template <typename instance_at> json describe_plugins_given(std::vector<instance_at> const& instances) {
    json all = json::make_object();
    for (instance_at const& one : instances)
        all.set(one.name, describe_given({one.plugin->fields, one.plugin->fields_count}, one.given));
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
        one.workspace_offset = plan.add(one.name.c_str(), one.workspace_bytes);
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

/** A vector for every column; alone in the world, a device's own are the world's. */
void lay_out_vectors(composition& whole, replica_layout& layout) {
    for (objective_instance& one : whole.objectives) {
        if (!one.vectors_width)
            continue;
        size_t const bytes = sizeof(float) * one.vectors_width * whole.run.columns_capacity;
        uint32_t const world = whole.run.world_devices;
        one.vectors_offset = layout.plan.add("token vectors", bytes);
        if (!whole.training())
            continue;
        one.world_vectors_offset = world > 1 ? layout.plan.add("token vectors", bytes * world) : one.vectors_offset;
        one.world_vectors_gradient_offset = layout.plan.add("token vectors", bytes * world);
    }
}

/** What every run begins with: its sizes and the encoder's parameters. */
std::unique_ptr<composition> begin(settings derived, uform_operations_t const& operations, uint32_t devices,
                                   bool training) {
    auto whole = std::make_unique<composition>();
    whole->derived = std::move(derived);
    whole->run = run_of(whole->derived, devices, training);
    whole->extents = extents_of(whole->derived);
    whole->operations = &operations;
    whole->blocks = add_encoder_parameters(whole->declared.parameters, whole->extents, whole->norm);
    return whole;
}

void check_modalities(composition const& whole) {
    size_t const count = whole.modalities.size();
    if (count < 1 || count > modalities_capacity_k)
        fail(uform_status_invalid_argument_k, "modalities: between 1 and ", modalities_capacity_k, " in one run, not ",
             count);
}

/** Segments do not see each other, so that columns that nothing covers or pools learn nothing. */
void check_something_is_learned(composition const& whole) {
    if (!whole.training() || whole.taps != uform_tap_covered_k)
        return;
    for (modality_instance const& one : whole.modalities)
        if (one.plugin->cover_kind == uform_cover_kind_none_k)
            refuse_plugin(one, uform_status_invalid_argument_k,
                          "its columns cannot be covered, and every objective of the run reads covered columns alone: "
                          "it would learn nothing");
}

/** A verb of models has one answer: whichever was asked, the other would have been trained for nothing. */
void check_answers_alone(composition const& whole, objective_instance const& instance) {
    uint32_t const kind = instance.plugin->answer_kind;
    int const other = kind == uform_answer_kind_none_k ? -1 : whole.find_answer(kind);
    if (other < 0)
        return;
    refuse_plugin(instance, uform_status_invalid_argument_k,
                  std::string("it answers ") + (kind == uform_answer_kind_tokens_k ? "embed_tokens" : "text_choose") +
                      ", and so does plugin " + whole.objectives[static_cast<size_t>(other)].name +
                      " of this run: at most one objective of a run does");
}

void add_objective(composition& whole, objective_instance instance) {
    check_answers_alone(whole, instance);
    whole.taps |= instance.plugin->taps;
    size_t most = 0;
    call_plugin(instance, "covered_capacity", [&] {
        most = instance.plugin->covered_capacity(instance.self);
        return uform_status_success_k;
    });
    instance.covered_capacity = std::min<size_t>(most, whole.run.columns_capacity);
    whole.covered_capacity = std::max(whole.covered_capacity, instance.covered_capacity);
    whole.objectives.push_back(std::move(instance));
}

/** What third parties' plugins write gets its places; one that has none could not be named for what is not finite. */
void place_findings(composition& whole) {
    if (!whole.training())
        return;
    int next = 0;
    auto const place = [&](plugin_parts& parts, finding what, bool written) {
        if (parts.own || !written)
            return;
        if (next == UFORM_FINDINGS_CAPACITY)
            refuse_plugin(parts, uform_status_invalid_argument_k,
                          "a run looks through " + std::to_string(UFORM_FINDINGS_CAPACITY) +
                              " of third parties' states and gradients, and the plugins before it have them all");
        parts.findings[static_cast<uint32_t>(what)] = next++;
    };
    for (modality_instance& one : whole.modalities) {
        place(one, finding::columns, true);
        place(one, finding::parameters, !one.parameters.empty());
    }
    for (objective_instance& one : whole.objectives) {
        place(one, finding::bags, one.plugin->taps & (uform_tap_bags_k | uform_tap_world_bags_k));
        place(one, finding::columns, one.plugin->taps & uform_tap_columns_k);
        place(one, finding::parameters, !one.parameters.empty());
    }
}

/** Staging and workspace of a device, and parameters with what training keeps beside them. */
size_t bytes_of(composition const& whole, plugin_parts const& parts) {
    uint64_t values = 0;
    for (uint32_t index : parts.parameters)
        values += whole.declared.parameters.at(index).count();
    return parts.staging_bytes + parts.workspace_bytes + (whole.training() ? 4 : 1) * sizeof(float) * values;
}

template <typename instance_at>
resumed_plugin find_resumed(composition const* saved, std::vector<instance_at> composition::* kind,
                            std::string const& name) {
    if (saved)
        for (instance_at const& one : saved->*kind)
            if (one.name == name)
                return {&one, &saved->run, &saved->declared.parameters};
    return {};
}

void check_sections(json const& configuration) {
    constexpr std::string_view known[] = {"network", "batch",      "schedule",   "optimizer",
                                          "seed",    "modalities", "objectives", "given"};
    check_members(configuration, "the whole", known);
    constexpr std::string_view known_given[] = {"batch", "schedule", "optimizer", "modalities", "objectives"};
    if (json const* const given = configuration.find("given"))
        check_members(*given, "given", known_given);
}

/** A plugin's name out of a file as part of a path: as it is where it is a plain word. */
std::string shown_name(std::string const& name) {
    bool const plain = !name.empty() && name.size() <= 64 && std::all_of(name.begin(), name.end(), [](char letter) {
        return std::isalnum(static_cast<unsigned char>(letter)) || letter == '_' || letter == '-';
    });
    return plain ? name : quoted_name(name);
}

/** The plugins of one kind, in the order of the file. */
std::vector<saved_section> sections_of(json const& configuration, char const* kind) {
    json const& all = configuration_member(configuration, "", kind);
    json const* given = configuration.find("given");
    if (given) {
        given = &configuration_member(*given, "given", kind);
        given->as_object(field_path("given", kind));
    }
    std::vector<saved_section> sections;
    for (auto const& [name, values] : all.as_object(kind)) {
        std::string const path = field_path(kind, shown_name(name));
        json const* const given_names = given ? given->find(name) : nullptr;
        if (given && !given_names)
            fail(uform_status_invalid_argument_k, "given.", path, " is missing");
        sections.push_back({name, &values, given_names, path});
    }
    if (given)
        for (auto const& [name, fields] : given->as_object(kind))
            if (!all.find(name))
                fail(uform_status_invalid_argument_k, "given.", kind, " lists ", quoted_name(name), ", but ", kind,
                     " is ", shortened(all));
    return sections;
}

} // namespace

int composition::find(uint32_t modality) const {
    for (size_t place = 0; place != modalities.size(); ++place)
        if (modalities[place].plugin->modality == modality)
            return static_cast<int>(place);
    return -1;
}

int composition::find_answer(uint32_t kind) const {
    for (size_t place = 0; place != objectives.size(); ++place)
        if (objectives[place].plugin->answer_kind == kind)
            return static_cast<int>(place);
    return -1;
}

std::unique_ptr<composition> compose(settings given, composition const* saved, uform_operations_t const& operations,
                                     uint32_t devices, bool training) {
    derive(given, saved ? &saved->derived : nullptr);
    auto whole = begin(std::move(given), operations, devices, training);
    for (selection const& chosen : whole->derived.modalities) {
        modality_instance instance;
        if (start_modality(instance, chosen, find_resumed(saved, &composition::modalities, chosen.name), whole->run,
                           operations, whole->declared))
            whole->modalities.push_back(std::move(instance));
    }
    check_modalities(*whole);
    for (selection const& chosen : whole->derived.objectives) {
        objective_instance instance;
        start_objective(instance, chosen, find_resumed(saved, &composition::objectives, chosen.name), whole->run,
                        operations, whole->declared);
        add_objective(*whole, std::move(instance));
    }
    check_something_is_learned(*whole);
    return whole;
}

std::unique_ptr<composition> restore(json const& configuration, uform_operations_t const& operations, uint32_t devices,
                                     bool training) {
    check_sections(configuration);
    auto whole = begin(read_settings(configuration), operations, devices, training);
    for (saved_section const& saved : sections_of(configuration, "modalities")) {
        modality_instance instance;
        restore_modality(instance, saved, whole->run, operations, whole->declared);
        whole->modalities.push_back(std::move(instance));
    }
    check_modalities(*whole);
    std::vector<saved_section> const objectives = sections_of(configuration, "objectives");
    if (training && objectives.empty())
        fail(uform_status_invalid_argument_k, "objectives is {}, but a run has at least one");
    for (saved_section const& saved : objectives) {
        uform_objective_plugin_t const* const known = find_objective(saved.name);
        if (!training && !known) {
            saved.values->as_object(saved.path);
            continue;
        }
        if (!training && known->answer_kind == uform_answer_kind_none_k) {
            check_objective_section(saved, whole->run, operations);
            continue;
        }
        objective_instance instance;
        restore_objective(instance, saved, whole->run, operations, whole->declared);
        add_objective(*whole, std::move(instance));
    }
    return whole;
}

json describe(composition const& whole) {
    json description = describe(whole.derived);
    description.set("modalities", describe_plugins(whole.modalities));
    description.set("objectives", describe_plugins(whole.objectives));
    json given = describe_given(whole.derived);
    given.set("modalities", describe_plugins_given(whole.modalities));
    given.set("objectives", describe_plugins_given(whole.objectives));
    description.set("given", std::move(given));
    return description;
}

replica_layout lay_out(composition& whole) {
    replica_layout layout;
    place_findings(whole);
    whole.for_each_foreign([&](plugin_parts const& parts) {
        layout.foreign += "; plugin " + parts.name + " asked for " + std::to_string(bytes_of(whole, parts));
    });
    lay_out_parameters(whole, layout);
    layout.staging_parts = lay_out_staging(whole);
    layout.staging = layout.plan.add("staging", layout.staging_parts.bytes);
    if (whole.training() && !whole.operations->host_memory)
        layout.inbox = layout.plan.add("staging", layout.staging_parts.bytes);
    lay_out_encoder(whole, layout);
    lay_out_taps(whole, layout);
    lay_out_vectors(whole, layout);
    place_parts(layout.plan, whole.modalities);
    place_parts(layout.plan, whole.objectives);
    return layout;
}

void allocate(replica_layout const& layout, std::function<void()> const& body) {
    try {
        body();
    } catch (error const& failure) {
        if (failure.status != uform_status_out_of_memory_k)
            throw;
        std::string planned;
        for (memory_plan::share const& one : layout.plan.shares())
            planned += (planned.empty() ? "" : ", ") + one.purpose + " " + std::to_string(one.bytes);
        fail(failure.status, failure.message, "; one device's plan: ", planned, layout.foreign);
    }
}

} // namespace uform

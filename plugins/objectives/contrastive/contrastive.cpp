#include "contrastive.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <new>

#include "config.h"
#include "plugins/objectives/pair_derivation.h"
#include "state.h"

namespace uform {

namespace contrastive {
namespace {

/** Asks the host for arrays one after another and remembers the first refusal. */
class layout_request {
public:
    using reserve_t = uform_status_t (*)(uform_host_t*, size_t bytes, size_t* offset);

    layout_request(uform_host_t* host, reserve_t reserve) : host_(host), reserve_(reserve) {}

    size_t operator()(size_t count, size_t element_bytes) {
        size_t offset = 0;
        if (status_ == uform_status_success_k)
            status_ = reserve_(host_, count * element_bytes, &offset);
        return offset;
    }

    uform_status_t status() const { return status_; }

private:
    uform_host_t* host_;
    reserve_t reserve_;
    uform_status_t status_ = uform_status_success_k;
};

uform_status_t declare_staging(state& self, uform_declare_t const& declare) {
    layout_request reserve(declare.host, declare.staging);
    staging_layout& staging = self.staging;
    staging.counts = reserve(3, sizeof(uint32_t));
    staging.scale = reserve(1, sizeof(float));
    staging.slots = reserve(self.most.units, sizeof(uint32_t));
    staging.modalities = reserve(self.most.units, sizeof(uint32_t));
    staging.sides = reserve(self.most.units, sizeof(uint8_t));
    staging.targets = reserve(self.most.units, sizeof(uint8_t));
    staging.rows = reserve(self.most.rows, sizeof(uint32_t));
    staging.row_groups = reserve(self.most.rows, sizeof(uint32_t));
    staging.edge_offsets = reserve(size_t(self.most.rows) + 1, sizeof(uint32_t));
    staging.edge_units = reserve(self.most.edges, sizeof(uint32_t));
    staging.edge_classes = reserve(self.most.edges, sizeof(uint8_t));
    staging.edge_weights = reserve(self.most.edges, sizeof(float));
    return reserve.status();
}

/** The widest of the prefixes that are shorter than a bag's vector; 0: none is. */
uint32_t widest_shorter(uform_contrastive_t const& config, uint32_t hidden) {
    int32_t const* const end = config.matryoshka_dimensions + config.matryoshka_count;
    int32_t const* const whole = std::lower_bound(config.matryoshka_dimensions, end, static_cast<int32_t>(hidden));
    return whole == config.matryoshka_dimensions ? 0 : static_cast<uint32_t>(whole[-1]);
}

uform_status_t declare_workspace(state& self, uint32_t hidden, uform_declare_t const& declare) {
    layout_request reserve(declare.host, declare.workspace);
    workspace_layout& workspace = self.workspace;
    if (uint32_t const width = widest_shorter(self.config, hidden)) {
        workspace.vectors = reserve(size_t(self.most.units) * width, sizeof(float));
        workspace.gradient = reserve(size_t(self.most.units) * width, sizeof(float));
        workspace.lengths = reserve(self.most.units, sizeof(float));
    }
    workspace.row_logs = reserve(self.most.rows, sizeof(float));
    workspace.row_forces = reserve(self.most.rows, sizeof(float));
    auto const widest = static_cast<uint32_t>(self.config.matryoshka_dimensions[self.config.matryoshka_count - 1]);
    workspace.pairs_bytes =
        declare.operations->pairs_workspace_bytes(self.most.units, self.most.rows, self.most.edges, widest,
                                                  static_cast<uint32_t>(self.config.temperature_groups));
    workspace.pairs = reserve(workspace.pairs_bytes, 1);
    return reserve.status();
}

uform_status_t declare_parameters(state& self, uform_declare_t const& declare) {
    auto const groups = static_cast<uint32_t>(self.config.temperature_groups);
    uform_parameter_request_t temperature{};
    temperature.name = "log_inverse_temperature";
    temperature.rows = groups;
    temperature.kind = uform_parameter_kind_plain_k;
    temperature.value = std::log(self.config.inverse_temperature);
    temperature.minimum = std::log(min_inverse_temperature_k);
    temperature.maximum = std::log(max_inverse_temperature(self.config.pair_loss));
    uform_parameter_request_t bias{};
    bias.name = "bias";
    bias.rows = groups;
    bias.kind = uform_parameter_kind_plain_k;
    bias.value = self.config.bias;
    uform_status_t const status = declare.parameter(declare.host, &temperature, &self.log_inverse_temperature);
    return status != uform_status_success_k ? status : declare.parameter(declare.host, &bias, &self.bias);
}

uform_status_t declare_all(state& self, uform_run_t const& run, uform_declare_t const& declare) {
    uform_status_t status = declare_parameters(self, declare);
    if (status == uform_status_success_k)
        status = declare.term(declare.host, "contrastive_loss", 1, &self.term);
    if (status == uform_status_success_k)
        status = declare_staging(self, declare);
    if (status == uform_status_success_k)
        status = declare_workspace(self, run.hidden, declare);
    return status;
}

/** So that planning a step allocates nothing. */
void reserve(plan_scratch& scratch, capacities const& most, uint32_t devices) {
    scratch.counts.resize(most.units);
    scratch.visible.resize(most.units);
    scratch.unit_of.resize(most.units);
    scratch.bag_at.resize(most.rows);
    scratch.row_bags.reserve(most.rows);
    scratch.row_slots.resize(size_t(devices) * most.rows);
    scratch.row_sets.reserve(most.rows);
    scratch.row_edges.reserve(most.units);
}

uform_status_t create(void const* config, uform_run_t const* run, uform_declare_t const* declare, void** made) {
    try {
        auto self = std::make_unique<state>();
        self->config = *static_cast<uform_contrastive_t const*>(config);
        uint64_t const units = uint64_t(run->world_devices) * run->bags_capacity;
        uint64_t const edges = uint64_t(self->config.max_edges_per_device) * run->devices;
        if (units > UINT32_MAX || edges > UINT32_MAX)
            return declare->fail(declare->host, uform_status_invalid_argument_k,
                                 "Contrastive: the world's bags or the edges of a call pass 2^32");
        self->most = {static_cast<uint32_t>(units), run->bags_capacity, static_cast<uint32_t>(edges)};
        reserve(self->scratch, self->most, run->devices);
        uform_status_t const status = declare_all(*self, *run, *declare);
        if (status == uform_status_success_k)
            *made = self.release();
        return status;
    } catch (std::bad_alloc const&) {
        return declare->fail(declare->host, uform_status_out_of_memory_k,
                             "Contrastive: the host has no memory left for the plan");
    }
}

void destroy(void* self) { delete static_cast<state*>(self); }

size_t covered_capacity(void*) { return 0; }

template <typename value_at> value_at const* staged(uform_pass_t const& pass, size_t offset) {
    return reinterpret_cast<value_at const*>(pass.staging + offset);
}

float* floats(uform_pass_t const& pass, size_t offset) { return reinterpret_cast<float*>(pass.workspace + offset); }

/** The vectors of a prefix that is shorter than they are, scaled to unit length again. */
uform_prefix_t describe_prefix(state const& self, uform_pass_t const& pass, uint32_t width) {
    uform_prefix_t prefix{};
    prefix.stride = pass.run->hidden;
    prefix.width = width;
    prefix.normalize = 1;
    prefix.capacity = self.most.units;
    prefix.active = self.most.units;
    prefix.count = staged<uint32_t>(pass, self.staging.counts);
    prefix.indices = staged<uint32_t>(pass, self.staging.slots);
    prefix.source = pass.world_bags;
    prefix.vectors = floats(pass, self.workspace.vectors);
    prefix.lengths = floats(pass, self.workspace.lengths);
    prefix.vectors_gradient = floats(pass, self.workspace.gradient);
    prefix.source_gradient = pass.world_bags_gradient;
    return prefix;
}

/** The pairs of one prefix. Whole vectors are read, and their gradients added up, where the world's bags lie. */
uform_pairs_t describe_pairs(state const& self, uform_pass_t const& pass, uint32_t width) {
    bool const whole = width == pass.run->hidden;
    staging_layout const& staging = self.staging;
    workspace_layout const& workspace = self.workspace;
    uform_pairs_t pairs{};
    pairs.width = width;
    pairs.units_capacity = self.most.units;
    pairs.rows_capacity = self.most.rows;
    pairs.edges_capacity = self.most.edges;
    pairs.units_active = self.most.units;
    pairs.rows_active = self.most.rows;
    pairs.groups = static_cast<uint32_t>(self.config.temperature_groups);
    pairs.counts = staged<uint32_t>(pass, staging.counts);
    pairs.indices = whole ? staged<uint32_t>(pass, staging.slots) : nullptr;
    pairs.vectors = whole ? pass.world_bags : floats(pass, workspace.vectors);
    pairs.rows = staged<uint32_t>(pass, staging.rows);
    pairs.row_groups = staged<uint32_t>(pass, staging.row_groups);
    pairs.modalities = staged<uint32_t>(pass, staging.modalities);
    pairs.sides = staged<uint8_t>(pass, staging.sides);
    pairs.targets = staged<uint8_t>(pass, staging.targets);
    pairs.edge_offsets = staged<uint32_t>(pass, staging.edge_offsets);
    pairs.edge_units = staged<uint32_t>(pass, staging.edge_units);
    pairs.edge_classes = staged<uint8_t>(pass, staging.edge_classes);
    pairs.edge_weights = staged<float>(pass, staging.edge_weights);
    pairs.form = self.config.pair_loss;
    pairs.negatives = self.config.negatives;
    pairs.scope = self.config.ambient_scope;
    pairs.ambient_weight = static_cast<float>(self.config.ambient_repulsion_weight);
    pairs.log_inverse_temperature = pass.weights[self.log_inverse_temperature];
    pairs.bias = pass.weights[self.bias];
    pairs.scale = staged<float>(pass, staging.scale);
    pairs.loss = pass.terms[self.term];
    pairs.row_losses = pass.row_losses;
    pairs.row_losses_scale = 1.0f / static_cast<float>(self.config.matryoshka_count);
    pairs.row_logs = floats(pass, workspace.row_logs);
    pairs.row_forces = floats(pass, workspace.row_forces);
    pairs.gradient = whole ? pass.world_bags_gradient : floats(pass, workspace.gradient);
    if (pass.backward) {
        pairs.log_inverse_temperature_gradient = pass.gradients[self.log_inverse_temperature];
        pairs.bias_gradient = pass.gradients[self.bias];
    }
    pairs.workspace = pass.workspace + workspace.pairs;
    pairs.workspace_bytes = workspace.pairs_bytes;
    return pairs;
}

uform_status_t score_pairs(state const& self, uform_pass_t const& pass, uint32_t width) {
    uform_pairs_t const pairs = describe_pairs(self, pass, width);
    uform_status_t const status = pass.operations->pairs_forward(pass.stream, &pairs);
    return status == uform_status_success_k && pass.backward ? pass.operations->pairs_backward(pass.stream, &pairs)
                                                             : status;
}

uform_status_t score_prefix(state const& self, uform_pass_t const& pass, uint32_t width) {
    if (width == pass.run->hidden)
        return score_pairs(self, pass, width);
    uform_prefix_t const prefix = describe_prefix(self, pass, width);
    uform_status_t status = pass.operations->prefix_forward(pass.stream, &prefix);
    if (status == uform_status_success_k)
        status = score_pairs(self, pass, width);
    return status == uform_status_success_k && pass.backward ? pass.operations->prefix_backward(pass.stream, &prefix)
                                                             : status;
}

uform_status_t forward_backward(void* opaque, uform_pass_t const* pass) {
    state const& self = *static_cast<state const*>(opaque);
    for (int32_t place = 0; place < self.config.matryoshka_count; ++place) {
        auto const width = static_cast<uint32_t>(self.config.matryoshka_dimensions[place]);
        uform_status_t const status = score_prefix(self, *pass, width);
        if (status != uform_status_success_k)
            return status;
    }
    return uform_status_success_k;
}

} // namespace
} // namespace contrastive

uform_objective_plugin_t const contrastive_plugin = {
    .abi_version = UFORM_PLUGIN_ABI_VERSION,
    .bytes = sizeof(uform_objective_plugin_t),
    .name = "contrastive",
    .taps = uform_tap_world_bags_k,
    .capturable = 1,
    .fields = contrastive::fields,
    .fields_count = contrastive::fields_count,
    .config_bytes = sizeof(uform_contrastive_t),
    .derive = contrastive::derive,
    .create = contrastive::create,
    .destroy = contrastive::destroy,
    .covered_capacity = contrastive::covered_capacity,
    .plan = contrastive::plan,
    .forward_backward = contrastive::forward_backward,
    .extra_columns = nullptr,
    .extra_fill = nullptr,
    .answer_kind = uform_answer_kind_none_k,
    .infer = nullptr,
    .columns_forward = nullptr,
    .columns_backward = nullptr,
};

} // namespace uform

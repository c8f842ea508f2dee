#include "late_interaction.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <new>

#include "config.h"
#include "plugins/objectives/pair_derivation.h"
#include "state.h"

namespace uform {

namespace late_interaction {
namespace {

constexpr double projection_deviation_k = 0.02;

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

/** A budget may be larger than anything that a batch can hold. */
uint32_t documents_of_device(uform_late_interaction_t const& config, uform_run_t const& run) {
    return std::min(run.segments_capacity, static_cast<uint32_t>(config.max_documents_per_device));
}

/** Declares what one run needs; the first refusal ends it. */
class declaration {
public:
    declaration(state& self, uform_run_t const& run, uform_declare_t const& declare)
        : self_(self), config_(self.config), run_(run), declare_(declare) {}

    uform_status_t all() {
        uform_status_t status = parameters();
        if (status == uform_status_success_k)
            status = declare_.vectors(declare_.host, static_cast<uint32_t>(config_.width));
        if (status == uform_status_success_k && run_.training)
            status = terms();
        if (status == uform_status_success_k && run_.training)
            status = staging();
        if (status == uform_status_success_k)
            status = workspace();
        if (status == uform_status_success_k && run_.training)
            status = declare_.notice(declare_.host, notice::bytes(documents_of_device(config_, run_)));
        return status;
    }

private:
    uform_status_t parameters() {
        uform_parameter_request_t temperature{}, bias{}, projection{};
        temperature.name = "log_inverse_temperature";
        temperature.rows = 1;
        temperature.kind = uform_parameter_kind_plain_k;
        temperature.value = std::log(config_.inverse_temperature);
        temperature.minimum = std::log(min_inverse_temperature_k);
        temperature.maximum = std::log(max_inverse_temperature(config_.pair_loss));
        bias.name = "bias";
        bias.rows = 1;
        bias.kind = uform_parameter_kind_plain_k;
        bias.value = config_.bias;
        projection.name = "projection";
        projection.rows = static_cast<uint32_t>(config_.width);
        projection.columns = run_.hidden;
        projection.kind = uform_parameter_kind_matrix_k;
        projection.deviation = projection_deviation_k;
        uform_status_t status = declare_.parameter(declare_.host, &temperature, &self_.log_inverse_temperature);
        if (status == uform_status_success_k)
            status = declare_.parameter(declare_.host, &bias, &self_.bias);
        if (status == uform_status_success_k)
            status = declare_.parameter(declare_.host, &projection, &self_.projection);
        return status;
    }

    /** The loss counts its weight already; that of the count of cut queries is 0. */
    uform_status_t terms() {
        uform_status_t const status = declare_.term(declare_.host, "late_interaction_loss", 1, &self_.loss);
        return status != uform_status_success_k ? status
                                                : declare_.term(declare_.host, "late_interaction.cut", 0, &self_.cut);
    }

    uform_status_t staging() {
        layout_request reserve(declare_.host, declare_.staging);
        capacities const& most = self_.most;
        staging_layout& to = self_.staging;
        to.maxsim_counts = reserve(3, sizeof(uint32_t));
        to.pair_counts = reserve(3, sizeof(uint32_t));
        to.scale = reserve(1, sizeof(float));
        to.cut = reserve(1, sizeof(double));
        to.queries = reserve(most.queries, sizeof(uform_run_of_rows_t));
        to.documents = reserve(most.documents, sizeof(uform_run_of_rows_t));
        to.own = reserve(most.queries, sizeof(uint32_t));
        to.looks = reserve(most.queries, sizeof(uint32_t));
        to.faces = reserve(most.documents, sizeof(uint32_t));
        to.edge_offsets = reserve(size_t(most.queries) + 1, sizeof(uint32_t));
        to.edge_documents = reserve(most.edges, sizeof(uint32_t));
        to.edge_classes = reserve(most.edges, sizeof(uint8_t));
        to.edge_weights = reserve(most.edges, sizeof(float));
        return reserve.status();
    }

    uform_status_t workspace() {
        layout_request reserve(declare_.host, declare_.workspace);
        uform_operations_t const& operations = *declare_.operations;
        capacities const& most = self_.most;
        auto const width = static_cast<uint32_t>(config_.width);
        workspace_layout& to = self_.workspace;
        to.lengths = reserve(run_.columns_capacity, sizeof(float));
        if (!run_.training)
            return reserve.status();
        to.vectors_bytes = operations.vectors_workspace_bytes(run_.hidden, width, run_.columns_capacity);
        to.vectors = reserve(to.vectors_bytes, 1);
        to.similarities = reserve(size_t(most.queries) * most.documents, sizeof(float));
        to.coefficients = reserve(size_t(most.queries) * most.documents, sizeof(float));
        to.places = reserve(size_t(most.documents) * most.query_vectors, sizeof(uint16_t));
        to.maxsim_bytes =
            operations.maxsim_workspace_bytes(width, most.query_vectors, most.documents, most.document_vectors);
        to.maxsim = reserve(to.maxsim_bytes, 1);
        to.pairs_bytes = operations.similarity_pairs_workspace_bytes(most.queries, most.edges);
        to.pairs = reserve(to.pairs_bytes, 1);
        return reserve.status();
    }

    state& self_;
    uform_late_interaction_t const& config_;
    uform_run_t const& run_;
    uform_declare_t const& declare_;
};

/** False where a count does not fit. */
bool find_capacities(uform_late_interaction_t const& config, uform_run_t const& run, capacities& most) {
    uint64_t const documents = uint64_t(documents_of_device(config, run)) * run.world_devices;
    uint64_t const document_vectors = uint64_t(config.max_document_tokens_per_device) * run.world_devices;
    uint64_t const columns = uint64_t(run.columns_capacity) * run.world_devices;
    uint64_t const edges = uint64_t(config.max_edges_per_device) * run.devices;
    uint64_t const queries = std::min<uint64_t>(run.segments_capacity, config.max_query_tokens_per_device);
    uint64_t const query_vectors = std::min<uint64_t>(run.columns_capacity, config.max_query_tokens_per_device);
    if (documents > UINT32_MAX || columns > UINT32_MAX || edges > UINT32_MAX)
        return false;
    most = {static_cast<uint32_t>(queries), static_cast<uint32_t>(query_vectors), static_cast<uint32_t>(documents),
            static_cast<uint32_t>(std::min(document_vectors, columns)), static_cast<uint32_t>(edges)};
    return true;
}

uform_status_t create(void const* config, uform_run_t const* run, uform_declare_t const* declare, void** made) {
    try {
        auto self = std::make_unique<state>();
        self->config = *static_cast<uform_late_interaction_t const*>(config);
        if (!find_capacities(self->config, *run, self->most))
            return declare->fail(declare->host, uform_status_invalid_argument_k,
                                 "LateInteraction: the world's documents or columns, or the edges of a call pass 2^32");
        if (run->training && run->row_columns > UFORM_RUN_CAPACITY)
            return declare->fail(declare->host, uform_status_invalid_argument_k,
                                 "BatchShape.max_columns_per_row: late interaction takes at most 65535 columns");
        self->scratch.answer_offsets.resize(run->devices);
        uform_status_t const status = declaration(*self, *run, *declare).all();
        if (status == uform_status_success_k)
            *made = self.release();
        return status;
    } catch (std::bad_alloc const&) {
        return declare->fail(declare->host, uform_status_out_of_memory_k,
                             "LateInteraction: the host has no memory left for the plan");
    }
}

void destroy(void* self) { delete static_cast<state*>(self); }

size_t covered_capacity(void*) { return 0; }

template <typename value_at> value_at const* staged(uform_pass_t const& pass, size_t offset) {
    return reinterpret_cast<value_at const*>(pass.staging + offset);
}

float* floats(uform_pass_t const& pass, size_t offset) { return reinterpret_cast<float*>(pass.workspace + offset); }

uform_vectors_t describe_vectors(state const& self, uform_pass_t const& pass) {
    uform_vectors_t vectors{};
    vectors.columns = pass.columns;
    vectors.hidden = pass.run->hidden;
    vectors.width = static_cast<uint32_t>(self.config.width);
    vectors.states = pass.states;
    vectors.weight = pass.weights[self.projection];
    vectors.vectors = pass.vectors;
    vectors.lengths = floats(pass, self.workspace.lengths);
    vectors.workspace = pass.workspace + self.workspace.vectors;
    vectors.workspace_bytes = self.workspace.vectors_bytes;
    return vectors;
}

uform_maxsim_t describe_maxsim(state const& self, uform_pass_t const& pass) {
    capacities const& most = self.most;
    uform_maxsim_t maxsim{};
    maxsim.width = static_cast<uint32_t>(self.config.width);
    maxsim.vectors_capacity = pass.run->world_devices * pass.run->columns_capacity;
    maxsim.queries_capacity = most.queries;
    maxsim.query_vectors_capacity = most.query_vectors;
    maxsim.documents_capacity = most.documents;
    maxsim.document_vectors_capacity = most.document_vectors;
    maxsim.longest = pass.run->row_columns;
    maxsim.counts = staged<uint32_t>(pass, self.staging.maxsim_counts);
    maxsim.vectors = pass.world_vectors;
    maxsim.queries = staged<uform_run_of_rows_t>(pass, self.staging.queries);
    maxsim.documents = staged<uform_run_of_rows_t>(pass, self.staging.documents);
    maxsim.similarities = floats(pass, self.workspace.similarities);
    maxsim.places = reinterpret_cast<uint16_t*>(pass.workspace + self.workspace.places);
    maxsim.coefficients = floats(pass, self.workspace.coefficients);
    maxsim.gradient = pass.world_vectors_gradient;
    maxsim.workspace = pass.workspace + self.workspace.maxsim;
    maxsim.workspace_bytes = self.workspace.maxsim_bytes;
    return maxsim;
}

uform_similarity_pairs_t describe_pairs(state const& self, uform_pass_t const& pass) {
    staging_layout const& staging = self.staging;
    uform_similarity_pairs_t pairs{};
    pairs.rows_capacity = self.most.queries;
    pairs.candidates_capacity = self.most.documents;
    pairs.edges_capacity = self.most.edges;
    pairs.counts = staged<uint32_t>(pass, staging.pair_counts);
    pairs.similarities = floats(pass, self.workspace.similarities);
    pairs.own = staged<uint32_t>(pass, staging.own);
    pairs.looks = staged<uint32_t>(pass, staging.looks);
    pairs.faces = staged<uint32_t>(pass, staging.faces);
    pairs.edge_offsets = staged<uint32_t>(pass, staging.edge_offsets);
    pairs.edge_candidates = staged<uint32_t>(pass, staging.edge_documents);
    pairs.edge_classes = staged<uint8_t>(pass, staging.edge_classes);
    pairs.edge_weights = staged<float>(pass, staging.edge_weights);
    pairs.form = self.config.pair_loss;
    pairs.ambient_weight = static_cast<float>(self.config.ambient_repulsion_weight);
    pairs.log_inverse_temperature = static_cast<float const*>(pass.weights[self.log_inverse_temperature]);
    pairs.bias = static_cast<float const*>(pass.weights[self.bias]);
    pairs.scale = staged<float>(pass, staging.scale);
    pairs.loss = pass.terms[self.loss];
    pairs.row_losses = pass.row_losses;
    if (pass.backward) {
        pairs.coefficients = floats(pass, self.workspace.coefficients);
        pairs.log_inverse_temperature_gradient = pass.gradients[self.log_inverse_temperature];
        pairs.bias_gradient = pass.gradients[self.bias];
    }
    pairs.workspace = pass.workspace + self.workspace.pairs;
    pairs.workspace_bytes = self.workspace.pairs_bytes;
    return pairs;
}

uform_status_t columns_forward(void* opaque, uform_pass_t const* pass) {
    uform_vectors_t const vectors = describe_vectors(*static_cast<state const*>(opaque), *pass);
    return pass->operations->vectors_forward(pass->stream, &vectors);
}

uform_status_t forward_backward(void* opaque, uform_pass_t const* pass) {
    state const& self = *static_cast<state const*>(opaque);
    uform_operations_t const& operations = *pass->operations;
    uform_maxsim_t const maxsim = describe_maxsim(self, *pass);
    uform_similarity_pairs_t const pairs = describe_pairs(self, *pass);
    uform_status_t status = operations.memory_copy(pass->stream, pass->terms[self.cut],
                                                   staged<double>(*pass, self.staging.cut), sizeof(double));
    if (status == uform_status_success_k)
        status = operations.maxsim_forward(pass->stream, &maxsim);
    if (status == uform_status_success_k)
        status = operations.similarity_pairs(pass->stream, &pairs);
    if (status == uform_status_success_k && pass->backward)
        status = operations.maxsim_backward(pass->stream, &maxsim);
    return status;
}

uform_status_t columns_backward(void* opaque, uform_pass_t const* pass) {
    state const& self = *static_cast<state const*>(opaque);
    uform_vectors_t vectors = describe_vectors(self, *pass);
    vectors.vectors_gradient =
        pass->world_vectors_gradient + size_t(pass->rank) * pass->run->columns_capacity * vectors.width;
    vectors.gradient = pass->states_gradient;
    vectors.weight_gradient = pass->gradients[self.projection];
    return pass->operations->vectors_backward(pass->stream, &vectors);
}

uform_status_t infer(void* opaque, uform_pass_t const* pass, uform_answer_t* answer) {
    state const& self = *static_cast<state const*>(opaque);
    answer->values = pass->vectors;
    answer->width = static_cast<uint32_t>(self.config.width);
    answer->offsets = self.scratch.answer_offsets[pass->device].data();
    return uform_status_success_k;
}

} // namespace
} // namespace late_interaction

uform_objective_plugin_t const late_interaction_plugin = {
    .abi_version = UFORM_PLUGIN_ABI_VERSION,
    .bytes = sizeof(uform_objective_plugin_t),
    .name = "late_interaction",
    .taps = uform_tap_world_vectors_k,
    .capturable = 1,
    .fields = late_interaction::fields,
    .fields_count = late_interaction::fields_count,
    .config_bytes = sizeof(uform_late_interaction_t),
    .derive = late_interaction::derive,
    .create = late_interaction::create,
    .destroy = late_interaction::destroy,
    .covered_capacity = late_interaction::covered_capacity,
    .plan = late_interaction::plan,
    .forward_backward = late_interaction::forward_backward,
    .extra_columns = nullptr,
    .extra_fill = nullptr,
    .answer_kind = uform_answer_kind_tokens_k,
    .infer = late_interaction::infer,
    .columns_forward = late_interaction::columns_forward,
    .columns_backward = late_interaction::columns_backward,
};

} // namespace uform

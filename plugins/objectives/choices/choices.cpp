#include "choices.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <initializer_list>
#include <memory>
#include <new>

#include "config.h"
#include "offered.h"
#include "state.h"

namespace uform {

namespace choices {
namespace {

constexpr double deviation_k = 0.02;

/** An array that is asked for, and where the host says that it lies. */
struct array_request {
    size_t* offset;
    size_t bytes;
};

uform_status_t reserve(uform_host_t* host, uform_status_t (*from)(uform_host_t*, size_t, size_t*),
                       std::initializer_list<array_request> arrays) {
    uform_status_t status = uform_status_success_k;
    for (array_request const& one : arrays)
        if (status == uform_status_success_k)
            status = from(host, one.bytes, one.offset);
    return status;
}

uform_status_t declare_parameters(state& self, uform_run_t const& run, uform_declare_t const& declare) {
    uform_parameter_request_t vector{};
    vector.name = "vector";
    vector.rows = run.hidden;
    vector.kind = uform_parameter_kind_plain_k;
    vector.deviation = deviation_k;
    uform_parameter_request_t temperature{};
    temperature.name = "log_inverse_temperature";
    temperature.rows = 1;
    temperature.kind = uform_parameter_kind_plain_k;
    temperature.value = std::log(self.config.inverse_temperature);
    temperature.minimum = std::log(min_inverse_temperature_k);
    temperature.maximum = std::log(max_inverse_temperature_k);
    uform_status_t const status = declare.parameter(declare.host, &vector, &self.vector);
    return status != uform_status_success_k
               ? status
               : declare.parameter(declare.host, &temperature, &self.log_inverse_temperature);
}

uform_status_t declare_arrays(state& self, uform_run_t const& run, uform_declare_t const& declare) {
    uform_operations_t const& operations = *declare.operations;
    size_t const items = self.items, rows = self.rows, trained_rows = run.training ? rows : 0;
    staging_layout& staging = self.staging;
    workspace_layout& workspace = self.workspace;
    workspace.head_bytes = operations.choices_head_workspace_bytes(run.hidden, self.items, self.rows);
    uform_status_t const status = reserve(declare.host, declare.staging,
                                          {{&staging.counts, 2 * sizeof(uint32_t)},
                                           {&staging.scale, sizeof(float)},
                                           {&staging.weight, sizeof(float)},
                                           {&staging.offsets, (items + 1) * sizeof(uint32_t)},
                                           {&staging.columns, rows * sizeof(uint32_t)},
                                           {&staging.targets, trained_rows * sizeof(float)}});
    if (status != uform_status_success_k)
        return status;
    return reserve(declare.host, declare.workspace,
                   {{&workspace.rows, rows * operations.state_bytes(run.hidden)},
                    {&workspace.gradient, trained_rows * run.hidden * sizeof(float)},
                    {&workspace.probabilities, rows * sizeof(float)},
                    {&workspace.head, workspace.head_bytes}});
}

uform_status_t declare_all(state& self, uform_run_t const& run, uform_declare_t const& declare) {
    uform_status_t status = declare_parameters(self, run, declare);
    if (status == uform_status_success_k && run.training)
        status = declare.term(declare.host, "choices_loss", self.config.weight, &self.term);
    return status == uform_status_success_k ? declare_arrays(self, run, declare) : status;
}

uform_status_t create(void const* config, uform_run_t const* run, uform_declare_t const* declare, void** made) {
    try {
        auto self = std::make_unique<state>();
        self->config = *static_cast<uform_choices_t const*>(config);
        self->items = run->segments_capacity;
        // A choice takes a column at least, and in inference an item is offered as many as its row has room for.
        uint64_t const most = run->training ? uint64_t(self->items) * run->choices_capacity : UINT32_MAX;
        self->rows = static_cast<uint32_t>(std::min<uint64_t>(most, run->columns_capacity));
        if (!run->training)
            self->segment_rows.assign(run->devices, std::vector<uint32_t>(size_t(self->items) + 1));
        uform_status_t const status = declare_all(*self, *run, *declare);
        if (status == uform_status_success_k)
            *made = self.release();
        return status;
    } catch (std::bad_alloc const&) {
        return declare->fail(declare->host, uform_status_out_of_memory_k,
                             "Choices: the host has no memory left for the plan");
    }
}

void destroy(void* self) { delete static_cast<state*>(self); }

size_t covered_capacity(void*) { return 0; }

/** Choices are never cut: the first that passes the row is refused. */
uform_status_t refuse_choice(uform_extra_t const& extra, offered const& own, char* message, size_t message_bytes) {
    uint64_t choice = 0;
    while (own.columns_before(choice + 1) <= extra.limit)
        ++choice;
    char place[64];
    if (extra.choices->item_offsets)
        std::snprintf(place, sizeof(place), "choices[%u][%llu]", extra.content,
                      static_cast<unsigned long long>(choice));
    else
        std::snprintf(place, sizeof(place), "choices[%llu] of item %u", static_cast<unsigned long long>(choice),
                      extra.content);
    std::snprintf(message, message_bytes,
                  "%s: its %llu bytes do not fit, since a row has %u columns for an item's choices, of which those up "
                  "to it take %llu; choices are never cut",
                  place, static_cast<unsigned long long>(own.bytes(choice)), extra.limit,
                  static_cast<unsigned long long>(own.columns_before(choice + 1)));
    return uform_status_invalid_argument_k;
}

uform_status_t extra_columns(void*, uform_extra_t const* extra, uint32_t* columns, char* message,
                             size_t message_bytes) {
    offered const own(extra->choices, extra->content, extra->modality);
    if (own.columns() > extra->limit)
        return refuse_choice(*extra, own, message, message_bytes);
    *columns = static_cast<uint32_t>(own.columns());
    return uform_status_success_k;
}

uform_status_t extra_fill(void*, uform_extra_t const* extra, uint16_t* codes) {
    offered const own(extra->choices, extra->content, extra->modality);
    *codes++ = uform_text_code_separator_k;
    for (uint64_t choice = 0; choice < own.count; ++choice) {
        *codes++ = uform_text_code_choice_k;
        codes = std::copy_n(own.data(choice), own.bytes(choice), codes);
    }
    return uform_status_success_k;
}

template <typename value_at> value_at const* staged(uform_pass_t const& pass, size_t offset) {
    return reinterpret_cast<value_at const*>(pass.staging + offset);
}

/** Bounds of a device's items and choices that depend on its active columns alone, as captured work must. */
uint32_t active(uint32_t capacity, uform_pass_t const& pass) { return std::min(capacity, pass.columns.active); }

uform_rows_t rows_of(state const& self, uform_pass_t const& pass) {
    uform_rows_t rows{};
    rows.hidden = pass.run->hidden;
    rows.capacity = self.rows;
    rows.active = active(self.rows, pass);
    rows.count = staged<uint32_t>(pass, self.staging.counts) + 1;
    rows.indices = staged<uint32_t>(pass, self.staging.columns);
    rows.states = pass.states;
    rows.rows = pass.workspace + self.workspace.rows;
    rows.rows_gradient = reinterpret_cast<float const*>(pass.workspace + self.workspace.gradient);
    rows.gradient = pass.states_gradient;
    rows.accumulate = pass.states_written;
    rows.columns_active = pass.columns.active;
    return rows;
}

uform_choices_head_t head_of(state const& self, uform_pass_t const& pass) {
    uform_choices_head_t head{};
    head.hidden = pass.run->hidden;
    head.items_capacity = self.items;
    head.items_active = active(self.items, pass);
    head.rows_capacity = self.rows;
    head.rows_active = active(self.rows, pass);
    head.counts = staged<uint32_t>(pass, self.staging.counts);
    head.offsets = staged<uint32_t>(pass, self.staging.offsets);
    head.rows = pass.workspace + self.workspace.rows;
    head.vector = static_cast<float const*>(pass.weights[self.vector]);
    head.log_inverse_temperature = static_cast<float const*>(pass.weights[self.log_inverse_temperature]);
    head.probabilities = reinterpret_cast<float*>(pass.workspace + self.workspace.probabilities);
    head.workspace = pass.workspace + self.workspace.head;
    head.workspace_bytes = self.workspace.head_bytes;
    return head;
}

uform_status_t forward_backward(void* opaque, uform_pass_t const* pass) {
    state const& self = *static_cast<state const*>(opaque);
    uform_rows_t const rows = rows_of(self, *pass);
    uform_choices_head_t head = head_of(self, *pass);
    head.targets = staged<float>(*pass, self.staging.targets);
    head.scale = staged<float>(*pass, self.staging.scale);
    head.weight = staged<float>(*pass, self.staging.weight);
    head.loss = pass->terms[self.term];
    if (pass->backward) {
        head.rows_gradient = reinterpret_cast<float*>(pass->workspace + self.workspace.gradient);
        head.vector_gradient = pass->gradients[self.vector];
        head.log_inverse_temperature_gradient = pass->gradients[self.log_inverse_temperature];
    }
    uform_status_t status = pass->operations->rows_gather(pass->stream, &rows);
    if (status == uform_status_success_k)
        status = pass->operations->choices_head(pass->stream, &head);
    if (status == uform_status_success_k && pass->backward)
        status = pass->operations->rows_scatter(pass->stream, &rows);
    return status;
}

uform_status_t infer(void* opaque, uform_pass_t const* pass, uform_answer_t* answer) {
    state const& self = *static_cast<state const*>(opaque);
    uform_rows_t const rows = rows_of(self, *pass);
    uform_choices_head_t const head = head_of(self, *pass);
    uform_status_t const status = pass->operations->rows_gather(pass->stream, &rows);
    *answer = {head.probabilities, 1, self.segment_rows[pass->device].data()};
    return status == uform_status_success_k ? pass->operations->choices_head(pass->stream, &head) : status;
}

} // namespace
} // namespace choices

uform_objective_plugin_t const choices_plugin = {
    .abi_version = UFORM_PLUGIN_ABI_VERSION,
    .bytes = sizeof(uform_objective_plugin_t),
    .name = "choices",
    .taps = uform_tap_columns_k,
    .capturable = 1,
    .fields = choices::fields,
    .fields_count = choices::fields_count,
    .config_bytes = sizeof(uform_choices_t),
    .derive = choices::derive,
    .create = choices::create,
    .destroy = choices::destroy,
    .covered_capacity = choices::covered_capacity,
    .plan = choices::plan,
    .forward_backward = choices::forward_backward,
    .extra_columns = choices::extra_columns,
    .extra_fill = choices::extra_fill,
    .answer_kind = uform_answer_kind_choices_k,
    .infer = choices::infer,
};

} // namespace uform

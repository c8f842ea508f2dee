#include "plugins/modalities/text/text.h"

#include <algorithm>
#include <cstdio>
#include <memory>
#include <new>

namespace uform {

namespace text {
namespace {

constexpr double deviation_k = 0.02;

/** What one run needs of texts. */
struct state {
    uint32_t hidden = 0;
    uint32_t table = 0;
    size_t targets = 0;   /* staging: the bytes that were covered, in the order covered */
    size_t workspace = 0; /* of one operation at a time */
    size_t workspace_bytes = 0;
};

uform_status_t derive(void*, uform_run_t const*, uform_declare_t const*, uint32_t* enabled) {
    *enabled = 1;
    return uform_status_success_k;
}

uform_status_t declare_all(state& self, uform_run_t const& run, uform_declare_t const& declare) {
    uform_operations_t const& operations = *declare.operations;
    uform_parameter_request_t const table{
        "table", uform_text_code_count_k, run.hidden, uform_parameter_kind_embedding_k, deviation_k, 0, 0, 0};
    self.workspace_bytes =
        operations.embedding_workspace_bytes(run.hidden, uform_text_code_count_k, run.columns_capacity);
    uform_status_t status = declare.parameter(declare.host, &table, &self.table);
    if (status == uform_status_success_k && run.training) {
        self.workspace_bytes =
            std::max(self.workspace_bytes, operations.bytes_head_workspace_bytes(run.hidden, run.columns_capacity));
        status = declare.column_staging(declare.host, uform_staging_unit_covered_k, 1, &self.targets);
    }
    if (status == uform_status_success_k)
        status = declare.workspace(declare.host, self.workspace_bytes, &self.workspace);
    return status;
}

uform_status_t create(void const*, uform_run_t const* run, uform_declare_t const* declare, void** made) {
    std::unique_ptr<state> self(new (std::nothrow) state);
    if (!self)
        return declare->fail(declare->host, uform_status_out_of_memory_k, "text: the host has no memory left");
    self->hidden = run->hidden;
    uform_status_t const status = declare_all(*self, *run, *declare);
    if (status == uform_status_success_k)
        *made = self.release();
    return status;
}

void destroy(void* self) { delete static_cast<state*>(self); }

/** A text that is too long is cut after a byte, even within a character. */
uform_status_t measure(void*, uform_content_t const* content, uint32_t limit, uform_measure_t* measured, char* message,
                       size_t message_bytes) {
    if (content->rank != 0) {
        std::snprintf(message, message_bytes, "a text is a string or a row of bytes, not an array of %u extents",
                      content->rank);
        return uform_status_invalid_argument_k;
    }
    if (!content->data && content->bytes != 0) {
        std::snprintf(message, message_bytes, "its %llu bytes are a null pointer",
                      static_cast<unsigned long long>(content->bytes));
        return uform_status_invalid_argument_k;
    }
    auto const columns = static_cast<uint32_t>(std::min<uint64_t>(content->bytes, limit));
    measured->columns = columns;
    measured->truncated = content->bytes > limit;
    measured->axes = 1;
    measured->extents[0] = measured->whole[0] = static_cast<uint16_t>(columns);
    return uform_status_success_k;
}

/** Bytes as codes; the two never overlap, which lets the loop be vectorised. */
void widen(uint8_t const* __restrict bytes, size_t count, uint16_t* __restrict codes) {
    for (size_t index = 0; index != count; ++index)
        codes[index] = bytes[index];
}

uform_status_t fill(void*, uform_fill_t const* fill) {
    fill->codes[0] = uform_text_code_marker_k;
    widen(static_cast<uint8_t const*>(fill->content->data), fill->measure->columns, fill->codes + 1);
    return uform_status_success_k;
}

uform_status_t cover(void* self, uform_cover_t const* cover) {
    uint8_t* const targets = cover->staging + static_cast<state const*>(self)->targets + cover->covered;
    for (uint32_t index = 0; index != cover->count; ++index) {
        uint16_t& code = cover->codes[1 + cover->places[index]];
        targets[index] = static_cast<uint8_t>(code);
        if (cover->actions[index] == uform_cover_action_mask_k)
            code = uform_text_code_mask_k;
        else if (cover->actions[index] == uform_cover_action_random_k)
            code = cover->random_bytes[index];
    }
    return uform_status_success_k;
}

uform_status_t finish(void*, uint32_t, uint8_t*, uint32_t, uint32_t) { return uform_status_success_k; }

uform_embedding_t embedding_of(state const& self, uform_pass_t const& pass) {
    uform_embedding_t embedding{};
    embedding.columns = pass.columns;
    embedding.hidden = self.hidden;
    embedding.modality = uform_modality_text_k;
    embedding.table_rows = uform_text_code_count_k;
    embedding.table = pass.weights[self.table];
    embedding.states = pass.states;
    embedding.gradient = pass.states_gradient;
    embedding.workspace = pass.workspace + self.workspace;
    embedding.workspace_bytes = self.workspace_bytes;
    return embedding;
}

uform_status_t embed_forward(void* self, uform_pass_t const* pass) {
    uform_embedding_t const embedding = embedding_of(*static_cast<state const*>(self), *pass);
    return pass->operations->embedding_forward(pass->stream, &embedding);
}

uform_status_t embed_backward(void* opaque, uform_pass_t const* pass) {
    state const& self = *static_cast<state const*>(opaque);
    uform_embedding_t embedding = embedding_of(self, *pass);
    embedding.table_gradient = pass->gradients[self.table];
    return pass->operations->embedding_backward(pass->stream, &embedding);
}

uform_status_t reconstruct(void* opaque, uform_pass_t const* pass, uform_reconstruction_t const* covered) {
    state const& self = *static_cast<state const*>(opaque);
    uform_bytes_head_t head{};
    head.hidden = self.hidden;
    head.capacity = covered->capacity;
    head.active = covered->active;
    head.first = covered->first;
    head.count = covered->count;
    head.rows = covered->rows;
    head.table = pass->weights[self.table];
    head.targets = pass->staging + self.targets;
    head.scale = covered->scale;
    head.weight = covered->weight;
    head.loss = covered->term;
    head.rows_gradient = covered->rows_gradient;
    head.table_gradient = covered->rows_gradient ? pass->gradients[self.table] : nullptr;
    head.workspace = pass->workspace + self.workspace;
    head.workspace_bytes = self.workspace_bytes;
    head.before = covered->before;
    return pass->operations->bytes_head(pass->stream, &head);
}

} // namespace
} // namespace text

uform_modality_plugin_t const text_plugin = {
    .abi_version = UFORM_PLUGIN_ABI_VERSION,
    .bytes = sizeof(uform_modality_plugin_t),
    .name = "text",
    .modality = uform_modality_text_k,
    .cover_kind = uform_cover_kind_bytes_k,
    .fields = nullptr,
    .fields_count = 0,
    .config_bytes = 0,
    .derive = text::derive,
    .create = text::create,
    .destroy = text::destroy,
    .measure = text::measure,
    .fill = text::fill,
    .cover = text::cover,
    .finish = text::finish,
    .embed_forward = text::embed_forward,
    .embed_backward = text::embed_backward,
    .reconstruct = text::reconstruct,
    .capturable = 1,
};

} // namespace uform

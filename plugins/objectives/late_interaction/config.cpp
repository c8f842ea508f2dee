#include "config.h"

#include <algorithm>
#include <iterator>

#include "plugins/objectives/pair_derivation.h"

namespace uform::late_interaction {

namespace {

using config_t = uform_late_interaction_t;

constexpr uform_field_t field_of(char const* name, uform_field_type_t type, size_t offset) {
    return {name, type, offset, 1, 0};
}

} // namespace

uform_field_t const fields[] = {
    field_of("weight", uform_field_type_double_k, offsetof(config_t, weight)),
    field_of("width", uform_field_type_int32_k, offsetof(config_t, width)),
    field_of("inverse_temperature", uform_field_type_double_k, offsetof(config_t, inverse_temperature)),
    field_of("bias", uform_field_type_double_k, offsetof(config_t, bias)),
    field_of("max_query_span", uform_field_type_int32_k, offsetof(config_t, max_query_span)),
    field_of("max_query_tokens_per_device", uform_field_type_int32_k, offsetof(config_t, max_query_tokens_per_device)),
    field_of("max_documents_per_device", uform_field_type_int32_k, offsetof(config_t, max_documents_per_device)),
    field_of("max_document_tokens_per_device", uform_field_type_int32_k,
             offsetof(config_t, max_document_tokens_per_device)),
    field_of("pair_loss", uform_field_type_int32_k, offsetof(config_t, pair_loss)),
    field_of("negatives", uform_field_type_int32_k, offsetof(config_t, negatives)),
    field_of("ambient_repulsion_weight", uform_field_type_double_k, offsetof(config_t, ambient_repulsion_weight)),
    field_of("max_edges_per_device", uform_field_type_int32_k, offsetof(config_t, max_edges_per_device)),
    field_of("ambient_scope", uform_field_type_int32_k, offsetof(config_t, ambient_scope)),
};
std::size_t const fields_count = std::size(fields);

namespace {

constexpr int32_t default_width_k = 128;
constexpr int32_t default_span_k = 128;
constexpr double default_inverse_temperature_k = 20;
/** Vectors are multiplied eight values at a time. */
constexpr int32_t width_step_k = 8;
constexpr int32_t largest_width_k = 4096;

class late_interaction_derivation : public pair_derivation<config_t> {
public:
    late_interaction_derivation(config_t& config, uform_run_t const& run)
        : pair_derivation("LateInteraction", config, run) {}

    /** What is the run's Contrastive's was refused there before, where that is part of the run. */
    late_interaction_derivation& run() {
        check_enumerations();
        derive_weight("weight", config_.weight);
        derive_width();
        derive_form(default_inverse_temperature_k, default_inverse_temperature_k);
        derive_negatives();
        derive_budgets();
        return *this;
    }

private:
    void derive_width() {
        if (config_.width == 0)
            config_.width = default_width_k;
        // Given vectors have the width they have.
        bool const given = static_cast<uint32_t>(config_.width) == run_.hidden && config_.width > 0;
        if (!given &&
            (config_.width < width_step_k || config_.width > largest_width_k || config_.width % width_step_k != 0))
            refuse("width", config_.width, "it must be a multiple of ", width_step_k, " between ", width_step_k,
                   " and ", largest_width_k);
    }

    void derive_budgets() {
        derive_count("max_query_span", config_.max_query_span, default_span_k);
        int64_t const span = std::min<int64_t>(config_.max_query_span, run_.row_columns);
        derive_count("max_query_tokens_per_device", config_.max_query_tokens_per_device,
                     std::min<int64_t>(run_.columns_capacity, span * run_.segments_capacity));
        derive_count("max_documents_per_device", config_.max_documents_per_device, run_.segments_capacity);
        derive_count("max_document_tokens_per_device", config_.max_document_tokens_per_device, run_.columns_capacity);
    }
};

} // namespace

uform_status_t derive(void* config, uform_run_t const* run, uform_declare_t const* declare) {
    return late_interaction_derivation(*static_cast<config_t*>(config), *run).run().answer(*declare);
}

} // namespace uform::late_interaction

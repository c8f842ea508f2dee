#include "config.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <sstream>
#include <string>

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
constexpr double sigmoid_bias_k = -10;
/** A bias is a value of either sign, so a true zero is asked for by a magnitude below this. */
constexpr double smallest_bias_k = 1e-20;
constexpr double largest_bias_k = 1e6;
/** Vectors are multiplied eight values at a time. */
constexpr int32_t width_step_k = 8;
constexpr int32_t largest_width_k = 4096;
constexpr int edges_per_segment_k = 4;

/** Derives one configuration; the first refusal keeps its message and later ones are not looked for. */
class derivation {
public:
    derivation(config_t& config, uform_run_t const& run) : config_(config), run_(run) {}

    /** Empty where everything was accepted. */
    std::string run() {
        derive_weight("weight", config_.weight);
        derive_width();
        derive_form();
        derive_contrastive();
        derive_budgets();
        return message_;
    }

private:
    template <typename value_at, typename... parts_at>
    void refuse(char const* field, value_at value, parts_at const&... why) {
        if (!message_.empty())
            return;
        std::ostringstream text;
        text << "LateInteraction." << field << " is " << value << ": ";
        (text << ... << why);
        message_ = std::move(text).str();
    }

    void derive_weight(char const* field, double& weight) {
        if (!std::isfinite(weight) || !std::isfinite(static_cast<float>(weight)))
            refuse(field, weight, "it must be finite, as a float32 too");
        else if (weight == 0)
            weight = 1;
        else
            weight = std::max(weight, 0.0); // a negative weight asks for a true zero
    }

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

    /** The form first: the derived bias depends on it. */
    void derive_form() {
        int32_t& form = config_.pair_loss;
        double& bias = config_.bias;
        if (form < uform_pair_loss_form_derived_k || form > uform_pair_loss_form_sigmoid_k)
            refuse("pair_loss", form, "no value of PairLossForm");
        if (!(std::fabs(bias) <= largest_bias_k)) // NaN is refused, too
            refuse("bias", bias, "it must be finite, and its magnitude at most 1e6");
        if (form == uform_pair_loss_form_derived_k)
            form = bias != 0                                      ? uform_pair_loss_form_sigmoid_k
                   : config_.negatives == uform_negatives_named_k ? uform_pair_loss_form_ranked_k
                                                                  : uform_pair_loss_form_balanced_k;
        if (bias == 0)
            bias = form == uform_pair_loss_form_sigmoid_k ? sigmoid_bias_k : 0;
        else if (std::fabs(bias) < smallest_bias_k)
            bias = 0;
        double& temperature = config_.inverse_temperature;
        if (temperature == 0)
            temperature = default_inverse_temperature_k;
        double const most = max_inverse_temperature(form);
        if (!(temperature >= min_inverse_temperature_k && temperature <= most))
            refuse("inverse_temperature", temperature, "it must lie between ", min_inverse_temperature_k, " and ",
                   most);
    }

    /** What is the run's Contrastive's; where that is part of the run, it was refused there before. */
    void derive_contrastive() {
        if (config_.negatives < uform_negatives_ambient_k || config_.negatives > uform_negatives_named_k)
            refuse("negatives", config_.negatives, "no value of Negatives");
        if (config_.ambient_scope < uform_ambient_scope_every_k ||
            config_.ambient_scope > uform_ambient_scope_cross_side_k)
            refuse("ambient_scope", config_.ambient_scope, "no value of AmbientScope");
        derive_weight("ambient_repulsion_weight", config_.ambient_repulsion_weight);
        derive_count("max_edges_per_device", config_.max_edges_per_device,
                     int64_t(edges_per_segment_k) * run_.segments_capacity);
    }

    void derive_budgets() {
        derive_count("max_query_span", config_.max_query_span, default_span_k);
        int64_t const span = std::min<int64_t>(config_.max_query_span, run_.row_columns);
        derive_count("max_query_tokens_per_device", config_.max_query_tokens_per_device,
                     std::min<int64_t>(run_.columns_capacity, span * run_.segments_capacity));
        derive_count("max_documents_per_device", config_.max_documents_per_device, run_.segments_capacity);
        derive_count("max_document_tokens_per_device", config_.max_document_tokens_per_device, run_.columns_capacity);
    }

    void derive_count(char const* field, int32_t& count, int64_t derived) {
        if (count < 0)
            refuse(field, count, "a count is not negative");
        if (count == 0)
            count = static_cast<int32_t>(std::min<int64_t>(derived, INT32_MAX));
    }

    config_t& config_;
    uform_run_t const& run_;
    std::string message_;
};

} // namespace

uform_status_t derive(void* config, uform_run_t const* run, uform_declare_t const* declare) {
    std::string const message = derivation(*static_cast<config_t*>(config), *run).run();
    if (message.empty())
        return uform_status_success_k;
    return declare->fail(declare->host, uform_status_invalid_argument_k, message.c_str());
}

} // namespace uform::late_interaction

#include "config.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <sstream>
#include <string>

namespace uform::choices {

uform_field_t const fields[] = {
    {"weight", uform_field_type_double_k, offsetof(uform_choices_t, weight), 1, 0},
    {"inverse_temperature", uform_field_type_double_k, offsetof(uform_choices_t, inverse_temperature), 1, 0},
    {"label_smoothing", uform_field_type_double_k, offsetof(uform_choices_t, label_smoothing), 1, 0},
};
std::size_t const fields_count = std::size(fields);

namespace {

template <typename value_at> std::string refusal(char const* field, value_at value, char const* why) {
    std::ostringstream text;
    text << field << " is " << value << ": " << why;
    return std::move(text).str();
}

/** Derives in place; answers why it is refused, or nothing. The comparisons are written so that NaN is refused. */
std::string derive_all(uform_choices_t& config, uform_run_t const& run) {
    if (run.choices_capacity == 0)
        return refusal("BatchShape.max_choices_per_item", run.choices_capacity, "Choices need room for at least 1");
    if (!std::isfinite(static_cast<float>(config.weight)))
        return refusal("Choices.weight", config.weight, "it must be finite, as a float32 too");
    config.weight = config.weight == 0 ? 1 : std::max(config.weight, 0.0);
    if (config.inverse_temperature == 0)
        config.inverse_temperature = 1;
    if (!(config.inverse_temperature >= min_inverse_temperature_k &&
          config.inverse_temperature <= max_inverse_temperature_k))
        return refusal("Choices.inverse_temperature", config.inverse_temperature, "it must lie between 0.01 and 100");
    if (!(config.label_smoothing <= 1) || std::isinf(config.label_smoothing))
        return refusal("Choices.label_smoothing", config.label_smoothing,
                       "it must lie between 0 and 1, or be negative for none");
    config.label_smoothing = std::max(config.label_smoothing, 0.0);
    return {};
}

} // namespace

uform_status_t derive(void* config, uform_run_t const* run, uform_declare_t const* declare) {
    std::string const message = derive_all(*static_cast<uform_choices_t*>(config), *run);
    if (message.empty())
        return uform_status_success_k;
    return declare->fail(declare->host, uform_status_invalid_argument_k, message.c_str());
}

} // namespace uform::choices

/** What a user may ask of late interaction, and what zeros derive. */
#pragma once

#include <cstddef>

#include <uform/plugin.h>

namespace uform::late_interaction {

extern uform_field_t const fields[];
extern std::size_t const fields_count;

/** The bounds of an inverse temperature, not of its logarithm; the sigmoid form may be sharper. */
constexpr double min_inverse_temperature_k = 1;
constexpr double max_inverse_temperature(int form) { return form == uform_pair_loss_form_sigmoid_k ? 1000 : 100; }

/** The callback `derive` of the plugin. */
uform_status_t derive(void* config, uform_run_t const* run, uform_declare_t const* declare);

} // namespace uform::late_interaction

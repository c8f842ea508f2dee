/** What a user may ask of the choices objective, and what zeros derive. */
#pragma once

#include <cstddef>

#include <uform/plugin.h>

namespace uform::choices {

extern uform_field_t const fields[];
extern std::size_t const fields_count;

/** The bounds of the inverse temperature, not of its logarithm. Choices may have to be softer than their vector makes
 *  them, so it goes below 1 as far as above it. */
constexpr double min_inverse_temperature_k = 0.01;
constexpr double max_inverse_temperature_k = 100;

/** The callback `derive` of the plugin. */
uform_status_t derive(void* config, uform_run_t const* run, uform_declare_t const* declare);

} // namespace uform::choices

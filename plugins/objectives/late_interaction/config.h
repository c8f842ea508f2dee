/** What a user may ask of late interaction, and what zeros derive. */
#pragma once

#include <cstddef>

#include <uform/plugin.h>

namespace uform::late_interaction {

extern uform_field_t const fields[];
extern std::size_t const fields_count;

/** The callback `derive` of the plugin. */
uform_status_t derive(void* config, uform_run_t const* run, uform_declare_t const* declare);

} // namespace uform::late_interaction

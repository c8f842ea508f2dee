/** What a user may ask of the masked objective, and what zeros derive. */
#pragma once

#include <cstddef>

#include <uform/plugin.h>

namespace uform::masked {

extern uform_field_t const fields[];
extern std::size_t const fields_count;

/** The callback `derive` of the plugin. A fraction that is left out derives to what the other leaves, at most. */
uform_status_t derive(void* config, uform_run_t const* run, uform_declare_t const* declare);

} // namespace uform::masked

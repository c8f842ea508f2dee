/** Late interaction: queries' token vectors find their matches in documents (design/objectives: "Late interaction"). */
#pragma once

#include <uform/plugin.h>

namespace uform {

/** Configured by `uform_late_interaction_t`. */
extern uform_objective_plugin_t const late_interaction_plugin;

} // namespace uform

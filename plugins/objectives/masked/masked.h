/** The masked objective: covers columns of every item and has their content predicted (design/objectives: "Masked"). */
#pragma once

#include <uform/plugin.h>

namespace uform {

/** Configured by `uform_masking_t`. */
extern uform_objective_plugin_t const masked_plugin;

} // namespace uform

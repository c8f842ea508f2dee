/** The choices objective: texts choose among texts that are encoded with them (design/objectives: "Choices"). */
#pragma once

#include <uform/plugin.h>

namespace uform {

/** Configured by `uform_choices_t`. */
extern uform_objective_plugin_t const choices_plugin;

} // namespace uform

/** The contrastive objective: pooled embeddings attract, repel and ignore one another (design/objectives: "Pairs"). */
#pragma once

#include <uform/plugin.h>

namespace uform {

/** Configured by `uform_contrastive_t`. */
extern uform_objective_plugin_t const contrastive_plugin;

} // namespace uform

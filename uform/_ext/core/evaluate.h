/** Objectives as functions: one plugin run over given vectors, without an encoder. */
#pragma once

#include "core/executor.h"
#include "core/plugins.h"

namespace uform {

/** Value and gradients of an objective that reads the world's bags, where each vector is the one item of its own bag.
 */
void evaluate_pairs(executor& on, selection const& objective, uform_contrastive_loss_t const& problem);

} // namespace uform

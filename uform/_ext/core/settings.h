/** The run's own configuration, as given and as derived. */
#pragma once

#include <cstdint>
#include <vector>

#include "core/json.h"
#include "core/operations.h"
#include "core/plugins.h"

namespace uform {

struct settings {
    int32_t depth = 0;
    int32_t hidden = 0;
    uform_batch_shape_t batch{}; /* the shapes of modalities are theirs, in `modalities` */
    uform_schedule_t schedule{};
    uform_optimizer_t optimizer{};
    uint64_t seed = 0;
    std::vector<selection> modalities; /* in the order in which they embed */
    std::vector<selection> objectives;
};

/** Takes the values of a checkpoint's configuration for zeros, then derives the zeros left and refuses bad values. */
void derive(settings& given, json const* saved);

/** The derived configuration without its plugins, as `describe` and checkpoints show it. */
json describe(settings const& derived);

/** The encoder's sizes; `inner` is 8/3 of hidden rounded up to 128. */
uform_extents_t extents_of(settings const& derived);

} // namespace uform

/** The run's own configuration, as given and as derived. */
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
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
    /* by field of each structure, once derived: it was given */
    std::vector<bool> batch_given, schedule_given, optimizer_given;
};

/** Takes the values of the run that goes on for zeros, derives the zeros left and refuses bad values. */
void derive(settings& given, settings const* saved);

/** The derived configuration without its plugins, as `describe` and checkpoints show it. */
json describe(settings const& derived);
/** The names of the fields that were given, by section. */
json describe_given(settings const& derived);

/** Reads what `describe` wrote, with or without what `describe_given` wrote as its member "given", and refuses whatever
 *  no run could have derived. The sections of plugins are left to others. */
settings read_settings(json const& configuration);

/** A member that a configuration must have. @param path Where the object lies, for messages. */
json const& configuration_member(json const& object, std::string const& path, std::string_view name);

/** Refuses an object with other members than these. */
void check_members(json const& object, std::string const& path, std::span<std::string_view const> known);

/** The encoder's sizes; `inner` is 8/3 of hidden rounded up to 128. */
uform_extents_t extents_of(settings const& derived);

} // namespace uform

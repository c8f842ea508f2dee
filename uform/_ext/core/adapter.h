/** Between the page's structures and plugins' names: the only place in the core that knows particular plugins. */
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/json.h"
#include "core/plugins.h"
#include "core/settings.h"
#include "core/unread.h"

namespace uform {

/** The run that the options ask for; `saved` is the checked configuration of the run that goes on, or null. */
settings settings_of(uform_trainer_options_t const& options, json const* saved);

/** What these read of a step; of a third party's objective it is not known, so that it reads all. */
step_reads reads_of(std::span<objective_instance const> objectives);

/** A field's value as messages show it: that of an enumeration of the page by its name. */
std::string shown_field(uform_field_t const& field, void const* config);

/** The derived configuration under the page's names. */
json page_description(json const& configuration);

/** Whether the page's stats have a field of that name, where no third party's number can be reported. */
bool is_stats_field(std::string_view name);

/** Sorts named loss terms into the page's fields; what has none of its own goes to `extra`. */
void report_terms(std::span<term const> terms, std::span<double const> values, uform_trainer_step_stats_t& stats,
                  std::vector<uform_named_value_t>& extra);

} // namespace uform

/** Configuration structures of a run between their caller, who leaves zeros to derive, and a checkpoint, which holds
 *  them derived and remembers which fields had been given.
 *
 *  A run that is resumed takes the checkpoint's value for every zero. What the checkpoint's run derived is derived anew
 *  where what it derives from is given anew, and stays as saved, to the bit, where not: another version's defaults do
 *  not change a run that goes on.
 */
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "core/fields.h"

namespace uform {

/** Derives a structure's zeros in place; throws what it refuses. Derived values derive to themselves. */
using derivation = std::function<void(void* config)>;

/** One kind of structure. */
struct config_kind {
    std::span<uform_field_t const> fields;
    size_t bytes;
    derivation derive;
};

/** A structure without zeros left to derive. */
struct derived_config {
    std::vector<uint8_t> values;
    std::vector<bool> given; /* by field: it was not left to derive */
};

/** The structure of a new run. `given` has the kind's size. */
derived_config derive_given(config_kind const& kind, void const* given);

/** Whether a file of this format version may lack a field. */
enum class absent_field_t { refused, derives };

/**
 *  Reads the structure of a checkpoint and checks that it is one that a run could have derived.
 *  @param values The object of its values.
 *  @param given The names of the fields given; null where the file does not tell, which counts each as given.
 *  @param path Where the object lies, for messages.
 */
derived_config read_derived(config_kind const& kind, json const& values, json const* given, std::string const& path,
                            absent_field_t absent);

/** The structure of a run that goes on from `saved`, which `before` could derive. */
derived_config derive_resumed(config_kind const& kind, void const* given, derived_config const& saved,
                              derivation const& before);

/** The names of the fields given, as `read_derived` takes them. */
json describe_given(std::span<uform_field_t const> fields, std::vector<bool> const& given);

} // namespace uform

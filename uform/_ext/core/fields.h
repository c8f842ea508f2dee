/** Configuration structures seen through their description: written to JSON, read back, completed and compared. */
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include <uform/plugin.h>

#include "core/json.h"

namespace uform {

/** The structure as an object with a member a field, in the order of the description. */
json describe_fields(uform_field_t const* fields, std::size_t count, void const* config);

/**
 *  Writes the members of `saved` into the structure. A field that is not there becomes zero, as one that is newer than
 *  the file; a member without a field, one of another type and one outside the field's range are refused.
 *  @param path Where the object lies, for messages: "contrastive" makes "contrastive.bias".
 */
void restore_fields(uform_field_t const* fields, std::size_t count, void* config, json const& saved,
                    std::string_view path);

/** Gives every field that is zero (a list that is empty) the saved structure's value. */
void fill_zeros_from(uform_field_t const* fields, std::size_t count, void* config, void const* saved);

/** A field whose values differ, and both as JSON writes them. */
struct field_difference_t {
    std::string name;
    std::string left;
    std::string right;
};

/** The first field in which two structures differ; none where they are equal. */
std::optional<field_difference_t> first_difference(uform_field_t const* fields, std::size_t count, void const* left,
                                                   void const* right);

} // namespace uform

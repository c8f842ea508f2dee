/** Configuration structures seen through their description: written to JSON, read back, compared field by field. */
#pragma once

#include <cstddef>
#include <span>
#include <string_view>
#include <vector>

#include <uform/plugin.h>

#include "core/json.h"

namespace uform {

/** The structure as an object with a member a field, in the order of the description. */
json describe_fields(uform_field_t const* fields, std::size_t count, void const* config);

/**
 *  Writes the members of `saved` into the structure and answers which fields were there. One that was not becomes zero,
 *  as one that is newer than the file; a member without a field, one of another type and one outside the field's range
 *  are refused.
 *  @param path Where the object lies, for messages: "contrastive" makes "contrastive.bias".
 */
std::vector<bool> restore_fields(uform_field_t const* fields, std::size_t count, void* config, json const& saved,
                                 std::string_view path);

/** Where a field lies in the whole, for messages. */
std::string field_path(std::string_view path, std::string_view name);

/* One field of a structure. A list is zero where it is empty. */
json field_value(uform_field_t const& field, void const* config);
bool field_is_zero(uform_field_t const& field, void const* config);
bool field_is_finite(uform_field_t const& field, void const* config);
bool fields_equal(uform_field_t const& field, void const* left, void const* right);
void copy_field(uform_field_t const& field, void* config, void const* from);
void clear_field(uform_field_t const& field, void* config);

/** Asks for a true zero where a plain one would derive: by a negative value, of a magnitude that a field whose
 * negatives are values takes for zero as well. Answers false for a list, which has no such form. */
bool ask_true_zero(uform_field_t const& field, void* config);

} // namespace uform

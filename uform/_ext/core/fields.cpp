#include "core/fields.h"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>

#include "core/error.h"

namespace uform {

namespace {

// Negative, and of a magnitude below the 1e-20 under which a field whose negatives are values takes it for zero.
constexpr double true_zero_k = -1e-30;

/** A value of a structure known by its address alone. */
template <typename value_at> value_at load(void const* config, std::size_t offset) {
    value_at value;
    std::memcpy(&value, static_cast<unsigned char const*>(config) + offset, sizeof value);
    return value;
}

template <typename value_at> void store(void* config, std::size_t offset, value_at value) {
    std::memcpy(static_cast<unsigned char*>(config) + offset, &value, sizeof value);
}

std::size_t list_size(uform_field_t const& field, void const* config) {
    std::int32_t const count = load<std::int32_t>(config, field.count_offset);
    if (count < 0 || static_cast<std::size_t>(count) > field.capacity)
        fail(uform_status_invalid_argument_k, field.name, " has ", count, " entries, but takes 0 to ", field.capacity);
    return static_cast<std::size_t>(count);
}

std::int32_t list_entry(uform_field_t const& field, void const* config, std::size_t index) {
    return load<std::int32_t>(config, field.offset + index * sizeof(std::int32_t));
}

[[noreturn]] void fail_unknown_type(uform_field_t const& field) {
    fail(uform_status_internal_k, "the description of ", field.name, " has an unknown type, ", field.type);
}

std::size_t value_bytes(uform_field_t const& field) {
    switch (field.type) {
    case uform_field_type_int32_k:
        return sizeof(std::int32_t);
    case uform_field_type_int64_k:
        return sizeof(std::int64_t);
    case uform_field_type_double_k:
        return sizeof(double);
    case uform_field_type_int32_list_k:
        return field.capacity * sizeof(std::int32_t);
    default:
        fail_unknown_type(field);
    }
}

std::int32_t read_int32(json const& value, std::string const& name) {
    std::int64_t const number = value.as_int64(name);
    if (number < std::numeric_limits<std::int32_t>::min() || number > std::numeric_limits<std::int32_t>::max())
        fail(uform_status_invalid_argument_k, name, " is ", number, ", which 32 bits do not hold");
    return static_cast<std::int32_t>(number);
}

void read_list(uform_field_t const& field, void* config, json const& value, std::string const& name) {
    json::array const& entries = value.as_array(name);
    if (entries.size() > field.capacity)
        fail(uform_status_invalid_argument_k, name, " has ", entries.size(), " entries, but takes at most ",
             field.capacity);
    for (std::size_t i = 0; i != entries.size(); ++i)
        store(config, field.offset + i * sizeof(std::int32_t),
              read_int32(entries[i], name + "[" + std::to_string(i) + "]"));
    store(config, field.count_offset, static_cast<std::int32_t>(entries.size()));
}

void read_value(uform_field_t const& field, void* config, json const& value, std::string const& name) {
    switch (field.type) {
    case uform_field_type_int32_k:
        return store(config, field.offset, read_int32(value, name));
    case uform_field_type_int64_k:
        return store(config, field.offset, value.as_int64(name));
    case uform_field_type_double_k:
        return store(config, field.offset, value.as_double(name));
    case uform_field_type_int32_list_k:
        return read_list(field, config, value, name);
    default:
        fail_unknown_type(field);
    }
}

void refuse_unknown_members(std::span<uform_field_t const> fields, json const& saved, std::string_view path) {
    for (auto const& [name, value] : saved.as_object(path)) {
        bool known = false;
        for (uform_field_t const& field : fields)
            known = known || name == field.name;
        if (!known)
            fail(uform_status_invalid_argument_k, path,
                 " has a field that this version does not know: ", quoted_name(name));
    }
}

} // namespace

json describe_fields(uform_field_t const* fields, std::size_t count, void const* config) {
    json object = json::make_object();
    for (uform_field_t const& field : std::span(fields, count))
        object.set(field.name, field_value(field, config));
    return object;
}

std::vector<bool> restore_fields(uform_field_t const* fields, std::size_t count, void* config, json const& saved,
                                 std::string_view path) {
    std::span const all(fields, count);
    refuse_unknown_members(all, saved, path);
    std::vector<bool> present;
    for (uform_field_t const& field : all) {
        clear_field(field, config);
        json const* const value = saved.find(field.name);
        if (value)
            read_value(field, config, *value, field_path(path, field.name));
        present.push_back(value != nullptr);
    }
    return present;
}

std::string field_path(std::string_view path, std::string_view name) {
    return path.empty() ? std::string(name) : std::string(path) + "." + std::string(name);
}

json field_value(uform_field_t const& field, void const* config) {
    switch (field.type) {
    case uform_field_type_int32_k:
        return load<std::int32_t>(config, field.offset);
    case uform_field_type_int64_k:
        return load<std::int64_t>(config, field.offset);
    case uform_field_type_double_k:
        return load<double>(config, field.offset);
    case uform_field_type_int32_list_k: {
        json::array entries;
        for (std::size_t i = 0, count = list_size(field, config); i != count; ++i)
            entries.emplace_back(list_entry(field, config, i));
        return entries;
    }
    default:
        fail_unknown_type(field);
    }
}

bool field_is_zero(uform_field_t const& field, void const* config) {
    switch (field.type) {
    case uform_field_type_int32_k:
        return load<std::int32_t>(config, field.offset) == 0;
    case uform_field_type_int64_k:
        return load<std::int64_t>(config, field.offset) == 0;
    case uform_field_type_double_k:
        return load<double>(config, field.offset) == 0.0;
    case uform_field_type_int32_list_k:
        return list_size(field, config) == 0;
    default:
        fail_unknown_type(field);
    }
}

bool field_is_finite(uform_field_t const& field, void const* config) {
    return field.type != uform_field_type_double_k || std::isfinite(load<double>(config, field.offset));
}

bool fields_equal(uform_field_t const& field, void const* left, void const* right) {
    return field_value(field, left) == field_value(field, right);
}

void copy_field(uform_field_t const& field, void* config, void const* from) {
    std::memcpy(static_cast<unsigned char*>(config) + field.offset,
                static_cast<unsigned char const*>(from) + field.offset, value_bytes(field));
    if (field.type == uform_field_type_int32_list_k)
        store(config, field.count_offset, load<std::int32_t>(from, field.count_offset));
}

void clear_field(uform_field_t const& field, void* config) {
    std::memset(static_cast<unsigned char*>(config) + field.offset, 0, value_bytes(field));
    if (field.type == uform_field_type_int32_list_k)
        store(config, field.count_offset, std::int32_t(0));
}

bool ask_true_zero(uform_field_t const& field, void* config) {
    switch (field.type) {
    case uform_field_type_int32_k:
        store(config, field.offset, std::int32_t(-1));
        return true;
    case uform_field_type_int64_k:
        store(config, field.offset, std::int64_t(-1));
        return true;
    case uform_field_type_double_k:
        store(config, field.offset, true_zero_k);
        return true;
    case uform_field_type_int32_list_k:
        return false;
    default:
        fail_unknown_type(field);
    }
}

} // namespace uform

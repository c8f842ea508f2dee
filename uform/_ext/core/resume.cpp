#include "core/resume.h"

#include "core/adapter.h"
#include "core/error.h"

namespace uform {

namespace {

using bytes = std::vector<uint8_t>;

bool derives_to_zero(config_kind const& kind, uform_field_t const& field, bytes config) {
    try {
        kind.derive(config.data());
        return field_is_zero(field, config.data());
    } catch (error const&) {
        return false;
    }
}

/** Refuses a value that is not zero and that derivation changed. */
void check_kept(config_kind const& kind, bytes const& values, bytes const& derived, std::string const& path) {
    for (uform_field_t const& field : kind.fields)
        if (!field_is_zero(field, values.data()) && !fields_equal(field, derived.data(), values.data()))
            fail(uform_status_invalid_argument_k, field_path(path, field.name), " is ",
                 shown_field(field, values.data()), " where a run would have ", shown_field(field, derived.data()));
}

/** Derives values of which those that are not zero are derived already. */
bytes derive_again(config_kind const& kind, bytes const& values, std::string const& path) {
    bytes derived = values;
    try {
        kind.derive(derived.data());
    } catch (error const&) {
        check_kept(kind, values, derived, path); // a value changed may be why another one was refused
        throw;
    }
    check_kept(kind, values, derived, path);
    return derived;
}

/** Derived values as a caller would have given them: fields outside `given` are left out, and a zero that would derive
 *  is asked for. A zero that cannot be asked for is refused: no run has it. */
bytes as_given(config_kind const& kind, bytes const& values, std::vector<bool> const& given, std::string const& path) {
    bytes asked = values;
    for (size_t place = 0; place != kind.fields.size(); ++place)
        if (!given[place])
            clear_field(kind.fields[place], asked.data());
    bytes const derived = derive_again(kind, asked, path);
    for (size_t place = 0; place != kind.fields.size(); ++place) {
        uform_field_t const& field = kind.fields[place];
        if (!given[place] || !field_is_zero(field, values.data()) || field_is_zero(field, derived.data()))
            continue;
        if (!ask_true_zero(field, asked.data()) || !derives_to_zero(kind, field, asked))
            fail(uform_status_invalid_argument_k, field_path(path, field.name), " is ",
                 shown_field(field, values.data()), ", which no run has");
    }
    return asked;
}

/** Refuses values that derivation would refuse or change. */
void check_derived(config_kind const& kind, bytes const& values, std::string const& path) {
    bytes again = as_given(kind, values, std::vector<bool>(kind.fields.size(), true), path);
    kind.derive(again.data());
    for (uform_field_t const& field : kind.fields)
        if (!fields_equal(field, again.data(), values.data()))
            fail(uform_status_invalid_argument_k, field_path(path, field.name), " is ",
                 shown_field(field, values.data()), " where a run would have ", shown_field(field, again.data()));
}

/** The kind where it lies in a file: what derivation refuses there begins with the path. */
config_kind named(config_kind const& kind, std::string const& path) {
    return {kind.fields, kind.bytes, [&kind, path](void* config) { within(path, [&] { kind.derive(config); }); }};
}

std::vector<bool> read_given(config_kind const& kind, json const& names, std::string const& path) {
    std::vector<bool> given(kind.fields.size());
    for (json const& entry : names.as_array(path)) {
        std::string const& name = entry.as_string(path);
        size_t place = 0;
        while (place != kind.fields.size() && name != kind.fields[place].name)
            ++place;
        if (place == kind.fields.size())
            fail(uform_status_invalid_argument_k, path,
                 " names a field that this version does not know: ", quoted_name(name));
        given[place] = true;
    }
    return given;
}

} // namespace

derived_config derive_given(config_kind const& kind, void const* given) {
    auto const* const from = static_cast<uint8_t const*>(given);
    derived_config made{{from, from + kind.bytes}, {}};
    for (uform_field_t const& field : kind.fields)
        made.given.push_back(!field_is_zero(field, given));
    kind.derive(made.values.data());
    check_derived(kind, made.values, ""); // else its checkpoints could not be resumed
    return made;
}

derived_config read_derived(config_kind const& kind, json const& values, json const* given, std::string const& path,
                            absent_field_t absent) {
    derived_config read{bytes(kind.bytes), {}};
    std::vector<bool> const present =
        restore_fields(kind.fields.data(), kind.fields.size(), read.values.data(), values, path);
    for (size_t place = 0; place != present.size(); ++place)
        if (!present[place] && absent == absent_field_t::refused)
            fail(uform_status_invalid_argument_k, field_path(path, kind.fields[place].name), " is missing");
    config_kind const in_values = named(kind, path);
    bytes completed = as_given(in_values, read.values, present, path);
    in_values.derive(completed.data());
    for (size_t place = 0; place != present.size(); ++place)
        if (!present[place])
            copy_field(kind.fields[place], read.values.data(), completed.data());
    check_derived(in_values, read.values, path);
    std::string const given_path = "given." + path;
    read.given = given ? read_given(kind, *given, given_path) : present;
    config_kind const in_given = named(kind, given_path);
    bytes as_before = as_given(in_given, read.values, read.given, given_path);
    in_given.derive(as_before.data());
    return read;
}

derived_config derive_resumed(config_kind const& kind, void const* given, derived_config const& saved,
                              derivation const& before) {
    bytes const saved_given = as_given({kind.fields, kind.bytes, before}, saved.values, saved.given, "");
    bytes derived_before = saved_given;
    before(derived_before.data());
    auto const* const from = static_cast<uint8_t const*>(given);
    derived_config made{{from, from + kind.bytes}, saved.given};
    for (size_t place = 0; place != kind.fields.size(); ++place) {
        uform_field_t const& field = kind.fields[place];
        if (field_is_zero(field, given))
            copy_field(field, made.values.data(), saved_given.data());
        else
            made.given[place] = true;
    }
    try {
        kind.derive(made.values.data());
        for (uform_field_t const& field : kind.fields)
            if (field_is_zero(field, given) && fields_equal(field, made.values.data(), derived_before.data()))
                copy_field(field, made.values.data(), saved.values.data());
        check_derived(kind, made.values, "");
    } catch (error const& failure) {
        fail(failure.status, failure.message, " (what was left at zero is the checkpoint's)");
    }
    return made;
}

json describe_given(std::span<uform_field_t const> fields, std::vector<bool> const& given) {
    json names = json(json::array{});
    for (size_t place = 0; place != fields.size(); ++place)
        if (given[place])
            names.push_back(fields[place].name);
    return names;
}

} // namespace uform

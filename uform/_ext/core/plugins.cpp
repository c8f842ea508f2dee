#include "core/plugins.h"

#include <algorithm>
#include <cctype>
#include <cfloat>
#include <cmath>
#include <cstring>
#include <limits>
#include <mutex>
#include <set>

#include "core/adapter.h"
#include "core/host.h"
#include "core/resume.h"

namespace uform {

namespace {

/** Every plugin of one kind that this process knows, in the order registered. */
template <typename plugin_at> class registry {
public:
    explicit registry(plugin_at const* const* own) {
        for (; *own; ++own)
            plugins_.push_back(*own);
    }

    plugin_at const* find(std::string_view name) {
        std::lock_guard lock(mutex_);
        for (plugin_at const* plugin : plugins_)
            if (name == plugin->name)
                return plugin;
        return nullptr;
    }

    /** After `check`, called with every plugin there is, has let it pass. */
    template <typename check_at> void add(plugin_at const* plugin, check_at&& check) {
        std::lock_guard lock(mutex_);
        for (plugin_at const* known : plugins_)
            check(known);
        plugins_.push_back(plugin);
    }

private:
    std::mutex mutex_;
    std::vector<plugin_at const*> plugins_;
};

bool is_own(uform_objective_plugin_t const* plugin) {
    uform_objective_plugin_t const* const* own = uform_own_objectives;
    while (*own && *own != plugin)
        ++own;
    return *own;
}

bool is_own(uform_modality_plugin_t const* plugin) {
    uform_modality_plugin_t const* const* own = uform_own_modalities;
    while (*own && *own != plugin)
        ++own;
    return *own;
}

registry<uform_objective_plugin_t>& objectives() {
    static registry<uform_objective_plugin_t> known(uform_own_objectives);
    return known;
}

registry<uform_modality_plugin_t>& modalities() {
    static registry<uform_modality_plugin_t> known(uform_own_modalities);
    return known;
}

void check_name(std::string_view name) {
    constexpr size_t longest = 64;
    if (name.size() > longest || !std::all_of(name.begin(), name.end(), [](char letter) {
            return std::isalnum(static_cast<unsigned char>(letter)) || letter == '_' || letter == '-';
        }))
        fail(uform_status_invalid_argument_k, "plugin ", name, ": a name has at most ", longest,
             " letters, digits, underscores and hyphens");
}

template <typename... parts_at> [[noreturn]] void refuse_registration(char const* plugin, parts_at const&... why) {
    fail(uform_status_invalid_argument_k, "plugin ", plugin, ": ", why...);
}

/** Objectives and modalities share their names: those of parameters, terms and configurations begin with them. */
void check_free(char const* name, bool taken) {
    if (taken)
        fail(uform_status_invalid_argument_k, "plugin ", name, ": the name is taken by another plugin of this process");
}

template <typename plugin_at> void check_abi(plugin_at const* plugin) {
    if (!plugin || !plugin->name || !*plugin->name)
        fail(uform_status_invalid_argument_k, "plugin: it has no name");
    check_name(plugin->name);
    if (is_stats_field(plugin->name))
        refuse_registration(plugin->name, "the name is a field's of TrainerStepStats");
    if (plugin->abi_version != UFORM_PLUGIN_ABI_VERSION)
        fail(uform_status_invalid_argument_k, "plugin ", plugin->name, ": built for ABI version ", plugin->abi_version,
             ", this library speaks ", UFORM_PLUGIN_ABI_VERSION);
    if (plugin->bytes < sizeof(plugin_at))
        fail(uform_status_invalid_argument_k, "plugin ", plugin->name, ": its structure has ", plugin->bytes,
             " bytes, this library's has ", sizeof(plugin_at));
}

constexpr size_t most_fields_k = 4096;
constexpr size_t most_config_bytes_k = size_t(1) << 24;

/** Checks a table of fields, by which structures are filled, compared and saved: each field has a name of its own, a
 *  known type, and bytes of its own within the structure. */
class field_table_check {
public:
    field_table_check(char const* plugin, size_t config_bytes) : plugin_(plugin), config_bytes_(config_bytes) {}

    void run(uform_field_t const* fields, size_t count) {
        if (count > most_fields_k)
            refuse_registration(plugin_, "its fields_count is ", count, ": expected at most ", most_fields_k);
        if (config_bytes_ > most_config_bytes_k)
            refuse_registration(plugin_, "its config_bytes is ", config_bytes_, ": expected at most ",
                                most_config_bytes_k);
        if (count && !fields)
            refuse_registration(plugin_, "its fields is null: expected ", count, ", as fields_count says");
        for (size_t index = 0; index != count; ++index)
            check(fields[index], index);
        std::sort(taken_.begin(), taken_.end());
        for (size_t place = 1; place < taken_.size(); ++place)
            if (taken_[place].first < taken_[place - 1].end)
                refuse_registration(plugin_, "its fields ", taken_[place - 1].name, " and ", taken_[place].name,
                                    " share bytes of the structure");
    }

private:
    struct bytes {
        size_t first, end;
        std::string_view name;
        auto operator<=>(bytes const&) const = default;
    };

    void check(uform_field_t const& field, size_t index) {
        if (!field.name || !*field.name)
            refuse_registration(plugin_, "its fields[", index, "] has no name");
        if (!is_utf8(field.name))
            refuse_registration(plugin_, "the name of its fields[", index, "] is not UTF-8: ", quoted_name(field.name));
        if (!names_.insert(field.name).second)
            refuse_registration(plugin_, "its fields[", index, "] has the name of one before it, ", field.name);
        switch (field.type) {
        case uform_field_type_int32_k:
            return take(field, field.offset, sizeof(int32_t));
        case uform_field_type_int64_k:
            return take(field, field.offset, sizeof(int64_t));
        case uform_field_type_double_k:
            return take(field, field.offset, sizeof(double));
        case uform_field_type_int32_list_k:
            if (field.capacity < 1 || field.capacity > config_bytes_ / sizeof(int32_t))
                refuse_registration(plugin_, "its field ", field.name, " has a capacity of ", field.capacity,
                                    " entries in a structure of ", config_bytes_, " bytes");
            take(field, field.offset, field.capacity * sizeof(int32_t));
            return take(field, field.count_offset, sizeof(int32_t));
        default:
            refuse_registration(plugin_, "its field ", field.name, " has the type ", field.type,
                                ": expected one of uform_field_type_t");
        }
    }

    void take(uform_field_t const& field, size_t offset, size_t count) {
        if (count > config_bytes_ || offset > config_bytes_ - count)
            refuse_registration(plugin_, "its field ", field.name, " has ", count, " bytes at ", offset,
                                " of a structure of ", config_bytes_);
        taken_.push_back({offset, offset + count, field.name});
    }

    char const* plugin_;
    size_t config_bytes_;
    std::set<std::string_view> names_;
    std::vector<bytes> taken_;
};

/** Refuses what no run of this library could do. */
void check_known(char const* plugin, char const* member, uint32_t value, uint32_t last, char const* enumeration) {
    if (value > last)
        refuse_registration(plugin, "its ", member, " is ", value, ": expected one of ", enumeration);
}
constexpr uint32_t all_taps_k = 2 * uform_tap_world_vectors_k - 1;

template <typename plugin_at>
void check_present(plugin_at const* plugin, std::initializer_list<std::pair<char const*, bool>> functions) {
    for (auto const& [name, present] : functions)
        if (!present)
            fail(uform_status_invalid_argument_k, "plugin ", plugin->name, ": its function ", name, " is missing");
}

/** What files and messages can hold as a name. */
void check_declared_name(char const* kind, char const* name) {
    if (!name || !*name)
        fail(uform_status_invalid_argument_k, kind, ": it has no name");
    if (!is_utf8(name))
        fail(uform_status_invalid_argument_k, kind, " ", quoted_name(name), ": its name is not UTF-8");
}

void check_place(std::string const& of, void const* place) {
    if (!place)
        fail(uform_status_invalid_argument_k, of, ": the place for its handle is null");
}

void check_declared_number(std::string const& of, char const* field, double value) {
    if (!(std::fabs(value) <= FLT_MAX)) // NaN is refused, too
        fail(uform_status_invalid_argument_k, of, ": its ", field, " is ", value,
             ": expected a number that float32 holds");
}

void check_request(uform_parameter_request_t const& asked, std::string const& of) {
    if (asked.kind > uform_parameter_kind_plain_k)
        fail(uform_status_invalid_argument_k, of, ": its kind is ", asked.kind,
             ": expected one of uform_parameter_kind_t");
    bool const is_matrix =
        asked.kind == uform_parameter_kind_matrix_k || asked.kind == uform_parameter_kind_embedding_k;
    if (is_matrix && asked.columns == 0)
        fail(uform_status_invalid_argument_k, of, ": its columns is 0: expected some of a matrix or an embedding");
    check_declared_number(of, "deviation", asked.deviation);
    check_declared_number(of, "value", asked.value);
    check_declared_number(of, "minimum", asked.minimum);
    check_declared_number(of, "maximum", asked.maximum);
    // No value drawn is twenty deviations away.
    if (asked.deviation < 0 || asked.deviation > double(std::numeric_limits<float>::max()) / 20)
        fail(uform_status_invalid_argument_k, of, ": its deviation is ", asked.deviation,
             ": expected none below 0, and no value drawn past float32");
    if (asked.minimum == 0 && asked.maximum == 0)
        return;
    if (asked.minimum >= asked.maximum)
        fail(uform_status_invalid_argument_k, of, ": its minimum is ", asked.minimum,
             ": expected one below its maximum, ", asked.maximum);
    if (asked.deviation == 0 && (asked.value < asked.minimum || asked.value > asked.maximum))
        fail(uform_status_invalid_argument_k, of, ": its value is ", asked.value, ": expected one between ",
             asked.minimum, " and ", asked.maximum, ", its bounds");
}

uform_status_t declare_parameter(uform_host_t* host, uform_parameter_request_t const* asked, uint32_t* handle) {
    return guard([&] {
        if (!asked)
            fail(uform_status_invalid_argument_k, "parameter: its request is null");
        check_declared_name("parameter", asked->name);
        std::string const of = "parameter " + host->parts->name + "." + asked->name;
        check_request(*asked, of);
        check_place(of, handle);
        float const endless = std::numeric_limits<float>::infinity();
        bool const bounded = asked->minimum != 0 || asked->maximum != 0;
        parameter made{host->parts->name + "." + asked->name,
                       asked->rows,
                       asked->columns,
                       asked->kind,
                       asked->deviation,
                       asked->value,
                       bounded ? static_cast<float>(asked->minimum) : -endless,
                       bounded ? static_cast<float>(asked->maximum) : endless};
        host->parts->parameters.push_back(host->declared->parameters.add(std::move(made)));
        *handle = static_cast<uint32_t>(host->parts->parameters.size() - 1);
    });
}

uform_status_t declare_term(uform_host_t* host, char const* name, double weight, uint32_t* handle) {
    return guard([&] {
        auto& terms = host->declared->terms;
        check_declared_name("term", name);
        check_declared_number(std::string("term ") + name, "weight", weight);
        check_place(std::string("term ") + name, handle);
        std::string_view const term_name = name, plugin_name = host->parts->name;
        bool const begins = term_name.starts_with(plugin_name);
        std::string_view const rest = begins ? term_name.substr(plugin_name.size()) : "";
        if (!host->parts->own && !(begins && (rest.empty() || rest[0] == '.' || rest[0] == '_')))
            fail(uform_status_invalid_argument_k, "term ", name, ": its name must be the plugin's, or begin with ",
                 plugin_name, "_");
        if (!host->parts->own && is_stats_field(term_name))
            fail(uform_status_invalid_argument_k, "term ", name, ": the name is a field's of TrainerStepStats");
        if (terms.size() == UFORM_TERMS_CAPACITY)
            fail(uform_status_invalid_argument_k, "term ", name, ": a run has at most ", UFORM_TERMS_CAPACITY,
                 " terms");
        for (term const& known : terms)
            if (known.name == name)
                fail(uform_status_invalid_argument_k, "term ", name, ": the name is taken");
        terms.push_back({name, weight});
        host->parts->terms.push_back(static_cast<uint32_t>(terms.size() - 1));
        *handle = static_cast<uint32_t>(host->parts->terms.size() - 1);
    });
}

uform_status_t reserve(size_t& total, size_t bytes, size_t* offset) {
    return guard([&] {
        if (bytes > std::numeric_limits<size_t>::max() / 2 - total)
            fail(uform_status_out_of_memory_k, "it asked for ", bytes, " bytes on each device");
        check_place("memory", offset);
        *offset = total;
        total += (bytes + 255) / 256 * 256;
    });
}

uform_status_t declare_staging(uform_host_t* host, size_t bytes, size_t* offset) {
    uform_status_t const status = reserve(host->parts->staging_bytes, bytes, offset);
    if (status != uform_status_success_k)
        return status;
    return guard([&] { host->parts->staging_parts.push_back({*offset, uform_staging_unit_whole_k, bytes}); });
}

uform_status_t declare_column_staging(uform_host_t* host, uint32_t unit, size_t bytes, size_t* offset) {
    if (unit > uform_staging_unit_covered_k)
        return guard([&] {
            fail(uform_status_invalid_argument_k, "column_staging: its unit is ", unit,
                 ": expected one of uform_staging_unit_t");
        });
    size_t all = 0;
    if (__builtin_mul_overflow(bytes, size_t(host->columns_capacity), &all))
        all = std::numeric_limits<size_t>::max(); // which is refused
    uform_status_t const status = reserve(host->parts->staging_bytes, all, offset);
    if (status != uform_status_success_k)
        return status;
    return guard([&] { host->parts->staging_parts.push_back({*offset, unit, bytes}); });
}

uform_status_t declare_workspace(uform_host_t* host, size_t bytes, size_t* offset) {
    return reserve(host->parts->workspace_bytes, bytes, offset);
}

uform_status_t declare_vectors(uform_host_t* host, uint32_t width) {
    return guard([&] {
        if (width == 0 || host->parts->vectors_width)
            fail(uform_status_internal_k, "vectors: an objective has them once, of at least one value, not of ", width);
        host->parts->vectors_width = width;
    });
}

constexpr size_t most_notice_bytes_k = size_t(1) << 40;

uform_status_t declare_notice(uform_host_t* host, size_t bytes) {
    return guard([&] {
        if (bytes > most_notice_bytes_k)
            fail(uform_status_out_of_memory_k, "it asked for ", bytes, " bytes of notice for each device");
        host->parts->notice_bytes = bytes;
    });
}

uform_status_t declare_cover(uform_host_t* host, double ratio, double weight) {
    return guard([&] {
        if (!(ratio >= 0 && ratio <= 1))
            fail(uform_status_invalid_argument_k, "cover: a ratio lies between 0 and 1, not ", ratio);
        if (!(weight >= 0 && weight <= std::numeric_limits<float>::max()))
            fail(uform_status_invalid_argument_k, "cover: a weight is finite and not negative, not ", weight);
        host->parts->cover = {ratio, weight};
    });
}

uint32_t list_coverings(uform_host_t* host, uform_covering_t const** all) {
    if (all)
        *all = host->declared->coverings.data();
    else
        note_misuse(host, "coverings: the place for them is null");
    return static_cast<uint32_t>(host->declared->coverings.size());
}

uform_declare_t declare_with(uform_host_t& host, uform_operations_t const& operations) {
    return {&host,           &operations,       fail_on_host,           declare_parameter, declare_term,
            declare_staging, declare_workspace, declare_column_staging, declare_vectors,   declare_notice,
            nullptr,         declare_cover,     list_coverings};
}

/** What deriving and creating one instance needs. */
template <typename plugin_at> class instance_start {
public:
    instance_start(plugin_instance<plugin_at>& instance, std::string const& name, plugin_at const* plugin,
                   uform_run_t const& run, uform_operations_t const& operations, declarations& declared)
        : instance_(instance), run_(run),
          host_{.parts = &instance, .declared = &declared, .columns_capacity = run.columns_capacity},
          declare_(declare_with(host_, operations)) {
        if (!plugin)
            fail(uform_status_invalid_argument_k, name, ": no ", kind_name(plugin), " of this name is registered");
        instance.plugin = plugin;
        instance.name = plugin->name;
        instance.own = is_own(plugin);
        declare_.plugin = plugin->name;
    }
    instance_start(instance_start const&) = delete;
    instance_start& operator=(instance_start const&) = delete;

    void derive(selection const& chosen, resumed_plugin from) {
        std::vector<uint8_t> const given = configuration_of(chosen);
        take(from.parts ? derive_resumed(kind(run_), given.data(), {from.parts->config, from.parts->given},
                                         kind(*from.run).derive)
                        : derive_given(kind(run_), given.data()));
    }

    void restore(saved_section const& saved) {
        // A plugin may be newer than the file: what it has learnt since derives.
        take(read_derived(kind(run_), *saved.values, saved.given, saved.path, absent_field_t::derives));
        std::vector<uint8_t> again = instance_.config;
        derive_with(*instance_.plugin, again.data(), run_); // the last word on whether it is enabled
        if (!enabled_)
            fail(uform_status_invalid_argument_k, saved.path, " is ", described().dump(),
                 ", which leaves it out of the run that lists it");
    }

    bool enabled() const { return enabled_ != 0; }
    void create() {
        call_plugin(instance_, "create", [&] {
            return instance_.plugin->create(instance_.config.data(), &run_, &declare_, &instance_.self);
        });
        check_misuse(instance_, host_);
        check_declared_for(*instance_.plugin);
        if (run_.training)
            add_covering(*instance_.plugin);
    }

private:
    static char const* kind_name(uform_objective_plugin_t const*) { return "objective"; }
    static char const* kind_name(uform_modality_plugin_t const*) { return "modality"; }

    void derive_with(uform_objective_plugin_t const& plugin, void* config, uform_run_t const& run) {
        call_plugin(instance_, "derive", [&] { return plugin.derive(config, &run, &declare_); });
        check_misuse(instance_, host_);
    }
    void derive_with(uform_modality_plugin_t const& plugin, void* config, uform_run_t const& run) {
        call_plugin(instance_, "derive", [&] { return plugin.derive(config, &run, &declare_, &enabled_); });
        check_misuse(instance_, host_);
    }

    /** What only one kind of plugin has; vectors are written and read by functions that the tap makes sure of. */
    void check_declared_for(uform_objective_plugin_t const& plugin) const {
        bool const tapped = plugin.taps & uform_tap_world_vectors_k;
        if (instance_.vectors_width && !tapped)
            refuse_plugin(instance_, uform_status_invalid_argument_k,
                          "its function create declared vectors, but its taps are without uform_tap_world_vectors_k");
        if (tapped && !instance_.vectors_width && run_.training)
            refuse_plugin(instance_, uform_status_invalid_argument_k,
                          "its taps have uform_tap_world_vectors_k, but its function create declared no vectors");
        if (plugin.answer_kind == uform_answer_kind_tokens_k && !instance_.vectors_width)
            refuse_plugin(instance_, uform_status_invalid_argument_k,
                          "its answer_kind is uform_answer_kind_tokens_k, but its function create declared no vectors, "
                          "of whose width embed_tokens answers rows");
        if (instance_.cover)
            refuse_plugin(instance_, uform_status_invalid_argument_k,
                          "its function create declared a ratio with cover, which only modalities have");
    }
    void check_declared_for(uform_modality_plugin_t const&) const {
        if (instance_.vectors_width)
            refuse_plugin(instance_, uform_status_invalid_argument_k,
                          "its function create declared vectors, which only objectives have");
    }

    void add_covering(uform_objective_plugin_t const&) {}
    void add_covering(uform_modality_plugin_t const& plugin) {
        bool const covers = plugin.cover_kind != uform_cover_kind_none_k;
        if (!instance_.own && covers != instance_.cover.has_value())
            refuse_plugin(instance_, uform_status_invalid_argument_k,
                          covers ? "its columns can be covered, but its function create declared no ratio with cover"
                                 : "its function create declared a ratio with cover, but its cover_kind is none");
        auto const [ratio, weight] = instance_.cover.value_or(std::pair(0.0, 0.0));
        if (covers)
            host_.declared->coverings.push_back({plugin.name, plugin.modality, plugin.cover_kind, ratio, weight});
    }

    config_kind kind(uform_run_t const& run) {
        plugin_at const& plugin = *instance_.plugin;
        return {{plugin.fields, plugin.fields_count}, plugin.config_bytes, [this, &plugin, &run](void* config) {
                    check_finite(plugin, config);
                    derive_with(plugin, config, run);
                    check_finite(plugin, config);
                }};
    }

    /** Numbers that no page of JSON holds; our own plugins refuse theirs in their own words. */
    void check_finite(plugin_at const& plugin, void const* config) const {
        double value = 0;
        for (uform_field_t const& field : std::span(plugin.fields, instance_.own ? 0 : plugin.fields_count))
            if (!field_is_finite(field, config)) {
                std::memcpy(&value, static_cast<std::byte const*>(config) + field.offset, sizeof(value));
                fail(uform_status_invalid_argument_k, "plugin ", instance_.name, ": ", field.name, " is ", value,
                     ": expected a finite number");
            }
    }

    /** As given, of the plugin's size. */
    std::vector<uint8_t> configuration_of(selection const& chosen) const {
        size_t const bytes = instance_.plugin->config_bytes;
        if (chosen.config.empty())
            return std::vector<uint8_t>(bytes);
        if (chosen.config.size() != bytes)
            fail(uform_status_invalid_argument_k, "plugin ", instance_.name, ": its configuration has ", bytes,
                 " bytes, not ", chosen.config.size());
        return chosen.config;
    }

    json described() const {
        return describe_fields(instance_.plugin->fields, instance_.plugin->fields_count, instance_.config.data());
    }

    void take(derived_config made) {
        instance_.config = std::move(made.values);
        instance_.given = std::move(made.given);
    }

    plugin_instance<plugin_at>& instance_;
    uform_run_t const& run_;
    uform_host_t host_;
    uform_declare_t declare_;
    uint32_t enabled_ = 1;
};

bool begins_alike(parameter const& left, parameter const& right) {
    return left.name == right.name && left.shape() == right.shape() && left.kind == right.kind &&
           left.deviation == right.deviation && left.value == right.value;
}

/** The fields in which a resumed instance differs: of those given where there are any. */
template <typename plugin_at>
std::string differences(plugin_instance<plugin_at> const& instance, selection const& chosen,
                        std::vector<uint8_t> const& saved) {
    std::string of_given, of_all;
    for (uform_field_t const& field : std::span(instance.plugin->fields, instance.plugin->fields_count)) {
        if (fields_equal(field, instance.config.data(), saved.data()))
            continue;
        std::string const text = instance.name + "." + field.name + ": the checkpoint has " +
                                 shown_field(field, saved.data()) + ", " + shown_field(field, instance.config.data()) +
                                 " was asked; ";
        of_all += text;
        if (!chosen.config.empty() && !field_is_zero(field, chosen.config.data()))
            of_given += text;
    }
    return of_given.empty() ? of_all : of_given;
}

/** A resumed run's parameters are the checkpoint's: a field that gives them another shape or another beginning would be
 *  ignored, so it is refused. */
template <typename plugin_at>
void check_same_parameters(plugin_instance<plugin_at> const& instance, selection const& chosen, resumed_plugin from,
                           parameter_table const& table) {
    if (!from.parts)
        return;
    auto const& own = instance.parameters;
    auto const& before = from.parts->parameters;
    size_t place = 0;
    while (place != own.size() && place != before.size() &&
           begins_alike(table.at(own[place]), from.parameters->at(before[place])))
        ++place;
    if (place == own.size() && place == before.size())
        return;
    std::string const& name = (place != own.size() ? table.at(own[place]) : from.parameters->at(before[place])).name;
    fail(uform_status_invalid_argument_k, differences(instance, chosen, from.parts->config), "its parameter ", name,
         " goes on as saved");
}

} // namespace

void refuse_plugin(plugin_parts const& of, uform_status_t status, std::string const& message, size_t content) {
    if (content == no_content_k)
        fail(status, "plugin ", of.name, ": ", message);
    fail(status, "plugin ", of.name, ": contents[", content, "]: ", message);
}

void check_misuse(plugin_parts const& of, uform_host_t const& host) {
    if (!host.misuse.empty())
        refuse_plugin(of, uform_status_invalid_argument_k, host.misuse);
}

void refuse_answer(plugin_parts const& of, char const* function, uform_status_t status, size_t content) {
    std::string const message = last_error();
    refuse_plugin(of, status,
                  message.empty() ? std::string("its function ") + function +
                                        " failed without a message, with status " + std::to_string(status)
                                  : message,
                  content);
}

uform_objective_plugin_t const* find_objective(std::string_view name) { return objectives().find(name); }
uform_modality_plugin_t const* find_modality(std::string_view name) { return modalities().find(name); }

bool start_modality(modality_instance& instance, selection const& chosen, resumed_plugin from, uform_run_t const& run,
                    uform_operations_t const& operations, declarations& declared) {
    instance_start start(instance, chosen.name, find_modality(chosen.name), run, operations, declared);
    start.derive(chosen, from);
    if (!start.enabled())
        return false;
    start.create();
    check_same_parameters(instance, chosen, from, declared.parameters);
    return true;
}

void start_objective(objective_instance& instance, selection const& chosen, resumed_plugin from, uform_run_t const& run,
                     uform_operations_t const& operations, declarations& declared) {
    instance_start start(instance, chosen.name, find_objective(chosen.name), run, operations, declared);
    start.derive(chosen, from);
    start.create();
    check_same_parameters(instance, chosen, from, declared.parameters);
}

void restore_modality(modality_instance& instance, saved_section const& saved, uform_run_t const& run,
                      uform_operations_t const& operations, declarations& declared) {
    instance_start start(instance, saved.path, find_modality(saved.name), run, operations, declared);
    start.restore(saved);
    start.create();
}

void restore_objective(objective_instance& instance, saved_section const& saved, uform_run_t const& run,
                       uform_operations_t const& operations, declarations& declared) {
    instance_start start(instance, saved.path, find_objective(saved.name), run, operations, declared);
    start.restore(saved);
    start.create();
}

void check_objective_section(saved_section const& saved, uform_run_t const& run, uform_operations_t const& operations) {
    objective_instance instance;
    declarations none;
    instance_start(instance, saved.path, find_objective(saved.name), run, operations, none).restore(saved);
}

} // namespace uform

extern "C" {

uform_status_t uform_objective_register(uform_objective_plugin_t const* plugin) {
    return uform::guard([&] {
        uform::check_abi(plugin);
        uform::field_table_check(plugin->name, plugin->config_bytes).run(plugin->fields, plugin->fields_count);
        uform::check_present(
            plugin, {{"derive", plugin->derive},
                     {"create", plugin->create},
                     {"destroy", plugin->destroy},
                     {"covered_capacity", plugin->covered_capacity},
                     {"plan", plugin->plan},
                     {"forward_backward", plugin->forward_backward},
                     {"extra_fill", plugin->extra_fill || !plugin->extra_columns},
                     {"infer", plugin->infer || plugin->answer_kind == uform_answer_kind_none_k},
                     {"columns_forward", plugin->columns_forward || !(plugin->taps & uform_tap_world_vectors_k)},
                     {"columns_backward", plugin->columns_backward || !(plugin->taps & uform_tap_world_vectors_k)}});
        uform::check_known(plugin->name, "taps", plugin->taps, uform::all_taps_k, "the sums of uform_tap_t");
        uform::check_known(plugin->name, "answer_kind", plugin->answer_kind, uform_answer_kind_choices_k,
                           "uform_answer_kind_t");
        uform::check_free(plugin->name, uform::find_modality(plugin->name));
        uform::objectives().add(plugin, [&](uform_objective_plugin_t const* known) {
            uform::check_free(plugin->name, !std::strcmp(known->name, plugin->name));
        });
    });
}

uform_status_t uform_modality_register(uform_modality_plugin_t const* plugin) {
    return uform::guard([&] {
        uform::check_abi(plugin);
        uform::field_table_check(plugin->name, plugin->config_bytes).run(plugin->fields, plugin->fields_count);
        bool const covers = plugin->cover_kind != uform_cover_kind_none_k;
        uform::check_present(plugin, {{"derive", plugin->derive},
                                      {"create", plugin->create},
                                      {"destroy", plugin->destroy},
                                      {"measure", plugin->measure},
                                      {"fill", plugin->fill},
                                      {"cover", plugin->cover || !covers},
                                      {"finish", plugin->finish},
                                      {"embed_forward", plugin->embed_forward},
                                      {"embed_backward", plugin->embed_backward},
                                      {"reconstruct", plugin->reconstruct || !covers}});
        if (plugin->modality < UFORM_MODALITY_FREE || plugin->modality >= UFORM_MODALITY_END)
            uform::fail(uform_status_invalid_argument_k, "plugin ", plugin->name, ": its modality's number is between ",
                        UFORM_MODALITY_FREE, " and ", UFORM_MODALITY_END - 1, ", not ", plugin->modality);
        uform::check_known(plugin->name, "cover_kind", plugin->cover_kind, uform_cover_kind_spans_k,
                           "uform_cover_kind_t");
        uform::check_free(plugin->name, uform::find_objective(plugin->name));
        uform::modalities().add(plugin, [&](uform_modality_plugin_t const* known) {
            uform::check_free(plugin->name, !std::strcmp(known->name, plugin->name));
            if (known->modality == plugin->modality)
                uform::fail(uform_status_invalid_argument_k, "plugin ", plugin->name, ": modality ", plugin->modality,
                            " is the number of plugin ", known->name);
        });
    });
}

uform_objective_plugin_t const* uform_objective_find(char const* name) { return uform::find_objective(name); }
uform_modality_plugin_t const* uform_modality_find(char const* name) { return uform::find_modality(name); }
}

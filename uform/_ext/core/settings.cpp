#include "core/settings.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <span>

#include "core/resume.h"

namespace uform {

namespace {

constexpr int32_t head_columns_k = 64;
constexpr int32_t most_hidden_k = 16384;
constexpr int32_t most_depth_k = 1024;
// Rotary positions and extents of segments are 16 bits wide.
constexpr int32_t most_row_columns_k = 65535;
constexpr int64_t most_device_columns_k = int64_t(1) << 30;
// Rates and decays past this overflow float32 weights in an update that the gradient's own finiteness lets pass.
constexpr double most_number_k = 1e6;
constexpr int32_t most_places_k = int32_t(1) << 24;

void derive_integer(int32_t& value, int64_t otherwise, int64_t least, int64_t most, char const* name) {
    int64_t const taken = value == 0 ? otherwise : value;
    if (taken < least || taken > most)
        fail(uform_status_invalid_argument_k, name, ": between ", least, " and ", most, ", not ", taken);
    value = static_cast<int32_t>(taken);
}

/** Zero derives, a negative value is a true zero. */
void derive_number(double& value, double otherwise, char const* name) {
    if (!std::isfinite(value))
        fail(uform_status_invalid_argument_k, name, ": a finite number, not ", value);
    if (value > most_number_k)
        fail(uform_status_invalid_argument_k, name, ": at most ", most_number_k, ", not ", value);
    value = value == 0 ? otherwise : value < 0 ? 0 : value;
}

struct network_t {
    int32_t depth;
    int32_t hidden;
};

void derive_network(network_t& network) {
    derive_integer(network.depth, 12, 1, most_depth_k, "depth");
    derive_integer(network.hidden, 512, head_columns_k, most_hidden_k, "hidden");
    if (network.hidden % head_columns_k)
        fail(uform_status_invalid_argument_k, "hidden: a multiple of ", head_columns_k, ", not ", network.hidden);
}

void derive_batch(uform_batch_shape_t& batch) {
    derive_integer(batch.max_columns_per_row, 1024, 1, most_row_columns_k, "BatchShape.max_columns_per_row");
    derive_integer(batch.max_rows_per_device, 64, 1, most_places_k, "BatchShape.max_rows_per_device");
    if (int64_t(batch.max_rows_per_device) * batch.max_columns_per_row > most_device_columns_k)
        fail(uform_status_invalid_argument_k, "BatchShape.max_rows_per_device: ", batch.max_rows_per_device,
             " rows of ", batch.max_columns_per_row, " columns are over ", most_device_columns_k, " columns a device");
    derive_integer(batch.max_segments_per_device, int64_t(4) * batch.max_rows_per_device, 1, most_places_k,
                   "BatchShape.max_segments_per_device");
    derive_integer(batch.max_bags_per_device, batch.max_segments_per_device, 1, most_places_k,
                   "BatchShape.max_bags_per_device");
    if (batch.max_choices_per_item < 0)
        batch.max_choices_per_item = 0;
    derive_integer(batch.max_choices_per_item, 0, 0, most_row_columns_k, "BatchShape.max_choices_per_item");
}

void derive_schedule(uform_schedule_t& schedule) {
    derive_number(schedule.learning_rate, 3e-4, "Schedule.learning_rate");
    derive_number(schedule.min_learning_rate, schedule.learning_rate / 10, "Schedule.min_learning_rate");
    if (schedule.min_learning_rate > schedule.learning_rate)
        fail(uform_status_invalid_argument_k, "Schedule.min_learning_rate: ", schedule.min_learning_rate,
             " is above learning_rate, ", schedule.learning_rate);
    if (schedule.steps == 0)
        schedule.steps = 100000;
    if (schedule.steps < 0)
        fail(uform_status_invalid_argument_k, "Schedule.steps: at least 1, not ", schedule.steps);
    if (schedule.warmup_steps == 0)
        schedule.warmup_steps = schedule.steps / 20;
    if (schedule.warmup_steps < 0)
        schedule.warmup_steps = 0;
    if (schedule.warmup_steps > schedule.steps)
        fail(uform_status_invalid_argument_k, "Schedule.warmup_steps: ", schedule.warmup_steps, " is above steps, ",
             schedule.steps);
}

void derive_optimizer(uform_optimizer_t& optimizer) {
    derive_number(optimizer.beta1, 0.9, "Optimizer.beta1");
    derive_number(optimizer.beta2, 0.98, "Optimizer.beta2");
    if (optimizer.beta1 >= 1)
        fail(uform_status_invalid_argument_k, "Optimizer.beta1: below 1, not ", optimizer.beta1);
    if (optimizer.beta2 >= 1)
        fail(uform_status_invalid_argument_k, "Optimizer.beta2: below 1, not ", optimizer.beta2);
    // A true zero would divide zero by zero for every parameter that no gradient reached; the update is in float32.
    double const given = optimizer.epsilon;
    if (given < 0)
        fail(uform_status_invalid_argument_k, "Optimizer.epsilon: above 0, not ", given);
    derive_number(optimizer.epsilon, 1e-6, "Optimizer.epsilon");
    if (static_cast<float>(optimizer.epsilon) == 0)
        fail(uform_status_invalid_argument_k, "Optimizer.epsilon: above 0 in float32, not ", given);
    derive_number(optimizer.weight_decay, 0.01, "Optimizer.weight_decay");
    derive_number(optimizer.max_gradient_norm, 1, "Optimizer.max_gradient_norm");
}

#define UFORM_FIELD(type, of, name) {#name, uform_field_type_##type##_k, offsetof(of, name), 0, 0}

uform_field_t const network_fields[] = {
    UFORM_FIELD(int32, network_t, depth),
    UFORM_FIELD(int32, network_t, hidden),
};

uform_field_t const batch_fields[] = {
    UFORM_FIELD(int32, uform_batch_shape_t, max_rows_per_device),
    UFORM_FIELD(int32, uform_batch_shape_t, max_segments_per_device),
    UFORM_FIELD(int32, uform_batch_shape_t, max_columns_per_row),
    UFORM_FIELD(int32, uform_batch_shape_t, max_bags_per_device),
    UFORM_FIELD(int32, uform_batch_shape_t, max_choices_per_item),
};

uform_field_t const schedule_fields[] = {
    UFORM_FIELD(double, uform_schedule_t, learning_rate),
    UFORM_FIELD(double, uform_schedule_t, min_learning_rate),
    UFORM_FIELD(int64, uform_schedule_t, warmup_steps),
    UFORM_FIELD(int64, uform_schedule_t, steps),
};

uform_field_t const optimizer_fields[] = {
    UFORM_FIELD(double, uform_optimizer_t, beta1),
    UFORM_FIELD(double, uform_optimizer_t, beta2),
    UFORM_FIELD(double, uform_optimizer_t, epsilon),
    UFORM_FIELD(double, uform_optimizer_t, weight_decay),
    UFORM_FIELD(double, uform_optimizer_t, max_gradient_norm),
};

#undef UFORM_FIELD

/** A structure of the settings, its place there and its name in a checkpoint. */
template <typename config_at> struct section {
    char const* name;
    std::span<uform_field_t const> fields;
    config_at settings::* config;
    std::vector<bool> settings::* given;
    config_kind kind;

    section(char const* name, std::span<uform_field_t const> fields, config_at settings::* config,
            std::vector<bool> settings::* given, void (*derive)(config_at&))
        : name(name), fields(fields), config(config), given(given),
          kind{fields, sizeof(config_at), [derive](void* values) { derive(*static_cast<config_at*>(values)); }} {}

    derived_config of(settings const& from) const {
        auto const* const values = reinterpret_cast<uint8_t const*>(&(from.*config));
        return {{values, values + sizeof(config_at)}, from.*given};
    }

    void store(settings& to, derived_config made) const {
        std::memcpy(&(to.*config), made.values.data(), sizeof(config_at));
        to.*given = std::move(made.given);
    }
};

struct sections_t {
    section<uform_batch_shape_t> batch{"batch", batch_fields, &settings::batch, &settings::batch_given, derive_batch};
    section<uform_schedule_t> schedule{"schedule", schedule_fields, &settings::schedule, &settings::schedule_given,
                                       derive_schedule};
    section<uform_optimizer_t> optimizer{"optimizer", optimizer_fields, &settings::optimizer,
                                         &settings::optimizer_given, derive_optimizer};
};

sections_t const& all_sections() {
    static sections_t const all;
    return all;
}

/** Runs `body` for each section of the settings, in the order in which they are written. */
template <typename body_at> void for_each_section(body_at&& body) {
    sections_t const& sections = all_sections();
    body(sections.batch);
    body(sections.schedule);
    body(sections.optimizer);
}

config_kind network_kind() {
    return {network_fields, sizeof(network_t), [](void* values) { derive_network(*static_cast<network_t*>(values)); }};
}

/** The network of a resumed run is the one that goes on; another one asked for is refused. */
void take_network(settings& given, settings const& saved) {
    auto const take = [](char const* name, int32_t& asked, int32_t known) {
        if (asked != 0 && asked != known)
            fail(uform_status_invalid_argument_k, name, ": the checkpoint has ", known, ", ", asked, " was asked");
        asked = known;
    };
    take("depth", given.depth, saved.depth);
    take("hidden", given.hidden, saved.hidden);
}

} // namespace

void derive(settings& given, settings const* saved) {
    if (saved)
        take_network(given, *saved);
    network_t network{given.depth, given.hidden};
    derive_network(network);
    given.depth = network.depth;
    given.hidden = network.hidden;
    if (saved && given.seed == 0)
        given.seed = saved->seed;
    for_each_section([&](auto const& one) {
        void const* const asked = &(given.*one.config);
        one.store(given, saved ? derive_resumed(one.kind, asked, one.of(*saved), one.kind.derive)
                               : derive_given(one.kind, asked));
    });
}

json describe(settings const& derived) {
    json whole = json::make_object();
    network_t const network{derived.depth, derived.hidden};
    whole.set("network", describe_fields(network_fields, std::size(network_fields), &network));
    for_each_section([&](auto const& one) {
        whole.set(one.name, describe_fields(one.fields.data(), one.fields.size(), &(derived.*one.config)));
    });
    whole.set("seed", derived.seed);
    return whole;
}

json describe_given(settings const& derived) {
    json sections = json::make_object();
    for_each_section([&](auto const& one) { sections.set(one.name, describe_given(one.fields, derived.*one.given)); });
    return sections;
}

json const& configuration_member(json const& object, std::string const& path, std::string_view name) {
    object.as_object(path);
    if (json const* const value = object.find(name))
        return *value;
    fail(uform_status_invalid_argument_k, field_path(path, name), " is missing");
}

void check_members(json const& object, std::string const& path, std::span<std::string_view const> known) {
    for (auto const& [name, value] : object.as_object(path))
        if (std::find(known.begin(), known.end(), name) == known.end())
            fail(uform_status_invalid_argument_k, path,
                 " has a member that this version does not know: ", quoted_name(name));
}

settings read_settings(json const& configuration) {
    settings read;
    auto const member = [&](char const* name) -> json const& { return configuration_member(configuration, "", name); };
    json const* const given = configuration.find("given");
    network_t network;
    derived_config const derived =
        read_derived(network_kind(), member("network"), nullptr, "network", absent_field_t::refused);
    std::memcpy(&network, derived.values.data(), sizeof(network));
    read.depth = network.depth;
    read.hidden = network.hidden;
    for_each_section([&](auto const& one) {
        json const* const names = given ? &configuration_member(*given, "given", one.name) : nullptr;
        one.store(read, read_derived(one.kind, member(one.name), names, one.name, absent_field_t::refused));
    });
    read.seed = member("seed").as_uint64("seed");
    return read;
}

uform_extents_t extents_of(settings const& derived) {
    uint32_t const hidden = static_cast<uint32_t>(derived.hidden);
    uint32_t const inner = (hidden * 8 / 3 + 127) / 128 * 128;
    return {static_cast<uint32_t>(derived.depth), hidden, inner, hidden / head_columns_k};
}

} // namespace uform

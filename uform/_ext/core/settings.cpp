#include "core/settings.h"

#include <cmath>
#include <cstddef>

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

#define UFORM_FIELD(type, of, name) {#name, uform_field_type_##type##_k, offsetof(of, name), 0, 0}

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

template <typename config_at, size_t count>
saved_config saved_section(uform_field_t const (&fields)[count], json const* saved, char const* section) {
    return {fields, count, sizeof(config_at), saved ? &saved->at(section) : nullptr, section};
}

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

void derive_network(settings& given) {
    derive_integer(given.depth, 12, 1, most_depth_k, "depth");
    derive_integer(given.hidden, 512, head_columns_k, most_hidden_k, "hidden");
    if (given.hidden % head_columns_k)
        fail(uform_status_invalid_argument_k, "hidden: a multiple of ", head_columns_k, ", not ", given.hidden);
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
    // A true zero would divide zero by zero for every parameter that no gradient reached.
    if (optimizer.epsilon < 0)
        fail(uform_status_invalid_argument_k, "Optimizer.epsilon: above 0, not ", optimizer.epsilon);
    derive_number(optimizer.epsilon, 1e-6, "Optimizer.epsilon");
    derive_number(optimizer.weight_decay, 0.01, "Optimizer.weight_decay");
    derive_number(optimizer.max_gradient_norm, 1, "Optimizer.max_gradient_norm");
}

int32_t saved_size(char const* name, json const& saved) {
    int64_t const value = saved.at("network").at(name).as_int64(name);
    if (value < 1 || value > INT32_MAX)
        fail(uform_status_invalid_argument_k, "resume: the checkpoint's ", name, " is ", value);
    return static_cast<int32_t>(value);
}

void check_same(char const* name, int32_t given, json const& saved) {
    int32_t const known = saved_size(name, saved);
    if (given != 0 && given != known)
        fail(uform_status_invalid_argument_k, name, ": the checkpoint has ", known, ", ", given, " was asked");
}

} // namespace

void derive(settings& asked, json const* saved) {
    settings const given = asked;
    if (saved) {
        check_same("depth", given.depth, *saved);
        check_same("hidden", given.hidden, *saved);
        if (asked.seed == 0)
            asked.seed = saved->at("seed").as_uint64("seed");
    }
    if (asked.depth == 0 && saved)
        asked.depth = saved_size("depth", *saved);
    if (asked.hidden == 0 && saved)
        asked.hidden = saved_size("hidden", *saved);
    auto const batch = saved_section<uform_batch_shape_t>(batch_fields, saved, "batch");
    auto const schedule = saved_section<uform_schedule_t>(schedule_fields, saved, "schedule");
    auto const optimizer = saved_section<uform_optimizer_t>(optimizer_fields, saved, "optimizer");
    batch.complete(&asked.batch);
    schedule.complete(&asked.schedule);
    optimizer.complete(&asked.optimizer);
    derive_network(asked);
    derive_batch(asked.batch);
    derive_schedule(asked.schedule);
    derive_optimizer(asked.optimizer);
    batch.restore_left_out(&given.batch, &asked.batch);
    schedule.restore_left_out(&given.schedule, &asked.schedule);
    optimizer.restore_left_out(&given.optimizer, &asked.optimizer);
}

json describe(settings const& derived) {
    json whole = json::make_object();
    json network = json::make_object();
    network.set("depth", derived.depth);
    network.set("hidden", derived.hidden);
    whole.set("network", std::move(network));
    whole.set("batch", describe_fields(batch_fields, std::size(batch_fields), &derived.batch));
    whole.set("schedule", describe_fields(schedule_fields, std::size(schedule_fields), &derived.schedule));
    whole.set("optimizer", describe_fields(optimizer_fields, std::size(optimizer_fields), &derived.optimizer));
    whole.set("seed", derived.seed);
    return whole;
}

uform_extents_t extents_of(settings const& derived) {
    uint32_t const hidden = static_cast<uint32_t>(derived.hidden);
    uint32_t const inner = (hidden * 8 / 3 + 127) / 128 * 128;
    return {static_cast<uint32_t>(derived.depth), hidden, inner, hidden / head_columns_k};
}

} // namespace uform

#include "core/checkpoint.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <set>
#include <span>
#include <vector>

namespace uform {

namespace {

constexpr char format_key_k[] = "format";
constexpr char format_k[] = "uform.checkpoint.1";
constexpr char configuration_key_k[] = "configuration";
constexpr char applied_k[] = "run.step";
constexpr char calls_k[] = "run.calls";
constexpr char seed_k[] = "run.seed";
// Random draws count calls in 56 bits.
constexpr uint64_t most_calls_k = (uint64_t(1) << 56) - 1;

std::string first_moment_name(parameter const& one) { return "optimizer.first_moment." + one.name; }
std::string second_moment_name(parameter const& one) { return "optimizer.second_moment." + one.name; }

std::span<std::byte const> bytes_of(float const* values, uint64_t count) {
    return std::as_bytes(std::span(values, count));
}

std::string shown(std::vector<uint64_t> const& shape) {
    std::string text = "[";
    for (uint64_t extent : shape)
        text += (text.size() > 1 ? ", " : "") + std::to_string(extent);
    return text + "]";
}

/** @param wanted What valid values are, for the message. */
template <typename valid_at>
void check_values(std::string const& name, std::span<float const> values, std::string const& wanted,
                  uform_status_t not_finite, valid_at&& valid) {
    auto const wrong = std::find_if_not(values.begin(), values.end(), valid);
    if (wrong == values.end())
        return;
    auto const place = wrong - values.begin();
    if (std::isfinite(*wrong))
        fail(uform_status_invalid_argument_k, "tensor ", name, ": its value ", place, " is ", exact(*wrong),
             ": it stays ", wanted);
    fail(not_finite, "tensor ", name, ": its value ", place, " is ", *wrong, ", which no run goes on with");
}

/* What a checkpoint may hold: written and read by the same rules, so that what was saved can be resumed. */

void check_parameter(parameter const& one, float const* values, uform_status_t not_finite) {
    check_values(one.name, {values, one.count()}, one.bounds(), not_finite,
                 [&](float value) { return std::isfinite(value) && value >= one.minimum && value <= one.maximum; });
}

void check_first_moment(parameter const& one, float const* values, uform_status_t not_finite) {
    check_values(first_moment_name(one), {values, one.count()}, "finite", not_finite,
                 [](float value) { return std::isfinite(value); });
}

/** The square of a gradient that no bound held may be past float32; the run goes on with that, too. */
void check_second_moment(parameter const& one, float const* values, uform_status_t not_finite) {
    check_values(second_moment_name(one), {values, one.count()}, "0 or more", not_finite,
                 [](float value) { return value >= 0; });
}

} // namespace

uint64_t checkpoint_tensors(parameter_table const& table) { return 3 * table.all().size(); }

void save_checkpoint(std::string const& path, parameter_table const& table, run_values const& values,
                     run_counters const& counters, json const& configuration, progress& told) {
    safetensors_writer writer(path);
    struct counter {
        char const* name;
        uint64_t value;
    };
    counter const counted[] = {{applied_k, counters.applied}, {calls_k, counters.calls}, {seed_k, counters.seed}};
    for (counter const& one : counted)
        writer.declare(one.name, safetensors_dtype_t::u64, {});
    auto const& all = table.all();
    for (parameter const& one : all)
        writer.declare(one.name, safetensors_dtype_t::f32, one.shape());
    for (parameter const& one : all)
        writer.declare(first_moment_name(one), safetensors_dtype_t::f32, one.shape());
    for (parameter const& one : all)
        writer.declare(second_moment_name(one), safetensors_dtype_t::f32, one.shape());
    writer.add_metadata(format_key_k, format_k);
    writer.add_metadata(configuration_key_k, configuration.dump());
    writer.begin();
    for (counter const& one : counted)
        writer.write(one.name, std::as_bytes(std::span(&one.value, 1)));
    auto const write = [&](values_of const& of, auto const& name, auto const& check) {
        for (parameter const& one : all) {
            float const* const from = of(one);
            check(one, from, uform_status_not_finite_k);
            writer.write(name(one), bytes_of(from, one.count()));
            told.advance();
        }
    };
    write(values.parameters, [](parameter const& one) { return one.name; }, check_parameter);
    write(values.first_moment, first_moment_name, check_first_moment);
    write(values.second_moment, second_moment_name, check_second_moment);
    writer.commit();
}

checkpoint::checkpoint(std::string path) : file_(safetensors_file::open(std::move(path))) {
    naming([&] {
        std::string const* const format = file_.find_metadata(format_key_k);
        std::string const* const configuration = file_.find_metadata(configuration_key_k);
        if (!format || !configuration)
            fail(uform_status_file_k, "no checkpoint of uform: its metadata has no format or configuration");
        if (*format != format_k)
            fail(uform_status_file_k, "its format is ", quoted_name(*format), ", this version reads ", format_k);
        try {
            configuration_ = json::parse(*configuration);
        } catch (error const& failure) {
            fail(uform_status_file_k, configuration_key_k, ": ", failure.message);
        }
        read_counters();
    });
}

void checkpoint::refuse(error const& failure) const {
    std::string const name = "'" + file_.path() + "': ";
    if (failure.status == uform_status_cancelled_k || failure.message.starts_with(name))
        throw failure;
    throw failure.reworded(name + failure.message);
}

void checkpoint::read_counters() {
    counters_ = {read_counter(applied_k), read_counter(calls_k), read_counter(seed_k)};
    if (counters_.calls > most_calls_k)
        fail(uform_status_invalid_argument_k, "tensor ", calls_k, " is ", counters_.calls, ", but at most ",
             most_calls_k);
    if (counters_.applied > counters_.calls)
        fail(uform_status_invalid_argument_k, "tensor ", applied_k, " is ", counters_.applied, ", over the tensor ",
             calls_k, ", ", counters_.calls);
}

uint64_t checkpoint::read_counter(char const* name) const {
    safetensors_tensor_t const* const tensor = file_.find(name);
    if (!tensor)
        fail(uform_status_invalid_argument_k, "tensor ", name, " is missing");
    if (tensor->dtype != safetensors_dtype_t::u64 || !tensor->shape.empty())
        fail(uform_status_invalid_argument_k, "tensor ", name, " is ", safetensors_dtype_name(tensor->dtype), " ",
             shown(tensor->shape), ", not U64 []");
    uint64_t value = 0;
    file_.read(name, std::as_writable_bytes(std::span(&value, 1)));
    return value;
}

std::unique_ptr<composition> checkpoint::restore(uform_operations_t const& operations, uint32_t devices,
                                                 bool training) const {
    auto whole =
        within(configuration_key_k, [&] { return uform::restore(configuration_, operations, devices, training); });
    if (whole->derived.seed != counters_.seed)
        fail(uform_status_invalid_argument_k, configuration_key_k, ": seed is ", whole->derived.seed, ", tensor ",
             seed_k, " is ", counters_.seed);
    check_tensors(whole->declared.parameters, training);
    return whole;
}

void checkpoint::check_tensors(parameter_table const& table, bool training) const {
    std::set<std::string, std::less<>> expected = {applied_k, calls_k, seed_k};
    auto const expect = [&](std::string const& name, parameter const& like) {
        check_tensor(name, like);
        expected.insert(name);
    };
    for (parameter const& one : table.all()) {
        expect(one.name, one);
        if (!training)
            continue;
        expect(first_moment_name(one), one);
        expect(second_moment_name(one), one);
    }
    if (!training)
        return;
    for (safetensors_tensor_t const& tensor : file_.tensors())
        if (!expected.contains(tensor.name))
            fail(uform_status_invalid_argument_k, "tensor ", quoted_name(tensor.name), " is none of this run's");
}

void checkpoint::check_tensor(std::string const& name, parameter const& like) const {
    safetensors_tensor_t const* const tensor = file_.find(name);
    if (!tensor)
        fail(uform_status_invalid_argument_k, "tensor ", name, " is missing, which comes of ", origin_of(like));
    if (tensor->dtype != safetensors_dtype_t::f32)
        fail(uform_status_invalid_argument_k, "tensor ", name, " is ", safetensors_dtype_name(tensor->dtype),
             ", not F32");
    if (tensor->shape != like.shape())
        fail(uform_status_invalid_argument_k, "tensor ", name, " has shape ", shown(tensor->shape), ", but ",
             shown(like.shape()), " comes of ", origin_of(like));
}

/** The section of the configuration that a parameter comes of, and what it says. */
std::string checkpoint::origin_of(parameter const& one) const {
    std::string const owner = one.name.substr(0, one.name.find('.'));
    for (char const* kind : {"modalities", "objectives"})
        if (json const* const section = configuration_.at(kind).find(owner))
            return std::string(configuration_key_k) + "." + kind + "." + owner + ", " + shortened(*section);
    return std::string(configuration_key_k) + ".network, " + shortened(configuration_.at("network"));
}

void checkpoint::read_values(std::string const& name, parameter const& like, float* to) const {
    check_tensor(name, like);
    file_.read(name, std::as_writable_bytes(std::span(to, like.count())));
}

void checkpoint::read_parameter(parameter const& one, float* to) const {
    read_values(one.name, one, to);
    check_parameter(one, to, uform_status_invalid_argument_k);
}

void checkpoint::read_moments(parameter const& one, float* first, float* second) const {
    read_values(first_moment_name(one), one, first);
    check_first_moment(one, first, uform_status_invalid_argument_k);
    read_values(second_moment_name(one), one, second);
    check_second_moment(one, second, uform_status_invalid_argument_k);
}

} // namespace uform

#include "core/checkpoint.h"

#include <set>

namespace uform {

namespace {

constexpr char format_key_k[] = "format";
constexpr char format_k[] = "uform.checkpoint.1";
constexpr char configuration_key_k[] = "configuration";
constexpr char applied_k[] = "run.step";
constexpr char calls_k[] = "run.calls";
constexpr char seed_k[] = "run.seed";

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
    auto const write = [&](std::string const& name, float const* from, uint64_t count) {
        writer.write(name, bytes_of(from, count));
        told.advance();
    };
    for (parameter const& one : all)
        write(one.name, values.parameters + one.offset, one.count());
    for (parameter const& one : all)
        write(first_moment_name(one), values.first_moment + one.offset, one.count());
    for (parameter const& one : all)
        write(second_moment_name(one), values.second_moment + one.offset, one.count());
    writer.commit();
}

checkpoint::checkpoint(std::string path) : file_(safetensors_file::open(std::move(path))) {
    std::string const* const format = file_.find_metadata(format_key_k);
    std::string const* const configuration = file_.find_metadata(configuration_key_k);
    if (!format || !configuration)
        fail(uform_status_file_k, file_.path(),
             ": no checkpoint of uform: its metadata has no format or configuration");
    if (*format != format_k)
        fail(uform_status_file_k, file_.path(), ": its format is ", quoted_name(*format), ", this version reads ",
             format_k);
    try {
        configuration_ = json::parse(*configuration);
        for (char const* section : {"network", "batch", "schedule", "optimizer", "seed", "modalities", "objectives"})
            configuration_.at(section);
    } catch (error const& failure) {
        fail(uform_status_file_k, file_.path(), ": its configuration: ", failure.what());
    }
    counters_ = {read_counter(applied_k), read_counter(calls_k), read_counter(seed_k)};
}

uint64_t checkpoint::read_counter(char const* name) const {
    safetensors_tensor_t const* const tensor = file_.find(name);
    if (!tensor)
        fail(uform_status_file_k, file_.path(), ": tensor ", name, " is missing");
    if (tensor->dtype != safetensors_dtype_t::u64 || !tensor->shape.empty())
        fail(uform_status_file_k, file_.path(), ": tensor ", name, " is no U64 scalar");
    uint64_t value = 0;
    file_.read(name, std::as_writable_bytes(std::span(&value, 1)));
    return value;
}

void checkpoint::check_tensors(parameter_table const& table) const {
    std::set<std::string> expected = {applied_k, calls_k, seed_k};
    for (parameter const& one : table.all())
        for (std::string name : {one.name, first_moment_name(one), second_moment_name(one)}) {
            safetensors_tensor_t const* const tensor = file_.find(name);
            if (!tensor)
                fail(uform_status_file_k, file_.path(), ": tensor ", name, " is missing");
            if (tensor->shape != one.shape())
                fail(uform_status_invalid_argument_k, "resume: tensor ", name, " has shape ", shown(tensor->shape),
                     " in the checkpoint, ", shown(one.shape()), " in this run");
            expected.insert(std::move(name));
        }
    for (safetensors_tensor_t const& tensor : file_.tensors())
        if (!expected.contains(tensor.name))
            fail(uform_status_file_k, file_.path(), ": tensor ", quoted_name(tensor.name), " is none of this run's");
}

void checkpoint::read_values(std::string const& name, parameter const& like, float* to) const {
    safetensors_tensor_t const* const tensor = file_.find(name);
    if (!tensor)
        fail(uform_status_file_k, file_.path(), ": tensor ", name, " is missing");
    if (tensor->dtype != safetensors_dtype_t::f32)
        fail(uform_status_file_k, file_.path(), ": tensor ", name, " is ", safetensors_dtype_name(tensor->dtype),
             ", not F32");
    if (tensor->shape != like.shape())
        fail(uform_status_file_k, file_.path(), ": tensor ", name, " has shape ", shown(tensor->shape), ", not ",
             shown(like.shape()));
    file_.read(name, std::as_writable_bytes(std::span(to, like.count())));
}

void checkpoint::read_parameter(parameter const& one, float* to) const { read_values(one.name, one, to); }

void checkpoint::read_moments(parameter const& one, float* first, float* second) const {
    read_values(first_moment_name(one), one, first);
    read_values(second_moment_name(one), one, second);
}

} // namespace uform

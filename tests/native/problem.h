/** Tiny runs through the C API alone: handles that free themselves, calls that own their buffers, weights by name. */
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <unistd.h>

#include <uform/uform.h>

namespace native_test {

constexpr int32_t hidden_k = 64;
constexpr uint64_t image_side_k = 8;
constexpr uint64_t image_channels_k = 3;

struct release {
    void operator()(uform_executor_t* handle) const { uform_executor_free(handle); }
    void operator()(uform_trainer_t* handle) const { uform_trainer_free(handle); }
    void operator()(uform_model_t* handle) const { uform_model_free(handle); }
    void operator()(uform_pending_t* handle) const { uform_pending_free(handle); }
    void operator()(char* handle) const { uform_string_free(handle); }
};
using executor_ptr = std::unique_ptr<uform_executor_t, release>;
using trainer_ptr = std::unique_ptr<uform_trainer_t, release>;
using model_ptr = std::unique_ptr<uform_model_t, release>;
using pending_ptr = std::unique_ptr<uform_pending_t, release>;
using string_ptr = std::unique_ptr<char, release>;

/** For what a test takes for granted; what it is about, it checks. */
inline void require(uform_status_t status, char const* what) {
    if (status != uform_status_success_k)
        throw std::runtime_error(std::string(what) + ": " + uform_last_error());
}

inline executor_ptr make_executor(int32_t devices = 1, int32_t threads = 2) {
    uform_executor_t* made = nullptr;
    require(uform_executor_init_ram(devices, threads, nullptr, &made), "executor");
    return executor_ptr(made);
}

inline trainer_ptr make_trainer(executor_ptr const& executor, uform_trainer_options_t const& options) {
    uform_trainer_t* made = nullptr;
    require(uform_trainer_init_ram(executor.get(), &options, &made), "trainer");
    return trainer_ptr(made);
}

inline trainer_ptr make_vram_trainer(executor_ptr const& executor, uform_trainer_options_t const& options) {
    uform_trainer_t* made = nullptr;
    require(uform_trainer_init_vram(executor.get(), &options, &made), "trainer");
    return trainer_ptr(made);
}

inline model_ptr make_model(executor_ptr const& executor, std::string const& path) {
    uform_model_t* made = nullptr;
    require(uform_model_init_ram(executor.get(), path.c_str(), &made), "model");
    return model_ptr(made);
}

/** Two blocks of 64 columns over 4 rows of 32 columns, texts and images, without warmup. */
inline uform_trainer_options_t tiny_options(int32_t objective) {
    uform_trainer_options_t options{};
    options.depth = 2;
    options.hidden = hidden_k;
    options.batch.max_rows_per_device = 4;
    options.batch.max_columns_per_row = 32;
    options.batch.image.patch_side = 4;
    options.objective = objective;
    options.schedule.learning_rate = 3e-3;
    options.schedule.warmup_steps = -1;
    options.seed = 7;
    return options;
}

/** One edge set that owns its buffers; their exact sizes let a sanitizer see any read past them. */
struct edge_set {
    std::vector<size_t> offsets;
    std::vector<uint32_t> ids;
    std::vector<float> weights;

    uform_edges_t view() const {
        return {offsets.empty() ? nullptr : offsets.data(), offsets.size(),
                ids.empty() ? nullptr : ids.data(),         ids.size(),
                weights.empty() ? nullptr : weights.data(), weights.size()};
    }
};

/** The edges of `pairs` over `items` items. */
inline edge_set edges_of(size_t items, std::vector<std::pair<uint32_t, uint32_t>> const& pairs) {
    edge_set made;
    made.offsets.assign(items + 1, 0);
    for (uint32_t row = 0; row != items; ++row) {
        for (auto const& [from, to] : pairs)
            if (from == row)
                made.ids.push_back(to);
        made.offsets[row + 1] = made.ids.size();
    }
    return made;
}

/** A call's items and relations with the buffers that they borrow. */
struct call_t {
    call_t() = default;
    call_t(call_t&&) = default;
    call_t& operator=(call_t&&) = default;

    std::vector<std::vector<uint8_t>> bytes; /* of each item: a text, or an image's pixels */
    std::vector<uint8_t> modalities;
    std::vector<uform_content_t> contents;
    std::vector<uint32_t> bags;
    std::vector<uint32_t> groups;
    std::vector<uint8_t> sides;
    edge_set attract, repel, ignore;

    size_t count() const { return modalities.size(); }

    void add_text(std::string const& text) {
        bytes.emplace_back(text.begin(), text.end());
        modalities.push_back(uform_modality_text_k);
        uform_content_t content{};
        content.data = bytes.back().data();
        content.bytes = bytes.back().size();
        contents.push_back(content);
    }

    void add_image(std::vector<uint8_t> pixels, uint64_t height = image_side_k, uint64_t width = image_side_k) {
        bytes.push_back(std::move(pixels));
        modalities.push_back(uform_modality_image_k);
        uform_content_t content{};
        content.data = bytes.back().data();
        content.bytes = bytes.back().size();
        content.rank = 3;
        content.element = uform_element_uint8_k;
        content.extents[0] = height, content.extents[1] = width, content.extents[2] = image_channels_k;
        content.strides[0] = static_cast<int64_t>(width * image_channels_k);
        content.strides[1] = static_cast<int64_t>(image_channels_k);
        content.strides[2] = 1;
        contents.push_back(content);
    }

    uform_items_t items() const {
        uform_items_t view{};
        view.count = count();
        view.modalities = modalities.data();
        view.contents = contents.data();
        view.bags = bags.empty() ? nullptr : bags.data();
        return view;
    }

    uform_step_t step() const {
        uform_step_t view{};
        view.items = items();
        view.temperature_groups = groups.empty() ? nullptr : groups.data();
        view.sides = sides.empty() ? nullptr : sides.data();
        view.relations = {attract.view(), repel.view(), ignore.view()};
        return view;
    }
};

/** An image of one pattern a kind, with a little noise. */
inline std::vector<uint8_t> image_of(uint32_t kind, std::mt19937& random) {
    std::vector<uint8_t> pixels(image_side_k * image_side_k * image_channels_k);
    for (size_t place = 0; place != pixels.size(); ++place) {
        size_t const pixel = place / image_channels_k, channel = place % image_channels_k;
        bool const lit = (pixel / image_side_k + (kind + 1) * (pixel % image_side_k)) / 4 % 2 == (kind + channel) % 2;
        pixels[place] = static_cast<uint8_t>((lit ? 200 : 40) + random() % 16);
    }
    return pixels;
}

/** Five images and their five names, attracting each other both ways; 76 columns in 10 segments. */
inline call_t image_text_call(uint32_t seed = 1, int32_t objective = uform_objective_joint_k) {
    constexpr char const* names[] = {"zero", "one one", "two", "number three", "fourfour"};
    std::mt19937 random(seed);
    call_t call;
    std::vector<std::pair<uint32_t, uint32_t>> pairs;
    for (uint32_t kind = 0; kind != std::size(names); ++kind) {
        call.add_text(names[kind]);
        call.add_image(image_of(kind, random));
        pairs.push_back({2 * kind, 2 * kind + 1});
        pairs.push_back({2 * kind + 1, 2 * kind});
    }
    if (objective != uform_objective_masked_k) // which relates nothing
        call.attract = edges_of(call.count(), pairs);
    return call;
}

/** A step's answer as float32. */
struct output_t {
    std::vector<float> values;
    uform_output_t view;

    explicit output_t(size_t rows)
        : values(rows * hidden_k), view{values.data(), rows, sizeof(float) * hidden_k, uform_scalar_float32_k} {}
    output_t(output_t const&) = delete;
    float const* row(size_t index) const { return values.data() + index * hidden_k; }
};

inline pending_ptr submit_step(trainer_ptr const& trainer, uform_step_t const& step) {
    uform_pending_t* made = nullptr;
    require(uform_trainer_submit(trainer.get(), &step, &made), "submit");
    return pending_ptr(made);
}

inline uform_trainer_step_stats_t run_step(trainer_ptr const& trainer, call_t const& call) {
    uform_trainer_step_stats_t stats{};
    uform_step_t const step = call.step();
    require(uform_trainer_step(trainer.get(), &step, &stats), "step");
    return stats;
}

inline std::vector<uform_trainer_step_stats_t> run_steps(trainer_ptr const& trainer, call_t const& call, int steps) {
    std::vector<uform_trainer_step_stats_t> all;
    for (int step = 0; step != steps; ++step)
        all.push_back(run_step(trainer, call));
    return all;
}

struct parameter_t {
    std::string name;
    size_t count;
};

/** Names and sizes of a run's parameters, out of its description. */
inline std::vector<parameter_t> parameters_of(trainer_ptr const& trainer) {
    char* text = nullptr;
    require(uform_trainer_describe(trainer.get(), &text), "describe");
    string_ptr const owner(text);
    std::vector<parameter_t> parameters;
    char const name_key[] = "{\"name\":\"", shape_key[] = "\"shape\":[";
    for (char const* at = std::strstr(text, "\"parameters\":["); at && (at = std::strstr(at, name_key));) {
        at += std::strlen(name_key);
        parameter_t one{std::string(at, std::strchr(at, '"')), 1};
        at = std::strstr(at, shape_key) + std::strlen(shape_key);
        for (char* end = nullptr; *at != ']'; at = *end == ',' ? end + 1 : end)
            one.count *= std::strtoull(at, &end, 10);
        parameters.push_back(std::move(one));
    }
    return parameters;
}

/** Every value of a kind (`what` of `uform_trainer_read`), in the order of the parameters. */
inline std::vector<float> values_of(trainer_ptr const& trainer, int32_t what = 0) {
    std::vector<float> values;
    for (parameter_t const& one : parameters_of(trainer)) {
        size_t const before = values.size();
        values.resize(before + one.count);
        require(uform_trainer_read(trainer.get(), one.name.c_str(), what, values.data() + before, one.count), "read");
    }
    return values;
}

inline bool same_bits(std::vector<float> const& left, std::vector<float> const& right) {
    return left.size() == right.size() &&
           (left.empty() || !std::memcmp(left.data(), right.data(), sizeof(float) * left.size()));
}

/** Whether weights and both moments are equal, bit for bit. */
inline bool same_run(trainer_ptr const& left, trainer_ptr const& right) {
    for (int32_t what : {0, 2, 3})
        if (!same_bits(values_of(left, what), values_of(right, what)))
            return false;
    return true;
}

/** A new folder, gone with its owner. */
class temporary_folder {
public:
    temporary_folder() {
        std::string name = (std::filesystem::temp_directory_path() / "uform-native-XXXXXX").string();
        if (!mkdtemp(name.data()))
            throw std::runtime_error("no folder for temporary files");
        path_ = name;
    }
    ~temporary_folder() { std::filesystem::remove_all(path_); }
    temporary_folder(temporary_folder const&) = delete;
    std::string file(std::string const& name) const { return (path_ / name).string(); }
    size_t files() const { return static_cast<size_t>(std::distance(std::filesystem::directory_iterator(path_), {})); }

private:
    std::filesystem::path path_;
};

} // namespace native_test

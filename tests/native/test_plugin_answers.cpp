// What a third party's objective answers in inference is looked through before any of it is read.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include <uform/plugin.h>

#include "check.h"
#include "faulty_plugin.h"
#include "problem.h"

using namespace native_test;

namespace {

/** What `infer` does of its work, or wrongly. */
enum class answering { right, nothing, no_values, no_offsets, wide, narrow, later, descending, many, few, throws };

answering how;
uint32_t rows_of_segment; /* of a text's choices; 0: as many as it has columns */
constexpr uint32_t width_k = 8;

struct answer_state {
    std::vector<std::vector<uint32_t>> parts = std::vector<std::vector<uint32_t>>(1); /* by device */
    /* One of each for all devices. */
    std::vector<uint32_t> offsets;
    std::vector<float> values = std::vector<float>(4096);
};

uform_status_t plan_answers(void* opaque, uform_plan_t const* plan, uint32_t) {
    if (plan->run->training)
        return uform_status_success_k;
    auto& self = *static_cast<answer_state*>(opaque);
    self.parts.assign(plan->run->devices, {0});
    for (uint32_t device = 0; device != plan->run->devices; ++device) {
        uform_device_view_t const& view = plan->devices[device];
        for (uint32_t segment = 0; segment != view.segments_count; ++segment)
            self.parts[device].push_back(self.parts[device].back() +
                                         (rows_of_segment ? rows_of_segment : view.segments[segment].columns));
    }
    return uform_status_success_k;
}

uform_status_t infer(void* opaque, uform_pass_t const* pass, uform_answer_t* answer) {
    auto& self = *static_cast<answer_state*>(opaque);
    self.offsets = self.parts[pass->device];
    std::fill(self.values.begin(), self.values.end(), 0.5f + static_cast<float>(pass->device));
    *answer = {self.values.data(), rows_of_segment ? 1 : width_k, self.offsets.data()};
    switch (how) {
    case answering::nothing:
        *answer = {};
        break;
    case answering::no_values:
        answer->values = nullptr;
        break;
    case answering::no_offsets:
        answer->offsets = nullptr;
        break;
    case answering::wide:
        answer->width = 64;
        break;
    case answering::narrow:
        answer->width = 0;
        break;
    case answering::later:
        self.offsets[0] = 3;
        break;
    case answering::descending:
        self.offsets[2] = 0;
        break;
    case answering::many:
        ++self.offsets[1];
        break;
    case answering::few:
        --self.offsets[2];
        break;
    case answering::throws:
        throw std::runtime_error("infer broke");
    default:
        break;
    }
    return uform_status_success_k;
}

uform_objective_plugin_t answering_plugin(char const* name, uint32_t kind) {
    uform_objective_plugin_t made = faulty_plugin;
    bool const tokens = kind == uform_answer_kind_tokens_k;
    made.name = name;
    made.taps = tokens ? uform_tap_world_vectors_k : uform_tap_bags_k;
    made.derive = [](void*, uform_run_t const*, uform_declare_t const*) { return uform_status_success_k; };
    made.create = [](void const*, uform_run_t const*, uform_declare_t const* declare, void** self) {
        *self = new answer_state;
        return std::string_view(declare->plugin) == "tokens" ? declare->vectors(declare->host, width_k)
                                                             : uform_status_success_k;
    };
    made.destroy = [](void* self) { delete static_cast<answer_state*>(self); };
    made.plan = plan_answers;
    made.forward_backward = [](void*, uform_pass_t const* pass) {
        if (pass->world_vectors_gradient)
            std::memset(pass->world_vectors_gradient, 0, sizeof(float) * width_k * pass->columns.capacity);
        return uform_status_success_k;
    };
    made.answer_kind = kind;
    made.infer = infer;
    made.columns_forward = made.columns_backward = [](void*, uform_pass_t const*) { return uform_status_success_k; };
    return made;
}

uform_trainer_options_t options_of(uform_plugin_option_t const* plugins, size_t count) {
    auto options = tiny_options(uform_objective_contrastive_k);
    options.plugins = plugins;
    options.plugins_count = count;
    return options;
}

std::string trained(temporary_folder const& folder, char const* plugin) {
    uform_plugin_option_t const option{plugin, nullptr, 0};
    std::string const path = folder.file(plugin);
    trainer_ptr const trainer = make_trainer(make_executor(), options_of(&option, 1));
    require(uform_trainer_save(trainer.get(), path.c_str(), nullptr, nullptr, 0), "save");
    return path;
}

struct expected_t {
    answering how;
    std::string message; /* none: it is answered */
};

std::string ends(uint32_t at, uint32_t is, uint32_t expected, uint32_t rows, uint32_t content) {
    return "its offsets[" + std::to_string(at) + "] is " + std::to_string(is) + ": expected " +
           std::to_string(expected) + ", which ends the " + std::to_string(rows) + " rows of contents[" +
           std::to_string(content) + "]";
}

std::vector<expected_t> expected_of(uint32_t rows, std::string const& width) {
    return {{answering::right, ""},
            {answering::nothing, "its values is null"},
            {answering::no_values, "its values is null"},
            {answering::no_offsets, "its offsets is null"},
            {answering::wide, "its width is 64: expected " + width},
            {answering::narrow, "its width is 0: expected " + width},
            {answering::later, "its offsets[0] is 3: expected 0"},
            {answering::descending,
             "its offsets[2] is 0: expected none below " + std::to_string(rows) + ", the one before it"},
            {answering::many, ends(1, rows + 1, rows, rows, 0)},
            {answering::few, ends(2, 2 * rows - 1, 2 * rows, rows, 1)},
            {answering::right, ""}};
}

template <typename verb_at> void check_answers(char const* plugin, std::vector<expected_t> const& all, verb_at&& verb) {
    for (expected_t const& one : all) {
        how = one.how;
        uform_status_t const status = verb();
        if (one.message.empty()) {
            require(status, plugin);
            continue;
        }
        std::string const message = std::string("plugin ") + plugin + ": infer: " + one.message;
        CHECK(refused(status, {fault::none, uform_status_invalid_argument_k, message.c_str()}));
    }
    how = answering::throws;
    std::string const threw = std::string("plugin ") + plugin + ": its function infer threw: infer broke";
    CHECK(refused(verb(), {fault::none, uform_status_internal_k, threw.c_str()}));
}

/** The same two texts for every item. */
struct offered_texts {
    std::string tape = "xy";
    std::vector<uint64_t> offsets{0, 1, 2};
    uform_choice_texts_t view{};

    offered_texts() {
        view.tape = reinterpret_cast<uint8_t const*>(tape.data());
        view.tape_offsets = offsets.data();
        view.tape_bytes = tape.size();
        view.count = 2;
    }
    offered_texts(offered_texts const&) = delete;
};

void test_choices(temporary_folder const& folder) {
    rows_of_segment = 2;
    model_ptr const model = make_model(make_executor(), trained(folder, "choosing"));
    call_t call;
    call.add_text("abc"), call.add_text("d"), call.add_text("");
    uform_items_t const items = call.items();
    offered_texts const offered;
    std::vector<float> probabilities(6);
    check_answers("choosing", expected_of(2, "1"), [&] {
        return uform_model_text_choose(model.get(), &items, &offered.view, probabilities.data(), probabilities.size(),
                                       nullptr, nullptr, nullptr);
    });
    CHECK(probabilities == std::vector<float>(6, 0.5f));
}

void test_tokens(temporary_folder const& folder) {
    rows_of_segment = 0;
    model_ptr const model = make_model(make_executor(), trained(folder, "tokens"));
    call_t call;
    call.add_text("abcd"), call.add_text("efgh"), call.add_text("");
    uform_items_t const items = call.items();
    std::vector<uint8_t> const sides{1, 2, 1};
    std::vector<uint64_t> offsets(4);
    size_t width = 0;
    require(uform_model_measure_tokens(model.get(), &items, sides.data(), offsets.data(), &width), "measure");
    // A query's are those of all of its columns where the objective has no `max_query_span`.
    CHECK(width == width_k && offsets == std::vector<uint64_t>{0, 5, 10, 11});
    std::vector<float> values(offsets.back() * width);
    uform_output_t const output{values.data(), offsets.back(), sizeof(float) * width, uform_scalar_float32_k};
    check_answers("tokens", expected_of(5, "8"), [&] {
        return uform_model_embed_tokens(model.get(), &items, sides.data(), &output, nullptr, nullptr, nullptr);
    });
    CHECK(values == std::vector<float>(values.size(), 0.5f));
}

/** An answer is read before the plugin is called for another device. */
void test_devices_that_share(temporary_folder const& folder) {
    rows_of_segment = 2, how = answering::right;
    model_ptr const model = make_model(make_executor(2), trained(folder, "choosing"));
    call_t call;
    call.add_text("abc"), call.add_text("d"), call.add_text("ef");
    uform_items_t const items = call.items();
    offered_texts const offered;
    std::vector<float> found(6);
    require(uform_model_text_choose(model.get(), &items, &offered.view, found.data(), found.size(), nullptr, nullptr,
                                    nullptr),
            "text_choose");
    CHECK(found[0] == found[1] && found[2] == found[3] && found[4] == found[5]);
    auto const of = [&](float value) { return std::count(found.begin(), found.end(), value); };
    CHECK(of(0.5f) != 0 && of(1.5f) != 0 && of(0.5f) + of(1.5f) == 6);
}

/** One verb, one answer; and rows of no width are none. */
void test_refused_runs() {
    executor_ptr const executor = make_executor();
    uform_trainer_t* made = nullptr;
    uform_plugin_option_t const both[] = {{"choosing", nullptr, 0}, {"choosing_too", nullptr, 0}};
    auto options = options_of(both, 2);
    CHECK(refused(uform_trainer_init_ram(executor.get(), &options, &made),
                  {fault::none, uform_status_invalid_argument_k,
                   "plugin choosing_too: it answers text_choose, and so does plugin choosing of this run"}));
    uform_late_interaction_t late{};
    late.width = 8;
    uform_plugin_option_t const tokens{"tokens", nullptr, 0}, flat{"flat", nullptr, 0};
    options = options_of(&tokens, 1);
    options.late_interaction = &late;
    CHECK(refused(uform_trainer_init_ram(executor.get(), &options, &made),
                  {fault::none, uform_status_invalid_argument_k,
                   "plugin tokens: it answers embed_tokens, and so does plugin late_interaction of this run"}));
    options = options_of(&flat, 1);
    CHECK(refused(uform_trainer_init_ram(executor.get(), &options, &made),
                  {fault::none, uform_status_invalid_argument_k,
                   "plugin flat: its answer_kind is uform_answer_kind_tokens_k, but its function create declared no"}));
}

} // namespace

int main() {
    static uform_objective_plugin_t const plugins[] = {
        answering_plugin("choosing", uform_answer_kind_choices_k),
        answering_plugin("choosing_too", uform_answer_kind_choices_k),
        answering_plugin("tokens", uform_answer_kind_tokens_k),
        [] {
            uform_objective_plugin_t flat = answering_plugin("flat", uform_answer_kind_tokens_k);
            flat.taps = uform_tap_bags_k;
            return flat;
        }(),
    };
    for (uform_objective_plugin_t const& plugin : plugins)
        require(uform_objective_register(&plugin), "register");
    temporary_folder const folder;
    test_choices(folder);
    test_tokens(folder);
    test_devices_that_share(folder);
    test_refused_runs();
    return report();
}

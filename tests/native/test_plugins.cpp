// A third party's plugin that fails in every way: the error names it, and the trainer goes on.
#include <cmath>
#include <limits>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>

#include <uform/plugin.h>

#include "check.h"
#include "faulty_plugin.h"
#include "problem.h"

using namespace native_test;

namespace {

uform_trainer_options_t options_of(uform_plugin_option_t const& option,
                                   int32_t objective = uform_objective_contrastive_k) {
    auto options = tiny_options(objective);
    options.plugins = &option;
    options.plugins_count = 1;
    return options;
}

void test_failures_at_init() {
    uform_plugin_option_t const option{"faulty", nullptr, 0};
    auto const options = options_of(option);
    executor_ptr const executor = make_executor();
    for (expectation const& one : at_init_k) {
        current = one.made;
        uform_trainer_t* made = nullptr;
        CHECK(refused(uform_trainer_init_ram(executor.get(), &options, &made), one));
        CHECK(!made);
    }
}

void test_failures_in_a_step(std::span<expectation const> expected) {
    uform_plugin_option_t const option{"faulty", nullptr, 0};
    executor_ptr const executor = make_executor();
    current = fault::none;
    trainer_ptr const trainer = make_trainer(executor, options_of(option));
    call_t const call = image_text_call();
    uform_step_t const step = call.step();
    uint64_t applied = run_step(trainer, call).step;
    for (expectation const& one : expected) {
        current = one.made;
        uform_trainer_step_stats_t stats{};
        CHECK(refused(uform_trainer_step(trainer.get(), &step, &stats), one));
        current = fault::none;
        auto const next = run_step(trainer, call);
        CHECK(next.step == ++applied);
        CHECK(std::isfinite(next.loss) && next.extra_count == 1 && next.extra[0].value == 1);
    }
}

void test_registration() {
    CHECK(!uform_objective_find("faulty"));
    require(uform_objective_register(&faulty_plugin), "register");
    CHECK(uform_objective_find("faulty") == &faulty_plugin);
    CHECK(!uform_modality_find("faulty") && uform_modality_find("text") && uform_objective_find("masked"));
    expectation const taken{fault::none, uform_status_invalid_argument_k, "plugin faulty: the name is taken"};
    uform_objective_plugin_t const again = faulty_plugin;
    CHECK(refused(uform_objective_register(&again), taken));
}

/** Terms are the plugin's own, and so never a field of the stats: its number would be lost there. */
void test_names_of_the_stats() {
    static uform_objective_plugin_t const plugin = [] {
        uform_objective_plugin_t made = faulty_plugin;
        made.name = "masked_text";
        made.derive = [](void*, uform_run_t const*, uform_declare_t const*) { return uform_status_success_k; };
        made.create = [](void const*, uform_run_t const*, uform_declare_t const* declare, void**) {
            return declare->term(declare->host, "masked_text_loss", 1, &term_handle);
        };
        return made;
    }();
    require(uform_objective_register(&plugin), "register");
    uform_plugin_option_t const option{"masked_text", nullptr, 0};
    executor_ptr const executor = make_executor();
    auto const options = options_of(option);
    uform_trainer_t* made = nullptr;
    CHECK(refused(uform_trainer_init_ram(executor.get(), &options, &made),
                  {fault::none, uform_status_invalid_argument_k,
                   "plugin masked_text: term masked_text_loss: the name is a field's of TrainerStepStats"}));
    uform_objective_plugin_t loss = faulty_plugin, taps = faulty_plugin, answers = faulty_plugin;
    loss.name = "choices_loss";
    CHECK(refused(uform_objective_register(&loss), {fault::none, uform_status_invalid_argument_k,
                                                    "plugin choices_loss: the name is a field's of TrainerStepStats"}));
    taps.taps = 1 << 5;
    CHECK(refused(uform_objective_register(&taps),
                  {fault::none, uform_status_invalid_argument_k, "plugin faulty: its taps is 32: expected one of"}));
    answers.answer_kind = 3;
    answers.infer = [](void*, uform_pass_t const*, uform_answer_t*) { return uform_status_success_k; };
    CHECK(refused(uform_objective_register(&answers), {fault::none, uform_status_invalid_argument_k,
                                                       "plugin faulty: its answer_kind is 3: expected one of"}));
}

constexpr auto nothing = [](void*, auto...) { return uform_status_success_k; };

uform_modality_plugin_t modality_of(char const* name, uint32_t number) {
    uform_modality_plugin_t made{};
    made.abi_version = UFORM_PLUGIN_ABI_VERSION;
    made.bytes = sizeof(made);
    made.name = name;
    made.modality = number;
    made.cover_kind = uform_cover_kind_none_k;
    made.derive = nothing;
    made.create = [](void const*, uform_run_t const*, uform_declare_t const*, void**) {
        return uform_status_success_k;
    };
    made.destroy = [](void*) {};
    made.measure = nothing;
    made.fill = nothing;
    made.finish = nothing;
    made.embed_forward = nothing;
    made.embed_backward = nothing;
    return made;
}

void test_numbers_of_modalities() {
    static uform_modality_plugin_t const first = modality_of("first", 17);
    require(uform_modality_register(&first), "register");
    for (uint32_t number : {0u, 3u, 15u, 32u, UINT32_MAX}) {
        uform_modality_plugin_t const outside = modality_of("outside", number);
        CHECK(refused(uform_modality_register(&outside),
                      {fault::none, uform_status_invalid_argument_k,
                       "plugin outside: its modality's number is between 16 and 31, not "}));
    }
    uform_modality_plugin_t const second = modality_of("second", 17), twin = modality_of("faulty", 18);
    CHECK(refused(uform_modality_register(&second), {fault::none, uform_status_invalid_argument_k,
                                                     "plugin second: modality 17 is the number of plugin first"}));
    CHECK(refused(uform_modality_register(&twin),
                  {fault::none, uform_status_invalid_argument_k, "plugin faulty: the name is taken"}));
    uform_modality_plugin_t covering = modality_of("covering", 19);
    covering.cover_kind = uform_cover_kind_places_k;
    CHECK(refused(uform_modality_register(&covering),
                  {fault::none, uform_status_invalid_argument_k, "plugin covering: its function cover is missing"}));
}

/** What the modality and the objective below do wrong: the name of the function that throws, or what it measures. */
std::string_view broken;

void maybe_throw(char const* function) {
    if (broken == function)
        throw std::runtime_error("so it does");
}

/** A modality whose items are squares of four columns, which it writes; half of them is covered. */
constexpr uint32_t squares_number_k = 20;

uform_status_t measure_square(void*, uform_content_t const*, uint32_t, uform_measure_t* measured, char* message,
                              size_t message_bytes) {
    maybe_throw("measure");
    if (broken == "speechless")
        return uform_status_invalid_argument_k;
    if (broken == "refused")
        std::snprintf(message, message_bytes, "it is round");
    if (broken == "endless message")
        std::fill_n(message, message_bytes, 'x');
    if (broken == "refused" || broken == "endless message")
        return uform_status_invalid_argument_k;
    measured->columns = 4;
    measured->axes = broken == "no axes" ? 0 : broken == "many axes" ? 4 : 2;
    measured->extents[0] = broken == "extents" ? 3 : 2;
    measured->extents[1] = measured->whole[1] = 2;
    measured->whole[0] = broken == "whole" ? 3 : 2;
    return uform_status_success_k;
}

uform_status_t fill_square(void*, uform_fill_t const* fill) {
    maybe_throw("fill");
    std::fill_n(fill->codes, fill->measure->columns + 1, uint16_t(UFORM_CODE_VALUES));
    return uform_status_success_k;
}

uform_status_t embed_squares(void*, uform_pass_t const* pass) {
    maybe_throw("embed_forward");
    float const value = broken == "states" ? std::numeric_limits<float>::quiet_NaN() : 1.f;
    for (uint32_t place = 0; place != pass->columns.counts[1]; ++place) {
        uform_segment_t const& segment = pass->columns.segments[place];
        float* const state = static_cast<float*>(pass->states) + size_t(segment.first) * pass->run->hidden;
        if (segment.modality == squares_number_k)
            std::fill_n(state, size_t(segment.columns) * pass->run->hidden, value);
    }
    return uform_status_success_k;
}

uform_status_t reconstruct_squares(void*, uform_pass_t const* pass, uform_reconstruction_t const* covered) {
    maybe_throw("reconstruct");
    float* const rows = covered->rows_gradient + size_t(covered->first + *covered->before) * pass->run->hidden;
    std::fill_n(rows, size_t(*covered->count) * pass->run->hidden, 0.f);
    *covered->term += *covered->scale * *covered->count;
    return uform_status_success_k;
}

uform_modality_plugin_t squares_plugin() {
    uform_modality_plugin_t made = modality_of("squares", squares_number_k);
    made.cover_kind = uform_cover_kind_places_k;
    made.create = [](void const*, uform_run_t const*, uform_declare_t const* declare, void** self) {
        *self = &broken;
        if (broken == "undeclared")
            return uform_status_success_k;
        return declare->cover(declare->host, broken == "ratio" ? 1.5 : 0.5, broken == "weight" ? -1 : 3);
    };
    made.destroy = [](void*) { maybe_throw("destroy"); };
    made.measure = measure_square;
    made.fill = fill_square;
    made.cover = [](void*, uform_cover_t const*) {
        maybe_throw("cover");
        return uform_status_success_k;
    };
    made.finish = [](void*, uint32_t, uint8_t*, uint32_t columns, uint32_t covered) {
        maybe_throw("finish");
        CHECK(columns == 8 && covered == 4);
        return uform_status_success_k;
    };
    made.embed_forward = embed_squares;
    made.embed_backward = [](void*, uform_pass_t const*) {
        maybe_throw("embed_backward");
        return uform_status_success_k;
    };
    made.reconstruct = reconstruct_squares;
    return made;
}

/** Two squares and the pictures and texts of the usual call. */
call_t squares_call(int32_t objective) {
    call_t call = image_text_call(1, objective);
    for (int square = 0; square != 2; ++square) {
        call.add_text("");
        call.modalities.back() = squares_number_k;
    }
    if (objective != uform_objective_masked_k)
        call.attract = edges_of(call.count(), {{0, 1}, {1, 0}});
    return call;
}

std::string threw(char const* plugin, std::string_view function) {
    return std::string("plugin ") + plugin + ": its function " + std::string(function) + " threw: so it does";
}

/** A step that is refused by the message, and one that is not. */
void check_refused_once(trainer_ptr const& trainer, call_t const& call, std::string_view how, uform_status_t status,
                        std::string const& message) {
    uform_step_t const step = call.step();
    uform_trainer_step_stats_t stats{};
    broken = how;
    CHECK(refused(uform_trainer_step(trainer.get(), &step, &stats), {fault::none, status, message.c_str()}));
    broken = "";
    CHECK(std::isfinite(run_step(trainer, call).loss));
}

void test_failures_of_a_modality() {
    static uform_modality_plugin_t const plugin = squares_plugin();
    require(uform_modality_register(&plugin), "register");
    uform_plugin_option_t const option{"squares", nullptr, 0};
    executor_ptr const executor = make_executor();
    auto const options = options_of(option, uform_objective_joint_k);
    for (auto const& [how, message] :
         {std::pair("undeclared", "plugin squares: its columns can be covered, but its function create declared no"),
          std::pair("ratio", "plugin squares: cover: a ratio lies between 0 and 1, not 1.5"),
          std::pair("weight", "plugin squares: cover: a weight is finite and not negative, not -1")}) {
        broken = how;
        uform_trainer_t* made = nullptr;
        CHECK(refused(uform_trainer_init_ram(executor.get(), &options, &made),
                      {fault::none, uform_status_invalid_argument_k, message}));
    }
    broken = "";
    call_t const call = squares_call(uform_objective_joint_k);
    trainer_ptr trainer = make_trainer(executor, options);
    auto const stats = run_step(trainer, call);
    // All four covered columns count a quarter each.
    CHECK(stats.extra_count == 1 && std::string_view(stats.extra[0].name) == "masked_squares_loss");
    CHECK(stats.extra[0].value == 1);
    double const others = stats.contrastive_loss + stats.masked_text_loss + stats.masked_image_loss;
    CHECK(std::fabs(stats.loss - others - 3) < 1e-9);
    for (char const* function : {"measure", "fill", "cover"})
        check_refused_once(trainer, call, function, uform_status_internal_k,
                           "plugin squares: contents[10]: its function " + std::string(function) + " threw: so it");
    for (char const* function : {"finish", "embed_forward", "reconstruct", "embed_backward"})
        check_refused_once(trainer, call, function, uform_status_internal_k, threw("squares", function));
    for (auto const& [how, message] :
         {std::pair("no axes", "it measured 0 axes of positions where 1 to 3 are possible"),
          std::pair("many axes", "it measured 4 axes of positions where 1 to 3 are possible"),
          std::pair("extents", "it measured 4 columns and extents of 6"),
          std::pair("whole", "it measured 3 whole places along axis 0, which has 2")})
        check_refused_once(trainer, call, how, uform_status_internal_k,
                           std::string("plugin squares: contents[10]: ") + message);
    for (auto const& [how, message] :
         {std::pair("speechless", "its function measure failed without a message, with status 1"),
          std::pair("refused", "it is round"), std::pair("endless message", "xxx")})
        check_refused_once(trainer, call, how, uform_status_invalid_argument_k,
                           std::string("plugin squares: contents[10]: ") + message);
    check_refused_once(trainer, call, "states", uform_status_not_finite_k,
                       "plugin squares: the states of its columns are not finite: the step was refused");
    broken = "destroy";
    trainer.reset();
}

/** What is covered of third parties' modalities does not depend on the order in which they are named. */
void test_two_modalities_are_covered() {
    static uform_modality_plugin_t const plugin = [] {
        uform_modality_plugin_t made = squares_plugin();
        made.name = "earlier";
        made.modality = squares_number_k - 1;
        made.fill = nothing;
        made.finish = nothing;
        made.embed_forward = nothing;
        return made;
    }();
    require(uform_modality_register(&plugin), "register");
    uform_plugin_option_t const named[] = {{"squares", nullptr, 0}, {"earlier", nullptr, 0}};
    auto options = options_of(named[0], uform_objective_masked_k);
    options.plugins_count = 2;
    broken = "";
    executor_ptr const executor = make_executor();
    trainer_ptr const trainer = make_trainer(executor, options);
    auto const stats = run_step(trainer, squares_call(uform_objective_masked_k));
    CHECK(stats.extra_count == 2 && stats.extra[0].value == 1 && stats.extra[1].value == 0);
}

/** What nothing covers and nothing pools would learn nothing. */
void test_a_modality_that_learns_nothing() {
    static uform_modality_plugin_t const plugin = modality_of("whole", 18);
    require(uform_modality_register(&plugin), "register");
    uform_plugin_option_t const option{"whole", nullptr, 0};
    executor_ptr const executor = make_executor();
    auto const masked = options_of(option, uform_objective_masked_k);
    uform_trainer_t* made = nullptr;
    CHECK(refused(uform_trainer_init_ram(executor.get(), &masked, &made),
                  {fault::none, uform_status_invalid_argument_k, "plugin whole: its columns cannot be covered"}));
    make_trainer(executor, options_of(option, uform_objective_joint_k));
}

/** An objective with columns of its own behind each item, and a vector for every column. */
uform_objective_plugin_t extending_plugin() {
    uform_objective_plugin_t made = faulty_plugin;
    made.name = "extending";
    made.taps = uform_tap_world_vectors_k;
    made.derive = [](void*, uform_run_t const*, uform_declare_t const*) { return uform_status_success_k; };
    made.create = [](void const*, uform_run_t const*, uform_declare_t const* declare, void** self) {
        *self = &broken;
        return broken == "no vectors" ? uform_status_success_k : declare->vectors(declare->host, 8);
    };
    made.destroy = [](void*) { maybe_throw("destroy"); };
    made.plan = nothing;
    made.forward_backward = [](void*, uform_pass_t const* pass) {
        return pass->operations->memory_zero(pass->stream, pass->world_vectors_gradient,
                                             sizeof(float) * 8 * pass->columns.capacity);
    };
    made.extra_columns = [](void*, uform_extra_t const*, uint32_t* columns, char* message, size_t message_bytes) {
        maybe_throw("extra_columns");
        if (broken == "refused")
            std::snprintf(message, message_bytes, "it is full");
        if (broken == "refused" || broken == "speechless")
            return uform_status_invalid_argument_k;
        *columns = 1;
        return uform_status_success_k;
    };
    made.extra_fill = [](void*, uform_extra_t const*, uint16_t* codes) {
        maybe_throw("extra_fill");
        codes[0] = 0;
        return uform_status_success_k;
    };
    made.columns_forward = [](void*, uform_pass_t const*) {
        maybe_throw("columns_forward");
        return uform_status_success_k;
    };
    made.columns_backward = [](void*, uform_pass_t const*) {
        maybe_throw("columns_backward");
        return uform_status_success_k;
    };
    return made;
}

void test_failures_of_what_an_objective_adds() {
    static uform_objective_plugin_t const plugin = extending_plugin();
    require(uform_objective_register(&plugin), "register");
    uform_plugin_option_t const option{"extending", nullptr, 0};
    executor_ptr const executor = make_executor();
    auto const options = options_of(option);
    broken = "no vectors";
    uform_trainer_t* made = nullptr;
    CHECK(refused(uform_trainer_init_ram(executor.get(), &options, &made),
                  {fault::none, uform_status_invalid_argument_k,
                   "plugin extending: its taps have uform_tap_world_vectors_k, but its function create declared no"}));
    broken = "";
    trainer_ptr trainer = make_trainer(executor, options);
    call_t const call = image_text_call();
    check_refused_once(trainer, call, "speechless", uform_status_invalid_argument_k,
                       "plugin extending: contents[0]: its function extra_columns failed without a message, with");
    check_refused_once(trainer, call, "refused", uform_status_invalid_argument_k,
                       "plugin extending: contents[0]: it is full");
    for (char const* function : {"extra_columns", "extra_fill"})
        check_refused_once(trainer, call, function, uform_status_internal_k,
                           "plugin extending: contents[0]: its function " + std::string(function) + " threw: so it");
    for (char const* function : {"columns_forward", "columns_backward"})
        check_refused_once(trainer, call, function, uform_status_internal_k, threw("extending", function));
    broken = "destroy";
    trainer.reset();
}

} // namespace

int main() {
    test_registration();
    test_names_of_the_stats();
    test_numbers_of_modalities();
    test_failures_of_a_modality();
    test_two_modalities_are_covered();
    test_a_modality_that_learns_nothing();
    test_failures_of_what_an_objective_adds();
    test_failures_at_init();
    test_failures_in_a_step(at_step_k);
    covered_capacity = 64;
    test_failures_in_a_step(at_cover_k);
    return report();
}

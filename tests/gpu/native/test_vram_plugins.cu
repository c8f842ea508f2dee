// A third party's plugin that fails in every way, on a GPU: the error names it, and the trainer goes on.
#include <cmath>

#include "tests/gpu/native/gpu_check.h"
#include "tests/native/faulty_plugin.h"
#include "tests/native/problem.h"

using namespace gpu_test;
using native_test::call_t;
using native_test::current;
using native_test::executor_ptr;
using native_test::expectation;
using native_test::fault;
using native_test::refused;
using native_test::trainer_ptr;

namespace {

executor_ptr make_executor() {
    std::int32_t const index = 0;
    uform_executor_t* made = nullptr;
    require(uform_executor_init_vram(&index, 1, &made), "executor");
    return executor_ptr(made);
}

uform_trainer_options_t options_of(uform_plugin_option_t const& option) {
    auto options = native_test::tiny_options(uform_objective_contrastive_k);
    options.plugins = &option;
    options.plugins_count = 1;
    return options;
}

void test_failures_at_init() {
    uform_plugin_option_t const option{"faulty", nullptr, 0};
    auto const options = options_of(option);
    executor_ptr const executor = make_executor();
    for (expectation const& one : native_test::at_init_k) {
        current = one.made;
        uform_trainer_t* made = nullptr;
        check(one.message, refused(uform_trainer_init_vram(executor.get(), &options, &made), one) && !made);
    }
}

void test_failures_in_a_step(trainer_ptr const& trainer) {
    call_t const call = native_test::image_text_call();
    uform_step_t const step = call.step();
    std::uint64_t applied = 0;
    for (expectation const& one : native_test::at_step_k) {
        current = one.made;
        uform_trainer_step_stats_t stats{};
        check(one.message, refused(uform_trainer_step(trainer.get(), &step, &stats), one));
        current = fault::none;
        auto const next = native_test::run_step(trainer, call);
        check("the next step",
              next.step == ++applied && std::isfinite(next.loss) && next.extra_count == 1 && next.extra[0].value == 1);
    }
}

int failures = 0; // how many of the next calls throw
std::uint32_t own_term = 0;

/** Work that a graph may hold: a loss of 0. */
uform_objective_plugin_t captured_plugin() {
    uform_objective_plugin_t made = native_test::faulty_plugin;
    made.name = "captured";
    made.taps = uform_tap_bags_k;
    made.capturable = 1;
    made.derive = [](void*, uform_run_t const*, uform_declare_t const*) { return uform_status_success_k; };
    made.create = [](void const*, uform_run_t const*, uform_declare_t const* declare, void** self) {
        *self = nullptr;
        return declare->term(declare->host, "captured", 1, &own_term);
    };
    made.forward_backward = [](void*, uform_pass_t const* pass) {
        uform_status_t const status =
            pass->operations->memory_zero(pass->stream, pass->terms[own_term], sizeof(double));
        if (failures == 0)
            return status;
        --failures;
        throw std::runtime_error("it is tired");
    };
    return made;
}

/**
 *  A size's first step runs, its second is captured. What fails in either is refused and leaves no graph behind; what
 * fails in the capture alone has its step run once more.
 */
void test_failures_of_a_captured_one() {
    static uform_objective_plugin_t const plugin = captured_plugin();
    require(uform_objective_register(&plugin), "register");
    uform_plugin_option_t const option{"captured", nullptr, 0};
    executor_ptr const executor = make_executor();
    auto plain_options = options_of(option);
    plain_options.plugins_count = 0;
    call_t const call = native_test::image_text_call();
    uform_step_t const step = call.step();
    expectation const expected{fault::none, uform_status_internal_k,
                               "plugin captured: its function forward_backward threw: it is tired"};
    struct {
        int steps_before, failures;
    } const cases[] = {{0, 1}, {1, 1}, {1, 2}};
    for (auto const& [steps_before, failing] : cases) {
        trainer_ptr const plain = make_vram_trainer(executor, plain_options);
        trainer_ptr const trainer = make_vram_trainer(executor, options_of(option));
        auto const same_step = [&](char const* what) {
            check(what, native_test::run_step(trainer, call).loss == native_test::run_step(plain, call).loss);
        };
        for (int before = 0; before != steps_before; ++before)
            same_step("the loss before");
        failures = failing;
        if (failing > steps_before)
            check("refused", refused(uform_trainer_step(trainer.get(), &step, nullptr), expected));
        for (int after = 0; after != 4; ++after)
            same_step("the loss after");
        uform_trainer_counters_t counted{};
        require(uform_trainer_counters(trainer.get(), &counted), "counters");
        check("one graph", counted.graphs == 1 && counted.graph_launches >= 2);
        check("the same weights", native_test::same_run(plain, trainer));
    }
}

} // namespace

int main() {
    require(uform_objective_register(&native_test::faulty_plugin), "register");
    current = fault::none;
    test_failures_at_init();
    current = fault::none;
    uform_plugin_option_t const option{"faulty", nullptr, 0};
    executor_ptr const executor = make_executor();
    test_failures_in_a_step(make_vram_trainer(executor, options_of(option)));
    test_failures_of_a_captured_one();
    return native_test::report();
}

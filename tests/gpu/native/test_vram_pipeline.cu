// Steps through the C API: what is captured and what is not, and what a submission does not do.
#include <cmath>
#include <vector>

#include <uform/plugin.h>

#include "tests/gpu/native/gpu_check.h"
#include "tests/native/problem.h"

using namespace gpu_test;

namespace {

using native_test::call_t;
using native_test::executor_ptr;
using native_test::trainer_ptr;

/** An objective that only counts how often it is asked; its loss is what two operations leave in its term: 0. */
struct probe {
    int calls = 0;
    uint32_t term = 0;
};
probe captured_probe, direct_probe;

template <probe& probe_ak> uform_objective_plugin_t make_probe(char const* name, uint32_t capturable) {
    uform_objective_plugin_t made{};
    made.abi_version = UFORM_PLUGIN_ABI_VERSION;
    made.bytes = sizeof(made);
    made.name = name;
    made.taps = uform_tap_bags_k;
    made.capturable = capturable;
    made.derive = [](void*, uform_run_t const*, uform_declare_t const*) { return uform_status_success_k; };
    made.create = [](void const*, uform_run_t const*, uform_declare_t const* declare, void** self) {
        *self = nullptr;
        return declare->term(declare->host, declare->plugin, 1, &probe_ak.term);
    };
    made.destroy = [](void*) {};
    made.covered_capacity = [](void*) { return std::size_t(0); };
    made.plan = [](void*, uform_plan_t const*, uint32_t) { return uform_status_success_k; };
    made.forward_backward = [](void*, uform_pass_t const* pass) {
        ++probe_ak.calls;
        return pass->operations->memory_zero(pass->stream, pass->terms[probe_ak.term], sizeof(double));
    };
    return made;
}

uform_objective_plugin_t const captured_plugin = make_probe<captured_probe>("captured_probe", 1);
uform_objective_plugin_t const direct_plugin = make_probe<direct_probe>("direct_probe", 0);

executor_ptr make_executor() {
    std::int32_t const index = 0;
    uform_executor_t* made = nullptr;
    require(uform_executor_init_vram(&index, 1, &made), "executor");
    return executor_ptr(made);
}

trainer_ptr make_trainer(executor_ptr const& executor, char const* plugin) {
    auto options = native_test::tiny_options(uform_objective_joint_k);
    uform_plugin_option_t const option{plugin, nullptr, 0};
    options.plugins = &option;
    options.plugins_count = plugin ? 1 : 0;
    uform_trainer_t* made = nullptr;
    require(uform_trainer_init_vram(executor.get(), &options, &made), "trainer");
    return trainer_ptr(made);
}

uform_trainer_counters_t counters_of(trainer_ptr const& trainer) {
    uform_trainer_counters_t counted{};
    require(uform_trainer_counters(trainer.get(), &counted), "counters");
    return counted;
}

/** A part of a step that can not be captured is run by itself; what lies around it is captured still. */
void test_what_is_captured() {
    require(uform_objective_register(&captured_plugin), "register");
    require(uform_objective_register(&direct_plugin), "register");
    constexpr int steps = 6;
    executor_ptr const executor = make_executor();
    call_t const call = native_test::image_text_call();
    trainer_ptr const plain = make_trainer(executor, nullptr);
    trainer_ptr const captured = make_trainer(executor, "captured_probe");
    trainer_ptr const direct = make_trainer(executor, "direct_probe");
    for (int step = 0; step != steps; ++step) {
        double const loss = native_test::run_step(plain, call).loss;
        check("loss beside a captured objective", native_test::run_step(captured, call).loss == loss);
        check("loss beside an objective that is not", native_test::run_step(direct, call).loss == loss);
    }
    check("called to run and to capture", captured_probe.calls == 2);
    check("called in every step", direct_probe.calls == steps);
    check("one graph", counters_of(captured).graphs == 1 && counters_of(captured).graph_launches == steps - 1);
    check("forward, backward, update", counters_of(direct).graphs == 3);
    check("each launched", counters_of(direct).graph_launches == 3 * (steps - 1));
    check("same weights", native_test::same_run(plain, captured) && native_test::same_run(plain, direct));
}

/** While there are slots, submitting neither waits nor allocates. */
void test_submitting_does_no_more() {
    executor_ptr const executor = make_executor();
    trainer_ptr const trainer = make_trainer(executor, nullptr);
    call_t const call = native_test::image_text_call();
    uform_step_t const step = call.step();
    // The counters are the executor's: asking this one for them waits for none of the other's steps.
    trainer_ptr const idle = make_trainer(executor, nullptr);
    for (int warm = 0; warm != 4; ++warm)
        native_test::run_step(trainer, call);
    uform_trainer_counters_t const first = counters_of(trainer), before = counters_of(idle);
    uform_pending_t* pending[3] = {};
    for (uform_pending_t*& one : pending)
        require(uform_trainer_submit(trainer.get(), &step, &one), "submit");
    uform_trainer_counters_t const between = counters_of(idle);
    for (uform_pending_t* one : pending) {
        uform_trainer_step_stats_t stats{};
        require(uform_pending_wait(one, &stats), "wait");
        uform_pending_free(one);
    }
    uform_trainer_counters_t const after = counters_of(trainer);
    check("three steps", after.steps == first.steps + 3);
    check("no wait to submit", between.host_waits == before.host_waits);
    check("a wait a step afterwards", after.host_waits == between.host_waits + 3);
    check("no allocation", after.allocations == before.allocations);
    check("all launched as graphs", after.graph_launches == first.graph_launches + 3);
    check("device time", after.device_seconds > first.device_seconds);
}

} // namespace

int main() {
    test_what_is_captured();
    test_submitting_does_no_more();
    return native_test::report();
}

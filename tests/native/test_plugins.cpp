// A third party's plugin that fails in every way: the error names it, and the trainer goes on.
#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>
#include <string_view>

#include <uform/plugin.h>

#include "check.h"
#include "problem.h"

using namespace native_test;

namespace {

enum class fault {
    none,
    derive_throws,
    create_throws,
    create_names_foreign_term,
    endless_staging,
    endless_workspace,
    large_workspace,
    large_parameter,
    plan_throws,
    plan_says_nothing,
    plan_says_why,
    throws,
    throws_no_exception,
    unknown_status,
    says_why,
    loss,
    bags_gradient,
    states_gradient,
    parameter_gradient,
    states,
};

fault current;
uint32_t term_handle, parameter_handle;
constexpr float nan_k = std::numeric_limits<float>::quiet_NaN();

uform_status_t derive(void*, uform_run_t const*, uform_declare_t const* declare) {
    CHECK(std::string_view(declare->plugin) == "faulty");
    if (current == fault::derive_throws)
        throw std::runtime_error("derive broke");
    return uform_status_success_k;
}

uform_status_t create(void const*, uform_run_t const*, uform_declare_t const* declare, void** self) {
    *self = nullptr;
    if (current == fault::create_throws)
        throw std::runtime_error("create broke");
    uform_parameter_request_t request{};
    request.name = "level";
    request.rows = current == fault::large_parameter ? UINT32_MAX : 1;
    request.columns = current == fault::large_parameter ? UINT32_MAX / 1024 : 0;
    request.kind = uform_parameter_kind_plain_k;
    size_t bytes = 1, offset = 0;
    if (current == fault::large_workspace)
        bytes = size_t(1) << 50;
    if (current == fault::endless_workspace)
        bytes = std::numeric_limits<size_t>::max();
    uform_status_t status = declare->parameter(declare->host, &request, &parameter_handle);
    if (!status)
        status =
            declare->term(declare->host, current == fault::create_names_foreign_term ? "contrastive_loss" : "faulty", 1,
                          &term_handle);
    if (!status)
        status = declare->workspace(declare->host, bytes, &offset);
    if (!status && current == fault::endless_staging)
        status = declare->column_staging(declare->host, uform_staging_unit_whole_k,
                                         std::numeric_limits<size_t>::max() / 2, &offset);
    return status;
}

uform_status_t plan(void*, uform_plan_t const* plan, uint32_t stage) {
    if (stage == 0)
        return uform_status_success_k;
    if (current == fault::plan_throws)
        throw std::runtime_error("plan broke");
    if (current == fault::plan_says_nothing)
        return uform_status_invalid_argument_k;
    if (current == fault::plan_says_why)
        return plan->fail(plan->host, uform_status_invalid_type_k, "these items will not do");
    return uform_status_success_k;
}

uform_status_t forward_backward(void*, uform_pass_t const* pass) {
    size_t const columns = size_t(pass->columns.active) * pass->run->hidden;
    if (!pass->states_written) // the columns tap asks whoever comes first to write all of it
        std::fill_n(static_cast<float*>(pass->states_gradient), columns, 0.f);
    *pass->terms[term_handle] += 1;
    switch (current) {
    case fault::throws:
        throw std::runtime_error("forward_backward broke");
    case fault::throws_no_exception:
        throw 3;
    case fault::unknown_status:
        return static_cast<uform_status_t>(9);
    case fault::says_why:
        return pass->fail(pass->host, uform_status_device_k, "the kernel is not at home");
    case fault::loss:
        *pass->terms[term_handle] = nan_k;
        break;
    case fault::bags_gradient:
        pass->bags_gradient[5] = nan_k;
        break;
    case fault::states_gradient:
        static_cast<float*>(pass->states_gradient)[7] = nan_k;
        break;
    case fault::parameter_gradient:
        *pass->gradients[parameter_handle] = -std::numeric_limits<float>::infinity();
        break;
    default:
        break;
    }
    return uform_status_success_k;
}

uform_objective_plugin_t const faulty_plugin = {
    .abi_version = UFORM_PLUGIN_ABI_VERSION,
    .bytes = sizeof(uform_objective_plugin_t),
    .name = "faulty",
    .taps = uform_tap_bags_k | uform_tap_columns_k,
    .capturable = 0,
    .fields = nullptr,
    .fields_count = 0,
    .config_bytes = 0,
    .derive = derive,
    .create = create,
    .destroy = [](void*) {},
    .covered_capacity = [](void*) { return size_t(0); },
    .plan = plan,
    .forward_backward = forward_backward,
    .extra_columns = nullptr,
    .extra_fill = nullptr,
    .answer_kind = uform_answer_kind_none_k,
    .infer = nullptr,
    .columns_forward = nullptr,
    .columns_backward = nullptr,
};

struct expectation {
    fault made;
    uform_status_t status;
    char const* message;
};

bool refused(uform_status_t status, expectation const& expected) {
    bool const named = std::string_view(uform_last_error()).find(expected.message) != std::string_view::npos;
    if (status != expected.status || !named)
        std::fprintf(stderr, "status %d: %s\n  expected %d: %s\n", status, uform_last_error(), expected.status,
                     expected.message);
    return status == expected.status && named;
}

constexpr expectation at_init_k[] = {
    {fault::derive_throws, uform_status_internal_k, "plugin faulty: its function derive threw: derive broke"},
    {fault::create_throws, uform_status_internal_k, "plugin faulty: its function create threw: create broke"},
    {fault::create_names_foreign_term, uform_status_invalid_argument_k,
     "plugin faulty: term contrastive_loss: its name"},
    {fault::endless_staging, uform_status_out_of_memory_k, "plugin faulty: it asked for"},
    {fault::endless_workspace, uform_status_out_of_memory_k, "plugin faulty: it asked for"},
    {fault::large_workspace, uform_status_out_of_memory_k, "; plugin faulty asked for 11258999068"},
    {fault::large_parameter, uform_status_out_of_memory_k, "; plugin faulty asked for "},
};

constexpr expectation at_step_k[] = {
    {fault::plan_throws, uform_status_internal_k, "plugin faulty: its function plan threw: plan broke"},
    {fault::plan_says_nothing, uform_status_invalid_argument_k,
     "plugin faulty: its function plan failed without a message, with status 1"},
    {fault::plan_says_why, uform_status_invalid_type_k, "plugin faulty: these items will not do"},
    {fault::throws, uform_status_internal_k,
     "plugin faulty: its function forward_backward threw: forward_backward broke"},
    {fault::throws_no_exception, uform_status_internal_k, "plugin faulty: its function forward_backward threw"},
    {fault::unknown_status, uform_status_internal_k, "plugin faulty: its function forward_backward failed"},
    {fault::says_why, uform_status_device_k, "plugin faulty: the kernel is not at home"},
    {fault::loss, uform_status_not_finite_k, "faulty is "},
    {fault::bags_gradient, uform_status_not_finite_k, "plugin faulty: its gradient of the embeddings is not finite"},
    {fault::states_gradient, uform_status_not_finite_k,
     "plugin faulty: its gradient of the columns' states is not finite"},
    {fault::parameter_gradient, uform_status_not_finite_k, "plugin faulty: its parameters' gradient is not finite"},
};

uform_trainer_options_t options_of(uform_plugin_option_t const& option) {
    auto options = tiny_options(uform_objective_contrastive_k);
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

void test_failures_in_a_step() {
    uform_plugin_option_t const option{"faulty", nullptr, 0};
    executor_ptr const executor = make_executor();
    current = fault::none;
    trainer_ptr const trainer = make_trainer(executor, options_of(option));
    call_t const call = image_text_call();
    uform_step_t const step = call.step();
    uint64_t applied = run_step(trainer, call).step;
    for (expectation const& one : at_step_k) {
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

uint16_t marker_axes = 1;

/** A modality whose items are their marker alone, which it writes. */
void test_states_of_a_modality() {
    constexpr uint8_t number = 20;
    static uform_modality_plugin_t plugin = modality_of("markers", number);
    plugin.measure = [](void*, uform_content_t const*, uint32_t, uform_measure_t* measured, char*, size_t) {
        measured->axes = marker_axes;
        return uform_status_success_k;
    };
    plugin.fill = [](void*, uform_fill_t const* fill) {
        fill->codes[0] = 0;
        return uform_status_success_k;
    };
    plugin.embed_forward = [](void*, uform_pass_t const* pass) {
        for (uint32_t place = 0; place != pass->columns.counts[1]; ++place) {
            uform_segment_t const& segment = pass->columns.segments[place];
            float* const state = static_cast<float*>(pass->states) + size_t(segment.first) * pass->run->hidden;
            if (segment.modality == number)
                std::fill_n(state, pass->run->hidden, current == fault::states ? nan_k : 1.f);
        }
        return uform_status_success_k;
    };
    require(uform_modality_register(&plugin), "register");
    uform_plugin_option_t const option{"markers", nullptr, 0};
    executor_ptr const executor = make_executor();
    current = fault::none;
    trainer_ptr const trainer = make_trainer(executor, options_of(option));
    call_t call = image_text_call();
    call.add_text("");
    call.modalities.back() = number;
    call.attract = edges_of(call.count(), {{0, 1}, {1, 0}});
    uform_step_t const step = call.step();
    for (uint16_t axes : {0, 4}) {
        marker_axes = axes;
        std::string const message =
            "plugin markers: it measured " + std::to_string(axes) + " axes of positions where 1 to 3 are possible";
        CHECK(refused(uform_trainer_step(trainer.get(), &step, nullptr),
                      {fault::none, uform_status_internal_k, message.c_str()}));
    }
    marker_axes = 1;
    for (uint64_t applied : {1, 2}) {
        CHECK(run_step(trainer, call).step == applied);
        current = fault::states;
        CHECK(refused(uform_trainer_step(trainer.get(), &step, nullptr),
                      {fault::states, uform_status_not_finite_k,
                       "plugin markers: the states of its columns are not finite: the step was refused"}));
        current = fault::none;
    }
}

} // namespace

int main() {
    test_registration();
    test_numbers_of_modalities();
    test_states_of_a_modality();
    test_failures_at_init();
    test_failures_in_a_step();
    return report();
}

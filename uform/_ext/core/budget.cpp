#include "core/budget.h"

#include "core/json.h"
#include "core/process.h"
#include "core/trainer.h"

namespace uform {

namespace {

json device_bytes(memory_plan const& plan) {
    json bytes = json::make_object();
    bytes.set("total", plan.bytes());
    for (memory_plan::share const& one : plan.shares())
        bytes.set(one.purpose, one.bytes);
    return bytes;
}

/** What uploads and downloads pass through. Where a device's memory is the host's, its staging is part of its plan. */
json host_bytes(composition const& whole, replica_layout const& layout) {
    bool const shared = whole.operations->host_memory != 0;
    size_t const staging = shared ? 0 : slots_k * whole.run.devices * layout.staging_parts.bytes;
    size_t const state = (shared ? 1 : slots_k) * sizeof(uform_update_state_t);
    json bytes = json::make_object();
    bytes.set("total", staging + state);
    bytes.set("staging", staging);
    bytes.set("state", state);
    return bytes;
}

} // namespace

std::string budget(executor& on, uform_trainer_options_t const& options) {
    std::unique_ptr<composition> whole;
    if (options.resume) {
        checkpoint const resumed(options.resume);
        resumed.naming([&] { whole = compose_run(on, options, &resumed); });
    } else
        whole = compose_run(on, options, nullptr);
    replica_layout const layout = lay_out(*whole);
    json page = json::make_object();
    page.set("devices", on.devices());
    page.set("parameter_count", whole->declared.parameters.trained());
    page.set("planned_bytes_per_device", device_bytes(layout.plan));
    page.set("planned_host_bytes", host_bytes(*whole, layout));
    return page.dump();
}

} // namespace uform

namespace {

void check_kind(uform::executor const& on, uform_executor_kind_t kind) {
    if (on.kind() == kind)
        return;
    if (kind == uform_executor_kind_ram_k)
        uform::fail(uform_status_invalid_argument_k, "executor: it is on GPUs; use plan_vram");
#if UFORM_WITH_VRAM
    uform::fail(uform_status_invalid_argument_k, "executor: it is on RAM; use plan_ram");
#else
    uform::fail(uform_status_device_k, "executor: it is on RAM, and this build of uform has no VRAM backend whose "
                                       "memory could be planned: build it where nvcc is found, or use plan_ram");
#endif
}

uform_status_t plan(uform_executor_t* executor, uform_trainer_options_t const* options, uform_executor_kind_t kind,
                    char** json) {
    return uform::guard([&] {
        check_kind(*executor->body, kind);
        *json = uform::copy_string(uform::budget(*executor->body, *options));
    });
}

} // namespace

extern "C" {

uform_status_t uform_trainer_plan_ram(uform_executor_t* executor, uform_trainer_options_t const* options, char** json) {
    return plan(executor, options, uform_executor_kind_ram_k, json);
}

uform_status_t uform_trainer_plan_vram(uform_executor_t* executor, uform_trainer_options_t const* options,
                                       char** json) {
    return plan(executor, options, uform_executor_kind_vram_k, json);
}
}

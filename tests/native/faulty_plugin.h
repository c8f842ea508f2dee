/** A third party's objective that fails in every way that it is told to, and what is to be said of each. */
#pragma once

#include <atomic>
#include <cstdio>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <string_view>

#include <uform/plugin.h>

#include "check.h"

namespace native_test {

enum class fault {
    none,
    derive_throws,
    derive_says_null,
    create_throws,
    parameter_without_name,
    parameter_of_empty_name,
    parameter_of_no_text,
    parameter_of_unknown_kind,
    parameter_without_columns,
    parameter_of_negative_deviation,
    parameter_of_endless_deviation,
    parameter_of_large_value,
    parameter_of_crossed_bounds,
    parameter_of_no_bound,
    parameter_out_of_bounds,
    parameter_without_place,
    parameter_out_of_later_bounds,
    coverings_without_place,
    term_without_name,
    term_of_endless_weight,
    term_of_no_weight,
    term_without_place,
    vectors_without_tap,
    cover_of_an_objective,
    unknown_staging_unit,
    endless_notice,
    create_names_foreign_term,
    endless_staging,
    endless_workspace,
    large_workspace,
    large_parameter,
    plan_throws,
    plan_says_nothing,
    plan_says_why,
    pairs_without_place,
    random_without_place,
    counted_of_no_index,
    notice_of_no_device,
    notice_from_no_rank,
    rows_without_slots,
    rows_of_no_slot,
    flags_no_bag,
    flags_no_bag_on_threads,
    covers_nothing,
    covers_without_places,
    covers_without_actions,
    covers_descending,
    covers_twice,
    covers_again,
    covers_past_the_end,
    covers_by_no_action,
    covers_without_bytes,
    covers_late,
    throws,
    throws_no_exception,
    unknown_status,
    says_why,
    says_null,
    reconstructs_nowhere,
    loss,
    bags_gradient,
    states_gradient,
    parameter_gradient,
};

inline fault current;
inline uint32_t term_handle, parameter_handle;
inline size_t covered_capacity; /* as it is told when a run is made */

inline void spoil_request(uform_parameter_request_t& request) {
    switch (current) {
    case fault::parameter_without_name:
        request.name = nullptr;
        break;
    case fault::parameter_of_empty_name:
        request.name = "";
        break;
    case fault::parameter_of_no_text:
        request.name = "\xff";
        break;
    case fault::parameter_of_unknown_kind:
        request.kind = 99;
        break;
    case fault::parameter_without_columns:
        request.kind = uform_parameter_kind_matrix_k;
        break;
    case fault::parameter_of_negative_deviation:
        request.deviation = -1;
        break;
    case fault::parameter_of_endless_deviation:
        request.deviation = std::numeric_limits<double>::infinity();
        break;
    case fault::parameter_of_large_value:
        request.value = 1e300;
        break;
    case fault::parameter_of_crossed_bounds:
        request.minimum = 3, request.maximum = 1;
        break;
    case fault::parameter_of_no_bound:
        request.minimum = std::numeric_limits<double>::quiet_NaN();
        break;
    case fault::parameter_out_of_bounds:
        request.minimum = 1, request.maximum = 3;
        break;
    case fault::parameter_out_of_later_bounds:
        request.value = 5, request.minimum = -3, request.maximum = -1;
        break;
    default:
        break;
    }
}

/** What only other plugins declare, or nobody. */
inline uform_status_t declare_more(uform_declare_t const* declare) {
    size_t offset = 0;
    switch (current) {
    case fault::vectors_without_tap:
        return declare->vectors(declare->host, 16);
    case fault::cover_of_an_objective:
        return declare->cover(declare->host, 0.5, 1);
    case fault::unknown_staging_unit:
        return declare->column_staging(declare->host, 9, 4, &offset);
    case fault::coverings_without_place:
        declare->coverings(declare->host, nullptr);
        return uform_status_success_k;
    case fault::endless_notice:
        return declare->notice(declare->host, std::numeric_limits<size_t>::max());
    default:
        return uform_status_success_k;
    }
}

inline double spoiled_weight() {
    return current == fault::term_of_endless_weight ? std::numeric_limits<double>::infinity()
           : current == fault::term_of_no_weight    ? std::numeric_limits<double>::quiet_NaN()
                                                    : 1;
}

inline uform_status_t derive(void*, uform_run_t const*, uform_declare_t const* declare) {
    CHECK(std::string_view(declare->plugin) == "faulty");
    if (current == fault::derive_throws)
        throw std::runtime_error("derive broke");
    if (current == fault::derive_says_null)
        return declare->fail(declare->host, uform_status_invalid_argument_k, nullptr);
    return uform_status_success_k;
}

inline uform_status_t create(void const*, uform_run_t const*, uform_declare_t const* declare, void** self) {
    *self = nullptr;
    if (current == fault::create_throws)
        throw std::runtime_error("create broke");
    uform_parameter_request_t request{};
    request.name = "level";
    request.rows = current == fault::large_parameter ? UINT32_MAX : 1;
    request.columns = current == fault::large_parameter ? UINT32_MAX / 1024 : 0;
    request.kind = uform_parameter_kind_plain_k;
    spoil_request(request);
    size_t bytes = 1, offset = 0;
    if (current == fault::large_workspace)
        bytes = size_t(1) << 50;
    if (current == fault::endless_workspace)
        bytes = std::numeric_limits<size_t>::max();
    uform_status_t status = declare->parameter(declare->host, &request,
                                               current == fault::parameter_without_place ? nullptr : &parameter_handle);
    char const* const term = current == fault::term_without_name           ? nullptr
                             : current == fault::create_names_foreign_term ? "contrastive_loss"
                                                                           : "faulty";
    if (!status)
        status = declare->term(declare->host, term, spoiled_weight(),
                               current == fault::term_without_place ? nullptr : &term_handle);
    if (!status)
        status = declare->notice(declare->host, 8);
    if (!status)
        status = declare_more(declare);
    if (!status)
        status = declare->workspace(declare->host, bytes, &offset);
    if (!status && current == fault::endless_staging)
        status = declare->column_staging(declare->host, uform_staging_unit_whole_k,
                                         std::numeric_limits<size_t>::max() / 2, &offset);
    return status;
}

/** A task of the plan's threads is refused; which of them runs it is not known. */
inline uform_status_t flag_on_threads(uform_plan_t const& plan) {
    struct tasks {
        uform_plan_t const& plan;
        std::atomic<int> status;
    } all{plan, uform_status_success_k};
    auto const task = [](void* state, size_t) {
        tasks& of = *static_cast<tasks*>(state);
        if (int const status = of.plan.flag(of.plan.host, 9999, 1))
            of.status = status;
    };
    plan.parallel.run(plan.parallel.pool, 64, task, &all);
    return static_cast<uform_status_t>(all.status.load());
}

/** Asks the host for what it does not have, and goes on as if it had it. */
inline uform_status_t plan_wrongly(uform_plan_t const* plan) {
    static constexpr uint32_t slots[] = {0, 9999};
    switch (current) {
    case fault::pairs_without_place:
        return plan->pairs(plan->host, 1, nullptr);
    case fault::random_without_place:
        plan->random(plan->host, 0, 0, 0, nullptr);
        break;
    case fault::counted_of_no_index:
        plan->counted(plan->host, 16);
        break;
    case fault::notice_of_no_device:
        std::memset(plan->notice_of(plan->host, 1000), 1, 8);
        break;
    case fault::notice_from_no_rank:
        CHECK(*static_cast<uint64_t const*>(plan->notice_from(plan->host, UINT32_MAX)) == 0);
        break;
    case fault::rows_without_slots:
        return plan->rows(plan->host, 0, nullptr, 3);
    case fault::rows_of_no_slot:
        return plan->rows(plan->host, 0, slots, 2);
    case fault::flags_no_bag:
        plan->flag(plan->host, 9999, 1);
        break;
    case fault::flags_no_bag_on_threads:
        return flag_on_threads(*plan);
    default:
        break;
    }
    return uform_status_success_k;
}

/** Covers the first item as it must not be covered. */
inline uform_status_t cover_wrongly(uform_plan_t const* plan, uint32_t stage) {
    uint32_t places[] = {0, 1};
    uint8_t actions[] = {uform_cover_action_mask_k, uform_cover_action_stay_k};
    uint32_t const* from = places;
    uint8_t const* how = actions;
    switch (current) {
    case fault::covers_nothing:
    case fault::covers_late:
    case fault::covers_again:
        break;
    case fault::covers_without_places:
        from = nullptr;
        break;
    case fault::covers_without_actions:
        how = nullptr;
        break;
    case fault::covers_descending:
        places[0] = 2;
        break;
    case fault::covers_twice:
        places[0] = 1;
        break;
    case fault::covers_past_the_end:
        places[1] = 77;
        break;
    case fault::covers_by_no_action:
        actions[1] = 77;
        break;
    case fault::covers_without_bytes:
        actions[0] = uform_cover_action_random_k;
        break;
    default:
        return uform_status_success_k;
    }
    if (stage != (current == fault::covers_late ? 1 : 0))
        return uform_status_success_k;
    uform_status_t const status = plan->cover(plan->host, 0, from, how, nullptr, 2);
    return status || current != fault::covers_again ? status : plan->cover(plan->host, 0, from, how, nullptr, 2);
}

inline uform_status_t plan(void*, uform_plan_t const* plan, uint32_t stage) {
    uform_status_t const status = cover_wrongly(plan, stage);
    if (stage == 0 || status)
        return status ? status : plan_wrongly(plan);
    if (current == fault::plan_throws)
        throw std::runtime_error("plan broke");
    if (current == fault::plan_says_nothing)
        return uform_status_invalid_argument_k;
    if (current == fault::plan_says_why)
        return plan->fail(plan->host, uform_status_invalid_type_k, "these items will not do");
    if (current == fault::says_null)
        return plan->fail(plan->host, uform_status_invalid_type_k, nullptr);
    return uform_status_success_k;
}

/** Writes four bytes of ones, which are no number in any of the types. */
inline uform_status_t spoil(uform_pass_t const* pass, void* at) {
    static constexpr uint32_t ones = UINT32_MAX;
    return pass->operations->memory_upload(pass->stream, at, &ones, sizeof(ones));
}

inline uform_status_t forward_backward(void*, uform_pass_t const* pass) {
    uform_operations_t const& operations = *pass->operations;
    static constexpr double loss = 1, no_loss = std::numeric_limits<double>::quiet_NaN();
    uform_status_t status = uform_status_success_k;
    if (!pass->states_written) // the columns tap asks whoever comes first to write all of it
        status = operations.memory_zero(pass->stream, pass->states_gradient,
                                        operations.state_bytes(pass->run->hidden) * pass->columns.active);
    if (status == uform_status_success_k)
        status = operations.memory_upload(pass->stream, pass->terms[term_handle],
                                          current == fault::loss ? &no_loss : &loss, sizeof(loss));
    if (status != uform_status_success_k)
        return status;
    switch (current) {
    case fault::throws:
        throw std::runtime_error("forward_backward broke");
    case fault::throws_no_exception:
        throw 3;
    case fault::unknown_status:
        return static_cast<uform_status_t>(9);
    case fault::says_why:
        return pass->fail(pass->host, uform_status_device_k, "the kernel is not at home");
    case fault::reconstructs_nowhere:
        return pass->reconstruct(pass->host, 0, uform_modality_text_k, nullptr, nullptr, pass->terms[term_handle]);
    case fault::bags_gradient:
        return spoil(pass, pass->bags_gradient + 5);
    case fault::states_gradient:
        return spoil(pass, static_cast<uint32_t*>(pass->states_gradient) + 3);
    case fault::parameter_gradient:
        return spoil(pass, pass->gradients[parameter_handle]);
    default:
        return uform_status_success_k;
    }
}

inline uform_objective_plugin_t const faulty_plugin = {
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
    .covered_capacity = [](void*) { return covered_capacity; },
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

inline bool refused(uform_status_t status, expectation const& expected) {
    bool const named = std::string_view(uform_last_error()).find(expected.message) != std::string_view::npos;
    if (status != expected.status || !named)
        std::fprintf(stderr, "status %d: %s\n  expected %d: %s\n", status, uform_last_error(), expected.status,
                     expected.message);
    return status == expected.status && named;
}

inline constexpr expectation at_init_k[] = {
    {fault::derive_throws, uform_status_internal_k, "plugin faulty: its function derive threw: derive broke"},
    {fault::derive_says_null, uform_status_invalid_argument_k,
     "plugin faulty: its function derive failed without a message, with status 1"},
    {fault::parameter_without_name, uform_status_invalid_argument_k, "plugin faulty: parameter: it has no name"},
    {fault::parameter_of_empty_name, uform_status_invalid_argument_k, "plugin faulty: parameter: it has no name"},
    {fault::parameter_of_no_text, uform_status_invalid_argument_k, ": its name is not UTF-8"},
    {fault::parameter_of_unknown_kind, uform_status_invalid_argument_k,
     "plugin faulty: parameter faulty.level: its kind is 99: expected one of uform_parameter_kind_t"},
    {fault::parameter_without_columns, uform_status_invalid_argument_k,
     "plugin faulty: parameter faulty.level: its columns is 0: expected some"},
    {fault::parameter_of_negative_deviation, uform_status_invalid_argument_k,
     "plugin faulty: parameter faulty.level: its deviation is -1: expected none below 0"},
    {fault::parameter_of_endless_deviation, uform_status_invalid_argument_k,
     "plugin faulty: parameter faulty.level: its deviation is inf: expected a number that float32 holds"},
    {fault::parameter_of_large_value, uform_status_invalid_argument_k,
     "plugin faulty: parameter faulty.level: its value is 1e+300: expected a number that float32 holds"},
    {fault::parameter_of_crossed_bounds, uform_status_invalid_argument_k,
     "plugin faulty: parameter faulty.level: its minimum is 3: expected one below its maximum, 1"},
    {fault::parameter_of_no_bound, uform_status_invalid_argument_k,
     "plugin faulty: parameter faulty.level: its minimum is nan: expected a number that float32 holds"},
    {fault::parameter_out_of_bounds, uform_status_invalid_argument_k,
     "plugin faulty: parameter faulty.level: its value is 0: expected one between 1 and 3, its bounds"},
    {fault::parameter_without_place, uform_status_invalid_argument_k,
     "plugin faulty: parameter faulty.level: the place for its handle is null"},
    {fault::parameter_out_of_later_bounds, uform_status_invalid_argument_k,
     "plugin faulty: parameter faulty.level: its value is 5: expected one between -3 and -1, its bounds"},
    {fault::coverings_without_place, uform_status_invalid_argument_k,
     "plugin faulty: coverings: the place for them is null"},
    {fault::term_without_name, uform_status_invalid_argument_k, "plugin faulty: term: it has no name"},
    {fault::term_of_endless_weight, uform_status_invalid_argument_k,
     "plugin faulty: term faulty: its weight is inf: expected a number that float32 holds"},
    {fault::term_of_no_weight, uform_status_invalid_argument_k, "plugin faulty: term faulty: its weight is nan"},
    {fault::term_without_place, uform_status_invalid_argument_k,
     "plugin faulty: term faulty: the place for its handle is null"},
    {fault::vectors_without_tap, uform_status_invalid_argument_k,
     "plugin faulty: its function create declared vectors, but its taps are without uform_tap_world_vectors_k"},
    {fault::cover_of_an_objective, uform_status_invalid_argument_k,
     "plugin faulty: its function create declared a ratio with cover, which only modalities have"},
    {fault::unknown_staging_unit, uform_status_invalid_argument_k, "plugin faulty: column_staging: its unit is 9"},
    {fault::endless_notice, uform_status_out_of_memory_k, "plugin faulty: it asked for 18446744073709551615 bytes"},
    {fault::create_throws, uform_status_internal_k, "plugin faulty: its function create threw: create broke"},
    {fault::create_names_foreign_term, uform_status_invalid_argument_k,
     "plugin faulty: term contrastive_loss: its name"},
    {fault::endless_staging, uform_status_out_of_memory_k, "plugin faulty: it asked for"},
    {fault::endless_workspace, uform_status_out_of_memory_k, "plugin faulty: it asked for"},
    {fault::large_workspace, uform_status_out_of_memory_k, "; plugin faulty asked for 11258999068"},
    {fault::large_parameter, uform_status_out_of_memory_k, "; plugin faulty asked for "},
};

/** In steps of a run in which it covers columns. */
inline constexpr expectation at_cover_k[] = {
    {fault::covers_without_places, uform_status_invalid_argument_k,
     "plugin faulty: cover: its places is null: expected 2"},
    {fault::covers_without_actions, uform_status_invalid_argument_k,
     "plugin faulty: cover: its actions is null: expected 2"},
    {fault::covers_descending, uform_status_invalid_argument_k,
     "plugin faulty: cover: its places[1] is 1: expected one above 2, the one before it"},
    {fault::covers_twice, uform_status_invalid_argument_k,
     "plugin faulty: cover: its places[1] is 1: expected one above 1, the one before it"},
    {fault::covers_again, uform_status_invalid_argument_k, "plugin faulty: cover: item 0 is covered already"},
    {fault::covers_past_the_end, uform_status_invalid_argument_k,
     "plugin faulty: cover: item 0 has no content column 77"},
    {fault::covers_by_no_action, uform_status_invalid_argument_k,
     "plugin faulty: cover: its actions[1] is 77: expected one of uform_cover_action_t"},
    {fault::covers_without_bytes, uform_status_invalid_argument_k,
     "plugin faulty: cover: its random_bytes is null, but its actions[0] is uform_cover_action_random_k"},
    {fault::covers_late, uform_status_invalid_argument_k,
     "plugin faulty: cover: columns are covered in stage 0, not in stage 1"},
};

inline constexpr expectation at_step_k[] = {
    {fault::pairs_without_place, uform_status_invalid_argument_k, "plugin faulty: pairs: the place for them is null"},
    {fault::random_without_place, uform_status_invalid_argument_k,
     "plugin faulty: random: the place for its words is null"},
    {fault::counted_of_no_index, uform_status_invalid_argument_k, "plugin faulty: counted: index 16 of 16"},
    {fault::notice_of_no_device, uform_status_invalid_argument_k, "plugin faulty: notice_of: device 1000 of 1"},
    {fault::notice_from_no_rank, uform_status_invalid_argument_k, "plugin faulty: notice_from: rank 4294967295 of 1"},
    {fault::rows_without_slots, uform_status_invalid_argument_k, "plugin faulty: rows: its slots is null: expected 3"},
    {fault::rows_of_no_slot, uform_status_invalid_argument_k, "plugin faulty: rows: its slots[1] is 9999: the world"},
    {fault::flags_no_bag, uform_status_invalid_argument_k, "plugin faulty: flag: the call has no bag 9999"},
    {fault::flags_no_bag_on_threads, uform_status_invalid_argument_k, "plugin faulty: flag: the call has no bag 9999"},
    {fault::covers_nothing, uform_status_invalid_argument_k,
     "plugin faulty: cover: its covered_capacity is 0: expected as many as it covers"},
    {fault::plan_throws, uform_status_internal_k, "plugin faulty: its function plan threw: plan broke"},
    {fault::plan_says_nothing, uform_status_invalid_argument_k,
     "plugin faulty: its function plan failed without a message, with status 1"},
    {fault::plan_says_why, uform_status_invalid_type_k, "plugin faulty: these items will not do"},
    {fault::says_null, uform_status_invalid_type_k,
     "plugin faulty: its function plan failed without a message, with status "},
    {fault::reconstructs_nowhere, uform_status_invalid_argument_k, "plugin faulty: reconstruct: scale is null"},
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

} // namespace native_test

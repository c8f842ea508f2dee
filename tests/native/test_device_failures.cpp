// A device that fails once, at each call of the operations below in turn: what had been taken is given back, and what
// is said is true.
#include <functional>
#include <set>

#include "check.h"
#include "far_device.h"

using namespace native_test;

namespace {

constexpr int none_k = -1, failed_k = -2;

/** How many operations go through before one fails; `none_k`: all do; `failed_k`: one has, and the rest go through. */
int& operations_left() {
    static int instance = none_k;
    return instance;
}

/** What the one that fails answers. */
uform_status_t& failure() {
    static uform_status_t instance = uform_status_device_k;
    return instance;
}

/** A capture of a step, of which the update alone is kept and done by a launch; all else is left out. */
struct captured_step {
    enum class launch { done, failed_before, failed_after };
    bool open = false;
    std::vector<uform_update_t> updates;
    launch next = launch::done;

    void keep(uform_stream_t*, uform_update_t const* one) { updates.push_back(*one); }
    template <typename... arguments_at> void keep(arguments_at...) {}

    static captured_step& only() {
        static captured_step instance;
        return instance;
    }
};

uform_operations_t const& plain_operations() {
    static uform_operations_t const instance = far_operations();
    return instance;
}

template <auto slot_ak> struct failing_operation;

template <typename... arguments_at, uform_status_t (*uform_operations_t::*slot_ak)(arguments_at...)>
struct failing_operation<slot_ak> {
    static uform_status_t call(arguments_at... arguments) {
        if (operations_left() == 0) {
            operations_left() = failed_k;
            far_memory::all().forget_crossings();
            return uform::guard([] { uform::fail(failure(), "an operation: it failed once"); });
        }
        if (operations_left() > 0)
            --operations_left();
        if (captured_step::only().open) {
            captured_step::only().keep(arguments...);
            return uform_status_success_k;
        }
        return (plain_operations().*slot_ak)(arguments...);
    }
};

uform_operations_t failing_operations() {
    uform_operations_t table = plain_operations();
#define UFORM_FAILING(slot) table.slot = failing_operation<&uform_operations_t::slot>::call
    UFORM_FAILING(backend_create), UFORM_FAILING(stream_create), UFORM_FAILING(stream_synchronize);
    UFORM_FAILING(memory_allocate), UFORM_FAILING(staging_allocate), UFORM_FAILING(event_create);
    UFORM_FAILING(memory_upload), UFORM_FAILING(memory_download), UFORM_FAILING(memory_zero);
    UFORM_FAILING(memory_copy), UFORM_FAILING(memory_device), UFORM_FAILING(event_record), UFORM_FAILING(stream_wait);
    UFORM_FAILING(weights_import), UFORM_FAILING(columns_expand), UFORM_FAILING(pool_forward);
    UFORM_FAILING(pool_backward), UFORM_FAILING(pairs_forward), UFORM_FAILING(gather), UFORM_FAILING(reduce_sum);
    UFORM_FAILING(reduce_terms), UFORM_FAILING(update), UFORM_FAILING(rows_narrow), UFORM_FAILING(host_wait);
    UFORM_FAILING(event_elapsed);
#undef UFORM_FAILING
    return table;
}

/** The same with captures. */
uform_operations_t capturing_operations() {
    uform_operations_t table = failing_operations();
    table.capture_begin = [](uform_stream_t*) {
        captured_step::only().open = true;
        captured_step::only().updates.clear();
        return uform_status_success_k;
    };
    table.capture_end = [](uform_stream_t*, uform_graph_t** graph) {
        captured_step::only().open = false;
        if (graph)
            *graph = reinterpret_cast<uform_graph_t*>(&captured_step::only());
        return uform_status_success_k;
    };
    table.graph_launch = [](uform_stream_t* stream, uform_graph_t*) {
        return uform::guard([&] {
            captured_step const& own = captured_step::only();
            if (own.next != captured_step::launch::failed_before)
                for (uform_update_t const& one : own.updates)
                    uform::check(plain_operations().update(stream, &one));
            if (own.next != captured_step::launch::done)
                uform::fail(uform_status_device_k, "a launch: it failed");
        });
    };
    table.graph_destroy = [](uform_graph_t*) {};
    return table;
}

/** Calls `attempt` with a failure at the first operation, at the second and so on, until none is left to fail. */
int fail_at_each(std::function<uform_status_t()> const& attempt, std::function<void()> const& check) {
    for (int count = 0;; ++count) {
        operations_left() = count;
        uform_status_t const status = attempt();
        if (std::exchange(operations_left(), none_k) != failed_k) {
            CHECK(status == uform_status_success_k);
            return count;
        }
        CHECK(status == uform_status_device_k);
        CHECK(std::string(uform_last_error()).find("an operation: it failed once") != std::string::npos);
        check();
    }
}

executor_ptr make_failing_executor() {
    static uform_operations_t const operations = failing_operations();
    return executor_ptr(
        new uform_executor_t{uform::executor::on(uform_executor_kind_vram_k, operations, {3, 1}, 2, nullptr)});
}

void test_nothing_is_left_of_what_fails_to_begin() {
    size_t const before = far_memory::all().blocks();
    auto const all_back = [&] { CHECK(far_memory::all().blocks() == before); };
    auto const none = [] {};
    CHECK(fail_at_each([] { return uform::guard([] { make_failing_executor(); }); }, none) >= 5);
    executor_ptr const executor = make_failing_executor();
    uform_trainer_options_t options = tiny_options(uform_objective_joint_k);
    auto const train = [&] {
        uform_trainer_t* made = nullptr;
        uform_status_t const status = uform_trainer_init_vram(executor.get(), &options, &made);
        CHECK((status == uform_status_success_k) == (made != nullptr));
        uform_trainer_free(made);
        return status;
    };
    CHECK(fail_at_each(train, all_back) > 100);
    temporary_folder const folder;
    std::string const path = folder.file("run");
    require(uform_trainer_save(make_trainer(make_executor(2), options).get(), path.c_str(), nullptr, nullptr, 0),
            "save");
    options.resume = path.c_str();
    CHECK(fail_at_each(train, all_back) > 100);
    auto const load = [&] {
        uform_model_t* made = nullptr;
        uform_status_t const status = uform_model_init_vram(executor.get(), path.c_str(), &made);
        CHECK((status == uform_status_success_k) == (made != nullptr));
        uform_model_free(made);
        return status;
    };
    CHECK(fail_at_each(load, all_back) > 10);
    auto const arena = [&] {
        uform_arena_t* made = nullptr;
        uform_status_t const status = uform_arena_init_on(executor.get(), 1, 1000, &made);
        uform_arena_free(made);
        return status;
    };
    CHECK(fail_at_each(arena, all_back) == 1);
    all_back();
}

/** A step that fails before it changes weights has done nothing; one that fails later ends the run. */
void test_a_run_goes_on_or_ends(uform_status_t told) {
    executor_ptr const executor = make_failing_executor();
    uform_trainer_options_t options = tiny_options(uform_objective_joint_k);
    temporary_folder const folder;
    std::string const path = folder.file("run");
    call_t const call = image_text_call();
    uform_step_t const step = call.step();
    int went_on = 0, ended = 0;
    for (;;) {
        trainer_ptr const trainer = make_vram_trainer(executor, options);
        run_step(trainer, call);
        std::vector<float> const before = values_of(trainer);
        operations_left() = went_on + ended;
        failure() = told;
        uform_trainer_step_stats_t stats{};
        uform_status_t const status = uform_trainer_step(trainer.get(), &step, &stats);
        failure() = uform_status_device_k;
        if (std::exchange(operations_left(), none_k) != failed_k) {
            CHECK(status == uform_status_success_k && stats.step == 2);
            break;
        }
        CHECK(status == told);
        bool const same = same_bits(values_of(trainer), before);
        uform_status_t const next = uform_trainer_step(trainer.get(), &step, &stats);
        if (next == uform_status_success_k) {
            CHECK(same && ended == 0 && stats.step == 2);
            ++went_on;
            continue;
        }
        CHECK(next == uform_status_device_k && std::string(uform_last_error()).find("checkpoint") != std::string::npos);
        CHECK(uform_trainer_save(trainer.get(), path.c_str(), nullptr, nullptr, 0) == uform_status_device_k);
        CHECK(folder.files() == 0);
        ++ended;
    }
    CHECK(went_on > 20 && ended > 2);
}

/** A graph that fails at its launch, the first or a later one, has done nothing, unless the device says otherwise. */
void test_a_launch_that_fails() {
    static uform_operations_t const operations = capturing_operations();
    executor_ptr const executor(
        new uform_executor_t{uform::executor::on(uform_executor_kind_vram_k, operations, {3}, 2, nullptr)});
    uform_trainer_options_t options = tiny_options(uform_objective_joint_k);
    call_t const call = image_text_call();
    uform_step_t const step = call.step();
    using launch = captured_step::launch;
    for (launch failed : {launch::failed_before, launch::failed_after})
        for (uint64_t earlier : {1, 2, 3}) { // the second step is the first that is captured
            trainer_ptr const trainer = make_vram_trainer(executor, options);
            captured_step& captured = captured_step::only();
            captured = {};
            for (uint64_t count = 0; count != earlier; ++count)
                CHECK(run_step(trainer, call).step == count + 1);
            std::vector<float> const before = values_of(trainer);
            uform_trainer_step_stats_t stats{};
            captured.next = failed;
            CHECK(uform_trainer_step(trainer.get(), &step, &stats) == uform_status_device_k);
            CHECK(std::string(uform_last_error()) == "a launch: it failed");
            captured.next = launch::done;
            CHECK(same_bits(values_of(trainer), before) == (failed == launch::failed_before));
            uform_status_t const next = uform_trainer_step(trainer.get(), &step, &stats);
            CHECK((next == uform_status_success_k) == (failed == launch::failed_before));
            CHECK(next != uform_status_success_k || stats.step == earlier + 1);
        }
}

/** A submission waits for the step whose staging it takes: where that one has failed, nothing more runs. */
void test_no_step_follows_one_that_was_lost() {
    executor_ptr const executor = make_failing_executor();
    uform_trainer_options_t options = tiny_options(uform_objective_joint_k);
    call_t const call = image_text_call();
    uform_step_t const step = call.step();
    for (int count = 0;; ++count) {
        trainer_ptr const trainer = make_vram_trainer(executor, options);
        std::vector<pending_ptr> earlier;
        for (int ahead = 0; ahead != 4; ++ahead)
            earlier.push_back(submit_step(trainer, step));
        operations_left() = count;
        uform_pending_t* next = nullptr;
        uform_status_t const status = uform_trainer_submit(trainer.get(), &step, &next);
        pending_ptr const owner(next);
        if (std::exchange(operations_left(), none_k) != failed_k) {
            CHECK(status == uform_status_success_k && count > 10);
            return;
        }
        CHECK(status == uform_status_device_k && next == nullptr);
    }
}

/** Who waits for a step that is lost on the device is told so, and so is who waits for one behind it. */
void test_steps_behind_a_lost_one_are_lost() {
    executor_ptr const executor = make_failing_executor();
    uform_trainer_options_t options = tiny_options(uform_objective_joint_k);
    call_t const call = image_text_call();
    uform_step_t const step = call.step();
    constexpr size_t steps = 3;
    trainer_ptr const alone = make_vram_trainer(executor, options);
    std::vector<double> losses;
    for (size_t index = 0; index != steps; ++index)
        losses.push_back(run_step(alone, call).loss);
    std::set<size_t> lost_first;
    for (int count = 0;; ++count) {
        trainer_ptr const trainer = make_vram_trainer(executor, options);
        std::vector<pending_ptr> pending;
        for (size_t index = 0; index != steps; ++index)
            pending.push_back(submit_step(trainer, step));
        operations_left() = count;
        size_t applied = 0;
        for (size_t index = 0; index != steps; ++index) {
            uform_trainer_step_stats_t stats{};
            if (uform_pending_wait(pending[index].get(), &stats) == uform_status_success_k) {
                CHECK(applied == index && stats.loss == losses[index]);
                ++applied;
                continue;
            }
            CHECK(std::string(uform_last_error()).find("an operation: it failed once") != std::string::npos);
        }
        if (std::exchange(operations_left(), none_k) != failed_k) {
            CHECK(applied == steps);
            break;
        }
        CHECK(applied != steps);
        lost_first.insert(applied);
        uform_pending_t* next = nullptr;
        CHECK(uform_trainer_submit(trainer.get(), &step, &next) == uform_status_device_k && !next);
    }
    CHECK(lost_first == std::set<size_t>{0, 1, 2});
}

/** Replicas that may differ are neither trained on nor saved. */
void test_a_write_that_fails_ends_the_run() {
    executor_ptr const executor = make_failing_executor();
    uform_trainer_options_t options = tiny_options(uform_objective_joint_k);
    temporary_folder const folder;
    call_t const call = image_text_call();
    uform_step_t const step = call.step();
    trainer_ptr trainer = make_vram_trainer(executor, options);
    parameter_t const one = parameters_of(trainer)[0];
    std::vector<float> const values(one.count, 0.5f);
    auto const write = [&] {
        return uform_trainer_write(trainer.get(), one.name.c_str(), values.data(), values.size());
    };
    int failed = 0;
    for (;; ++failed) {
        operations_left() = failed;
        uform_status_t const status = write();
        if (std::exchange(operations_left(), none_k) != failed_k) {
            CHECK(status == uform_status_success_k);
            break;
        }
        uform_trainer_step_stats_t stats{};
        CHECK(status == uform_status_device_k && write() == uform_status_device_k);
        CHECK(uform_trainer_step(trainer.get(), &step, &stats) == uform_status_device_k);
        CHECK(uform_trainer_save(trainer.get(), folder.file("run").c_str(), nullptr, nullptr, 0) ==
              uform_status_device_k);
        CHECK(folder.files() == 0);
        trainer = make_vram_trainer(executor, options);
    }
    CHECK(failed >= 4);
}

} // namespace

int main() {
    test_nothing_is_left_of_what_fails_to_begin();
    test_a_run_goes_on_or_ends(uform_status_device_k);
    test_a_run_goes_on_or_ends(uform_status_out_of_memory_k);
    test_a_launch_that_fails();
    test_no_step_follows_one_that_was_lost();
    test_steps_behind_a_lost_one_are_lost();
    test_a_write_that_fails_ends_the_run();
    CHECK(far_memory::all().blocks() == 0);
    return report();
}

// Threads that share a trainer, an executor and its steps; also under ThreadSanitizer.
#include <cmath>
#include <deque>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "problem.h"

using namespace native_test;

namespace {

void test_threads_change_nothing() {
    for (int32_t devices : {1, 2}) {
        trainer_ptr const one = make_trainer(make_executor(devices, 1), tiny_options(uform_objective_joint_k));
        trainer_ptr const three = make_trainer(make_executor(devices, 3), tiny_options(uform_objective_joint_k));
        auto const one_stats = run_steps(one, image_text_call(), 3),
                   three_stats = run_steps(three, image_text_call(), 3);
        CHECK(one_stats.back().loss == three_stats.back().loss);
        CHECK(same_run(one, three));
    }
}

/** More items than one thread takes at a time, on more than one device. */
call_t crowd() {
    call_t call;
    std::mt19937 random(5);
    for (uint32_t place = 0; place != 1200; ++place) {
        if (place % 20 == 0)
            call.add_image(image_of(place % 7, random));
        else
            call.add_text(std::string(place % 3, static_cast<char>('a' + place % 26)));
    }
    call.attract = edges_of(call.count(), {{0, 1}, {20, 900}, {1199, 40}, {1199, 41}});
    return call;
}

uform_trainer_options_t crowd_options() {
    auto options = tiny_options(uform_objective_joint_k);
    options.depth = 1;
    options.batch.max_rows_per_device = 48;
    options.batch.max_segments_per_device = 700;
    return options;
}

void test_threads_share_a_crowd() {
    trainer_ptr const one = make_trainer(make_executor(2, 1), crowd_options());
    trainer_ptr const three = make_trainer(make_executor(2, 3), crowd_options());
    call_t call = crowd();
    auto const stats = run_step(one, call);
    CHECK(stats.loss == run_step(three, call).loss && stats.dropped == 0);
    CHECK(same_run(one, three));
    // The first bad item is named, whichever thread meets which first.
    call.contents[1000].extents[0] = call.contents[1060].extents[1] = call.contents[1180].extents[0] = 0;
    uform_step_t const step = call.step();
    CHECK(uform_trainer_step(three.get(), &step, nullptr) == uform_status_invalid_argument_k);
    CHECK(std::string(uform_last_error()).find("contents[1000]") != std::string::npos);
}

void test_submitted_steps_equal_blocking_ones() {
    for (int32_t devices : {1, 2}) {
        executor_ptr const executor = make_executor(devices);
        trainer_ptr const blocking = make_trainer(executor, tiny_options(uform_objective_joint_k));
        trainer_ptr const ahead = make_trainer(executor, tiny_options(uform_objective_joint_k));
        constexpr int steps = 20;
        call_t const call = image_text_call();
        auto const expected = run_steps(blocking, call, steps);
        std::deque<output_t> outputs;
        std::vector<pending_ptr> pending;
        for (int step = 0; step != steps; ++step) {
            uform_step_t view = call.step();
            view.output = outputs.emplace_back(call.count()).view;
            pending.push_back(submit_step(ahead, view));
        }
        // Fetched in any order, by any thread.
        std::vector<std::thread> threads;
        for (int third = 0; third != 3; ++third)
            threads.emplace_back([&, third] {
                for (int step = steps - 1 - third; step >= 0; step -= 3) {
                    uform_trainer_step_stats_t stats{};
                    require(uform_pending_wait(pending[step].get(), &stats), "wait");
                    CHECK(stats.step == uint64_t(step) + 1 && stats.loss == expected[step].loss);
                }
            });
        for (std::thread& one : threads)
            one.join();
        CHECK(same_run(blocking, ahead));
        for (int step = 1; step != steps; ++step)
            CHECK(!same_bits(outputs[step].values, outputs[step - 1].values)); // each its own
        CHECK(std::fabs(outputs[steps - 1].row(0)[0]) > 0);
    }
}

/** Calls from several threads, on one trainer and on another of the same executor, are served one after another. */
void test_serves_several_threads() {
    temporary_folder const folder;
    executor_ptr const executor = make_executor(2, 3);
    trainer_ptr const shared = make_trainer(executor, tiny_options(uform_objective_contrastive_k));
    trainer_ptr const neighbour = make_trainer(executor, tiny_options(uform_objective_contrastive_k));
    auto const walk = [&](trainer_ptr const& trainer) { run_steps(trainer, image_text_call(), 3); };
    std::vector<std::thread> threads;
    threads.emplace_back(walk, std::cref(shared));
    threads.emplace_back(walk, std::cref(shared));
    threads.emplace_back(walk, std::cref(neighbour));
    threads.emplace_back([&] {
        for (int repeat = 0; repeat != 3; ++repeat) {
            values_of(shared);
            std::string const path = folder.file("run.safetensors");
            require(uform_trainer_save(shared.get(), path.c_str(), nullptr, nullptr, 0), "save");
        }
    });
    for (std::thread& one : threads)
        one.join();
    trainer_ptr const alone = make_trainer(executor, tiny_options(uform_objective_contrastive_k));
    run_steps(alone, image_text_call(), 3);
    CHECK(same_run(neighbour, alone));
    run_steps(alone, image_text_call(), 3);
    CHECK(same_run(shared, alone));
}

} // namespace

int main() {
    test_threads_change_nothing();
    test_threads_share_a_crowd();
    test_submitted_steps_equal_blocking_ones();
    test_serves_several_threads();
    return report();
}

// Steps on their way: settled in order by whoever waits, kept until they are fetched, whatever becomes of the run.
#include "core/queue.h"

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <sys/wait.h>
#include <unistd.h>

#include "core/error.h"
#include "tests/native/allocations.h"
#include "tests/native/check.h"

using uform::step_outcome;
using uform::step_queue;

namespace {

constexpr uform_status_t failed_k = uform_status_device_k;

/** Settles steps as if each had just ended; every seventh fails. */
struct run {
    std::vector<uint64_t> settled;
    std::atomic<int> inside = 0;
    std::atomic<uint64_t> allowed = UINT64_MAX; // steps from this one on do not end yet

    void settle(uint64_t number, step_outcome& outcome) {
        CHECK(inside++ == 0);
        for (uint64_t open = allowed; number >= open; open = allowed)
            allowed.wait(open);
        settled.push_back(number);
        outcome.state.applied = number + 1;
        outcome.state.terms[0] = static_cast<double>(number);
        outcome.dropped = 2 * (number + 1);
        --inside;
        if (number % 7 == 6)
            uform::fail(failed_k, "step ", number);
    }

    void allow(uint64_t steps) {
        allowed = steps;
        allowed.notify_all();
    }

    std::shared_ptr<step_queue> make() {
        return std::make_shared<step_queue>(
            std::vector<uform::term>{{"own_loss", 1.0}},
            [this](uint64_t number, step_outcome& outcome) { settle(number, outcome); });
    }
};

uform_pending_t& append(step_queue& queue) {
    uform_pending_t& pending = queue.open();
    queue.append(pending);
    return pending;
}

void check_outcome(uform_pending_t* pending, uint64_t number) {
    uform_trainer_step_stats_t stats{};
    uform_status_t const status = uform_pending_wait(pending, &stats);
    if (number % 7 == 6) {
        CHECK(status == failed_k && std::string(uform_last_error()) == "step " + std::to_string(number));
        return;
    }
    CHECK(status == uform_status_success_k && stats.step == number + 1);
    CHECK(stats.extra_count == 1 && stats.extra[0].value == static_cast<double>(number));
}

void test_one_thread() {
    run own;
    auto const queue = own.make();
    for (uint64_t round = 0; round != 3; ++round) {
        std::vector<uform_pending_t*> pending;
        for (uint64_t step = 0; step != 10; ++step) {
            pending.push_back(&append(*queue));
            CHECK(pending.back()->number == 10 * round + step);
        }
        for (uint64_t step = 10; step-- != 0;)
            check_outcome(pending[step], 10 * round + step);
        for (uform_pending_t* one : pending)
            uform_pending_free(one);
    }
    CHECK(own.settled.size() == 30);
    for (uint64_t number = 0; number != own.settled.size(); ++number)
        CHECK(own.settled[number] == number);
}

/** One thread submits with few slots, as a trainer does; others fetch, each its own steps. */
void test_several_threads() {
    constexpr uint64_t steps = 2000, slots = 3, fetchers = 3, window = 16;
    run own;
    auto const queue = own.make();
    std::vector<std::atomic<uform_pending_t*>> handed(steps);
    std::vector<std::thread> threads;
    for (uint64_t fetcher = 0; fetcher != fetchers; ++fetcher)
        threads.emplace_back([&, fetcher] {
            for (uint64_t step = fetcher; step < steps; step += fetchers) {
                handed[step].wait(nullptr);
                uform_pending_t* const pending = handed[step];
                check_outcome(pending, step);
                uform_pending_free(pending);
                handed[step] = nullptr;
                handed[step].notify_all();
            }
        });
    for (uint64_t step = 0; step != steps; ++step) {
        if (step >= slots)
            queue->wait(step - slots);
        if (step >= window) // so that places suffice, whoever is slow
            while (uform_pending_t* const unfetched = handed[step - window])
                handed[step - window].wait(unfetched);
        uform_pending_t& pending = append(*queue);
        handed[step] = &pending;
        handed[step].notify_all();
    }
    for (std::thread& one : threads)
        one.join();
    CHECK(own.settled.size() == steps);
}

/** A waiter returns when its own step is final, though those behind it are not. */
void test_waits_for_no_later_step() {
    run own;
    own.allow(1);
    auto const queue = own.make();
    uform_pending_t &first = append(*queue), &second = append(*queue), &third = append(*queue);
    std::thread last([&] { check_outcome(&third, 2); });
    check_outcome(&first, 0);
    own.allow(2);
    check_outcome(&second, 1);
    own.allow(3);
    last.join();
    for (uform_pending_t* one : {&first, &second, &third})
        uform_pending_free(one);
}

void test_outlives_its_run() {
    uform_pending_t *fetched = nullptr, *unwanted = nullptr;
    {
        run own;
        auto queue = own.make();
        fetched = &append(*queue), unwanted = &append(*queue);
        queue->close();
        CHECK(own.settled.size() == 2);
        queue.reset();
    }
    check_outcome(fetched, 0);
    uform_pending_free(fetched);
    uform_pending_free(unwanted);
    uform_pending_free(nullptr);
}

void test_places_are_bounded() {
    run own;
    auto const queue = own.make();
    std::vector<uform_pending_t*> pending;
    for (size_t place = 0; place != step_queue::capacity_k; ++place)
        pending.push_back(&append(*queue));
    bool refused = false;
    try {
        queue->open();
    } catch (uform::error const& failure) {
        refused = failure.status == uform_status_invalid_argument_k;
    }
    CHECK(refused);
    for (uform_pending_t* one : pending)
        uform_pending_free(one);
    uform_pending_free(&append(*queue));
}

void test_dropped_is_told_once() {
    run own;
    auto const queue = own.make();
    uform_pending_t &first = append(*queue), &second = append(*queue), &third = append(*queue);
    uform_trainer_step_stats_t stats{};
    CHECK(uform_pending_wait(&first, nullptr) == uform_status_success_k);
    CHECK(uform_pending_wait(&second, &stats) == uform_status_success_k && stats.dropped == 4);
    CHECK(uform_pending_wait(&third, &stats) == uform_status_success_k && stats.dropped == 2);
    CHECK(uform_pending_wait(&first, &stats) == uform_status_success_k && stats.dropped == 0);
    for (uform_pending_t* one : {&first, &second, &third})
        uform_pending_free(one);
}

/** In the midst of the parent's wait: a child that waited as well would do so for ever. */
void test_a_child_of_fork_waits_for_nothing() {
    run own;
    own.allow(0);
    auto const queue = own.make();
    uform_pending_t &first = append(*queue), &second = append(*queue);
    std::thread waiting([&] { check_outcome(&first, 0); });
    while (own.inside == 0)
        std::this_thread::yield();
    pid_t const child = ::fork();
    if (child == 0) {
        ::alarm(60);
        bool const refused = uform_pending_wait(&second, nullptr) == uform_status_invalid_argument_k;
        uform_pending_free(&second);
        queue->close();
        ::_exit(refused ? 0 : 1);
    }
    int status = 1;
    ::waitpid(child, &status, 0);
    CHECK(status == 0);
    own.allow(2);
    waiting.join();
    for (uform_pending_t* one : {&first, &second})
        uform_pending_free(one);
}

/** Wherever memory ends while a step is settled, whoever waits for it is told that it failed. */
void test_no_memory_for_a_message() {
    std::string const message = "a message that is longer than what a string holds without memory of its own";
    size_t room = 0;
    for (bool whole = false; !whole;) {

        auto const queue = std::make_shared<step_queue>(
            std::vector<uform::term>{}, [&](uint64_t, step_outcome&) { uform::fail(failed_k, message); });
        uform_pending_t& pending = append(*queue);
        native_test::allocations_left() = room++;
        queue->wait(0);
        native_test::allocations_left() = SIZE_MAX;
        queue->wait(0);
        uform_status_t const status = uform::guard([&] { queue->report(pending, nullptr); });
        whole = uform::last_error() == message;
        CHECK(whole ? status == failed_k : status == failed_k || status == uform_status_out_of_memory_k);
        CHECK(!std::string(uform::last_error()).empty());
        queue->release(pending);
        queue->close();
    }
}

} // namespace

int main() {
    test_one_thread();
    test_several_threads();
    test_waits_for_no_later_step();
    test_outlives_its_run();
    test_places_are_bounded();
    test_dropped_is_told_once();
    test_a_child_of_fork_waits_for_nothing();
    test_no_memory_for_a_message();
    return native_test::report();
}

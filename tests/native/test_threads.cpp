// Worker threads: every task once, nested and concurrent runs, exceptions, no allocation.
#include "core/threads.h"

#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

#include "allocations.h"
#include "check.h"

using uform::thread_pool;

namespace {

void test_sizes() {
    CHECK(uform::affinity_size() >= 1);
    CHECK(thread_pool(0).size() == uform::affinity_size());
    CHECK(thread_pool(1).size() == 1);
    CHECK(thread_pool(5).size() == 5);
}

void test_every_task_once(unsigned threads) {
    thread_pool pool(threads);
    for (std::size_t tasks : {0, 1, 2, 3, 7, 64, 1000}) {
        for (int repeat = 0; repeat != 20; ++repeat) {
            std::vector<int> calls(tasks);
            pool.parallel_for(tasks, [&](std::size_t i) { ++calls[i]; });
            CHECK(calls == std::vector<int>(tasks, 1));
        }
    }
}

void test_chunks() {
    thread_pool pool(3);
    std::vector<int> covered(103);
    std::vector<std::size_t> sizes(11);
    pool.parallel_chunks(covered.size(), 10, [&](std::size_t begin, std::size_t end) {
        sizes[begin / 10] = end - begin;
        for (std::size_t i = begin; i != end; ++i)
            ++covered[i];
    });
    CHECK(covered == std::vector<int>(103, 1));
    CHECK(sizes == std::vector<std::size_t>{10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 3});
    pool.parallel_chunks(0, 10, [&](std::size_t, std::size_t) { CHECK(false); });
}

void test_nested_run_is_inline() {
    thread_pool pool(4), other(2);
    std::vector<int> calls(8 * 8);
    std::atomic<int> strays = 0;
    pool.parallel_for(8, [&](std::size_t outer) {
        std::thread::id const self = std::this_thread::get_id();
        thread_pool& inner_pool = outer % 2 ? pool : other;
        inner_pool.parallel_for(8, [&](std::size_t inner) {
            ++calls[outer * 8 + inner];
            strays += std::this_thread::get_id() != self;
        });
    });
    CHECK(calls == std::vector<int>(64, 1));
    CHECK(strays == 0);
}

void test_concurrent_callers() {
    thread_pool pool(3);
    std::vector<std::vector<int>> sums(4, std::vector<int>(50));
    std::vector<std::thread> callers;
    for (std::size_t caller = 0; caller != sums.size(); ++caller)
        callers.emplace_back([&, caller] {
            for (int repeat = 0; repeat != 50; ++repeat)
                pool.parallel_for(sums[caller].size(), [&](std::size_t i) { ++sums[caller][i]; });
        });
    for (std::thread& caller : callers)
        caller.join();
    for (auto const& sum : sums)
        CHECK(sum == std::vector<int>(50, 50));
}

void test_first_failure_is_rethrown(unsigned threads) {
    thread_pool pool(threads);
    for (int repeat = 0; repeat != 20; ++repeat) {
        std::vector<int> calls(40);
        std::string message;
        try {
            pool.parallel_for(calls.size(), [&](std::size_t i) {
                ++calls[i];
                if (i % 10 == 7)
                    throw std::runtime_error("task " + std::to_string(i));
            });
        } catch (std::runtime_error const& failure) {
            message = failure.what();
        }
        CHECK(message == "task 7");
        CHECK(calls == std::vector<int>(40, 1));
        std::atomic<int> after = 0;
        pool.parallel_for(10, [&](std::size_t) { ++after; });
        CHECK(after == 10);
    }
}

void test_through_the_plugin_interface() {
    thread_pool pool(2);
    uform_parallel_t const parallel = pool.parallel();
    std::vector<int> calls(33);
    parallel.run(
        parallel.pool, calls.size(),
        [](void* state, std::size_t i) { (*static_cast<std::vector<int>*>(state))[i] += 2; }, &calls);
    CHECK(std::accumulate(calls.begin(), calls.end(), 0) == 66);
}

void test_no_allocation() {
    thread_pool pool(4);
    std::vector<int> calls(100);
    auto const body = [&](std::size_t i) { ++calls[i]; };
    pool.parallel_for(calls.size(), body);
    std::size_t const before = native_test::allocations();
    for (int repeat = 0; repeat != 100; ++repeat)
        pool.parallel_for(calls.size(), body);
    std::size_t const after = native_test::allocations(); // before CHECK makes its text
    CHECK(after == before);
    CHECK(calls == std::vector<int>(100, 101));
}

} // namespace

int main() {
    test_sizes();
    for (unsigned threads : {1u, 2u, 4u, 9u}) {
        test_every_task_once(threads);
        test_first_failure_is_rethrown(threads);
    }
    test_chunks();
    test_nested_run_is_inline();
    test_concurrent_callers();
    test_through_the_plugin_interface();
    test_no_allocation();
    return native_test::report();
}

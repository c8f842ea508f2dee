/** Worker threads of one executor: many independent, numbered tasks at a time. */
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <type_traits>
#include <vector>

#include <uform/plugin.h>

namespace uform {

/**
 *  Threads that sleep until there is work. The caller of `run` takes part, one run goes on at a time, and a run from
 *  within a task happens inline on that task's thread. A run allocates nothing unless a task throws.
 */
class thread_pool {
public:
    using task_t = void (*)(void* state, std::size_t index);

    /** @param threads Threads in all, the caller's included; 0 takes the size of the affinity mask. */
    explicit thread_pool(unsigned threads = 0);
    ~thread_pool();
    thread_pool(thread_pool const&) = delete;
    thread_pool& operator=(thread_pool const&) = delete;

    /** Threads in all, the caller's included. */
    unsigned size() const noexcept { return static_cast<unsigned>(workers_.size()) + 1; }

    /**
     *  Calls `task(state, i)` for every i below `tasks` and returns after all have ended. Each is called even if
     * another throws; then the exception of the lowest index is rethrown, so that a failure does not depend on the
     * threads.
     */
    void run(std::size_t tasks, task_t task, void* state);

    /** The same for anything that is callable with an index. */
    template <typename body_at> void parallel_for(std::size_t tasks, body_at&& body) {
        using callable_t = std::remove_reference_t<body_at>;
        run(
            tasks, [](void* state, std::size_t index) { (*static_cast<callable_t*>(state))(index); },
            const_cast<void*>(static_cast<void const*>(std::addressof(body))));
    }

    /** Calls `body(begin, end)` for `count` elements in chunks of `chunk`, which must not depend on the threads. */
    template <typename body_at> void parallel_chunks(std::size_t count, std::size_t chunk, body_at&& body) {
        parallel_for((count + chunk - 1) / chunk, [&](std::size_t index) {
            std::size_t const begin = index * chunk;
            body(begin, std::min(begin + chunk, count));
        });
    }

    /** The pool as plugins and backends see it; valid as long as the pool. */
    uform_parallel_t parallel() noexcept;

private:
    void work();
    void drain();
    void drain_inline(std::size_t tasks, task_t task, void* state);
    void keep_failure(std::size_t index) noexcept;
    void stop() noexcept;

    std::vector<std::thread> workers_;
    std::mutex run_mutex_; // held by the one run that goes on

    std::mutex mutex_; // guards what follows, except the counter of tasks
    std::condition_variable wake_;
    std::condition_variable idle_;
    std::uint64_t generation_ = 0; // numbers the runs, so that a worker joins each at most once
    std::size_t busy_ = 0;         // workers that joined the run
    bool open_ = false;            // whether workers may still join it
    bool stopping_ = false;

    std::atomic<std::size_t> next_ = 0;
    std::size_t tasks_ = 0;
    task_t task_ = nullptr;
    void* state_ = nullptr;

    std::mutex failure_mutex_;
    std::exception_ptr failure_;
    std::size_t failure_index_ = 0;
};

/** Processors that this process may run on; at least 1. */
unsigned affinity_size() noexcept;

} // namespace uform

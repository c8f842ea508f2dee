#include "core/threads.h"

#include <sched.h>

#include <utility>

namespace uform {

namespace {

/** Whether this thread is at a task of any pool: what it runs then happens inline, so that no two pools wait in a ring.
 */
thread_local bool inside_task = false;

} // namespace

unsigned affinity_size() noexcept {
    // The kernel refuses a set smaller than its own, whose size it does not tell.
    for (int processors = CPU_SETSIZE; processors <= CPU_SETSIZE << 8; processors *= 2) {
        cpu_set_t* const set = CPU_ALLOC(static_cast<unsigned>(processors));
        if (!set)
            break;
        std::size_t const bytes = CPU_ALLOC_SIZE(static_cast<unsigned>(processors));
        int const count = sched_getaffinity(0, bytes, set) == 0 ? CPU_COUNT_S(bytes, set) : 0;
        CPU_FREE(set);
        if (count > 0)
            return static_cast<unsigned>(count);
    }
    return std::max(std::thread::hardware_concurrency(), 1u);
}

thread_pool::thread_pool(unsigned threads) {
    unsigned const workers = (threads ? threads : affinity_size()) - 1;
    workers_.reserve(workers);
    try {
        for (unsigned i = 0; i != workers; ++i)
            workers_.emplace_back(&thread_pool::work, this);
    } catch (...) {
        stop();
        throw;
    }
}

thread_pool::~thread_pool() { stop(); }

void thread_pool::stop() noexcept {
    {
        std::lock_guard lock(mutex_);
        stopping_ = true;
    }
    wake_.notify_all();
    for (std::thread& worker : workers_)
        worker.join();
    workers_.clear();
}

void thread_pool::run(std::size_t tasks, task_t task, void* state) {
    if (inside_task || tasks <= 1 || workers_.empty())
        return drain_inline(tasks, task, state);

    std::lock_guard const one_run(run_mutex_);
    {
        std::lock_guard lock(mutex_);
        tasks_ = tasks, task_ = task, state_ = state;
        next_.store(0, std::memory_order_relaxed);
        ++generation_;
        open_ = true;
    }
    for (std::size_t wakes = std::min(tasks - 1, workers_.size()); wakes; --wakes)
        wake_.notify_one();
    drain();
    {
        // Whoever has not joined by now finds nothing left, and need not be waited for.
        std::unique_lock lock(mutex_);
        open_ = false;
        idle_.wait(lock, [&] { return busy_ == 0; });
    }
    if (failure_)
        std::rethrow_exception(std::exchange(failure_, nullptr));
}

void thread_pool::work() {
    std::uint64_t seen = 0;
    std::unique_lock lock(mutex_);
    for (;;) {
        wake_.wait(lock, [&] { return stopping_ || (open_ && generation_ != seen); });
        if (stopping_)
            return;
        seen = generation_;
        ++busy_;
        lock.unlock();
        drain();
        lock.lock();
        if (--busy_ == 0)
            idle_.notify_one();
    }
}

void thread_pool::drain() {
    inside_task = true;
    for (;;) {
        std::size_t const index = next_.fetch_add(1, std::memory_order_relaxed);
        if (index >= tasks_)
            break;
        try {
            task_(state_, index);
        } catch (...) {
            keep_failure(index);
        }
    }
    inside_task = false;
}

void thread_pool::drain_inline(std::size_t tasks, task_t task, void* state) {
    std::exception_ptr failure;
    for (std::size_t index = 0; index != tasks; ++index) {
        try {
            task(state, index);
        } catch (...) {
            if (!failure)
                failure = std::current_exception();
        }
    }
    if (failure)
        std::rethrow_exception(std::move(failure));
}

void thread_pool::keep_failure(std::size_t index) noexcept {
    std::lock_guard lock(failure_mutex_);
    if (failure_ && failure_index_ < index)
        return;
    failure_ = std::current_exception();
    failure_index_ = index;
}

uform_parallel_t thread_pool::parallel() noexcept {
    return {this, [](void* pool, std::size_t tasks, task_t task, void* state) {
                static_cast<thread_pool*>(pool)->run(tasks, task, state);
            }};
}

} // namespace uform

#include "core/queue.h"

#include <algorithm>

#include "core/adapter.h"
#include "core/error.h"

namespace uform {

step_queue::step_queue(std::vector<term> terms, settle_t settle)
    : terms_(std::move(terms)), settle_(std::move(settle)) {
    for (uform_pending_t& one : places_) {
        one.extra.reserve(UFORM_TERMS_CAPACITY);
        free_.push_back(&one);
    }
}

uform_pending_t& step_queue::open() {
    std::lock_guard lock(mutex_);
    if (free_.empty())
        fail(uform_status_invalid_argument_k, "trainer: ", capacity_k,
             " steps were submitted whose outcomes nobody has fetched; fetch one before the next");
    uform_pending_t& pending = *free_.back();
    free_.pop_back();
    pending.outcome.status = uform_status_success_k;
    pending.keeper = shared_from_this();
    return pending;
}

void step_queue::append(uform_pending_t& pending) {
    std::lock_guard lock(mutex_);
    pending.number = appended_++;
    order_[pending.number % capacity_k] = &pending;
}

uint64_t step_queue::next() const {
    std::lock_guard lock(mutex_);
    return appended_;
}

void step_queue::wait(uint64_t number) {
    if (!here())
        fail(uform_status_invalid_argument_k, "the step was submitted in the process that this one was forked from");
    std::unique_lock lock(mutex_);
    while (final_ <= number) {
        if (settling_)
            changed_.wait(lock);
        else
            settle_next(lock);
    }
}

void step_queue::settle_next(std::unique_lock<std::mutex>& lock) {
    uint64_t const number = final_;
    uform_pending_t& pending = *order_[number % capacity_k];
    settling_ = true;
    lock.unlock();
    uform_status_t const status = guard([&] { settle_(number, pending.outcome); });
    if (status != uform_status_success_k) {
        pending.outcome.status = status;
        // Whatever finds no room here, those who wait must not wait for ever.
        if (guard([&] { pending.outcome.message = last_error(); }) != uform_status_success_k)
            pending.outcome.message.clear(); // an older step's
    }
    lock.lock();
    settling_ = false;
    ++final_;
    changed_.notify_all();
}

void step_queue::drain() {
    if (uint64_t const count = next())
        wait(count - 1);
}

void step_queue::close() {
    if (!here())
        return;
    drain();
    settle_ = nullptr;
}

void step_queue::report(uform_pending_t& pending, uform_trainer_step_stats_t* stats) {
    step_outcome const& outcome = pending.outcome;
    if (outcome.status != uform_status_success_k)
        throw error(outcome.status,
                    outcome.message.empty() ? "the host has no memory left to say why" : outcome.message);
    if (!stats)
        return;
    *stats = uform_trainer_step_stats_t{};
    report_terms(terms_, outcome.state.terms, *stats, pending.extra);
    stats->step = outcome.state.applied;
    stats->learning_rate = outcome.state.learning_rate;
    stats->gradient_norm = outcome.state.gradient_norm;
    stats->truncated = outcome.truncated;
    std::lock_guard lock(mutex_);
    stats->dropped = outcome.dropped - std::min(outcome.dropped, dropped_read_);
    dropped_read_ = std::max(dropped_read_, outcome.dropped);
}

void step_queue::release(uform_pending_t& pending) {
    std::shared_ptr<step_queue> const keeper = std::move(pending.keeper); // may be the last that holds this queue
    std::lock_guard lock(mutex_);
    free_.push_back(&pending);
}

} // namespace uform

extern "C" {

uform_status_t uform_pending_wait(uform_pending_t* pending, uform_trainer_step_stats_t* stats) {
    return uform::guard([&] {
        pending->keeper->wait(pending->number);
        pending->keeper->report(*pending, stats);
    });
}

void uform_pending_free(uform_pending_t* pending) {
    if (!pending || !pending->keeper->here())
        return;
    uform::guard([&] { pending->keeper->wait(pending->number); });
    pending->keeper->release(*pending);
}
}

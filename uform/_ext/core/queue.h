/** Steps on their way: each is final after all that were submitted before it, and its outcome waits to be fetched. */
#pragma once

#include <array>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <unistd.h>

#include <uform/plugin.h>

#include "core/plugins.h"

namespace uform {

class step_queue;

/** What a step ended in. */
struct step_outcome {
    uform_status_t status = uform_status_success_k;
    std::string message;
    uform_update_state_t state{};
    uint64_t truncated = 0;
    uint64_t dropped = 0; /* by all steps of the run up to this one */
};

} // namespace uform

/** The handle of `uform.h`: one step, from its submission until its outcome has been fetched. */
struct uform_pending_t {
    uint64_t number = 0; /* of the step among those that were submitted */
    uform::step_outcome outcome;
    std::vector<uform_named_value_t> extra;
    std::shared_ptr<uform::step_queue> keeper; /* where it lies, while it is handed out */
};

namespace uform {

/**
 *  Whoever waits for a step settles the steps up to it, one thread at a time: there is no thread of its own. A step
 *  takes no memory here unless it fails.
 */
class step_queue : public std::enable_shared_from_this<step_queue> {
public:
    /** The most steps whose outcomes wait to be fetched. */
    static constexpr size_t capacity_k = 64;

    /** Waits until the step of a number is done, and writes its outcome. What it throws becomes the outcome. */
    using settle_t = std::function<void(uint64_t number, step_outcome& outcome)>;

    /** @param terms What `report` sorts a state's terms by. */
    step_queue(std::vector<term> terms, settle_t settle);

    /** A place for a step's outcome; refuses where too many wait to be fetched. One thread at a time. */
    uform_pending_t& open();

    /** The step's work is under way: its number follows the last one's. By the thread that opened it. */
    void append(uform_pending_t& pending);

    /** The number that the next step gets. */
    uint64_t next() const;

    /** Waits until the step of a number is final; refused in a child of fork, where nobody ends what is under way. */
    void wait(uint64_t number);

    /** Waits until all steps are. */
    void drain();

    /** Drains, for good: outcomes can still be fetched, whatever becomes of the run. A child of fork leaves it. */
    void close();

    /** Writes what a final step reports; throws what it failed by. */
    void report(uform_pending_t& pending, uform_trainer_step_stats_t* stats);

    /** The outcome is not wanted any more. */
    void release(uform_pending_t& pending);

    /** Whether this is the process that made the queue. */
    bool here() const noexcept { return getpid() == owner_; }

private:
    void settle_next(std::unique_lock<std::mutex>& lock);

    pid_t const owner_ = getpid();
    std::vector<term> const terms_;
    settle_t settle_;
    std::array<uform_pending_t, capacity_k> places_;

    mutable std::mutex mutex_; // guards what follows
    std::condition_variable changed_;
    std::vector<uform_pending_t*> free_;
    std::array<uform_pending_t*, capacity_k> order_{}; // by number, what is not final
    uint64_t appended_ = 0, final_ = 0;
    bool settling_ = false;
    uint64_t dropped_read_ = 0;
};

} // namespace uform

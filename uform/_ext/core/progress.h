/** Progress of a long verb, told to the caller from its own thread. */
#pragma once

#include <algorithm>

#include "core/error.h"

namespace uform {

class progress {
public:
    /** @param every Units between two calls; 0 is 1. The last unit is always told. */
    progress(uform_progress_t call, void* state, uint64_t every, uint64_t total)
        : call_(call), state_(state), every_(std::max<uint64_t>(every, 1)), total_(total) {}

    /** Units done; throws where the caller cancels. */
    void advance(uint64_t units = 1) {
        done_ += units;
        if (!call_ || (done_ % every_ != 0 && done_ != total_))
            return;
        if (!call_(done_, total_, state_))
            fail(uform_status_cancelled_k, "cancelled by the progress callback");
    }

private:
    uform_progress_t call_;
    void* state_;
    uint64_t every_;
    uint64_t total_;
    uint64_t done_ = 0;
};

} // namespace uform

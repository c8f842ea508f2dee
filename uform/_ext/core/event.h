/** A point in the order of a device's work, for other streams and the host to wait for; destroyed with its owner. */
#pragma once

#include <utility>

#include "core/operations.h"

namespace uform {

class device_event {
public:
    device_event(uform_operations_t const& operations, uform_stream_t* stream) : operations_(&operations) {
        check(operations.event_create(stream, &event_));
    }
    ~device_event() {
        if (event_)
            operations_->event_destroy(event_);
    }
    device_event(device_event&& other) noexcept
        : operations_(other.operations_), event_(std::exchange(other.event_, nullptr)) {}
    device_event(device_event const&) = delete;
    device_event& operator=(device_event const&) = delete;
    device_event& operator=(device_event&&) = delete;

    /** The point that the stream's work has reached so far. */
    void record(uform_stream_t* stream) { check(operations_->event_record(stream, event_)); }

    /** What comes later on the stream waits for the point recorded last. */
    void hold(uform_stream_t* stream) const { check(operations_->stream_wait(stream, event_)); }

    /** The host waits for it. */
    void wait() const { check(operations_->host_wait(event_)); }

    /** Seconds until a later point; both have passed. */
    double seconds_to(device_event const& later) const {
        double seconds = 0;
        check(operations_->event_elapsed(event_, later.event_, &seconds));
        return seconds;
    }

private:
    uform_operations_t const* operations_;
    uform_event_t* event_ = nullptr;
};

} // namespace uform

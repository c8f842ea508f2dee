#include "vram/outside_captures.h"

#include "vram/capture_gate.h"
#include "vram/driver_function.h"

namespace uform::vram {

namespace {

/** Swaps the thread's mode; the runtime's own might make a context on GPU 0. */
bool exchange(CUstreamCaptureMode& mode) noexcept {
    using function = decltype(cuThreadExchangeStreamCaptureMode);
    static function* const known = driver_function<function>("cuThreadExchangeStreamCaptureMode", 10010);
    return known && known(&mode) == CUDA_SUCCESS;
}

} // namespace

outside_captures::outside_captures() noexcept
    : before_(capture_gate::entered_here() ? CU_STREAM_CAPTURE_MODE_THREAD_LOCAL : CU_STREAM_CAPTURE_MODE_RELAXED),
      changed_(exchange(before_)) {}

outside_captures::~outside_captures() {
    if (changed_)
        exchange(before_);
}

} // namespace uform::vram

/** What the calling thread may do while others capture. */
#pragma once

#include <cuda.h>

namespace uform::vram {

/**
 *  Keeps the calling thread out of captures that other libraries have open, for as long as it lives.
 *
 *  While any thread captures in the global mode (`torch.cuda.graph` does by default), a thread in its own global
 *  mode may not allocate, free, wait or instantiate graphs: the call fails, and breaks that capture. CUDA guards
 *  against work that a capture depends on and does not hold. What the backend touches is its own: streams that only
 *  it captures, events recorded on them, memory that nobody else has seen yet or sees any more. That allocating and
 *  freeing may wait for the GPU is no matter: what is captured does not run meanwhile. So such calls are relaxed;
 *  within a capture of the backend's own they are checked, for they would be done once and not in each launch.
 *  Kernels and copies may start whoever captures, and go without: there are many in a step.
 */
class outside_captures {
public:
    outside_captures() noexcept;
    ~outside_captures();
    outside_captures(outside_captures const&) = delete;
    outside_captures& operator=(outside_captures const&) = delete;

private:
    CUstreamCaptureMode before_{};
    bool changed_ = false;
};

} // namespace uform::vram

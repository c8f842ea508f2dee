/** The calling thread's current GPU, which a caller's own CUDA code relies on. */
#pragma once

#include <cuda.h>

namespace uform::vram {

/** Makes a GPU current for as long as it lives, and then what was current before, whatever came between. */
class current_gpu {
public:
    /** @param operation For the message where the GPU can not be made current. */
    current_gpu(int device, char const* operation);
    ~current_gpu();
    current_gpu(current_gpu const&) = delete;
    current_gpu& operator=(current_gpu const&) = delete;

    /** For what gives things back: a GPU that is lost is no error there. */
    static current_gpu for_release(int device) noexcept { return current_gpu(device); }

private:
    explicit current_gpu(int device) noexcept;

    CUcontext before_ = nullptr;
};

} // namespace uform::vram

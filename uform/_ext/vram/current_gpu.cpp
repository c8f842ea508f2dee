#include "vram/current_gpu.h"

#include <cuda_runtime_api.h>

#include "vram/device.h"
#include "vram/driver_function.h"
#include "vram/stream.h"

namespace uform::vram {

namespace {

/** What the runtime's own functions would make a context on GPU 0 for. */
struct driver_functions {
    decltype(&cuCtxGetCurrent) get = driver_function<decltype(cuCtxGetCurrent)>("cuCtxGetCurrent", 4000);
    decltype(&cuCtxSetCurrent) set = driver_function<decltype(cuCtxSetCurrent)>("cuCtxSetCurrent", 4000);
};

driver_functions const& driver() noexcept {
    static driver_functions const instance; // one driver a process
    return instance;
}

CUcontext current_context() noexcept {
    CUcontext found = nullptr;
    if (driver().get)
        driver().get(&found);
    return found;
}

} // namespace

current_gpu::current_gpu(int device) noexcept : before_(current_context()) {
    cudaSetDevice(device);
    cudaGetLastError();
}

current_gpu::current_gpu(int device, char const* operation) : before_(current_context()) {
    cudaError_t const result = cudaSetDevice(device);
    if (result == cudaErrorMemoryAllocation) {
        cudaGetLastError();
        fail(uform_status_out_of_memory_k, operation, ": GPU ", device,
             " has too little free memory for this process's context, some hundred MiB: others use it");
    }
    if (result == cudaErrorInitializationError)
        fail(uform_status_device_k, operation, ": ", forked_k);
    check_cuda(result, operation);
}

current_gpu::~current_gpu() {
    if (current_context() == before_)
        return;
    int device = 0;
    // A thread that had none is on GPU 0 for the runtime: it may as well stay there.
    if (before_ == nullptr && cudaGetDevice(&device) == cudaSuccess && device == 0)
        return;
    if (driver().set)
        driver().set(before_);
}

} // namespace uform::vram

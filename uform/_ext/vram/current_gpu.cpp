#include "vram/current_gpu.h"

#include <cuda_runtime_api.h>

#include "vram/device.h"
#include "vram/stream.h"

namespace uform::vram {

namespace {

/** The driver's functions, by way of the runtime: nothing links the driver, and cudaSetDevice would make a context. */
struct driver_contexts {
    decltype(&cuCtxGetCurrent) get = nullptr;
    decltype(&cuCtxSetCurrent) set = nullptr;

    driver_contexts() noexcept {
        void *found_get = nullptr, *found_set = nullptr;
        constexpr unsigned since = 4000;
        cudaDriverEntryPointQueryResult result{};
        cudaGetDriverEntryPointByVersion("cuCtxGetCurrent", &found_get, since, cudaEnableDefault, &result);
        cudaGetDriverEntryPointByVersion("cuCtxSetCurrent", &found_set, since, cudaEnableDefault, &result);
        cudaGetLastError();
        if (!found_get || !found_set)
            return;
        get = reinterpret_cast<decltype(get)>(found_get);
        set = reinterpret_cast<decltype(set)>(found_set);
    }
};

driver_contexts const& contexts() noexcept {
    static driver_contexts const instance; // one driver a process
    return instance;
}

CUcontext current_context() noexcept {
    CUcontext found = nullptr;
    if (contexts().get)
        contexts().get(&found);
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
    if (contexts().set)
        contexts().set(before_);
}

} // namespace uform::vram

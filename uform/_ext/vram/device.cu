/** The GPUs that this process sees: the runtime API's answers, sorted into states that a user can act on. */
#include "vram/device.h"

#include <cuda_runtime.h>

#include "vram/current_gpu.h"
#include "vram/stream.h"

namespace uform::vram {
namespace {

std::string version_text(int version) {
    return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

/** Sorts the error of the first call that needs a driver; `inventory` holds both versions already. */
void explain(cudaError_t error, device_inventory& inventory) {
    switch (error) {
    case cudaErrorInsufficientDriver:
    case cudaErrorStubLibrary:
        // The runtime has one code for both; without a driver there is no version either.
        if (inventory.driver_version == 0 || error == cudaErrorStubLibrary) {
            inventory.state = driver_state::missing_k;
            inventory.reason = "no NVIDIA driver is installed";
            return;
        }
        inventory.state = driver_state::too_old_k;
        inventory.reason = "the NVIDIA driver supports CUDA " + version_text(inventory.driver_version) +
                           ", and this build needs " + version_text(inventory.runtime_version);
        return;
    case cudaErrorNoDevice:
        inventory.state = driver_state::no_gpu_k;
        inventory.reason = "no GPU is visible to this process";
        return;
    case cudaErrorInitializationError:
        inventory.state = driver_state::failed_k;
        inventory.reason = forked_k;
        return;
    default:
        inventory.state = driver_state::failed_k;
        inventory.reason = std::string("the NVIDIA driver failed: ") + cudaGetErrorString(error);
    }
}

cudaError_t describe(int index, device_info& info) {
    cudaDeviceProp properties;
    cudaError_t error = cudaGetDeviceProperties(&properties, index);
    if (error != cudaSuccess)
        return error;
    info.index = index;
    info.name = properties.name;
    info.capability_major = properties.major;
    info.capability_minor = properties.minor;
    info.memory_bytes = properties.totalGlobalMem;
    info.multiprocessors = properties.multiProcessorCount;
    return cudaSuccess;
}

/** Compiled for all that every other kernel is compiled for. */
__global__ void sample_kernel() {}

} // namespace

device_inventory list_devices() {
    device_inventory inventory;
    cudaRuntimeGetVersion(&inventory.runtime_version);
    cudaDriverGetVersion(&inventory.driver_version);
    int count = 0;
    cudaError_t error = cudaGetDeviceCount(&count);
    for (int index = 0; error == cudaSuccess && index < count; ++index)
        error = describe(index, inventory.devices.emplace_back());
    if (error == cudaSuccess && count == 0)
        error = cudaErrorNoDevice;
    if (error == cudaSuccess) {
        inventory.state = driver_state::ready_k;
        return inventory;
    }
    // The runtime remembers its last error for the next launch check: this one has been reported.
    cudaGetLastError();
    inventory.devices.clear();
    explain(error, inventory);
    return inventory;
}

bool has_kernels_for(int index) {
    constexpr char const* operation = "backend_create";
    current_gpu const current(index, operation);
    cudaFuncAttributes attributes;
    cudaError_t const result = cudaFuncGetAttributes(&attributes, sample_kernel);
    if (result != cudaErrorNoKernelImageForDevice && result != cudaErrorInvalidDeviceFunction &&
        result != cudaErrorInvalidKernelImage && result != cudaErrorUnsupportedPtxVersion) {
        check_cuda(result, operation);
        return true;
    }
    cudaGetLastError(); // told by the answer
    return false;
}

} // namespace uform::vram

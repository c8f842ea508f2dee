/** Functions of the driver, which nothing links. */
#pragma once

#include <cuda_runtime_api.h>

namespace uform::vram {

/** One of them, by way of the runtime; null where the driver has none. Makes no context. */
template <typename function_at> function_at* driver_function(char const* name, unsigned since) noexcept {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result{};
    cudaGetDriverEntryPointByVersion(name, &found, since, cudaEnableDefault, &result);
    cudaGetLastError();
    return reinterpret_cast<function_at*>(found);
}

} // namespace uform::vram

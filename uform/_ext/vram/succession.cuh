/** Kernels that begin while those before them end: a launch's latency and a last wave's idle processors overlap. */
#pragma once

#include "vram/launch.cuh"

namespace uform::vram {

/**
 *  Until all that came before on the stream is done and seen; from then on the next kernel may be placed where this one
 *  leaves room. What every block of a kernel does first that is started by `launch_early`, for those behind it wait for
 *  it alone.
 */
__device__ __forceinline__ void follow_earlier_kernels() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;\ngriddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/** `launch` of a kernel that follows earlier ones by itself; an empty grid is none. */
template <typename... parameters_at, typename... arguments_at>
void launch_early(stream const& stream, void (*kernel)(parameters_at...), dim3 grid, dim3 block,
                  std::size_t shared_bytes, arguments_at&&... arguments) {
    if (grid.x == 0 || grid.y == 0 || grid.z == 0)
        return;
    cudaLaunchAttribute attribute{};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = grid;
    config.blockDim = block;
    config.dynamicSmemBytes = shared_bytes;
    config.stream = stream.handle;
    config.attrs = &attribute;
    // Of a later GPU it is not known that the kernel waits: it may run what was compiled for an earlier one.
    config.numAttrs = stream.gpu_class == uform_gpu_class_hopper_k ? 1 : 0;
    detail::launch(stream, kernel, config, static_cast<arguments_at&&>(arguments)...);
}

} // namespace uform::vram

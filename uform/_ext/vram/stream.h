/** Streams of GPUs: what every operation of the VRAM backend is given, and how its errors are told. */
#pragma once

#include <atomic>
#include <cstdint>

#include <cuda_runtime_api.h>

#include <uform/plugin.h>

#include "core/error.h"

namespace uform::vram {

/** What a step must not do, counted over all streams of a backend. */
struct work_counters {
    std::atomic<std::uint64_t> allocations = 0, host_waits = 0;
};

/** The order of work on one device of the process; several streams may share a GPU. */
struct stream {
    cudaStream_t handle = nullptr;
    int device = 0;                    // of the CUDA runtime
    int multiprocessors = 0;           // of the GPU
    int gpu_class = 0;                 // uform_gpu_class_t that every device of the backend dispatches as
    std::uint32_t place = 0;           // among the devices of the process
    cudaEvent_t reached = nullptr;     // by which streams wait for each other
    void* bounce = nullptr;            // [bounce_bytes_k] where a pair of GPUs can not read each other, else null
    work_counters* counters = nullptr; // the backend's
    char const* operation = "VRAM";    // the one that runs, for messages

    static stream& of(uform_stream_t* opaque) noexcept { return *reinterpret_cast<stream*>(opaque); }
};

/** A point in the order of work on one GPU. */
struct event {
    cudaEvent_t handle = nullptr;
    int device = 0;
    work_counters* counters = nullptr;

    static event& of(uform_event_t* opaque) noexcept { return *reinterpret_cast<event*>(opaque); }
};

/** Captured work of one GPU. */
struct graph {
    cudaGraphExec_t handle = nullptr;
    int device = 0;

    static graph& of(uform_graph_t* opaque) noexcept { return *reinterpret_cast<graph*>(opaque); }
};

/** Bytes of a stream's bounce buffer. */
inline constexpr std::size_t bounce_bytes_k = std::size_t(16) << 20;

[[noreturn]] void fail_cuda(cudaError_t result, char const* operation);

/** Throws what the CUDA runtime answered; the message names the operation. */
inline void check_cuda(cudaError_t result, char const* operation) {
    if (result != cudaSuccess)
        fail_cuda(result, operation);
}

inline void check_cuda(cudaError_t result, stream const& stream) { check_cuda(result, stream.operation); }

} // namespace uform::vram

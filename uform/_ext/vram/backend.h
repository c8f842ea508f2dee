/** The GPUs of one executor, and the class of kernels that they all run. */
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <uform/plugin.h>

#include "vram/stream.h"

namespace uform::vram {

/** The class of a compute capability: the newest whose kernels it runs; none below 8.0. */
int gpu_class_of(int major, int minor) noexcept;

/** The class to dispatch as: `own`, or what UFORM_GPU_CLASS lowers it to; a name that is none is refused. */
int lowered_gpu_class(int own, char const* wish);

/**
 *  The class by which kernels are chosen for GPUs that share a run.
 *  @param lowest What the run says it is: the lowest class of its GPUs, or what the user lowered that to.
 *  @param own Each GPU's own class. A later GPU lacks Hopper's own instructions, although its class is no lower.
 *  @param has_hopper_kernels Whether this build holds kernels of those instructions.
 */
int dispatched_gpu_class(int lowest, std::span<int const> own, bool has_hopper_kernels) noexcept;

class backend {
public:
    /** Refuses an index that names no GPU, a GPU older than the kernels, and one that this build has no kernels for. */
    explicit backend(uform_backend_options_t const& options);

    /** The lowest class of its GPUs, lowered by UFORM_GPU_CLASS. */
    int gpu_class() const noexcept { return gpu_class_; }

    /** The class by which its kernels are chosen. */
    int dispatched() const noexcept { return dispatched_; }

    /** The stream of the device at a place; `destroy` ends it. */
    stream* create_stream(std::uint32_t place);
    static void destroy_stream(stream* made) noexcept;

    work_counters const& counters() const noexcept { return counters_; }

private:
    void connect_peers();

    std::vector<int> devices_;         // by place, an index of the CUDA runtime each
    std::vector<int> multiprocessors_; // by place
    int gpu_class_ = 0;
    int dispatched_ = 0;
    bool connected_ = true; // every GPU reads every other's memory
    work_counters counters_;
};

} // namespace uform::vram

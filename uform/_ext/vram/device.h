/** The GPUs that this process sees, and why it sees none. Needs no driver to load, and no CUDA header to include. */
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace uform::vram {

/** Whether CUDA can be used at all; every state but `ready_k` is one clear error for the user. */
enum class driver_state {
    ready_k,   ///< at least one GPU is visible
    missing_k, ///< no driver is installed
    too_old_k, ///< the driver is older than the CUDA runtime of this build
    no_gpu_k,  ///< a driver, but no GPU, or none that CUDA_VISIBLE_DEVICES leaves visible
    failed_k,  ///< the driver answered with an error of its own
};

/** What CUDA calls an initialization error. */
inline constexpr char const* forked_k = "the NVIDIA driver cannot be used in this process, as in every one that was "
                                        "forked from a process that had used it: start such processes by \"spawn\" "
                                        "or \"forkserver\"";

struct device_info {
    int index = 0;
    std::string name;
    int capability_major = 0;
    int capability_minor = 0;
    std::size_t memory_bytes = 0;
    int multiprocessors = 0;
};

struct device_inventory {
    driver_state state = driver_state::missing_k;
    /** The CUDA version that the driver supports, and that of the runtime inside this library: 13000 is 13.0. */
    int driver_version = 0;
    int runtime_version = 0;
    /** A sentence for the user; empty where `state` is `ready_k`. */
    std::string reason;
    /** All visible GPUs, by index, whatever their class. */
    std::vector<device_info> devices;
};

/** Asks the driver, opening it if need be. Creates no context, so no GPU memory is taken. */
device_inventory list_devices();

/** Whether this build's kernels run on a GPU: as machine code, or as PTX that the driver compiles. Makes its context.
 */
bool has_kernels_for(int index);

} // namespace uform::vram

/** The seam between what is computed and where: the table of operations and the backends that implement it. */
#pragma once

#include <string>
#include <vector>

#include <uform/plugin.h>

#include "core/error.h"

namespace uform {

/** The readable reference, always there. */
uform_operations_t const& ram_operations();

struct visible_gpu {
    int32_t index;
    std::string name;
    int32_t capability_major, capability_minor;
    uint64_t memory_bytes;
};

/** The visible GPUs; throws where none can be used, saying why. Defined by the VRAM backend alone. */
std::vector<visible_gpu> vram_gpus();

/** Their indices. */
std::vector<int32_t> vram_devices();

/** The operations on GPUs. Defined by the VRAM backend alone. */
uform_operations_t const& vram_operations();

} // namespace uform

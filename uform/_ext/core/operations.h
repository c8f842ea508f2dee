/** The seam between what is computed and where: the table of operations and the backends that implement it. */
#pragma once

#include <vector>

#include <uform/plugin.h>

#include "core/error.h"

namespace uform {

/** The readable reference, always there. */
uform_operations_t const& ram_operations();

/** Indices of the visible GPUs; throws where none can be used, saying why. Defined by the VRAM backend alone. */
std::vector<int32_t> vram_devices();

/** The operations on GPUs. Defined by the VRAM backend alone. */
uform_operations_t const& vram_operations();

} // namespace uform

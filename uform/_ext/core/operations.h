/** The seam between what is computed and where: the table of operations and the backends that implement it. */
#pragma once

#include <string>

#include <uform/plugin.h>

#include "core/error.h"

namespace uform {

/** The readable reference, always there. */
uform_operations_t const& ram_operations();

/** Why no GPU can be used, in a sentence; empty where one can. Defined by the VRAM backend alone. */
std::string vram_absence();

} // namespace uform

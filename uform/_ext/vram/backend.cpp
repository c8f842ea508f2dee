/** What the core asks of the VRAM backend before it uses it. */
#include "core/operations.h"
#include "vram/device.h"

namespace uform {

std::string vram_absence() { return vram::list_devices().reason; }

} // namespace uform

/** Text as UTF-8 bytes, a column a byte. */
#pragma once

#include <uform/plugin.h>

namespace uform {

/** It has no configuration and is in every run. */
extern uform_modality_plugin_t const text_plugin;

} // namespace uform

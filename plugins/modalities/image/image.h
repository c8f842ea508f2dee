/** Images as square patches in raster order, a column a patch. */
#pragma once

#include <uform/plugin.h>

namespace uform {

/** Configured by `uform_image_shape_t`; a `patch_side` of 0 leaves images out of the run. */
extern uform_modality_plugin_t const image_plugin;

} // namespace uform

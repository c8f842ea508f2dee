/** The image modality's configuration: its fields, and what they derive and refuse. */
#pragma once

#include <uform/plugin.h>

namespace uform::image {

extern uform_field_t const fields[];
extern size_t const fields_count;

/** Derives the zeros of a `uform_image_shape_t` in place; refuses values with the field's name. */
uform_status_t derive(void* config, uform_run_t const* run, uform_declare_t const* declare, uint32_t* enabled);

} // namespace uform::image

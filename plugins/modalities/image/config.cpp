#include "plugins/modalities/image/config.h"

#include <cstdio>
#include <iterator>

#include "plugins/modalities/image/patches.h"

namespace uform::image {

uform_field_t const fields[] = {
    {"patch_side", uform_field_type_int32_k, offsetof(uform_image_shape_t, patch_side), 1, 0},
    {"channels", uform_field_type_int32_k, offsetof(uform_image_shape_t, channels), 1, 0},
};
size_t const fields_count = std::size(fields);

namespace {

constexpr int32_t channels_k = 3;

uform_status_t refuse(uform_declare_t const& declare, char const* field, int64_t value, char const* why) {
    char message[160];
    std::snprintf(message, sizeof(message), "%s is %lld: %s", field, static_cast<long long>(value), why);
    return declare.fail(declare.host, uform_status_invalid_argument_k, message);
}

} // namespace

uform_status_t derive(void* config, uform_run_t const* run, uform_declare_t const* declare, uint32_t* enabled) {
    auto& shape = *static_cast<uform_image_shape_t*>(config);
    *enabled = shape.patch_side != 0;
    if (!*enabled)
        return uform_status_success_k;
    if (shape.patch_side < 0 || shape.patch_side > static_cast<int32_t>(most_side_k))
        return refuse(*declare, "ImageShape.patch_side", shape.patch_side,
                      "it must lie between 1 and 256 pixels, or be 0 for a run without images");
    if (shape.channels == 0)
        shape.channels = channels_k;
    if (shape.channels != 1 && shape.channels != 3 && shape.channels != 4)
        return refuse(*declare, "ImageShape.channels", shape.channels,
                      "it must be 1 (grey), 3 (red, green, blue) or 4 (with alpha), or 0 for 3");
    if (run->row_columns < 2)
        return refuse(*declare, "BatchShape.max_columns_per_row", run->row_columns,
                      "an image takes at least 2 columns, its marker and a patch");
    return uform_status_success_k;
}

} // namespace uform::image

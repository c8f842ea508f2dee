#include "plugins/modalities/image/image.h"

#include <algorithm>
#include <cstdio>
#include <memory>
#include <new>

#include "plugins/modalities/image/config.h"
#include "plugins/modalities/image/grid.h"
#include "plugins/modalities/image/patches.h"

namespace uform {

namespace image {
namespace {

constexpr uint16_t marker_k = 0;
constexpr uint16_t mask_k = 1;
constexpr uint32_t table_rows_k = 2; // the two above
constexpr double deviation_k = 0.02;
constexpr float multiplier_k = 1 / 127.5f; // from [0, 255] to [-1, 1]
constexpr float offset_k = -1;
/** What keeps sums over a picture's area within 64 bits, and nobody's picture out. */
constexpr uint64_t most_picture_side_k = uint64_t(1) << 24;
constexpr uint64_t most_pixels_k = uint64_t(1) << 31;

/** What one run needs of images. */
struct state {
    state(uform_image_shape_t const& shape, uform_run_t const& run)
        : side(static_cast<uint32_t>(shape.patch_side)), channels(static_cast<uint32_t>(shape.channels)),
          width(side * side * channels), hidden(run.hidden), capacity(run.columns_capacity) {}

    uint32_t side;
    uint32_t channels;
    uint32_t width; /* values of a patch */
    uint32_t hidden;
    uint32_t capacity; /* patches of a device */
    uint32_t table = 0, patch = 0, head = 0;
    size_t count = 0;           /* staging: the device's patches */
    size_t values = 0;          /* staging: [capacity, width] */
    size_t patch_columns = 0;   /* staging: [capacity] */
    size_t covered_patches = 0; /* staging: [capacity] in the order covered */
    size_t workspace = 0;       /* of one operation at a time */
    size_t workspace_bytes = 0;

    template <typename value_at> value_at* staged(uint8_t* staging, size_t offset) const {
        return reinterpret_cast<value_at*>(staging + offset);
    }
    template <typename value_at> value_at const* staged(uint8_t const* staging, size_t offset) const {
        return reinterpret_cast<value_at const*>(staging + offset);
    }
};

uform_status_t declare_parameters(state& self, uform_run_t const& run, uform_declare_t const& declare) {
    uform_parameter_request_t const table{
        "table", table_rows_k, self.hidden, uform_parameter_kind_embedding_k, deviation_k, 0, 0, 0};
    uform_parameter_request_t const patch{"patch",     self.hidden, self.width, uform_parameter_kind_matrix_k,
                                          deviation_k, 0,           0,          0};
    uform_parameter_request_t const head{"head",      self.width, self.hidden, uform_parameter_kind_matrix_k,
                                         deviation_k, 0,          0,           0};
    uform_status_t status = declare.parameter(declare.host, &table, &self.table);
    if (status == uform_status_success_k)
        status = declare.parameter(declare.host, &patch, &self.patch);
    if (status == uform_status_success_k && run.training)
        status = declare.parameter(declare.host, &head, &self.head);
    return status;
}

uform_status_t declare_memory(state& self, uform_run_t const& run, uform_declare_t const& declare) {
    uform_operations_t const& operations = *declare.operations;
    self.workspace_bytes = std::max(operations.embedding_workspace_bytes(self.hidden, table_rows_k, self.capacity),
                                    operations.patches_workspace_bytes(self.hidden, self.width, self.capacity));
    uform_status_t status = declare.staging(declare.host, sizeof(uint32_t), &self.count);
    if (status == uform_status_success_k)
        status = declare.column_staging(declare.host, uform_staging_unit_content_k, self.width, &self.values);
    if (status == uform_status_success_k)
        status =
            declare.column_staging(declare.host, uform_staging_unit_content_k, sizeof(uint32_t), &self.patch_columns);
    if (status == uform_status_success_k && run.training) {
        self.workspace_bytes = std::max(
            self.workspace_bytes, operations.patches_head_workspace_bytes(self.hidden, self.width, self.capacity));
        status =
            declare.column_staging(declare.host, uform_staging_unit_covered_k, sizeof(uint32_t), &self.covered_patches);
    }
    if (status == uform_status_success_k)
        status = declare.workspace(declare.host, self.workspace_bytes, &self.workspace);
    return status;
}

uform_status_t create(void const* config, uform_run_t const* run, uform_declare_t const* declare, void** made) {
    std::unique_ptr<state> self(new (std::nothrow) state(*static_cast<uform_image_shape_t const*>(config), *run));
    if (!self)
        return declare->fail(declare->host, uform_status_out_of_memory_k, "ImageShape: the host has no memory left");
    uform_status_t status = declare_parameters(*self, *run, *declare);
    if (status == uform_status_success_k)
        status = declare_memory(*self, *run, *declare);
    if (status == uform_status_success_k)
        *made = self.release();
    return status;
}

void destroy(void* self) { delete static_cast<state*>(self); }

/** The array of a content that `check` let pass. */
picture picture_of(uform_content_t const& content) {
    bool const has_channels = content.rank == 3;
    return {static_cast<uint8_t const*>(content.data),
            static_cast<uint32_t>(content.extents[0]),
            static_cast<uint32_t>(content.extents[1]),
            has_channels ? static_cast<uint32_t>(content.extents[2]) : 1,
            content.strides[0],
            content.strides[1],
            has_channels ? content.strides[2] : 1};
}

/** Whether the content is a picture; leaves the reason where it is none. */
bool check(uform_content_t const& content, char* message, size_t message_bytes) {
    auto const height = static_cast<unsigned long long>(content.extents[0]);
    auto const width = static_cast<unsigned long long>(content.extents[1]);
    auto const channels = static_cast<unsigned long long>(content.rank == 3 ? content.extents[2] : 1);
    if (content.rank == 0)
        std::snprintf(message, message_bytes,
                      "it is still encoded: decode it to uint8 [height, width] or [height, width, channels]");
    else if (content.rank != 2 && content.rank != 3)
        std::snprintf(message, message_bytes,
                      "an image has the extents [height, width] or [height, width, channels], not %u of them",
                      content.rank);
    else if (content.element != uform_element_uint8_k)
        std::snprintf(message, message_bytes, "the pixels of an image are uint8, not of element type %u",
                      content.element);
    else if (height == 0 || width == 0)
        std::snprintf(message, message_bytes, "an image of %llu x %llu pixels (height x width) has none", height,
                      width);
    else if (channels < 1 || channels > 4)
        std::snprintf(message, message_bytes,
                      "an image has 1 channel (grey), 2 (with alpha), 3 (red, green, blue) or 4 (with alpha), not %llu",
                      channels);
    else if (height > most_picture_side_k || width > most_picture_side_k || height * width > most_pixels_k)
        std::snprintf(message, message_bytes,
                      "an image of %llu x %llu pixels (height x width) is too large: at most %llu along a side and "
                      "%llu in all",
                      height, width, static_cast<unsigned long long>(most_picture_side_k),
                      static_cast<unsigned long long>(most_pixels_k));
    else if (!content.data)
        std::snprintf(message, message_bytes, "its pixels are a null pointer");
    else
        return true;
    return false;
}

uform_status_t measure(void* opaque, uform_content_t const* content, uint32_t limit, uform_measure_t* measured,
                       char* message, size_t message_bytes) {
    state const& self = *static_cast<state const*>(opaque);
    if (!check(*content, message, message_bytes))
        return uform_status_invalid_argument_k;
    picture const given = picture_of(*content);
    grid const fitted = fit(given.height, given.width, self.side, limit);
    measured->columns = fitted.rows * fitted.columns;
    measured->truncated = fitted.height != given.height || fitted.width != given.width;
    measured->axes = 2;
    measured->extents[0] = static_cast<uint16_t>(fitted.rows);
    measured->extents[1] = static_cast<uint16_t>(fitted.columns);
    measured->whole[0] = static_cast<uint16_t>(fitted.height / self.side);
    measured->whole[1] = static_cast<uint16_t>(fitted.width / self.side);
    measured->scratch[0] = fitted.height;
    measured->scratch[1] = fitted.width;
    return uform_status_success_k;
}

uform_status_t fill(void* opaque, uform_fill_t const* fill) {
    state const& self = *static_cast<state const*>(opaque);
    uform_measure_t const& measured = *fill->measure;
    grid const fitted{measured.scratch[0], measured.scratch[1], measured.extents[0], measured.extents[1]};
    cut_patches(picture_of(*fill->content), fitted, self.side, self.channels,
                self.staged<uint8_t>(fill->staging, self.values) + size_t(fill->before) * self.width);
    uint32_t* const columns = self.staged<uint32_t>(fill->staging, self.patch_columns) + fill->before;
    fill->codes[0] = marker_k;
    for (uint32_t patch = 0; patch != measured.columns; ++patch) {
        fill->codes[1 + patch] = UFORM_CODE_VALUES;
        columns[patch] = fill->segment->first + 1 + patch;
    }
    return uform_status_success_k;
}

uform_status_t cover(void* opaque, uform_cover_t const* cover) {
    state const& self = *static_cast<state const*>(opaque);
    uint32_t* const covered = self.staged<uint32_t>(cover->staging, self.covered_patches) + cover->covered;
    for (uint32_t index = 0; index != cover->count; ++index) {
        uint32_t const place = cover->places[index];
        covered[index] = cover->before + place;
        if (cover->actions[index] != uform_cover_action_stay_k)
            cover->codes[1 + place] = mask_k;
    }
    return uform_status_success_k;
}

uform_status_t finish(void* opaque, uint32_t, uint8_t* staging, uint32_t columns, uint32_t) {
    state const& self = *static_cast<state const*>(opaque);
    *self.staged<uint32_t>(staging, self.count) = columns;
    return uform_status_success_k;
}

uform_embedding_t embedding_of(state const& self, uform_pass_t const& pass) {
    uform_embedding_t embedding{};
    embedding.columns = pass.columns;
    embedding.hidden = self.hidden;
    embedding.modality = uform_modality_image_k;
    embedding.table_rows = table_rows_k;
    embedding.table = pass.weights[self.table];
    embedding.states = pass.states;
    embedding.gradient = pass.states_gradient;
    embedding.workspace = pass.workspace + self.workspace;
    embedding.workspace_bytes = self.workspace_bytes;
    return embedding;
}

uform_patches_t patches_of(state const& self, uform_pass_t const& pass) {
    uform_patches_t patches{};
    patches.columns = pass.columns;
    patches.hidden = self.hidden;
    patches.width = self.width;
    patches.element = uform_element_uint8_k;
    patches.multiplier = multiplier_k;
    patches.offset = offset_k;
    patches.capacity = self.capacity;
    patches.active = std::min(pass.columns.active, self.capacity);
    patches.count = self.staged<uint32_t>(pass.staging, self.count);
    patches.values = self.staged<uint8_t>(pass.staging, self.values);
    patches.patch_columns = self.staged<uint32_t>(pass.staging, self.patch_columns);
    patches.weight = pass.weights[self.patch];
    patches.states = pass.states;
    patches.gradient = pass.states_gradient;
    patches.workspace = pass.workspace + self.workspace;
    patches.workspace_bytes = self.workspace_bytes;
    return patches;
}

uform_status_t embed_forward(void* opaque, uform_pass_t const* pass) {
    state const& self = *static_cast<state const*>(opaque);
    uform_patches_t const patches = patches_of(self, *pass);
    uform_embedding_t const embedding = embedding_of(self, *pass);
    uform_status_t status = pass->operations->patches_forward(pass->stream, &patches);
    if (status == uform_status_success_k)
        status = pass->operations->embedding_forward(pass->stream, &embedding);
    return status;
}

uform_status_t embed_backward(void* opaque, uform_pass_t const* pass) {
    state const& self = *static_cast<state const*>(opaque);
    uform_patches_t patches = patches_of(self, *pass);
    patches.weight_gradient = pass->gradients[self.patch];
    uform_embedding_t embedding = embedding_of(self, *pass);
    embedding.table_gradient = pass->gradients[self.table];
    uform_status_t status = pass->operations->patches_backward(pass->stream, &patches);
    if (status == uform_status_success_k)
        status = pass->operations->embedding_backward(pass->stream, &embedding);
    return status;
}

uform_status_t reconstruct(void* opaque, uform_pass_t const* pass, uform_reconstruction_t const* covered) {
    state const& self = *static_cast<state const*>(opaque);
    uform_patches_head_t head{};
    head.hidden = self.hidden;
    head.width = self.width;
    head.element = uform_element_uint8_k;
    head.multiplier = multiplier_k;
    head.offset = offset_k;
    head.capacity = covered->capacity;
    head.active = covered->active;
    head.first = covered->first;
    head.count = covered->count;
    head.rows = covered->rows;
    head.values = self.staged<uint8_t>(pass->staging, self.values);
    head.covered_patches = self.staged<uint32_t>(pass->staging, self.covered_patches);
    head.head = pass->weights[self.head];
    head.head_gradient = covered->rows_gradient ? pass->gradients[self.head] : nullptr;
    head.scale = covered->scale;
    head.weight = covered->weight;
    head.loss = covered->term;
    head.rows_gradient = covered->rows_gradient;
    head.workspace = pass->workspace + self.workspace;
    head.workspace_bytes = self.workspace_bytes;
    head.before = covered->before;
    return pass->operations->patches_head(pass->stream, &head);
}

} // namespace
} // namespace image

uform_modality_plugin_t const image_plugin = {
    .abi_version = UFORM_PLUGIN_ABI_VERSION,
    .bytes = sizeof(uform_modality_plugin_t),
    .name = "image",
    .modality = uform_modality_image_k,
    .cover_kind = uform_cover_kind_places_k,
    .fields = image::fields,
    .fields_count = image::fields_count,
    .config_bytes = sizeof(uform_image_shape_t),
    .derive = image::derive,
    .create = image::create,
    .destroy = image::destroy,
    .measure = image::measure,
    .fill = image::fill,
    .cover = image::cover,
    .finish = image::finish,
    .embed_forward = image::embed_forward,
    .embed_backward = image::embed_backward,
    .reconstruct = image::reconstruct,
    .capturable = 1,
};

} // namespace uform

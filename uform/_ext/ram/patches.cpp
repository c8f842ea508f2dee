#include <algorithm>
#include <cstring>

#include "ram/operations.h"
#include "ram/values.h"

namespace uform::ram {

namespace {

struct workspace {
    float* values; // [capacity, width] scaled
    float* states; // [capacity, hidden] of the patches, or their gradients

    explicit workspace(uform_patches_t const& patches) {
        workspace_parts parts(patches.workspace);
        values = parts.take<float>(std::size_t(patches.capacity) * patches.width);
        states = parts.take<float>(std::size_t(patches.capacity) * patches.hidden);
    }
};

/** Whether the column shows the patch: a covered one has the mask's code instead. */
bool is_shown(uform_patches_t const& patches, std::size_t patch) noexcept {
    return patches.columns.codes[patches.patch_columns[patch]] == UFORM_CODE_VALUES;
}

void scale_patches(uform_patches_t const& patches, std::size_t begin, std::size_t end, float* to) noexcept {
    std::size_t const width = patches.width;
    scale_values(patches.values, patches.element, begin * width, (end - begin) * width, patches.multiplier,
                 patches.offset, to + begin * width);
}

} // namespace

std::size_t patches_workspace_bytes(std::uint32_t hidden, std::uint32_t width, std::uint32_t patches) {
    return part_bytes<float>(std::size_t(patches) * width) + part_bytes<float>(std::size_t(patches) * hidden);
}

void patches_forward(stream const& stream, uform_patches_t const& patches) {
    workspace const work(patches);
    std::size_t const hidden = patches.hidden, width = patches.width;
    float const* const weight = static_cast<float const*>(patches.weight);
    float* const states = static_cast<float*>(patches.states);
    stream.backend.parallel_chunks(*patches.count, product_rows_k, [&](std::size_t begin, std::size_t end) {
        scale_patches(patches, begin, end, work.values);
        stream.backend.gemm().nt(end - begin, hidden, width, 1, work.values + begin * width, width, weight, width, 0,
                                 work.states + begin * hidden, hidden);
        for (std::size_t patch = begin; patch != end; ++patch)
            if (is_shown(patches, patch))
                std::memcpy(states + patches.patch_columns[patch] * hidden, work.states + patch * hidden,
                            hidden * sizeof(float));
    });
}

void patches_backward(stream const& stream, uform_patches_t const& patches) {
    workspace const work(patches);
    std::size_t const hidden = patches.hidden, width = patches.width, count = *patches.count;
    float const* const gradient = static_cast<float const*>(patches.gradient);
    stream.backend.parallel_chunks(count, product_rows_k, [&](std::size_t begin, std::size_t end) {
        scale_patches(patches, begin, end, work.values);
        for (std::size_t patch = begin; patch != end; ++patch) {
            float* const row = work.states + patch * hidden;
            if (is_shown(patches, patch))
                std::memcpy(row, gradient + patches.patch_columns[patch] * hidden, hidden * sizeof(float));
            else
                std::fill_n(row, hidden, 0.f);
        }
    });
    linear_weight_gradient(stream.backend, count, hidden, width, work.states, work.values, patches.weight_gradient);
}

} // namespace uform::ram

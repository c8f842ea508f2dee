#include "vram/elementwise.cuh"
#include "vram/gemm.h"
#include "vram/launch.cuh"
#include "vram/operations.h"
#include "vram/values.cuh"

namespace uform::vram {

namespace {

constexpr unsigned threads_k = 256;

/** What a product over patches reads and writes. Where rows are not whole vectors, weights are padded as values are. */
struct patches_workspace {
    __nv_bfloat16* values;  // [patches, padded] scaled
    __nv_bfloat16* states;  // [patches, hidden] of the patches, or their gradients
    __nv_bfloat16* weight;  // [hidden, padded], where padded
    float* weight_gradient; // [hidden, padded], where padded
    void* product;          // of the weights' gradient
    std::size_t product_bytes;

    explicit patches_workspace(uform_patches_t const& patches) {
        std::uint32_t const hidden = patches.hidden, padded = padded_width(patches.width);
        std::size_t const weights = padded == patches.width ? 0 : std::size_t(hidden) * padded;
        workspace_parts parts(patches.workspace);
        values = parts.take<__nv_bfloat16>(std::size_t(patches.capacity) * padded);
        states = parts.take<__nv_bfloat16>(std::size_t(patches.capacity) * hidden);
        weight = parts.take<__nv_bfloat16>(weights);
        weight_gradient = parts.take<float>(weights);
        product_bytes = gemm_weight_gradient_workspace_bytes({patches.capacity, hidden, padded});
        product = parts.take<std::byte>(product_bytes);
    }

    static std::size_t bytes(std::uint32_t hidden, std::uint32_t width, std::uint32_t patches) noexcept {
        std::uint32_t const padded = padded_width(width);
        std::size_t const weights = padded == width ? 0 : std::size_t(hidden) * padded;
        return part_bytes<__nv_bfloat16>(std::size_t(patches) * padded) +
               part_bytes<__nv_bfloat16>(std::size_t(patches) * hidden) + part_bytes<__nv_bfloat16>(weights) +
               part_bytes<float>(weights) +
               part_bytes<std::byte>(gemm_weight_gradient_workspace_bytes({patches, hidden, padded}));
    }
};

/** Rows past the count become zero. */
template <typename element_at>
__global__ void __launch_bounds__(threads_k) scale_values(uform_patches_t patches, __nv_bfloat16* __restrict__ scaled) {
    std::uint32_t const patch = row_of_thread();
    if (patch >= patches.active)
        return;
    bool const used = patch < *patches.count;
    std::uint32_t const padded = padded_width(patches.width);
    element_at const* const row = static_cast<element_at const*>(patches.values) + std::size_t(patch) * patches.width;
    value_scale const scale{patches.multiplier, patches.offset};
    for_row_vectors(padded, [&](std::uint32_t first) {
        store8(scaled + std::size_t(patch) * padded + first,
               used ? narrow(load_scaled(row, first, patches.width, scale)) : zero8());
    });
}

/** Whether the patch's column shows it: a covered one has the mask's code instead. */
__device__ __forceinline__ bool is_shown(uform_patches_t const& patches, std::uint32_t patch) {
    return patch < *patches.count && patches.columns.codes[patches.patch_columns[patch]] == UFORM_CODE_VALUES;
}

__global__ void __launch_bounds__(threads_k)
    scatter_states(uform_patches_t patches, __nv_bfloat16 const* __restrict__ from) {
    std::uint32_t const patch = row_of_thread();
    if (patch >= patches.active || !is_shown(patches, patch))
        return;
    __nv_bfloat16* const to =
        static_cast<__nv_bfloat16*>(patches.states) + std::size_t(patches.patch_columns[patch]) * patches.hidden;
    for_row_vectors(patches.hidden, [&](std::uint32_t first) {
        store8(to + first, load8(from + std::size_t(patch) * patches.hidden + first));
    });
}

/** Rows of patches that are not shown, or past the count, become zero. */
__global__ void __launch_bounds__(threads_k) gather_gradients(uform_patches_t patches, __nv_bfloat16* __restrict__ to) {
    std::uint32_t const patch = row_of_thread();
    if (patch >= patches.active)
        return;
    bool const shown = is_shown(patches, patch);
    __nv_bfloat16 const* const from = static_cast<__nv_bfloat16 const*>(patches.gradient) +
                                      (shown ? std::size_t(patches.patch_columns[patch]) * patches.hidden : 0);
    for_row_vectors(patches.hidden, [&](std::uint32_t first) {
        store8(to + std::size_t(patch) * patches.hidden + first, shown ? load8(from + first) : zero8());
    });
}

__global__ void __launch_bounds__(threads_k)
    pad_weight(std::uint32_t rows, std::uint32_t width, __nv_bfloat16 const* __restrict__ from,
               __nv_bfloat16* __restrict__ to) {
    std::uint32_t const padded = padded_width(width), place = blockIdx.x * threads_k + threadIdx.x;
    if (place >= rows * padded)
        return;
    std::uint32_t const row = place / padded, column = place % padded;
    to[place] = column < width ? from[std::size_t(row) * width + column] : __float2bfloat16(0.f);
}

__global__ void __launch_bounds__(threads_k)
    add_unpadded(std::uint32_t rows, std::uint32_t width, float const* __restrict__ from, float* __restrict__ to) {
    std::uint32_t const place = blockIdx.x * threads_k + threadIdx.x;
    if (place < rows * width)
        to[place] += from[std::size_t(place / width) * padded_width(width) + place % width];
}

void launch_scale_values(stream const& stream, uform_patches_t const& patches, __nv_bfloat16* scaled) {
    rows_shape const shape(patches.active, padded_width(patches.width) / lanes_k);
    with_element(patches.element, [&](auto element) {
        launch(stream, scale_values<decltype(element)>, shape.grid, shape.block, 0, patches, scaled);
    });
}

/** The weights with rows of whole vectors. */
__nv_bfloat16 const* padded_weight(stream const& stream, uform_patches_t const& patches,
                                   patches_workspace const& work) {
    __nv_bfloat16 const* const weight = static_cast<__nv_bfloat16 const*>(patches.weight);
    std::uint32_t const padded = padded_width(patches.width);
    if (padded == patches.width)
        return weight;
    launch(stream, pad_weight, blocks_for(std::size_t(patches.hidden) * padded, threads_k), threads_k, 0,
           patches.hidden, patches.width, weight, work.weight);
    return work.weight;
}

void add_weight_gradient(stream const& stream, uform_patches_t const& patches, patches_workspace const& work) {
    std::uint32_t const hidden = patches.hidden, width = patches.width, padded = padded_width(width);
    linear_extents const extents{patches.active, hidden, padded};
    if (padded == width)
        return gemm_weight_gradient(stream, extents, work.states, work.values, patches.weight_gradient, work.product,
                                    work.product_bytes);
    std::size_t const values = std::size_t(hidden) * padded;
    check_cuda(cudaMemsetAsync(work.weight_gradient, 0, values * sizeof(float), stream.handle), stream);
    gemm_weight_gradient(stream, extents, work.states, work.values, work.weight_gradient, work.product,
                         work.product_bytes);
    launch(stream, add_unpadded, blocks_for(std::size_t(hidden) * width, threads_k), threads_k, 0, hidden, width,
           static_cast<float const*>(work.weight_gradient), patches.weight_gradient);
}

void check_workspace(uform_patches_t const& patches) {
    check_bytes("workspace_bytes", patches.workspace_bytes,
                patches_workspace::bytes(patches.hidden, patches.width, patches.capacity));
}

} // namespace

std::size_t patches_workspace_bytes(std::uint32_t hidden, std::uint32_t width, std::uint32_t patches) {
    return patches_workspace::bytes(hidden, width, patches);
}

uform_status_t patches_forward(uform_stream_t* opaque, uform_patches_t const* patches) {
    return operate("patches_forward", opaque, [&](stream const& stream) {
        check_workspace(*patches);
        if (patches->active == 0)
            return;
        patches_workspace const work(*patches);
        launch_scale_values(stream, *patches, work.values);
        linear_extents const extents{patches->active, patches->hidden, padded_width(patches->width)};
        __nv_bfloat16 const* const weight = padded_weight(stream, *patches, work);
        gemm_forward(stream, extents, work.values, weight, nullptr, work.states);
        rows_shape const shape(patches->active, patches->hidden / lanes_k);
        launch(stream, scatter_states, shape.grid, shape.block, 0, *patches, work.states);
    });
}

uform_status_t patches_backward(uform_stream_t* opaque, uform_patches_t const* patches) {
    return operate("patches_backward", opaque, [&](stream const& stream) {
        check_workspace(*patches);
        if (patches->active == 0)
            return;
        patches_workspace const work(*patches);
        launch_scale_values(stream, *patches, work.values);
        rows_shape const shape(patches->active, patches->hidden / lanes_k);
        launch(stream, gather_gradients, shape.grid, shape.block, 0, *patches, work.states);
        add_weight_gradient(stream, *patches, work);
    });
}

} // namespace uform::vram

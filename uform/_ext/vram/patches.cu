#include "vram/elementwise.cuh"
#include "vram/gemm.h"
#include "vram/gemm_scattered_sm90.h"
#include "vram/gemm_tiles.h"
#include "vram/launch.cuh"
#include "vram/moves.cuh"
#include "vram/operations.h"
#include "vram/patches_sm90.h"
#include "vram/values.cuh"

namespace uform::vram {

namespace {

constexpr unsigned threads_k = 256;

/** What a product over patches reads and writes. Where rows are not whole vectors, weights are padded as values are. */
struct patches_workspace {
    __nv_bfloat16* values;  // [patches, padded] scaled
    __nv_bfloat16* states;  // [patches, hidden] of the patches, or their gradients
    std::uint32_t* places;  // [patches] the column of each that is shown
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
        places = parts.take<std::uint32_t>(patches.capacity);
        weight = parts.take<__nv_bfloat16>(weights);
        weight_gradient = parts.take<float>(weights);
        product_bytes = gemm_weight_gradient_workspace_bytes({patches.capacity, hidden, padded});
        product = parts.take<std::byte>(product_bytes);
    }

    static std::size_t bytes(std::uint32_t hidden, std::uint32_t width, std::uint32_t patches) noexcept {
        std::uint32_t const padded = padded_width(width);
        std::size_t const weights = padded == width ? 0 : std::size_t(hidden) * padded;
        return part_bytes<__nv_bfloat16>(std::size_t(patches) * padded) +
               part_bytes<__nv_bfloat16>(std::size_t(patches) * hidden) + part_bytes<std::uint32_t>(patches) +
               part_bytes<__nv_bfloat16>(weights) + part_bytes<float>(weights) +
               part_bytes<std::byte>(gemm_weight_gradient_workspace_bytes({patches, hidden, padded}));
    }
};

/** Rows past the count become zero. @tparam whole_ak Whether rows are whole vectors. */
template <typename element_at, bool whole_ak>
__global__ void __launch_bounds__(moving_threads_k, 3)
    scale_values(uform_patches_t patches, __nv_bfloat16* __restrict__ scaled) {
    follow_earlier_kernels();
    std::uint32_t const count = *patches.count, width = patches.width, padded = padded_width(width);
    element_at const* const values = static_cast<element_at const*>(patches.values);
    value_scale const scale{patches.multiplier, patches.offset};
    move_rows(
        patches.active, padded, [&](std::uint32_t patch) { return patch < count ? patch : becomes_zero_k; },
        [&](std::uint32_t patch, std::uint32_t, std::uint32_t first) {
            return narrow(load_scaled<whole_ak>(values + std::size_t(patch) * width, first, width, scale));
        },
        [&](std::uint32_t patch, std::uint32_t, std::uint32_t first, bf16x8 const& vector) {
            store8(scaled + std::size_t(patch) * padded + first, vector);
        });
}

/** The patch's column, if that shows it: a covered one has the mask's code instead. */
__device__ __forceinline__ std::uint32_t column_of(uform_patches_t const& patches, std::uint32_t patch,
                                                   std::uint32_t otherwise) {
    if (patch >= *patches.count)
        return otherwise;
    std::uint32_t const column = patches.patch_columns[patch];
    return patches.columns.codes[column] == UFORM_CODE_VALUES ? column : otherwise;
}

__global__ void __launch_bounds__(threads_k) find_places(uform_patches_t patches, std::uint32_t* __restrict__ places) {
    follow_earlier_kernels();
    std::uint32_t const patch = blockIdx.x * threads_k + threadIdx.x;
    if (patch < patches.active)
        places[patch] = column_of(patches, patch, left_alone_k);
}

__global__ void __launch_bounds__(moving_threads_k, 4)
    scatter_states(uform_patches_t patches, __nv_bfloat16 const* __restrict__ from) {
    follow_earlier_kernels();
    auto* const states = static_cast<__nv_bfloat16*>(patches.states);
    move_rows(
        patches.active, patches.hidden, [&](std::uint32_t patch) { return column_of(patches, patch, left_alone_k); },
        [&](std::uint32_t patch, std::uint32_t, std::uint32_t first) {
            return load8(from + std::size_t(patch) * patches.hidden + first);
        },
        [&](std::uint32_t, std::uint32_t column, std::uint32_t first, bf16x8 const& vector) {
            store8(states + std::size_t(column) * patches.hidden + first, vector);
        });
}

/** Rows of patches that are not shown, or past the count, become zero. */
__global__ void __launch_bounds__(moving_threads_k, 4)
    gather_gradients(uform_patches_t patches, __nv_bfloat16* __restrict__ to) {
    follow_earlier_kernels();
    auto const* const gradient = static_cast<__nv_bfloat16 const*>(patches.gradient);
    move_rows(
        patches.active, patches.hidden, [&](std::uint32_t patch) { return column_of(patches, patch, becomes_zero_k); },
        [&](std::uint32_t, std::uint32_t column, std::uint32_t first) {
            return load8(gradient + std::size_t(column) * patches.hidden + first);
        },
        [&](std::uint32_t patch, std::uint32_t, std::uint32_t first, bf16x8 const& vector) {
            store8(to + std::size_t(patch) * patches.hidden + first, vector);
        });
}

__global__ void __launch_bounds__(threads_k)
    pad_weight(std::uint32_t rows, std::uint32_t width, __nv_bfloat16 const* __restrict__ from,
               __nv_bfloat16* __restrict__ to) {
    std::size_t const padded = padded_width(width), place = std::size_t(blockIdx.x) * threads_k + threadIdx.x;
    if (place >= rows * padded)
        return;
    std::size_t const row = place / padded, column = place % padded;
    to[place] = column < width ? from[row * width + column] : __float2bfloat16(0.f);
}

__global__ void __launch_bounds__(threads_k)
    add_unpadded(std::uint32_t rows, std::uint32_t width, float const* __restrict__ from, float* __restrict__ to) {
    std::size_t const place = std::size_t(blockIdx.x) * threads_k + threadIdx.x;
    if (place < std::size_t(rows) * width)
        to[place] += from[place / width * padded_width(width) + place % width];
}

void launch_scale_values(stream const& stream, uform_patches_t const& patches, __nv_bfloat16* scaled) {
    std::uint32_t const padded = padded_width(patches.width);
    with_element(patches.element, [&](auto element) {
        using element_t = decltype(element);
        auto const kernel = padded == patches.width ? scale_values<element_t, true> : scale_values<element_t, false>;
        launch_moves(stream, kernel, patches.active, padded, patches, scaled);
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

[[maybe_unused]] void launch_find_places(stream const& stream, uform_patches_t const& patches, std::uint32_t* places) {
    launch_early(stream, find_places, blocks_for(patches.active, threads_k), threads_k, 0, patches, places);
}

/** The columns' states from the scaled values. */
void multiply_and_scatter(stream const& stream, uform_patches_t const& patches, patches_workspace const& work) {
    linear_extents const extents{patches.active, patches.hidden, padded_width(patches.width)};
    __nv_bfloat16 const* const weight = padded_weight(stream, patches, work);
#if UFORM_WITH_SM90
    if (stream.gpu_class == uform_gpu_class_hopper_k) {
        static_assert(sm90::no_place_k == left_alone_k);
        launch_find_places(stream, patches, work.places);
        return sm90::gemm_scattered_forward(stream, extents, work.values, weight, work.places,
                                            static_cast<__nv_bfloat16*>(patches.states));
    }
#endif
    gemm_forward(stream, extents, work.values, weight, nullptr, work.states);
    launch_moves(stream, scatter_states, patches.active, patches.hidden, patches, work.states);
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

/** The same in one product that scales values and gathers gradients itself, where there is one. */
bool add_weight_gradient_at_once([[maybe_unused]] stream const& stream, [[maybe_unused]] uform_patches_t const& patches,
                                 [[maybe_unused]] patches_workspace const& work) {
#if UFORM_WITH_SM90
    if (!sm90::multiplies_values(stream, patches))
        return false;
    std::uint32_t const rows = patches.active, hidden = patches.hidden, width = patches.width;
    row_shares const shares{patches.count, 0, rows,
                            sm90::value_splits(stream, patches, most_slices(rows, hidden, width))};
    float* const parts = static_cast<float*>(work.product);
    launch_find_places(stream, patches, work.places);
    sm90::multiply_values(stream, patches, shares, work.places, parts);
    add_parts(stream, shares, parts, std::size_t(hidden) * width, patches.weight_gradient);
    return true;
#else
    return false;
#endif
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
        multiply_and_scatter(stream, *patches, work);
    });
}

uform_status_t patches_backward(uform_stream_t* opaque, uform_patches_t const* patches) {
    return operate("patches_backward", opaque, [&](stream const& stream) {
        check_workspace(*patches);
        if (patches->active == 0)
            return;
        patches_workspace const work(*patches);
        if (add_weight_gradient_at_once(stream, *patches, work))
            return;
        launch_scale_values(stream, *patches, work.values);
        launch_moves(stream, gather_gradients, patches->active, patches->hidden, *patches, work.states);
        add_weight_gradient(stream, *patches, work);
    });
}

} // namespace uform::vram

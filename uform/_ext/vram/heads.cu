#include <algorithm>

#include "vram/heads.cuh"
#include "vram/heads_values.cuh"
#include "vram/operations.h"
#include "vram/succession.cuh"

namespace uform::vram {

namespace {

constexpr float variance_epsilon_k = 1e-6f;
constexpr unsigned values_warps_k = 8;
constexpr unsigned end_values_k = 4; // of the weights' gradient that a thread adds up

/** Calls `body` with each of a lane's numbers of a row, some at a time where rows are whole vectors. */
template <typename element_at, typename body_at>
__device__ __forceinline__ void for_numbers(patch_values<element_at> const& values, element_at const* row,
                                            body_at&& body) {
    std::uint32_t const lane = threadIdx.x % warp_k;
    if (values.width % lanes_k == 0) {
#pragma unroll 4
        for (std::uint32_t first = lane * lanes_k; first < values.width; first += warp_k * lanes_k) {
            floatx8 const numbers = load_scaled<true>(row, first, values.width, values.scale);
#pragma unroll
            for (unsigned i = 0; i != lanes_k; ++i)
                body(numbers[i]);
        }
    } else {
        for (std::uint32_t i = lane; i < values.width; i += warp_k)
            body(values.number(row[i]));
    }
}

/** A warp a covered patch: the mean of its values and the inverse of their deviation. */
template <typename element_at>
__global__ void __launch_bounds__(values_warps_k* warp_k, 4)
    measure_patches(patch_values<element_at> values, std::uint32_t const* count, float2* measures) {
    follow_earlier_kernels();
    std::uint32_t const covered = blockIdx.x * values_warps_k + threadIdx.x / warp_k;
    if (covered >= *count)
        return;
    element_at const* const row = values.row(covered);
    float sum = 0, squares = 0;
    for_numbers(values, row, [&](float number) { sum += number; });
    float const mean = sum_warp(sum) / values.width;
    for_numbers(values, row, [&](float number) { squares = fmaf(number - mean, number - mean, squares); });
    squares = sum_warp(squares);
    if (threadIdx.x % warp_k == 0)
        measures[covered] = make_float2(mean, 1 / sqrtf(squares / values.width + variance_epsilon_k));
}

/** The fastest family that runs on the stream's GPU as its class says. */
head_family const& head_family_of([[maybe_unused]] stream const& stream) noexcept {
#if UFORM_WITH_SM90
    if (stream.gpu_class == uform_gpu_class_hopper_k)
        return wgmma_heads_k;
#endif
    return mma_heads_k;
}

std::uint32_t panel_rows(std::uint32_t rows) { return std::min(rows, head_panel_rows_k); }

/** Of any family's tiles. */
std::size_t bytes_tiles(std::uint32_t rows) { return ceil_divide(panel_rows(rows), mma_heads_k.bytes_rows); }

std::size_t patches_tiles(std::uint32_t width, std::uint32_t rows) {
    return std::size_t(ceil_divide(width, head_tile_k)) * ceil_divide(panel_rows(rows), head_tile_k);
}

/** The panel that begins at the first row; a caller moves it on. @param head uform_bytes_head_t or
 * uform_patches_head_t. */
template <typename head_at>
head_panel panel_of(stream const& stream, head_at const& head, void const* weight, std::uint32_t outputs,
                    float* weight_gradient, head_workspace const& work) {
    if (head.hidden % lanes_k)
        fail(uform_status_internal_k, "hidden: ", head.hidden, " is no multiple of ", lanes_k);
    std::size_t const first = std::size_t(head.first) * head.hidden;
    head_panel panel{};
    panel.hidden = head.hidden;
    panel.outputs = outputs;
    panel.stride = head_workspace::stride_of(outputs);
    unsigned const tiles = ceil_divide(outputs, head_tile_k) * ceil_divide(head.hidden, head_tile_k);
    panel.shares = {head.count, 0, head_panel_rows_k,
                    std::clamp(2 * static_cast<unsigned>(stream.multiprocessors) / tiles, 1u, head_splits_k)};
    panel.before = head.before;
    panel.rows = static_cast<__nv_bfloat16 const*>(head.rows) + first;
    panel.weight = static_cast<__nv_bfloat16 const*>(weight);
    panel.predictions = work.predictions;
    panel.parts = work.parts;
    panel.parts_used = work.parts_used;
    panel.rows_gradient = head.rows_gradient ? head.rows_gradient + first : nullptr;
    panel.weight_gradient = weight_gradient;
    return panel;
}

/** What tiles left: block 0 adds up losses, the others the parts of the weights' gradient. */
__global__ void __launch_bounds__(loss_threads_k, 2)
    end_panel(double const* losses, std::size_t losses_count, float const* scale, double* loss,
              unsigned const* parts_used, float const* parts, std::size_t values, float* weight_gradient) {
    follow_earlier_kernels();
    __shared__ double scratch[loss_threads_k / warp_k];
    if (blockIdx.x == 0) {
        double const sum = sum_losses(losses, losses_count, scratch);
        if (threadIdx.x == 0)
            *loss += *scale * sum;
        return;
    }
    std::size_t const at = (std::size_t(blockIdx.x - 1) * loss_threads_k + threadIdx.x) * end_values_k;
    unsigned const count = *parts_used;
    if (at >= values || count == 0)
        return;
    float4 const added = sum_of_parts(parts, count, values, at);
    float4 sum = *reinterpret_cast<float4 const*>(weight_gradient + at);
    sum.x += added.x, sum.y += added.y, sum.z += added.z, sum.w += added.w;
    *reinterpret_cast<float4*>(weight_gradient + at) = sum;
}

void launch_end(stream const& stream, head_panel const& panel, head_workspace const& work, std::size_t losses,
                float const* scale, double* loss) {
    std::size_t const values = std::size_t(panel.outputs) * panel.hidden;
    unsigned const blocks = panel.weight_gradient ? blocks_for(values, loss_threads_k * end_values_k) : 0;
    launch_early(stream, end_panel, 1 + blocks, loss_threads_k, 0, work.losses, losses, scale, loss, work.parts_used,
                 work.parts, values, panel.weight_gradient);
}

} // namespace

std::size_t bytes_head_workspace_bytes(std::uint32_t hidden, std::uint32_t rows) {
    return head_workspace::bytes(hidden, bytes_k, rows, bytes_tiles(rows));
}

uform_status_t bytes_head(uform_stream_t* opaque, uform_bytes_head_t const* head) {
    return operate("bytes_head", opaque, [&](stream const& stream) {
        check_bytes("workspace_bytes", head->workspace_bytes, bytes_head_workspace_bytes(head->hidden, head->capacity));
        head_workspace const work(head->workspace, head->hidden, bytes_k, head->capacity, bytes_tiles(head->capacity));
        head_family const& family = head_family_of(stream);
        head_panel panel = panel_of(stream, *head, head->table, bytes_k, head->table_gradient, work);
        head_scale const scale{head->scale, head->weight, panel.rows_gradient || panel.weight_gradient};
        for (; panel.shares.first < head->active; panel.shares.first += head_panel_rows_k) {
            std::uint32_t const rows = panel_rows(head->active - panel.shares.first);
            family.score_bytes(stream, panel, rows, head->targets, scale, work.losses);
            if (scale.backward)
                family.multiply_gradients(stream, panel, rows);
            launch_end(stream, panel, work, ceil_divide(rows, family.bytes_rows), head->scale, head->loss);
        }
    });
}

std::size_t patches_head_workspace_bytes(std::uint32_t hidden, std::uint32_t width, std::uint32_t rows) {
    return head_workspace::bytes(hidden, width, rows, patches_tiles(width, rows));
}

uform_status_t patches_head(uform_stream_t* opaque, uform_patches_head_t const* head) {
    return operate("patches_head", opaque, [&](stream const& stream) {
        check_bytes("workspace_bytes", head->workspace_bytes,
                    patches_head_workspace_bytes(head->hidden, head->width, head->capacity));
        head_workspace const work(head->workspace, head->hidden, head->width, head->capacity,
                                  patches_tiles(head->width, head->capacity));
        head_family const& family = head_family_of(stream);
        head_panel panel = panel_of(stream, *head, head->head, head->width, head->head_gradient, work);
        head_scale const scale{head->scale, head->weight, panel.rows_gradient || panel.weight_gradient};
        patch_targets const targets{.element = head->element,
                                    .values = head->values,
                                    .patches = head->covered_patches,
                                    .width = head->width,
                                    .scale = {head->multiplier, head->offset},
                                    .measures = work.values};
        with_element(head->element, [&](auto element) {
            using element_t = decltype(element);
            launch_early(stream, measure_patches<element_t>, blocks_for(head->active, values_warps_k),
                         values_warps_k * warp_k, 0, patch_values<element_t>(targets), head->count, work.values);
        });
        for (; panel.shares.first < head->active; panel.shares.first += head_panel_rows_k) {
            std::uint32_t const rows = panel_rows(head->active - panel.shares.first);
            family.score_patches(stream, panel, rows, targets, scale, work.losses);
            if (scale.backward)
                family.multiply_gradients(stream, panel, rows);
            launch_end(stream, panel, work, patches_tiles(head->width, rows), head->scale, head->loss);
        }
    });
}

} // namespace uform::vram

#include <algorithm>

#include "vram/heads.cuh"
#include "vram/operations.h"
#include "vram/values.cuh"

namespace uform::vram {

namespace {

constexpr std::uint32_t bytes_k = 256;
constexpr float log2_e_k = 1.4426950408889634f;
constexpr float variance_epsilon_k = 1e-6f;

/** All classes of a row lie in one block of threads. */
using bytes_tile = mma_tile<64, bytes_k, 1, 4, 2>;
using patches_tile = mma_tile<128, 128, 2, 2, 3>;
constexpr unsigned values_warps_k = 8;

/** The gradient's factor and where predictions' gradients are wanted. */
struct head_scale {
    float const *scale, *weight; // device-side
    bool backward;

    __device__ float factor() const { return *scale * *weight; }
};

/** Predictions of a tile: rows times weights. */
template <typename tile_at>
__device__ __forceinline__ void predict(head_panel const& panel, typename tile_at::sums_t& sums, std::uint32_t shared,
                                        std::size_t first_row, std::size_t rows, std::size_t first_output) {
    operand const left{panel.rows + panel.begin(), panel.hidden};
    operand const right{panel.weight, panel.hidden};
    std::size_t depth = 0;
    unsigned const steps = ceil_divide(panel.hidden, tile_at::depth_k);
    tile_at::template multiply<contiguous::depth, contiguous::depth>(
        sums, shared, steps, [&](std::uint32_t to_left, std::uint32_t to_right) {
            tile_at::template load<contiguous::depth, tile_at::rows_k>(to_left, left, first_row, rows, depth,
                                                                       panel.hidden);
            tile_at::template load<contiguous::depth, tile_at::columns_k>(to_right, right, first_output, panel.outputs,
                                                                          depth, panel.hidden);
            depth += tile_at::depth_k;
        });
}

/** Cross-entropy of a tile of rows; their predictions' gradients where wanted. @param losses By tile of rows. */
__global__ void __launch_bounds__(bytes_tile::threads_k, 2)
    score_bytes(head_panel panel, std::uint8_t const* targets, head_scale scale, double* losses) {
    extern __shared__ __align__(128) std::byte shared[];
    __shared__ float maxima[bytes_tile::warps_across_k][bytes_tile::rows_k];
    __shared__ float totals[bytes_tile::warps_across_k][bytes_tile::rows_k];
    __shared__ float of_target[bytes_tile::rows_k];
    std::size_t const rows = panel.rows_here(), first_row = blockIdx.x * bytes_tile::rows_k;
    if (first_row >= rows) {
        if (threadIdx.x == 0)
            losses[blockIdx.x] = 0;
        return;
    }
    bytes_tile::sums_t logits = {};
    predict<bytes_tile>(panel, logits, shared_place(shared), first_row, rows, 0);

    unsigned const warp = bytes_tile::warp_across();
#pragma unroll
    for (unsigned down = 0; down != bytes_tile::downs_k; ++down) {
#pragma unroll
        for (unsigned half = 0; half != 2; ++half) {
            float maximum = -INFINITY;
#pragma unroll
            for (unsigned across = 0; across != bytes_tile::acrosses_k; ++across)
                maximum = fmaxf(maximum, fmaxf(logits[down][across][2 * half], logits[down][across][2 * half + 1]));
            maximum = over_row(maximum, largest{});
            if (bytes_tile::lane() % 4 == 0)
                maxima[warp][bytes_tile::row_of(down, half)] = maximum;
        }
    }
    __syncthreads();
#pragma unroll
    for (unsigned down = 0; down != bytes_tile::downs_k; ++down) {
#pragma unroll
        for (unsigned half = 0; half != 2; ++half) {
            unsigned const row = bytes_tile::row_of(down, half);
            float maximum = maxima[0][row];
            for (unsigned other = 1; other != bytes_tile::warps_across_k; ++other)
                maximum = fmaxf(maximum, maxima[other][row]);
            unsigned const target = first_row + row < rows ? targets[panel.first + first_row + row] : 0;
            float total = 0;
#pragma unroll
            for (unsigned across = 0; across != bytes_tile::acrosses_k; ++across) {
#pragma unroll
                for (unsigned i = 0; i != 2; ++i) {
                    float& logit = logits[down][across][2 * half + i];
                    float const below = logit - maximum;
                    if (bytes_tile::column_of(across) + i == target)
                        of_target[row] = below;
                    logit = power_of_2(below * log2_e_k);
                    total += logit;
                }
            }
            total = over_row(total, add{});
            if (bytes_tile::lane() % 4 == 0)
                totals[warp][row] = total;
        }
    }
    __syncthreads();
    if (threadIdx.x < warp_k) {
        double loss = 0;
        for (unsigned row = threadIdx.x; row < bytes_tile::rows_k && first_row + row < rows; row += warp_k) {
            double total = 0;
            for (unsigned other = 0; other != bytes_tile::warps_across_k; ++other)
                total += totals[other][row];
            loss += log(total) - of_target[row];
        }
        loss = sum_warp(loss);
        if (threadIdx.x == 0)
            losses[blockIdx.x] = loss;
    }
    if (!scale.backward)
        return;
    float const factor = scale.factor();
#pragma unroll
    for (unsigned down = 0; down != bytes_tile::downs_k; ++down) {
#pragma unroll
        for (unsigned half = 0; half != 2; ++half) {
            unsigned const row = bytes_tile::row_of(down, half);
            if (first_row + row >= rows)
                continue;
            unsigned const target = targets[panel.first + first_row + row];
            float total = 0;
            for (unsigned other = 0; other != bytes_tile::warps_across_k; ++other)
                total += totals[other][row];
            float const inverse = 1 / total;
            __nv_bfloat16* const to = panel.predictions + (first_row + row) * panel.stride;
#pragma unroll
            for (unsigned across = 0; across != bytes_tile::acrosses_k; ++across) {
                unsigned const column = bytes_tile::column_of(across);
                float const first = logits[down][across][2 * half] * inverse - (column == target ? 1.f : 0.f);
                float const second = logits[down][across][2 * half + 1] * inverse - (column + 1 == target ? 1.f : 0.f);
                *reinterpret_cast<__nv_bfloat162*>(to + column) =
                    __floats2bfloat162_rn(factor * first, factor * second);
            }
        }
    }
}

/** Raw values of covered patches and how they become numbers. */
template <typename element_at> struct patch_values {
    element_at const* values;     // [*, width]
    std::uint32_t const* patches; // [count] the patch of each covered row
    std::uint32_t width;
    value_scale scale;

    __device__ element_at const* row(std::size_t covered) const {
        return values + std::size_t(patches[covered]) * width;
    }
    __device__ float number(element_at value) const {
        return fmaf(static_cast<float>(value), scale.multiplier, scale.offset);
    }
};

/** A warp a covered patch: the mean of its values and the inverse of their deviation. */
template <typename element_at>
__global__ void __launch_bounds__(values_warps_k* warp_k)
    measure_patches(patch_values<element_at> values, std::uint32_t const* count, float2* measures) {
    std::uint32_t const covered = blockIdx.x * values_warps_k + threadIdx.x / warp_k;
    if (covered >= *count)
        return;
    element_at const* const row = values.row(covered);
    float sum = 0;
    for (std::uint32_t i = threadIdx.x % warp_k; i < values.width; i += warp_k)
        sum += values.number(row[i]);
    float const mean = sum_warp(sum) / values.width;
    float squares = 0;
    for (std::uint32_t i = threadIdx.x % warp_k; i < values.width; i += warp_k) {
        float const from_mean = values.number(row[i]) - mean;
        squares = fmaf(from_mean, from_mean, squares);
    }
    squares = sum_warp(squares);
    if (threadIdx.x % warp_k == 0)
        measures[covered] = make_float2(mean, 1 / sqrtf(squares / values.width + variance_epsilon_k));
}

/** Squared errors of a tile of rows and outputs, mean over outputs. @param losses By tile. */
template <typename element_at>
__global__ void __launch_bounds__(patches_tile::threads_k, 2)
    score_patches(head_panel panel, patch_values<element_at> values, float2 const* measures, head_scale scale,
                  double* losses) {
    extern __shared__ __align__(128) std::byte shared[];
    __shared__ double scratch[patches_tile::threads_k / warp_k];
    std::size_t const rows = panel.rows_here(), first_row = blockIdx.y * patches_tile::rows_k;
    double& block_loss = losses[blockIdx.y * gridDim.x + blockIdx.x];
    if (first_row >= rows) {
        if (threadIdx.x == 0)
            block_loss = 0;
        return;
    }
    std::uint32_t const first_output = blockIdx.x * patches_tile::columns_k;
    patches_tile::sums_t predictions = {};
    predict<patches_tile>(panel, predictions, shared_place(shared), first_row, rows, first_output);

    float const factor = scale.backward ? 2 * scale.factor() / panel.outputs : 0;
    float squares = 0;
#pragma unroll
    for (unsigned down = 0; down != patches_tile::downs_k; ++down) {
#pragma unroll
        for (unsigned half = 0; half != 2; ++half) {
            std::size_t const row = first_row + patches_tile::row_of(down, half);
            if (row >= rows)
                continue;
            element_at const* const of_row = values.row(panel.first + row);
            float2 const measure = measures[panel.first + row];
            __nv_bfloat16* const to = panel.predictions + row * panel.stride;
#pragma unroll
            for (unsigned across = 0; across != patches_tile::acrosses_k; ++across) {
                std::uint32_t const output = first_output + patches_tile::column_of(across);
                float errors[2];
#pragma unroll
                for (unsigned i = 0; i != 2; ++i) {
                    errors[i] = 0;
                    if (output + i < panel.outputs) {
                        float const target = (values.number(of_row[output + i]) - measure.x) * measure.y;
                        errors[i] = predictions[down][across][2 * half + i] - target;
                    }
                    squares = fmaf(errors[i], errors[i], squares);
                }
                if (scale.backward && output < panel.stride)
                    *reinterpret_cast<__nv_bfloat162*>(to + output) =
                        __floats2bfloat162_rn(factor * errors[0], factor * errors[1]);
            }
        }
    }
    double const loss = sum_block(double(squares), scratch) / panel.outputs;
    if (threadIdx.x == 0)
        block_loss = loss;
}

std::uint32_t panel_rows(std::uint32_t rows) { return std::min(rows, head_panel_rows_k); }

std::size_t bytes_tiles(std::uint32_t rows) { return ceil_divide(panel_rows(rows), bytes_tile::rows_k); }

dim3 patches_grid(std::uint32_t width, std::uint32_t rows) {
    return {ceil_divide(width, patches_tile::columns_k), ceil_divide(panel_rows(rows), patches_tile::rows_k), 1};
}

std::size_t patches_tiles(std::uint32_t width, std::uint32_t rows) {
    dim3 const grid = patches_grid(width, rows);
    return std::size_t(grid.x) * grid.y;
}

/** The panel that begins at the first row; a caller moves it on. @param head uform_bytes_head_t or
 * uform_patches_head_t. */
template <typename head_at>
head_panel panel_of(head_at const& head, void const* weight, std::uint32_t outputs, float* weight_gradient,
                    head_workspace const& work) {
    if (head.hidden % lanes_k)
        fail(uform_status_internal_k, "hidden: ", head.hidden, " is no multiple of ", lanes_k);
    std::size_t const first = std::size_t(head.first) * head.hidden;
    head_panel panel{};
    panel.hidden = head.hidden;
    panel.outputs = outputs;
    panel.stride = head_workspace::stride_of(outputs);
    panel.count = head.count;
    panel.before = head.before;
    panel.rows = static_cast<__nv_bfloat16 const*>(head.rows) + first;
    panel.weight = static_cast<__nv_bfloat16 const*>(weight);
    panel.predictions = work.predictions;
    panel.parts = work.parts;
    panel.rows_gradient = head.rows_gradient ? head.rows_gradient + first : nullptr;
    panel.weight_gradient = weight_gradient;
    return panel;
}

void multiply_gradients(stream const& stream, head_panel const& panel, std::uint32_t rows) {
    if (panel.rows_gradient)
        multiply_back(stream, panel, rows);
    if (panel.weight_gradient)
        multiply_across(stream, panel, rows);
}

} // namespace

std::size_t bytes_head_workspace_bytes(std::uint32_t hidden, std::uint32_t rows) {
    return head_workspace::bytes(hidden, bytes_k, rows, bytes_tiles(rows));
}

uform_status_t bytes_head(uform_stream_t* opaque, uform_bytes_head_t const* head) {
    return operate("bytes_head", opaque, [&](stream const& stream) {
        check_bytes("workspace_bytes", head->workspace_bytes, bytes_head_workspace_bytes(head->hidden, head->capacity));
        head_workspace const work(head->workspace, head->hidden, bytes_k, head->capacity, bytes_tiles(head->capacity));
        head_panel panel = panel_of(*head, head->table, bytes_k, head->table_gradient, work);
        head_scale const scale{head->scale, head->weight, panel.rows_gradient || panel.weight_gradient};
        for (; panel.first < head->active; panel.first += head_panel_rows_k) {
            std::uint32_t const rows = panel_rows(head->active - panel.first);
            unsigned const tiles = ceil_divide(rows, bytes_tile::rows_k);
            launch(stream, score_bytes, tiles, bytes_tile::threads_k, bytes_tile::shared_bytes_k, panel, head->targets,
                   scale, work.losses);
            add_losses(stream, work.losses, tiles, head->scale, 1, head->loss);
            multiply_gradients(stream, panel, rows);
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
        head_panel const whole = panel_of(*head, head->head, head->width, head->head_gradient, work);
        head_scale const scale{head->scale, head->weight, whole.rows_gradient || whole.weight_gradient};
        with_element(head->element, [&](auto element) {
            using element_t = decltype(element);
            patch_values<element_t> const values{static_cast<element_t const*>(head->values),
                                                 head->covered_patches,
                                                 head->width,
                                                 {head->multiplier, head->offset}};
            launch(stream, measure_patches<element_t>, blocks_for(head->active, values_warps_k),
                   values_warps_k * warp_k, 0, values, head->count, work.values);
            for (head_panel panel = whole; panel.first < head->active; panel.first += head_panel_rows_k) {
                std::uint32_t const rows = panel_rows(head->active - panel.first);
                dim3 const grid = patches_grid(head->width, rows);
                launch(stream, score_patches<element_t>, grid, patches_tile::threads_k, patches_tile::shared_bytes_k,
                       panel, values, work.values, scale, work.losses);
                add_losses(stream, work.losses, std::size_t(grid.x) * grid.y, head->scale, 1, head->loss);
                multiply_gradients(stream, panel, rows);
            }
        });
    });
}

} // namespace uform::vram

/** The heads' kernels, for either kind of tile: `mma_tile.cuh`, `wgmma_tile.cuh`. */
#pragma once

#include "vram/heads.cuh"
#include "vram/heads_values.cuh"
#include "vram/mma_tile.cuh"
#include "vram/succession.cuh"
#include "vram/tile_store.cuh"

namespace uform::vram {

namespace {

constexpr float log2_e_k = 1.4426950408889634f;

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

/** Cross-entropy of a tile of rows, all classes of which lie in one block. @param losses By tile of rows. */
template <typename bytes_tile, unsigned blocks_ak>
__global__ void __launch_bounds__(bytes_tile::threads_k, blocks_ak)
    score_bytes(head_panel panel, std::uint8_t const* targets, head_scale scale, double* losses) {
    follow_earlier_kernels();
    extern __shared__ __align__(1024) std::byte shared[];
    __shared__ float maxima[bytes_tile::warps_across_k][bytes_tile::rows_k];
    __shared__ float totals[bytes_tile::warps_across_k][bytes_tile::rows_k];
    __shared__ float of_target[bytes_tile::rows_k];
    std::size_t const rows = panel.shares.rows(), first_row = blockIdx.x * bytes_tile::rows_k;
    if (first_row >= rows) {
        if (threadIdx.x == 0)
            losses[blockIdx.x] = 0;
        return;
    }
    typename bytes_tile::sums_t logits = {};
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
            unsigned const target = first_row + row < rows ? targets[panel.shares.first + first_row + row] : 0;
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
            unsigned const target = targets[panel.shares.first + first_row + row];
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

/** Squared errors of a tile of rows and outputs, mean over outputs. @param losses By tile. */
template <typename patches_tile, typename element_at>
__global__ void __launch_bounds__(patches_tile::threads_k, 2)
    score_patches(head_panel panel, patch_values<element_at> values, float2 const* measures, head_scale scale,
                  double* losses) {
    follow_earlier_kernels();
    extern __shared__ __align__(1024) std::byte shared[];
    __shared__ double scratch[patches_tile::threads_k / warp_k];
    std::size_t const rows = panel.shares.rows(), first_row = blockIdx.y * patches_tile::rows_k;
    double& block_loss = losses[blockIdx.y * gridDim.x + blockIdx.x];
    if (first_row >= rows) {
        if (threadIdx.x == 0)
            block_loss = 0;
        return;
    }
    std::uint32_t const first_output = blockIdx.x * patches_tile::columns_k;
    // From warp to warp rows are taken in turn; of each a lane knows the values' place and what normalises them.
    constexpr unsigned warps = patches_tile::threads_k / warp_k, turns = patches_tile::rows_k / warps, at_once = 4;
    static_assert(turns <= warp_k && turns % at_once == 0);
    unsigned const warp = threadIdx.x / warp_k, lane = threadIdx.x % warp_k;
    std::size_t const of_lane = min(first_row + warp + lane * warps, rows - 1) + panel.shares.first;
    std::uint32_t const patch_of_lane = values.patches[of_lane];
    float2 const measure_of_lane = measures[of_lane];

    typename patches_tile::sums_t predictions = {};
    predict<patches_tile>(panel, predictions, shared_place(shared), first_row, rows, first_output);

    // By way of shared memory, for there whole rows lie together, as their values do.
    constexpr unsigned stride = patches_tile::columns_k + 8;
    static_assert(patches_tile::columns_k == 4 * warp_k);
    static_assert(patches_tile::rows_k * stride * sizeof(float) <= patches_tile::shared_bytes_k);
    float* const lines = reinterpret_cast<float*>(shared);
#pragma unroll
    for (unsigned down = 0; down != patches_tile::downs_k; ++down)
#pragma unroll
        for (unsigned half = 0; half != 2; ++half)
#pragma unroll
            for (unsigned across = 0; across != patches_tile::acrosses_k; ++across)
                *reinterpret_cast<float2*>(lines + patches_tile::row_of(down, half) * stride +
                                           patches_tile::column_of(across)) =
                    make_float2(predictions[down][across][2 * half], predictions[down][across][2 * half + 1]);
    __syncthreads();

    float const factor = scale.backward ? 2 * scale.factor() / panel.outputs : 0;
    std::uint32_t const output = first_output + lane * 4;
    float squares = 0;
    for (unsigned turn = 0; turn != turns; turn += at_once) {
        float4 numbers[at_once];
#pragma unroll
        for (unsigned i = 0; i != at_once; ++i)
            numbers[i] = values.four(__shfl_sync(whole_warp_k, patch_of_lane, turn + i), output);
#pragma unroll
        for (unsigned i = 0; i != at_once; ++i) {
            float const mean = __shfl_sync(whole_warp_k, measure_of_lane.x, turn + i);
            float const inverse = __shfl_sync(whole_warp_k, measure_of_lane.y, turn + i);
            unsigned const row = warp + (turn + i) * warps;
            if (first_row + row >= rows)
                continue; // the same for the whole warp
            float4 const predicted = *reinterpret_cast<float4 const*>(lines + row * stride + lane * 4);
            float const pairs[2][4] = {{predicted.x, predicted.y, predicted.z, predicted.w},
                                       {numbers[i].x, numbers[i].y, numbers[i].z, numbers[i].w}};
            float errors[4];
#pragma unroll
            for (unsigned k = 0; k != 4; ++k) {
                errors[k] = output + k < panel.outputs ? pairs[0][k] - (pairs[1][k] - mean) * inverse : 0.f;
                squares = fmaf(errors[k], errors[k], squares);
            }
            if (scale.backward && output < panel.stride)
                *reinterpret_cast<uint2*>(panel.predictions + (first_row + row) * panel.stride + output) = make_uint2(
                    pack(factor * errors[0], factor * errors[1]), pack(factor * errors[2], factor * errors[3]));
        }
    }
    double const loss = sum_block(double(squares), scratch) / panel.outputs;
    if (threadIdx.x == 0)
        block_loss = loss;
}

/** The loads of one product's steps: both operands over the same depth. */
template <typename product_tile, contiguous left_ak, contiguous right_ak>
__device__ __forceinline__ void multiply(typename product_tile::sums_t& sums, std::uint32_t shared, operand const& left,
                                         std::size_t first_row, std::size_t end_row, operand const& right,
                                         std::size_t first_column, std::size_t end_column, std::size_t depth,
                                         std::size_t end_depth) {
    unsigned const steps =
        depth < end_depth ? static_cast<unsigned>(ceil_divide<std::size_t>(end_depth - depth, product_tile::depth_k))
                          : 0;
    product_tile::template multiply<left_ak, right_ak>(
        sums, shared, steps, [&](std::uint32_t to_left, std::uint32_t to_right) {
            product_tile::template load<left_ak, product_tile::rows_k>(to_left, left, first_row, end_row, depth,
                                                                       end_depth);
            product_tile::template load<right_ak, product_tile::columns_k>(to_right, right, first_column, end_column,
                                                                           depth, end_depth);
            depth += product_tile::depth_k;
        });
}

template <typename product_tile> __global__ void __launch_bounds__(product_tile::threads_k, 2) back(head_panel panel) {
    follow_earlier_kernels();
    extern __shared__ __align__(1024) std::byte shared[];
    std::size_t const rows = panel.shares.rows(), first_row = blockIdx.y * product_tile::rows_k;
    if (first_row >= rows)
        return;
    std::size_t const first_column = blockIdx.x * product_tile::columns_k;
    // Past the outputs a line of predictions holds zeros, but the weight has no row there: it is loaded as zeros.
    typename product_tile::sums_t sums = {};
    multiply<product_tile, contiguous::depth, contiguous::rows>(
        sums, shared_place(shared), {panel.predictions, panel.stride}, first_row, rows, {panel.weight, panel.hidden},
        first_column, panel.hidden, 0, panel.outputs);
    store<product_tile>(sums, panel.rows_gradient + panel.begin(), panel.hidden, first_row, rows, first_column,
                        panel.hidden);
}

template <typename product_tile>
__global__ void __launch_bounds__(product_tile::threads_k, 2) across(head_panel panel) {
    follow_earlier_kernels();
    extern __shared__ __align__(1024) std::byte shared[];
    auto const [begin, end] = panel.shares.of(blockIdx.z);
    if (blockIdx.x == 0 && blockIdx.y == 0 && blockIdx.z == 0 && threadIdx.x == 0) {
        std::size_t const rows = panel.shares.rows();
        *panel.parts_used = rows ? static_cast<unsigned>(ceil_divide(rows, panel.shares.share(rows))) : 0;
    }
    if (begin >= end)
        return;
    std::size_t const first_row = blockIdx.y * product_tile::rows_k,
                      first_column = blockIdx.x * product_tile::columns_k;
    typename product_tile::sums_t sums = {};
    multiply<product_tile, contiguous::rows, contiguous::rows>(
        sums, shared_place(shared), {panel.predictions, panel.stride}, first_row, panel.stride,
        {panel.rows + panel.begin(), panel.hidden}, first_column, panel.hidden, begin, end);
    store<product_tile>(sums, panel.parts + std::size_t(blockIdx.z) * panel.outputs * panel.hidden, panel.hidden,
                        first_row, panel.outputs, first_column, panel.hidden);
}

/** The kernels of a family. @tparam bytes_blocks_ak Of the tiles of bytes, on a multiprocessor. */
template <typename bytes_tile, unsigned bytes_blocks_ak, typename product_tile> struct head_launches {
    static_assert(bytes_tile::columns_k == bytes_k);
    static_assert(product_tile::rows_k == head_tile_k && product_tile::columns_k == head_tile_k);

    static void launch_score_bytes(stream const& stream, head_panel const& panel, std::uint32_t rows,
                                   std::uint8_t const* targets, head_scale const& scale, double* losses) {
        launch_early(stream, score_bytes<bytes_tile, bytes_blocks_ak>, ceil_divide(rows, bytes_tile::rows_k),
                     bytes_tile::threads_k, bytes_tile::shared_bytes_k, panel, targets, scale, losses);
    }

    static void launch_score_patches(stream const& stream, head_panel const& panel, std::uint32_t rows,
                                     patch_targets const& targets, head_scale const& scale, double* losses) {
        dim3 const grid(ceil_divide(panel.outputs, head_tile_k), ceil_divide(rows, head_tile_k));
        with_element(targets.element, [&](auto element) {
            using element_t = decltype(element);
            patch_values<element_t> const values(targets);
            launch_early(stream, score_patches<product_tile, element_t>, grid, product_tile::threads_k,
                         product_tile::shared_bytes_k, panel, values, targets.measures, scale, losses);
        });
    }

    static void launch_back(stream const& stream, head_panel const& panel, std::uint32_t rows) {
        dim3 const grid(ceil_divide(panel.hidden, head_tile_k), ceil_divide(rows, head_tile_k));
        launch_early(stream, back<product_tile>, grid, product_tile::threads_k, product_tile::shared_bytes_k, panel);
    }

    static void launch_across(stream const& stream, head_panel const& panel, std::uint32_t) {
        dim3 const grid(ceil_divide(panel.hidden, head_tile_k), ceil_divide(panel.outputs, head_tile_k),
                        panel.shares.splits);
        launch_early(stream, across<product_tile>, grid, product_tile::threads_k, product_tile::shared_bytes_k, panel);
    }

    static void launch_gradients(stream const& stream, head_panel const& panel, std::uint32_t rows) {
        if (panel.rows_gradient)
            launch_back(stream, panel, rows);
        if (panel.weight_gradient)
            launch_across(stream, panel, rows);
    }

    static constexpr head_family family{bytes_tile::rows_k, launch_score_bytes, launch_score_patches, launch_gradients};
};

} // namespace

} // namespace uform::vram

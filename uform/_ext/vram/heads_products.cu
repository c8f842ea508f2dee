#include <algorithm>

#include "vram/heads.cuh"

namespace uform::vram {

namespace {

using product_tile = mma_tile<128, 128, 2, 2, 3>;
constexpr unsigned loss_threads_k = 256;
constexpr unsigned sum_threads_k = 256;

/** The loads of one product's steps: both operands over the same depth. */
template <contiguous left_ak, contiguous right_ak>
__device__ __forceinline__ void multiply(product_tile::sums_t& sums, std::uint32_t shared, operand const& left,
                                         std::size_t first_row, std::size_t end_row, operand const& right,
                                         std::size_t first_column, std::size_t end_column, std::size_t depth,
                                         std::size_t end_depth) {
    unsigned const steps =
        depth < end_depth ? static_cast<unsigned>(ceil_divide<std::size_t>(end_depth - depth, product_tile::depth_k))
                          : 0;
    product_tile::multiply<left_ak, right_ak>(sums, shared, steps, [&](std::uint32_t to_left, std::uint32_t to_right) {
        product_tile::load<left_ak, product_tile::rows_k>(to_left, left, first_row, end_row, depth, end_depth);
        product_tile::load<right_ak, product_tile::columns_k>(to_right, right, first_column, end_column, depth,
                                                              end_depth);
        depth += product_tile::depth_k;
    });
}

/** Stores sums of rows [*, end_row) and columns [*, end_column), the latter a multiple of 8, in float32. */
__device__ __forceinline__ void store(product_tile::sums_t const& sums, float* to, std::size_t stride,
                                      std::size_t first_row, std::size_t end_row, std::size_t first_column,
                                      std::size_t end_column) {
#pragma unroll
    for (unsigned down = 0; down != product_tile::downs_k; ++down) {
#pragma unroll
        for (unsigned half = 0; half != 2; ++half) {
            std::size_t const row = first_row + product_tile::row_of(down, half);
            if (row >= end_row)
                continue;
#pragma unroll
            for (unsigned across = 0; across != product_tile::acrosses_k; ++across) {
                std::size_t const column = first_column + product_tile::column_of(across);
                if (column < end_column)
                    *reinterpret_cast<float2*>(to + row * stride + column) =
                        make_float2(sums[down][across][2 * half], sums[down][across][2 * half + 1]);
            }
        }
    }
}

__global__ void __launch_bounds__(product_tile::threads_k, 2) back(head_panel panel) {
    extern __shared__ __align__(128) std::byte shared[];
    std::size_t const rows = panel.rows_here(), first_row = blockIdx.y * product_tile::rows_k;
    if (first_row >= rows)
        return;
    std::size_t const first_column = blockIdx.x * product_tile::columns_k;
    // Past the outputs a line of predictions holds zeros, but the weight has no row there: it is loaded as zeros.
    product_tile::sums_t sums = {};
    multiply<contiguous::depth, contiguous::rows>(sums, shared_place(shared), {panel.predictions, panel.stride},
                                                  first_row, rows, {panel.weight, panel.hidden}, first_column,
                                                  panel.hidden, 0, panel.outputs);
    store(sums, panel.rows_gradient + panel.begin(), panel.hidden, first_row, rows, first_column, panel.hidden);
}

/** The rows of one share: whole steps, so that the order of sums depends on the count alone. */
__device__ __forceinline__ std::size_t split_rows(std::size_t rows) {
    return ceil_divide<std::size_t>(ceil_divide<std::size_t>(rows, head_splits_k), product_tile::depth_k) *
           product_tile::depth_k;
}

__global__ void __launch_bounds__(product_tile::threads_k, 2) across(head_panel panel) {
    extern __shared__ __align__(128) std::byte shared[];
    std::size_t const rows = panel.rows_here(), share = split_rows(rows);
    std::size_t const begin = blockIdx.z * share, end = min(begin + share, rows);
    if (begin >= rows)
        return;
    std::size_t const first_row = blockIdx.y * product_tile::rows_k,
                      first_column = blockIdx.x * product_tile::columns_k;
    product_tile::sums_t sums = {};
    multiply<contiguous::rows, contiguous::rows>(sums, shared_place(shared), {panel.predictions, panel.stride},
                                                 first_row, panel.stride, {panel.rows + panel.begin(), panel.hidden},
                                                 first_column, panel.hidden, begin, end);
    store(sums, panel.parts + std::size_t(blockIdx.z) * panel.outputs * panel.hidden, panel.hidden, first_row,
          panel.outputs, first_column, panel.hidden);
}

__global__ void __launch_bounds__(sum_threads_k) add_parts(head_panel panel) {
    std::size_t const rows = panel.rows_here(), share = split_rows(rows);
    std::size_t const count = std::size_t(panel.outputs) * panel.hidden;
    std::size_t const at = (std::size_t(blockIdx.x) * sum_threads_k + threadIdx.x) * 4;
    if (at >= count || rows == 0)
        return;
    float4 sum = *reinterpret_cast<float4 const*>(panel.parts + at);
    for (std::size_t part = 1; part * share < rows; ++part) {
        float4 const other = *reinterpret_cast<float4 const*>(panel.parts + part * count + at);
        sum.x += other.x, sum.y += other.y, sum.z += other.z, sum.w += other.w;
    }
    float* const to = panel.weight_gradient + at;
    to[0] += sum.x, to[1] += sum.y, to[2] += sum.z, to[3] += sum.w;
}

__global__ void __launch_bounds__(loss_threads_k)
    sum_losses(double const* losses, std::size_t count, float const* scale, double factor, double* loss) {
    __shared__ double scratch[loss_threads_k / warp_k];
    double sum = 0;
    for (std::size_t i = threadIdx.x; i < count; i += loss_threads_k)
        sum += losses[i];
    sum = sum_block(sum, scratch);
    if (threadIdx.x == 0)
        *loss += (scale ? double(*scale) : 1.) * factor * sum;
}

} // namespace

void multiply_back(stream const& stream, head_panel const& panel, std::uint32_t rows) {
    dim3 const grid(ceil_divide(panel.hidden, product_tile::columns_k), ceil_divide(rows, product_tile::rows_k));
    launch(stream, back, grid, product_tile::threads_k, product_tile::shared_bytes_k, panel);
}

void multiply_across(stream const& stream, head_panel const& panel, std::uint32_t rows) {
    if (rows == 0)
        return;
    dim3 const grid(ceil_divide(panel.hidden, product_tile::columns_k),
                    ceil_divide(panel.outputs, product_tile::rows_k), head_splits_k);
    launch(stream, across, grid, product_tile::threads_k, product_tile::shared_bytes_k, panel);
    launch(stream, add_parts, blocks_for(std::size_t(panel.outputs) * panel.hidden, sum_threads_k * 4), sum_threads_k,
           0, panel);
}

void add_losses(stream const& stream, double const* losses, std::size_t count, float const* scale, double factor,
                double* loss) {
    launch(stream, sum_losses, 1, loss_threads_k, 0, losses, count, scale, factor, loss);
}

} // namespace uform::vram

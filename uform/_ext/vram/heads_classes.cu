/** Cross-entropy of plain float32 logits over any number of classes. */
#include <algorithm>

#include "vram/heads.cuh"
#include "vram/operations.h"

namespace uform::vram {

namespace {

constexpr unsigned warps_k = 8;
constexpr float log2_e_k = 1.4426950408889634f;
/** Rows whose losses one block adds up; a constant, so that the order of sums is one. */
constexpr unsigned rows_per_block_k = 64;

/** One row, by a warp: answers its loss. The gradient may lie over the logits: nothing is read once it is written, but
 *  by the lane that writes it. */
__device__ double score_row(float const* logits, std::uint32_t classes, std::uint32_t target, float factor,
                            float* gradient) {
    std::uint32_t const lane = threadIdx.x % warp_k;
    float maximum = -INFINITY;
    for (std::uint32_t i = lane; i < classes; i += warp_k)
        maximum = fmaxf(maximum, logits[i]);
#pragma unroll
    for (unsigned step = warp_k / 2; step != 0; step /= 2)
        maximum = fmaxf(maximum, __shfl_xor_sync(whole_warp_k, maximum, step));
    double total = 0;
    for (std::uint32_t i = lane; i < classes; i += warp_k)
        total += exp2f((logits[i] - maximum) * log2_e_k);
    total = sum_warp(total);
    float const of_target = logits[target];
    __syncwarp();
    if (gradient) {
        float const inverse = static_cast<float>(1 / total);
        for (std::uint32_t i = lane; i < classes; i += warp_k)
            gradient[i] = factor * (exp2f((logits[i] - maximum) * log2_e_k) * inverse - (i == target ? 1.f : 0.f));
    }
    return double(maximum) - of_target + log(total);
}

__global__ void __launch_bounds__(warps_k* warp_k) score_classes(uform_cross_entropy_t problem, double* losses) {
    __shared__ double scratch[warps_k];
    std::size_t const first = std::size_t(blockIdx.x) * rows_per_block_k;
    std::size_t const end = min(first + rows_per_block_k, std::size_t(problem.count));
    double sum = 0;
    for (std::size_t row = first + threadIdx.x / warp_k; row < end; row += warps_k) {
        std::size_t const at = row * problem.classes;
        sum += score_row(problem.logits + at, problem.classes, problem.targets[row], problem.scale,
                         problem.gradient ? problem.gradient + at : nullptr);
    }
    if (threadIdx.x % warp_k == 0)
        scratch[threadIdx.x / warp_k] = sum;
    __syncthreads();
    if (threadIdx.x == 0) {
        double total = 0;
        for (double const one : scratch)
            total += one;
        losses[blockIdx.x] = total;
    }
}

} // namespace

std::size_t cross_entropy_workspace_bytes(std::uint32_t, std::uint64_t count) {
    return part_bytes<double>(ceil_divide<std::size_t>(count, rows_per_block_k));
}

uform_status_t cross_entropy(uform_stream_t* opaque, uform_cross_entropy_t const* problem) {
    return operate("cross_entropy", opaque, [&](stream const& stream) {
        check_bytes("workspace_bytes", problem->workspace_bytes,
                    cross_entropy_workspace_bytes(problem->classes, problem->count));
        double* const losses = workspace_parts(problem->workspace).take<double>(1);
        unsigned const blocks = blocks_for(problem->count, rows_per_block_k);
        launch(stream, score_classes, blocks, warps_k * warp_k, 0, *problem, losses);
        if (blocks != 0)
            add_losses(stream, losses, blocks, nullptr, problem->scale, problem->loss);
    });
}

} // namespace uform::vram

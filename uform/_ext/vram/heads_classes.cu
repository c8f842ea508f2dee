/** Cross-entropy of plain float32 logits over any number of classes. */
#include <algorithm>

#include "vram/attention_mma.cuh"
#include "vram/heads.cuh"
#include "vram/operations.h"
#include "vram/succession.cuh"

namespace uform::vram {

namespace {

constexpr unsigned warps_k = 8;
constexpr float log2_e_k = 1.4426950408889634f;
/** Rows whose losses one block adds up; a constant, so that the order of sums is one. */
constexpr unsigned rows_per_block_k = 16;
constexpr unsigned rows_per_warp_k = rows_per_block_k / warps_k;
static_assert(rows_per_warp_k == 2); // a power of two, whose losses lanes add up

__device__ __forceinline__ float largest_of_warp(float value) {
#pragma unroll
    for (unsigned step = warp_k / 2; step != 0; step /= 2)
        value = fmaxf(value, __shfl_xor_sync(whole_warp_k, value, step));
    return value;
}

/** What a row's loss consists of: log(1 + above) + rest. */
struct row_loss {
    float above, rest;
};

/** A row of at most `quads_ak` times 128 classes, a multiple of 4: each lane holds so many times four of them. */
template <unsigned quads_ak> struct held_row {
    float4 quads[quads_ak];

    static __device__ __forceinline__ std::uint32_t first_of(unsigned quad) {
        return (quad * warp_k + threadIdx.x % warp_k) * 4;
    }
    /** Calls `body(logit, class)` for all that this lane has. */
    template <typename body_at> __device__ __forceinline__ void for_logits(std::uint32_t classes, body_at&& body) {
#pragma unroll
        for (unsigned quad = 0; quad != quads_ak; ++quad) {
            std::uint32_t const first = first_of(quad);
            if (first >= classes)
                continue;
            body(quads[quad].x, first), body(quads[quad].y, first + 1);
            body(quads[quad].z, first + 2), body(quads[quad].w, first + 3);
        }
    }

    __device__ __forceinline__ void load(float const* logits, std::uint32_t classes) {
#pragma unroll
        for (unsigned quad = 0; quad != quads_ak; ++quad)
            if (first_of(quad) < classes)
                quads[quad] = *reinterpret_cast<float4 const*>(logits + first_of(quad));
    }
    /** Leaves the gradient's row where one is wanted. */
    __device__ __forceinline__ row_loss score(std::uint32_t classes, std::uint32_t target, float factor,
                                              float* gradient) {
        float maximum = -INFINITY, of_target = 0;
        for_logits(classes, [&](float logit, std::uint32_t place) {
            maximum = fmaxf(maximum, logit), of_target = place == target ? logit : of_target;
        });
        of_target = __shfl_sync(whole_warp_k, of_target, target / 4 % warp_k); // of the lane that has it
        maximum = largest_of_warp(maximum);
        float const low = maximum * log2_e_k;
        double total = 0;
#pragma unroll
        for (unsigned quad = 0; quad != quads_ak; ++quad) {
            if (first_of(quad) >= classes)
                continue;
            float4& four = quads[quad];
            four.x = power_of_2(fmaf(four.x, log2_e_k, -low)), four.y = power_of_2(fmaf(four.y, log2_e_k, -low));
            four.z = power_of_2(fmaf(four.z, log2_e_k, -low)), four.w = power_of_2(fmaf(four.w, log2_e_k, -low));
            total += (four.x + four.y) + (four.z + four.w);
        }
        total = sum_warp(total);
        if (gradient) {
            float const inverse = factor / static_cast<float>(total);
            for_logits(classes, [&](float& power, std::uint32_t place) {
                power = fmaf(power, inverse, place == target ? -factor : 0.f);
            });
#pragma unroll
            for (unsigned quad = 0; quad != quads_ak; ++quad)
                if (first_of(quad) < classes)
                    *reinterpret_cast<float4*>(gradient + first_of(quad)) = quads[quad];
        }
        return {static_cast<float>(total - 1), maximum - of_target};
    }
};

/** One row, by a warp. The gradient may lie over the logits: nothing is read once it is written, but by the lane that
 *  writes it. */
__device__ row_loss score_row(float const* logits, std::uint32_t classes, std::uint32_t target, float factor,
                              float* gradient) {
    std::uint32_t const lane = threadIdx.x % warp_k;
    float maximum = -INFINITY;
    for (std::uint32_t i = lane; i < classes; i += warp_k)
        maximum = fmaxf(maximum, logits[i]);
    maximum = largest_of_warp(maximum);
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
    return {static_cast<float>(total - 1), maximum - of_target};
}

/** @tparam quads_ak Of what a lane holds of a row, or 0: rows are read as often as they are used. */
template <unsigned quads_ak>
__global__ void __launch_bounds__(warps_k* warp_k, quads_ak <= 2 ? 5 : 3)
    score_classes(uform_cross_entropy_t problem, double* losses) {
    follow_earlier_kernels();
    __shared__ double scratch[warps_k];
    std::size_t const first = std::size_t(blockIdx.x) * rows_per_block_k + threadIdx.x / warp_k * rows_per_warp_k;
    std::size_t const end = min(first + rows_per_warp_k, std::size_t(problem.count));
    float* const gradient = problem.gradient;
    row_loss own{}; // a lane has that of the row of its number: one logarithm for all
    auto const keep = [&](std::size_t row, row_loss const& loss) {
        if (threadIdx.x % warp_k == row - first)
            own = loss;
    };
    if constexpr (quads_ak == 0) {
        for (std::size_t row = first; row < end; ++row) {
            std::size_t const at = row * problem.classes;
            keep(row, score_row(problem.logits + at, problem.classes, problem.targets[row], problem.scale,
                                gradient ? gradient + at : nullptr));
        }
    } else {
        constexpr unsigned at_once = quads_ak <= 2 ? rows_per_warp_k : 1; // rows that are loaded at a time
        for (std::size_t begin = first; begin < end; begin += at_once) {
            held_row<quads_ak> rows[at_once]; // past the end the last one again
            std::uint32_t targets[at_once];
#pragma unroll
            for (unsigned i = 0; i != at_once; ++i) {
                std::size_t const row = min(begin + i, end - 1);
                rows[i].load(problem.logits + row * problem.classes, problem.classes);
                targets[i] = problem.targets[row];
            }
#pragma unroll
            for (unsigned i = 0; i != at_once; ++i)
                if (begin + i < end)
                    keep(begin + i, rows[i].score(problem.classes, targets[i], problem.scale,
                                                  gradient ? gradient + (begin + i) * problem.classes : nullptr));
        }
    }
    double sum = first + threadIdx.x % warp_k < end ? double(log1pf(own.above)) + own.rest : 0;
#pragma unroll
    for (unsigned step = 1; step != rows_per_warp_k; step *= 2)
        sum += __shfl_xor_sync(whole_warp_k, sum, step);
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

__global__ void __launch_bounds__(loss_threads_k)
    add_losses(double const* losses, std::size_t count, double factor, double* loss) {
    double const before = __ldcg(loss); // what came before `score_classes` is done, and that does not touch it
    follow_earlier_kernels();
    __shared__ double scratch[loss_threads_k / warp_k];
    double const sum = sum_losses(losses, count, scratch);
    if (threadIdx.x == 0)
        *loss = before + factor * sum;
}

/** The kernel for rows of a width that lie as they do. */
auto score_kernel(uform_cross_entropy_t const& problem) {
    auto const aligned = [](float const* values) { return reinterpret_cast<std::uintptr_t>(values) % 16 == 0; };
    bool const whole = problem.classes % 4 == 0 && aligned(problem.logits) && aligned(problem.gradient);
    std::uint32_t const quads = ceil_divide(problem.classes, 4 * warp_k);
    if (!whole || quads > 8)
        return score_classes<0>;
    return quads <= 1   ? score_classes<1>
           : quads <= 2 ? score_classes<2>
           : quads <= 4 ? score_classes<4>
                        : score_classes<8>;
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
        launch_early(stream, score_kernel(*problem), blocks, warps_k * warp_k, 0, *problem, losses);
        if (blocks != 0)
            launch_early(stream, add_losses, 1, loss_threads_k, 0, losses, std::size_t(blocks), double(problem->scale),
                         problem->loss);
    });
}

} // namespace uform::vram

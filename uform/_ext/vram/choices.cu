/** A softmax over each item's choices, read from the hidden states at their columns. */
#include "vram/elementwise.cuh"
#include "vram/launch.cuh"
#include "vram/operations.h"

namespace uform::vram {

namespace {

constexpr unsigned warps_k = 8;
constexpr unsigned threads_k = warps_k * warp_k;
/** Rows whose part of the vector's gradient one block adds up; a constant, so that the order of sums is one. */
constexpr unsigned rows_per_part_k = 32;

/** The parts of the workspace. */
struct choices_workspace {
    float* slopes;              // [rows] raw scores, then the loss's derivative by them
    double* losses;             // [items]
    double* temperature_slopes; // [items] without the gradient's factor
    float* parts;               // [rows / 32, hidden] of the vector's gradient

    explicit choices_workspace(uform_choices_head_t const& head) {
        workspace_parts given(head.workspace);
        slopes = given.take<float>(head.rows_capacity);
        losses = given.take<double>(head.items_capacity);
        temperature_slopes = given.take<double>(head.items_capacity);
        parts = given.take<float>(std::size_t(ceil_divide(head.rows_capacity, rows_per_part_k)) * head.hidden);
    }
};

/** A warp a row: its hidden state dotted with the vector. */
__global__ void __launch_bounds__(threads_k) score_rows(uform_choices_head_t head, float* scores) {
    std::uint32_t const row = blockIdx.x * warps_k + threadIdx.x / warp_k;
    if (row >= head.counts[1])
        return;
    __nv_bfloat16 const* const state = static_cast<__nv_bfloat16 const*>(head.rows) + std::size_t(row) * head.hidden;
    float score = 0;
    for (std::uint32_t first = threadIdx.x % warp_k * lanes_k; first < head.hidden; first += warp_k * lanes_k) {
        floatx8 const values = widen(load8(state + first)), vector = load8(head.vector + first);
#pragma unroll
        for (unsigned i = 0; i != lanes_k; ++i)
            score = fmaf(values[i], vector[i], score);
    }
    score = sum_warp(score);
    if (threadIdx.x % warp_k == 0)
        scores[row] = score;
}

/** A warp an item: its probabilities; where there are targets, its loss, and slopes in place of the scores. */
__global__ void __launch_bounds__(threads_k) choose(uform_choices_head_t head, choices_workspace work) {
    std::uint32_t const item = blockIdx.x * warps_k + threadIdx.x / warp_k, lane = threadIdx.x % warp_k;
    if (item >= head.counts[0])
        return;
    std::uint32_t const begin = head.offsets[item] + lane, end = head.offsets[item + 1];
    float const sharpness = expf(*head.log_inverse_temperature);
    float maximum = -INFINITY;
    for (std::uint32_t row = begin; row < end; row += warp_k)
        maximum = fmaxf(maximum, sharpness * work.slopes[row]);
#pragma unroll
    for (unsigned step = warp_k / 2; step != 0; step /= 2)
        maximum = fmaxf(maximum, __shfl_xor_sync(whole_warp_k, maximum, step));
    float total = 0, mass = 0;
    for (std::uint32_t row = begin; row < end; row += warp_k) {
        total += expf(sharpness * work.slopes[row] - maximum);
        mass += head.targets ? head.targets[row] : 0;
    }
    total = sum_warp(total);
    mass = sum_warp(mass);
    float const inverse = 1 / total, log_total = logf(total);
    float const factor = head.targets ? *head.scale * *head.weight : 0;
    double loss = 0, temperature_slope = 0;
    for (std::uint32_t row = begin; row < end; row += warp_k) {
        float const logit = sharpness * work.slopes[row], below = logit - maximum;
        float const probability = expf(below) * inverse;
        head.probabilities[row] = probability;
        if (!head.targets)
            continue;
        float const target = head.targets[row], slope = fmaf(mass, probability, -target);
        // A target of zero is free of its logarithm, however unlikely its choice has become.
        loss += target != 0 ? double(target) * (log_total - below) : 0;
        temperature_slope += double(slope) * logit;
        work.slopes[row] = factor * slope * sharpness;
    }
    loss = sum_warp(loss);
    temperature_slope = sum_warp(temperature_slope);
    if (lane == 0 && head.targets)
        work.losses[item] = loss, work.temperature_slopes[item] = temperature_slope;
}

/** One block: the items' losses and what they ask of the temperature, each in a fixed order. */
__global__ void __launch_bounds__(threads_k) sum_items(uform_choices_head_t head, choices_workspace work) {
    __shared__ double scratch[2][warps_k];
    double loss = 0, temperature_slope = 0;
    for (std::uint32_t item = threadIdx.x; item < head.counts[0]; item += threads_k)
        loss += work.losses[item], temperature_slope += work.temperature_slopes[item];
    loss = sum_block(loss, scratch[0]);
    temperature_slope = sum_block(temperature_slope, scratch[1]);
    if (threadIdx.x != 0)
        return;
    *head.loss += *head.scale * loss;
    if (head.rows_gradient)
        *head.log_inverse_temperature_gradient +=
            static_cast<float>(double(*head.scale) * *head.weight * temperature_slope);
}

/** A block a part of the rows: their gradients, which are the vector times slopes, and their part of the vector's. */
__global__ void __launch_bounds__(threads_k) choose_backward(uform_choices_head_t head, choices_workspace work) {
    std::uint32_t const first_row = blockIdx.x * rows_per_part_k;
    std::uint32_t const end_row = min(first_row + rows_per_part_k, head.counts[1]);
    if (first_row >= end_row)
        return;
    for_row_vectors(head.hidden, [&](std::uint32_t first) {
        floatx8 const vector = load8(head.vector + first);
        floatx8 sums = {};
        for (std::uint32_t row = first_row; row != end_row; ++row) {
            std::size_t const at = std::size_t(row) * head.hidden + first;
            floatx8 const state = widen(load8(static_cast<__nv_bfloat16 const*>(head.rows) + at));
            float const slope = work.slopes[row];
            floatx8 gradient;
#pragma unroll
            for (unsigned i = 0; i != lanes_k; ++i) {
                gradient[i] = slope * vector[i];
                sums[i] = fmaf(slope, state[i], sums[i]);
            }
            store8(head.rows_gradient + at, gradient);
        }
        store8(work.parts + std::size_t(blockIdx.x) * head.hidden + first, sums);
    });
}

/** A warp's width of columns a block, whose warps share out the parts. */
__global__ void __launch_bounds__(threads_k) sum_parts(uform_choices_head_t head, float const* parts) {
    __shared__ float scratch[warps_k][warp_k];
    std::uint32_t const column = blockIdx.x * warp_k + threadIdx.x,
                        count = ceil_divide(head.counts[1], rows_per_part_k);
    float sum = 0;
    for (std::uint32_t part = threadIdx.y; column < head.hidden && part < count; part += warps_k)
        sum += parts[std::size_t(part) * head.hidden + column];
    scratch[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y != 0 || column >= head.hidden)
        return;
    for (unsigned warp = 1; warp != warps_k; ++warp)
        sum += scratch[warp][threadIdx.x];
    head.vector_gradient[column] += sum;
}

} // namespace

std::size_t choices_head_workspace_bytes(std::uint32_t hidden, std::uint32_t items, std::uint32_t rows) {
    return part_bytes<float>(rows) + 2 * part_bytes<double>(items) +
           part_bytes<float>(std::size_t(ceil_divide(rows, rows_per_part_k)) * hidden);
}

uform_status_t choices_head(uform_stream_t* opaque, uform_choices_head_t const* head) {
    return operate("choices_head", opaque, [&](stream const& stream) {
        if (head->hidden % lanes_k)
            fail(uform_status_internal_k, "hidden: ", head->hidden, " is no multiple of ", lanes_k);
        check_bytes("workspace_bytes", head->workspace_bytes,
                    choices_head_workspace_bytes(head->hidden, head->items_capacity, head->rows_capacity));
        choices_workspace const work(*head);
        launch(stream, score_rows, blocks_for(head->rows_active, warps_k), threads_k, 0, *head, work.slopes);
        launch(stream, choose, blocks_for(head->items_active, warps_k), threads_k, 0, *head, work);
        if (!head->targets)
            return;
        launch(stream, sum_items, 1, threads_k, 0, *head, work);
        if (!head->rows_gradient)
            return;
        unsigned const vectors = head->hidden / lanes_k;
        launch(stream, choose_backward, blocks_for(head->rows_active, rows_per_part_k),
               vectors < threads_k ? vectors : threads_k, 0, *head, work);
        launch(stream, sum_parts, blocks_for(head->hidden, warp_k), dim3(warp_k, warps_k), 0, *head,
               static_cast<float const*>(work.parts));
    });
}

} // namespace uform::vram

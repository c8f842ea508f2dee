/** A softmax over each item's choices, read from the hidden states at their columns. */
#include "vram/elementwise.cuh"
#include "vram/launch.cuh"
#include "vram/operations.h"
#include "vram/succession.cuh"

namespace uform::vram {

namespace {

constexpr unsigned warps_k = 8;
constexpr unsigned threads_k = warps_k * warp_k;
/** Items of one block, which adds up its part of the vector's gradient; a constant, so that the order of sums is one.
 */
constexpr unsigned items_per_part_k = 2;
constexpr unsigned sum_warps_k = 32;

/** The parts of the workspace. */
struct choices_workspace {
    float* slopes;              // [rows] raw scores, then the loss's derivative by them
    double* losses;             // [items]
    double* temperature_slopes; // [items] without the gradient's factor
    float* parts;               // [items / 2, hidden] of the vector's gradient

    explicit choices_workspace(uform_choices_head_t const& head) {
        workspace_parts given(head.workspace);
        slopes = given.take<float>(head.rows_capacity);
        losses = given.take<double>(head.items_capacity);
        temperature_slopes = given.take<double>(head.items_capacity);
        parts = given.take<float>(std::size_t(ceil_divide(head.items_capacity, items_per_part_k)) * head.hidden);
    }
};

/** A number of each row of a block's items: the first ones' in shared memory. */
template <typename value_at> struct block_values {
    static constexpr unsigned near_k = threads_k;
    std::uint32_t begin, end;
    float* near;
    value_at* far; // of all rows

    __device__ value_at& operator[](std::uint32_t row) const {
        return row - begin < near_k ? near[row - begin] : far[row];
    }
};

__device__ __forceinline__ float2 unpack(std::uint32_t pair) {
    return __bfloat1622float2(*reinterpret_cast<__nv_bfloat162 const*>(&pair));
}

/** Hidden states dotted with the vector, some rows of a warp at a time. */
__device__ __forceinline__ void score_rows(uform_choices_head_t const& head, block_values<float> const& scores) {
    constexpr unsigned at_once = 4;
    auto const* const states = static_cast<__nv_bfloat16 const*>(head.rows);
    unsigned const warp = threadIdx.x / warp_k, lane = threadIdx.x % warp_k;
    for (std::uint32_t row = scores.begin + warp; row < scores.end; row += at_once * warps_k) {
        float sums[at_once] = {};
        for (std::uint32_t first = lane * lanes_k; first < head.hidden; first += warp_k * lanes_k) {
            bf16x8 loaded[at_once]; // past the last row that one again: a branch would end what runs abreast
#pragma unroll
            for (unsigned i = 0; i != at_once; ++i)
                loaded[i] = load8(states + std::size_t(min(row + i * warps_k, scores.end - 1)) * head.hidden + first);
            floatx8 const vector = load8(head.vector + first);
#pragma unroll
            for (unsigned i = 0; i != at_once; ++i) {
                floatx8 const values = widen(loaded[i]);
#pragma unroll
                for (unsigned k = 0; k != lanes_k; ++k)
                    sums[i] = fmaf(values[k], vector[k], sums[i]);
            }
        }
#pragma unroll
        for (unsigned i = 0; i != at_once; ++i) {
            float const score = sum_warp(sums[i]);
            if (lane == 0 && row + i * warps_k < scores.end)
                scores[row + i * warps_k] = score;
        }
    }
}

/** A warp's item: its probabilities; where there are targets, its loss, and slopes in place of the scores. */
__device__ __forceinline__ void choose(uform_choices_head_t const& head, choices_workspace const& work,
                                       block_values<float> const& slopes, block_values<float const> const& targets,
                                       std::uint32_t item, float sharpness, float factor) {
    unsigned const lane = threadIdx.x % warp_k;
    std::uint32_t const begin = head.offsets[item] + lane, end = head.offsets[item + 1];
    float maximum = -INFINITY;
    for (std::uint32_t row = begin; row < end; row += warp_k)
        maximum = fmaxf(maximum, sharpness * slopes[row]);
#pragma unroll
    for (unsigned step = warp_k / 2; step != 0; step /= 2)
        maximum = fmaxf(maximum, __shfl_xor_sync(whole_warp_k, maximum, step));
    float total = 0, mass = 0;
    for (std::uint32_t row = begin; row < end; row += warp_k) {
        total += expf(sharpness * slopes[row] - maximum);
        mass += head.targets ? targets[row] : 0;
    }
    total = sum_warp(total);
    mass = sum_warp(mass);
    float const inverse = 1 / total, log_total = logf(total);
    double loss = 0, temperature_slope = 0;
    for (std::uint32_t row = begin; row < end; row += warp_k) {
        float const logit = sharpness * slopes[row], below = logit - maximum;
        float const probability = expf(below) * inverse;
        head.probabilities[row] = probability;
        if (!head.targets)
            continue;
        float const target = targets[row], slope = fmaf(mass, probability, -target);
        // A target of zero is free of its logarithm, however unlikely its choice has become.
        loss += target != 0 ? double(target) * (log_total - below) : 0;
        temperature_slope += double(slope) * logit;
        slopes[row] = factor * slope * sharpness;
    }
    loss = sum_warp(loss);
    temperature_slope = sum_warp(temperature_slope);
    if (lane == 0 && head.targets)
        work.losses[item] = loss, work.temperature_slopes[item] = temperature_slope;
}

/** The rows' gradients, which are the vector times slopes, and the block's part of the vector's. Threads that have the
 *  same four columns take turns at the rows. */
__device__ __forceinline__ void choose_backward(uform_choices_head_t const& head, block_values<float> const& slopes,
                                                float* part) {
    constexpr unsigned each_k = 4;
    __shared__ float4 of_turns[threads_k];
    auto const* const states = static_cast<__nv_bfloat16 const*>(head.rows);
    unsigned const vectors = head.hidden / each_k, wide = min(vectors, threads_k), high = threads_k / wide;
    unsigned const turn = threadIdx.x / wide;
    for (unsigned place = threadIdx.x % wide; place < vectors; place += wide) {
        unsigned const first = place * each_k;
        float4 const vector = *reinterpret_cast<float4 const*>(head.vector + first);
        float4 sum = make_float4(0, 0, 0, 0);
        if (turn < high) {
#pragma unroll 8
            for (std::uint32_t row = slopes.begin + turn; row < slopes.end; row += high) {
                std::size_t const at = std::size_t(row) * head.hidden + first;
                uint2 const packed = *reinterpret_cast<uint2 const*>(states + at);
                float2 const low = unpack(packed.x), high_half = unpack(packed.y);
                float const slope = slopes[row];
                sum.x = fmaf(slope, low.x, sum.x), sum.y = fmaf(slope, low.y, sum.y);
                sum.z = fmaf(slope, high_half.x, sum.z), sum.w = fmaf(slope, high_half.y, sum.w);
                *reinterpret_cast<float4*>(head.rows_gradient + at) =
                    make_float4(slope * vector.x, slope * vector.y, slope * vector.z, slope * vector.w);
            }
        }
        if (high != 1) { // every thread comes here once
            of_turns[threadIdx.x] = sum;
            __syncthreads();
            for (unsigned other = 1; turn == 0 && other != high; ++other) {
                float4 const more = of_turns[other * wide + place];
                sum.x += more.x, sum.y += more.y, sum.z += more.z, sum.w += more.w;
            }
        }
        if (turn == 0)
            *reinterpret_cast<float4*>(part + first) = sum;
    }
}

/** A block some items beside each other. What they need is asked for at once: memory answers late. */
__global__ void __launch_bounds__(threads_k, 4) choose_items(uform_choices_head_t head, choices_workspace work) {
    follow_earlier_kernels();
    __shared__ float near[2][threads_k];
    std::uint32_t const first = blockIdx.x * items_per_part_k, items = head.counts[0];
    std::uint32_t const begin = head.offsets[first],
                        after = head.offsets[min(first + items_per_part_k, head.items_capacity)];
    float const log_sharpness = *head.log_inverse_temperature;
    float const scale = head.targets ? *head.scale : 0, weight = head.targets ? *head.weight : 0;
    if (first >= items)
        return;
    std::uint32_t const last = min(first + items_per_part_k, items);
    std::uint32_t const end = first + items_per_part_k <= items ? after : head.offsets[items];
    block_values<float> const slopes{begin, end, near[0], work.slopes};
    block_values<float const> const targets{begin, end, near[1], head.targets};
    bool const has_near = head.targets && begin + threadIdx.x < end;
    float const target = has_near ? head.targets[begin + threadIdx.x] : 0;
    score_rows(head, slopes);
    near[1][threadIdx.x] = target;
    __syncthreads();
    unsigned const warp = threadIdx.x / warp_k;
    static_assert(items_per_part_k <= warps_k);
    if (first + warp < last)
        choose(head, work, slopes, targets, first + warp, expf(log_sharpness), scale * weight);
    if (!head.rows_gradient)
        return;
    __syncthreads();
    choose_backward(head, slopes, work.parts + std::size_t(blockIdx.x) * head.hidden);
}

/** Block 0 adds up the items' losses and what they ask of the temperature, the others a warp's width of columns each of
 *  the vector's gradient, all in a fixed order. */
__global__ void __launch_bounds__(sum_warps_k* warp_k) end_choices(uform_choices_head_t head, choices_workspace work) {
    follow_earlier_kernels();
    __shared__ double scratch[2][sum_warps_k];
    __shared__ float sums[sum_warps_k][warp_k];
    unsigned const warp = threadIdx.x / warp_k, lane = threadIdx.x % warp_k;
    std::uint32_t const items = head.counts[0];
    if (blockIdx.x == 0) {
        double loss = 0, temperature_slope = 0;
        for (std::uint32_t item = threadIdx.x; item < items; item += sum_warps_k * warp_k)
            loss += work.losses[item], temperature_slope += work.temperature_slopes[item];
        loss = sum_block(loss, scratch[0]);
        temperature_slope = sum_block(temperature_slope, scratch[1]);
        if (threadIdx.x != 0)
            return;
        *head.loss += *head.scale * loss;
        if (head.rows_gradient)
            *head.log_inverse_temperature_gradient +=
                static_cast<float>(double(*head.scale) * *head.weight * temperature_slope);
        return;
    }
    std::uint32_t const column = (blockIdx.x - 1) * warp_k + lane, count = ceil_divide(items, items_per_part_k);
    constexpr unsigned at_once = 8; // parts that a thread loads at a time; past the last one that one again
    float sum = 0;
    for (std::uint32_t begin = warp; column < head.hidden && begin < count; begin += at_once * sum_warps_k) {
        float loaded[at_once];
#pragma unroll
        for (unsigned i = 0; i != at_once; ++i)
            loaded[i] = work.parts[std::size_t(min(begin + i * sum_warps_k, count - 1)) * head.hidden + column];
#pragma unroll
        for (unsigned i = 0; i != at_once; ++i)
            sum += begin + i * sum_warps_k < count ? loaded[i] : 0;
    }
    sums[warp][lane] = sum;
    __syncthreads();
    if (warp != 0 || column >= head.hidden)
        return;
    for (unsigned other = 1; other != sum_warps_k; ++other)
        sum += sums[other][lane];
    head.vector_gradient[column] += sum;
}

} // namespace

std::size_t choices_head_workspace_bytes(std::uint32_t hidden, std::uint32_t items, std::uint32_t rows) {
    return part_bytes<float>(rows) + 2 * part_bytes<double>(items) +
           part_bytes<float>(std::size_t(ceil_divide(items, items_per_part_k)) * hidden);
}

uform_status_t choices_head(uform_stream_t* opaque, uform_choices_head_t const* given) {
    return operate("choices_head", opaque, [&](stream const& stream) {
        uform_choices_head_t head = *given;
        if (head.hidden % lanes_k)
            fail(uform_status_internal_k, "hidden: ", head.hidden, " is no multiple of ", lanes_k);
        check_bytes("workspace_bytes", head.workspace_bytes,
                    choices_head_workspace_bytes(head.hidden, head.items_capacity, head.rows_capacity));
        if (!head.targets)
            head.rows_gradient = nullptr;
        choices_workspace const work(head);
        launch_early(stream, choose_items, blocks_for(head.items_active, items_per_part_k), threads_k, 0, head, work);
        if (!head.targets)
            return;
        unsigned const columns = head.rows_gradient ? blocks_for(head.hidden, warp_k) : 0;
        launch_early(stream, end_choices, 1 + columns, sum_warps_k * warp_k, 0, head, work);
    });
}

} // namespace uform::vram

/** A softmax over each item's choices, read from the hidden states at their columns. */
#include "vram/elementwise.cuh"
#include "vram/launch.cuh"
#include "vram/operations.h"
#include "vram/succession.cuh"

namespace uform::vram {

namespace {

constexpr unsigned warps_k = 16;
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

/** A block's rows, and a number of each in shared memory, or beside all others' if they are more than fit there. */
struct block_rows {
    static constexpr unsigned near_k = threads_k;
    std::uint32_t begin, end;

    /** Where the first row's number is. */
    template <typename value_at> __device__ value_at* numbers(value_at* near, value_at* far) const {
        return end - begin <= near_k ? near : far + begin;
    }
};

__device__ __forceinline__ float2 unpack(std::uint32_t pair) {
    return __bfloat1622float2(*reinterpret_cast<__nv_bfloat162 const*>(&pair));
}

/** Hidden states dotted with the vector, some rows of a warp at a time. */
__device__ __forceinline__ void score_rows(uform_choices_head_t const& head, block_rows const& rows, float* scores) {
    constexpr unsigned rows_at_once = 2, vectors_at_once = 2;
    auto const* const states = static_cast<__nv_bfloat16 const*>(head.rows);
    unsigned const warp = threadIdx.x / warp_k, lane = threadIdx.x % warp_k;
    for (std::uint32_t row = rows.begin + warp; row < rows.end; row += rows_at_once * warps_k) {
        float sums[rows_at_once] = {};
        for (std::uint32_t begin = lane * lanes_k; begin < head.hidden; begin += vectors_at_once * warp_k * lanes_k) {
            // Past the last row that one again, past its end nothing times its first vector: a branch would end what
            // runs abreast.
            bf16x8 loaded[rows_at_once][vectors_at_once];
            floatx8 vectors[vectors_at_once];
#pragma unroll
            for (unsigned k = 0; k != vectors_at_once; ++k) {
                std::uint32_t const at = begin + k * warp_k * lanes_k;
                bool const present = at < head.hidden;
                std::uint32_t const first = present ? at : 0;
#pragma unroll
                for (unsigned i = 0; i != rows_at_once; ++i)
                    loaded[i][k] =
                        load8(states + std::size_t(min(row + i * warps_k, rows.end - 1)) * head.hidden + first);
                vectors[k] = load8(head.vector + first);
#pragma unroll
                for (unsigned j = 0; j != lanes_k; ++j)
                    vectors[k][j] = present ? vectors[k][j] : 0;
            }
#pragma unroll
            for (unsigned k = 0; k != vectors_at_once; ++k)
#pragma unroll
                for (unsigned i = 0; i != rows_at_once; ++i) {
                    floatx8 const values = widen(loaded[i][k]);
#pragma unroll
                    for (unsigned j = 0; j != lanes_k; ++j)
                        sums[i] = fmaf(values[j], vectors[k][j], sums[i]);
                }
        }
#pragma unroll
        for (unsigned i = 0; i != rows_at_once; ++i) {
            float const score = sum_warp(sums[i]);
            if (lane == 0 && row + i * warps_k < rows.end)
                scores[row + i * warps_k - rows.begin] = score;
        }
    }
}

/** A warp's item: its probabilities; where there are targets, its loss, and slopes in place of the scores. */
__device__ __forceinline__ void choose(uform_choices_head_t const& head, choices_workspace const& work,
                                       block_rows const& rows, float* slopes, float const* targets, std::uint32_t item,
                                       float sharpness, float factor) {
    unsigned const lane = threadIdx.x % warp_k;
    std::uint32_t const begin = head.offsets[item] - rows.begin + lane, end = head.offsets[item + 1] - rows.begin;
    float maximum = -INFINITY;
#pragma unroll 1
    for (std::uint32_t row = begin; row < end; row += warp_k)
        maximum = fmaxf(maximum, sharpness * slopes[row]);
#pragma unroll
    for (unsigned step = warp_k / 2; step != 0; step /= 2)
        maximum = fmaxf(maximum, __shfl_xor_sync(whole_warp_k, maximum, step));
    float total = 0, mass = 0;
#pragma unroll 1
    for (std::uint32_t row = begin; row < end; row += warp_k) {
        total += expf(sharpness * slopes[row] - maximum);
        mass += head.targets ? targets[row] : 0;
    }
    total = sum_warp(total);
    mass = sum_warp(mass);
    float const inverse = 1 / total, log_total = logf(total);
    double loss = 0, temperature_slope = 0;
#pragma unroll 1
    for (std::uint32_t row = begin; row < end; row += warp_k) {
        float const logit = sharpness * slopes[row], below = logit - maximum;
        float const probability = expf(below) * inverse;
        head.probabilities[rows.begin + row] = probability;
        if (!head.targets)
            continue;
        float const target = targets[row], slope = fmaf(mass, probability, -target);
        // A target of zero is free of its logarithm, however unlikely its choice has become.
        loss += target != 0 ? double(target) * (log_total - below) : 0;
        temperature_slope += double(slope) * logit;
        slopes[row] = factor * slope * sharpness;
    }
    if (!head.targets)
        return;
    loss = sum_warp(loss);
    temperature_slope = sum_warp(temperature_slope);
    if (lane == 0)
        work.losses[item] = loss, work.temperature_slopes[item] = temperature_slope;
}

/** The rows' gradients, which are the vector times slopes, and the block's part of the vector's. Threads that have the
 *  same four columns take turns at the rows. */
__device__ __forceinline__ void choose_backward(uform_choices_head_t const& head, block_rows const& rows,
                                                float const* slopes, float* part) {
    constexpr unsigned each_k = 4, at_once = 4;
    __shared__ float4 of_turns[threads_k];
    std::size_t const before = std::size_t(rows.begin) * head.hidden;
    auto const* const states = static_cast<__nv_bfloat16 const*>(head.rows) + before;
    float* const gradients = head.rows_gradient + before;
    std::uint32_t const count = rows.end - rows.begin;
    unsigned const vectors = head.hidden / each_k, wide = min(vectors, threads_k), high = threads_k / wide;
    unsigned const turn = threadIdx.x / wide;
    for (unsigned place = threadIdx.x % wide; place < vectors; place += wide) {
        unsigned const first = place * each_k;
        float4 const vector = *reinterpret_cast<float4 const*>(head.vector + first);
        float4 sum = make_float4(0, 0, 0, 0);
        if (turn < high) {
            for (std::uint32_t begin = turn; begin < count; begin += at_once * high) {
                uint2 packed[at_once]; // past the last row that one again
#pragma unroll
                for (unsigned i = 0; i != at_once; ++i)
                    packed[i] = *reinterpret_cast<uint2 const*>(
                        states + std::size_t(min(begin + i * high, count - 1)) * head.hidden + first);
#pragma unroll
                for (unsigned i = 0; i != at_once; ++i) {
                    std::uint32_t const row = begin + i * high;
                    if (row >= count)
                        break;
                    float2 const low = unpack(packed[i].x), high_half = unpack(packed[i].y);
                    float const slope = slopes[row];
                    sum.x = fmaf(slope, low.x, sum.x), sum.y = fmaf(slope, low.y, sum.y);
                    sum.z = fmaf(slope, high_half.x, sum.z), sum.w = fmaf(slope, high_half.y, sum.w);
                    *reinterpret_cast<float4*>(gradients + std::size_t(row) * head.hidden + first) =
                        make_float4(slope * vector.x, slope * vector.y, slope * vector.z, slope * vector.w);
                }
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
__global__ void __launch_bounds__(threads_k, 2) choose_items(uform_choices_head_t head, choices_workspace work) {
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
    block_rows const rows{begin, end};
    float* const slopes = rows.numbers(near[0], work.slopes);
    float const* const targets = rows.numbers<float const>(near[1], head.targets);
    bool const has_near = head.targets && begin + threadIdx.x < end;
    float const target = has_near ? head.targets[begin + threadIdx.x] : 0;
    score_rows(head, rows, slopes);
    near[1][threadIdx.x] = target;
    __syncthreads();
    unsigned const warp = threadIdx.x / warp_k;
    static_assert(items_per_part_k <= warps_k);
    if (first + warp < last)
        choose(head, work, rows, slopes, targets, first + warp, expf(log_sharpness), scale * weight);
    if (!head.rows_gradient)
        return;
    __syncthreads();
    choose_backward(head, rows, slopes, work.parts + std::size_t(blockIdx.x) * head.hidden);
}

/** Block 0 adds up the items' losses and what they ask of the temperature, the others a warp's width of columns each of
 *  the vector's gradient, all in a fixed order. */
__global__ void __launch_bounds__(sum_warps_k* warp_k) end_choices(uform_choices_head_t head, choices_workspace work) {
    __shared__ double scratch[2][sum_warps_k];
    __shared__ float sums[sum_warps_k][warp_k];
    unsigned const warp = threadIdx.x / warp_k, lane = threadIdx.x % warp_k;
    // What came before `choose_items` is done, and that touches none of these.
    std::uint32_t const column = (blockIdx.x - 1) * warp_k + lane, items = __ldcg(head.counts);
    if (blockIdx.x == 0) {
        double const before = __ldcg(head.loss), scale = double(__ldcg(head.scale));
        float temperature_before = 0, weight = 0;
        if (head.rows_gradient)
            temperature_before = __ldcg(head.log_inverse_temperature_gradient), weight = __ldcg(head.weight);
        follow_earlier_kernels();
        double loss = 0, temperature_slope = 0;
#pragma unroll 1
        for (std::uint32_t item = threadIdx.x; item < items; item += sum_warps_k * warp_k)
            loss += work.losses[item], temperature_slope += work.temperature_slopes[item];
        loss = sum_block(loss, scratch[0]);
        temperature_slope = sum_block(temperature_slope, scratch[1]);
        if (threadIdx.x != 0)
            return;
        *head.loss = before + scale * loss;
        if (head.rows_gradient)
            *head.log_inverse_temperature_gradient =
                temperature_before + static_cast<float>(scale * double(weight) * temperature_slope);
        return;
    }
    float const before = column < head.hidden ? __ldcg(head.vector_gradient + column) : 0;
    follow_earlier_kernels();
    std::uint32_t const count = ceil_divide(items, items_per_part_k);
    constexpr unsigned at_once = 16; // parts that a thread loads at a time; past the last one that one again
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
    head.vector_gradient[column] = before + sum;
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

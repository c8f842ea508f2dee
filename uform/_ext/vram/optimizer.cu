#include <algorithm>
#include <cmath>
#include <numbers>

#include "vram/elementwise.cuh"
#include "vram/launch.cuh"
#include "vram/operations.h"

namespace uform::vram {

namespace {

constexpr unsigned threads_k = 256;
constexpr unsigned vector_k = 4;

/** Values whose squares one block sums; a constant, so that the order of sums is one. */
constexpr unsigned values_per_sum_k = 16384;

/** One step's numbers, the same for every value. */
struct step_factors {
    std::uint32_t refused;
    float clip, beta1, beta2, rest1, rest2, rate, correction2, epsilon, decay;
};

struct update_workspace {
    step_factors* factors;
    double* sums; // of squares, a block each
    std::uint32_t sums_count;

    update_workspace(void* base, std::uint64_t count) : sums_count(blocks_for(count, values_per_sum_k)) {
        workspace_parts parts(base);
        factors = parts.take<step_factors>(1);
        sums = parts.take<double>(sums_count);
    }
};

__global__ void __launch_bounds__(threads_k)
    sum_squares(float const* __restrict__ gradient, std::size_t count, double* __restrict__ sums) {
    __shared__ double scratch[threads_k / warp_k];
    std::size_t const begin = std::size_t(blockIdx.x) * values_per_sum_k;
    double sum = 0;
#pragma unroll 8
    for (unsigned step = 0; step != values_per_sum_k / (threads_k * vector_k); ++step) {
        std::size_t const place = begin + (step * threads_k + threadIdx.x) * vector_k;
        float4 values = make_float4(0, 0, 0, 0);
        if (place + vector_k <= count) {
            values = *reinterpret_cast<float4 const*>(gradient + place);
        } else if (place < count) {
            values.x = gradient[place];
            values.y = place + 1 < count ? gradient[place + 1] : 0;
            values.z = place + 2 < count ? gradient[place + 2] : 0;
        }
        sum += (double(values.x) * double(values.x) + double(values.y) * double(values.y)) +
               (double(values.z) * double(values.z) + double(values.w) * double(values.w));
    }
    sum = sum_block(sum, scratch);
    if (threadIdx.x == 0)
        sums[blockIdx.x] = sum;
}

/** The learning rate of an applied step, counted from 1: a linear warmup, a cosine to the floor, then the floor. */
__device__ double learning_rate(uform_update_t const& update, std::uint64_t step) {
    double const at = static_cast<double>(step);
    double const warmup = static_cast<double>(update.warmup_steps), steps = static_cast<double>(update.steps);
    if (at <= warmup)
        return update.peak * at / warmup;
    if (at >= steps)
        return update.floor;
    double const progress = (at - warmup) / (steps - warmup);
    return update.floor + (update.peak - update.floor) * 0.5 * (1 + cos(std::numbers::pi * progress));
}

constexpr unsigned decide_threads_k = 1024;

/** One block: the norm, whether the step is refused, and the numbers that all values share. */
__global__ void __launch_bounds__(decide_threads_k) decide(uform_update_t update, update_workspace work) {
    __shared__ double scratch[decide_threads_k / warp_k];
    double square = 0;
#pragma unroll 4
    for (std::uint32_t place = threadIdx.x; place < work.sums_count; place += decide_threads_k)
        square += work.sums[place];
    square = sum_block(square, scratch);
    if (threadIdx.x != 0)
        return;
    uform_update_state_t& state = *update.state;
    double const norm = sqrt(square);
    bool finite = isfinite(norm);
    for (std::uint32_t term = 0; term < update.terms_count; ++term)
        finite = finite && isfinite(state.terms[term]);
    state.gradient_norm = norm;
    state.refused = finite ? 0 : 1;
    work.factors->refused = finite ? 0 : 1;
    if (!finite)
        return;
    state.applied += 1;
    double const at = static_cast<double>(state.applied), rate = learning_rate(update, state.applied);
    state.learning_rate = rate;
    step_factors factors;
    factors.refused = 0;
    factors.clip = static_cast<float>(update.max_norm > 0 && norm > update.max_norm ? update.max_norm / norm : 1);
    factors.beta1 = static_cast<float>(update.beta1);
    factors.beta2 = static_cast<float>(update.beta2);
    factors.rest1 = static_cast<float>(1 - update.beta1);
    factors.rest2 = static_cast<float>(1 - update.beta2);
    factors.rate = static_cast<float>(rate / (1 - pow(update.beta1, at)));
    factors.correction2 = static_cast<float>(1 / (1 - pow(update.beta2, at)));
    factors.epsilon = static_cast<float>(update.epsilon);
    factors.decay = static_cast<float>(rate * update.decay);
    *work.factors = factors;
}

/** AdamW (Loshchilov and Hutter, 2019) on one value: its moments and itself are changed in place. */
__device__ __forceinline__ void apply(step_factors const& factors, float decay, float minimum, float maximum,
                                      float gradient, float& value, float& first, float& second) {
    float const slope = gradient * factors.clip;
    first = factors.beta1 * first + factors.rest1 * slope;
    second = factors.beta2 * second + factors.rest2 * slope * slope;
    float const spread = sqrtf(second * factors.correction2) + factors.epsilon;
    float const moved = value - (factors.rate * first / spread + decay * value);
    float const above = moved < minimum ? minimum : moved;
    value = above > maximum ? maximum : above;
}

constexpr unsigned steps_k = 8;
constexpr unsigned values_per_block_k = threads_k * vector_k * steps_k;

/** The first span that ends after a place. */
__device__ std::uint32_t find_span(uform_update_t const& update, std::size_t place) {
    std::uint32_t begin = 0, end = update.spans_count;
    while (begin < end) {
        std::uint32_t const middle = (begin + end) / 2;
        if (update.spans[middle].offset + update.spans[middle].count <= place)
            begin = middle + 1;
        else
            end = middle;
    }
    return begin;
}

/** What one span's values share. */
struct span_share {
    std::size_t offset, end;
    float decay, minimum, maximum;
    __nv_bfloat16* working; // the rounded copy, or null where the plain values are read

    __device__ span_share(uform_parameter_span_t const& span, step_factors const& factors)
        : offset(span.offset), end(span.offset + span.count), decay(span.decay != 0 ? factors.decay : 0.f),
          minimum(span.minimum), maximum(span.maximum) {
        bool const copied = span.kind == uform_parameter_kind_matrix_k || span.kind == uform_parameter_kind_embedding_k;
        working = copied ? static_cast<__nv_bfloat16*>(span.working) : nullptr;
    }
};

__device__ __forceinline__ void apply_one(uform_update_t const& update, step_factors const& factors,
                                          span_share const& span, std::size_t place) {
    float value = update.parameters[place], first = update.first_moment[place], second = update.second_moment[place];
    apply(factors, span.decay, span.minimum, span.maximum, update.gradient[place], value, first, second);
    update.parameters[place] = value;
    update.first_moment[place] = first;
    update.second_moment[place] = second;
    if (span.working)
        span.working[place - span.offset] = __float2bfloat16(value);
}

struct alignas(8) bf16x4 {
    __nv_bfloat162 pairs[2];
};

/** Four values of one span, which begins on a whole vector. */
__device__ __forceinline__ void apply_four(uform_update_t const& update, step_factors const& factors,
                                           span_share const& span, std::size_t place) {
    float4 const gradient = *reinterpret_cast<float4 const*>(update.gradient + place);
    float4 value = *reinterpret_cast<float4 const*>(update.parameters + place);
    float4 first = *reinterpret_cast<float4 const*>(update.first_moment + place);
    float4 second = *reinterpret_cast<float4 const*>(update.second_moment + place);
    apply(factors, span.decay, span.minimum, span.maximum, gradient.x, value.x, first.x, second.x);
    apply(factors, span.decay, span.minimum, span.maximum, gradient.y, value.y, first.y, second.y);
    apply(factors, span.decay, span.minimum, span.maximum, gradient.z, value.z, first.z, second.z);
    apply(factors, span.decay, span.minimum, span.maximum, gradient.w, value.w, first.w, second.w);
    *reinterpret_cast<float4*>(update.parameters + place) = value;
    *reinterpret_cast<float4*>(update.first_moment + place) = first;
    *reinterpret_cast<float4*>(update.second_moment + place) = second;
    if (span.working) {
        bf16x4 const copy{{__floats2bfloat162_rn(value.x, value.y), __floats2bfloat162_rn(value.z, value.w)}};
        *reinterpret_cast<bf16x4*>(span.working + (place - span.offset)) = copy;
    }
}

/** Values of the flat buffers in order, four a thread at a time; what lies between spans is left alone. */
__global__ void __launch_bounds__(threads_k) apply_step(uform_update_t update, step_factors const* shared_factors) {
    __shared__ std::uint32_t first_span;
    step_factors const factors = *shared_factors;
    if (factors.refused)
        return;
    std::size_t const begin = std::size_t(blockIdx.x) * values_per_block_k;
    if (threadIdx.x == 0)
        first_span = find_span(update, begin);
    __syncthreads();
    std::uint32_t index = first_span;
    for (unsigned step = 0; step != steps_k; ++step) {
        std::size_t const place = begin + (step * threads_k + threadIdx.x) * vector_k;
        while (index < update.spans_count && update.spans[index].offset + update.spans[index].count <= place)
            ++index;
        if (index >= update.spans_count || place >= update.count)
            return;
        span_share const span(update.spans[index], factors);
        if (span.offset % vector_k == 0 && span.offset <= place && place + vector_k <= span.end) {
            apply_four(update, factors, span, place);
            continue;
        }
        std::uint32_t other = index;
        for (std::size_t one = place; one != place + vector_k && one < update.count; ++one) {
            while (other < update.spans_count && update.spans[other].offset + update.spans[other].count <= one)
                ++other;
            if (other < update.spans_count && update.spans[other].offset <= one)
                apply_one(update, factors, span_share(update.spans[other], factors), one);
        }
    }
}

} // namespace

std::size_t update_workspace_bytes(std::uint64_t count) {
    return part_bytes<step_factors>(1) + part_bytes<double>(blocks_for(count, values_per_sum_k));
}

uform_status_t update(uform_stream_t* opaque, uform_update_t const* update) {
    return operate("update", opaque, [&](stream const& stream) {
        check_bytes("workspace_bytes", update->workspace_bytes, update_workspace_bytes(update->count));
        update_workspace const work(update->workspace, update->count);
        launch(stream, sum_squares, work.sums_count, threads_k, 0, update->gradient, std::size_t(update->count),
               work.sums);
        launch(stream, decide, 1, decide_threads_k, 0, *update, work);
        launch(stream, apply_step, blocks_for(update->count, values_per_block_k), threads_k, 0, *update, work.factors);
    });
}

} // namespace uform::vram

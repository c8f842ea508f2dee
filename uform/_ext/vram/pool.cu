#include <algorithm>
#include <type_traits>

#include "vram/elementwise.cuh"
#include "vram/launch.cuh"
#include "vram/lengths.cuh"
#include "vram/moves.cuh"
#include "vram/operations.h"

namespace uform::vram {

namespace {

constexpr unsigned threads_k = 256;
constexpr unsigned warps_k = threads_k / warp_k;

constexpr std::uint32_t no_segment_k = 0xFFFFFFFFu;

/** Where the segments of each bag lie: its first, and the complement of its last, so that both are least values. */
struct bag_segments {
    std::uint32_t* first;
    std::uint32_t* last_complement;

    bag_segments(void* workspace, std::uint32_t bags) noexcept
        : first(static_cast<std::uint32_t*>(workspace)), last_complement(first + bags) {}
};

std::size_t segments_bytes(std::size_t bags) noexcept { return 2 * bags * sizeof(std::uint32_t); }

/** Not by a copy: those end what kernels do abreast. */
__global__ void __launch_bounds__(threads_k) forget_segments(std::uint32_t bags, bag_segments found) {
    follow_earlier_kernels();
    for (std::uint32_t i = blockIdx.x * threads_k + threadIdx.x; i < 2 * bags; i += gridDim.x * threads_k)
        found.first[i] = no_segment_k;
}

__global__ void __launch_bounds__(threads_k) find_segments(uform_columns_t columns, bag_segments found) {
    follow_earlier_kernels();
    std::uint32_t const segments = columns.counts[1];
    for (std::uint32_t s = blockIdx.x * threads_k + threadIdx.x; s < segments; s += gridDim.x * threads_k) {
        std::uint32_t const bag = columns.segments[s].bag;
        atomicMin(found.first + bag, s); // integers: no order
        atomicMin(found.last_complement + bag, ~s);
    }
}

/** Threads of a multiprocessor that pool: more would leave each too few registers to have loads in flight. */
constexpr unsigned pool_threads_k = 1024;
constexpr unsigned at_once_k = 8; // vectors that a thread loads at a time

/** How the threads of a block share out a bag: `wide` of them have a row's vectors, `groups` of those every so many
 * rows. */
struct pool_shape {
    unsigned wide, groups;

    pool_shape(std::uint32_t hidden, unsigned strides, unsigned threads) noexcept
        : wide(ceil_divide(hidden / lanes_k, strides)), groups(threads / wide) {}
};

/**
 *  A block a bag. Its segments are taken in their order, the groups' sums are added up in theirs.
 *  @param strides_ak Vectors of a row that one thread has.
 */
template <unsigned strides_ak, unsigned threads_ak>
__global__ void __launch_bounds__(threads_ak, pool_threads_k / threads_ak)
    pool_bags(uform_pool_t pool, bag_segments found, pool_shape shape) {
    follow_earlier_kernels();
    extern __shared__ __align__(16) float group_sums[]; // [groups - 1, hidden]
    __shared__ double scratch[threads_ak / warp_k];
    uform_columns_t const& columns = pool.columns;
    std::uint32_t const hidden = pool.hidden, bag = blockIdx.x;
    unsigned const x = threadIdx.x % shape.wide, group = threadIdx.x / shape.wide;
    float* const pooled = pool.pooled + std::size_t(bag) * hidden;
    // Calls body(stride, first) for each of this thread's vectors.
    auto const for_vectors = [&](auto&& body) {
#pragma unroll
        for (unsigned stride = 0; stride != strides_ak; ++stride) {
            std::uint32_t const first = (x + stride * shape.wide) * lanes_k;
            if (first < hidden)
                body(stride, first);
        }
    };

    if (bag >= min(columns.counts[2], columns.bags_capacity)) {
        if (group == 0)
            for_vectors([&](unsigned, std::uint32_t first) { store8(pooled + first, floatx8{}); });
        if (threadIdx.x == 0)
            pool.lengths[bag] = 0, pool.bag_columns[bag] = 0;
        return;
    }

    floatx8 sums[strides_ak] = {};
    std::uint32_t pooled_columns = 0;
    std::uint32_t const begin = found.first[bag], end = begin == no_segment_k ? begin : ~found.last_complement[bag] + 1;
    for (std::uint32_t s = begin; s != end; ++s) {
        uform_segment_t const& segment = columns.segments[s];
        if (segment.bag != bag)
            continue;
        std::uint32_t const count = segment.pooled;
        __nv_bfloat16 const* const rows =
            static_cast<__nv_bfloat16 const*>(pool.hidden_states) + std::size_t(segment.first) * hidden;
        pooled_columns += count;
        if (group >= shape.groups)
            continue;
        for_vectors([&](unsigned stride, std::uint32_t first) {
            for (std::uint32_t column = group; column < count; column += at_once_k * shape.groups) {
                bf16x8 loaded[at_once_k]; // past the end the last one again: a branch would end what runs abreast
#pragma unroll
                for (unsigned i = 0; i != at_once_k; ++i)
                    loaded[i] = load8(rows + std::size_t(min(column + i * shape.groups, count - 1)) * hidden + first);
#pragma unroll
                for (unsigned i = 0; i != at_once_k; ++i) {
                    floatx8 const added = widen(loaded[i]);
#pragma unroll
                    for (unsigned j = 0; j != lanes_k; ++j)
                        sums[stride][j] += column + i * shape.groups < count ? added[j] : 0.f;
                }
            }
        });
    }

    if (group != 0 && group < shape.groups)
        for_vectors([&](unsigned stride, std::uint32_t first) {
            store8(group_sums + std::size_t(group - 1) * hidden + first, sums[stride]);
        });
    __syncthreads();
    double square = 0;
    if (group == 0)
        for_vectors([&](unsigned stride, std::uint32_t first) {
            for (unsigned other = 1; other != shape.groups; ++other) {
                floatx8 const added = load8(group_sums + std::size_t(other - 1) * hidden + first);
#pragma unroll
                for (unsigned i = 0; i != lanes_k; ++i)
                    sums[stride][i] += added[i];
            }
#pragma unroll
            for (unsigned i = 0; i != lanes_k; ++i)
                square += double(sums[stride][i]) * double(sums[stride][i]);
        });
    square = sum_block(square, scratch);
    if (group != 0)
        return;
    double const count = pooled_columns ? pooled_columns : 1, length = sqrt(square) / count;
    float const factor = static_cast<float>(1 / (count * divisor_of(length)));
    if (threadIdx.x == 0)
        pool.lengths[bag] = static_cast<float>(length), pool.bag_columns[bag] = pooled_columns;
    for_vectors([&](unsigned stride, std::uint32_t first) {
#pragma unroll
        for (unsigned i = 0; i != lanes_k; ++i)
            sums[stride][i] *= factor;
        store8(pooled + first, sums[stride]);
    });
}

__device__ __forceinline__ void store4(float* to, float4 const& values) { *reinterpret_cast<float4*>(to) = values; }

__device__ __forceinline__ void store4(__nv_bfloat16* to, float4 const& values) {
    __nv_bfloat162 const pairs[] = {__floats2bfloat162_rn(values.x, values.y),
                                    __floats2bfloat162_rn(values.z, values.w)};
    *reinterpret_cast<uint2*>(to) = *reinterpret_cast<uint2 const*>(pairs);
}

/** A bag's gradient as it is written to its columns; wider where it is added to what is there before it is rounded. */
template <bool accumulate_ak> using bag_gradient_t = std::conditional_t<accumulate_ak, float, __nv_bfloat16>;

/** A warp a bag: the gradient of each of its columns, through the unit length, then through the mean. */
template <bool accumulate_ak>
__global__ void __launch_bounds__(threads_k)
    differentiate_bags(uform_pool_t pool, bag_gradient_t<accumulate_ak>* __restrict__ gradients) {
    follow_earlier_kernels();
    std::uint32_t const bag = blockIdx.x * warps_k + threadIdx.x / warp_k, lane = threadIdx.x % warp_k;
    std::uint32_t const hidden = pool.hidden;
    if (bag >= min(pool.columns.counts[2], pool.columns.bags_capacity))
        return;
    std::size_t const at = std::size_t(bag) * hidden;
    float const length = pool.lengths[bag];
    float along = 0;
    for (std::uint32_t first = lane * 4; first < hidden; first += warp_k * 4) {
        float4 const unit = *reinterpret_cast<float4 const*>(pool.pooled + at + first);
        float4 const slope = *reinterpret_cast<float4 const*>(pool.pooled_gradient + at + first);
        along += unit.x * slope.x + unit.y * slope.y + unit.z * slope.z + unit.w * slope.w;
    }
    along = sum_warp(along);
    // A mean shorter than the bound is divided by a constant: then nothing is taken away along it.
    if (length < smallest_length_k<float>)
        along = 0;
    std::uint32_t const columns = max(pool.bag_columns[bag], 1u);
    float const factor = static_cast<float>(1 / (divisor_of(double(length)) * columns));
    for (std::uint32_t first = lane * 4; first < hidden; first += warp_k * 4) {
        float4 const unit = *reinterpret_cast<float4 const*>(pool.pooled + at + first);
        float4 const slope = *reinterpret_cast<float4 const*>(pool.pooled_gradient + at + first);
        store4(gradients + at + first,
               make_float4(factor * (slope.x - along * unit.x), factor * (slope.y - along * unit.y),
                           factor * (slope.z - along * unit.z), factor * (slope.w - along * unit.w)));
    }
}

/** The bag whose gradient a column's is. */
__device__ __forceinline__ std::uint32_t bag_of(uform_columns_t const& columns, std::uint32_t column,
                                                std::uint32_t otherwise) {
    if (column >= columns.counts[0])
        return otherwise;
    uform_segment_t const& segment = columns.segments[columns.segment_of[column]];
    return column - segment.first < segment.pooled ? segment.bag : otherwise;
}

/** Gradients of bags to their columns, or added to what is there. */
template <bool accumulate_ak>
__global__ void __launch_bounds__(moving_threads_k, accumulate_ak ? 3 : 4)
    spread_to_columns(uform_pool_t pool, bag_gradient_t<accumulate_ak> const* __restrict__ gradients) {
    follow_earlier_kernels();
    std::uint32_t const hidden = pool.hidden;
    auto* const to = static_cast<__nv_bfloat16*>(pool.gradient);
    constexpr std::uint32_t otherwise = accumulate_ak ? left_alone_k : becomes_zero_k;
    move_rows(
        pool.columns.active, hidden, [&](std::uint32_t column) { return bag_of(pool.columns, column, otherwise); },
        [&](std::uint32_t column, std::uint32_t bag, std::uint32_t first) {
            auto values = load8(gradients + std::size_t(bag) * hidden + first);
            if constexpr (accumulate_ak) {
                floatx8 const before = widen(load8(to + std::size_t(column) * hidden + first));
#pragma unroll
                for (unsigned i = 0; i != lanes_k; ++i)
                    values[i] += before[i];
                return narrow(values);
            } else {
                return values;
            }
        },
        [&](std::uint32_t column, std::uint32_t, std::uint32_t first, bf16x8 const& vector) {
            store8(to + std::size_t(column) * hidden + first, vector);
        });
}

template <bool accumulate_ak> void launch_spread(stream const& stream, uform_pool_t const& pool) {
    auto* const gradients = static_cast<bag_gradient_t<accumulate_ak>*>(pool.workspace);
    launch_early(stream, differentiate_bags<accumulate_ak>, blocks_for(pool.columns.bags_capacity, warps_k), threads_k,
                 0, pool, gradients);
    launch_moves(stream, spread_to_columns<accumulate_ak>, pool.columns.active, pool.hidden, pool, gradients);
}

template <unsigned strides_ak, unsigned threads_ak>
void launch_pool_bags(stream const& stream, uform_pool_t const& pool, bag_segments const& found) {
    pool_shape const shape(pool.hidden, strides_ak, threads_ak);
    std::size_t const shared_bytes = std::size_t(shape.groups - 1) * pool.hidden * sizeof(float);
    launch_early(stream, pool_bags<strides_ak, threads_ak>, pool.columns.bags_capacity, threads_ak, shared_bytes, pool,
                 found, shape);
}

/** The fewer bags, the more threads share one. */
void launch_pool_bags(stream const& stream, uform_pool_t const& pool, bag_segments const& found) {
    std::uint32_t const bags = pool.columns.bags_capacity, vectors = pool.hidden / lanes_k;
    std::uint32_t const processors = static_cast<std::uint32_t>(stream.multiprocessors);
    if (vectors > 512)
        launch_pool_bags<4, 512>(stream, pool, found);
    else if (vectors <= 256 && bags >= 4 * processors)
        launch_pool_bags<1, 256>(stream, pool, found);
    else if (bags > processors)
        launch_pool_bags<1, 512>(stream, pool, found);
    else
        launch_pool_bags<1, 1024>(stream, pool, found);
}

} // namespace

std::size_t pool_workspace_bytes(std::uint32_t hidden, std::uint32_t bags) {
    return std::max(segments_bytes(bags), std::size_t(bags) * hidden * sizeof(float));
}

uform_status_t pool_forward(uform_stream_t* opaque, uform_pool_t const* pool) {
    return operate("pool_forward", opaque, [&](stream const& stream) {
        uform_columns_t const& columns = pool->columns;
        check_bytes("workspace_bytes", pool->workspace_bytes,
                    pool_workspace_bytes(pool->hidden, columns.bags_capacity));
        bag_segments const found(pool->workspace, columns.bags_capacity);
        unsigned const most = static_cast<unsigned>(stream.multiprocessors) * 8;
        launch_early(stream, forget_segments, std::min(most, blocks_for(2 * columns.bags_capacity, threads_k)),
                     threads_k, 0, columns.bags_capacity, found);
        launch_early(stream, find_segments, std::min(most, blocks_for(columns.segments_capacity, threads_k)), threads_k,
                     0, columns, found);
        launch_pool_bags(stream, *pool, found);
    });
}

uform_status_t pool_backward(uform_stream_t* opaque, uform_pool_t const* pool) {
    return operate("pool_backward", opaque, [&](stream const& stream) {
        uform_columns_t const& columns = pool->columns;
        check_bytes("workspace_bytes", pool->workspace_bytes,
                    pool_workspace_bytes(pool->hidden, columns.bags_capacity));
        if (pool->accumulate)
            launch_spread<true>(stream, *pool);
        else
            launch_spread<false>(stream, *pool);
    });
}

} // namespace uform::vram

#include "vram/rotary.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "vram/elementwise.cuh"
#include "vram/launch.cuh"
#include "vram/rotary.cuh"

namespace uform::vram {

namespace {

constexpr unsigned pairs_k = rotary_pairs_k;
constexpr unsigned head_width_k = 2 * pairs_k;
constexpr unsigned warps_k = 8;
constexpr double base_k = 10000;

// How many pairs each axis takes, by the number of axes.
constexpr unsigned axis_pairs_k[UFORM_AXES][UFORM_AXES] = {{32, 0, 0}, {16, 16, 0}, {8, 12, 12}};

rotary_scheme make_scheme() {
    rotary_scheme scheme;
    for (unsigned axes = 0; axes != UFORM_AXES; ++axes) {
        unsigned pair = 0;
        for (unsigned axis = 0; axis != UFORM_AXES; ++axis)
            for (unsigned j = 0; j != axis_pairs_k[axes][axis]; ++j, ++pair) {
                double const angle = std::pow(base_k, -static_cast<double>(j) / axis_pairs_k[axes][axis]);
                double const step = angle / std::numbers::pi;
                float const most = static_cast<float>(step);
                scheme.steps[axes][pair] = {most, static_cast<float>(step - static_cast<double>(most))};
                scheme.axes[axes][pair] = static_cast<std::uint8_t>(axis);
            }
    }
    return scheme;
}

/** Copies the scheme into shared memory, by the whole block: the constant bank would answer one lane at a time. */
__device__ __forceinline__ rotary_scheme const& share(rotary_scheme const& scheme) {
    static_assert(sizeof(rotary_scheme) % sizeof(std::uint32_t) == 0);
    __shared__ rotary_scheme shared;
    for (unsigned i = threadIdx.x; i < sizeof(rotary_scheme) / sizeof(std::uint32_t); i += warps_k * warp_k) {
        std::uint32_t word;
        asm volatile("ld.u32 %0, [%1];" : "=r"(word) : "l"(reinterpret_cast<std::uint32_t const*>(&scheme) + i));
        reinterpret_cast<std::uint32_t*>(&shared)[i] = word;
    }
    __syncthreads();
    return shared;
}

/** A pair's steps and axes, by the number of axes: a lane looks them up once. */
struct lane_steps {
    pair_step steps[UFORM_AXES];
    unsigned axes[UFORM_AXES];

    __device__ __forceinline__ lane_steps(rotary_scheme const& scheme, unsigned pair) {
#pragma unroll
        for (unsigned count = 0; count != UFORM_AXES; ++count) {
            steps[count] = scheme.steps[count][pair];
            axes[count] = scheme.axes[count][pair];
        }
    }
    /** The pair's turn at a column. */
    __device__ __forceinline__ turn turn_of(uform_columns_t const& columns, std::uint32_t column) const {
        unsigned const count = columns.segments[columns.segment_of[column]].axes;
        pair_step const step = count == 1 ? steps[0] : count == 2 ? steps[1] : steps[2];
        unsigned const axis = count == 1 ? axes[0] : count == 2 ? axes[1] : axes[2];
        return turn_at(columns.positions[std::size_t(column) * UFORM_AXES + axis], step);
    }
};

/**
 *  A warp a column: its lanes compute a pair's turn each. Four lanes then turn a head, eight pairs each, so that eight
 *  heads turn at once.
 */
template <rotary_direction direction_ak>
__global__ void __launch_bounds__(warps_k* warp_k)
    rotate(uform_columns_t columns, std::uint32_t heads, __nv_bfloat16* __restrict__ qkv,
           __grid_constant__ rotary_scheme const scheme) {
    unsigned const lane = threadIdx.x % warp_k, part = lane % 4;
    lane_steps const steps(share(scheme), lane);
    std::uint32_t const count = min(columns.counts[0], columns.active);
    for (std::uint32_t column = blockIdx.x * warps_k + threadIdx.x / warp_k; column < count;
         column += gridDim.x * warps_k) {
        turn own = steps.turn_of(columns, column);
        if constexpr (direction_ak == rotary_direction::backward)
            own.sine = -own.sine;
        floatx8 cosines, sines;
#pragma unroll
        for (unsigned i = 0; i != lanes_k; ++i) {
            cosines[i] = __shfl_sync(whole_warp_k, own.cosine, part * lanes_k + i);
            sines[i] = __shfl_sync(whole_warp_k, own.sine, part * lanes_k + i);
        }
        __nv_bfloat16* const row = qkv + std::size_t(column) * 3 * heads * head_width_k + part * lanes_k;
#pragma unroll 4
        for (unsigned head = lane / 4; head < 2 * heads; head += warp_k / 4) {
            __nv_bfloat16* const place = row + head * head_width_k;
            floatx8 const first = widen(load8(place)), second = widen(load8(place + pairs_k));
            floatx8 turned_first, turned_second;
#pragma unroll
            for (unsigned i = 0; i != lanes_k; ++i) {
                turned_first[i] = first[i] * cosines[i] - second[i] * sines[i];
                turned_second[i] = second[i] * cosines[i] + first[i] * sines[i];
            }
            store8(place, narrow(turned_first));
            store8(place + pairs_k, narrow(turned_second));
        }
    }
}

/** A warp a column, a lane a pair. */
__global__ void __launch_bounds__(warps_k* warp_k)
    write_turns(uform_columns_t columns, float factor, __half2* __restrict__ turns,
                __grid_constant__ rotary_scheme const scheme) {
    unsigned const pair = threadIdx.x % warp_k;
    lane_steps const steps(share(scheme), pair);
    std::uint32_t const count = min(columns.counts[0], columns.active), stride = gridDim.x * warps_k;
    constexpr unsigned at_once = 4; // columns whose look-ups are on their way
    for (std::uint32_t first = blockIdx.x * warps_k + threadIdx.x / warp_k; first < count; first += at_once * stride)
#pragma unroll
        for (unsigned i = 0; i != at_once; ++i) {
            std::uint32_t const column = first + i * stride;
            turn const own = steps.turn_of(columns, min(column, count - 1));
            if (column < count)
                turns[std::size_t(column) * pairs_k + pair] = __floats2half2_rn(own.cosine * factor, own.sine * factor);
        }
}

/** A few columns a warp, so that a lane looks its steps up once for them. */
unsigned blocks_of(stream const& stream, uform_columns_t const& columns) {
    unsigned const most = static_cast<unsigned>(stream.multiprocessors) * 8;
    return std::min(most, blocks_for(columns.active, warps_k));
}

} // namespace

rotary_scheme const& rotary_scheme::get() {
    static rotary_scheme const scheme = make_scheme();
    return scheme;
}

void launch_rotary_turns(stream const& stream, uform_columns_t const& columns, float factor, __half2* turns) {
    launch(stream, write_turns, blocks_of(stream, columns), warps_k * warp_k, 0, columns, factor, turns,
           rotary_scheme::get());
}

void launch_rotary(stream const& stream, uform_columns_t const& columns, std::uint32_t heads, __nv_bfloat16* qkv,
                   rotary_direction direction) {
    auto const kernel =
        direction == rotary_direction::forward ? rotate<rotary_direction::forward> : rotate<rotary_direction::backward>;
    launch(stream, kernel, blocks_of(stream, columns), warps_k * warp_k, 0, columns, heads, qkv, rotary_scheme::get());
}

} // namespace uform::vram

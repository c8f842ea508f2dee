#include "vram/rotary.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "vram/elementwise.cuh"
#include "vram/launch.cuh"

namespace uform::vram {

namespace {

constexpr unsigned head_width_k = 64;
constexpr unsigned pairs_k = head_width_k / 2;
constexpr unsigned warps_k = 8;
constexpr double base_k = 10000;

// How many pairs each axis takes, by the number of axes.
constexpr unsigned axis_pairs_k[UFORM_AXES][UFORM_AXES] = {{32, 0, 0}, {16, 16, 0}, {8, 12, 12}};

/** How far a pair turns from one position to the next, in half turns: the nearest float32, and what it leaves out. */
struct pair_step {
    float most, rest;
};

/** Every pair's step and axis, by the number of axes. */
struct rotary_scheme {
    pair_step steps[UFORM_AXES][pairs_k];
    std::uint8_t axes[UFORM_AXES][pairs_k];
};

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

struct turn {
    float cosine, sine;
};

/** The turn at a position. The product with the step's larger part is exact, so that far positions lose no digits. */
__device__ __forceinline__ turn turn_at(float position, pair_step step) {
    float const product = position * step.most;
    float const rest = fmaf(position, step.most, -product) + position * step.rest;
    // whole turns are two half turns
    float const fraction = (product - 2.f * rintf(product * 0.5f)) + rest;
    turn result;
    sincospif(fraction, &result.sine, &result.cosine);
    return result;
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

__device__ __forceinline__ void store_turn(__half2* to, turn const& of) { *to = __floats2half2_rn(of.cosine, of.sine); }
__device__ __forceinline__ void store_turn(float2* to, turn const& of) { *to = make_float2(of.cosine, of.sine); }

/** A warp a column, a lane a pair. */
template <typename stored_at>
__global__ void __launch_bounds__(warps_k* warp_k)
    write_turns(uform_columns_t columns, float factor, stored_at* __restrict__ turns,
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
                store_turn(turns + std::size_t(column) * pairs_k + pair, {own.cosine * factor, own.sine * factor});
        }
}

rotary_scheme const& scheme_of_all() {
    static rotary_scheme const scheme = make_scheme();
    return scheme;
}

/** A few columns a warp, so that a lane looks its steps up once for them. */
unsigned blocks_of(stream const& stream, uform_columns_t const& columns) {
    unsigned const most = static_cast<unsigned>(stream.multiprocessors) * 8;
    return std::min(most, blocks_for(columns.active, warps_k));
}

} // namespace

void launch_rotary_turns(stream const& stream, uform_columns_t const& columns, float factor, __half2* turns) {
    launch(stream, write_turns<__half2>, blocks_of(stream, columns), warps_k * warp_k, 0, columns, factor, turns,
           scheme_of_all());
}

void launch_rotary_turns(stream const& stream, uform_columns_t const& columns, float factor, float2* turns) {
    launch(stream, write_turns<float2>, blocks_of(stream, columns), warps_k * warp_k, 0, columns, factor, turns,
           scheme_of_all());
}

void launch_rotary(stream const& stream, uform_columns_t const& columns, std::uint32_t heads, __nv_bfloat16* qkv,
                   rotary_direction direction) {
    auto const kernel =
        direction == rotary_direction::forward ? rotate<rotary_direction::forward> : rotate<rotary_direction::backward>;
    launch(stream, kernel, blocks_of(stream, columns), warps_k * warp_k, 0, columns, heads, qkv, scheme_of_all());
}

} // namespace uform::vram

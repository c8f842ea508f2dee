#include "vram/elementwise.cuh"
#include "vram/launch.cuh"
#include "vram/rotary.cuh"
#include "vram/rotary.h"
#include "vram/succession.cuh"

namespace uform::vram {

namespace {

constexpr unsigned warps_k = 8;
constexpr unsigned columns_k = 8; // of a warp: few, for their turns take longer than to read of them

/** A warp a few columns: a lane reads what is known of one, then the warp turns each, a lane a pair. */
__global__ void __launch_bounds__(warps_k* warp_k)
    tabulate(uform_columns_t columns, float2* __restrict__ turns, __grid_constant__ rotary_scheme const scheme) {
    static_assert(rotary_pairs_k == warp_k && UFORM_AXES == 3);
    unsigned const lane = threadIdx.x % warp_k;
    pair_step steps[UFORM_AXES];
    unsigned axis_of[UFORM_AXES];
#pragma unroll
    for (unsigned axes = 0; axes != UFORM_AXES; ++axes) {
        steps[axes] = scheme.steps[axes][lane];
        axis_of[axes] = scheme.axes[axes][lane];
    }
    follow_earlier_kernels();
    std::uint32_t const count = min(columns.counts[0], columns.active);
    std::uint32_t const first = (blockIdx.x * warps_k + threadIdx.x / warp_k) * columns_k;
    if (first >= count)
        return;
    std::uint32_t const column = min(first + lane % columns_k, count - 1);
    unsigned const axes_of_column = columns.segments[columns.segment_of[column]].axes;
    std::uint16_t const* const at = columns.positions + std::size_t(column) * UFORM_AXES;
    float const places[UFORM_AXES] = {static_cast<float>(at[0]), static_cast<float>(at[1]), static_cast<float>(at[2])};
    for (unsigned of = 0; of != min(count - first, columns_k); ++of) {
        unsigned const axes = __shfl_sync(whole_warp_k, axes_of_column, of);
        float const x = __shfl_sync(whole_warp_k, places[0], of), y = __shfl_sync(whole_warp_k, places[1], of),
                    z = __shfl_sync(whole_warp_k, places[2], of);
        pair_step const step = axes == 1 ? steps[0] : axes == 2 ? steps[1] : steps[2];
        unsigned const axis = axes == 1 ? axis_of[0] : axes == 2 ? axis_of[1] : axis_of[2];
        turn const own = rough_turn_at(axis == 0 ? x : axis == 1 ? y : z, step);
        turns[std::size_t(first + of) * rotary_pairs_k + lane] = make_float2(own.cosine, own.sine);
    }
}

} // namespace

void launch_turns(stream const& stream, uform_columns_t const& columns, float2* turns) {
    launch_early(stream, tabulate, blocks_for(columns.active, warps_k * columns_k), warps_k * warp_k, 0, columns, turns,
                 rotary_scheme::get());
}

} // namespace uform::vram

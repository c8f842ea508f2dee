#include "vram/norm.h"

#include "vram/elementwise.cuh"
#include "vram/launch.cuh"
#include "vram/operations.h"
#include "vram/succession.cuh"

namespace uform::vram {

namespace {

constexpr unsigned threads_k = 256;
constexpr float epsilon_k = 1e-6f;

/** Rows whose shares of a gain's gradient one block sums; a constant, so that the order of sums is one. */
constexpr unsigned rows_per_sum_k = 64;

/** A team of threads works on a row: each holds up to so many vectors of it, a team's width apart. */
template <unsigned team_ak, unsigned vectors_ak> struct row_share {
    static constexpr unsigned team = team_ak;
    static constexpr unsigned vectors = vectors_ak;
    static constexpr unsigned teams = threads_k / team_ak;

    /** Calls `body(v, first)` for each of this thread's vectors, `first` being its first place in the row. */
    template <typename body_at>
    static __device__ __forceinline__ void for_vectors(std::uint32_t hidden, body_at&& body) {
#pragma unroll
        for (unsigned v = 0; v != vectors_ak; ++v) {
            unsigned const first = (threadIdx.x % team_ak + v * team_ak) * lanes_k;
            if (first < hidden)
                body(v, first);
        }
    }

    /** The sum over the team. @param scratch [teams of warps] in shared memory, free when the next barrier is passed.
     */
    static __device__ __forceinline__ float sum(float value, float* scratch) {
        if constexpr (team_ak == warp_k)
            return sum_warp(value);
        else
            return sum_block(value, scratch);
    }
};

/** Calls `body` with the share for rows of a width. */
template <typename body_at> void with_share(std::uint32_t hidden, body_at&& body) {
    std::uint32_t const vectors = ceil_divide(hidden, warp_k * lanes_k);
    if (hidden % lanes_k || hidden > 16384)
        fail(uform_status_internal_k, "hidden: ", hidden, " is no multiple of ", lanes_k, " up to 16384");
    if (vectors <= 1)
        body(row_share<warp_k, 1>{});
    else if (vectors <= 2)
        body(row_share<warp_k, 2>{});
    else if (vectors <= 3)
        body(row_share<warp_k, 3>{});
    else if (vectors <= 4)
        body(row_share<warp_k, 4>{});
    else if (vectors <= 6)
        body(row_share<warp_k, 6>{});
    else if (vectors <= 8)
        body(row_share<warp_k, 8>{});
    else if (vectors <= 16)
        body(row_share<threads_k, 2>{});
    else if (vectors <= 32)
        body(row_share<threads_k, 4>{});
    else
        body(row_share<threads_k, 8>{});
}

template <typename share_at> __device__ __forceinline__ void zero_row(std::uint32_t hidden, __nv_bfloat16* row) {
    share_at::for_vectors(hidden, [&](unsigned, unsigned first) { store8(row + first, zero8()); });
}

__device__ __forceinline__ float inverse_of(float square, std::uint32_t hidden) {
    return 1.f / sqrtf(square / static_cast<float>(hidden) + epsilon_k);
}

/** A row a team. @tparam normalizes_ak Else the inverses are all that is wanted. */
template <typename share_at, bool normalizes_ak>
__global__ void __launch_bounds__(threads_k)
    normalize(norm_rows rows, __nv_bfloat16 const* __restrict__ x, float const* __restrict__ gain,
              __nv_bfloat16* __restrict__ y, float* __restrict__ inverses) {
    follow_earlier_kernels();
    __shared__ float scratch[threads_k / warp_k];
    std::uint32_t const row = blockIdx.x * share_at::teams + threadIdx.x / share_at::team;
    if (row >= rows.active)
        return;
    std::size_t const at = std::size_t(row) * rows.hidden;
    if (row >= *rows.count) {
        if constexpr (normalizes_ak)
            zero_row<share_at>(rows.hidden, y + at);
        return;
    }
    bf16x8 held[share_at::vectors];
    float square = 0;
    share_at::for_vectors(rows.hidden, [&](unsigned v, unsigned first) { held[v] = load8(x + at + first); });
    share_at::for_vectors(rows.hidden, [&](unsigned v, unsigned) {
        floatx8 const wide = widen(held[v]);
#pragma unroll
        for (unsigned i = 0; i != lanes_k; ++i)
            square += wide[i] * wide[i];
    });
    float const inverse = inverse_of(share_at::sum(square, scratch), rows.hidden);
    if (threadIdx.x % share_at::team == 0)
        inverses[row] = inverse;
    if constexpr (!normalizes_ak)
        return;
    share_at::for_vectors(rows.hidden, [&](unsigned v, unsigned first) {
        floatx8 wide = widen(held[v]);
        floatx8 const gains = load8(gain + first);
#pragma unroll
        for (unsigned i = 0; i != lanes_k; ++i)
            wide[i] = wide[i] * inverse * gains[i];
        store8(y + at + first, narrow(wide));
    });
}

/** A row a thread. */
__global__ void __launch_bounds__(threads_k)
    invert_squares(norm_rows rows, float const* __restrict__ squares, float* __restrict__ inverses) {
    follow_earlier_kernels();
    std::uint32_t const row = blockIdx.x * threads_k + threadIdx.x, parts = rows.hidden / norm_part_k;
    if (row >= min(*rows.count, rows.active))
        return;
    float const* const from = squares + std::size_t(row) * parts;
    float square = 0;
#pragma unroll 8
    for (std::uint32_t part = 0; part < parts; ++part)
        square += from[part];
    inverses[row] = inverse_of(square, rows.hidden);
}

/**
 *  The gradient of `rows_per_sum_k` rows a block, and the sum of their shares of the gain's gradient. A team reads a
 *  row's gradients whole before it writes any of it, so that they may lie in one place.
 *  @param sums [blocks, hidden]
 */
template <typename share_at>
__global__ void __launch_bounds__(threads_k)
    differentiate(norm_rows rows, norm_backward_arguments arguments, float* __restrict__ sums) {
    follow_earlier_kernels();
    extern __shared__ __align__(16) float block_sums[]; // [hidden]
    __shared__ float scratch[2][threads_k / warp_k];
    std::uint32_t const hidden = rows.hidden, count = min(*rows.count, rows.active);
    std::uint32_t const begin = blockIdx.x * rows_per_sum_k, end = min(begin + rows_per_sum_k, rows.active);
    unsigned const team = threadIdx.x / share_at::team;
    floatx8 gains[share_at::vectors], shares[share_at::vectors] = {};
    share_at::for_vectors(hidden, [&](unsigned v, unsigned first) { gains[v] = load8(arguments.gain + first); });

    unsigned turn = 0;
    for (std::uint32_t row = begin + team; row < end; row += share_at::teams, turn ^= 1) {
        std::size_t const at = std::size_t(row) * hidden;
        if (row >= count) {
            zero_row<share_at>(hidden, arguments.input_gradient + at);
            if (arguments.output)
                zero_row<share_at>(hidden, arguments.output + at);
            continue;
        }
        float const inverse = arguments.inverse_rms[row];
        bf16x8 x[share_at::vectors], slopes[share_at::vectors], around[share_at::vectors];
        share_at::for_vectors(hidden, [&](unsigned v, unsigned first) {
            x[v] = load8(arguments.x + at + first);
            slopes[v] = load8(arguments.output_gradient + at + first);
            around[v] = arguments.residual_gradient ? load8(arguments.residual_gradient + at + first) : zero8();
        });
        float along = 0;
        share_at::for_vectors(hidden, [&](unsigned v, unsigned) {
            floatx8 const values = widen(x[v]), slope = widen(slopes[v]);
#pragma unroll
            for (unsigned i = 0; i != lanes_k; ++i) {
                float const product = slope[i] * values[i];
                along += product * gains[v][i];
                shares[v][i] += product * inverse;
            }
        });
        along = share_at::sum(along, scratch[turn]) * inverse * inverse * inverse / static_cast<float>(hidden);
        share_at::for_vectors(hidden, [&](unsigned v, unsigned first) {
            floatx8 const values = widen(x[v]), slope = widen(slopes[v]);
            floatx8 gradient = widen(around[v]), output;
#pragma unroll
            for (unsigned i = 0; i != lanes_k; ++i) {
                float const scaled = inverse * gains[v][i];
                gradient[i] += scaled * slope[i] - along * values[i];
                output[i] = scaled * values[i];
            }
            store8(arguments.input_gradient + at + first, narrow(gradient));
            if (arguments.output)
                store8(arguments.output + at + first, narrow(output));
        });
    }

    if (begin >= count)
        return; // the same for the whole block
    for (unsigned turn_of = 0; turn_of != share_at::teams; ++turn_of) {
        if (team == turn_of)
            share_at::for_vectors(hidden, [&](unsigned v, unsigned first) {
                floatx8 sum = shares[v];
                if (turn_of != 0) {
                    floatx8 const before = load8(block_sums + first);
#pragma unroll
                    for (unsigned i = 0; i != lanes_k; ++i)
                        sum[i] += before[i];
                }
                store8(block_sums + first, sum);
            });
        __syncthreads();
    }
    for (unsigned i = threadIdx.x * 4; i < hidden; i += threads_k * 4)
        *reinterpret_cast<float4*>(sums + std::size_t(blockIdx.x) * hidden + i) =
            *reinterpret_cast<float4 const*>(block_sums + i);
}

constexpr unsigned groups_k = 32;

/** gain_gradient += the sum of all blocks' sums. A column of the block takes a value, its rows share out the blocks. */
__global__ void __launch_bounds__(warp_k* groups_k)
    add_sums(norm_rows rows, float const* __restrict__ sums, float* __restrict__ gain_gradient) {
    follow_earlier_kernels();
    __shared__ double group_sums[groups_k][warp_k];
    std::uint32_t const blocks = ceil_divide(min(*rows.count, rows.active), rows_per_sum_k);
    std::uint32_t const value = blockIdx.x * warp_k + threadIdx.x;
    double sum = 0;
    if (value < rows.hidden) {
#pragma unroll 8
        for (std::uint32_t block = threadIdx.y; block < blocks; block += groups_k)
            sum += static_cast<double>(sums[std::size_t(block) * rows.hidden + value]);
    }
    group_sums[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y != 0 || value >= rows.hidden)
        return;
    for (unsigned group = 1; group != groups_k; ++group)
        sum += group_sums[group][threadIdx.x];
    gain_gradient[value] += static_cast<float>(sum);
}

template <bool normalizes_ak>
void launch_normalize(stream const& stream, norm_rows const& rows, __nv_bfloat16 const* x, float const* gain,
                      __nv_bfloat16* y, float* inverses) {
    with_share(rows.hidden, [&](auto share) {
        using share_t = decltype(share);
        launch_early(stream, normalize<share_t, normalizes_ak>, blocks_for(rows.active, share_t::teams), threads_k, 0,
                     rows, x, gain, y, inverses);
    });
}

norm_rows rows_of(uform_norm_t const& norm) noexcept { return {norm.columns.active, norm.columns.counts, norm.hidden}; }

} // namespace

void launch_norm_forward(stream const& stream, norm_rows const& rows, __nv_bfloat16 const* x, float const* gain,
                         __nv_bfloat16* y, float* inverse_rms) {
    launch_normalize<true>(stream, rows, x, gain, y, inverse_rms);
}

void launch_norm_inverses(stream const& stream, norm_rows const& rows, __nv_bfloat16 const* x, float* inverse_rms) {
    launch_normalize<false>(stream, rows, x, nullptr, nullptr, inverse_rms);
}

void launch_norm_inverses(stream const& stream, norm_rows const& rows, float const* squares, float* inverse_rms) {
    if (rows.hidden % norm_part_k)
        fail(uform_status_internal_k, "hidden: ", rows.hidden, " is no multiple of ", norm_part_k);
    launch_early(stream, invert_squares, blocks_for(rows.active, threads_k), threads_k, 0, rows, squares, inverse_rms);
}

void launch_norm_backward(stream const& stream, norm_rows const& rows, norm_backward_arguments const& arguments) {
    float* const sums = static_cast<float*>(arguments.workspace);
    with_share(rows.hidden, [&](auto share) {
        launch_early(stream, differentiate<decltype(share)>, blocks_for(rows.active, rows_per_sum_k), threads_k,
                     rows.hidden * sizeof(float), rows, arguments, sums);
    });
    launch_early(stream, add_sums, rows.active ? blocks_for(rows.hidden, warp_k) : 0, dim3(warp_k, groups_k), 0, rows,
                 sums, arguments.gain_gradient);
}

std::size_t norm_workspace_bytes(std::uint32_t hidden, std::uint32_t columns) {
    return part_bytes<float>(std::size_t(blocks_for(columns, rows_per_sum_k)) * hidden);
}

uform_status_t norm_forward(uform_stream_t* opaque, uform_norm_t const* norm) {
    return operate("norm_forward", opaque, [&](stream const& stream) {
        launch_norm_forward(stream, rows_of(*norm), static_cast<__nv_bfloat16 const*>(norm->input),
                            static_cast<float const*>(norm->gain), static_cast<__nv_bfloat16*>(norm->output),
                            norm->inverse_rms);
    });
}

uform_status_t norm_backward(uform_stream_t* opaque, uform_norm_t const* norm) {
    return operate("norm_backward", opaque, [&](stream const& stream) {
        check_bytes("workspace_bytes", norm->workspace_bytes,
                    norm_workspace_bytes(norm->hidden, norm->columns.capacity));
        norm_backward_arguments arguments{};
        arguments.x = static_cast<__nv_bfloat16 const*>(norm->input);
        arguments.gain = static_cast<float const*>(norm->gain);
        arguments.inverse_rms = norm->inverse_rms;
        arguments.output_gradient = static_cast<__nv_bfloat16 const*>(norm->gradient);
        arguments.input_gradient = static_cast<__nv_bfloat16*>(norm->gradient);
        arguments.gain_gradient = norm->gain_gradient;
        arguments.workspace = norm->workspace;
        launch_norm_backward(stream, rows_of(*norm), arguments);
    });
}

} // namespace uform::vram

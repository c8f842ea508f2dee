#include "vram/norm.h"

#include <algorithm>

#include "vram/attention_mma.cuh"
#include "vram/elementwise.cuh"
#include "vram/launch.cuh"
#include "vram/operations.h"
#include "vram/succession.cuh"

namespace uform::vram {

namespace {

constexpr unsigned threads_k = 256;
constexpr float epsilon_k = 1e-6f;

/**
 *  Parts of a sum over rows, each a block's: as many as the GPU holds at a time, and none of few rows. They depend on
 *  the count and the GPU alone, so that the order of sums does.
 */
constexpr unsigned most_parts_k = 512, fewest_rows_k = 32;

__host__ __device__ constexpr unsigned parts_of(unsigned rows, unsigned most) {
    unsigned const parts = ceil_divide(rows, fewest_rows_k);
    return parts < most ? parts : most;
}

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
    else if (vectors <= 8)
        body(row_share<threads_k, 1>{});
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
    bf16x8 held[share_at::vectors];
    float square = 0;
    // Before the count is known: there are values in all active rows.
    share_at::for_vectors(rows.hidden, [&](unsigned v, unsigned first) { held[v] = load8(x + at + first); });
    if (row >= *rows.count) {
        if constexpr (normalizes_ak)
            zero_row<share_at>(rows.hidden, y + at);
        return;
    }
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

/** Rows of gradients on their way to shared memory. A thread copies what it reads itself: none waits for another. */
template <typename share_at> class row_ring {
public:
    /** Of a row: its values, its gradients, and those that pass around the norm. */
    static constexpr unsigned tensors = 3;
    static constexpr unsigned stages = share_at::vectors == 1   ? 3
                                       : share_at::vectors == 2 ? 4
                                       : share_at::vectors <= 4 ? 2
                                                                : 1;
    static constexpr unsigned bytes = stages * tensors * share_at::vectors * threads_k * sizeof(bf16x8);
    static_assert(bytes <= 96 * 1024, "what a block may have on every GPU");

    __device__ explicit row_ring(std::byte* shared) : own_(shared + threadIdx.x * sizeof(bf16x8)) {}

    __device__ __forceinline__ void begin(unsigned turn, unsigned tensor, unsigned v, __nv_bfloat16 const* from) const {
        copy_begin(shared_place(at(turn, tensor, v)), from, true);
    }
    __device__ __forceinline__ bf16x8 read(unsigned turn, unsigned tensor, unsigned v) const {
        return load8(reinterpret_cast<__nv_bfloat16 const*>(at(turn, tensor, v)));
    }

private:
    __device__ __forceinline__ std::byte* at(unsigned turn, unsigned tensor, unsigned v) const {
        return own_ + ((turn % stages * tensors + tensor) * share_at::vectors + v) * threads_k * sizeof(bf16x8);
    }

    std::byte* own_;
};

/** Zeros in the rows past the count, by all blocks. */
template <typename share_at>
__device__ __forceinline__ void zero_slack(norm_rows const& rows, unsigned count, __nv_bfloat16* of) {
    unsigned const team = threadIdx.x / share_at::team;
    for (unsigned row = count + blockIdx.x * share_at::teams + team; row < rows.active;
         row += gridDim.x * share_at::teams)
        zero_row<share_at>(rows.hidden, of + std::size_t(row) * rows.hidden);
}

/**
 *  A part's rows, each by a team, and the sum of their shares of the gain's gradient. A team reads a row's gradients
 *  whole before it writes any of it, so that they may lie in one place.
 *  @param sums [parts, hidden]
 */
template <typename share_at>
__global__ void __launch_bounds__(threads_k, share_at::vectors < 8 ? 2 : 1)
    differentiate(norm_rows rows, unsigned most_parts, norm_backward_arguments arguments, float* __restrict__ sums) {
    follow_earlier_kernels();
    extern __shared__ __align__(128) std::byte shared[];
    __shared__ float scratch[2][threads_k / warp_k];
    using ring_t = row_ring<share_at>;
    std::uint32_t const hidden = rows.hidden, count = min(*rows.count, rows.active);
    unsigned const parts = parts_of(count, most_parts), team = threadIdx.x / share_at::team;
    zero_slack<share_at>(rows, count, arguments.input_gradient);
    if (arguments.output)
        zero_slack<share_at>(rows, count, arguments.output);
    if (blockIdx.x >= parts)
        return; // the same for the whole block

    ring_t const ring(shared);
    std::uint32_t const first_row = blockIdx.x * share_at::teams + team, step = parts * share_at::teams;
    auto const begin_row = [&](unsigned turn) {
        std::uint32_t const row = first_row + turn * step;
        if (row < count) {
            std::size_t const at = std::size_t(row) * hidden;
            share_at::for_vectors(hidden, [&](unsigned v, unsigned first) {
                ring.begin(turn, 0, v, arguments.x + at + first);
                ring.begin(turn, 1, v, arguments.output_gradient + at + first);
                if (arguments.residual_gradient)
                    ring.begin(turn, 2, v, arguments.residual_gradient + at + first);
            });
        }
        copies_commit();
    };
    for (unsigned turn = 0; turn + 1 < ring_t::stages; ++turn)
        begin_row(turn);
    floatx8 gains[share_at::vectors], shares[share_at::vectors] = {};
    share_at::for_vectors(hidden, [&](unsigned v, unsigned first) { gains[v] = load8(arguments.gain + first); });

    float next_inverse = first_row < count ? arguments.inverse_rms[first_row] : 0;
    unsigned turn = 0;
    for (std::uint32_t row = first_row; row < count; row += step, ++turn) {
        begin_row(turn + ring_t::stages - 1);
        float const inverse = next_inverse;
        if (row + step < count)
            next_inverse = arguments.inverse_rms[row + step];
        copies_wait<ring_t::stages - 1>();
        float along = 0;
        share_at::for_vectors(hidden, [&](unsigned v, unsigned) {
            floatx8 const values = widen(ring.read(turn, 0, v)), slope = widen(ring.read(turn, 1, v));
#pragma unroll
            for (unsigned i = 0; i != lanes_k; ++i) {
                float const product = slope[i] * values[i];
                along += product * gains[v][i];
                shares[v][i] += product * inverse;
            }
        });
        along = share_at::sum(along, scratch[turn % 2]) * inverse * inverse * inverse / static_cast<float>(hidden);
        std::size_t const at = std::size_t(row) * hidden;
        share_at::for_vectors(hidden, [&](unsigned v, unsigned first) {
            floatx8 const values = widen(ring.read(turn, 0, v)), slope = widen(ring.read(turn, 1, v));
            floatx8 gradient = widen(arguments.residual_gradient ? ring.read(turn, 2, v) : zero8()), output;
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

    copies_wait<0>();
    __syncthreads(); // the rows' memory now takes the teams' shares
    static_assert(share_at::teams * share_at::team * share_at::vectors * lanes_k * sizeof(float) <= ring_t::bytes);
    float* const team_shares = reinterpret_cast<float*>(shared); // [teams, hidden]
    share_at::for_vectors(hidden, [&](unsigned v, unsigned first) {
        store8(team_shares + std::size_t(team) * hidden + first, shares[v]);
    });
    __syncthreads();
    for (unsigned i = threadIdx.x * 4; i < hidden; i += threads_k * 4) {
        float4 sum = *reinterpret_cast<float4 const*>(team_shares + i);
#pragma unroll
        for (unsigned other = 1; other != share_at::teams; ++other) {
            float4 const more = *reinterpret_cast<float4 const*>(team_shares + std::size_t(other) * hidden + i);
            sum.x += more.x, sum.y += more.y, sum.z += more.z, sum.w += more.w;
        }
        *reinterpret_cast<float4*>(sums + std::size_t(blockIdx.x) * hidden + i) = sum;
    }
}

constexpr unsigned groups_k = 32;

/** gain_gradient += the sum of all parts' sums. A column of the block takes a value, its rows share out the parts. */
__global__ void __launch_bounds__(warp_k* groups_k, 1)
    add_sums(norm_rows rows, unsigned most_parts, float const* __restrict__ sums, float* __restrict__ gain_gradient) {
    follow_earlier_kernels();
    __shared__ double group_sums[groups_k][warp_k];
    std::uint32_t const parts = parts_of(min(*rows.count, rows.active), most_parts);
    std::uint32_t const value = blockIdx.x * warp_k + threadIdx.x;
    double sum = 0;
    if (value < rows.hidden) {
        constexpr unsigned at_once = most_parts_k / groups_k;
        float loaded[at_once]; // abreast: past the end the last one again
#pragma unroll
        for (unsigned i = 0; i != at_once; ++i)
            loaded[i] = parts ? sums[std::size_t(min(threadIdx.y + i * groups_k, parts - 1)) * rows.hidden + value] : 0;
#pragma unroll
        for (unsigned i = 0; i != at_once; ++i)
            if (threadIdx.y + i * groups_k < parts)
                sum += static_cast<double>(loaded[i]);
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
    unsigned const most_parts = std::min(2 * static_cast<unsigned>(stream.multiprocessors), most_parts_k);
    with_share(rows.hidden, [&](auto share) {
        using share_t = decltype(share);
        launch_early(stream, differentiate<share_t>, parts_of(rows.active, most_parts), threads_k,
                     row_ring<share_t>::bytes, rows, most_parts, arguments, sums);
    });
    launch_early(stream, add_sums, rows.active ? blocks_for(rows.hidden, warp_k) : 0, dim3(warp_k, groups_k), 0, rows,
                 most_parts, sums, arguments.gain_gradient);
}

std::size_t norm_workspace_bytes(std::uint32_t hidden, std::uint32_t columns) {
    return part_bytes<float>(std::size_t(parts_of(columns, most_parts_k)) * hidden);
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

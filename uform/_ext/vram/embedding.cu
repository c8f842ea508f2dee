#include <algorithm>

#include "vram/attention_mma.cuh"
#include "vram/elementwise.cuh"
#include "vram/launch.cuh"
#include "vram/moves.cuh"
#include "vram/operations.h"

namespace uform::vram {

namespace {

constexpr unsigned summing_threads_k = 1024;
constexpr unsigned summing_warps_k = summing_threads_k / warp_k;
constexpr unsigned slice_vectors_k = 8;                 // of a row, that one block sums
constexpr unsigned slice_k = slice_vectors_k * lanes_k; // values
constexpr unsigned groups_k = summing_threads_k / slice_vectors_k;
constexpr unsigned edge_values_k = 2 * groups_k * slice_k;

// Columns that one block sums, at most: their order and the edges fit in 99 KiB, which every GPU since Ampere has.
constexpr std::uint32_t longest_share_k = 7 * summing_threads_k;
constexpr unsigned share_bits_k = 13;
constexpr std::uint32_t places_of_share_k = 1u << share_bits_k;
static_assert(longest_share_k <= places_of_share_k);
constexpr unsigned loads_k = 4, most_rounds_k = 8; // columns of a thread: loaded at a time, and at most
static_assert(longest_share_k <= most_rounds_k * summing_threads_k && most_rounds_k % loads_k == 0);

// With rows that are there before their order is known, on Hopper: more would leave loads too little of the cache.
constexpr std::size_t with_rows_k = std::size_t(160) << 10;

constexpr std::uint32_t no_run_k = 0xFFFFu;
constexpr std::uint32_t no_code_k = 0xFFFFFFFFu, no_modality_k = 0xFFFFFFFFu;

/** The column's row of this modality's table, if it has one. */
__device__ __forceinline__ std::uint32_t code_of(uform_embedding_t const& embedding, std::uint32_t column) {
    uform_columns_t const& columns = embedding.columns;
    // Both at once, not the one after the other.
    std::uint32_t const code = columns.codes[column], segment = columns.segment_of[column];
    bool const of_modality = columns.segments[segment].modality == embedding.modality;
    return of_modality && code < embedding.table_rows ? code : no_code_k;
}

__global__ void __launch_bounds__(moving_threads_k, 4) look_up(uform_embedding_t embedding) {
    follow_earlier_kernels();
    std::uint32_t const count = min(embedding.columns.counts[0], embedding.columns.active), hidden = embedding.hidden;
    static_assert(no_code_k == left_alone_k);
    auto const* const table = static_cast<__nv_bfloat16 const*>(embedding.table);
    auto* const states = static_cast<__nv_bfloat16*>(embedding.states);
    move_rows(
        count, hidden, [&](std::uint32_t column) { return code_of(embedding, column); },
        [&](std::uint32_t, std::uint32_t code, std::uint32_t first) {
            return load8(table + std::size_t(code) * hidden + first);
        },
        [&](std::uint32_t column, std::uint32_t, std::uint32_t first, bf16x8 const& vector) {
            store8(states + std::size_t(column) * hidden + first, vector);
        });
}

/**
 *  How columns are shared out, and each share's sums, one for every code that is in it. A block has the columns of one
 *  share and a slice of their values: the gradient is read once.
 */
struct column_shares {
    std::uint32_t shares, columns; // of each share
    std::uint32_t runs_capacity;   // codes in a share
    std::uint16_t* runs;           // [table_rows, shares] the place of a code's sum in a share, or no_run_k
    float* sums;                   // [shares, runs_capacity, hidden]

    column_shares(void* workspace, std::uint32_t hidden, std::uint32_t table_rows, std::uint32_t all) noexcept
        : shares(shares_of(hidden, all)), columns(ceil_divide(all, shares)),
          runs_capacity(std::min(columns, table_rows)) {
        workspace_parts parts(workspace);
        runs = parts.take<std::uint16_t>(std::size_t(table_rows) * shares);
        sums = parts.take<float>(std::size_t(shares) * runs_capacity * hidden);
    }

    static std::size_t bytes(std::uint32_t hidden, std::uint32_t table_rows, std::uint32_t all) noexcept {
        std::size_t const shares = shares_of(hidden, all), runs = std::min(shares * table_rows, all + shares);
        return part_bytes<std::uint16_t>(table_rows * shares) + part_bytes<float>(runs * hidden);
    }

private:
    /** Whole waves of as many blocks as an H200 has multiprocessors, on whatever GPU: sums are then the same on all. */
    static std::uint32_t shares_of(std::uint32_t hidden, std::uint32_t all) noexcept {
        constexpr std::uint32_t blocks = 132, fewest_columns = 256;
        std::uint32_t const wave = std::max(blocks / ceil_divide(hidden, slice_k), 1u);
        std::uint32_t const waves = std::max(ceil_divide(all, wave * longest_share_k), 1u);
        return std::min(wave * waves, std::max(ceil_divide(all, fewest_columns), 1u));
    }
};

/**
 *  A block's sorting of its columns by their codes, stably: those of a window of codes, past them the rest. Warps have
 *  ranges of equal size.
 */
struct column_sort {
    static constexpr unsigned digits_k = 512, pairs_k = digits_k / 2,
                              rest_k = digits_k - 1; // rest_k: not of the window
    static_assert(longest_share_k < 1u << 16);       // a pair of counts or places is one word, and adds up as one

    std::uint32_t counts[summing_warps_k][pairs_k]; // of two digits, of 16 bits each; then of those in earlier warps
    std::uint32_t places[pairs_k], runs[pairs_k];   // of each digit's first column, and of its sum
    std::uint32_t coded, next_run;                  // columns of the window, and the place past its last sum

    /** Calls `body(round)` for the columns that a thread has. */
    template <typename body_at> static __device__ __forceinline__ void for_rounds(unsigned rounds, body_at&& body) {
#pragma unroll
        for (unsigned round = 0; round != most_rounds_k; ++round) {
            if (round >= rounds)
                break;
            body(round);
        }
    }

    /** Puts beside each digit, past 16 bits, how many of its warp that are alike come before it. */
    __device__ __forceinline__ void rank(std::uint32_t (&digits)[most_rounds_k], unsigned rounds) {
        unsigned const lane = threadIdx.x % warp_k, warp = threadIdx.x / warp_k;
        auto* const counted = reinterpret_cast<std::uint16_t*>(counts[warp]);
#pragma unroll
        for (unsigned first = 0; first != pairs_k; first += warp_k * 4)
            *reinterpret_cast<uint4*>(counts[warp] + first + lane * 4) = make_uint4(0, 0, 0, 0);
        __syncwarp();
        for_rounds(rounds, [&](unsigned round) {
            std::uint32_t const digit = digits[round], before = counted[digit];
            unsigned const alike = __match_any_sync(whole_warp_k, digit), earlier = alike & ((1u << lane) - 1);
            digits[round] = digit | (before + __popc(earlier)) << 16;
            __syncwarp();
            if (earlier == 0)
                counted[digit] = static_cast<std::uint16_t>(before + __popc(alike));
            __syncwarp();
        });
    }

    /**
     *  From all warps' counts to places, a pair of digits a thread; between barriers.
     *  @param of_warps [pairs_k / warp_k] in shared memory. @param first_run The place of the first sum. @param keep
     *      (digit, columns, place of the sum): called for each digit of the window.
     */
    template <typename keep_at>
    __device__ __forceinline__ void place(std::uint32_t* of_warps, std::uint32_t first_run, keep_at&& keep) {
        unsigned const thread = threadIdx.x, lane = thread % warp_k, warp = thread / warp_k;
        bool const has_pair = thread < pairs_k;
        std::uint32_t sum = 0, until = 0, own = 0;
        if (has_pair) {
#pragma unroll 8
            for (unsigned i = 0; i != summing_warps_k; ++i) {
                std::uint32_t const of_warp = counts[i][thread];
                counts[i][thread] = sum;
                sum += of_warp;
            }
            std::uint32_t const low = sum & 0xFFFFu, high = sum >> 16;
            own = until = low + high | (unsigned(low != 0) + unsigned(high != 0 && thread != pairs_k - 1)) << 16;
#pragma unroll
            for (unsigned step = 1; step != warp_k; step *= 2) {
                std::uint32_t const other = __shfl_up_sync(whole_warp_k, until, step);
                until += lane >= step ? other : 0;
            }
            if (lane == warp_k - 1)
                of_warps[warp] = until;
        }
        __syncthreads();
        if (has_pair) {
            std::uint32_t const before = sum_warp(lane < warp ? of_warps[lane] : 0) + until - own;
            std::uint32_t const low = sum & 0xFFFFu, high = sum >> 16, first = before & 0xFFFFu;
            std::uint32_t const run = first_run + (before >> 16), next = run + (low != 0);
            places[thread] = first | (first + low) << 16;
            runs[thread] = run | next << 16;
            keep(2 * thread, low, run);
            if (thread != pairs_k - 1)
                keep(2 * thread + 1, high, next);
            else
                coded = first + low, next_run = next;
        }
        __syncthreads();
    }
};
static_assert(sizeof(column_sort) <= edge_values_k * sizeof(float)); // edges lie there later

/**
 *  A share's columns and a slice of the values a block: the columns are sorted by their codes, and cut into equal
 *  ranges for groups of threads, each with the slice's vectors. Codes at a range's edges may be those of several
 * groups.
 *  @param held Rows that are brought to shared memory while columns are sorted.
 */
__global__ void __launch_bounds__(summing_threads_k, 1)
    sum_shares(uform_embedding_t embedding, column_shares const shares, unsigned held) {
    follow_earlier_kernels();
    extern __shared__ __align__(16) std::uint32_t dynamic[];
    __shared__ std::uint32_t of_warps[summing_warps_k], first_runs[groups_k], last_runs[groups_k];
    uform_columns_t const& all_columns = embedding.columns;
    std::uint32_t const hidden = embedding.hidden, share = blockIdx.y, begin = share * shares.columns;
    std::uint32_t const all = min(all_columns.counts[0], all_columns.active);
    std::uint32_t const columns = begin < all ? min(shares.columns, all - begin) : 0;
    unsigned const rounds = ceil_divide(shares.columns, summing_threads_k);
    column_sort& sort = *reinterpret_cast<column_sort*>(dynamic);
    float* const edges = reinterpret_cast<float*>(dynamic); // [groups, 2, slice]
    std::uint32_t* const runs = dynamic + edge_values_k;    // by the columns' order, the run and the column of each
    auto* const held_rows = reinterpret_cast<__nv_bfloat16*>(runs + rounds * summing_threads_k);
    unsigned const lane = threadIdx.x % warp_k, warp = threadIdx.x / warp_k;
    unsigned const x = threadIdx.x % slice_vectors_k, group = threadIdx.x / slice_vectors_k;
    std::uint32_t const value = blockIdx.x * slice_k + x * lanes_k;
    bool const present = value < hidden;
    auto const* const vectors =
        static_cast<__nv_bfloat16 const*>(embedding.gradient) + std::size_t(begin) * hidden + (present ? value : 0);
    float* const sums = shares.sums + std::size_t(share) * shares.runs_capacity * hidden + value;
    float* const own_edges = edges + group * 2 * slice_k + x * lanes_k;
    auto const column_of = [&](unsigned round) { return (warp * rounds + round) * warp_k + lane; };
    held = min(held, columns);

    std::uint32_t first_of_window = 0;
    for (std::uint32_t window = 0; window < embedding.table_rows; window += column_sort::rest_k) {
        std::uint32_t digits[most_rounds_k], from = begin;
        asm volatile("" : "+r"(from)); // addresses are not kept for a next window: there is no room for them
#pragma unroll
        for (unsigned first = 0; first != most_rounds_k; first += loads_k) {
            // Of columns that are none as well: how many there are is not known yet.
            std::uint32_t segments[loads_k], modalities[loads_k];
#pragma unroll
            for (unsigned i = 0; i != loads_k; ++i) {
                std::uint32_t const column = min(from + column_of(first + i), all_columns.active - 1);
                digits[first + i] = all_columns.codes[column], segments[i] = all_columns.segment_of[column];
            }
#pragma unroll
            for (unsigned i = 0; i != loads_k; ++i) {
                modalities[i] = no_modality_k;
                if (column_of(first + i) < columns)
                    modalities[i] = all_columns.segments[segments[i]].modality;
            }
#pragma unroll
            for (unsigned i = 0; i != loads_k; ++i) {
                std::uint32_t const code = digits[first + i];
                bool const of_window = (modalities[i] == embedding.modality) & (code < embedding.table_rows);
                digits[first + i] = of_window ? min(code - window, column_sort::rest_k) : column_sort::rest_k;
            }
            if (first + loads_k >= rounds)
                break;
        }
        __syncthreads();
        if (window == 0) { // when no code is waited for any more
#pragma unroll 1
            for (unsigned row = group; row < held; row += groups_k)
                copy_begin(shared_place(held_rows + row * slice_k + x * lanes_k), vectors + std::size_t(row) * hidden,
                           true);
            copies_commit();
        }
        sort.rank(digits, rounds);
        __syncthreads();
        sort.place(of_warps, first_of_window, [&](unsigned digit, std::uint32_t count, std::uint32_t run) {
            if (blockIdx.x == 0 && window + digit < embedding.table_rows)
                shares.runs[std::size_t(window + digit) * shares.shares + share] =
                    static_cast<std::uint16_t>(count ? run : no_run_k);
        });
        auto const* const counted = reinterpret_cast<std::uint16_t const*>(sort.counts[warp]);
        auto const* const places = reinterpret_cast<std::uint16_t const*>(sort.places);
        auto const* const runs_of = reinterpret_cast<std::uint16_t const*>(sort.runs);
        column_sort::for_rounds(rounds, [&](unsigned round) {
            std::uint32_t const digit = digits[round] & 0xFFFFu;
            runs[places[digit] + counted[digit] + (digits[round] >> 16)] =
                std::uint32_t(runs_of[digit]) << share_bits_k | column_of(round);
        });
        std::uint32_t const coded = sort.coded;
        first_of_window = sort.next_run;
        copies_wait<0>();
        __syncthreads();

        unsigned const range = ceil_divide(coded, groups_k);
        unsigned const range_begin = min(group * range, coded), range_end = min(range_begin + range, coded);
        std::uint32_t first_run = no_run_k, current = no_run_k;
        if (range_begin != range_end) {
            constexpr unsigned at_once = 4;
            first_run = current = runs[range_begin] >> share_bits_k;
            floatx8 sum = {};
            for (unsigned at = range_begin; at < range_end; at += at_once) {
                bf16x8 loaded[at_once]; // past the end the last one again: a branch would end what runs abreast
                std::uint32_t places[at_once];
#pragma unroll
                for (unsigned i = 0; i != at_once; ++i) {
                    places[i] = runs[min(at + i, range_end - 1)];
                    unsigned const row = places[i] % places_of_share_k;
                    loaded[i] = load8(row < held ? held_rows + row * slice_k + x * lanes_k
                                                 : vectors + std::size_t(row) * hidden);
                }
#pragma unroll
                for (unsigned i = 0; i != at_once; ++i) {
                    if (at + i >= range_end)
                        break;
                    std::uint32_t const next = places[i] >> share_bits_k;
                    if (next != current) {
                        if (present || current == first_run)
                            store8(current == first_run ? own_edges : sums + std::size_t(current) * hidden, sum);
                        current = next, sum = floatx8{};
                    }
                    floatx8 const added = widen(loaded[i]);
#pragma unroll
                    for (unsigned j = 0; j != lanes_k; ++j)
                        sum[j] += added[j];
                }
            }
            store8(own_edges + (current == first_run ? 0 : slice_k), sum);
        }
        if (x == 0)
            first_runs[group] = first_run, last_runs[group] = current;
        __syncthreads();

        // A code's sums at edges, in their order, by the group that has the first of them.
        if (first_run != no_run_k) {
            bool const first_is_earlier = group != 0 && last_runs[group - 1] == first_run;
#pragma unroll 1
            for (unsigned edge = first_is_earlier; edge != (current == first_run ? 1 : 2); ++edge) {
                std::uint32_t const of = edge == 0 ? first_run : current;
                floatx8 sum = load8(own_edges + edge * slice_k);
#pragma unroll 1
                for (unsigned later = group + 1; later < groups_k && first_runs[later] == of; ++later) {
                    floatx8 const added = load8(edges + later * 2 * slice_k + x * lanes_k);
#pragma unroll
                    for (unsigned j = 0; j != lanes_k; ++j)
                        sum[j] += added[j];
                }
                if (present)
                    store8(sums + std::size_t(of) * hidden, sum);
            }
        }
        if (window + column_sort::rest_k < embedding.table_rows)
            __syncthreads();
    }
}

constexpr unsigned adding_threads_k = 128;
constexpr unsigned tile_k = adding_threads_k * 4; // values of a table's row that one block adds up

/** A code a block: the sums of its shares in their order. */
__global__ void __launch_bounds__(adding_threads_k)
    add_shares(uform_embedding_t embedding, column_shares const shares) {
    std::uint32_t const hidden = embedding.hidden, code = blockIdx.x;
    std::uint32_t const value = blockIdx.y * tile_k + threadIdx.x * 4;
    float4* const to = reinterpret_cast<float4*>(embedding.table_gradient + std::size_t(code) * hidden + value);
    // What came before `sum_shares` is done, and that does not touch it.
    float4 sum = value < hidden ? __ldcg(to) : float4{};
    follow_earlier_kernels();
    if (value >= hidden)
        return;
    std::uint16_t const* const runs = shares.runs + std::size_t(code) * shares.shares;
    bool any = false;
    constexpr unsigned at_once = 16;
    float const* from = shares.sums + value;
    std::size_t const of_share = std::size_t(shares.runs_capacity) * hidden;
#pragma unroll 1
    for (unsigned first = 0; first < shares.shares; first += at_once, from += at_once * of_share) {
        std::uint32_t places[at_once];
#pragma unroll
        for (unsigned i = 0; i != at_once; ++i)
            places[i] = first + i < shares.shares ? runs[first + i] : no_run_k;
        float4 loaded[at_once] = {};
#pragma unroll
        for (unsigned i = 0; i != at_once; ++i)
            if (places[i] != no_run_k)
                any = true, loaded[i] = *reinterpret_cast<float4 const*>(from + i * of_share + places[i] * hidden);
#pragma unroll
        for (unsigned i = 0; i != at_once; ++i)
            sum.x += loaded[i].x, sum.y += loaded[i].y, sum.z += loaded[i].z, sum.w += loaded[i].w;
    }
    if (any)
        *to = sum;
}

} // namespace

std::size_t embedding_workspace_bytes(std::uint32_t hidden, std::uint32_t table_rows, std::uint32_t columns) {
    return column_shares::bytes(hidden, table_rows, columns);
}

uform_status_t embedding_forward(uform_stream_t* opaque, uform_embedding_t const* embedding) {
    return operate("embedding_forward", opaque, [&](stream const& stream) {
        launch_moves(stream, look_up, embedding->columns.active, embedding->hidden, *embedding);
    });
}

uform_status_t embedding_backward(uform_stream_t* opaque, uform_embedding_t const* embedding) {
    return operate("embedding_backward", opaque, [&](stream const& stream) {
        std::uint32_t const hidden = embedding->hidden, table_rows = embedding->table_rows;
        check_bytes("workspace_bytes", embedding->workspace_bytes,
                    embedding_workspace_bytes(hidden, table_rows, embedding->columns.capacity));
        if (embedding->columns.active == 0)
            return;
        column_shares const shares(embedding->workspace, hidden, table_rows, embedding->columns.active);
        std::size_t const order_bytes =
            std::size_t(ceil_divide(shares.columns, summing_threads_k)) * summing_threads_k * sizeof(std::uint32_t);
        std::size_t const needed = edge_values_k * sizeof(float) + order_bytes,
                          row_bytes = slice_k * sizeof(__nv_bfloat16);
        std::size_t const room = stream.gpu_class == uform_gpu_class_hopper_k ? with_rows_k : needed;
        unsigned const held = static_cast<unsigned>((std::max(room, needed) - needed) / row_bytes);
        launch_early(stream, sum_shares, dim3(ceil_divide(hidden, slice_k), shares.shares), summing_threads_k,
                     needed + held * row_bytes, *embedding, shares, held);
        launch_early(stream, add_shares, dim3(table_rows, ceil_divide(hidden, tile_k)), adding_threads_k, 0, *embedding,
                     shares);
    });
}

} // namespace uform::vram

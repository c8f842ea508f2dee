#include <algorithm>

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

// Columns that one block sums, at most: what it sorts and the edges fit in 99 KiB, which every GPU since Ampere has.
constexpr unsigned most_rounds_k = 7;
constexpr std::uint32_t longest_share_k = most_rounds_k * summing_threads_k;
constexpr unsigned share_bits_k = 13;
constexpr std::uint32_t places_of_share_k = 1u << share_bits_k;
static_assert(longest_share_k <= places_of_share_k);

constexpr std::uint32_t no_run_k = 0xFFFFu;
constexpr std::uint32_t no_code_k = 0xFFFFFFFFu;

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

/** A block's sorting of its columns by their codes, stably, some bits at a time. Warps have ranges of equal size. */
struct column_sort {
    static constexpr unsigned bits_k = 5, digits_k = 1u << bits_k;
    static_assert(digits_k == warp_k && digits_k * summing_warps_k == summing_threads_k);

    std::uint32_t counts[digits_k][summing_warps_k + 1]; // past a warp's columns: lanes then meet in no bank
    std::uint32_t of_warps[summing_warps_k];

    /** The sum over earlier warps of what each has: a barrier between its writing and this, as after it. */
    __device__ std::uint32_t before(unsigned warp) const {
        unsigned const lane = threadIdx.x % warp_k;
        return sum_warp(lane < warp ? of_warps[lane] : 0);
    }

    /** Passes by which codes and their count are sorted. */
    static __device__ unsigned passes_of(std::uint32_t table_rows) {
        return ceil_divide(32u - static_cast<unsigned>(__clz(static_cast<int>(table_rows))), bits_k);
    }

    /** One pass. @param rounds Columns of a warp, in warps. */
    __device__ void pass(std::uint32_t const* from, std::uint32_t* to, unsigned rounds, unsigned shift) {
        unsigned const lane = threadIdx.x % warp_k, warp = threadIdx.x / warp_k;
        from += warp * rounds * warp_k;
        counts[lane][warp] = 0;
        __syncwarp();
        std::uint32_t keys[most_rounds_k], ranks[most_rounds_k];
#pragma unroll
        for (unsigned round = 0; round != most_rounds_k; ++round) {
            if (round >= rounds)
                break;
            keys[round] = from[round * warp_k + lane];
            std::uint32_t const digit = keys[round] >> shift & (digits_k - 1);
            unsigned const alike = __match_any_sync(whole_warp_k, digit);
            unsigned const earlier = alike & ((1u << lane) - 1);
            ranks[round] = counts[digit][warp] + __popc(earlier);
            __syncwarp();
            if (earlier == 0)
                counts[digit][warp] += __popc(alike);
            __syncwarp();
        }
        __syncthreads();
        // A warp a digit now: its counts become places.
        std::uint32_t const own = counts[warp][lane];
        std::uint32_t until = own;
#pragma unroll
        for (unsigned step = 1; step != warp_k; step *= 2) {
            std::uint32_t const other = __shfl_up_sync(whole_warp_k, until, step);
            until += lane >= step ? other : 0;
        }
        if (lane == warp_k - 1)
            of_warps[warp] = until;
        __syncthreads();
        counts[warp][lane] = before(warp) + until - own;
        __syncthreads();
#pragma unroll
        for (unsigned round = 0; round != most_rounds_k; ++round) {
            if (round >= rounds)
                break;
            to[counts[keys[round] >> shift & (digits_k - 1)][warp] + ranks[round]] = keys[round];
        }
        __syncthreads();
    }
};

/**
 *  A share's columns and a slice of the values a block: the columns are sorted by their codes, and cut into equal
 * ranges for groups of threads, each with the slice's vectors. Codes at a range's edges may be those of several groups.
 */
__global__ void __launch_bounds__(summing_threads_k, 1)
    sum_shares(uform_embedding_t embedding, column_shares const shares) {
    follow_earlier_kernels();
    extern __shared__ __align__(16) std::uint32_t dynamic[];
    __shared__ column_sort sort;
    __shared__ std::uint32_t first_runs[groups_k], last_runs[groups_k], coded_count;
    std::uint32_t const hidden = embedding.hidden, table_rows = embedding.table_rows, share = blockIdx.y;
    std::uint32_t const all = min(embedding.columns.counts[0], embedding.columns.active);
    std::uint32_t const begin = share * shares.columns, columns = begin < all ? min(shares.columns, all - begin) : 0;
    unsigned const rounds = ceil_divide(columns, summing_threads_k), padded = rounds * summing_threads_k;
    // Keys move between two buffers, and end in the first, where edges lie once keys are done with.
    std::uint32_t* const runs = dynamic + max(edge_values_k, padded);
    float* const edges = reinterpret_cast<float*>(dynamic); // [groups, 2, slice]
    bool const odd = column_sort::passes_of(table_rows) % 2 != 0;
    std::uint32_t *keys = odd ? runs : dynamic, *other = odd ? dynamic : runs;
    unsigned const lane = threadIdx.x % warp_k, warp = threadIdx.x / warp_k;
    auto const* const gradient = static_cast<__nv_bfloat16 const*>(embedding.gradient) + std::size_t(begin) * hidden;

    if (blockIdx.x == 0)
        for (std::uint32_t code = threadIdx.x; code < table_rows; code += summing_threads_k)
            shares.runs[std::size_t(code) * shares.shares + share] = no_run_k;
    if (threadIdx.x == 0)
        coded_count = padded;
    constexpr unsigned at_once = 4;
    for (unsigned first = 0; first < rounds; first += at_once) {
        std::uint32_t codes[at_once];
#pragma unroll
        for (unsigned i = 0; i != at_once; ++i)
            codes[i] = code_of(embedding, begin + min((warp * rounds + first + i) * warp_k + lane, columns - 1));
#pragma unroll
        for (unsigned i = 0; i != at_once; ++i) {
            if (first + i >= rounds)
                break;
            std::uint32_t const within = (warp * rounds + first + i) * warp_k + lane;
            bool const coded = codes[i] != no_code_k && within < columns;
            keys[within] = (coded ? codes[i] : table_rows) << share_bits_k | within;
        }
    }
    __syncthreads();
    for (unsigned pass = 0; pass != column_sort::passes_of(table_rows); ++pass) {
        sort.pass(keys, other, rounds, share_bits_k + pass * column_sort::bits_k);
        std::uint32_t* const sorted = other;
        other = keys, keys = sorted;
    }

    // From codes to the places of their sums.
    std::uint32_t heads = 0;
    for (unsigned round = 0; round != rounds; ++round) {
        unsigned const at = (warp * rounds + round) * warp_k + lane;
        std::uint32_t const code = keys[at] >> share_bits_k, before = at ? keys[at - 1] >> share_bits_k : no_code_k;
        heads += __popc(__ballot_sync(whole_warp_k, code != before && code != table_rows));
        if (code != before && code == table_rows)
            coded_count = at;
    }
    if (lane == 0)
        sort.of_warps[warp] = heads;
    __syncthreads();
    std::uint32_t run = sort.before(warp);
    for (unsigned round = 0; round != rounds; ++round) {
        unsigned const at = (warp * rounds + round) * warp_k + lane;
        std::uint32_t const code = keys[at] >> share_bits_k, before = at ? keys[at - 1] >> share_bits_k : no_code_k;
        bool const head = code != before && code != table_rows;
        unsigned const of_warp = __ballot_sync(whole_warp_k, head);
        std::uint32_t const own = run + __popc(of_warp & (0xFFFFFFFFu >> (warp_k - 1 - lane))) - 1;
        runs[at] = own << share_bits_k | keys[at] % places_of_share_k;
        if (head && blockIdx.x == 0)
            shares.runs[std::size_t(code) * shares.shares + share] = static_cast<std::uint16_t>(own);
        run += __popc(of_warp);
    }
    __syncthreads();

    unsigned const x = threadIdx.x % slice_vectors_k, group = threadIdx.x / slice_vectors_k;
    std::uint32_t const value = blockIdx.x * slice_k + x * lanes_k;
    bool const present = value < hidden;
    float* const sums = shares.sums + std::size_t(share) * shares.runs_capacity * hidden + value;
    unsigned const range = ceil_divide(coded_count, groups_k);
    unsigned const range_begin = min(group * range, coded_count), range_end = min(range_begin + range, coded_count);
    float* const own_edges = edges + group * 2 * slice_k + x * lanes_k;
    std::uint32_t first_run = no_run_k, current = no_run_k;
    if (range_begin != range_end) {
        first_run = current = runs[range_begin] >> share_bits_k;
        floatx8 sum = {};
        for (unsigned at = range_begin; at < range_end; at += at_once) {
            bf16x8 loaded[at_once]; // past the end the last one again: a branch would end what runs abreast
            std::uint32_t places[at_once];
#pragma unroll
            for (unsigned i = 0; i != at_once; ++i) {
                places[i] = runs[min(at + i, range_end - 1)];
                loaded[i] =
                    load8(gradient + std::size_t(places[i] % places_of_share_k) * hidden + (present ? value : 0));
            }
#pragma unroll
            for (unsigned i = 0; i != at_once; ++i) {
                if (at + i >= range_end)
                    break;
                std::uint32_t const next = places[i] >> share_bits_k;
                if (next != current) {
                    if (current == first_run)
                        store8(own_edges, sum);
                    else if (present)
                        store8(sums + std::size_t(current) * hidden, sum);
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
    auto const finish = [&](std::uint32_t of, float const* edge) {
        floatx8 sum = load8(edge);
        for (unsigned later = group + 1; later < groups_k; later += at_once) {
            bool alike = false;
#pragma unroll
            for (unsigned i = 0; i != at_once; ++i) {
                unsigned const at = min(later + i, groups_k - 1);
                alike = later + i < groups_k && first_runs[at] == of;
                floatx8 const added = load8(edges + at * 2 * slice_k + x * lanes_k);
#pragma unroll
                for (unsigned j = 0; j != lanes_k; ++j)
                    sum[j] += alike ? added[j] : 0.f;
            }
            if (!alike)
                break;
        }
        if (present)
            store8(sums + std::size_t(of) * hidden, sum);
    };
    if (first_run == no_run_k)
        return;
    if (group == 0 || last_runs[group - 1] != first_run)
        finish(first_run, own_edges);
    if (current != first_run)
        finish(current, own_edges + slice_k);
}

constexpr unsigned adding_threads_k = 128;
constexpr unsigned tile_k = adding_threads_k * 4; // values of a table's row that one block adds up

/** A code a block: the sums of its shares in their order. */
__global__ void __launch_bounds__(adding_threads_k)
    add_shares(uform_embedding_t embedding, column_shares const shares) {
    follow_earlier_kernels();
    std::uint32_t const hidden = embedding.hidden, code = blockIdx.x;
    std::uint32_t const value = blockIdx.y * tile_k + threadIdx.x * 4;
    if (value >= hidden)
        return;
    std::uint16_t const* const runs = shares.runs + std::size_t(code) * shares.shares;
    float4* const to = reinterpret_cast<float4*>(embedding.table_gradient + std::size_t(code) * hidden + value);
    float4 sum = *to;
    bool any = false;
    constexpr unsigned at_once = 16;
    for (unsigned first = 0; first < shares.shares; first += at_once) {
        std::uint32_t places[at_once];
#pragma unroll
        for (unsigned i = 0; i != at_once; ++i)
            places[i] = runs[min(first + i, shares.shares - 1)];
        float4 loaded[at_once] = {};
#pragma unroll
        for (unsigned i = 0; i != at_once; ++i)
            if (places[i] != no_run_k && first + i < shares.shares)
                any = true,
                loaded[i] = *reinterpret_cast<float4 const*>(
                    shares.sums + (std::size_t(first + i) * shares.runs_capacity + places[i]) * hidden + value);
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
        unsigned const padded = ceil_divide(shares.columns, summing_threads_k) * summing_threads_k;
        std::size_t const shared_bytes = (std::size_t(std::max(edge_values_k, padded)) + padded) * sizeof(float);
        launch_early(stream, sum_shares, dim3(ceil_divide(hidden, slice_k), shares.shares), summing_threads_k,
                     shared_bytes, *embedding, shares);
        launch_early(stream, add_shares, dim3(table_rows, ceil_divide(hidden, tile_k)), adding_threads_k, 0, *embedding,
                     shares);
    });
}

} // namespace uform::vram

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

// Columns that one block sums, at most: what it sorts and the edges fit in 99 KiB, which every GPU since Ampere has.
constexpr unsigned most_rounds_k = 7;
constexpr std::uint32_t longest_share_k = most_rounds_k * summing_threads_k;
constexpr unsigned share_bits_k = 13;
constexpr std::uint32_t places_of_share_k = 1u << share_bits_k;
static_assert(longest_share_k <= places_of_share_k);

/** A share's first rows, which Hopper brings to shared memory while columns are sorted; more would leave the cache less
 *  than loads need. */
constexpr unsigned held_rows_k = 512;

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

/** A block's sorting of its columns by their codes, stably, some bits at a time. Warps have ranges of equal size. */
struct column_sort {
    static constexpr unsigned bits_k = 9, digits_k = 1u << bits_k, digit_pairs_k = digits_k / 2;
    static_assert(longest_share_k < 1u << 16); // so that a pair of counts or places is one word, and adds up as one

    std::uint32_t counts[summing_warps_k][digit_pairs_k]; // of two digits, of 16 bits each; then of earlier warps'
    std::uint32_t bases[digit_pairs_k];                   // where each digit's columns begin

    /** Passes by which codes and their count are sorted. */
    static __device__ unsigned passes_of(std::uint32_t table_rows) {
        return ceil_divide(32u - static_cast<unsigned>(__clz(static_cast<int>(table_rows))), bits_k);
    }

    /** One pass. @param rounds Columns of a warp, in warps. @param of_warps [summing_warps_k] in shared memory. */
    __device__ void pass(std::uint32_t const* from, std::uint32_t* to, std::uint32_t* of_warps, unsigned rounds,
                         unsigned shift) {
        unsigned const lane = threadIdx.x % warp_k, warp = threadIdx.x / warp_k;
        auto* const own_counts = reinterpret_cast<std::uint16_t*>(counts[warp]);
        from += warp * rounds * warp_k;
#pragma unroll
        for (unsigned first = 0; first != digit_pairs_k; first += warp_k * 4)
            *reinterpret_cast<uint4*>(counts[warp] + first + lane * 4) = make_uint4(0, 0, 0, 0);
        __syncwarp();
#pragma unroll 1
        for (unsigned round = 0; round != rounds; ++round) {
            std::uint32_t const digit = from[round * warp_k + lane] >> shift & (digits_k - 1);
            atomicAdd(counts[warp] + digit / 2, digit % 2 ? 0x10000u : 1u); // integers: no order
        }
        __syncthreads();
        // A pair of digits a thread now: counts become those of earlier warps, and their sums the places of digits.
        std::uint32_t sum = 0, until = 0;
        if (threadIdx.x < digit_pairs_k) {
#pragma unroll 8
            for (unsigned i = 0; i != summing_warps_k; ++i) {
                std::uint32_t const of_pair = counts[i][threadIdx.x];
                counts[i][threadIdx.x] = sum;
                sum += of_pair;
            }
            until = (sum & 0xFFFFu) + (sum >> 16);
#pragma unroll
            for (unsigned step = 1; step != warp_k; step *= 2) {
                std::uint32_t const other = __shfl_up_sync(whole_warp_k, until, step);
                until += lane >= step ? other : 0;
            }
            if (lane == warp_k - 1)
                of_warps[warp] = until;
        }
        __syncthreads();
        if (threadIdx.x < digit_pairs_k) {
            std::uint32_t const base = sum_before(of_warps, warp) + until - (sum & 0xFFFFu) - (sum >> 16);
            bases[threadIdx.x] = base | (base + (sum & 0xFFFFu)) << 16;
        }
        __syncthreads();
        auto const* const digit_bases = reinterpret_cast<std::uint16_t const*>(bases);
#pragma unroll 1
        for (unsigned round = 0; round != rounds; ++round) {
            std::uint32_t const key = from[round * warp_k + lane], digit = key >> shift & (digits_k - 1);
            unsigned const alike = __match_any_sync(whole_warp_k, digit), earlier = alike & ((1u << lane) - 1);
            std::uint32_t const before = own_counts[digit];
            __syncwarp();
            if (earlier == 0)
                own_counts[digit] = static_cast<std::uint16_t>(before + __popc(alike));
            __syncwarp();
            to[digit_bases[digit] + before + __popc(earlier)] = key;
        }
        __syncthreads();
    }

    /** The sum over earlier warps of what each has: a barrier between its writing and this, as after it. */
    static __device__ std::uint32_t sum_before(std::uint32_t const* of_warps, unsigned warp) {
        unsigned const lane = threadIdx.x % warp_k;
        return sum_warp(lane < warp ? of_warps[lane] : 0);
    }
};
// Beside the longest share's keys, where edges lie later.
static_assert(longest_share_k * sizeof(std::uint32_t) + sizeof(column_sort) <= edge_values_k * sizeof(float));

/**
 *  A share's columns and a slice of the values a block: the columns are sorted by their codes, and cut into equal
 *  ranges for groups of threads, each with the slice's vectors. Codes at a range's edges may be those of several ones.
 *  @param held The first so many rows are asked for before the columns are sorted.
 */
__global__ void __launch_bounds__(summing_threads_k, 1)
    sum_shares(uform_embedding_t embedding, column_shares const shares, unsigned held) {
    follow_earlier_kernels();
    extern __shared__ __align__(16) std::uint32_t dynamic[];
    __shared__ std::uint32_t of_warps[summing_warps_k], first_runs[groups_k], last_runs[groups_k], coded_count;
    std::uint32_t const hidden = embedding.hidden, table_rows = embedding.table_rows, share = blockIdx.y;
    std::uint32_t const all = min(embedding.columns.counts[0], embedding.columns.active);
    std::uint32_t const begin = share * shares.columns, columns = begin < all ? min(shares.columns, all - begin) : 0;
    unsigned const rounds = ceil_divide(shares.columns, summing_threads_k), padded = rounds * summing_threads_k;
    // Keys move between two buffers, and end in the first, where edges lie once keys are done with.
    std::uint32_t* const runs = dynamic + max(edge_values_k, padded);
    float* const edges = reinterpret_cast<float*>(dynamic); // [groups, 2, slice]
    bool const odd = column_sort::passes_of(table_rows) % 2 != 0;
    std::uint32_t *keys = odd ? runs : dynamic, *other = odd ? dynamic : runs;
    column_sort& sort = *reinterpret_cast<column_sort*>(dynamic + padded);
    unsigned const lane = threadIdx.x % warp_k, warp = threadIdx.x / warp_k;
    auto const* const gradient = static_cast<__nv_bfloat16 const*>(embedding.gradient) + std::size_t(begin) * hidden;
    unsigned const x = threadIdx.x % slice_vectors_k, group = threadIdx.x / slice_vectors_k;
    std::uint32_t const value = blockIdx.x * slice_k + x * lanes_k;
    bool const present = value < hidden;
    __nv_bfloat16 const* const vectors = gradient + (present ? value : 0);
    __nv_bfloat16* const held_vectors = reinterpret_cast<__nv_bfloat16*>(runs + padded) + x * lanes_k;
    held = min(held, columns);

    if (blockIdx.x == 0)
#pragma unroll 1
        for (std::uint32_t code = threadIdx.x; code < table_rows; code += summing_threads_k)
            shares.runs[std::size_t(code) * shares.shares + share] = no_run_k;
    if (threadIdx.x == 0)
        coded_count = padded;
    constexpr unsigned at_once = 4;
#pragma unroll 1
    for (unsigned first = 0; first < rounds; first += at_once) {
        // Of columns that are none as well: how many there are is not known yet.
        std::uint32_t codes[at_once], segments[at_once], modalities[at_once];
#pragma unroll
        for (unsigned i = 0; i != at_once; ++i) {
            std::uint32_t const within = (warp * rounds + first + i) * warp_k + lane;
            std::uint32_t const column = min(begin + within, embedding.columns.active - 1);
            codes[i] = embedding.columns.codes[column], segments[i] = embedding.columns.segment_of[column];
        }
#pragma unroll
        for (unsigned i = 0; i != at_once; ++i) {
            std::uint32_t const within = (warp * rounds + first + i) * warp_k + lane;
            modalities[i] = no_modality_k;
            if (within < columns)
                modalities[i] = embedding.columns.segments[segments[i]].modality;
        }
#pragma unroll
        for (unsigned i = 0; i != at_once; ++i) {
            std::uint32_t const within = (warp * rounds + first + i) * warp_k + lane;
            bool const coded = (modalities[i] == embedding.modality) & (codes[i] < table_rows);
            if (first + i < rounds)
                keys[within] = (coded ? codes[i] : table_rows) << share_bits_k | within;
        }
    }
#pragma unroll 1
    for (unsigned row = group; row < held; row += groups_k)
        copy_begin(shared_place(held_vectors + row * slice_k), vectors + std::size_t(row) * hidden, true);
    copies_commit();
    __syncthreads();
    for (unsigned pass = 0; pass != column_sort::passes_of(table_rows); ++pass) {
        sort.pass(keys, other, of_warps, rounds, share_bits_k + pass * column_sort::bits_k);
        std::uint32_t* const sorted = other;
        other = keys, keys = sorted;
    }

    // From codes to the places of their sums.
    auto const heads_of = [&](unsigned round) {
        unsigned const at = (warp * rounds + round) * warp_k + lane;
        std::uint32_t const code = keys[at] >> share_bits_k, before = at ? keys[at - 1] >> share_bits_k : no_code_k;
        if (code != before && code == table_rows)
            coded_count = at;
        return __ballot_sync(whole_warp_k, code != before && code != table_rows);
    };
    std::uint32_t run = 0;
#pragma unroll 1
    for (unsigned round = 0; round != rounds; ++round)
        run += __popc(heads_of(round));
    if (lane == 0)
        of_warps[warp] = run;
    __syncthreads();
    run = column_sort::sum_before(of_warps, warp);
#pragma unroll 1
    for (unsigned round = 0; round != rounds; ++round) {
        unsigned const at = (warp * rounds + round) * warp_k + lane, heads = heads_of(round);
        std::uint32_t const own = run + __popc(heads & (0xFFFFFFFFu >> (warp_k - 1 - lane))) - 1;
        runs[at] = own << share_bits_k | keys[at] % places_of_share_k;
        if (blockIdx.x == 0 && heads >> lane & 1)
            shares.runs[std::size_t(keys[at] >> share_bits_k) * shares.shares + share] =
                static_cast<std::uint16_t>(own);
        run += __popc(heads);
    }
    copies_wait<0>();
    __syncthreads();

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
                unsigned const row = places[i] % places_of_share_k;
                loaded[i] = load8(row < held ? held_vectors + row * slice_k : vectors + std::size_t(row) * hidden);
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
    if (first_run == no_run_k)
        return;
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
        unsigned const padded = ceil_divide(shares.columns, summing_threads_k) * summing_threads_k;
        unsigned const held = stream.gpu_class == uform_gpu_class_hopper_k ? held_rows_k : 0;
        std::size_t const shared_bytes = (std::size_t(std::max(edge_values_k, padded)) + padded) * sizeof(float) +
                                         held * slice_k * sizeof(__nv_bfloat16);
        launch_early(stream, sum_shares, dim3(ceil_divide(hidden, slice_k), shares.shares), summing_threads_k,
                     shared_bytes, *embedding, shares, held);
        launch_early(stream, add_shares, dim3(table_rows, ceil_divide(hidden, tile_k)), adding_threads_k, 0, *embedding,
                     shares);
    });
}

} // namespace uform::vram

#include "vram/elementwise.cuh"
#include "vram/launch.cuh"
#include "vram/moves.cuh"
#include "vram/operations.h"

namespace uform::vram {

namespace {

constexpr unsigned threads_k = 256;
constexpr unsigned warps_k = threads_k / warp_k;
constexpr unsigned chunk_k = 256; // columns that one block sorts
constexpr unsigned piece_k = 32;  // columns of one code that are summed at once

constexpr std::uint32_t no_code_k = 0xFFFFFFFFu;

/** The column's row of this modality's table, if it has one. */
__device__ __forceinline__ std::uint32_t code_of(uform_embedding_t const& embedding, std::uint32_t column,
                                                 std::uint32_t count) {
    uform_columns_t const& columns = embedding.columns;
    if (column >= count)
        return no_code_k;
    std::uint32_t const code = columns.codes[column];
    bool const coded =
        code < embedding.table_rows && columns.segments[columns.segment_of[column]].modality == embedding.modality;
    return coded ? code : no_code_k;
}

__global__ void __launch_bounds__(moving_threads_k, 4) look_up(uform_embedding_t embedding) {
    follow_earlier_kernels();
    std::uint32_t const count = min(embedding.columns.counts[0], embedding.columns.active), hidden = embedding.hidden;
    static_assert(no_code_k == left_alone_k);
    auto const* const table = static_cast<__nv_bfloat16 const*>(embedding.table);
    auto* const states = static_cast<__nv_bfloat16*>(embedding.states);
    move_rows(
        count, hidden, [&](std::uint32_t column) { return code_of(embedding, column, count); },
        [&](std::uint32_t, std::uint32_t code, std::uint32_t first) {
            return load8(table + std::size_t(code) * hidden + first);
        },
        [&](std::uint32_t column, std::uint32_t, std::uint32_t first, bf16x8 const& vector) {
            store8(states + std::size_t(column) * hidden + first, vector);
        });
}

/**
 *  Columns in the order of their codes, stably, and cut into pieces of one code each: the table's gradient is then the
 *  sum of few pieces, in an order that only the batch decides.
 */
struct sorted_columns {
    std::uint32_t chunks, pieces_capacity;
    std::uint32_t* places;      // [chunks, table_rows] of a code within a chunk; then where those begin within the code
    std::uint32_t* totals;      // [table_rows] columns of each code
    std::uint32_t* begins;      // [table_rows + 1] of each code in `order`
    std::uint32_t* pieces;      // [table_rows + 1] the first piece of each code
    std::uint32_t* piece_codes; // [pieces_capacity]
    std::uint32_t* ranks;       // [columns] among those of its code in its chunk, below the code
    std::uint32_t* order;       // [columns]
    float* sums;                // [pieces_capacity, hidden]

    sorted_columns(void* workspace, std::uint32_t hidden, std::uint32_t table_rows, std::uint32_t columns) noexcept
        : chunks(ceil_divide(columns, chunk_k)), pieces_capacity(columns / piece_k + table_rows) {
        workspace_parts parts(workspace);
        places = parts.take<std::uint32_t>(std::size_t(table_rows) * chunks);
        totals = parts.take<std::uint32_t>(table_rows);
        begins = parts.take<std::uint32_t>(table_rows + 1);
        pieces = parts.take<std::uint32_t>(table_rows + 1);
        piece_codes = parts.take<std::uint32_t>(pieces_capacity);
        ranks = parts.take<std::uint32_t>(columns);
        order = parts.take<std::uint32_t>(columns);
        sums = parts.take<float>(std::size_t(pieces_capacity) * hidden);
    }

    static std::size_t bytes(std::uint32_t hidden, std::uint32_t table_rows, std::uint32_t columns) noexcept {
        std::size_t const chunks = ceil_divide(columns, chunk_k), pieces = columns / piece_k + table_rows;
        return part_bytes<std::uint32_t>(table_rows * chunks) + part_bytes<std::uint32_t>(table_rows) +
               2 * part_bytes<std::uint32_t>(table_rows + 1) + part_bytes<std::uint32_t>(pieces) +
               2 * part_bytes<std::uint32_t>(columns) + part_bytes<float>(pieces * hidden);
    }
};

static_assert(chunk_k == threads_k);
constexpr unsigned rank_bits_k = 8;
static_assert(chunk_k <= 1u << rank_bits_k);

/** A chunk a block: where each column is among those of its code, and how many they are. */
__global__ void __launch_bounds__(threads_k) rank_columns(uform_embedding_t embedding, sorted_columns sorted) {
    follow_earlier_kernels();
    __shared__ __align__(16) std::uint16_t codes[chunk_k];
    // Codes of 16 bits: no_code_k becomes one that a table can not have, for its rows are below 2^16 - 1.
    std::uint32_t const column = blockIdx.x * chunk_k + threadIdx.x;
    std::uint32_t const code = code_of(embedding, column, min(embedding.columns.counts[0], embedding.columns.active));
    std::uint32_t* const places = sorted.places + std::size_t(blockIdx.x) * embedding.table_rows;
    for (std::uint32_t row = threadIdx.x; row < embedding.table_rows; row += threads_k)
        places[row] = 0;
    codes[threadIdx.x] = static_cast<std::uint16_t>(code);
    __syncthreads();
    if (code == no_code_k) {
        if (column < embedding.columns.active)
            sorted.ranks[column] = no_code_k;
        return;
    }
    unsigned earlier = 0, alike = 0;
#pragma unroll 4
    for (unsigned first = 0; first != chunk_k; first += 8) {
        uint4 const words = *reinterpret_cast<uint4 const*>(codes + first);
        std::uint32_t const of_words[] = {words.x, words.y, words.z, words.w};
#pragma unroll
        for (unsigned i = 0; i != 8; ++i) {
            bool const same = (of_words[i / 2] >> (i % 2 * 16) & 0xFFFF) == code;
            alike += same, earlier += same && first + i < threadIdx.x;
        }
    }
    sorted.ranks[column] = code << rank_bits_k | earlier;
    if (earlier == 0)
        places[code] = alike;
}

constexpr unsigned counts_k = 16; // that a thread loads at a time

/** A lane a code: from counts of chunks to where they begin. The block's warps have equal ranges of the chunks. */
__global__ void __launch_bounds__(threads_k, 2) place_chunks(std::uint32_t table_rows, sorted_columns sorted) {
    follow_earlier_kernels();
    __shared__ std::uint32_t of_warps[warps_k][warp_k];
    unsigned const warp = threadIdx.x / warp_k, lane = threadIdx.x % warp_k;
    std::uint32_t const code = blockIdx.x * warp_k + lane, range = ceil_divide(sorted.chunks, warps_k);
    std::uint32_t const begin = warp * range, end = code < table_rows ? min(begin + range, sorted.chunks) : 0;
    // Calls body(chunk's count) for each, some loaded at a time.
    auto const for_counts = [&](auto&& body) {
        for (std::uint32_t chunk = begin; chunk < end; chunk += counts_k) {
            std::uint32_t loaded[counts_k];
#pragma unroll
            for (unsigned i = 0; i != counts_k; ++i)
                loaded[i] = sorted.places[std::size_t(min(chunk + i, end - 1)) * table_rows + code];
#pragma unroll
            for (unsigned i = 0; i != counts_k; ++i)
                if (chunk + i < end)
                    body(chunk + i, loaded[i]);
        }
    };
    std::uint32_t sum = 0, before = 0;
    for_counts([&](std::uint32_t, std::uint32_t count) { sum += count; });
    of_warps[warp][lane] = sum;
    __syncthreads();
    for (unsigned other = 0; other != warp; ++other)
        before += of_warps[other][lane];
    if (warp == warps_k - 1 && code < table_rows)
        sorted.totals[code] = before + sum;
    for_counts([&](std::uint32_t chunk, std::uint32_t count) {
        sorted.places[std::size_t(chunk) * table_rows + code] = before;
        before += count;
    });
}

constexpr unsigned scan_threads_k = 1024;

/** One block: where every code begins, and its pieces. Both sums run in the halves of one word. */
__global__ void __launch_bounds__(scan_threads_k) place_codes(std::uint32_t table_rows, sorted_columns sorted) {
    follow_earlier_kernels();
    __shared__ unsigned long long warp_sums[scan_threads_k / warp_k];
    unsigned const lane = threadIdx.x % warp_k, warp = threadIdx.x / warp_k;
    unsigned long long before = 0;
    for (std::uint32_t begin = 0; begin < table_rows; begin += scan_threads_k) {
        std::uint32_t const code = begin + threadIdx.x;
        std::uint32_t const total = code < table_rows ? sorted.totals[code] : 0;
        unsigned long long const own = (static_cast<unsigned long long>(ceil_divide(total, piece_k)) << 32) | total;
        unsigned long long until = own;
#pragma unroll
        for (unsigned step = 1; step != warp_k; step *= 2) {
            unsigned long long const other = __shfl_up_sync(whole_warp_k, until, step);
            if (lane >= step)
                until += other;
        }
        if (lane == warp_k - 1)
            warp_sums[warp] = until;
        __syncthreads();
        unsigned long long all = 0;
        for (unsigned other = 0; other != scan_threads_k / warp_k; ++other) {
            if (other < warp)
                until += warp_sums[other];
            all += warp_sums[other];
        }
        __syncthreads();
        unsigned long long const first = before + until - own;
        if (code < table_rows) {
            sorted.begins[code] = static_cast<std::uint32_t>(first);
            sorted.pieces[code] = static_cast<std::uint32_t>(first >> 32);
        }
        before += all;
    }
    if (threadIdx.x == 0) {
        sorted.begins[table_rows] = static_cast<std::uint32_t>(before);
        sorted.pieces[table_rows] = static_cast<std::uint32_t>(before >> 32);
    }
}

/** A column a thread. */
__global__ void __launch_bounds__(threads_k)
    sort_columns(std::uint32_t table_rows, std::uint32_t columns, sorted_columns sorted) {
    follow_earlier_kernels();
    std::uint32_t const column = blockIdx.x * chunk_k + threadIdx.x;
    std::uint32_t const ranked = column < columns ? sorted.ranks[column] : no_code_k;
    if (ranked == no_code_k)
        return;
    std::uint32_t const code = ranked >> rank_bits_k, rank = ranked % (1u << rank_bits_k);
    std::uint32_t const at = sorted.places[std::size_t(blockIdx.x) * table_rows + code] + rank;
    sorted.order[sorted.begins[code] + at] = column;
    if (at % piece_k == 0)
        sorted.piece_codes[sorted.pieces[code] + at / piece_k] = code;
}

/** A piece a row of the block. */
__global__ void __launch_bounds__(moving_threads_k, 4) sum_pieces(uform_embedding_t embedding, sorted_columns sorted) {
    follow_earlier_kernels();
    extern __shared__ std::uint32_t of_pieces[]; // [rows of the block, piece_k]
    std::uint32_t* const columns = of_pieces + threadIdx.y * piece_k;
    std::uint32_t const piece = row_of_thread();
    std::uint32_t count = 0;
    if (piece < sorted.pieces[embedding.table_rows]) {
        std::uint32_t const code = sorted.piece_codes[piece];
        std::uint32_t const begin = sorted.begins[code] + (piece - sorted.pieces[code]) * piece_k;
        count = min(piece_k, sorted.begins[code + 1] - begin);
        for (unsigned i = threadIdx.x; i < count; i += blockDim.x)
            columns[i] = sorted.order[begin + i];
    }
    __syncthreads();
    if (count == 0)
        return;
    __nv_bfloat16 const* const gradient = static_cast<__nv_bfloat16 const*>(embedding.gradient);
    constexpr unsigned at_once = 8;
    for_row_vectors(embedding.hidden, [&](std::uint32_t first) {
        floatx8 sum = {};
        for (unsigned begin = 0; begin < count; begin += at_once) {
            bf16x8 loaded[at_once]; // past the end the last one again: a branch would end what runs abreast
#pragma unroll
            for (unsigned i = 0; i != at_once; ++i)
                loaded[i] =
                    load8(gradient + std::size_t(columns[min(begin + i, count - 1)]) * embedding.hidden + first);
#pragma unroll
            for (unsigned i = 0; i != at_once; ++i) {
                floatx8 const added = widen(loaded[i]);
#pragma unroll
                for (unsigned j = 0; j != lanes_k; ++j)
                    sum[j] += begin + i < count ? added[j] : 0.f;
            }
        }
        store8(sorted.sums + std::size_t(piece) * embedding.hidden + first, sum);
    });
}

constexpr unsigned groups_k = 16;
constexpr unsigned tile_k = warp_k * 4; // values of a table's row that one block adds up

/** A code a block: each of its rows sums every so many pieces, then the rows are summed in their order. */
__global__ void __launch_bounds__(warp_k* groups_k, 2) add_pieces(uform_embedding_t embedding, sorted_columns sorted) {
    follow_earlier_kernels();
    __shared__ float4 group_sums[groups_k][warp_k];
    std::uint32_t const code = blockIdx.x, value = blockIdx.y * tile_k + threadIdx.x * 4;
    std::uint32_t const begin = sorted.pieces[code], end = sorted.pieces[code + 1];
    if (begin == end)
        return;
    float4 sum = make_float4(0, 0, 0, 0);
    if (value < embedding.hidden) {
        constexpr unsigned at_once = 8;
        for (std::uint32_t first = begin + threadIdx.y; first < end; first += groups_k * at_once) {
            float4 loaded[at_once]; // past the end the last one again, as above
#pragma unroll
            for (unsigned i = 0; i != at_once; ++i)
                loaded[i] = *reinterpret_cast<float4 const*>(
                    sorted.sums + std::size_t(min(first + i * groups_k, end - 1)) * embedding.hidden + value);
#pragma unroll
            for (unsigned i = 0; i != at_once; ++i)
                if (first + i * groups_k < end)
                    sum.x += loaded[i].x, sum.y += loaded[i].y, sum.z += loaded[i].z, sum.w += loaded[i].w;
        }
    }
    group_sums[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y != 0 || value >= embedding.hidden)
        return;
    unsigned const groups = min(groups_k, end - begin);
    for (unsigned group = 1; group < groups; ++group) {
        float4 const added = group_sums[group][threadIdx.x];
        sum.x += added.x, sum.y += added.y, sum.z += added.z, sum.w += added.w;
    }
    float4* const to =
        reinterpret_cast<float4*>(embedding.table_gradient + std::size_t(code) * embedding.hidden + value);
    float4 const before = *to;
    *to = make_float4(before.x + sum.x, before.y + sum.y, before.z + sum.z, before.w + sum.w);
}

} // namespace

std::size_t embedding_workspace_bytes(std::uint32_t hidden, std::uint32_t table_rows, std::uint32_t columns) {
    return sorted_columns::bytes(hidden, table_rows, columns);
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
        sorted_columns const sorted(embedding->workspace, hidden, table_rows, embedding->columns.active);
        launch_early(stream, rank_columns, sorted.chunks, threads_k, 0, *embedding, sorted);
        launch_early(stream, place_chunks, blocks_for(table_rows, warp_k), threads_k, 0, table_rows, sorted);
        launch_early(stream, place_codes, 1, scan_threads_k, 0, table_rows, sorted);
        launch_early(stream, sort_columns, sorted.chunks, threads_k, 0, table_rows, embedding->columns.active, sorted);
        rows_shape const shape(sorted.pieces_capacity, hidden / lanes_k);
        launch_early(stream, sum_pieces, shape.grid, shape.block, shape.block.y * piece_k * sizeof(std::uint32_t),
                     *embedding, sorted);
        launch_early(stream, add_pieces, dim3(table_rows, ceil_divide(hidden, tile_k)), dim3(warp_k, groups_k), 0,
                     *embedding, sorted);
    });
}

} // namespace uform::vram

#include "vram/elementwise.cuh"
#include "vram/launch.cuh"
#include "vram/operations.h"

namespace uform::vram {

namespace {

constexpr unsigned threads_k = 256;
constexpr unsigned warps_k = threads_k / warp_k;
constexpr unsigned chunk_k = 256; // columns that one warp sorts
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

__global__ void __launch_bounds__(256) look_up(uform_embedding_t embedding) {
    std::uint32_t const column = row_of_thread();
    std::uint32_t const code = code_of(embedding, column, min(embedding.columns.counts[0], embedding.columns.active));
    if (code == no_code_k)
        return;
    __nv_bfloat16 const* const from =
        static_cast<__nv_bfloat16 const*>(embedding.table) + std::size_t(code) * embedding.hidden;
    __nv_bfloat16* const to = static_cast<__nv_bfloat16*>(embedding.states) + std::size_t(column) * embedding.hidden;
    for_row_vectors(embedding.hidden, [&](std::uint32_t first) { store8(to + first, load8(from + first)); });
}

/**
 *  Columns in the order of their codes, stably, and cut into pieces of one code each: the table's gradient is then the
 *  sum of few pieces, in an order that only the batch decides.
 */
struct sorted_columns {
    std::uint32_t chunks, pieces_capacity;
    std::uint32_t* places;      // [table_rows, chunks] of a code within a chunk; then where those begin within the code
    std::uint32_t* totals;      // [table_rows] columns of each code
    std::uint32_t* begins;      // [table_rows + 1] of each code in `order`
    std::uint32_t* pieces;      // [table_rows + 1] the first piece of each code
    std::uint32_t* piece_codes; // [pieces_capacity]
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
        order = parts.take<std::uint32_t>(columns);
        sums = parts.take<float>(std::size_t(pieces_capacity) * hidden);
    }

    static std::size_t bytes(std::uint32_t hidden, std::uint32_t table_rows, std::uint32_t columns) noexcept {
        std::size_t const chunks = ceil_divide(columns, chunk_k), pieces = columns / piece_k + table_rows;
        return part_bytes<std::uint32_t>(table_rows * chunks) + part_bytes<std::uint32_t>(table_rows) +
               2 * part_bytes<std::uint32_t>(table_rows + 1) + part_bytes<std::uint32_t>(pieces) +
               part_bytes<std::uint32_t>(columns) + part_bytes<float>(pieces * hidden);
    }
};

__global__ void __launch_bounds__(threads_k) count_codes(uform_embedding_t embedding, sorted_columns sorted) {
    std::uint32_t const column = blockIdx.x * threads_k + threadIdx.x;
    std::uint32_t const code = code_of(embedding, column, min(embedding.columns.counts[0], embedding.columns.active));
    if (code != no_code_k)
        atomicAdd(sorted.places + std::size_t(code) * sorted.chunks + column / chunk_k, 1u); // integers: no order
}

/** A warp a code: from counts of chunks to where they begin. */
__global__ void __launch_bounds__(threads_k) place_chunks(std::uint32_t table_rows, sorted_columns sorted) {
    std::uint32_t const code = blockIdx.x * warps_k + threadIdx.x / warp_k, lane = threadIdx.x % warp_k;
    if (code >= table_rows)
        return;
    std::uint32_t* const places = sorted.places + std::size_t(code) * sorted.chunks;
    std::uint32_t before = 0;
    for (std::uint32_t begin = 0; begin < sorted.chunks; begin += warp_k) {
        std::uint32_t const chunk = begin + lane, own = chunk < sorted.chunks ? places[chunk] : 0;
        std::uint32_t until = own;
#pragma unroll
        for (unsigned step = 1; step != warp_k; step *= 2) {
            std::uint32_t const other = __shfl_up_sync(whole_warp_k, until, step);
            if (lane >= step)
                until += other;
        }
        if (chunk < sorted.chunks)
            places[chunk] = before + until - own;
        before += __shfl_sync(whole_warp_k, until, warp_k - 1);
    }
    if (lane == 0)
        sorted.totals[code] = before;
}

constexpr unsigned scan_threads_k = 1024;

/** One block: where every code begins, and its pieces. Both sums run in the halves of one word. */
__global__ void __launch_bounds__(scan_threads_k) place_codes(std::uint32_t table_rows, sorted_columns sorted) {
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

/** A warp a chunk, 32 columns at a time. */
__global__ void __launch_bounds__(threads_k) sort_columns(uform_embedding_t embedding, sorted_columns sorted) {
    std::uint32_t const chunk = blockIdx.x * warps_k + threadIdx.x / warp_k, lane = threadIdx.x % warp_k;
    std::uint32_t const count = min(embedding.columns.counts[0], embedding.columns.active);
    if (chunk >= sorted.chunks)
        return;
    for (std::uint32_t step = 0; step != chunk_k; step += warp_k) {
        std::uint32_t const column = chunk * chunk_k + step + lane;
        std::uint32_t const code = code_of(embedding, column, count);
        unsigned const alike = __match_any_sync(whole_warp_k, code);
        bool const coded = code != no_code_k;
        std::uint32_t* const place = sorted.places + (coded ? std::size_t(code) * sorted.chunks + chunk : 0);
        std::uint32_t const begin = coded ? *place : 0;
        __syncwarp();
        unsigned const earlier = __popc(alike & ((1u << lane) - 1));
        if (coded) {
            if (earlier == 0)
                *place = begin + __popc(alike);
            std::uint32_t const at = begin + earlier;
            sorted.order[sorted.begins[code] + at] = column;
            if (at % piece_k == 0)
                sorted.piece_codes[sorted.pieces[code] + at / piece_k] = code;
        }
        __syncwarp();
    }
}

/** A piece a row of the block. */
__global__ void __launch_bounds__(256) sum_pieces(uform_embedding_t embedding, sorted_columns sorted) {
    std::uint32_t const piece = row_of_thread();
    if (piece >= sorted.pieces[embedding.table_rows])
        return;
    std::uint32_t const code = sorted.piece_codes[piece];
    std::uint32_t const begin = sorted.begins[code] + (piece - sorted.pieces[code]) * piece_k;
    std::uint32_t const end = min(begin + piece_k, sorted.begins[code + 1]);
    __nv_bfloat16 const* const gradient = static_cast<__nv_bfloat16 const*>(embedding.gradient);
    for_row_vectors(embedding.hidden, [&](std::uint32_t first) {
        floatx8 sum = {};
#pragma unroll 8
        for (std::uint32_t place = begin; place < end; ++place) {
            floatx8 const added = widen(load8(gradient + std::size_t(sorted.order[place]) * embedding.hidden + first));
#pragma unroll
            for (unsigned i = 0; i != lanes_k; ++i)
                sum[i] += added[i];
        }
        store8(sorted.sums + std::size_t(piece) * embedding.hidden + first, sum);
    });
}

constexpr unsigned groups_k = 16;
constexpr unsigned tile_k = warp_k * 4; // values of a table's row that one block adds up

/** A code a block: each of its rows sums every so many pieces, then the rows are summed in their order. */
__global__ void __launch_bounds__(warp_k* groups_k) add_pieces(uform_embedding_t embedding, sorted_columns sorted) {
    __shared__ float4 group_sums[groups_k][warp_k];
    std::uint32_t const code = blockIdx.x, value = blockIdx.y * tile_k + threadIdx.x * 4;
    std::uint32_t const begin = sorted.pieces[code], end = sorted.pieces[code + 1];
    if (begin == end)
        return;
    float4 sum = make_float4(0, 0, 0, 0);
    if (value < embedding.hidden) {
#pragma unroll 4
        for (std::uint32_t piece = begin + threadIdx.y; piece < end; piece += groups_k) {
            float4 const added =
                *reinterpret_cast<float4 const*>(sorted.sums + std::size_t(piece) * embedding.hidden + value);
            sum.x += added.x, sum.y += added.y, sum.z += added.z, sum.w += added.w;
        }
    }
    group_sums[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y != 0 || value >= embedding.hidden)
        return;
    for (unsigned group = 1; group != groups_k; ++group) {
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
        rows_shape const shape(embedding->columns.active, embedding->hidden / lanes_k);
        launch(stream, look_up, shape.grid, shape.block, 0, *embedding);
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
        check_cuda(cudaMemsetAsync(sorted.places, 0, std::size_t(table_rows) * sorted.chunks * sizeof(*sorted.places),
                                   stream.handle),
                   stream);
        launch(stream, count_codes, blocks_for(embedding->columns.active, threads_k), threads_k, 0, *embedding, sorted);
        launch(stream, place_chunks, blocks_for(table_rows, warps_k), threads_k, 0, table_rows, sorted);
        launch(stream, place_codes, 1, scan_threads_k, 0, table_rows, sorted);
        launch(stream, sort_columns, blocks_for(sorted.chunks, warps_k), threads_k, 0, *embedding, sorted);
        rows_shape const shape(sorted.pieces_capacity, hidden / lanes_k);
        launch(stream, sum_pieces, shape.grid, shape.block, 0, *embedding, sorted);
        launch(stream, add_pieces, dim3(table_rows, ceil_divide(hidden, tile_k)), dim3(warp_k, groups_k), 0, *embedding,
               sorted);
    });
}

} // namespace uform::vram

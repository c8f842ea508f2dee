/** Rows of bfloat16 from one place to another, eight vectors of each thread in flight. */
#pragma once

#include "vram/elementwise.cuh"
#include "vram/succession.cuh"

namespace uform::vram {

/**
 *  Threads of a block that moves rows, at most, and the rows that each has. Such a kernel's bounds must name the blocks
 *  that a multiprocessor should hold: without, compilers save registers, and load one vector after the other.
 */
inline constexpr unsigned moving_threads_k = 256, moved_rows_k = 8;

/** What a row is moved from or to, as looked up; or that it is left alone, or becomes zero. */
inline constexpr std::uint32_t left_alone_k = 0xFFFFFFFFu, becomes_zero_k = 0xFFFFFFFEu;

/**
 *  Moves the block's rows, so many vectors in flight at a time. What it takes to know a row's place is waited for once,
 *  by all rows' threads abreast.
 *  @param look_up (row): its place. @param load (row, place, first): the vector there. Rows that have none load that of
 *      place 0, for nothing: a branch would end what runs abreast.
 *  @param store (row, place, first, vector)
 */
template <typename look_up_at, typename load_at, typename store_at>
__device__ __forceinline__ void move_rows(std::uint32_t rows, std::uint32_t width, look_up_at&& look_up, load_at&& load,
                                          store_at&& store) {
    extern __shared__ std::uint32_t moved_places[]; // [rows of the block]
    unsigned const high = blockDim.y * moved_rows_k, threads = blockDim.x * blockDim.y;
    std::uint32_t const first_row = blockIdx.x * high;
    if (first_row >= rows)
        return;
    for (unsigned i = threadIdx.x + blockDim.x * threadIdx.y; i < high; i += threads)
        moved_places[i] = first_row + i < rows ? look_up(first_row + i) : left_alone_k;
    __syncthreads();
    for_row_vectors(width, [&](std::uint32_t first) {
        bf16x8 vectors[moved_rows_k];
        std::uint32_t places[moved_rows_k];
#pragma unroll
        for (unsigned i = 0; i != moved_rows_k; ++i) {
            unsigned const within = i * blockDim.y + threadIdx.y;
            places[i] = moved_places[within];
            vectors[i] = load(min(first_row + within, rows - 1), places[i] < becomes_zero_k ? places[i] : 0, first);
        }
#pragma unroll
        for (unsigned i = 0; i != moved_rows_k; ++i)
            if (places[i] != left_alone_k)
                store(first_row + i * blockDim.y + threadIdx.y, places[i], first,
                      places[i] == becomes_zero_k ? bf16x8{} : vectors[i]);
    });
}

/** Starts a kernel that calls `move_rows` for rows of so many values, and follows earlier ones by itself. */
template <typename... parameters_at, typename... arguments_at>
void launch_moves(stream const& stream, void (*kernel)(parameters_at...), std::size_t rows, std::size_t width,
                  arguments_at&&... arguments) {
    dim3 const block = rows_shape(rows, width / lanes_k).block;
    unsigned const high = block.y * moved_rows_k;
    std::size_t const places_bytes = high * sizeof(std::uint32_t);
    launch_early(stream, kernel, blocks_for(rows, high), block, places_bytes,
                 static_cast<arguments_at&&>(arguments)...);
}

} // namespace uform::vram

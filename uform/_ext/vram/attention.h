/** Attention within segments of packed columns: what its kernels are given, and how much memory backward takes. */
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include <cuda_bf16.h>

#include <uform/plugin.h>

#include "vram/stream.h"

namespace uform::vram {

/** Columns that a thread block works on at a time: queries in forward, keys and values in backward. */
inline constexpr std::uint32_t attention_block_k = 128;

/** The longest segment that Hopper's blocks of threads take as a whole in backward. */
inline constexpr std::uint32_t attention_unit_columns_k = 256;

/** Queries whose gradients are summed in one contiguous piece of the scratch memory. */
inline constexpr std::uint32_t attention_unit_k = 32;

/** One call over all heads, each 64 wide; rows of every matrix are columns of the batch. */
struct attention_problem {
    uform_columns_t columns;
    std::uint32_t heads;
    __nv_bfloat16 const* qkv; // [active, 3 * 64 * heads] queries, keys, values; the first two turned
    __nv_bfloat16* attended;  // [active, 64 * heads] forward writes it, zeros past the count
    float* log_sums;          // [heads, capacity] forward writes it: of a row's exponentials of scores

    // backward alone
    __nv_bfloat16 const* gradient = nullptr; // of `attended`
    __nv_bfloat16* qkv_gradient = nullptr;   // like `qkv`, zeros past the count
    bool turn_back = false;                  // gradients are those before queries and keys were turned
    float* scratch = nullptr;                // [attention_scratch_floats], aligned to 16 bytes
    std::uint32_t owned_columns = 0;         // a longer segment is shared by blocks, which costs two products more
};

/** Pieces of the scratch memory that one head takes: see `block_columns` in attention_backward.cu. */
constexpr std::size_t attention_scratch_units(std::size_t capacity) noexcept {
    return capacity / attention_unit_k + capacity / attention_block_k + 2;
}

/** Values of backward's scratch memory: sums of the queries' gradients, then a value a row and head. */
constexpr std::size_t attention_scratch_floats(std::size_t capacity, std::size_t heads) noexcept {
    std::size_t const unit_floats = attention_unit_k * 64;
    return heads * (attention_scratch_units(capacity) * unit_floats + capacity);
}

/** The longest segment left to one block: were all as long, every multiprocessor would still have two blocks. */
inline std::uint32_t attention_owned_columns(std::uint32_t active, std::uint32_t heads, int multiprocessors) noexcept {
    std::uint64_t const work = std::uint64_t(active) * heads, blocks = 2 * std::uint64_t(std::max(1, multiprocessors));
    return static_cast<std::uint32_t>(std::clamp<std::uint64_t>(work / blocks, attention_block_k, 4096));
}

void launch_attention_forward(stream const& on, attention_problem const& problem);
void launch_attention_backward(stream const& on, attention_problem const& problem);

namespace sm90 {

/**
 *  The same by Hopper's own instructions. Backward needs no more of its scratch memory than turns of all columns and a
 *  value a row and head, and does not read `owned_columns`.
 */
void launch_attention_forward(stream const& on, attention_problem const& problem);
void launch_attention_backward(stream const& on, attention_problem const& problem);

/**
 *  The same where no segment is longer than `attention_unit_columns_k`: faster where there are long ones, and units
 *  enough for all multiprocessors. Called by `launch_attention_backward`.
 */
void launch_attention_units_backward(stream const& on, attention_problem const& problem);

} // namespace sm90

/** What remains for segments longer than `owned_columns`: called by `launch_attention_backward`. */
void launch_attention_along(stream const& on, attention_problem const& problem);
void launch_attention_queries_backward(stream const& on, attention_problem const& problem);

} // namespace uform::vram

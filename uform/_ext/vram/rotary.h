/** Rotary positions of queries and keys. */
#pragma once

#include <cstdint>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "vram/stream.h"

namespace uform::vram {

enum class rotary_direction { forward, backward };

/**
 *  Turns the queries and keys of every column in place; backward turns their gradients back. An axis with n pairs turns
 *  the pair (j, j + 32) of a head of 64 by position * 10000^(-j / n); one axis has all 32 pairs, two have 16 each,
 * three have 8, 12 and 12.
 *  @param qkv [active, 3 * heads * 64]: queries, keys, values. Rows past the count are left alone.
 */
void launch_rotary(stream const&, uform_columns_t const& columns, std::uint32_t heads, __nv_bfloat16* qkv,
                   rotary_direction direction);

/** Pairs of a head: its value j turns with the value j + 32. */
inline constexpr std::uint32_t rotary_pairs_k = 32;

/**
 *  Writes how far every pair of every column turns, for kernels that turn what they write.
 *  @param turns [active, 32] cosine and sine, times the factor: to 2^-11, a quarter of what bfloat16 rounds. Rows past
 *         the count are left alone.
 */
void launch_rotary_turns(stream const&, uform_columns_t const& columns, float factor, __half2* turns);

/** The same to float32's last digits. */
void launch_rotary_turns(stream const&, uform_columns_t const& columns, float factor, float2* turns);

} // namespace uform::vram

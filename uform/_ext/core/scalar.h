/** Element types of outputs: rows of float32 turned into rows of another type. */
#pragma once

#include <cstddef>
#include <cstdint>

#include <uform/uform.h>

namespace uform {

/** Bytes of one row of `width` values; an unknown type and a size past the address space are refused. */
std::size_t scalar_row_bytes(std::int32_t scalar, std::size_t width);

/**
 *  Converts rows that lie end to end. Halves round to the nearest, ties to even; int8 is the nearest integer to 127 x,
 * held to [-127, 127], where NaN becomes 0; a bit is 1 where x > 0, most significant first, with zeros after a row's
 * last.
 *  @param to `rows` times `scalar_row_bytes` bytes.
 */
void scalar_convert(float const* from, std::size_t rows, std::size_t width, std::int32_t scalar, void* to);

/** The bits of the nearest half, ties to even; too large becomes infinity, NaN stays one. */
std::uint16_t float16_bits(float value) noexcept;
std::uint16_t bfloat16_bits(float value) noexcept;

} // namespace uform

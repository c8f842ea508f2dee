/** Rows between float32 and the element types that others take and give. */
#include <algorithm>
#include <cmath>

#include <cuda_fp16.h>

#include "vram/elementwise.cuh"
#include "vram/launch.cuh"
#include "vram/operations.h"

namespace uform::vram {

namespace {

/* ------------------------------------------------------------------------------------------------- to other types */

__device__ __forceinline__ std::uint32_t magnitude_of(float value) { return __float_as_uint(value) & 0x7FFFFFFFu; }

/** What eight values become, for each element type; roundings are those of RAM, down to the bits that a NaN keeps. */
template <std::int32_t scalar_ak> struct encoding;

template <> struct encoding<uform_scalar_float32_k> {
    using element = float;
    static __device__ element of(float value) { return value; }
};

template <> struct encoding<uform_scalar_float16_k> {
    using element = std::uint16_t;
    static __device__ element of(float value) {
        if (isnan(value))
            return static_cast<element>((__float_as_uint(value) >> 16 & 0x8000u) | 0x7E00u |
                                        (magnitude_of(value) >> 13 & 0x3FFu));
        return __half_as_ushort(__float2half_rn(value));
    }
};

template <> struct encoding<uform_scalar_bfloat16_k> {
    using element = std::uint16_t;
    static __device__ element of(float value) {
        if (isnan(value))
            return static_cast<element>(__float_as_uint(value) >> 16 | 0x40u);
        return __bfloat16_as_ushort(__float2bfloat16_rn(value));
    }
};

template <> struct encoding<uform_scalar_int8_k> {
    using element = std::int8_t;
    static __device__ element of(float value) {
        constexpr float scale = 127.f;
        if (isnan(value))
            return 0;
        return static_cast<element>(rintf(fminf(fmaxf(__fmul_rn(value, scale), -scale), scale)));
    }
};

/** Eight elements as they lie in memory. */
template <typename element_at>
struct alignas(sizeof(element_at) * lanes_k < 16 ? sizeof(element_at) * lanes_k : 16) elements8 {
    element_at lanes[lanes_k];
};

/** Rows that one launch has places for: they travel as its argument. */
constexpr std::uint32_t places_k = 960;

struct narrow_rows {
    std::uint32_t width, count;
    bool placed; // else row after row
    float const* from;
    std::byte* to;
    std::size_t to_bytes;
    std::uint32_t places[places_k];
};

/** Eight values from `first` on; those past the width are zero. */
template <bool vectors_ak>
__device__ __forceinline__ floatx8 take8(float const* row, std::uint32_t first, std::uint32_t width) {
    if constexpr (vectors_ak)
        return load8(row + first);
    floatx8 values{};
    for (std::uint32_t i = 0; i != lanes_k && first + i < width; ++i)
        values[i] = row[first + i];
    return values;
}

template <std::int32_t scalar_ak, bool vectors_ak>
__device__ __forceinline__ void put8(std::byte* row, std::uint32_t first, std::uint32_t width, floatx8 const& values) {
    if constexpr (scalar_ak == uform_scalar_bit_k) {
        unsigned bits = 0;
#pragma unroll
        for (unsigned i = 0; i != lanes_k; ++i)
            bits |= values[i] > 0 ? 0x80u >> i : 0u;
        row[first / lanes_k] = static_cast<std::byte>(bits);
    } else {
        using encoded = encoding<scalar_ak>;
        using element = typename encoded::element;
        elements8<element> whole;
#pragma unroll
        for (unsigned i = 0; i != lanes_k; ++i)
            whole.lanes[i] = encoded::of(values[i]);
        auto* const to = reinterpret_cast<element*>(row) + first;
        if constexpr (vectors_ak)
            *reinterpret_cast<elements8<element>*>(to) = whole;
        else
            for (std::uint32_t i = 0; i != lanes_k && first + i < width; ++i)
                to[i] = whole.lanes[i];
    }
}

template <std::int32_t scalar_ak, bool vectors_ak>
__global__ void __launch_bounds__(256) narrow_kernel(__grid_constant__ narrow_rows const rows) {
    std::uint32_t const row = row_of_thread();
    if (row >= rows.count)
        return;
    float const* const from = rows.from + std::size_t(row) * rows.width;
    std::byte* const to = rows.to + std::size_t(rows.placed ? rows.places[row] : row) * rows.to_bytes;
    for_row_vectors(rows.width, [&](std::uint32_t first) {
        put8<scalar_ak, vectors_ak>(to, first, rows.width, take8<vectors_ak>(from, first, rows.width));
    });
}

bool is_aligned(std::size_t address, std::size_t bytes) noexcept { return address % bytes == 0; }
bool is_aligned(void const* pointer, std::size_t bytes) noexcept {
    return is_aligned(reinterpret_cast<std::uintptr_t>(pointer), bytes);
}

template <std::int32_t scalar_ak> void launch_narrow(stream const& stream, narrow_rows const& rows) {
    constexpr std::size_t whole = [] {
        if constexpr (scalar_ak == uform_scalar_bit_k)
            return std::size_t(1);
        else
            return alignof(elements8<typename encoding<scalar_ak>::element>);
    }();
    bool const vectors = rows.width % lanes_k == 0 && is_aligned(rows.from, 16) && is_aligned(rows.to, whole) &&
                         is_aligned(rows.to_bytes, whole);
    rows_shape const shape(rows.count, ceil_divide<std::size_t>(rows.width, lanes_k));
    launch(stream, vectors ? narrow_kernel<scalar_ak, true> : narrow_kernel<scalar_ak, false>, shape.grid, shape.block,
           0, rows);
}

void launch_narrow(stream const& stream, std::int32_t scalar, narrow_rows const& rows) {
    switch (scalar) {
    case uform_scalar_float32_k:
        return launch_narrow<uform_scalar_float32_k>(stream, rows);
    case uform_scalar_float16_k:
        return launch_narrow<uform_scalar_float16_k>(stream, rows);
    case uform_scalar_bfloat16_k:
        return launch_narrow<uform_scalar_bfloat16_k>(stream, rows);
    case uform_scalar_int8_k:
        return launch_narrow<uform_scalar_int8_k>(stream, rows);
    case uform_scalar_bit_k:
        return launch_narrow<uform_scalar_bit_k>(stream, rows);
    default:
        fail(uform_status_invalid_argument_k, "scalar is ", scalar, ", expected 0 to 4");
    }
}

/** What comes later on `on` waits for what was put on `source`. */
void wait_for(stream const& on, stream const& source) {
    {
        current_gpu const current(source.device, on.operation);
        check_cuda(cudaEventRecord(source.reached, source.handle), on);
    }
    check_cuda(cudaStreamWaitEvent(on.handle, source.reached, 0), on);
}

/** Rows that one launch takes: as many as it has places for, and as the bounce buffer holds where one is needed. */
std::uint32_t rows_at_once(uform_narrow_t const& narrow, bool bounced) noexcept {
    std::uint32_t const most = narrow.places ? places_k : narrow.count;
    std::size_t const held = bounced ? bounce_bytes_k / (narrow.width * sizeof(float)) : most;
    return static_cast<std::uint32_t>(std::clamp<std::size_t>(held, 1, std::max(most, 1u)));
}

/* ----------------------------------------------------------------------------------------------- from other types */

__device__ __forceinline__ float widened(float value) { return value; }
__device__ __forceinline__ float widened(__nv_bfloat16 value) { return __bfloat162float(value); }
__device__ __forceinline__ floatx8 widened8(float const* from) { return load8(from); }
__device__ __forceinline__ floatx8 widened8(__nv_bfloat16 const* from) { return widen(load8(from)); }

template <typename value_at, bool vectors_ak> __global__ void __launch_bounds__(256) widen_kernel(uform_widen_t given) {
    std::uint32_t const row = row_of_thread();
    if (row >= given.rows)
        return;
    auto const* const from = static_cast<value_at const*>(given.from) + std::int64_t(row) * given.row_stride;
    std::size_t const begin = std::size_t(row) * given.width;
    for_row_vectors(given.width, [&](std::uint32_t first) {
        std::uint32_t const count = vectors_ak ? lanes_k : min(lanes_k, given.width - first);
        floatx8 values{};
        if constexpr (vectors_ak)
            values = widened8(from + first);
        else
            for (std::uint32_t i = 0; i != count; ++i)
                values[i] = widened(from[std::int64_t(first + i) * given.column_stride]);
        for (std::uint32_t i = count; i-- != 0;)
            if (!isfinite(values[i])) // integers: no order
                atomicMin(reinterpret_cast<unsigned long long*>(given.not_finite), begin + first + i);
        if (given.to == nullptr)
            return;
        if constexpr (vectors_ak)
            store8(given.to + begin + first, values);
        else
            for (std::uint32_t i = 0; i != count; ++i)
                given.to[begin + first + i] = values[i];
    });
}

template <typename value_at> void launch_widen(stream const& stream, uform_widen_t const& given) {
    bool const vectors = given.column_stride == 1 && given.width % lanes_k == 0 && is_aligned(given.from, 16) &&
                         given.row_stride % lanes_k == 0 && (given.to == nullptr || is_aligned(given.to, 16));
    rows_shape const shape(given.rows, ceil_divide<std::size_t>(given.width, lanes_k));
    launch(stream, vectors ? widen_kernel<value_at, true> : widen_kernel<value_at, false>, shape.grid, shape.block, 0,
           given);
}

} // namespace

uform_status_t rows_narrow(uform_stream_t* opaque, uform_narrow_t const* narrow) {
    return operate("rows_narrow", opaque, [&](stream const& on) {
        stream const& source = narrow->source ? stream::of(narrow->source) : on;
        if (&source != &on)
            wait_for(on, source);
        // GPUs that can not read each other's memory have bounce buffers.
        bool const bounced = &source != &on && on.bounce != nullptr;
        std::uint32_t const most = rows_at_once(*narrow, bounced);
        narrow_rows rows{};
        rows.width = narrow->width;
        rows.placed = narrow->places != nullptr;
        rows.to_bytes = narrow->to_bytes;
        for (std::uint32_t first = 0; first < narrow->count; first += most) {
            rows.count = std::min(most, narrow->count - first);
            rows.from = narrow->from + std::size_t(first) * narrow->width;
            rows.to = static_cast<std::byte*>(narrow->to) + (rows.placed ? 0 : first * narrow->to_bytes);
            if (rows.placed)
                std::copy_n(narrow->places + first, rows.count, rows.places);
            if (bounced) {
                std::size_t const bytes = std::size_t(rows.count) * rows.width * sizeof(float);
                check_cuda(cudaMemcpyAsync(on.bounce, rows.from, bytes, cudaMemcpyDefault, on.handle), on);
                rows.from = static_cast<float const*>(on.bounce);
            }
            launch_narrow(on, narrow->scalar, rows);
        }
    });
}

uform_status_t rows_widen(uform_stream_t* opaque, uform_widen_t const* given) {
    return operate("rows_widen", opaque, [&](stream const& on) {
        check_cuda(cudaMemsetAsync(given->not_finite, 0xFF, sizeof(*given->not_finite), on.handle), on);
        switch (given->scalar) {
        case uform_scalar_float32_k:
            return launch_widen<float>(on, *given);
        case uform_scalar_bfloat16_k:
            return launch_widen<__nv_bfloat16>(on, *given);
        default:
            fail(uform_status_invalid_argument_k, "scalar is ", given->scalar, ", expected FLOAT32 or BFLOAT16");
        }
    });
}

} // namespace uform::vram

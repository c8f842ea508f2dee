/** Sums over rows, such as a weights' gradient: shares of the rows are summed apart, then added in their order. */
#pragma once

#include <cstddef>
#include <cstdint>

#include "vram/launch.cuh"

namespace uform::vram {

/** Rows from the first on, as many as there are, and their shares. */
struct row_shares {
    std::uint32_t const* count; // of all rows, on the device
    std::uint32_t first, most;  // of these
    unsigned splits;            // shares, at most

    struct range {
        std::size_t begin, end; // after the first row
    };

    __device__ std::uint32_t rows() const {
        std::uint32_t const all = *count;
        return all <= first ? 0 : min(all - first, most);
    }
    /** Rows of a share: whole steps of products, so that the order of sums depends on rows and splits alone. */
    __device__ std::size_t share(std::size_t rows) const {
        constexpr std::size_t step = 64;
        return ceil_divide<std::size_t>(ceil_divide<std::size_t>(rows, splits), step) * step;
    }
    /** One share; the last ones may have no rows. */
    __device__ range of(unsigned split) const {
        std::size_t const all = rows(), each = share(all), begin = min(split * each, all);
        return {begin, min(begin + each, all)};
    }
};

/** The sum of four values of each of the first parts [count, values], from `at` on, in the parts' order. */
__device__ __forceinline__ float4 sum_of_parts(float const* __restrict__ parts, unsigned count, std::size_t values,
                                               std::size_t at) {
    constexpr unsigned at_once = 16; // parts that a thread loads at a time
    float4 sum = make_float4(0, 0, 0, 0);
    for (unsigned begin = 0; begin < count; begin += at_once) {
        float4 loaded[at_once]; // past the last part that one again: a branch would end what runs abreast
#pragma unroll
        for (unsigned i = 0; i != at_once; ++i)
            loaded[i] = *reinterpret_cast<float4 const*>(parts + min(begin + i, count - 1) * values + at);
#pragma unroll
        for (unsigned i = 0; i != at_once; ++i)
            if (begin + i < count)
                sum.x += loaded[i].x, sum.y += loaded[i].y, sum.z += loaded[i].z, sum.w += loaded[i].w;
    }
    return sum;
}

/** to += the parts [splits, values] of those shares that have rows. @param values A multiple of 4. */
void add_parts(stream const&, row_shares const&, float const* parts, std::size_t values, float* to);

} // namespace uform::vram

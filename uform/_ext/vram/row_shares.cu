#include "vram/row_shares.cuh"

#include "vram/succession.cuh"

namespace uform::vram {

namespace {

constexpr unsigned threads_k = 256;

__global__ void __launch_bounds__(threads_k, 2)
    sum_parts(row_shares shares, float const* __restrict__ parts, std::size_t values, float* __restrict__ to) {
    follow_earlier_kernels();
    std::size_t const rows = shares.rows(), at = (std::size_t(blockIdx.x) * threads_k + threadIdx.x) * 4;
    if (at >= values || rows == 0)
        return;
    unsigned const count = static_cast<unsigned>(ceil_divide(rows, shares.share(rows)));
    float4 const sum = sum_of_parts(parts, count, values, at);
    to[at] += sum.x, to[at + 1] += sum.y, to[at + 2] += sum.z, to[at + 3] += sum.w;
}

} // namespace

void add_parts(stream const& stream, row_shares const& shares, float const* parts, std::size_t values, float* to) {
    launch_early(stream, sum_parts, blocks_for(values, threads_k * 4), threads_k, 0, shares, parts, values, to);
}

} // namespace uform::vram

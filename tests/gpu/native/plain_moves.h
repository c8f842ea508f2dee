/** What reading and writing takes by itself: the bar for operations that are too small to reach a large copy's rate. */
#pragma once

#include "tests/gpu/native/gpu_check.h"
#include "vram/succession.cuh"

namespace gpu_test {

/** Bytes that an operation must read and write, each operand once. */
struct traffic {
    double reads, writes;

    double bytes() const { return reads + writes; }
};

inline constexpr unsigned plain_threads_k = 256, plain_vectors_k = 4; // that each thread has in flight

/** Vectors are copied as far as both go; of more reads a sum is kept, of more writes each is zero. */
__global__ void __launch_bounds__(plain_threads_k, 8)
    move_plainly(uint4 const* from, std::size_t reads, uint4* to, std::size_t writes) {
    uform::vram::follow_earlier_kernels();
    std::size_t const first = std::size_t(blockIdx.x) * plain_threads_k * plain_vectors_k + threadIdx.x;
    uint4 vectors[plain_vectors_k] = {};
#pragma unroll
    for (unsigned i = 0; i != plain_vectors_k; ++i)
        if (first + i * plain_threads_k < reads)
            vectors[i] = from[first + i * plain_threads_k];
    unsigned sum = 0;
#pragma unroll
    for (unsigned i = 0; i != plain_vectors_k; ++i) {
        if (first + i * plain_threads_k < writes)
            to[first + i * plain_threads_k] = vectors[i];
        else
            sum += vectors[i].x ^ vectors[i].y ^ vectors[i].z ^ vectors[i].w;
    }
    if (sum != 0) // never, as all bits read are alike, but compilers do not know
        to[0] = make_uint4(sum, sum, sum, sum);
}

/** The time of a plain kernel that reads and writes so much, by the same watch and started as operations are. */
inline double plain_milliseconds(stopwatch& watch, traffic const& moved) {
    std::size_t const vector = sizeof(uint4), reads = (static_cast<std::size_t>(moved.reads) + vector - 1) / vector,
                      writes = (static_cast<std::size_t>(moved.writes) + vector - 1) / vector;
    device_array<uint4> const from(std::max<std::size_t>(reads, 1)), to(std::max<std::size_t>(writes, 1));
    unsigned const blocks = uform::vram::blocks_for(std::max(reads, writes), plain_threads_k * plain_vectors_k);
    return watch.milliseconds([&] {
        uform::vram::launch_early(uform::vram::stream::of(stream()), move_plainly, blocks, plain_threads_k, 0,
                                  static_cast<uint4 const*>(from.data()), reads, to.data(), writes);
    });
}

} // namespace gpu_test

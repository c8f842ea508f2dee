/**
 *  CoSENT (Su, 2022): log(1 + sum of exp(scale * (s_q - s_p)) over pairs p, q where p weighs more than q).
 *
 *  With the pairs by falling weight the sum is that of low_q * (high_0 + ... + high_before q's equals), where
 *  low = exp(scale * s) and high = exp(-scale * s): running sums do instead of all pairs of pairs. A bag owns its
 *  gradient, and adds up what its pairs want in their order, so that the result is the same every time.
 */
#include "kernel.h"

namespace {

constexpr unsigned threads_k = 256;
constexpr unsigned warp_k = 32;
constexpr unsigned warps_k = threads_k / warp_k;

__device__ float sum_warp(float value) {
    for (unsigned distance = warp_k / 2; distance; distance /= 2)
        value += __shfl_xor_sync(0xFFFFFFFFu, value, distance);
    return value;
}

/** A warp a pair. */
__global__ void __launch_bounds__(threads_k) score_pairs(cosent_t const problem) {
    uint32_t const pair = blockIdx.x * warps_k + threadIdx.x / warp_k;
    if (pair >= problem.counts[0])
        return;
    float const* const left = problem.vectors + size_t(problem.left[pair]) * problem.width;
    float const* const right = problem.vectors + size_t(problem.right[pair]) * problem.width;
    float dot = 0;
    for (uint32_t column = threadIdx.x % warp_k; column < problem.width; column += warp_k)
        dot = fmaf(left[column], right[column], dot);
    dot = sum_warp(dot);
    if (threadIdx.x % warp_k == 0)
        problem.scores[pair] = dot;
}

/** Sums before every thread's stretch and the sum of all, in the threads' order. */
__device__ double scan_block(double own, double& all) {
    __shared__ double sums[threads_k];
    __syncthreads();
    sums[threadIdx.x] = own;
    __syncthreads();
    double before = 0;
    all = 0;
    for (unsigned thread = 0; thread != threads_k; ++thread) {
        if (thread == threadIdx.x)
            before = all;
        all += sums[thread];
    }
    return before;
}

/** What the running sums are of: of heavier pairs' `high`, which lie before, or of lighter pairs' `low`. */
__device__ double high_of(cosent_t const& problem, uint32_t pair) {
    return exp(-double(problem.scale) * problem.scores[pair]);
}
__device__ double low_of(cosent_t const& problem, uint32_t pair) {
    return exp(double(problem.scale) * problem.scores[pair]);
}

/** One block. Running sums are looked up at the ends of a pair's equals, so they are kept whole in shared memory. */
__global__ void __launch_bounds__(threads_k) weigh_pairs(cosent_t const problem) {
    extern __shared__ double running[]; // [2][capacity + 1]: of high, of low
    uint32_t const pairs = problem.counts[0];
    double* const highs = running;
    double* const lows = running + problem.pairs_capacity + 1;
    uint32_t const stretch = (pairs + threads_k - 1) / threads_k;
    uint32_t const begin = min(pairs, threadIdx.x * stretch), end = min(pairs, begin + stretch);
    double high = 0, low = 0, all_high = 0, all_low = 0;
    for (uint32_t pair = begin; pair != end; ++pair) {
        high += high_of(problem, pair);
        low += low_of(problem, pair);
    }
    high = scan_block(high, all_high);
    low = scan_block(low, all_low);
    for (uint32_t pair = begin; pair != end; ++pair) {
        highs[pair] = high;
        lows[pair] = low;
        high += high_of(problem, pair);
        low += low_of(problem, pair);
    }
    if (threadIdx.x == 0) {
        highs[pairs] = all_high;
        lows[pairs] = all_low;
    }
    __syncthreads();
    double sum = 0, total = 0;
    for (uint32_t pair = begin; pair != end; ++pair)
        sum += low_of(problem, pair) * highs[problem.first[pair]];
    scan_block(sum, total);
    double const factor = *problem.factor;
    double const pull = factor * problem.weight * problem.scale / (1 + total);
    for (uint32_t pair = begin; pair != end; ++pair)
        problem.forces[pair] = float(pull * (low_of(problem, pair) * highs[problem.first[pair]] -
                                             high_of(problem, pair) * (lows[pairs] - lows[problem.past[pair]])));
    if (threadIdx.x == 0)
        *problem.term += factor * log1p(total);
}

/** A warp a bag. */
__global__ void __launch_bounds__(threads_k) move_bags(cosent_t const problem) {
    uint32_t const bag = blockIdx.x * warps_k + threadIdx.x / warp_k;
    if (bag >= problem.counts[1])
        return;
    uint32_t const row = problem.bags[bag];
    float* const gradient = problem.gradient + size_t(row) * problem.width;
    for (uint32_t place = problem.starts[bag]; place != problem.starts[bag + 1]; ++place) {
        uint32_t const pair = problem.touching[place];
        uint32_t const other = problem.left[pair] == row ? problem.right[pair] : problem.left[pair];
        float const* const vector = problem.vectors + size_t(other) * problem.width;
        float const force = problem.forces[pair];
        for (uint32_t column = threadIdx.x % warp_k; column < problem.width; column += warp_k)
            gradient[column] = fmaf(force, vector[column], gradient[column]);
    }
}

unsigned blocks_for(uint32_t count) { return (count + warps_k - 1) / warps_k; }

/** Makes a device current, and afterwards the one that was. */
class current_device {
public:
    explicit current_device(int device) : status(cudaGetDevice(&before_)) {
        if (status == cudaSuccess)
            status = cudaSetDevice(device);
    }
    ~current_device() { cudaSetDevice(before_); }

    cudaError_t status;

private:
    int before_ = 0;
};

cudaError_t launch_all(cosent_t const& problem, cudaStream_t stream) {
    size_t const shared = 2 * sizeof(double) * (size_t(problem.pairs_capacity) + 1);
    // Set each time: an attribute is of one device, and the call is cheap.
    cudaError_t const status = cudaFuncSetAttribute(reinterpret_cast<void const*>(weigh_pairs),
                                                    cudaFuncAttributeMaxDynamicSharedMemorySize, int(shared));
    if (status != cudaSuccess)
        return status;
    score_pairs<<<blocks_for(problem.pairs_capacity), threads_k, 0, stream>>>(problem);
    weigh_pairs<<<1, threads_k, shared, stream>>>(problem);
    if (problem.gradient)
        move_bags<<<blocks_for(problem.bags_capacity), threads_k, 0, stream>>>(problem);
    return cudaGetLastError();
}

} // namespace

extern "C" char const* cosent_launch(cosent_t const* problem, int device, void* stream) {
    current_device const current(device);
    cudaError_t const status =
        current.status == cudaSuccess ? launch_all(*problem, static_cast<cudaStream_t>(stream)) : current.status;
    return status == cudaSuccess ? nullptr : cudaGetErrorString(status);
}

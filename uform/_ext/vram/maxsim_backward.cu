#include "vram/elementwise.cuh"
#include "vram/launch.cuh"
#include "vram/maxsim.h"

namespace uform::vram::maxsim {

namespace {

constexpr unsigned warps_k = 8;
constexpr unsigned threads_k = warps_k * warp_k;
/** Rows of a document that a block of threads owns, one a thread while they are counted. */
constexpr unsigned owned_k = threads_k;
/** Queries' vectors that are sorted at a time. */
constexpr unsigned round_k = 16384;
/** Values of a vector that a warp adds up at a time, those of a lane, and terms that are loaded ahead of their sum. */
constexpr unsigned lane_values_k = 4;
constexpr unsigned strip_k = warp_k * lane_values_k;
constexpr unsigned ahead_k = 8;

/** A lane's share of a sum of vectors. */
struct strip_sum {
    float values[lane_values_k] = {};

    __device__ __forceinline__ void add(float factor, uint2 packed) {
        float2 const low = __bfloat1622float2(*reinterpret_cast<__nv_bfloat162 const*>(&packed.x));
        float2 const high = __bfloat1622float2(*reinterpret_cast<__nv_bfloat162 const*>(&packed.y));
        values[0] = fmaf(factor, low.x, values[0]), values[1] = fmaf(factor, low.y, values[1]);
        values[2] = fmaf(factor, high.x, values[2]), values[3] = fmaf(factor, high.y, values[3]);
    }
};

/**
 *  Adds up to a warp's count of terms: lane i holds the i-th one's factor and row. The order is that of lanes.
 *  @param vectors From the lane's own values on. @param inside Whether the lane has any.
 */
__device__ __forceinline__ void add_terms(strip_sum& sum, float factor, std::uint32_t row, unsigned count,
                                          __nv_bfloat16 const* vectors, std::uint32_t stride, bool inside) {
    for (unsigned first = 0; first < count; first += ahead_k) {
        uint2 loaded[ahead_k];
        float factors[ahead_k];
#pragma unroll
        for (unsigned i = 0; i != ahead_k; ++i) {
            // Lanes past the count hold zeros.
            factors[i] = __shfl_sync(whole_warp_k, factor, static_cast<int>(first + i));
            std::uint32_t const at = __shfl_sync(whole_warp_k, row, static_cast<int>(first + i));
            loaded[i] = make_uint2(0, 0);
            if (factors[i] != 0 && inside)
                loaded[i] = __ldg(reinterpret_cast<uint2 const*>(vectors + std::size_t(at) * stride));
        }
#pragma unroll
        for (unsigned i = 0; i != ahead_k; ++i)
            if (factors[i] != 0)
                sum.add(factors[i], loaded[i]);
    }
}

/** Adds a lane's share to a row of the gradient, which its warp alone writes. */
__device__ __forceinline__ void add_to_gradient(problem const& p, std::size_t row, std::uint32_t column,
                                                strip_sum const& sum) {
    float* const to = p.gradient + row * p.width;
#pragma unroll
    for (unsigned i = 0; i != lane_values_k; ++i)
        if (column + i < p.width)
            to[column + i] += sum.values[i];
}

/** What moving one of a query's vectors counts, by document. */
__global__ void __launch_bounds__(threads_k) find_pulls(problem p) {
    std::uint32_t const document = blockIdx.x;
    if (document >= p.counts[2])
        return;
    for (std::uint32_t query = blockIdx.y * threads_k + threadIdx.x; query < p.counts[0];
         query += gridDim.y * threads_k)
        p.pulls[std::size_t(document) * p.query_vectors_capacity + query] =
            p.coefficients[std::size_t(query) * p.documents_capacity + document] /
            static_cast<float>(p.queries[query].count);
}

/**
 *  Queries' vectors sorted by the rows of a document where they found their match. Each part begins at 16 bytes: loads
 *  of several values at once touch no other part, which another warp may be writing.
 */
struct sorted_memory {
    alignas(16) std::uint16_t sorted[round_k];        // places within the round, in order for each row
    alignas(16) std::uint32_t next[warps_k][owned_k]; // counts, then where a warp's next one of a row goes
    alignas(16) std::uint32_t begins[owned_k + 1];    // of each row's in `sorted`
    alignas(16) std::uint32_t scratch[warps_k];
};

/** One round of a block of threads: [first, end) of the queries' vectors, for rows from `first_owned` on. */
struct sorting {
    problem const& p;
    std::uint16_t const* places; // of the document
    float const* pulls;          // likewise
    std::uint32_t first_owned, first, end;

    /** Calls `body(place in the round, row or owned_k, ranks)` for what the warp has, 32 at a time. */
    template <typename body_at> __device__ __forceinline__ void each(body_at&& body) const {
        std::uint32_t const share = (end - first + warps_k * warp_k - 1) / (warps_k * warp_k) * warp_k;
        std::uint32_t const begin = first + threadIdx.x / warp_k * share, stop = min(begin + share, end);
        for (std::uint32_t at = begin; at < stop; at += warp_k) {
            std::uint32_t const own = at + threadIdx.x % warp_k;
            unsigned row = owned_k;
            if (own < stop && pulls[p.query_of[own]] != 0)
                row = min(places[own] - first_owned, owned_k); // those of rows before wrap around
            unsigned const peers = __match_any_sync(whole_warp_k, row);
            body(own - first, row, peers);
            __syncwarp();
        }
    }

    /** Leaves the vectors of each row in the order of vectors. */
    __device__ void sort(sorted_memory& memory) const {
        unsigned const warp = threadIdx.x / warp_k, lane = threadIdx.x % warp_k;
        for (unsigned row = lane; row < owned_k; row += warp_k)
            memory.next[warp][row] = 0;
        __syncwarp();
        each([&](std::uint32_t, unsigned row, unsigned peers) {
            if (row != owned_k && lane + 1 == static_cast<unsigned>(__ffs(static_cast<int>(peers))))
                memory.next[warp][row] += static_cast<unsigned>(__popc(peers));
        });
        __syncthreads();
        std::uint32_t all = 0;
        for (unsigned other = 0; other != warps_k; ++other)
            all += memory.next[other][threadIdx.x];
        std::uint32_t sum = all;
#pragma unroll
        for (unsigned step = 1; step != warp_k; step *= 2) {
            std::uint32_t const before = __shfl_up_sync(whole_warp_k, sum, step);
            sum += lane >= step ? before : 0;
        }
        if (lane == warp_k - 1)
            memory.scratch[warp] = sum;
        __syncthreads();
        for (unsigned other = 0; other != warp; ++other)
            sum += memory.scratch[other];
        std::uint32_t at = sum - all;
        memory.begins[threadIdx.x] = at;
        if (threadIdx.x == threads_k - 1)
            memory.begins[owned_k] = sum;
        for (unsigned other = 0; other != warps_k; ++other) {
            std::uint32_t const count = memory.next[other][threadIdx.x];
            memory.next[other][threadIdx.x] = at;
            at += count;
        }
        __syncthreads();
        each([&](std::uint32_t place, unsigned row, unsigned peers) {
            unsigned const before = peers & ((1u << lane) - 1);
            std::uint32_t const to =
                row == owned_k ? 0 : memory.next[warp][row] + static_cast<unsigned>(__popc(before));
            __syncwarp();
            if (row == owned_k)
                return;
            memory.sorted[to] = static_cast<std::uint16_t>(place);
            if (before == 0)
                memory.next[warp][row] += static_cast<unsigned>(__popc(peers));
        });
        __syncthreads();
    }
};

/** A block of threads some rows of a document, a warp one of them at a time. */
__global__ void __launch_bounds__(threads_k) pull_documents(problem p) {
    extern __shared__ __align__(16) std::byte shared[];
    auto& memory = *reinterpret_cast<sorted_memory*>(shared);
    std::uint32_t const document = blockIdx.x, first_owned = blockIdx.y * owned_k;
    if (document >= p.counts[2] || first_owned >= p.documents[document].count)
        return;
    unsigned const warp = threadIdx.x / warp_k, lane = threadIdx.x % warp_k;
    uform_run_of_rows_t const run = p.documents[document];
    std::uint32_t const rows = min(run.count - first_owned, owned_k), all = p.counts[1];
    std::size_t const line = std::size_t(document) * p.query_vectors_capacity;
    for (std::uint32_t first = 0; first < all; first += round_k) {
        sorting const round{p, p.places + line, p.pulls + line, first_owned, first, min(first + round_k, all)};
        round.sort(memory);
        for (std::uint32_t row = warp; row < rows; row += warps_k) {
            std::uint32_t const begin = memory.begins[row], end = memory.begins[row + 1];
            if (begin == end)
                continue;
            for (std::uint32_t column = 0; column < p.padded_width; column += strip_k) {
                std::uint32_t const own = column + lane * lane_values_k;
                bool const inside = own < p.padded_width;
                strip_sum sum;
                for (std::uint32_t at = begin; at < end; at += warp_k) {
                    bool const has = at + lane < end;
                    std::uint32_t const vector = has ? first + memory.sorted[at + lane] : 0;
                    float const factor = has ? round.pulls[p.query_of[vector]] : 0.f;
                    add_terms(sum, factor, vector, min(end - at, warp_k), p.query_vectors + own, p.padded_width,
                              inside);
                }
                add_to_gradient(p, std::size_t(run.first) + first_owned + row, own, sum);
            }
        }
        __syncthreads();
    }
}

/** A warp a query's vector, through all documents. */
__global__ void __launch_bounds__(threads_k) pull_queries(problem p) {
    std::uint32_t const vector = blockIdx.x * warps_k + threadIdx.x / warp_k;
    if (vector >= p.counts[1])
        return;
    unsigned const lane = threadIdx.x % warp_k;
    std::uint32_t const query = p.query_of[vector], documents = p.counts[2];
    uform_run_of_rows_t const run = p.queries[query];
    float const share = 1.f / static_cast<float>(run.count);
    float const* const coefficients = p.coefficients + std::size_t(query) * p.documents_capacity;
    for (std::uint32_t column = 0; column < p.padded_width; column += strip_k) {
        std::uint32_t const own = column + lane * lane_values_k;
        bool const inside = own < p.padded_width;
        strip_sum sum;
        for (std::uint32_t first = 0; first < documents; first += warp_k) {
            std::uint32_t const document = first + lane;
            float factor = 0;
            std::uint32_t row = 0;
            if (document < documents) {
                factor = coefficients[document] * share;
                row = p.first_row(p.documents[document], document) +
                      p.places[std::size_t(document) * p.query_vectors_capacity + vector];
            }
            add_terms(sum, factor, row, min(documents - first, warp_k), p.document_vectors + own, p.padded_width,
                      inside);
        }
        add_to_gradient(p, std::size_t(run.first) + (vector - run.place), own, sum);
    }
}

} // namespace

void pull(stream const& stream, problem const& p, std::uint32_t longest) {
    launch(stream, find_pulls, dim3(p.documents_capacity, blocks_for(p.queries_capacity, threads_k * 4)), threads_k, 0,
           p);
    launch(stream, pull_documents, dim3(p.documents_capacity, ceil_divide(longest, owned_k)), threads_k,
           sizeof(sorted_memory), p);
    // Behind it: a vector may be of a document and of a query.
    launch(stream, pull_queries, blocks_for(p.query_vectors_capacity, warps_k), threads_k, 0, p);
}

} // namespace uform::vram::maxsim

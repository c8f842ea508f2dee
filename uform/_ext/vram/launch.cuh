/** How operations start kernels: one place for errors, ranges that profilers show, and the arithmetic of grids. */
#pragma once

#include <cstddef>
#include <cstdint>

#include <cuda_runtime.h>

#if __has_include(<nvtx3/nvToolsExt.h>)
#include <nvtx3/nvToolsExt.h>
#define UFORM_WITH_NVTX 1
#endif

#include "vram/current_gpu.h"
#include "vram/stream.h"

namespace uform::vram {

/** A range of the host's time that profilers show under the operation's name. */
class profiled_range {
public:
#if UFORM_WITH_NVTX
    explicit profiled_range(char const* name) noexcept { nvtxRangePushA(name); }
    ~profiled_range() { nvtxRangePop(); }
#else
    explicit profiled_range(char const*) noexcept {}
#endif
    profiled_range(profiled_range const&) = delete;
    profiled_range& operator=(profiled_range const&) = delete;
};

/**
 *  An operation of the table: `body(stream)` with the stream's GPU current; what it throws becomes a status.
 *  @param name The operation's, which every message of a failure begins with. Static.
 */
template <typename body_at> uform_status_t operate(char const* name, uform_stream_t* opaque, body_at&& body) noexcept {
    return guard([&] {
        stream& on = stream::of(opaque);
        on.operation = name;
        profiled_range const range(name);
        current_gpu const current(on.device, name);
        body(static_cast<stream const&>(on));
    });
}

namespace detail {

/** Starts a kernel with attributes; more than a block may have without asking is asked for. */
template <typename... parameters_at, typename... arguments_at>
void launch(stream const& stream, void (*kernel)(parameters_at...), cudaLaunchConfig_t const& config,
            arguments_at&&... arguments) {
    constexpr std::size_t without_asking = 48 * 1024;
    if (config.dynamicSmemBytes > without_asking)
        check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                        static_cast<int>(config.dynamicSmemBytes)),
                   stream);
    check_cuda(cudaLaunchKernelEx(&config, kernel, static_cast<arguments_at&&>(arguments)...), stream);
}

} // namespace detail

/** Starts a kernel; an empty grid is none. Throws with the operation's name. */
template <typename... parameters_at, typename... arguments_at>
void launch(stream const& stream, void (*kernel)(parameters_at...), dim3 grid, dim3 block, std::size_t shared_bytes,
            arguments_at&&... arguments) {
    if (grid.x == 0 || grid.y == 0 || grid.z == 0)
        return;
    cudaLaunchConfig_t config{};
    config.gridDim = grid;
    config.blockDim = block;
    config.dynamicSmemBytes = shared_bytes;
    config.stream = stream.handle;
    detail::launch(stream, kernel, config, static_cast<arguments_at&&>(arguments)...);
}

/** When a kernel may begin. */
enum class beginning {
    after_k, // when the one before it on the stream is done
    early_k, // when that one says so: what depends on it must wait for it, see `hopper::depend_on_earlier_kernels`
};

/** The same in clusters of blocks that share their multiprocessors' memory: Hopper and later. */
template <typename... parameters_at, typename... arguments_at>
void launch_clusters(stream const& stream, void (*kernel)(parameters_at...), beginning begin, dim3 cluster, dim3 grid,
                     dim3 block, std::size_t shared_bytes, arguments_at&&... arguments) {
    if (grid.x == 0 || grid.y == 0 || grid.z == 0)
        return;
    cudaLaunchAttribute attributes[2]{};
    attributes[0].id = cudaLaunchAttributeClusterDimension;
    attributes[0].val.clusterDim.x = cluster.x;
    attributes[0].val.clusterDim.y = cluster.y;
    attributes[0].val.clusterDim.z = cluster.z;
    attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[1].val.programmaticStreamSerializationAllowed = begin == beginning::early_k;
    cudaLaunchConfig_t config{};
    config.gridDim = grid;
    config.blockDim = block;
    config.dynamicSmemBytes = shared_bytes;
    config.stream = stream.handle;
    config.attrs = attributes;
    config.numAttrs = 2;
    detail::launch(stream, kernel, config, static_cast<arguments_at&&>(arguments)...);
}

/** Quotient rounded up. */
template <typename value_at> __host__ __device__ constexpr value_at ceil_divide(value_at value, value_at by) {
    return (value + by - 1) / by;
}

/** Blocks of `per_block` for `count`. */
inline unsigned blocks_for(std::size_t count, std::size_t per_block) {
    return static_cast<unsigned>((count + per_block - 1) / per_block);
}

/** Blocks for work on rows, a vector of each row a thread; rows of the block are `block.y`, and go on along x. */
struct rows_shape {
    dim3 grid, block;

    rows_shape(std::size_t rows, std::size_t vectors) {
        constexpr std::size_t threads = 256;
        // Rows wider than a block are gone through in equal strides.
        std::size_t const strides = ceil_divide(vectors, threads), wide = strides ? ceil_divide(vectors, strides) : 1;
        std::size_t const high = threads / wide;
        block = dim3(static_cast<unsigned>(wide), static_cast<unsigned>(high));
        grid = dim3(blocks_for(rows, high));
    }
};

/** Alignment of every part of a workspace. */
inline constexpr std::size_t part_alignment_k = 256;

/** Bytes of `count` values as a part of a workspace. */
template <typename value_at> constexpr std::size_t part_bytes(std::size_t count) noexcept {
    return (count * sizeof(value_at) + part_alignment_k - 1) / part_alignment_k * part_alignment_k;
}

/** Hands out the parts of a workspace in order, each aligned as the workspace is. */
class workspace_parts {
public:
    explicit workspace_parts(void* base) noexcept : next_(static_cast<std::byte*>(base)) {}

    template <typename value_at> value_at* take(std::size_t count) noexcept {
        std::byte* const part = next_;
        next_ += part_bytes<value_at>(count);
        return reinterpret_cast<value_at*>(part);
    }

private:
    std::byte* next_;
};

/** Refuses memory smaller than an operation's own count of it. */
inline void check_bytes(char const* field, std::size_t given, std::size_t needed) {
    if (given < needed)
        fail(uform_status_internal_k, field, ": ", given, " bytes, but ", needed, " are needed");
}

} // namespace uform::vram

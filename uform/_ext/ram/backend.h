/** The RAM backend: worker threads, a GEMM, and streams of virtual devices whose memory is the host's. */
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <type_traits>

#include "core/operations.h"
#include "ram/gemm.h"
#include "ram/rotary.h"

namespace uform::ram {

class backend {
public:
    /** Refuses a BLAS library that can not be opened; the message names its path. */
    explicit backend(uform_backend_options_t const& options);

    ram::gemm const& gemm() const noexcept { return gemm_; }
    rotary_table const& rotary() const noexcept { return rotary_; }

    void count_allocation() const noexcept { allocations_.fetch_add(1, std::memory_order_relaxed); }
    std::uint64_t allocations() const noexcept { return allocations_.load(std::memory_order_relaxed); }

    /**
     *  Calls `body(index)` for every index below `tasks`, on the worker threads. What a task is must not depend on how
     *  many threads there are: results would.
     */
    template <typename body_at> void parallel_for(std::size_t tasks, body_at&& body) const {
        using callable_t = std::remove_reference_t<body_at>;
        if (tasks == 0)
            return;
        parallel_.run(
            parallel_.pool, tasks, [](void* state, std::size_t index) { (*static_cast<callable_t*>(state))(index); },
            const_cast<void*>(static_cast<void const*>(std::addressof(body))));
    }

    /** Calls `body(begin, end)` for `count` elements in chunks of `chunk`. */
    template <typename body_at> void parallel_chunks(std::size_t count, std::size_t chunk, body_at&& body) const {
        parallel_for((count + chunk - 1) / chunk, [&](std::size_t index) {
            std::size_t const begin = index * chunk;
            body(begin, std::min(begin + chunk, count));
        });
    }

private:
    uform_parallel_t parallel_;
    ram::gemm gemm_;
    rotary_table rotary_;
    mutable std::atomic<std::uint64_t> allocations_ = 0;
};

/** One virtual device. Work on it is done when the call returns. */
struct stream {
    ram::backend const& backend;
    std::uint32_t device;

    static stream const& of(uform_stream_t const* opaque) noexcept { return *reinterpret_cast<stream const*>(opaque); }
};

/** The host's clock when the work before was done. */
struct event {
    std::chrono::steady_clock::time_point at{};
};

/** Rows that one task of an elementwise or row-wise operation handles. */
inline constexpr std::size_t rows_per_task_k = 128;

/** Alignment of the backend's memory and of every part of a workspace. */
inline constexpr std::size_t alignment_k = 64;

/** Bytes rounded up to the alignment. */
constexpr std::size_t aligned(std::size_t bytes) noexcept {
    return (bytes + alignment_k - 1) / alignment_k * alignment_k;
}

/** Bytes of `count` values as a part of a workspace. */
template <typename value_at> constexpr std::size_t part_bytes(std::size_t count) noexcept {
    return aligned(count * sizeof(value_at));
}

/** Hands out the parts of a workspace in order, each aligned. */
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

} // namespace uform::ram

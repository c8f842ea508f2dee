/** Arenas: memory of the host or of a GPU that callers lend to answers and free all at once. */
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include <uform/uform.h>

#include "core/executor.h"

namespace uform {

/** Blocks of one device's memory handed out from front to back. Safe from several threads. */
class arena {
public:
    static constexpr std::size_t host_alignment_k = 64;
    static constexpr std::size_t device_alignment_k = 256; // what consumers of DLPack expect there
    static constexpr std::size_t first_block_bytes_k = std::size_t(64) << 10;
    static constexpr std::size_t most_doubled_bytes_k = std::size_t(64) << 20;

    /**
     *  @param on The executor one of whose devices the memory lies on; it is kept alive.
     *  @param capacity The bound in bytes, reserved at once; 0: blocks are added, each twice as large as the last.
     */
    arena(std::shared_ptr<executor> on, std::uint32_t place, std::size_t capacity);

    /** Bytes that stay where they are until they are given back, or the arena is reset or destroyed. */
    void* allocate(std::size_t bytes);

    /** Makes room again of what one allocation took: all is as if it had never been. */
    void give_back(void const* memory);

    /** Frees all at once, when the device is done with it, and keeps the largest block for what comes; refused while a
     * step is in flight. */
    void reset();

    /** Counts a step in flight (+1) or its end (-1). */
    void pin(std::int32_t change);

    /** Copies between this memory and that of the host or the device, after all that the device was given to do. */
    void copy(void* to, void const* from, std::size_t bytes);

    /** Bytes handed out, alignment included. */
    std::size_t used() const;

    /** The bound given; 0 where there is none. */
    std::size_t capacity() const noexcept { return capacity_; }

private:
    struct release_t {
        uform_operations_t const* operations;
        uform_stream_t* stream;
        void operator()(std::uint8_t* memory) const noexcept { operations->memory_release(stream, memory); }
    };

    /** What one allocation took of a block: the bytes at `at`, and those skipped before to align them. */
    struct range_t {
        std::size_t begin, at, end;
    };

    struct block_t {
        std::unique_ptr<std::uint8_t[], release_t> memory;
        std::size_t bytes = 0;
        std::size_t used = 0; // summed over what is taken; less than the last end where something was given back
        std::vector<range_t> taken = {};

        std::size_t end() const noexcept { return taken.empty() ? 0 : taken.back().end; }
    };

    block_t make_block(std::size_t bytes) const;
    void* take(block_t& block, std::size_t bytes);
    void* insert(block_t& block, std::size_t index, range_t range);
    void grow(std::size_t bytes);
    bool place(std::size_t begin, std::size_t limit, std::size_t bytes, range_t& range) const noexcept;

    std::shared_ptr<executor> const executor_;
    uform_operations_t const& operations_;
    uform_stream_t* const stream_; // where nothing is captured: other threads' steps may be, on the one that computes
    std::size_t const alignment_;
    std::size_t const capacity_;
    mutable std::mutex mutex_; // guards what follows
    std::vector<block_t> blocks_;
    std::size_t used_ = 0;
    std::int64_t pins_ = 0;
};

} // namespace uform

/** The handle of `uform.h`. */
struct uform_arena_t {
    uform::arena body;
};

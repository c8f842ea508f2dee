/** Arenas in RAM: memory that callers lend to a step's outputs and free all at once. */
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <new>
#include <vector>

#include <uform/uform.h>

namespace uform {

/** Blocks of host memory handed out from front to back. Safe from several threads. */
class ram_arena {
public:
    static constexpr std::size_t alignment_k = 64;
    static constexpr std::size_t first_block_bytes_k = std::size_t(64) << 10;

    /** @param capacity The bound in bytes, reserved at once; 0: blocks are added, each twice as large as the last. */
    explicit ram_arena(std::size_t capacity);

    /** Bytes that stay where they are until the arena is reset or destroyed. */
    void* allocate(std::size_t bytes);

    /** Frees all at once and keeps the largest block for what comes; refused while a step is in flight. */
    void reset();

    /** Counts a step in flight (+1) or its end (-1). */
    void pin(std::int32_t change);

    /** Bytes handed out, alignment included. */
    std::size_t used() const;

    /** The bound given; 0 where there is none. */
    std::size_t capacity() const noexcept { return capacity_; }

private:
    struct release_t {
        void operator()(std::byte* memory) const noexcept {
            ::operator delete[](memory, std::align_val_t(alignment_k));
        }
    };
    struct block_t {
        std::unique_ptr<std::byte[], release_t> memory;
        std::size_t bytes = 0;
        std::size_t used = 0;
    };

    static block_t make_block(std::size_t bytes);
    void* take(block_t& block, std::size_t bytes) noexcept;
    void grow(std::size_t bytes);

    std::size_t const capacity_;
    mutable std::mutex mutex_; // guards what follows
    std::vector<block_t> blocks_;
    std::size_t used_ = 0;
    std::int64_t pins_ = 0;
};

} // namespace uform

/** The handle of `uform.h`. */
struct uform_arena_t {
    uform::ram_arena ram;
};

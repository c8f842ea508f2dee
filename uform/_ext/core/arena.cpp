#include "core/arena.h"

#include <algorithm>

#include "core/error.h"

namespace uform {

namespace {

constexpr std::size_t round_up(std::size_t bytes) noexcept {
    return (bytes + ram_arena::alignment_k - 1) & ~(ram_arena::alignment_k - 1);
}

} // namespace

ram_arena::ram_arena(std::size_t capacity) : capacity_(capacity) {
    if (!capacity)
        return;
    blocks_.push_back(make_block(capacity));
    if (!blocks_.back().memory)
        fail(uform_status_out_of_memory_k, "the host has no memory for an arena of ", capacity, " bytes");
}

void* ram_arena::allocate(std::size_t bytes) {
    // An empty allocation has an address of its own as well.
    bytes = std::max<std::size_t>(bytes, 1);
    std::lock_guard lock(mutex_);
    if (!blocks_.empty())
        if (void* const memory = take(blocks_.back(), bytes))
            return memory;
    if (capacity_)
        fail(uform_status_out_of_memory_k, "the arena has no room for ", bytes, " bytes: ", used_, " of its ",
             capacity_, " are in use");
    grow(bytes);
    return take(blocks_.back(), bytes);
}

void ram_arena::reset() {
    std::lock_guard lock(mutex_);
    if (pins_)
        fail(uform_status_invalid_argument_k, "the arena can not be reset while ", pins_,
             pins_ == 1 ? " step that writes" : " steps that write", " into it ", pins_ == 1 ? "is" : "are",
             " in flight");
    // Blocks grow, so the last one is the largest.
    if (blocks_.size() > 1)
        blocks_.erase(blocks_.begin(), blocks_.end() - 1);
    if (!blocks_.empty())
        blocks_.back().used = 0;
    used_ = 0;
}

void ram_arena::pin(std::int32_t change) {
    if (change != 1 && change != -1)
        fail(uform_status_invalid_argument_k, "change is ", change, ", expected 1 or -1");
    std::lock_guard lock(mutex_);
    if (pins_ + change < 0)
        fail(uform_status_invalid_argument_k, "change is -1, but no step is in flight");
    pins_ += change;
}

std::size_t ram_arena::used() const {
    std::lock_guard lock(mutex_);
    return used_;
}

ram_arena::block_t ram_arena::make_block(std::size_t bytes) {
    auto* const memory = static_cast<std::byte*>(::operator new[](bytes, std::align_val_t(alignment_k), std::nothrow));
    return {std::unique_ptr<std::byte[], release_t>(memory), bytes, 0};
}

void* ram_arena::take(block_t& block, std::size_t bytes) noexcept {
    std::size_t const begin = round_up(block.used);
    if (begin > block.bytes || bytes > block.bytes - begin)
        return nullptr;
    used_ += begin + bytes - block.used;
    block.used = begin + bytes;
    return block.memory.get() + begin;
}

void ram_arena::grow(std::size_t bytes) {
    std::size_t const last = blocks_.empty() ? first_block_bytes_k / 2 : blocks_.back().bytes;
    std::size_t const doubled = last <= SIZE_MAX / 2 ? 2 * last : last;
    block_t block = make_block(std::max(bytes, doubled));
    if (!block.memory)
        fail(uform_status_out_of_memory_k, "the host has no memory for ", bytes, " more bytes of an arena: ", used_,
             " are in use");
    blocks_.push_back(std::move(block));
}

} // namespace uform

uform_status_t uform_arena_init_ram(size_t capacity, uform_arena_t** arena) {
    return uform::guard([&] {
        if (!arena)
            uform::fail(uform_status_invalid_argument_k, "arena is null");
        *arena = nullptr;
        *arena = new uform_arena_t{uform::ram_arena(capacity)};
    });
}

uform_status_t uform_arena_init_vram(int32_t device, size_t, uform_arena_t** arena) {
    return uform::guard([&] {
        if (arena)
            *arena = nullptr;
        uform::fail(uform_status_device_k, "no arena can be made on GPU ", device,
                    ": this build of uform is RAM-only; build it where nvcc is found, or with UFORM_VRAM=1");
    });
}

void uform_arena_free(uform_arena_t* arena) { delete arena; }

uform_status_t uform_arena_allocate(uform_arena_t* arena, size_t bytes, void** memory) {
    return uform::guard([&] {
        if (!arena || !memory)
            uform::fail(uform_status_invalid_argument_k, arena ? "memory" : "arena", " is null");
        *memory = nullptr;
        *memory = arena->ram.allocate(bytes);
    });
}

uform_status_t uform_arena_reset(uform_arena_t* arena) {
    return uform::guard([&] {
        if (!arena)
            uform::fail(uform_status_invalid_argument_k, "arena is null");
        arena->ram.reset();
    });
}

uform_status_t uform_arena_pin(uform_arena_t* arena, int32_t change) {
    return uform::guard([&] {
        if (!arena)
            uform::fail(uform_status_invalid_argument_k, "arena is null");
        arena->ram.pin(change);
    });
}

size_t uform_arena_used(uform_arena_t const* arena) { return arena ? arena->ram.used() : 0; }

size_t uform_arena_capacity(uform_arena_t const* arena) { return arena ? arena->ram.capacity() : 0; }

#include "core/arena.h"

#include <algorithm>

#include "core/error.h"

namespace uform {

arena::arena(std::shared_ptr<executor> on, std::uint32_t place, std::size_t capacity)
    : executor_(std::move(on)), operations_(executor_->operations()), stream_(executor_->upload_stream(place)),
      alignment_(operations_.host_memory ? host_alignment_k : device_alignment_k), capacity_(capacity) {
    if (!capacity)
        return;
    blocks_.push_back(make_block(capacity));
    if (!blocks_.back().memory)
        fail(uform_status_out_of_memory_k, "capacity: no arena of ", capacity, " bytes can be made: ", last_error());
}

void* arena::allocate(std::size_t bytes) {
    // An empty allocation has an address of its own as well.
    bytes = std::max<std::size_t>(bytes, 1);
    std::lock_guard lock(mutex_);
    for (auto block = blocks_.rbegin(); block != blocks_.rend(); ++block)
        if (void* const memory = take(*block, bytes))
            return memory;
    if (capacity_)
        fail(uform_status_out_of_memory_k, "the arena has no room for ", bytes, " bytes: ", used_, " of its ",
             capacity_, " are in use");
    grow(bytes);
    return take(blocks_.back(), bytes);
}

void arena::give_back(void const* memory) {
    std::lock_guard lock(mutex_);
    for (block_t& block : blocks_) {
        std::uint8_t const* const base = block.memory.get();
        // The last allocation is the one that is usually given back.
        auto const found = std::find_if(block.taken.rbegin(), block.taken.rend(),
                                        [&](range_t const& range) { return base + range.at == memory; });
        if (found == block.taken.rend())
            continue;
        std::size_t const bytes = found->end - found->begin;
        block.used -= bytes;
        used_ -= bytes;
        block.taken.erase(std::next(found).base());
        return;
    }
    fail(uform_status_invalid_argument_k, "memory was not allocated from this arena, or was given back already");
}

void arena::reset() {
    std::lock_guard lock(mutex_);
    if (pins_)
        fail(uform_status_invalid_argument_k, "the arena can not be reset while ", pins_,
             pins_ == 1 ? " step that writes" : " steps that write", " into it ", pins_ == 1 ? "is" : "are",
             " in flight");
    // Whoever was shown a buffer may have let go of it before the device has read it.
    check(operations_.device_synchronize(stream_));
    auto const largest = std::max_element(blocks_.begin(), blocks_.end(),
                                          [](block_t const& a, block_t const& b) { return a.bytes < b.bytes; });
    if (largest != blocks_.end()) {
        std::iter_swap(largest, blocks_.begin());
        blocks_.erase(blocks_.begin() + 1, blocks_.end());
        blocks_.front().taken.clear();
        blocks_.front().used = 0;
    }
    used_ = 0;
}

void arena::pin(std::int32_t change) {
    if (change != 1 && change != -1)
        fail(uform_status_invalid_argument_k, "change is ", change, ", expected 1 or -1");
    std::lock_guard lock(mutex_);
    if (pins_ + change < 0)
        fail(uform_status_invalid_argument_k, "change is -1, but no step is in flight");
    pins_ += change;
}

void arena::copy(void* to, void const* from, std::size_t bytes) {
    check(operations_.device_synchronize(stream_));
    check(operations_.memory_copy(stream_, to, from, bytes));
    check(operations_.stream_synchronize(stream_));
}

std::size_t arena::used() const {
    std::lock_guard lock(mutex_);
    return used_;
}

/** A block without memory where there is none; `last_error` says why. */
arena::block_t arena::make_block(std::size_t bytes) const {
    void* memory = nullptr;
    uform_status_t const status = operations_.memory_allocate(stream_, bytes, &memory);
    if (status != uform_status_success_k && status != uform_status_out_of_memory_k)
        check(status);
    return {{static_cast<std::uint8_t*>(memory), release_t{&operations_, stream_}}, bytes};
}

/** Whether so many bytes, aligned, lie between `begin` and `limit`; then `range` says where. */
bool arena::place(std::size_t begin, std::size_t limit, std::size_t bytes, range_t& range) const noexcept {
    std::size_t const at = (begin + alignment_ - 1) & ~(alignment_ - 1);
    if (at > limit || bytes > limit - at)
        return false;
    range = {begin, at, at + bytes};
    return true;
}

void* arena::take(block_t& block, std::size_t bytes) {
    range_t range{};
    std::size_t begin = 0;
    // What was given back is taken first.
    for (std::size_t index = 0; block.used != block.end() && index != block.taken.size(); ++index) {
        if (place(begin, block.taken[index].begin, bytes, range))
            return insert(block, index, range);
        begin = block.taken[index].end;
    }
    return place(block.end(), block.bytes, bytes, range) ? insert(block, block.taken.size(), range) : nullptr;
}

void* arena::insert(block_t& block, std::size_t index, range_t range) {
    block.taken.insert(block.taken.begin() + static_cast<std::ptrdiff_t>(index), range);
    block.used += range.end - range.begin;
    used_ += range.end - range.begin;
    return block.memory.get() + range.at;
}

void arena::grow(std::size_t bytes) {
    std::size_t const last = blocks_.empty() ? first_block_bytes_k / 2 : blocks_.back().bytes;
    std::size_t const doubled = std::min(last, most_doubled_bytes_k / 2) * 2;
    block_t block = make_block(std::max(bytes, doubled));
    if (!block.memory && bytes < doubled)
        block = make_block(bytes);
    if (!block.memory)
        fail(uform_status_out_of_memory_k, "the arena can not grow by ", bytes, " bytes, ", used_,
             " are in use: ", last_error());
    blocks_.push_back(std::move(block));
}

} // namespace uform

namespace {

/** Serves every arena in RAM: an executor's tables take milliseconds to make, and its memory is anyone's. */
std::shared_ptr<uform::executor> host_executor() {
    static std::shared_ptr<uform::executor> const instance = uform::executor::for_ram(1, 1, nullptr);
    return instance;
}

template <typename make_at> uform_status_t init_arena(uform_arena_t** made, make_at&& make) {
    return uform::guard([&] {
        if (!made)
            uform::fail(uform_status_invalid_argument_k, "arena is null");
        *made = nullptr;
        *made = make();
    });
}

/** Calls `body(arena)` where there is one. */
template <typename body_at> uform_status_t on_arena(uform_arena_t* arena, body_at&& body) {
    return uform::guard([&] {
        if (!arena)
            uform::fail(uform_status_invalid_argument_k, "arena is null");
        body(arena->body);
    });
}

} // namespace

extern "C" {

uform_status_t uform_arena_init_ram(size_t capacity, uform_arena_t** arena) {
    return init_arena(arena, [&] { return new uform_arena_t{{host_executor(), 0, capacity}}; });
}

uform_status_t uform_arena_init_vram(int32_t device, [[maybe_unused]] size_t capacity, uform_arena_t** arena) {
    return init_arena(arena, [&]() -> uform_arena_t* {
#if UFORM_WITH_VRAM
        std::vector<int32_t> const visible = uform::vram_devices(); // says why where no GPU can be used
        if (std::find(visible.begin(), visible.end(), device) == visible.end())
            uform::fail(uform_status_device_k, "device: ", device, " is no GPU: ", visible.size(),
                        " are visible, counted from 0");
        return new uform_arena_t{{uform::executor::for_vram(&device, 1, 1), 0, capacity}};
#else
        uform::fail(uform_status_device_k, "no arena can be made on GPU ", device,
                    ": this build of uform is RAM-only; build it where nvcc is found, or with UFORM_VRAM=1");
#endif
    });
}

uform_status_t uform_arena_init_on(uform_executor_t* executor, int32_t device, size_t capacity, uform_arena_t** arena) {
    return init_arena(arena, [&] {
        if (!executor)
            uform::fail(uform_status_invalid_argument_k, "executor is null");
        return new uform_arena_t{{executor->body, executor->body->place_of(device, "device"), capacity}};
    });
}

void uform_arena_free(uform_arena_t* arena) { delete arena; }

uform_status_t uform_arena_allocate(uform_arena_t* arena, size_t bytes, void** memory) {
    return on_arena(arena, [&](uform::arena& body) {
        if (!memory)
            uform::fail(uform_status_invalid_argument_k, "memory is null");
        *memory = nullptr;
        *memory = body.allocate(bytes);
    });
}

uform_status_t uform_arena_give_back(uform_arena_t* arena, void const* memory) {
    return on_arena(arena, [&](uform::arena& body) { body.give_back(memory); });
}

uform_status_t uform_arena_reset(uform_arena_t* arena) {
    return on_arena(arena, [](uform::arena& body) { body.reset(); });
}

uform_status_t uform_arena_pin(uform_arena_t* arena, int32_t change) {
    return on_arena(arena, [&](uform::arena& body) { body.pin(change); });
}

uform_status_t uform_arena_copy(uform_arena_t* arena, void* to, void const* from, size_t bytes) {
    return on_arena(arena, [&](uform::arena& body) { body.copy(to, from, bytes); });
}

size_t uform_arena_used(uform_arena_t const* arena) { return arena ? arena->body.used() : 0; }

size_t uform_arena_capacity(uform_arena_t const* arena) { return arena ? arena->body.capacity() : 0; }
}

// Arenas through their C interface: growth, bounds, reset while pinned, threads.
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <uform/uform.h>

#include "check.h"
#include "core/error.h"

// Asking for more than the machine has must answer null here as it does without a sanitizer.
extern "C" __attribute__((visibility("default"))) char const* __asan_default_options();
extern "C" __attribute__((visibility("default"))) char const* __asan_default_options() {
    return "allocator_may_return_null=1";
}
extern "C" __attribute__((visibility("default"))) char const* __tsan_default_options();
extern "C" __attribute__((visibility("default"))) char const* __tsan_default_options() {
    return "allocator_may_return_null=1";
}

namespace {

struct arena_t {
    uform_arena_t* handle = nullptr;
    explicit arena_t(std::size_t capacity) { CHECK(!uform_arena_init_ram(capacity, &handle)); }
    ~arena_t() { uform_arena_free(handle); }
    arena_t(arena_t const&) = delete;

    std::uint8_t* allocate(std::size_t bytes) {
        void* memory = nullptr;
        CHECK(!uform_arena_allocate(handle, bytes, &memory));
        CHECK(memory && reinterpret_cast<std::uintptr_t>(memory) % 64 == 0);
        return static_cast<std::uint8_t*>(memory);
    }
    uform_status_t status_of(std::size_t bytes) {
        void* memory = this;
        uform_status_t const status = uform_arena_allocate(handle, bytes, &memory);
        CHECK((status == uform_status_success_k) == (memory != nullptr));
        return status;
    }
};

std::string message() { return uform::last_error(); }

void test_growth_keeps_addresses() {
    arena_t arena(0);
    CHECK(uform_arena_capacity(arena.handle) == 0 && uform_arena_used(arena.handle) == 0);
    std::vector<std::uint8_t*> parts;
    for (std::size_t i = 0; i != 400; ++i) {
        parts.push_back(arena.allocate(i * 37));
        std::memset(parts[i], static_cast<int>(i % 251), i * 37);
    }
    bool intact = true;
    for (std::size_t i = 0; i != parts.size(); ++i)
        for (std::size_t byte = 0; byte != i * 37; ++byte)
            intact = intact && parts[i][byte] == i % 251;
    CHECK(intact);
    CHECK(uform_arena_used(arena.handle) >= 37 * 400 * 399 / 2);
}

void test_reset_reuses() {
    arena_t arena(0);
    for (int round = 0; round != 4; ++round) {
        for (int i = 0; i != 100; ++i)
            arena.allocate(10'000)[9'999] = 1;
        CHECK(!uform_arena_reset(arena.handle));
        CHECK(uform_arena_used(arena.handle) == 0);
    }
}

void test_capacity() {
    arena_t arena(200);
    CHECK(uform_arena_capacity(arena.handle) == 200);
    arena.allocate(100)[99] = 1;
    CHECK(arena.status_of(73) == uform_status_out_of_memory_k); // 128 to 200 leaves 72
    CHECK(message() == "the arena has no room for 73 bytes: 100 of its 200 are in use");
    CHECK(arena.status_of(SIZE_MAX) == uform_status_out_of_memory_k);
    arena.allocate(72)[71] = 1;
    CHECK(uform_arena_used(arena.handle) == 200);
    CHECK(arena.status_of(0) == uform_status_out_of_memory_k);
    CHECK(!uform_arena_reset(arena.handle));
    arena.allocate(200)[199] = 1;
}

void test_more_than_the_host_has() {
    arena_t arena(0);
    CHECK(arena.status_of(SIZE_MAX / 4) == uform_status_out_of_memory_k);
    CHECK(message().find("can not grow by " + std::to_string(SIZE_MAX / 4) + " bytes, 0 are in use") !=
          std::string::npos);
    CHECK(message().find(" are free of ") != std::string::npos);
    arena.allocate(10);
    uform_arena_t* handle = arena.handle;
    CHECK(uform_arena_init_ram(SIZE_MAX / 4, &handle) == uform_status_out_of_memory_k && !handle);
}

/** As if what is given back had never been allocated, in whichever order. */
void test_giving_back() {
    for (std::size_t capacity : {std::size_t(1000), std::size_t(0)}) {
        arena_t arena(capacity);
        std::uint8_t* const first = arena.allocate(100);
        std::uint8_t* const second = arena.allocate(72);
        CHECK(uform_arena_used(arena.handle) == 200);
        CHECK(!uform_arena_give_back(arena.handle, second) && uform_arena_used(arena.handle) == 100);
        CHECK(arena.allocate(72) == second);
        std::uint8_t* const third = arena.allocate(300);
        CHECK(uform_arena_used(arena.handle) == 556);
        CHECK(!uform_arena_give_back(arena.handle, first) && uform_arena_used(arena.handle) == 456);
        CHECK(arena.allocate(101) != first); // the hole has 100 bytes
        CHECK(uform_arena_give_back(arena.handle, first) == uform_status_invalid_argument_k);
        CHECK(message().find("was not allocated from this arena") != std::string::npos);
        CHECK(arena.allocate(60) == first && arena.allocate(30) == first + 64);
        CHECK(!uform_arena_give_back(arena.handle, first + 64) && !uform_arena_give_back(arena.handle, first));
        CHECK(!uform_arena_give_back(arena.handle, second) && !uform_arena_give_back(arena.handle, third));
        CHECK(arena.allocate(500) == first); // the holes have become one
    }
}

/** Any order of allocations and returns: nothing overlaps, and what is in use is known. */
void test_giving_back_at_random() {
    arena_t arena(0);
    struct part {
        std::uint8_t* memory;
        std::size_t bytes;
        std::uint8_t value;
    };
    std::vector<part> parts;
    std::mt19937 random(7);
    bool intact = true;
    for (int round = 0; round != 2000; ++round) {
        if (parts.empty() || random() % 5 < 3) {
            part made{nullptr, random() % 4000 + 1, static_cast<std::uint8_t>(round)};
            made.memory = arena.allocate(made.bytes);
            std::memset(made.memory, made.value, made.bytes);
            parts.push_back(made);
            continue;
        }
        std::swap(parts[random() % parts.size()], parts.back());
        for (std::size_t byte = 0; byte != parts.back().bytes; ++byte)
            intact = intact && parts.back().memory[byte] == parts.back().value;
        CHECK(!uform_arena_give_back(arena.handle, parts.back().memory));
        parts.pop_back();
    }
    CHECK(intact);
    for (part const& one : parts)
        CHECK(!uform_arena_give_back(arena.handle, one.memory));
    CHECK(uform_arena_used(arena.handle) == 0);
}

void test_copies() {
    arena_t arena(0);
    std::uint8_t* const memory = arena.allocate(5);
    char back[5] = {};
    CHECK(!uform_arena_copy(arena.handle, memory, "room", 5) && !uform_arena_copy(arena.handle, back, memory, 5));
    CHECK(!std::strcmp(back, "room"));
}

void test_on_an_executor() {
    uform_executor_t* executor = nullptr;
    CHECK(!uform_executor_init_ram(2, 1, nullptr, &executor));
    uform_arena_t* handle = nullptr;
    CHECK(uform_arena_init_on(executor, 2, 0, &handle) == uform_status_invalid_argument_k && !handle);
    CHECK(message() == "device: device 2 is none of the executor's, 0, 1");
    CHECK(!uform_arena_init_on(executor, 1, 100, &handle) && uform_arena_capacity(handle) == 100);
    uform_executor_free(executor); // the arena keeps it
    void* memory = nullptr;
    CHECK(!uform_arena_allocate(handle, 100, &memory));
    std::memset(memory, 1, 100);
    uform_arena_free(handle);
}

void test_pins() {
    arena_t arena(0);
    CHECK(uform_arena_pin(arena.handle, -1) == uform_status_invalid_argument_k);
    CHECK(uform_arena_pin(arena.handle, 2) == uform_status_invalid_argument_k);
    CHECK(!uform_arena_pin(arena.handle, 1) && !uform_arena_pin(arena.handle, 1));
    arena.allocate(8);
    CHECK(uform_arena_reset(arena.handle) == uform_status_invalid_argument_k);
    CHECK(message() == "the arena can not be reset while 2 steps that write into it are in flight");
    CHECK(!uform_arena_pin(arena.handle, -1));
    CHECK(uform_arena_reset(arena.handle) == uform_status_invalid_argument_k);
    CHECK(!uform_arena_pin(arena.handle, -1) && !uform_arena_reset(arena.handle));
}

void test_threads() {
    arena_t arena(0);
    std::vector<std::vector<std::uint8_t*>> parts(4);
    std::vector<std::thread> threads;
    for (std::size_t t = 0; t != parts.size(); ++t)
        threads.emplace_back([&, t] {
            for (std::size_t i = 0; i != 200; ++i) {
                void* memory = nullptr;
                if (uform_arena_allocate(arena.handle, 500, &memory))
                    return;
                std::memset(memory, static_cast<int>(t), 500);
                parts[t].push_back(static_cast<std::uint8_t*>(memory));
            }
        });
    for (std::thread& thread : threads)
        thread.join();
    bool intact = true;
    for (std::size_t t = 0; t != parts.size(); ++t) {
        CHECK(parts[t].size() == 200);
        for (std::uint8_t const* part : parts[t])
            for (std::size_t byte = 0; byte != 500; ++byte)
                intact = intact && part[byte] == t;
    }
    CHECK(intact);
}

void test_refusals() {
    void* memory = nullptr;
    CHECK(uform_arena_init_ram(0, nullptr) == uform_status_invalid_argument_k);
    CHECK(uform_arena_allocate(nullptr, 1, &memory) == uform_status_invalid_argument_k);
    CHECK(uform_arena_reset(nullptr) == uform_status_invalid_argument_k);
    CHECK(uform_arena_pin(nullptr, 1) == uform_status_invalid_argument_k);
    CHECK(uform_arena_give_back(nullptr, nullptr) == uform_status_invalid_argument_k);
    CHECK(uform_arena_copy(nullptr, memory, memory, 0) == uform_status_invalid_argument_k);
    arena_t arena(0);
    CHECK(uform_arena_allocate(arena.handle, 1, nullptr) == uform_status_invalid_argument_k);
    uform_arena_free(nullptr);
    uform_arena_t* handle = arena.handle;
    CHECK(uform_arena_init_on(nullptr, 0, 0, &handle) == uform_status_invalid_argument_k && !handle);
    CHECK(uform_arena_init_vram(3, 0, &handle) == uform_status_device_k && !handle);
    CHECK(message().find("GPU 3") != std::string::npos && message().find("RAM-only") != std::string::npos);
}

} // namespace

int main() {
    test_growth_keeps_addresses();
    test_reset_reuses();
    test_capacity();
    test_more_than_the_host_has();
    test_giving_back();
    test_giving_back_at_random();
    test_copies();
    test_on_an_executor();
    test_pins();
    test_threads();
    test_refusals();
    return native_test::report();
}

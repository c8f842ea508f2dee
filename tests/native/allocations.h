// Counts what a test program allocates, and ends its memory. It replaces the global operator new: include it in one
// source a program.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>

namespace native_test {

inline std::atomic<std::size_t>& allocations() {
    static std::atomic<std::size_t> instance = 0;
    return instance;
}

/** How many more this thread makes until memory is out. */
inline std::size_t& allocations_left() {
    static thread_local std::size_t left = SIZE_MAX;
    return left;
}

} // namespace native_test

// Kept out of line: the compiler takes an inlined pair of `malloc` and `delete` for a mistake.
[[gnu::noinline]] void* operator new(std::size_t bytes) {
    ++native_test::allocations();
    if (native_test::allocations_left() != 0) {
        --native_test::allocations_left();
        if (void* const memory = std::malloc(bytes ? bytes : 1))
            return memory;
    }
    throw std::bad_alloc();
}
[[gnu::noinline]] void* operator new(std::size_t bytes, std::nothrow_t const&) noexcept {
    ++native_test::allocations();
    return std::malloc(bytes ? bytes : 1);
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

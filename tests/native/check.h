/** The smallest harness for native test programs: count, say where a check failed, report through the exit status. */
#pragma once

#include <atomic>
#include <cstdio>
#include <string>

namespace native_test {

/** Checks may come from several threads. */
struct counters_t {
    std::atomic<int> passed = 0;
    std::atomic<int> failed = 0;
};

inline counters_t& counters() {
    static counters_t instance;
    return instance;
}

inline bool record(bool holds, char const* file, int line, std::string const& what) {
    ++(holds ? counters().passed : counters().failed);
    if (!holds)
        std::fprintf(stderr, "%s:%d: failed: %s\n", file, line, what.c_str());
    return holds;
}

/** Prints the totals; a program's `main` returns what this answers. */
inline int report() {
    std::printf("%d passed, %d failed\n", counters().passed.load(), counters().failed.load());
    return counters().failed ? 1 : 0;
}

} // namespace native_test

/** Checks a condition; the test goes on either way. Answers whether it holds. */
#define CHECK(...) (::native_test::record(static_cast<bool>(__VA_ARGS__), __FILE__, __LINE__, #__VA_ARGS__))

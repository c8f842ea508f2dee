/** Files of the system: descriptors that close themselves, calls that signals interrupt, failures that name the path.
 */
#pragma once

#include <cerrno>
#include <string>
#include <utility>

#include "core/error.h"

namespace uform {

/** A file descriptor that closes itself. */
class file_descriptor {
public:
    file_descriptor() noexcept = default;
    explicit file_descriptor(int handle) noexcept : handle_(handle) {}
    file_descriptor(file_descriptor&& other) noexcept : handle_(std::exchange(other.handle_, -1)) {}
    file_descriptor& operator=(file_descriptor&& other) noexcept;
    ~file_descriptor();

    int get() const noexcept { return handle_; }
    explicit operator bool() const noexcept { return handle_ >= 0; }

    /** Closes and answers `errno`, 0 on success: some file systems report a failed write only here. */
    int close() noexcept;

private:
    int handle_ = -1;
};

/** Repeats a system call for as long as a signal interrupts it. */
template <typename call_at> auto uninterrupted(call_at&& call) {
    auto result = call();
    while (result < 0 && errno == EINTR)
        result = call();
    return result;
}

template <typename... parts_at> [[noreturn]] void fail_file(std::string const& path, parts_at const&... parts) {
    fail(uform_status_file_k, "'", path, "': ", parts...);
}

/** Fails with the system's reason, by its number too: `code` is an `errno`. */
[[noreturn]] void fail_system(std::string const& path, char const* verb, int code);

/** Refuses an empty path, and one with a zero byte, which would name another file than the caller meant. */
void check_path(std::string const& path);

} // namespace uform

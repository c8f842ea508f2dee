#include "core/file.h"

#include <system_error>

#include <unistd.h>

namespace uform {

file_descriptor& file_descriptor::operator=(file_descriptor&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
}

file_descriptor::~file_descriptor() { close(); }

int file_descriptor::close() noexcept {
    if (handle_ < 0)
        return 0;
    // Not repeated after EINTR: Linux has closed the descriptor by then.
    int const result = ::close(std::exchange(handle_, -1));
    return result < 0 && errno != EINTR ? errno : 0;
}

void fail_system(std::string const& path, char const* verb, int code) {
    error failure(uform_status_file_k, "'" + path + "': cannot " + verb + ": " + std::generic_category().message(code));
    failure.number = code;
    failure.path = path;
    throw failure;
}

void check_path(std::string const& path) {
    if (path.empty())
        fail(uform_status_file_k, "the path of the file is empty");
    if (path.find('\0') != std::string::npos)
        fail(uform_status_file_k, "the path of the file has a zero byte");
}

} // namespace uform

#include "core/error.h"

#include <charconv>
#include <cstring>

namespace uform {

namespace {
// Fixed storage, so that reporting a lack of memory needs none; enough for the longest path and what is wrong there.
thread_local char message_[8192];
thread_local char path_[4096];
thread_local int number_;

void copy_text(char* to, size_t bytes, char const* from) noexcept {
    std::strncpy(to, from, bytes - 1);
    to[bytes - 1] = '\0';
}
} // namespace

std::string exact(float value) {
    char text[32];
    return {text, std::to_chars(text, text + sizeof(text), shown(value)).ptr};
}

void set_last_error(char const* message, int number, char const* path) noexcept {
    copy_text(message_, sizeof(message_), message);
    copy_text(path_, sizeof(path_), path);
    number_ = number;
}

char const* last_error() noexcept { return message_; }

error last_failure(uform_status_t status) {
    error failure(status, message_);
    failure.number = number_;
    failure.path = path_;
    return failure;
}

} // namespace uform

extern "C" {

char const* uform_last_error(void) { return uform::last_error(); }

int32_t uform_last_error_number(void) { return uform::number_; }

char const* uform_last_error_path(void) { return uform::path_; }
}

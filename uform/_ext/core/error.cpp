#include "core/error.h"

#include <cstring>

namespace uform {

namespace {
// Fixed storage, so that reporting a lack of memory needs none; enough for the longest path and what is wrong there.
thread_local char message_[8192];
} // namespace

void set_last_error(char const* message) noexcept {
    std::strncpy(message_, message, sizeof(message_) - 1);
    message_[sizeof(message_) - 1] = '\0';
}

char const* last_error() noexcept { return message_; }

} // namespace uform

extern "C" {

char const* uform_last_error(void) { return uform::last_error(); }
}

#include "core/error.h"

#include <cstring>

namespace uform {

namespace {
// Fixed storage, so that reporting a lack of memory needs none.
thread_local char message_[2048];
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

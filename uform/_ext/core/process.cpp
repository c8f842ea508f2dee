#include "core/process.h"

#include <cstdlib>
#include <cstring>
#include <new>

#include <uform/uform.h>

#include "uform_build_config.h"

namespace uform {

char* copy_string(std::string const& text) {
    char* const copy = static_cast<char*>(std::malloc(text.size() + 1));
    if (!copy)
        throw std::bad_alloc();
    std::memcpy(copy, text.c_str(), text.size() + 1);
    return copy;
}

} // namespace uform

extern "C" {

char const* uform_version(void) { return UFORM_VERSION_STRING; }

char const* uform_build_config(void) { return UFORM_BUILD_CONFIG; }

void uform_string_free(char* string) { std::free(string); }
}

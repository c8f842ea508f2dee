#include "core/process.h"

#include <cstdlib>
#include <cstring>
#include <new>

#include <uform/uform.h>

#include "core/adapter.h"
#include "core/json.h"
#include "core/operations.h"
#include "uform_build_config.h"

namespace uform {

char* copy_string(std::string const& text) {
    char* const copy = static_cast<char*>(std::malloc(text.size() + 1));
    if (!copy)
        throw std::bad_alloc();
    std::memcpy(copy, text.c_str(), text.size() + 1);
    return copy;
}

namespace {

json visible_gpus() {
    json listed = json(json::array{});
#if UFORM_WITH_VRAM
    for (visible_gpu const& one : vram_gpus()) {
        json entry = json::make_object();
        entry.set("index", one.index);
        entry.set("name", one.name);
        entry.set("compute_capability",
                  std::to_string(one.capability_major) + "." + std::to_string(one.capability_minor));
        entry.set("memory_bytes", one.memory_bytes);
        listed.push_back(std::move(entry));
    }
#else
    fail(uform_status_device_k, "this build of uform has no VRAM backend");
#endif
    return listed;
}

} // namespace

} // namespace uform

extern "C" {

char const* uform_version(void) { return UFORM_VERSION_STRING; }

char const* uform_build_config(void) { return UFORM_BUILD_CONFIG; }

uform_status_t uform_gpus(char** json) {
    return uform::guard([&] { *json = uform::copy_string(uform::visible_gpus().dump()); });
}

void uform_string_free(char* string) { std::free(string); }
}

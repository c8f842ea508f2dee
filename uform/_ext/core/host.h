/** The host's side of a plugin's callbacks: which plugin calls, and what it may reach just now. */
#pragma once

#include <string>
#include <utility>

#include <uform/plugin.h>

#include "core/error.h"

namespace uform {
struct plugin_parts;
struct declarations;
class planning;
class replica;
} // namespace uform

struct uform_host_t {
    uform::plugin_parts* parts = nullptr;
    uform::declarations* declared = nullptr; /* during `declare` */
    uint32_t columns_capacity = 0;           /* likewise */
    uform::planning* planning = nullptr;     /* during `plan` */
    uint32_t objective = 0;                  /* its place among the run's objectives */
    uint32_t stage = 0;                      /* of the plan */
    uform::replica* replica = nullptr;       /* during a pass */
    /** What was asked for wrongly of a function that answers no status: refused once the plugin is done. */
    std::string misuse{};
};

namespace uform {
/** How a plugin leaves its message; null is none. */
inline uform_status_t fail_on_host(uform_host_t*, uform_status_t status, char const* message) {
    set_last_error(message ? message : "");
    return status;
}

/** The first one counts: what comes after it may follow from it. */
inline void note_misuse(uform_host_t* host, std::string message) {
    if (host->misuse.empty())
        host->misuse = std::move(message);
}
} // namespace uform

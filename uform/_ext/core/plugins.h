/** Which plugins this process knows, and one plugin at work in one run. */
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/json.h"
#include "core/operations.h"
#include "core/parameters.h"

namespace uform {

/** The registered plugin of that name, or null. */
uform_objective_plugin_t const* find_objective(std::string_view name);
uform_modality_plugin_t const* find_modality(std::string_view name);

/** A plugin chosen for a run with its configuration structure as given: zeros still to be derived. */
struct selection {
    std::string name;
    std::vector<uint8_t> config;

    template <typename config_at> static selection of(std::string name, config_at const& config) {
        auto const* bytes = reinterpret_cast<uint8_t const*>(&config);
        return {std::move(name), std::vector<uint8_t>(bytes, bytes + sizeof(config))};
    }
};

/** A loss term of the run. */
struct term {
    std::string name;
    double weight;
};

/** What `declare` callbacks add to, all planned before any memory is taken. */
struct declarations {
    parameter_table parameters;
    std::vector<term> terms;
    std::vector<uform_covering_t> coverings; /* complete before objectives see it */
};

/** A part of a plugin's staging: what of it a step uploads depends on how many units it has. */
struct staging_part {
    size_t offset; /* into the plugin's own */
    uint32_t unit; /* uform_staging_unit_t */
    size_t bytes;  /* whole, or of one unit */
};

/** What of a third party's plugin is looked through for values that are not finite: each has a place of its own. */
enum class finding : uint32_t { bags, columns, parameters };
constexpr uint32_t findings_k = 3;
constexpr int no_place_k = -1;

/** What one plugin declared and where it lies. */
struct plugin_parts {
    std::string name;
    bool own = false; /* the first party's */
    int findings[findings_k] = {no_place_k, no_place_k,
                                no_place_k}; /* a third party's: the places of what is looked through */
    std::vector<uint8_t> config;             /* derived */
    std::vector<bool> given;                 /* by field: it was not left to derive */
    void* self = nullptr;
    std::vector<uint32_t> parameters; /* by handle: index into the table */
    std::vector<uint32_t> terms;      /* by handle: index into the terms */
    size_t staging_bytes = 0;
    std::vector<staging_part> staging_parts;
    size_t workspace_bytes = 0;
    uint32_t vectors_width = 0;                     /* of a vector for every column; 0: there are none */
    size_t notice_bytes = 0;                        /* of each device */
    std::optional<std::pair<double, double>> cover; /* of a third party's modality: ratio and weight */
    size_t covered_capacity = 0;                    /* of an objective: the most columns of one device that it covers */
    size_t staging_offset = 0;                      /* into the device's staging, set by the layout */
    size_t workspace_offset = 0;
    size_t vectors_offset = 0, world_vectors_offset = 0, world_vectors_gradient_offset = 0;
};

/** Where a function was about no content of the call. */
constexpr size_t no_content_k = SIZE_MAX;

/** Throws the failure of a third party's plugin, with its name in front and the content that it was about. */
[[noreturn]] void refuse_plugin(plugin_parts const& of, uform_status_t status, std::string const& message,
                                size_t content = no_content_k);
[[noreturn]] void refuse_answer(plugin_parts const& of, char const* function, uform_status_t status, size_t content);
/** Throws what a third party asked the host for wrongly. */
void check_misuse(plugin_parts const& of, uform_host_t const& host);

/** What one of a plugin's functions answers; what a third party's throws, which it must not, is caught here. */
template <typename body_at>
uform_status_t ask_plugin(plugin_parts const& of, char const* function, body_at&& body, size_t content = no_content_k) {
    if (of.own)
        return body();
    try {
        set_last_error("");
        return body();
    } catch (error const& failure) {
        refuse_plugin(of, failure.status, failure.message, content);
    } catch (std::bad_alloc const&) {
        refuse_plugin(of, uform_status_out_of_memory_k, std::string("its function ") + function + " has no memory left",
                      content);
    } catch (std::exception const& failure) {
        refuse_plugin(of, uform_status_internal_k,
                      std::string("its function ") + function + " threw: " + failure.what(), content);
    } catch (...) {
        refuse_plugin(of, uform_status_internal_k, std::string("its function ") + function + " threw", content);
    }
}

/** Calls one of a plugin's functions and throws what it refuses. */
template <typename body_at>
void call_plugin(plugin_parts const& of, char const* function, body_at&& body, size_t content = no_content_k) {
    uform_status_t const status = ask_plugin(of, function, body, content);
    if (status == uform_status_success_k)
        return;
    if (of.own)
        check(status);
    refuse_answer(of, function, status, content);
}

/** One modality or objective at work in one run; destroys its state with itself. */
template <typename plugin_at> struct plugin_instance : plugin_parts {
    plugin_at const* plugin = nullptr;

    plugin_instance() = default;
    plugin_instance(plugin_instance&& other) noexcept : plugin_parts(std::move(other)), plugin(other.plugin) {
        other.self = nullptr;
    }
    plugin_instance(plugin_instance const&) = delete;
    plugin_instance& operator=(plugin_instance const&) = delete;
    plugin_instance& operator=(plugin_instance&&) = delete;
    ~plugin_instance() {
        if (!self)
            return;
        try {
            plugin->destroy(self);
        } catch (...) { // a third party's must not throw, and there is nobody to tell
        }
    }
};
using modality_instance = plugin_instance<uform_modality_plugin_t>;
using objective_instance = plugin_instance<uform_objective_plugin_t>;

/** A plugin in the run that goes on; null in a new run. */
struct resumed_plugin {
    plugin_parts const* parts = nullptr;
    uform_run_t const* run = nullptr;
    parameter_table const* parameters = nullptr;
};

/**
 *  Derives the configuration and creates the plugin's state. In a resumed run zeros take the values of the one that
 * goes on, and what its parameters depend on is refused where it differs. A modality that its configuration leaves out
 * answers false and is not created.
 */
bool start_modality(modality_instance& instance, selection const& chosen, resumed_plugin from, uform_run_t const& run,
                    uform_operations_t const& operations, declarations& declared);
void start_objective(objective_instance& instance, selection const& chosen, resumed_plugin from, uform_run_t const& run,
                     uform_operations_t const& operations, declarations& declared);

/** A plugin's section of a checkpoint's configuration. */
struct saved_section {
    std::string name;
    json const* values;
    json const* given; /* names of the fields given; null where the file does not tell */
    std::string path;  /* for messages */
};

/** Checks a section whole and creates the plugin's state as it was in the run that was saved. */
void restore_modality(modality_instance& instance, saved_section const& saved, uform_run_t const& run,
                      uform_operations_t const& operations, declarations& declared);
void restore_objective(objective_instance& instance, saved_section const& saved, uform_run_t const& run,
                       uform_operations_t const& operations, declarations& declared);
/** Checks a section alone: inference needs no objective's state. */
void check_objective_section(saved_section const& saved, uform_run_t const& run, uform_operations_t const& operations);

} // namespace uform

#include "core/plugins.h"

#include <cmath>
#include <limits>
#include <mutex>

#include "core/host.h"
#include "core/resume.h"

namespace uform {

namespace {

/** Every plugin of one kind that this process knows, in the order registered. */
template <typename plugin_at> class registry {
public:
    explicit registry(plugin_at const* const* own) {
        for (; *own; ++own)
            plugins_.push_back(*own);
    }

    plugin_at const* find(std::string_view name) {
        std::lock_guard lock(mutex_);
        for (plugin_at const* plugin : plugins_)
            if (name == plugin->name)
                return plugin;
        return nullptr;
    }

    void add(plugin_at const* plugin) {
        if (find(plugin->name))
            fail(uform_status_invalid_argument_k, "plugin ", plugin->name, ": the name is taken");
        std::lock_guard lock(mutex_);
        plugins_.push_back(plugin);
    }

private:
    std::mutex mutex_;
    std::vector<plugin_at const*> plugins_;
};

registry<uform_objective_plugin_t>& objectives() {
    static registry<uform_objective_plugin_t> known(uform_own_objectives);
    return known;
}

registry<uform_modality_plugin_t>& modalities() {
    static registry<uform_modality_plugin_t> known(uform_own_modalities);
    return known;
}

template <typename plugin_at> void check_abi(plugin_at const* plugin) {
    if (!plugin || !plugin->name || !*plugin->name)
        fail(uform_status_invalid_argument_k, "plugin: it has no name");
    if (plugin->abi_version != UFORM_PLUGIN_ABI_VERSION)
        fail(uform_status_invalid_argument_k, "plugin ", plugin->name, ": built for ABI version ", plugin->abi_version,
             ", this library speaks ", UFORM_PLUGIN_ABI_VERSION);
    if (plugin->bytes < sizeof(plugin_at))
        fail(uform_status_invalid_argument_k, "plugin ", plugin->name, ": its structure has ", plugin->bytes,
             " bytes, this library's has ", sizeof(plugin_at));
}

template <typename plugin_at>
void check_present(plugin_at const* plugin, std::initializer_list<std::pair<char const*, bool>> functions) {
    for (auto const& [name, present] : functions)
        if (!present)
            fail(uform_status_invalid_argument_k, "plugin ", plugin->name, ": its function ", name, " is missing");
}

uform_status_t declare_fail(uform_host_t*, uform_status_t status, char const* message) {
    set_last_error(message);
    return status;
}

uform_status_t declare_parameter(uform_host_t* host, uform_parameter_request_t const* asked, uint32_t* handle) {
    return guard([&] {
        float const endless = std::numeric_limits<float>::infinity();
        bool const bounded = asked->minimum != 0 || asked->maximum != 0;
        parameter made{host->parts->name + "." + asked->name,
                       asked->rows,
                       asked->columns,
                       asked->kind,
                       asked->deviation,
                       asked->value,
                       bounded ? static_cast<float>(asked->minimum) : -endless,
                       bounded ? static_cast<float>(asked->maximum) : endless};
        host->parts->parameters.push_back(host->declared->parameters.add(std::move(made)));
        *handle = static_cast<uint32_t>(host->parts->parameters.size() - 1);
    });
}

uform_status_t declare_term(uform_host_t* host, char const* name, double weight, uint32_t* handle) {
    return guard([&] {
        auto& terms = host->declared->terms;
        if (terms.size() == UFORM_TERMS_CAPACITY)
            fail(uform_status_invalid_argument_k, "term ", name, ": a run has at most ", UFORM_TERMS_CAPACITY,
                 " terms");
        for (term const& known : terms)
            if (known.name == name)
                fail(uform_status_invalid_argument_k, "term ", name, ": the name is taken");
        terms.push_back({name, weight});
        host->parts->terms.push_back(static_cast<uint32_t>(terms.size() - 1));
        *handle = static_cast<uint32_t>(host->parts->terms.size() - 1);
    });
}

uform_status_t reserve(size_t& total, size_t bytes, size_t* offset) {
    return guard([&] {
        if (bytes > std::numeric_limits<size_t>::max() / 2 - total)
            fail(uform_status_out_of_memory_k, "a plugin asked for ", bytes, " bytes");
        *offset = total;
        total += (bytes + 255) / 256 * 256;
    });
}

uform_status_t declare_staging(uform_host_t* host, size_t bytes, size_t* offset) {
    uform_status_t const status = reserve(host->parts->staging_bytes, bytes, offset);
    if (status != uform_status_success_k)
        return status;
    return guard([&] { host->parts->staging_parts.push_back({*offset, uform_staging_unit_whole_k, bytes}); });
}

uform_status_t declare_column_staging(uform_host_t* host, uint32_t unit, size_t bytes, size_t* offset) {
    uform_status_t const status = reserve(host->parts->staging_bytes, bytes * host->columns_capacity, offset);
    if (status != uform_status_success_k)
        return status;
    return guard([&] { host->parts->staging_parts.push_back({*offset, unit, bytes}); });
}

uform_status_t declare_workspace(uform_host_t* host, size_t bytes, size_t* offset) {
    return reserve(host->parts->workspace_bytes, bytes, offset);
}

uform_declare_t declare_with(uform_host_t& host, uform_operations_t const& operations) {
    return {&host,        &operations,     declare_fail,      declare_parameter,
            declare_term, declare_staging, declare_workspace, declare_column_staging};
}

/** Answers the configuration as given, of the plugin's size. */
template <typename plugin_at>
std::vector<uint8_t> take_config(plugin_instance<plugin_at>& instance, plugin_at const* plugin,
                                 selection const& chosen) {
    instance.plugin = plugin;
    instance.name = plugin->name;
    instance.config = chosen.config;
    if (instance.config.empty())
        instance.config.resize(plugin->config_bytes);
    if (instance.config.size() != plugin->config_bytes)
        fail(uform_status_invalid_argument_k, "plugin ", plugin->name, ": its configuration has ", plugin->config_bytes,
             " bytes, not ", instance.config.size());
    return instance.config;
}

template <typename plugin_at> saved_config saved_config_of(plugin_at const* plugin, json const* saved) {
    return {plugin->fields, plugin->fields_count, plugin->config_bytes, saved, plugin->name};
}

} // namespace

uform_objective_plugin_t const* find_objective(std::string_view name) { return objectives().find(name); }
uform_modality_plugin_t const* find_modality(std::string_view name) { return modalities().find(name); }

bool start_modality(modality_instance& instance, selection const& chosen, json const* saved, uform_run_t const& run,
                    uform_operations_t const& operations, declarations& declared) {
    uform_modality_plugin_t const* const plugin = find_modality(chosen.name);
    if (!plugin)
        fail(uform_status_invalid_argument_k, chosen.name, ": no modality of this name is registered");
    std::vector<uint8_t> const given = take_config(instance, plugin, chosen);
    saved_config const from_file = saved_config_of(plugin, saved);
    from_file.complete(instance.config.data());
    uform_host_t host{.parts = &instance, .declared = &declared, .columns_capacity = run.columns_capacity};
    uform_declare_t const declare = declare_with(host, operations);
    uint32_t enabled = 0;
    check(plugin->derive(instance.config.data(), &run, &declare, &enabled));
    if (!enabled)
        return false;
    from_file.restore_left_out(given.data(), instance.config.data());
    check(plugin->create(instance.config.data(), &run, &declare, &instance.self));
    return true;
}

void start_objective(objective_instance& instance, selection const& chosen, json const* saved, uform_run_t const& run,
                     uform_operations_t const& operations, declarations& declared) {
    uform_objective_plugin_t const* const plugin = find_objective(chosen.name);
    if (!plugin)
        fail(uform_status_invalid_argument_k, chosen.name, ": no objective of this name is registered");
    std::vector<uint8_t> const given = take_config(instance, plugin, chosen);
    saved_config const from_file = saved_config_of(plugin, saved);
    from_file.complete(instance.config.data());
    uform_host_t host{.parts = &instance, .declared = &declared, .columns_capacity = run.columns_capacity};
    uform_declare_t const declare = declare_with(host, operations);
    check(plugin->derive(instance.config.data(), &run, &declare));
    from_file.restore_left_out(given.data(), instance.config.data());
    check(plugin->create(instance.config.data(), &run, &declare, &instance.self));
}

} // namespace uform

extern "C" {

uform_status_t uform_objective_register(uform_objective_plugin_t const* plugin) {
    return uform::guard([&] {
        uform::check_abi(plugin);
        uform::check_present(plugin, {{"derive", plugin->derive},
                                      {"create", plugin->create},
                                      {"destroy", plugin->destroy},
                                      {"covered_capacity", plugin->covered_capacity},
                                      {"plan", plugin->plan},
                                      {"forward_backward", plugin->forward_backward}});
        uform::objectives().add(plugin);
    });
}

uform_status_t uform_modality_register(uform_modality_plugin_t const* plugin) {
    return uform::guard([&] {
        uform::check_abi(plugin);
        uform::check_present(plugin, {{"derive", plugin->derive},
                                      {"create", plugin->create},
                                      {"destroy", plugin->destroy},
                                      {"measure", plugin->measure},
                                      {"fill", plugin->fill},
                                      {"cover", plugin->cover},
                                      {"finish", plugin->finish},
                                      {"embed_forward", plugin->embed_forward},
                                      {"embed_backward", plugin->embed_backward},
                                      {"reconstruct", plugin->reconstruct}});
        uform::modalities().add(plugin);
    });
}
}

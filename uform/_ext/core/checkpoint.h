/** Checkpoints: one safetensors file of a run's weights, moments, counters and derived configuration. */
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/json.h"
#include "core/parameters.h"
#include "core/progress.h"
#include "core/safetensors.h"

namespace uform {

/** What a run counts beside its weights. */
struct run_counters {
    uint64_t applied = 0; /* optimizer steps */
    uint64_t calls = 0;   /* that numbered random draws */
    uint64_t seed = 0;
};

/** Plain buffers of one replica in host memory, laid out as the parameter table says. */
struct run_values {
    float const* parameters;
    float const* first_moment;
    float const* second_moment;
};

void save_checkpoint(std::string const& path, parameter_table const& table, run_values const& values,
                     run_counters const& counters, json const& configuration, progress& told);
/** Units of progress that saving takes. */
uint64_t checkpoint_tensors(parameter_table const& table);

/** An opened checkpoint whose configuration has been read; every failure names the file. */
class checkpoint {
public:
    explicit checkpoint(std::string path);

    json const& configuration() const { return configuration_; }
    run_counters const& counters() const { return counters_; }

    /** Refuses a file whose tensors are not exactly those of the table. */
    void check_tensors(parameter_table const& table) const;

    void read_parameter(parameter const& one, float* to) const;
    void read_moments(parameter const& one, float* first, float* second) const;

private:
    uint64_t read_counter(char const* name) const;
    void read_values(std::string const& name, parameter const& like, float* to) const;

    safetensors_file file_;
    json configuration_;
    run_counters counters_;
};

} // namespace uform

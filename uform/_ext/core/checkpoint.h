/** Checkpoints: one safetensors file of a run's weights, moments and counters, with its derived configuration as JSON.
 */
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <new>
#include <string>

#include "core/composition.h"
#include "core/error.h"
#include "core/json.h"
#include "core/progress.h"
#include "core/safetensors.h"

namespace uform {

/** What a run counts beside its weights. */
struct run_counters {
    uint64_t applied = 0; /* optimizer steps */
    uint64_t calls = 0;   /* that numbered random draws */
    uint64_t seed = 0;
};

/** A parameter's values of one kind in host memory, until the next are asked for. */
using values_of = std::function<float const*(parameter const&)>;

/** What one replica has of every parameter: tensor by tensor, for all of it may be more than the host has room for. */
struct run_values {
    values_of parameters;
    values_of first_moment;
    values_of second_moment;
};

/** Values that cannot be resumed are refused, and nothing is left of the file. */
void save_checkpoint(std::string const& path, parameter_table const& table, run_values const& values,
                     run_counters const& counters, json const& configuration, progress& told);
/** Units of progress that saving takes. */
uint64_t checkpoint_tensors(parameter_table const& table);

/** An opened checkpoint. */
class checkpoint {
public:
    /** Opens and checks all but what the configuration means. Every failure names the file. */
    explicit checkpoint(std::string path);

    json const& configuration() const { return configuration_; }
    run_counters const& counters() const { return counters_; }

    /** The run that was saved, before any memory of its sizes is taken: refuses a configuration that no run has, and
     *  tensors that are not those of the configuration. Training wants them exactly, inference only those it reads. */
    std::unique_ptr<composition> restore(uform_operations_t const& operations, uint32_t devices, bool training) const;

    /** Values that no update leaves are refused: not finite, outside the parameter's bounds, a negative square. */
    void read_parameter(parameter const& one, float* to) const;
    void read_moments(parameter const& one, float* first, float* second) const;

    /** Runs `body`; whatever it refuses gets the file's name in front. */
    template <typename body_at> void naming(body_at&& body) const {
        try {
            body();
        } catch (error const& failure) {
            refuse(failure);
        } catch (std::bad_alloc const&) {
            refuse({uform_status_out_of_memory_k, "the host has no memory left"});
        }
    }

private:
    [[noreturn]] void refuse(error const& failure) const;
    void read_counters();
    uint64_t read_counter(char const* name) const;
    void check_tensors(parameter_table const& table, bool training) const;
    void check_tensor(std::string const& name, parameter const& like) const;
    std::string origin_of(parameter const& one) const;
    void read_values(std::string const& name, parameter const& like, float* to) const;

    safetensors_file file_;
    json configuration_;
    run_counters counters_;
};

} // namespace uform

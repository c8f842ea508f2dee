/** What a run is made of, before any memory is taken: plugins, parameters, terms, sizes. */
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "core/memory.h"
#include "core/parameters.h"
#include "core/plugins.h"
#include "core/settings.h"

namespace uform {

struct composition {
    settings derived;
    uform_run_t run{};
    uform_extents_t extents{};
    uform_operations_t const* operations = nullptr;
    declarations declared;
    std::vector<block_parameters> blocks;
    uint32_t norm = 0;
    std::vector<modality_instance> modalities;
    std::vector<objective_instance> objectives;
    uint32_t taps = 0;           /* of all objectives */
    size_t covered_capacity = 0; /* columns of one device */

    /** Runs `body` for the parts of every third party's plugin. */
    template <typename body_at> void for_each_foreign(body_at&& body) const {
        for (modality_instance const& one : modalities)
            if (!one.own)
                body(static_cast<plugin_parts const&>(one));
        for (objective_instance const& one : objectives)
            if (!one.own)
                body(static_cast<plugin_parts const&>(one));
    }

    bool training() const { return run.training != 0; }
    /** The place of a modality among `modalities`, or -1. */
    int find(uint32_t modality) const;
    /** The place of the objective that answers a verb of models among `objectives`, or -1. */
    int find_answer(uint32_t kind) const;
};

/** Derives everything. `saved` is the run that goes on or null; inference leaves objectives out that answer nothing
 *  there. */
std::unique_ptr<composition> compose(settings given, composition const* saved, uform_operations_t const& operations,
                                     uint32_t devices, bool training);

/** The run that a checkpoint's configuration describes. Every value of it is checked: what no run could have derived is
 *  refused. Inference leaves objectives out that answer nothing there, and lets those be that this process does not
 * know.
 */
std::unique_ptr<composition> restore(json const& configuration, uform_operations_t const& operations, uint32_t devices,
                                     bool training);

/** The derived configuration of the run and its plugins, and which fields were given: what a checkpoint's metadata
 *  holds. */
json describe(composition const& whole);

/** The most modalities that one run has. */
constexpr size_t modalities_capacity_k = 16;

/** Device-side counts at the start of a device's staging. */
struct batch_counts {
    uint32_t columns, segments, bags, covered;
    uint32_t covered_of[modalities_capacity_k];    /* by place among the run's modalities */
    uint32_t covered_first[modalities_capacity_k]; /* likewise: the first of those rows */
};

/** Offsets into a device's staging, on the host and on the device alike. */
struct staging_layout {
    size_t counts = 0, segments = 0, codes = 0, covered = 0;
    size_t bytes = 0;
};

/** Offsets into a device's block. */
struct replica_layout {
    memory_plan plan;
    std::string foreign; /* what each third party's plugin asked for, in words */
    staging_layout staging_parts;
    size_t parameters = 0, spans = 0, gradient = 0, first_moment = 0, second_moment = 0, state = 0,
           update_workspace = 0;
    std::vector<size_t> working; /* by parameter; unused where the backend's form is the plain one */
    std::vector<bool> has_working;
    size_t staging = 0, segment_of = 0, positions = 0;
    size_t inbox = 0;           /* where a training run's uploads wait until the step before has read its staging */
    std::vector<size_t> saved;  /* by block */
    std::vector<size_t> states; /* depth + 1 in training, 2 in inference */
    size_t saved_bytes = 0, layer_workspace = 0, layer_workspace_bytes = 0;
    size_t hidden_states = 0, inverse_rms = 0, gradient_states = 0, norm_workspace = 0, norm_workspace_bytes = 0;
    size_t bags = 0, lengths = 0, bag_columns = 0, bags_gradient = 0, pool_workspace = 0, pool_workspace_bytes = 0;
    size_t world_bags = 0, world_bags_gradient = 0;
    size_t covered_rows = 0, covered_gradient = 0;
};

/** Plans one device's memory and places every plugin's parts in it. */
replica_layout lay_out(composition& whole);

/** Runs `body`, which takes the memory of a layout; where there is too little, the message tells what it was for. */
void allocate(replica_layout const& layout, std::function<void()> const& body);

} // namespace uform

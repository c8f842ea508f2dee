/** One device's copy of the run: its memory, and the passes over its part of a batch. */
#pragma once

#include <memory>
#include <vector>

#include "core/batch.h"
#include "core/event.h"
#include "core/executor.h"
#include "core/graphs.h"

namespace uform {

/** Steps of a training run that a device of its own memory has at most: one runs, one waits, one is packed. */
constexpr size_t slots_k = 3;

class replica {
public:
    replica(composition& whole, replica_layout const& layout, executor& on, uint32_t device);

    /* parameters, in the plain form */
    float* parameters() const { return block_.at<float>(layout_.parameters); }
    float* gradient() const { return block_.at<float>(layout_.gradient); }
    float* first_moment() const { return block_.at<float>(layout_.first_moment); }
    float* second_moment() const { return block_.at<float>(layout_.second_moment); }
    uform_update_state_t* state() const { return block_.at<uform_update_state_t>(layout_.state); }
    double* terms() const { return state()->terms; }

    /** Brings the backend's own form of the weights up to date with the plain one. */
    void import_weights();

    /** Staging slots that the host fills in turns. */
    size_t slots() const { return slots_.empty() ? 1 : slots_.size(); }
    /** Where the host fills this device's staging. */
    uint8_t* host_staging(size_t slot = 0) { return slots_.empty() ? device_staging() : slots_[slot]->data(); }

    /* a step, in this order */
    void begin(batch const& planned, size_t slot = 0);
    /** Runs `body`, this replica's whole part of a step after `begin`, as one graph where all of it can be captured. */
    template <typename body_at> void whole_step(body_at&& body) { graphs_.run(section::whole, size_, body); }
    void clear();
    void forward();
    void embed();
    void encode();
    void pool();
    void gather_covered();
    void score();
    /** What the objective at `place` answers in inference. */
    uform_answer_t infer(size_t place);
    void backpropagate();
    void update();

    graph_counters counters() const { return graphs_.counters(); }

    float* bags() const { return block_.at<float>(layout_.bags); }
    float* world_bags() const { return block_.at<float>(layout_.world_bags); }
    float* world_bags_gradient() const { return block_.at<float>(layout_.world_bags_gradient); }
    float* vectors(objective_instance const& of) const { return block_.at<float>(of.vectors_offset); }
    float* world_vectors(objective_instance const& of) const { return block_.at<float>(of.world_vectors_offset); }
    float* world_vectors_gradient(objective_instance const& of) const {
        return block_.at<float>(of.world_vectors_gradient_offset);
    }

    /** Called back by objectives while they score. */
    void reconstruct(uint32_t modality, float const* scale, float const* weight, double* term);

private:
    template <typename instance_at> struct plugin_pointers {
        instance_at* instance;
        std::vector<void const*> weights;
        std::vector<float*> gradients;
    };

    /** A stretch of the staging. */
    struct stretch {
        size_t offset, bytes;
    };

    void wire_graphs();
    void score_objectives();
    void look_through(plugin_parts const& parts, finding what, void const* values, uint32_t rows, uint32_t width,
                      int32_t scalar);
    void look_through_columns(plugin_parts const& parts, void const* values);
    void look_through_taps(plugin_parts const& parts, uint32_t taps);
    void look_through_parameters(plugin_parts const& parts);
    void backpropagate_all();
    void apply_update();
    uint8_t* device_staging() const { return block_.at<uint8_t>(layout_.staging); }
    void plan_upload();
    void upload(uint8_t const* from);
    void wire_parameters();
    void wire_layers();
    template <typename instance_at> plugin_pointers<instance_at> wire_plugin(instance_at& instance);
    template <typename instance_at>
    uform_pass_t pass_for(plugin_pointers<instance_at> const& pointers, uform_host_t* host) const;
    uform_pass_t pass_over_columns(plugin_pointers<objective_instance> const& pointers, uform_host_t* host) const;
    void columns_forward();
    void columns_backward();
    uform_norm_t norm_arguments() const;
    uform_pool_t pool_arguments() const;
    uform_rows_t rows_arguments() const;
    float* bags_gradient() const;
    uint32_t covered_active() const;

    composition& whole_;
    replica_layout const& layout_;
    uform_operations_t const& operations_;
    uform_stream_t* stream_;
    uint32_t device_;
    device_block block_;
    std::vector<std::unique_ptr<staging_block>> slots_; /* none where device memory is the host's */
    std::vector<stretch> stretches_;                    /* what a step uploads, ascending */
    uform_stream_t* upload_stream_;
    device_event uploaded_, taken_;    /* the inbox is full, and free again */
    std::vector<void const*> weights_; /* by parameter: the backend's form */
    std::vector<float*> gradients_;
    std::vector<uform_layer_t> layers_;
    std::vector<plugin_pointers<modality_instance>> modalities_;
    std::vector<plugin_pointers<objective_instance>> objectives_;
    uform_columns_t columns_{};
    step_graphs graphs_;
    batch const* planned_ = nullptr;
    step_size size_;
};

} // namespace uform

/** A training run: one replica a device, stepped together. */
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/batch.h"
#include "core/checkpoint.h"
#include "core/planning.h"
#include "core/replica.h"

namespace uform {

class trainer {
public:
    trainer(std::shared_ptr<executor> on, uform_trainer_options_t const& options);

    void step(uform_step_t const& step, uform_trainer_step_stats_t* stats);
    void save(std::string const& path, uform_progress_t call, void* state, uint64_t every);
    std::string describe();

    /** Copies of one replica's values, by name. */
    void read(std::string const& name, int32_t what, float* to, size_t count);
    void write(std::string const& name, float const* from, size_t count);

private:
    /* init */
    void build(uform_trainer_options_t const& options, checkpoint const* resumed);
    void load(uform_trainer_options_t const& options, checkpoint const* resumed);

    /* a step, in this order */
    void check_step(uform_step_t const& step) const;
    void check_output(uform_output_t const& output) const;
    void plan(uform_step_t const& step);
    void forward();
    void score();
    void backward();
    void reduce();
    void update();
    void answer(uform_output_t const& output);
    void report(uform_trainer_step_stats_t* stats);
    [[noreturn]] void refuse() const;

    uint64_t edges_limit() const;
    parameter const& find(std::string const& name) const;
    float* buffer(replica const& of, int32_t what) const;
    /** A device's buffer in host memory: itself where it is, else downloaded into `copy`. */
    float const* on_host(float const* device_values, uint64_t count, std::vector<float>& copy);

    std::shared_ptr<executor> executor_;
    std::mutex mutex_;
    std::unique_ptr<composition> whole_;
    replica_layout layout_;
    std::vector<std::unique_ptr<replica>> replicas_;
    std::unique_ptr<batch> batch_;
    std::unique_ptr<planning> planning_;

    uint64_t calls_ = 0;
    uint64_t dropped_ = 0; /* since statistics were last read */
    uform_update_state_t state_{};
    std::vector<uform_named_value_t> extra_;
    std::vector<staging_view> staging_;
    std::vector<uint8_t*> staging_bases_;
    std::vector<uform_device_view_t> views_;
    std::vector<std::vector<float>> pooled_; /* host copies, one a device */
    std::vector<float*> gradients_, world_gradients_;
    std::vector<double*> terms_;
    std::vector<void const*> bags_;
    std::vector<void*> world_bags_;
};

} // namespace uform

/** A training run: one replica a device, stepped together. */
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/answer.h"
#include "core/batch.h"
#include "core/checkpoint.h"
#include "core/planning.h"
#include "core/queue.h"
#include "core/replica.h"

namespace uform {

/** The run that the options ask for, or that `resumed`, unless null, goes on with. */
std::unique_ptr<composition> compose_run(executor const& on, uform_trainer_options_t const& options,
                                         checkpoint const* resumed);

class trainer {
public:
    trainer(std::shared_ptr<executor> on, uform_trainer_options_t const& options);
    ~trainer();
    trainer(trainer const&) = delete;
    trainer& operator=(trainer const&) = delete;

    /**
     *  Checks, plans, packs and puts a whole step on the devices' streams, where it runs by itself: whether it is
     *  applied is decided there. Waits for a staging slot first, and for nothing afterwards.
     */
    uform_pending_t& submit(uform_step_t const& step);

    /** The same, and waits until it is final. */
    void step(uform_step_t const& step, uform_trainer_step_stats_t* stats);
    void save(std::string const& path, uform_progress_t call, void* state, uint64_t every);
    std::string describe();

    /** Copies of one replica's values, by name. */
    void read(std::string const& name, int32_t what, float* to, size_t count);
    void write(std::string const& name, float const* from, size_t count);

    uform_trainer_counters_t counters();

private:
    /** What the host keeps of one step on its way; steps take turns. */
    struct slot {
        std::vector<staging_view> staging; /* by device */
        std::vector<uint8_t*> staging_bases;
        std::unique_ptr<staging_block> state;  /* uform_update_state_t */
        std::vector<device_event> begun, done; /* by device */
        std::unique_ptr<answer> answered;
        bool answers = false; /* this step's embeddings were asked for */
        uint64_t truncated = 0, dropped = 0;
    };

    /** An objective's vectors that every device shows to all others. */
    struct shared_vectors {
        std::vector<void const*> own;  /* by device */
        std::vector<void*> world;      /* likewise: of all ranks */
        std::vector<float*> gradients; /* likewise, by those */
        uint64_t count;                /* values of one device */
    };

    /** Refuses what would go on from weights that a failed call has left half changed. */
    void check_not_broken() const;
    /** From a handler: nobody knows which weights the call that failed has changed. */
    void break_off() noexcept;

    /* init */
    void build(uform_trainer_options_t const& options, checkpoint const* resumed);
    void load(uform_trainer_options_t const& options, checkpoint const* resumed);

    slot make_slot(size_t place);
    shared_vectors share_vectors(objective_instance const& objective);

    /* a step, in this order */
    void check_step(uform_step_t const& step);
    void plan(uform_step_t const& step, slot& to);
    void begin(size_t place);
    void run();
    void forward();
    void score();
    void backward();
    void reduce();
    void update();
    void end(slot& to, uform_output_t const& output);
    void abandon() noexcept;
    bool unchanged(slot& scratch) noexcept;

    /* once it is done */
    void settle(uint64_t number, step_outcome& outcome);
    [[noreturn]] void refuse() const;
    void refuse_finding(plugin_parts const& parts, finding what, char const* words) const;

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
    planning_lists planning_lists_;
    std::unique_ptr<planning> planning_;
    checked_relations relations_;

    uint64_t calls_ = 0;
    uint64_t dropped_ = 0;         /* by all steps */
    uform_update_state_t state_{}; /* after the last step that is final */
    bool lost_ = false;            /* a step that is final was lost on the device */
    double device_seconds_ = 0;
    mutable std::mutex broken_mutex_;
    bool broken_ = false; /* guarded by the mutex, as is what the call said that was broken off */
    std::string broken_by_;
    std::vector<slot> slots_;
    std::shared_ptr<step_queue> queue_;
    std::vector<uform_device_view_t> views_;
    std::vector<float const*> pooled_; /* each device's bags */
    std::vector<float*> gradients_, world_gradients_;
    std::vector<double*> terms_;
    std::vector<void const*> bags_;
    std::vector<void*> world_bags_;
    std::vector<shared_vectors> shared_vectors_;
};

} // namespace uform

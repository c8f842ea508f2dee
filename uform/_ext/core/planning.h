/** Objectives' host plans of one step: relations, masks, numbers that the world agrees on. */
#pragma once

#include <array>
#include <cstdint>
#include <mutex>
#include <span>
#include <vector>

#include "core/batch.h"
#include "core/host.h"
#include "core/plugins.h"
#include "core/relations.h"
#include "core/threads.h"

namespace uform {

/** Refuses a side that is none; `sides` is one an item, or null. */
void check_sides(uint8_t const* sides, size_t items);

/** Host memory that plans go through. Whoever plans often keeps it: it grows only with a plan larger than all before.
 */
struct planning_lists {
    relation_planner bag_pairs, item_pairs;
    std::vector<uint32_t> units;          /* by item */
    std::vector<uform_world_bag_t> world; /* by slot */
};

class planning {
public:
    static constexpr uint32_t counts_capacity_k = 16;

    /** @param covering Where covers go; null where nothing can be covered. */
    planning(uform_run_t const& run, std::span<objective_instance> objectives, batch* covering, thread_pool& pool,
             planning_lists& lists);

    /** One step's view; everything is borrowed until the next. `sides` is one a content of the call, or null. */
    struct step {
        uint64_t call;
        std::span<uform_item_t const> items;
        std::span<uform_bag_t const> bags;
        std::span<uform_device_view_t const> devices; /* without plugins' staging */
        std::span<uint8_t* const> staging;            /* each device's, whole */
        uint8_t const* sides;
        uform_relations_t const* relations; /* checked */
        uform_choice_texts_t const* choices = nullptr;
    };

    /** Runs both stages of every objective. */
    void run(step const& step);

    /** The slots that count as rows on one device, as the last objective that has rows told. */
    std::span<uint32_t const> rows(uint32_t device) const { return rows_[device]; }

private:
    friend struct planning_callbacks;
    void gather_world();
    [[noreturn]] void refuse_flag(uform_host_t* host, uint32_t bag);
    void run_stage(uint32_t stage);

    uform_run_t const& run_;
    std::span<objective_instance> objectives_;
    batch* covering_;
    step step_{};
    thread_pool& pool_;
    std::mutex misuse_; /* of threads that flag */
    planning_lists& lists_;
    uform_pair_rows_t bag_rows_{}, item_rows_{};
    bool has_bag_rows_ = false, has_item_rows_ = false;
    std::vector<std::array<double, counts_capacity_k>> counts_; /* by objective */
    std::vector<std::vector<uint8_t>> notices_;                 /* by objective, then by rank; one more at the end */
    std::vector<uform_device_view_t> views_;
    std::vector<std::span<uint32_t const>> rows_; /* by device */
};

} // namespace uform

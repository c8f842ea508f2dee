#include "core/planning.h"

#include <algorithm>
#include <atomic>

#include "core/random.h"

namespace uform {

namespace {

constexpr size_t items_chunk_k = 2048;

} // namespace

/** The functions that an objective's plan may call. */
struct planning_callbacks {
    static uform_status_t pairs(uform_host_t* host, uint32_t by_bag, uform_pair_rows_t* pairs) {
        return guard([&] {
            planning& self = *host->planning;
            if (!pairs)
                fail(uform_status_invalid_argument_k, "pairs: the place for them is null");
            if (by_bag) {
                if (!self.has_bag_rows_) {
                    auto const units = collect_units(self, [](uform_item_t const& item) { return item.bag; });
                    self.bag_rows_ = self.lists_.bag_pairs.plan(
                        *self.step_.relations, units, static_cast<uint32_t>(self.step_.bags.size()), self.pool_);
                    self.has_bag_rows_ = true;
                }
                *pairs = self.bag_rows_;
            } else {
                if (!self.has_item_rows_) {
                    auto const units = collect_units(self, [](uform_item_t const& item) { return item.content; });
                    self.item_rows_ = self.lists_.item_pairs.plan(
                        *self.step_.relations, units, static_cast<uint32_t>(self.step_.items.size()), self.pool_);
                    self.has_item_rows_ = true;
                }
                *pairs = self.item_rows_;
            }
        });
    }

    template <typename unit_at> static std::span<uint32_t const> collect_units(planning& self, unit_at&& unit) {
        size_t const count = self.step_.items.size();
        if (self.lists_.units.size() < count)
            self.lists_.units.resize(count);
        self.pool_.parallel_chunks(count, items_chunk_k, [&](size_t begin, size_t end) {
            for (size_t index = begin; index != end; ++index) {
                uform_item_t const& item = self.step_.items[index];
                self.lists_.units[index] = item.device == dropped_k ? no_unit_k : unit(item);
            }
        });
        return {self.lists_.units.data(), count};
    }

    static uform_status_t flag(uform_host_t* host, uint32_t bag, uint8_t flags) {
        return guard([&] {
            planning& self = *host->planning;
            if (bag >= self.step_.bags.size())
                self.refuse_flag(host, bag);
            uint32_t const slot = self.step_.bags[bag].slot;
            if (slot != UINT32_MAX)
                std::atomic_ref(self.lists_.world[slot].flags).fetch_or(flags, std::memory_order_relaxed);
        });
    }

    static uform_status_t count(uform_host_t* host, uint32_t index, double value) {
        return guard([&] {
            if (index >= planning::counts_capacity_k)
                fail(uform_status_internal_k, "count: index ", index, " of ", planning::counts_capacity_k);
            host->planning->counts_[host->objective][index] += value;
        });
    }

    static double counted(uform_host_t* host, uint32_t index) {
        if (index < planning::counts_capacity_k)
            return host->planning->counts_[host->objective][index];
        note_misuse(host,
                    "counted: index " + std::to_string(index) + " of " + std::to_string(planning::counts_capacity_k));
        return 0;
    }

    static void random(uform_host_t* host, uint32_t purpose, uint64_t world_item, uint32_t column, uint32_t words[4]) {
        planning& self = *host->planning;
        if (!words)
            return note_misuse(host, "random: the place for its words is null");
        auto const drawn =
            philox_block(self.run_.seed, self.step_.call, purpose, static_cast<uint32_t>(world_item), column);
        std::copy(drawn.begin(), drawn.end(), words);
    }

    static uform_status_t rows(uform_host_t* host, uint32_t device, uint32_t const* slots, uint32_t count) {
        return guard([&] {
            planning& self = *host->planning;
            if (device >= self.rows_.size())
                fail(uform_status_internal_k, "rows: this process has no device ", device);
            if (count && !slots)
                fail(uform_status_invalid_argument_k, "rows: its slots is null: expected ", count);
            for (uint32_t row = 0; row != count; ++row)
                if (slots[row] >= self.lists_.world.size())
                    fail(uform_status_invalid_argument_k, "rows: its slots[", row, "] is ", slots[row],
                         ": the world has ", self.lists_.world.size());
            self.rows_[device] = {slots, count};
        });
    }

    static void* notice_of(uform_host_t* host, uint32_t device) {
        uform_run_t const& run = host->planning->run_;
        if (device < run.devices)
            return notice(host, run.first_rank + device);
        note_misuse(host, "notice_of: device " + std::to_string(device) + " of " + std::to_string(run.devices));
        return notice(host, run.world_devices);
    }

    static void const* notice_from(uform_host_t* host, uint32_t rank) {
        uform_run_t const& run = host->planning->run_;
        if (rank < run.world_devices)
            return notice(host, rank);
        note_misuse(host, "notice_from: rank " + std::to_string(rank) + " of " + std::to_string(run.world_devices));
        return notice(host, run.world_devices);
    }

    /** One behind the world's is nobody's: whoever asks wrongly may write it, and is refused afterwards. */
    static uint8_t* notice(uform_host_t* host, uint32_t rank) {
        return host->planning->notices_[host->objective].data() + host->parts->notice_bytes * rank;
    }

    static uform_world_bag_t const* world(uform_host_t* host) { return host->planning->lists_.world.data(); }

    static uform_status_t cover(uform_host_t* host, size_t item, uint32_t const* places, uint8_t const* actions,
                                uint8_t const* random_bytes, uint32_t count) {
        return guard([&] {
            batch* const covering = host->planning->covering_;
            if (!covering)
                fail(uform_status_internal_k, "cover: nothing can be covered here");
            if (host->stage != 0)
                fail(uform_status_invalid_argument_k, "cover: columns are covered in stage 0, not in stage ",
                     host->stage);
            if (host->parts->covered_capacity == 0)
                fail(uform_status_invalid_argument_k,
                     "cover: its covered_capacity is 0: expected as many as it covers");
            covering->cover(item, places, actions, random_bytes, count);
        });
    }
};

void check_sides(uint8_t const* sides, size_t items) {
    if (!sides)
        return;
    for (size_t item = 0; item != items; ++item)
        if (sides[item] > uform_late_interaction_side_query_and_document_k)
            fail(uform_status_invalid_argument_k, "sides[", item, "]: between 0 and 3, not ", int(sides[item]));
}

planning::planning(uform_run_t const& run, std::span<objective_instance> objectives, batch* covering, thread_pool& pool,
                   planning_lists& lists)
    : run_(run), objectives_(objectives), covering_(covering), pool_(pool), lists_(lists), counts_(objectives.size()),
      views_(run.devices), rows_(run.devices) {
    lists_.world.resize(size_t(run.world_devices) * run.bags_capacity);
    for (objective_instance const& one : objectives)
        notices_.emplace_back(one.notice_bytes * (size_t(run.world_devices) + 1));
}

void planning::run(step const& step) {
    step_ = step;
    has_bag_rows_ = has_item_rows_ = false;
    gather_world();
    for (auto& counts : counts_)
        counts.fill(0);
    for (auto& notices : notices_)
        std::fill(notices.begin(), notices.end(), uint8_t(0));
    std::fill(rows_.begin(), rows_.end(), std::span<uint32_t const>{});
    run_stage(0);
    // Here the ranks of a mesh exchange counts, bags and notices; the devices of one process share them already.
    run_stage(1);
}

void planning::gather_world() {
    std::fill(lists_.world.begin(), lists_.world.end(), uform_world_bag_t{});
    auto const gather = [this](size_t begin, size_t end) {
        for (uform_item_t const& item : step_.items.subspan(begin, end - begin)) {
            if (item.device == dropped_k)
                continue;
            uform_world_bag_t& bag = lists_.world[step_.bags[item.bag].slot];
            bag.modalities |= uint32_t(1) << (item.modality & 31);
            bag.sides |= step_.sides ? step_.sides[item.content] : uint8_t(0);
            bag.present = 1;
        }
    };
    // As many bags as items: no two items write the same.
    if (step_.items.size() == step_.bags.size())
        pool_.parallel_chunks(step_.items.size(), items_chunk_k, gather);
    else
        gather(0, step_.items.size());
}

/** Of several threads' refusals the one that the plan is refused with is any. */
void planning::refuse_flag(uform_host_t* host, uint32_t bag) {
    std::string const message = "flag: the call has no bag " + std::to_string(bag);
    std::lock_guard const lock(misuse_);
    note_misuse(host, message);
    fail(uform_status_invalid_argument_k, message);
}

void planning::run_stage(uint32_t stage) {
    for (size_t place = 0; place != objectives_.size(); ++place) {
        objective_instance& objective = objectives_[place];
        for (size_t device = 0; device != views_.size(); ++device) {
            views_[device] = step_.devices[device];
            views_[device].staging = step_.staging[device] + objective.staging_offset;
        }
        uform_host_t host{
            .parts = &objective, .planning = this, .objective = static_cast<uint32_t>(place), .stage = stage};
        uform_plan_t plan{};
        plan.host = &host;
        plan.run = &run_;
        plan.call = step_.call;
        plan.fail = fail_on_host;
        plan.items_count = step_.items.size();
        plan.items = step_.items.data();
        plan.bags_count = step_.bags.size();
        plan.bags = step_.bags.data();
        plan.devices = views_.data();
        plan.pairs = planning_callbacks::pairs;
        plan.flag = planning_callbacks::flag;
        plan.count = planning_callbacks::count;
        plan.counted = planning_callbacks::counted;
        plan.random = planning_callbacks::random;
        plan.world = planning_callbacks::world;
        plan.rows = planning_callbacks::rows;
        plan.cover = planning_callbacks::cover;
        plan.choices = step_.choices;
        plan.sides = step_.sides;
        plan.notice_of = planning_callbacks::notice_of;
        plan.notice_from = planning_callbacks::notice_from;
        plan.parallel = pool_.parallel();
        call_plugin(objective, "plan", [&] {
            uform_status_t const status = objective.plugin->plan(objective.self, &plan, stage);
            if (status != uform_status_success_k && !host.misuse.empty())
                set_last_error(host.misuse.c_str()); // on another thread the refusal left it there
            return status;
        });
        check_misuse(objective, host);
    }
}

} // namespace uform

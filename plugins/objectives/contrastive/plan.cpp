/** Which bags are compared on which device, decided on the host before the upload. */
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <utility>

#include "state.h"

namespace uform::contrastive {
namespace {

constexpr uint32_t no_bag_k = UINT32_MAX;
constexpr uint32_t dropped_k = UINT32_MAX;
constexpr uint32_t chunk_k = 2048;

/** Calls `body(begin, end)` for `count` elements, many at a time on the host's threads. */
template <typename body_at> void each_chunk(uform_parallel_t const& parallel, uint32_t count, body_at const& body) {
    struct chunks {
        uint32_t count;
        body_at const& body;
    } all{count, body};
    auto const task = [](void* state, size_t index) {
        chunks const& of = *static_cast<chunks*>(state);
        uint32_t const begin = static_cast<uint32_t>(index) * chunk_k;
        of.body(begin, std::min(of.count - begin, chunk_k) + begin);
    };
    parallel.run(parallel.pool, (size_t(count) + chunk_k - 1) / chunk_k, task, &all);
}

/** Whether a row counts: by what attracts it, for the sigmoid form also by what repels it. */
bool counts_as_row(state const& self, uform_pair_rows_t const& pairs, uform_bag_t const* bags, uint32_t bag) {
    if (bags[bag].device == dropped_k)
        return false;
    bool const repelled_too = self.config.pair_loss == uform_pair_loss_form_sigmoid_k;
    for (uint32_t place = pairs.offsets[bag]; place < pairs.offsets[bag + 1]; ++place) {
        uint8_t const kind = pairs.classes[place];
        bool const binds =
            kind == uform_pair_class_attracted_k || (repelled_too && kind == uform_pair_class_repelled_k);
        if (binds && bags[pairs.candidates[place]].device != dropped_k)
            return true;
    }
    return false;
}

uform_status_t check_groups(state const& self, uform_plan_t const& plan) {
    auto const groups = static_cast<uint32_t>(self.config.temperature_groups);
    for (size_t bag = 0; bag < plan.bags_count; ++bag) {
        if (plan.bags[bag].group < groups)
            continue;
        uform_item_t const* const last = plan.items + plan.items_count;
        uform_item_t const* const first = std::find_if(plan.items, last, [&](auto& item) { return item.bag == bag; });
        char message[160];
        std::snprintf(message, sizeof(message),
                      "temperature_groups: item %zu has group %u, but Contrastive.temperature_groups is %u",
                      first == last ? bag : size_t(first->content), plan.bags[bag].group, groups);
        return plan.fail(plan.host, uform_status_invalid_argument_k, message);
    }
    return uform_status_success_k;
}

/** Flags what bags [begin, end) point at, notes which of them count as rows, and answers how many. */
uint32_t agree_on_bags(state& self, uform_plan_t const& plan, uform_pair_rows_t const& pairs, uint32_t begin,
                       uint32_t end) {
    uint32_t rows = 0;
    for (uint32_t bag = begin; bag != end; ++bag) {
        if (plan.bags[bag].device == dropped_k)
            continue;
        bool const counts = counts_as_row(self, pairs, plan.bags, bag);
        self.scratch.counts[plan.bags[bag].slot] = counts;
        rows += counts;
        for (uint32_t place = pairs.offsets[bag]; place < pairs.offsets[bag + 1]; ++place)
            if (pairs.classes[place] != uform_pair_class_ignored_k)
                plan.flag(plan.host, pairs.candidates[place], 1); // a bag of this call: it can not fail
    }
    return rows;
}

/** Stage 0: which bags some pair points at, and which rows count here. */
uform_status_t agree(state& self, uform_plan_t const& plan) {
    uform_status_t status = check_groups(self, plan);
    uform_pair_rows_t pairs{};
    if (status == uform_status_success_k)
        status = plan.pairs(plan.host, 1, &pairs);
    if (status != uform_status_success_k)
        return status;
    std::atomic<uint32_t> rows = 0;
    each_chunk(plan.parallel, pairs.units,
               [&](uint32_t begin, uint32_t end) { rows += agree_on_bags(self, plan, pairs, begin, end); });
    return plan.count(plan.host, rows_counter_k, rows);
}

/** Stage 1 for one device. */
class device_plan {
public:
    device_plan(state& self, uform_plan_t const& plan, uform_pair_rows_t const& pairs, uint32_t device)
        : self_(self), scratch_(self.scratch), plan_(plan), pairs_(pairs), world_(plan.world(plan.host)),
          device_(device), staging_(plan.devices[device].staging) {}

    uform_status_t fill() {
        find_rows();
        find_visible();
        fill_units();
        return fill_rows();
    }

private:
    template <typename value_at> value_at* staged(size_t offset) const {
        return reinterpret_cast<value_at*>(staging_ + offset);
    }

    bool ambient() const {
        return self_.config.negatives == uform_negatives_ambient_k && self_.config.ambient_repulsion_weight > 0;
    }

    /** By place, which is the order of slots. */
    void find_rows() {
        std::fill(scratch_.bag_at.begin(), scratch_.bag_at.end(), no_bag_k);
        for (uint32_t bag = 0; bag < pairs_.units; ++bag)
            if (plan_.bags[bag].device == device_)
                scratch_.bag_at[plan_.bags[bag].place] = bag;
        scratch_.row_bags.clear();
        for (uint32_t bag : scratch_.bag_at)
            if (bag != no_bag_k && scratch_.counts[plan_.bags[bag].slot])
                scratch_.row_bags.push_back(bag);
    }

    /** The rows themselves, what their pairs name, and what some row may see as ambient. */
    void find_visible() {
        std::fill(scratch_.visible.begin(), scratch_.visible.end(), uint8_t(0));
        if (scratch_.row_bags.empty())
            return;
        if (ambient())
            mark_ambient();
        each_row(static_cast<uint32_t>(scratch_.row_bags.size()),
                 [this](uint32_t row) { mark_named(scratch_.row_bags[row]); });
    }

    /** A row itself and what its pairs name. Threads may mark the same. */
    void mark_named(uint32_t bag) const {
        auto const mark = [this](uint32_t slot) {
            std::atomic_ref(scratch_.visible[slot]).store(1, std::memory_order_relaxed);
        };
        mark(plan_.bags[bag].slot);
        for (uint32_t place = pairs_.offsets[bag]; place < pairs_.offsets[bag + 1]; ++place) {
            uform_bag_t const& candidate = plan_.bags[pairs_.candidates[place]];
            if (candidate.device != dropped_k && pairs_.classes[place] != uform_pair_class_ignored_k)
                mark(candidate.slot);
        }
    }

    void mark_ambient() {
        uint8_t sides = 0;
        scratch_.row_sets.clear();
        for (uint32_t bag : scratch_.row_bags) {
            uform_world_bag_t const& row = world_[plan_.bags[bag].slot];
            sides |= row.sides;
            // Most rows are like those whose set was the last new one.
            if (!scratch_.row_sets.empty() && scratch_.row_sets.back() == row.modalities)
                continue;
            if (std::find(scratch_.row_sets.begin(), scratch_.row_sets.end(), row.modalities) ==
                scratch_.row_sets.end())
                scratch_.row_sets.push_back(row.modalities);
        }
        each_chunk(plan_.parallel, self_.most.units, [&](uint32_t begin, uint32_t end) {
            for (uint32_t slot = begin; slot != end; ++slot)
                scratch_.visible[slot] = world_[slot].present && in_scope(world_[slot], sides);
        });
    }

    bool in_scope(uform_world_bag_t const& candidate, uint8_t row_sides) const {
        constexpr uint8_t query = uform_late_interaction_side_query_k;
        constexpr uint8_t document = uform_late_interaction_side_document_k;
        switch (self_.config.ambient_scope) {
        case uform_ambient_scope_cross_modal_k:
            return std::any_of(scratch_.row_sets.begin(), scratch_.row_sets.end(),
                               [&](uint32_t set) { return !(set & candidate.modalities); });
        case uform_ambient_scope_targets_k:
            return candidate.flags & 1;
        case uform_ambient_scope_cross_side_k:
            return ((row_sides & query) && (candidate.sides & document)) ||
                   ((row_sides & document) && (candidate.sides & query));
        default:
            return true;
        }
    }

    /** Numbers the visible bags by slot. */
    void fill_units() {
        // Held here, for whatever is written as bytes could be a member, which would be read anew each time.
        uint32_t* const slots = staged<uint32_t>(self_.staging.slots);
        uint32_t* const modalities = staged<uint32_t>(self_.staging.modalities);
        uint8_t* const sides = staged<uint8_t>(self_.staging.sides);
        uint8_t* const targets = staged<uint8_t>(self_.staging.targets);
        uint8_t const* const visible = scratch_.visible.data();
        uint32_t* const unit_of = scratch_.unit_of.data();
        uint32_t const most = self_.most.units;
        uform_world_bag_t const* const world = world_;
        uint32_t units = 0;
        for (uint32_t slot = 0; slot < most; ++slot) {
            if (!visible[slot])
                continue;
            unit_of[slot] = units;
            slots[units] = slot;
            modalities[units] = world[slot].modalities;
            sides[units] = world[slot].sides;
            targets[units++] = world[slot].flags & 1;
        }
        staged<uint32_t>(self_.staging.counts)[0] = units;
    }

    uform_status_t fill_rows() {
        auto const rows = static_cast<uint32_t>(scratch_.row_bags.size());
        uint32_t* const slots = scratch_.row_slots.data() + size_t(device_) * self_.most.rows;
        uint32_t* const edge_offsets = staged<uint32_t>(self_.staging.edge_offsets);
        each_row(rows, [&](uint32_t row) { edge_offsets[row] = fill_row(row, slots); });
        uint32_t edges = 0;
        for (uint32_t row = 0; row != rows; ++row) {
            uint32_t const count = std::exchange(edge_offsets[row], edges);
            if (count > self_.most.edges - edges)
                return plan_.fail(plan_.host, uform_status_invalid_argument_k,
                                  "relations: more pairs than Contrastive.max_edges_per_device times the devices");
            edges += count;
        }
        edge_offsets[rows] = edges;
        std::atomic<bool> ascending = true;
        each_row(rows, [&](uint32_t row) {
            if (!fill_edges(row))
                ascending.store(false, std::memory_order_relaxed);
        });
        for (uint32_t row = 0; !ascending && row != rows; ++row)
            sort_edges(row);
        staged<uint32_t>(self_.staging.counts)[1] = rows;
        staged<uint32_t>(self_.staging.counts)[2] = edges;
        double const counted = plan_.counted(plan_.host, rows_counter_k);
        *staged<float>(self_.staging.scale) =
            counted > 0 ? static_cast<float>(1 / (counted * self_.config.matryoshka_count)) : 0.0f;
        return plan_.rows(plan_.host, device_, slots, rows);
    }

    template <typename body_at> void each_row(uint32_t rows, body_at const& body) const {
        each_chunk(plan_.parallel, rows, [&](uint32_t begin, uint32_t end) {
            for (uint32_t row = begin; row != end; ++row)
                body(row);
        });
    }

    /** Calls `body(unit, place)` for the named pairs of a row. An ignored pair matters only where it would be ambient.
     */
    template <typename body_at> void each_edge(uint32_t row, body_at&& body) const {
        uint32_t const bag = scratch_.row_bags[row], end = pairs_.offsets[bag + 1];
        for (uint32_t place = pairs_.offsets[bag]; place < end; ++place) {
            uform_bag_t const& candidate = plan_.bags[pairs_.candidates[place]];
            if (candidate.device != dropped_k && scratch_.visible[candidate.slot])
                body(scratch_.unit_of[candidate.slot], place);
        }
    }

    /** Answers how many named pairs it has. */
    uint32_t fill_row(uint32_t row, uint32_t* slots) const {
        uform_bag_t const& bag = plan_.bags[scratch_.row_bags[row]];
        slots[row] = bag.slot;
        staged<uint32_t>(self_.staging.rows)[row] = scratch_.unit_of[bag.slot];
        staged<uint32_t>(self_.staging.row_groups)[row] = bag.group;
        uint32_t edges = 0;
        each_edge(row, [&](uint32_t, uint32_t) { ++edges; });
        return edges;
    }

    /** Answers whether they are in the order of units. */
    bool fill_edges(uint32_t row) const {
        uint32_t* const units = staged<uint32_t>(self_.staging.edge_units);
        uint8_t* const classes = staged<uint8_t>(self_.staging.edge_classes);
        float* const weights = staged<float>(self_.staging.edge_weights);
        uint32_t const first = staged<uint32_t>(self_.staging.edge_offsets)[row];
        uint32_t edge = first;
        bool ascending = true;
        each_edge(row, [&](uint32_t unit, uint32_t place) {
            ascending &= edge == first || units[edge - 1] < unit;
            units[edge] = unit;
            classes[edge] = pairs_.classes[place];
            weights[edge++] = pairs_.weights[place];
        });
        return ascending;
    }

    /** Pairs are in the order of this call's bags, and their places on the devices may be in another. */
    void sort_edges(uint32_t row) const {
        std::vector<edge>& edges = scratch_.row_edges;
        edges.clear();
        each_edge(row, [&](uint32_t unit, uint32_t place) {
            edges.push_back({unit, pairs_.classes[place], pairs_.weights[place]});
        });
        std::sort(edges.begin(), edges.end(),
                  [](edge const& left, edge const& right) { return left.unit < right.unit; });
        uint32_t at = staged<uint32_t>(self_.staging.edge_offsets)[row];
        for (edge const& named : edges) {
            staged<uint32_t>(self_.staging.edge_units)[at] = named.unit;
            staged<uint8_t>(self_.staging.edge_classes)[at] = named.kind;
            staged<float>(self_.staging.edge_weights)[at++] = named.weight;
        }
    }

    state& self_;
    plan_scratch& scratch_;
    uform_plan_t const& plan_;
    uform_pair_rows_t const& pairs_;
    uform_world_bag_t const* world_;
    uint32_t device_;
    uint8_t* staging_;
};

} // namespace

uform_status_t plan(void* opaque, uform_plan_t const* plan, uint32_t stage) {
    state& self = *static_cast<state*>(opaque);
    if (stage == 0)
        return agree(self, *plan);
    uform_pair_rows_t pairs{};
    uform_status_t status = plan->pairs(plan->host, 1, &pairs);
    for (uint32_t device = 0; status == uform_status_success_k && device < plan->run->devices; ++device)
        status = device_plan(self, *plan, pairs, device).fill();
    return status;
}

} // namespace uform::contrastive

/** Which items choose among what on which device, decided on the host before the upload. */
#include <algorithm>

#include "offered.h"
#include "state.h"

namespace uform::choices {
namespace {

constexpr uint32_t dropped_k = UINT32_MAX;

/** An item's targets; null where it abstains. */
float const* targets_of(uform_choice_texts_t const& texts, uint32_t content) {
    float const* const row = texts.targets + texts.target_offsets[content];
    float const* const end = texts.targets + texts.target_offsets[content + 1];
    return std::any_of(row, end, [](float one) { return one != 0; }) ? row : nullptr;
}

/** Stage 0: how many items make a choice here. */
uform_status_t agree(uform_plan_t const& plan) {
    double choosing = 0;
    for (size_t place = 0; plan.choices && place < plan.items_count; ++place) {
        uform_item_t const& item = plan.items[place];
        choosing += item.device != dropped_k && targets_of(*plan.choices, item.content);
    }
    return plan.count(plan.host, items_counter_k, choosing);
}

/** Stage 1 for one device. */
class device_plan {
public:
    device_plan(state& self, uform_plan_t const& plan, uint32_t device)
        : self_(self), plan_(plan), device_(device), staging_(plan.devices[device].staging) {}

    void fill() {
        uint32_t* const offsets = staged<uint32_t>(self_.staging.offsets);
        uint32_t items = 0;
        offsets[0] = 0;
        for (size_t place = 0; place < plan_.items_count; ++place) {
            uform_item_t const& item = plan_.items[place];
            if (item.device != device_)
                continue;
            add_rows(item);
            if (offsets[items] != rows_)
                offsets[++items] = rows_;
            if (!plan_.run->training)
                self_.segment_rows[device_][item.segment + 1] = rows_;
        }
        staged<uint32_t>(self_.staging.counts)[0] = items;
        staged<uint32_t>(self_.staging.counts)[1] = rows_;
        double const choosing = plan_.counted(plan_.host, items_counter_k);
        *staged<float>(self_.staging.scale) = choosing > 0 ? static_cast<float>(1 / choosing) : 0.0f;
        *staged<float>(self_.staging.weight) = static_cast<float>(self_.config.weight);
    }

private:
    template <typename value_at> value_at* staged(size_t offset) const {
        return reinterpret_cast<value_at*>(staging_ + offset);
    }

    /** An item that abstains has no rows: its choices are only encoded. */
    void add_rows(uform_item_t const& item) {
        offered const own(plan_.choices, item.content, item.modality);
        float const* const targets =
            plan_.run->training && own.count ? targets_of(*plan_.choices, item.content) : nullptr;
        if (plan_.run->training && !targets)
            return;
        uform_segment_t const& segment = plan_.devices[device_].segments[item.segment];
        double const kept = 1 - self_.config.label_smoothing;
        double const spread = self_.config.label_smoothing / static_cast<double>(own.count);
        for (uint64_t choice = 0; choice < own.count; ++choice, ++rows_) {
            staged<uint32_t>(self_.staging.columns)[rows_] =
                segment.first + segment.pooled + static_cast<uint32_t>(own.columns_before(choice));
            if (targets)
                staged<float>(self_.staging.targets)[rows_] = static_cast<float>(kept * targets[choice] + spread);
        }
    }

    state& self_;
    uform_plan_t const& plan_;
    uint32_t device_;
    uint8_t* staging_;
    uint32_t rows_ = 0;
};

} // namespace

uform_status_t plan(void* opaque, uform_plan_t const* plan, uint32_t stage) {
    state& self = *static_cast<state*>(opaque);
    if (stage == 0)
        return plan->run->training ? agree(*plan) : uform_status_success_k;
    for (uint32_t device = 0; device < plan->run->devices; ++device)
        device_plan(self, *plan, device).fill();
    return uform_status_success_k;
}

} // namespace uform::choices

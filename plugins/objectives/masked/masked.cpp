#include "masked.h"

#include <memory>
#include <new>
#include <string>
#include <vector>

#include "config.h"
#include "draw.h"

namespace uform {

namespace masked {
namespace {

constexpr uint32_t dropped_k = UINT32_MAX;

/** One modality that is covered. Its place among them numbers its counter in the world. */
struct covered_modality {
    uform_covering_t covering;
    uint32_t term;
};

/** One masked objective at work in one run. */
struct state {
    state(uform_masking_t const& config, uform_run_t const& run)
        : config(config), columns_capacity(run.columns_capacity), drawer(run.row_columns) {}

    uform_masking_t config;
    size_t columns_capacity;
    mask_drawer drawer;
    std::vector<covered_modality> modalities;
    size_t scales = 0;  /* staging: 1 / the world's covered columns, by modality */
    size_t weights = 0; /* staging, by modality */
};

/** A third party's modality says itself how much of it is covered; the first party's are of the configuration. */
uform_covering_t complete(uform_covering_t covering, uform_masking_t const& config) {
    constexpr uint32_t own = uform_modality_audio_k + 1;
    double const ratios[own] = {config.token_mask_probability, config.image_mask_ratio, config.video_mask_ratio,
                                config.audio_mask_ratio};
    double const weights[own] = {config.text_weight, config.image_weight, config.video_weight, config.audio_weight};
    if (covering.modality < own) {
        covering.ratio = ratios[covering.modality];
        covering.weight = weights[covering.modality];
    }
    return covering;
}

uform_status_t declare_all(state& self, uform_declare_t const& declare) {
    uform_covering_t const* all = nullptr;
    uint32_t const count = declare.coverings(declare.host, &all);
    for (uint32_t place = 0; place < count; ++place) {
        covered_modality made{complete(all[place], self.config), 0};
        std::string const name = std::string("masked_") + all[place].name + "_loss";
        uform_status_t const status = declare.term(declare.host, name.c_str(), made.covering.weight, &made.term);
        if (status != uform_status_success_k)
            return status;
        self.modalities.push_back(made);
    }
    uform_status_t status = declare.staging(declare.host, count * sizeof(float), &self.scales);
    if (status == uform_status_success_k)
        status = declare.staging(declare.host, count * sizeof(float), &self.weights);
    return status;
}

uform_status_t create(void const* config, uform_run_t const* run, uform_declare_t const* declare, void** made) {
    try {
        auto self = std::make_unique<state>(*static_cast<uform_masking_t const*>(config), *run);
        uform_status_t const status = declare_all(*self, *declare);
        if (status == uform_status_success_k)
            *made = self.release();
        return status;
    } catch (std::bad_alloc const&) {
        return declare->fail(declare->host, uform_status_out_of_memory_k,
                             "Masking: the host has no memory left for the plan");
    }
}

void destroy(void* self) { delete static_cast<state*>(self); }

/** Short items round up to a column more than their share, so that only the columns themselves bound the covered ones.
 */
size_t covered_capacity(void* self) { return static_cast<state const*>(self)->columns_capacity; }

void draw(state& self, uform_covering_t const& covering, uform_plan_t const& plan, uform_item_t const& item) {
    switch (covering.kind) {
    case uform_cover_kind_bytes_k:
        return self.drawer.draw_bytes(covering.ratio, self.config, plan, item);
    case uform_cover_kind_places_k:
        return self.drawer.draw_places(covering.ratio, plan, item);
    case uform_cover_kind_tubes_k:
        return self.drawer.draw_tubes(covering.ratio, plan, item);
    default:
        return self.drawer.draw_spans(covering.ratio, self.config.token_mean_span, plan, item);
    }
}

/** Stage 0 for one modality: covers its kept items and counts what was covered. */
uform_status_t cover(state& self, uform_plan_t const& plan, uint32_t modality) {
    uform_covering_t const& covering = self.modalities[modality].covering;
    mask_drawer const& drawn = self.drawer;
    double covered = 0;
    for (size_t place = 0; place < plan.items_count; ++place) {
        uform_item_t const& item = plan.items[place];
        if (item.modality != covering.modality || item.device == dropped_k)
            continue;
        draw(self, covering, plan, item);
        if (drawn.count() == 0)
            continue;
        uform_status_t const status =
            plan.cover(plan.host, place, drawn.places(), drawn.actions(), drawn.random_bytes(), drawn.count());
        if (status != uform_status_success_k)
            return status;
        covered += drawn.count();
    }
    return plan.count(plan.host, modality, covered);
}

/** Stage 1: what turns sums over covered columns into the world's means. */
void fill_factors(state const& self, uform_plan_t const& plan) {
    for (uint32_t device = 0; device < plan.run->devices; ++device) {
        uint8_t* const staging = plan.devices[device].staging;
        auto* const scales = reinterpret_cast<float*>(staging + self.scales);
        auto* const weights = reinterpret_cast<float*>(staging + self.weights);
        for (uint32_t modality = 0; modality < self.modalities.size(); ++modality) {
            double const covered = plan.counted(plan.host, modality);
            scales[modality] = covered > 0 ? static_cast<float>(1 / covered) : 0.0f;
            weights[modality] = static_cast<float>(self.modalities[modality].covering.weight);
        }
    }
}

uform_status_t plan(void* opaque, uform_plan_t const* plan, uint32_t stage) {
    state& self = *static_cast<state*>(opaque);
    if (stage == 1) {
        fill_factors(self, *plan);
        return uform_status_success_k;
    }
    for (uint32_t modality = 0; modality < self.modalities.size(); ++modality) {
        uform_status_t const status = cover(self, *plan, modality);
        if (status != uform_status_success_k)
            return status;
    }
    return uform_status_success_k;
}

uform_status_t forward_backward(void* opaque, uform_pass_t const* pass) {
    state const& self = *static_cast<state const*>(opaque);
    auto const* scale = reinterpret_cast<float const*>(pass->staging + self.scales);
    auto const* weight = reinterpret_cast<float const*>(pass->staging + self.weights);
    for (covered_modality const& one : self.modalities) {
        uform_status_t const status = pass->reconstruct(pass->host, pass->device, one.covering.modality, scale++,
                                                        weight++, pass->terms[one.term]);
        if (status != uform_status_success_k)
            return status;
    }
    return uform_status_success_k;
}

} // namespace
} // namespace masked

uform_objective_plugin_t const masked_plugin = {
    .abi_version = UFORM_PLUGIN_ABI_VERSION,
    .bytes = sizeof(uform_objective_plugin_t),
    .name = "masked",
    .taps = uform_tap_covered_k,
    .capturable = 1,
    .fields = masked::fields,
    .fields_count = masked::fields_count,
    .config_bytes = sizeof(uform_masking_t),
    .derive = masked::derive,
    .create = masked::create,
    .destroy = masked::destroy,
    .covered_capacity = masked::covered_capacity,
    .plan = masked::plan,
    .forward_backward = masked::forward_backward,
    .extra_columns = nullptr,
    .extra_fill = nullptr,
    .answer_kind = uform_answer_kind_none_k,
    .infer = nullptr,
    .columns_forward = nullptr,
    .columns_backward = nullptr,
};

} // namespace uform

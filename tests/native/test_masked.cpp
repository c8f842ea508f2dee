// The masked objective's host side: what zeros derive, what is refused, and which columns are covered.
#include "plugins/objectives/masked/masked.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <iterator>
#include <limits>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "check.h"
#include "core/random.h"

/** What was covered of one item. */
struct covering {
    std::vector<uint32_t> places;
    std::vector<uint8_t> actions;
    std::vector<uint8_t> random_bytes;

    bool operator==(covering const&) const = default;
};

// What the plugin's callbacks reach: a host of this test's own.
struct uform_host_t {
    std::string message;
    size_t staging = 0;
    std::map<std::string, double> terms;
    uint64_t call = 0;
    double counts[16] = {};
    std::map<size_t, covering> covered;
    std::vector<uint32_t> modalities_covered;
    std::vector<uform_item_t> items;
    uint32_t reconstructed = 0;
};

namespace {

uform_status_t fail(uform_host_t* host, uform_status_t status, char const* message) {
    host->message = message;
    return status;
}

uform_declare_t declare_of(uform_host_t& host) {
    uform_declare_t declare{};
    declare.host = &host;
    declare.operations = uform_operations_ram();
    declare.fail = fail;
    declare.term = [](uform_host_t* to, char const* name, double weight, uint32_t* handle) {
        *handle = static_cast<uint32_t>(to->terms.size());
        to->terms[name] = weight;
        return uform_status_success_k;
    };
    declare.coverings = [](uform_host_t*, uform_covering_t const** all) {
        static uform_covering_t const known[] = {{"text", 0, uform_cover_kind_bytes_k, 0, 0},
                                                 {"image", 1, uform_cover_kind_places_k, 0, 0},
                                                 {"video", 2, uform_cover_kind_tubes_k, 0, 0},
                                                 {"audio", 3, uform_cover_kind_spans_k, 0, 0}};
        *all = known;
        return uint32_t(std::size(known));
    };
    declare.staging = [](uform_host_t* to, size_t bytes, size_t* offset) {
        *offset = to->staging;
        to->staging += (bytes + 63) / 64 * 64;
        return uform_status_success_k;
    };
    return declare;
}

uform_run_t make_run() {
    uform_run_t run{};
    run.hidden = 64;
    run.devices = 2;
    run.world_devices = 2;
    run.columns_capacity = 4096;
    run.row_columns = 1024;
    run.seed = 5;
    return run;
}

std::string derive(uform_masking_t& config) {
    uform_host_t host;
    uform_run_t const run = make_run();
    uform_declare_t const declare = declare_of(host);
    uform_status_t const status = uform::masked_plugin.derive(&config, &run, &declare);
    CHECK((status == uform_status_success_k) == host.message.empty());
    return host.message;
}

std::string refusal(double uform_masking_t::* field, double value) {
    uform_masking_t config{};
    config.*field = value;
    return derive(config);
}

bool has(std::string const& text, char const* part) { return text.find(part) != std::string::npos; }

void test_zeros_derive() {
    uform_masking_t config{};
    CHECK(derive(config).empty());
    uform_masking_t const expected{0.3, 6, 0.8, 0.1, 0.6, 0.9, 0.65, 1, 1, 1, 1};
    CHECK(std::memcmp(&config, &expected, sizeof(config)) == 0);
    CHECK(derive(config).empty());
    CHECK(std::memcmp(&config, &expected, sizeof(config)) == 0);
}

void test_negative_values_ask_for_zero() {
    uform_masking_t config{-1, 0, -1, -1, -1, -1, -1, -1, -1, -1, -1};
    CHECK(derive(config).empty());
    uform_masking_t const expected{0, 6, 0, 0, 0, 0, 0, 0, 0, 0, 0};
    CHECK(std::memcmp(&config, &expected, sizeof(config)) == 0);
}

void test_a_fraction_left_out_takes_what_the_other_leaves() {
    uform_masking_t replaced{};
    replaced.replace_fraction = 1;
    CHECK(derive(replaced).empty() && replaced.random_fraction == 0);
    uform_masking_t random{};
    random.random_fraction = 0.5;
    CHECK(derive(random).empty() && random.replace_fraction == 0.5);
    uform_masking_t usual{};
    usual.replace_fraction = 0.9;
    CHECK(derive(usual).empty() && usual.random_fraction == 0.1);
}

void test_refusals_name_field_and_value() {
    double const endless = std::numeric_limits<double>::infinity();
    double const nan = std::numeric_limits<double>::quiet_NaN();
    for (double value : {1.5, endless, -endless, nan}) {
        CHECK(has(refusal(&uform_masking_t::token_mask_probability, value), "Masking.token_mask_probability"));
        CHECK(has(refusal(&uform_masking_t::image_mask_ratio, value), "Masking.image_mask_ratio"));
        CHECK(has(refusal(&uform_masking_t::replace_fraction, value), "Masking.replace_fraction"));
    }
    CHECK(has(refusal(&uform_masking_t::video_mask_ratio, 1.25), "Masking.video_mask_ratio is 1.25"));
    for (double value : {0.5, -1.0, endless, nan})
        CHECK(has(refusal(&uform_masking_t::token_mean_span, value), "Masking.token_mean_span"));
    for (double value : {endless, nan, 1e300})
        CHECK(has(refusal(&uform_masking_t::audio_weight, value), "Masking.audio_weight"));
    uform_masking_t both{};
    both.replace_fraction = 0.8;
    both.random_fraction = 0.3;
    CHECK(has(derive(both), "Masking.replace_fraction is 0.8") && has(derive(both), "0.3"));
}

/** The objective over made-up items. */
struct run_of {
    uform_run_t run = make_run();
    uform_masking_t config;
    uform_host_t host;
    void* self = nullptr;
    std::vector<std::vector<uint8_t>> staging;

    explicit run_of(uform_masking_t const& asked) : config(asked) {
        uform_declare_t const declare = declare_of(host);
        CHECK(uform::masked_plugin.derive(&config, &run, &declare) == uform_status_success_k);
        CHECK(uform::masked_plugin.create(&config, &run, &declare, &self) == uform_status_success_k);
        CHECK(uform::masked_plugin.covered_capacity(self) == run.columns_capacity);
        staging.resize(run.devices, std::vector<uint8_t>(host.staging, 0xEE));
    }
    run_of(run_of const&) = delete;
    ~run_of() { uform::masked_plugin.destroy(self); }

    /** An item; `extents` and `whole` slowest first. */
    void add(uint32_t modality, std::vector<uint16_t> const& extents, std::vector<uint16_t> const& whole,
             uint32_t device = 0) {
        uform_item_t item{};
        item.content = static_cast<uint32_t>(host.items.size());
        item.modality = modality;
        item.device = device;
        item.world_item = 100 + item.content;
        item.measure.columns = 1;
        item.measure.axes = static_cast<uint16_t>(extents.size());
        for (size_t axis = 0; axis < extents.size(); ++axis) {
            item.measure.extents[axis] = extents[axis];
            item.measure.whole[axis] = whole[axis];
            item.measure.columns *= extents[axis];
        }
        host.items.push_back(item);
    }

    void plan() {
        host.covered.clear();
        host.modalities_covered.clear();
        std::fill(std::begin(host.counts), std::end(host.counts), 0.0);
        std::vector<uform_device_view_t> views(run.devices);
        for (uint32_t device = 0; device < run.devices; ++device)
            views[device].staging = staging[device].data();
        uform_plan_t plan{};
        plan.host = &host;
        plan.run = &run;
        plan.fail = fail;
        plan.items_count = host.items.size();
        plan.items = host.items.data();
        plan.devices = views.data();
        plan.count = [](uform_host_t* of, uint32_t index, double value) {
            of->counts[index] += value;
            return uform_status_success_k;
        };
        plan.counted = [](uform_host_t* of, uint32_t index) { return of->counts[index]; };
        plan.random = [](uform_host_t* of, uint32_t purpose, uint64_t item, uint32_t column, uint32_t words[4]) {
            if (purpose < uform::random_purpose_masks_k || purpose >= uform::random_purpose_plugins_k)
                CHECK(!"a purpose of masks");
            auto const drawn = uform::philox_block(5, of->call, purpose, static_cast<uint32_t>(item), column);
            std::copy(drawn.begin(), drawn.end(), words);
        };
        plan.cover = [](uform_host_t* of, size_t item, uint32_t const* places, uint8_t const* actions,
                        uint8_t const* random_bytes, uint32_t count) {
            CHECK(count > 0 && of->covered.count(item) == 0);
            of->covered[item] = {
                {places, places + count}, {actions, actions + count}, {random_bytes, random_bytes + count}};
            of->modalities_covered.push_back(of->items[item].modality);
            return uform_status_success_k;
        };
        CHECK(uform::masked_plugin.plan(self, &plan, 0) == uform_status_success_k);
        CHECK(uform::masked_plugin.plan(self, &plan, 1) == uform_status_success_k);
    }
};

/** Ascending, distinct, within the item. */
bool places_fit(run_of const& of) {
    return std::all_of(of.host.covered.begin(), of.host.covered.end(), [&](auto const& entry) {
        std::vector<uint32_t> const& places = entry.second.places;
        return std::adjacent_find(places.begin(), places.end(), std::greater_equal<>()) == places.end() &&
               places.back() < of.host.items[entry.first].measure.columns;
    });
}

size_t covered_of(run_of const& of, size_t item) {
    auto const found = of.host.covered.find(item);
    return found == of.host.covered.end() ? 0 : found->second.places.size();
}

void test_bytes_counts() {
    for (double probability : {0.15, 0.3, 0.5, 1.0}) {
        uform_masking_t config{};
        config.token_mask_probability = probability;
        run_of made(config);
        std::vector<uint16_t> const lengths{0, 1, 2, 3, 10, 77, 256, 1000};
        for (uint16_t length : lengths)
            made.add(uform_modality_text_k, {length}, {length});
        std::vector<double> sums(lengths.size());
        int const calls = 500;
        for (made.host.call = 0; made.host.call < calls; ++made.host.call) {
            made.plan();
            double all = 0;
            for (size_t item = 0; item < lengths.size(); ++item) {
                double const exact = probability * lengths[item];
                size_t const count = covered_of(made, item);
                CHECK(count == std::floor(exact) || count == std::ceil(exact));
                sums[item] += static_cast<double>(count);
                all += static_cast<double>(count);
            }
            CHECK(made.host.counts[0] == all);
            CHECK(places_fit(made));
        }
        // The mean is exact: n = floor(pL + u). Four standard deviations of it, which are at most 1/2 a draw.
        for (size_t item = 0; item < lengths.size(); ++item)
            CHECK(std::fabs(sums[item] / calls - probability * lengths[item]) <= 4 * 0.5 / std::sqrt(calls));
    }
}

void test_MSK_03_short_texts_at_low_rates() {
    for (double random : {-1.0, 1.0}) {
        uform_masking_t config{};
        config.token_mask_probability = 0.03;
        config.replace_fraction = random < 0 ? 1 : -1;
        config.random_fraction = random;
        run_of made(config);
        for (uint16_t length = 1; length <= 8; ++length)
            made.add(uform_modality_text_k, {length}, {length});
        size_t covered = 0;
        for (made.host.call = 0; made.host.call < 1000; ++made.host.call) {
            made.plan();
            for (auto const& [item, drawn] : made.host.covered) {
                covered += drawn.places.size();
                uint8_t const only = random < 0 ? uform_cover_action_mask_k : uform_cover_action_random_k;
                CHECK(std::count(drawn.actions.begin(), drawn.actions.end(), only) == std::ssize(drawn.actions));
            }
        }
        CHECK(covered > 0);
    }
}

void test_actions_and_random_bytes() {
    uform_masking_t config{};
    config.token_mask_probability = 1;
    run_of made(config);
    for (int item = 0; item < 100; ++item)
        made.add(uform_modality_text_k, {1000}, {1000});
    made.plan();
    double actions[3] = {}, bytes[256] = {}, all = 0;
    for (auto const& [item, drawn] : made.host.covered) {
        for (uint8_t action : drawn.actions)
            actions[action] += 1;
        for (uint8_t byte : drawn.random_bytes)
            bytes[byte] += 1;
        all += static_cast<double>(drawn.places.size());
    }
    CHECK(all == 100000);
    CHECK(std::fabs(actions[0] / all - 0.8) < 0.006);
    CHECK(std::fabs(actions[1] / all - 0.1) < 0.005);
    CHECK(std::fabs(actions[2] / all - 0.1) < 0.005);
    double deviation = 0;
    for (double count : bytes)
        deviation += (count - all / 256) * (count - all / 256) / (all / 256);
    CHECK(deviation > 150 && deviation < 370); // chi-squared of 255 degrees: 255 +- 5 * 22.6
}

void test_spans_have_their_mean_length() {
    uform_masking_t config{};
    config.token_mask_probability = 0.02;
    config.token_mean_span = 4;
    run_of made(config);
    for (int item = 0; item < 400; ++item)
        made.add(uform_modality_text_k, {1000}, {1000});
    made.plan();
    double spans = 0, covered = 0;
    for (auto const& [item, drawn] : made.host.covered) {
        covered += static_cast<double>(drawn.places.size());
        for (size_t place = 0; place < drawn.places.size(); ++place)
            spans += place == 0 || drawn.places[place - 1] + 1 != drawn.places[place];
    }
    // A little shorter than 4: the last span of each item is cut.
    CHECK(covered / spans > 3 && covered / spans < 4.2);
}

void test_every_column_is_covered_alike() {
    uform_masking_t config{};
    config.image_mask_ratio = 0.5;
    run_of made(config);
    made.add(uform_modality_image_k, {4, 5}, {4, 5});
    std::vector<int> hits(20);
    for (made.host.call = 0; made.host.call < 4000; ++made.host.call) {
        made.plan();
        for (uint32_t place : made.host.covered[0].places)
            hits[place] += 1;
    }
    for (int hit : hits)
        CHECK(std::abs(hit - 2000) < 160); // five standard deviations
}

void test_images_cover_whole_patches_only() {
    run_of made({});
    made.add(uform_modality_image_k, {3, 5}, {2, 4});
    made.add(uform_modality_image_k, {1, 1}, {1, 1});
    made.add(uform_modality_image_k, {2, 2}, {0, 2});
    made.add(uform_modality_image_k, {1, 2}, {1, 2});
    for (made.host.call = 0; made.host.call < 200; ++made.host.call) {
        made.plan();
        CHECK(covered_of(made, 0) == 5); // round(0.6 * 8)
        for (uint32_t place : made.host.covered[0].places)
            CHECK(place / 5 < 2 && place % 5 < 4);
        for (uint8_t action : made.host.covered[0].actions)
            CHECK(action == uform_cover_action_mask_k);
        CHECK(covered_of(made, 1) == 0); // one stays uncovered
        CHECK(covered_of(made, 2) == 0);
        CHECK(covered_of(made, 3) == 1);
        CHECK(places_fit(made));
    }
}

void test_tubes_and_spans() {
    run_of made({});
    made.add(uform_modality_video_k, {3, 4, 5}, {2, 4, 4});
    made.add(uform_modality_audio_k, {41}, {40});
    for (made.host.call = 0; made.host.call < 200; ++made.host.call) {
        made.plan();
        CHECK(covered_of(made, 0) == 2 * 14); // round(0.9 * 16) in each of the groups that are whole
        std::set<uint32_t> by_frame[2];
        for (uint32_t place : made.host.covered[0].places)
            by_frame[place / 20].insert(place % 20);
        CHECK(by_frame[0] == by_frame[1]);
        CHECK(covered_of(made, 1) == 26); // round(0.65 * 40)
        CHECK(made.host.covered[1].places.back() < 40);
        CHECK(places_fit(made));
    }
}

void test_masks_depend_on_the_world_item_alone() {
    run_of one({}), two({});
    for (uint32_t item = 0; item < 10; ++item) {
        one.add(item % 2, {static_cast<uint16_t>(item % 2 ? 4 : 50), 3}, {4, 3}, 0);
        two.add(item % 2, {static_cast<uint16_t>(item % 2 ? 4 : 50), 3}, {4, 3}, item % 2);
    }
    one.plan();
    two.plan();
    CHECK(one.host.covered == two.host.covered && one.host.covered.size() == 10);
    CHECK(std::is_sorted(one.host.modalities_covered.begin(), one.host.modalities_covered.end()));
    auto const before = one.host.covered;
    one.host.call = 1;
    one.plan();
    CHECK(one.host.covered != before);
}

void test_dropped_items_are_left_alone() {
    run_of made({});
    made.add(uform_modality_text_k, {100}, {100}, UINT32_MAX);
    made.plan();
    CHECK(made.host.covered.empty() && made.host.counts[0] == 0);
}

void test_MSK_01_factors_of_nothing_are_zero() {
    uform_masking_t config{};
    config.text_weight = 2;
    config.image_weight = -1;
    run_of made(config);
    made.add(uform_modality_text_k, {100}, {100}, 1);
    made.plan();
    CHECK((made.host.terms ==
           std::map<std::string, double>{
               {"masked_text_loss", 2}, {"masked_image_loss", 0}, {"masked_video_loss", 1}, {"masked_audio_loss", 1}}));
    for (uint32_t device = 0; device < 2; ++device) {
        uform_pass_t pass{};
        double term[4] = {};
        double* const terms[4] = {term, term + 1, term + 2, term + 3};
        pass.host = &made.host;
        pass.device = device;
        pass.staging = made.staging[device].data();
        pass.terms = terms;
        made.host.reconstructed = 0;
        pass.reconstruct = [](uform_host_t* of, uint32_t, uint32_t modality, float const* scale, float const* weight,
                              double* to) {
            CHECK(modality == of->reconstructed++);
            CHECK(*scale == (modality == 0 ? 1 / 30.0f : 0));
            CHECK(*weight == (modality == 0 ? 2 : modality == 1 ? 0 : 1));
            *to += 1;
            return uform_status_success_k;
        };
        CHECK(uform::masked_plugin.forward_backward(made.self, &pass) == uform_status_success_k);
        CHECK(term[0] == 1 && term[1] == 1 && term[2] == 1 && term[3] == 1);
    }
}

} // namespace

int main() {
    test_zeros_derive();
    test_negative_values_ask_for_zero();
    test_a_fraction_left_out_takes_what_the_other_leaves();
    test_refusals_name_field_and_value();
    test_bytes_counts();
    test_MSK_03_short_texts_at_low_rates();
    test_actions_and_random_bytes();
    test_spans_have_their_mean_length();
    test_every_column_is_covered_alike();
    test_images_cover_whole_patches_only();
    test_tubes_and_spans();
    test_masks_depend_on_the_world_item_alone();
    test_dropped_items_are_left_alone();
    test_MSK_01_factors_of_nothing_are_zero();
    return native_test::report();
}

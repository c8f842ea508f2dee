// The contrastive objective's host side: what zeros derive, what is refused, and which bags are compared on which
// device.
#include "plugins/objectives/contrastive/contrastive.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "check.h"
#include "core/threads.h"

// What the plugin's callbacks reach: a host of this test's own.
struct uform_host_t {
    std::string message;
    size_t staging = 0;
    size_t workspace = 0;
    std::vector<std::string> parameters;
    std::vector<uform_parameter_request_t> requests;
    uform_pair_rows_t pairs{};
    std::vector<uform_bag_t> bags;
    std::vector<uform_world_bag_t> world;
    double counts[16] = {};
    std::map<uint32_t, std::vector<uint32_t>> rows;
};

namespace {

uform::thread_pool pool(3);

uform_status_t fail(uform_host_t* host, uform_status_t status, char const* message) {
    host->message = message;
    return status;
}

uform_declare_t declare_of(uform_host_t& host, uform_operations_t const& operations) {
    uform_declare_t declare{};
    declare.host = &host;
    declare.operations = &operations;
    declare.fail = fail;
    declare.parameter = [](uform_host_t* to, uform_parameter_request_t const* request, uint32_t* handle) {
        *handle = static_cast<uint32_t>(to->requests.size());
        to->requests.push_back(*request);
        to->parameters.push_back(request->name);
        return uform_status_success_k;
    };
    declare.term = [](uform_host_t*, char const* name, double weight, uint32_t* handle) {
        CHECK(std::string(name) == "contrastive_loss");
        CHECK(weight == 1);
        *handle = 0;
        return uform_status_success_k;
    };
    declare.staging = [](uform_host_t* to, size_t bytes, size_t* offset) {
        *offset = to->staging;
        to->staging += (bytes + 63) / 64 * 64;
        return uform_status_success_k;
    };
    declare.workspace = [](uform_host_t* to, size_t bytes, size_t* offset) {
        *offset = to->workspace;
        to->workspace += (bytes + 63) / 64 * 64;
        return uform_status_success_k;
    };
    return declare;
}

uform_run_t make_run(uint32_t hidden = 64, uint32_t devices = 1, uint32_t bags = 8) {
    uform_run_t run{};
    run.hidden = hidden;
    run.devices = devices;
    run.world_devices = devices;
    run.segments_capacity = bags;
    run.bags_capacity = bags;
    run.training = 1;
    return run;
}

/** Empty where the configuration was accepted. */
std::string derive(uform_contrastive_t& config, uform_run_t const& run = make_run()) {
    uform_host_t host;
    uform_declare_t const declare = declare_of(host, *uform_operations_ram());
    uform_status_t const status = uform::contrastive_plugin.derive(&config, &run, &declare);
    CHECK((status == uform_status_success_k) == host.message.empty());
    CHECK(status == uform_status_success_k || status == uform_status_invalid_argument_k);
    return host.message;
}

template <typename value_at> std::string refusal(value_at uform_contrastive_t::* field, value_at value) {
    uform_contrastive_t config{};
    config.*field = value;
    return derive(config);
}

bool has(std::string const& text, char const* part) { return text.find(part) != std::string::npos; }

void test_zeros_derive() {
    uform_contrastive_t config{};
    CHECK(derive(config).empty());
    CHECK(config.matryoshka_count == 1 && config.matryoshka_dimensions[0] == 64);
    CHECK(config.temperature_groups == 1);
    CHECK(config.inverse_temperature == 1 / 0.07);
    CHECK(config.bias == 0);
    CHECK(config.ambient_repulsion_weight == 1);
    CHECK(config.max_edges_per_device == 32);
    CHECK(config.pair_loss == uform_pair_loss_form_balanced_k);
    uform_contrastive_t const once = config;
    CHECK(derive(config).empty());
    CHECK(std::memcmp(&once, &config, sizeof(config)) == 0);
}

void test_forms_derive() {
    uform_contrastive_t named{};
    named.negatives = uform_negatives_named_k;
    CHECK(derive(named).empty());
    CHECK(named.pair_loss == uform_pair_loss_form_ranked_k);
    uform_contrastive_t biased{};
    biased.bias = -3;
    CHECK(derive(biased).empty());
    CHECK(biased.pair_loss == uform_pair_loss_form_sigmoid_k);
    CHECK(biased.bias == -3 && biased.inverse_temperature == 10);
    uform_contrastive_t hardly_biased{};
    hardly_biased.bias = 1e-21;
    CHECK(derive(hardly_biased).empty());
    CHECK(hardly_biased.pair_loss == uform_pair_loss_form_sigmoid_k && hardly_biased.bias == 0);
    uform_contrastive_t sigmoid{};
    sigmoid.pair_loss = uform_pair_loss_form_sigmoid_k;
    sigmoid.inverse_temperature = 112.33;
    CHECK(derive(sigmoid).empty());
    CHECK(sigmoid.bias == -10 && sigmoid.inverse_temperature == 112.33);
}

void test_MAT_01_prefixes_are_sorted_and_distinct() {
    uform_contrastive_t config{};
    for (int32_t width : {32, 64, 8, 32})
        config.matryoshka_dimensions[config.matryoshka_count++] = width;
    CHECK(derive(config).empty());
    CHECK(config.matryoshka_count == 3);
    CHECK(config.matryoshka_dimensions[0] == 8 && config.matryoshka_dimensions[1] == 32);
    CHECK(config.matryoshka_dimensions[2] == 64 && config.matryoshka_dimensions[3] == 0);
    for (int32_t wrong : {0, -1, 65}) {
        uform_contrastive_t refused{};
        refused.matryoshka_dimensions[0] = 8;
        refused.matryoshka_dimensions[1] = wrong;
        refused.matryoshka_count = 2;
        std::string const message = derive(refused);
        CHECK(has(message, "Contrastive.matryoshka_dimensions[1]") && has(message, std::to_string(wrong).c_str()));
    }
}

void test_refusals_name_field_and_value() {
    double const endless = std::numeric_limits<double>::infinity();
    double const nan = std::numeric_limits<double>::quiet_NaN();
    for (double value : {0.5, 100.5, -1.0, endless, nan})
        CHECK(has(refusal(&uform_contrastive_t::inverse_temperature, value), "Contrastive.inverse_temperature"));
    CHECK(has(refusal(&uform_contrastive_t::inverse_temperature, 100.5), "100.5"));
    CHECK(has(refusal(&uform_contrastive_t::bias, nan), "Contrastive.bias"));
    CHECK(
        has(refusal(&uform_contrastive_t::ambient_repulsion_weight, endless), "Contrastive.ambient_repulsion_weight"));
    CHECK(has(refusal(&uform_contrastive_t::ambient_repulsion_weight, 1e300), "1e+300"));
    CHECK(has(refusal(&uform_contrastive_t::temperature_groups, -2), "Contrastive.temperature_groups is -2"));
    CHECK(has(refusal(&uform_contrastive_t::max_edges_per_device, -1), "Contrastive.max_edges_per_device is -1"));
    CHECK(has(refusal(&uform_contrastive_t::negatives, 2), "Contrastive.negatives is 2"));
    CHECK(has(refusal(&uform_contrastive_t::pair_loss, 4), "Contrastive.pair_loss is 4"));
    CHECK(has(refusal(&uform_contrastive_t::ambient_scope, -1), "Contrastive.ambient_scope is -1"));
    uform_contrastive_t none{};
    none.ambient_repulsion_weight = -1;
    CHECK(derive(none).empty() && none.ambient_repulsion_weight == 0);
}

/** One objective over a made-up call. */
struct call {
    uform_run_t run;
    uform_contrastive_t config;
    uform_host_t host;
    void* self = nullptr;
    std::vector<uint32_t> offsets{0};
    std::vector<uint32_t> candidates;
    std::vector<uint8_t> classes;
    std::vector<float> weights;
    std::vector<uform_item_t> items;
    std::vector<std::vector<uint8_t>> staging;

    call(uform_run_t const& with, uform_contrastive_t const& asked) : run(with), config(asked) {
        uform_declare_t const declare = declare_of(host, *uform_operations_ram());
        CHECK(uform::contrastive_plugin.derive(&config, &run, &declare) == uform_status_success_k);
        CHECK(uform::contrastive_plugin.create(&config, &run, &declare, &self) == uform_status_success_k);
        staging.resize(run.devices, std::vector<uint8_t>(host.staging, 0xEE));
    }
    call(call const&) = delete;
    ~call() { uform::contrastive_plugin.destroy(self); }

    uform_status_t plan() {
        host.pairs = {static_cast<uint32_t>(offsets.size() - 1), offsets.data(), candidates.data(), classes.data(),
                      weights.data()};
        std::vector<uform_device_view_t> views(run.devices);
        for (uint32_t device = 0; device < run.devices; ++device)
            views[device].staging = staging[device].data();
        uform_plan_t plan{};
        plan.host = &host;
        plan.run = &run;
        plan.fail = fail;
        plan.items_count = items.size();
        plan.items = items.data();
        plan.bags_count = host.bags.size();
        plan.bags = host.bags.data();
        plan.devices = views.data();
        plan.parallel = pool.parallel();
        plan.pairs = [](uform_host_t* of, uint32_t by_bag, uform_pair_rows_t* pairs) {
            CHECK(by_bag == 1);
            *pairs = of->pairs;
            return uform_status_success_k;
        };
        plan.flag = [](uform_host_t* of, uint32_t bag, uint8_t flags) {
            if (of->bags[bag].slot != UINT32_MAX)
                of->world[of->bags[bag].slot].flags |= flags;
            return uform_status_success_k;
        };
        plan.count = [](uform_host_t* of, uint32_t index, double value) {
            of->counts[index] += value;
            return uform_status_success_k;
        };
        plan.counted = [](uform_host_t* of, uint32_t index) { return of->counts[index]; };
        plan.world = [](uform_host_t* of) -> uform_world_bag_t const* { return of->world.data(); };
        plan.rows = [](uform_host_t* of, uint32_t device, uint32_t const* slots, uint32_t count) {
            of->rows[device].assign(slots, slots + count);
            return uform_status_success_k;
        };
        uform_status_t const status = uform::contrastive_plugin.plan(self, &plan, 0);
        return status == uform_status_success_k ? uform::contrastive_plugin.plan(self, &plan, 1) : status;
    }
};

/** Catches the operations' arguments: what the plan put into staging, seen as the operations see it. */
std::vector<uform_prefix_t> seen_prefixes;
uform_pairs_t seen_pairs; // of the widest prefix

/** The world's bags and their gradients: nothing reads them. */
float world_bags, world_bags_gradient;

void capture(call const& of, uint32_t device) {
    seen_prefixes.clear();
    static uform_operations_t operations;
    operations = *uform_operations_ram();
    operations.prefix_forward = [](uform_stream_t*, uform_prefix_t const* prefix) {
        seen_prefixes.push_back(*prefix);
        return uform_status_success_k;
    };
    operations.pairs_forward = [](uform_stream_t*, uform_pairs_t const* pairs) {
        seen_pairs = *pairs;
        return uform_status_success_k;
    };
    static float weight = 0;
    static double term = 0;
    static std::vector<uint8_t> workspace;
    workspace.resize(of.host.workspace);
    void const* const weights[] = {&weight, &weight};
    double* const terms[] = {&term};
    uform_pass_t pass{};
    pass.run = &of.run;
    pass.operations = &operations;
    pass.world_bags = &world_bags;
    pass.world_bags_gradient = &world_bags_gradient;
    pass.staging = of.staging[device].data();
    pass.workspace = workspace.data();
    pass.weights = weights;
    pass.terms = terms;
    CHECK(uform::contrastive_plugin.forward_backward(of.self, &pass) == uform_status_success_k);
}

/** What a row does to a candidate: 0 nothing, else 1 + uform_pair_class_t, or 4 for ambient; by (row's, candidate's)
 * slot. */
using effects = std::map<std::pair<uint32_t, uint32_t>, std::pair<int, float>>;

bool sees(int32_t scope, uform_world_bag_t const& row, uform_world_bag_t const& candidate) {
    switch (scope) {
    case uform_ambient_scope_cross_modal_k:
        return !(row.modalities & candidate.modalities);
    case uform_ambient_scope_targets_k:
        return candidate.flags & 1;
    case uform_ambient_scope_cross_side_k:
        return ((row.sides & 1) && (candidate.sides & 2)) || ((row.sides & 2) && (candidate.sides & 1));
    default:
        return true;
    }
}

/** As the operation will read it. */
effects staged_effects(call const& of, uint32_t device) {
    capture(of, device);
    effects found;
    uint32_t const units = seen_pairs.counts[0], rows = seen_pairs.counts[1];
    bool const ambient = seen_pairs.negatives == uform_negatives_ambient_k && seen_pairs.ambient_weight > 0;
    for (uint32_t row = 0; row < rows; ++row) {
        uint32_t const self = seen_pairs.rows[row];
        CHECK(self < units && (row == 0 || seen_pairs.rows[row - 1] < self));
        std::map<uint32_t, std::pair<int, float>> named;
        for (uint32_t edge = seen_pairs.edge_offsets[row]; edge < seen_pairs.edge_offsets[row + 1]; ++edge) {
            CHECK(seen_pairs.edge_units[edge] < units && seen_pairs.edge_units[edge] != self);
            CHECK(edge == seen_pairs.edge_offsets[row] ||
                  seen_pairs.edge_units[edge - 1] < seen_pairs.edge_units[edge]);
            named[seen_pairs.edge_units[edge]] = {1 + seen_pairs.edge_classes[edge], seen_pairs.edge_weights[edge]};
        }
        for (uint32_t unit = 0; unit < units; ++unit) {
            uform_world_bag_t const row_bag{seen_pairs.modalities[self], seen_pairs.sides[self],
                                            seen_pairs.targets[self], 1, 0};
            uform_world_bag_t const bag{seen_pairs.modalities[unit], seen_pairs.sides[unit], seen_pairs.targets[unit],
                                        1, 0};
            std::pair<int, float> effect{0, 0.0f};
            if (named.count(unit))
                effect = named[unit];
            else if (ambient && unit != self && sees(seen_pairs.scope, row_bag, bag))
                effect = {4, seen_pairs.ambient_weight};
            if (effect.first > 1)
                found[{seen_pairs.indices[self], seen_pairs.indices[unit]}] = effect;
        }
    }
    CHECK(seen_pairs.edge_offsets[rows] == seen_pairs.counts[2]);
    return found;
}

/** The same straight from the definition. */
effects expected_effects(call const& of, uint32_t device, uint32_t& rows) {
    effects expected;
    bool const ambient = of.config.negatives == uform_negatives_ambient_k && of.config.ambient_repulsion_weight > 0;
    for (uint32_t bag = 0; bag < of.host.bags.size(); ++bag) {
        uform_bag_t const& row = of.host.bags[bag];
        std::map<uint32_t, std::pair<int, float>> named;
        bool counts = false;
        for (uint32_t place = of.offsets[bag]; place < of.offsets[bag + 1]; ++place) {
            uint8_t const kind = of.classes[place];
            named[of.host.bags[of.candidates[place]].slot] = {1 + kind, of.weights[place]};
            counts |= kind == uform_pair_class_attracted_k ||
                      (kind == uform_pair_class_repelled_k && of.config.pair_loss == uform_pair_loss_form_sigmoid_k);
        }
        if (!counts || row.device == UINT32_MAX)
            continue;
        rows += 1;
        if (row.device != device)
            continue;
        for (uint32_t slot = 0; slot < of.host.world.size(); ++slot) {
            uform_world_bag_t const& candidate = of.host.world[slot];
            if (slot == row.slot || !candidate.present)
                continue;
            if (named.count(slot)) {
                if (named[slot].first > 1)
                    expected[{row.slot, slot}] = named[slot];
            } else if (ambient && sees(of.config.ambient_scope, of.host.world[row.slot], candidate)) {
                expected[{row.slot, slot}] = {4, static_cast<float>(of.config.ambient_repulsion_weight)};
            }
        }
    }
    return expected;
}

void test_plans_against_the_definition() {
    std::mt19937 random(7);
    auto const below = [&](uint32_t bound) { return static_cast<uint32_t>(random() % bound); };
    for (int round = 0; round < 400; ++round) {
        uint32_t const devices = 1 + below(3), capacity = 5;
        uform_contrastive_t config{};
        config.negatives = static_cast<int32_t>(below(2));
        config.ambient_scope = static_cast<int32_t>(below(4));
        config.pair_loss = static_cast<int32_t>(1 + below(3));
        config.ambient_repulsion_weight = std::vector<double>{0, -1, 0.5}[below(3)];
        config.max_edges_per_device = 100;
        config.temperature_groups = 2;
        for (int32_t width : {16, 64})
            config.matryoshka_dimensions[config.matryoshka_count++] = width;
        call made(make_run(64, devices, capacity), config);
        made.host.world.resize(devices * capacity);
        std::vector<uint32_t> used(devices);
        uint32_t const bags = below(12);
        for (uint32_t bag = 0; bag < bags; ++bag) {
            uint32_t const device = below(devices);
            if (used[device] == capacity || below(10) == 0) {
                made.host.bags.push_back({UINT32_MAX, 0, UINT32_MAX, 0});
                continue;
            }
            uint32_t const place = used[device]++;
            uint32_t const slot = device * capacity + place;
            made.host.bags.push_back({device, place, slot, below(2)});
            made.host.world[slot] = {1 + below(7), static_cast<uint8_t>(below(4)), 0, 1, 0};
        }
        for (uint32_t bag = 0; bag < bags; ++bag) {
            for (uint32_t candidate = 0; candidate < bags; ++candidate) {
                bool const dropped =
                    made.host.bags[bag].device == UINT32_MAX || made.host.bags[candidate].device == UINT32_MAX;
                if (candidate == bag || dropped || below(3))
                    continue;
                made.candidates.push_back(candidate);
                made.classes.push_back(static_cast<uint8_t>(below(3)));
                made.weights.push_back(1.0f + below(4));
            }
            made.offsets.push_back(static_cast<uint32_t>(made.candidates.size()));
        }
        CHECK(made.plan() == uform_status_success_k);
        for (uint32_t device = 0; device < devices; ++device) {
            uint32_t rows = 0;
            effects const expected = expected_effects(made, device, rows);
            CHECK(staged_effects(made, device) == expected);
            CHECK(seen_prefixes.size() == 1 && seen_prefixes[0].indices == seen_pairs.indices);
            CHECK(made.host.counts[0] == rows);
            CHECK(*seen_pairs.scale == (rows ? static_cast<float>(1 / (2.0 * rows)) : 0.0f));
            CHECK(made.host.rows[device].size() == seen_pairs.counts[1]);
            for (uint32_t row = 0; row < seen_pairs.counts[1]; ++row) {
                uint32_t const slot = made.host.rows[device][row];
                CHECK(slot == seen_pairs.indices[seen_pairs.rows[row]]);
                for (uform_bag_t const& bag : made.host.bags)
                    CHECK(bag.slot != slot || bag.group == seen_pairs.row_groups[row]);
            }
        }
    }
}

/** A contrastive objective of `make_run` over prefixes of those widths, seen at work on nothing. */
size_t workspace_of(std::vector<int32_t> const& widths) {
    uform_contrastive_t config{};
    for (int32_t width : widths)
        config.matryoshka_dimensions[config.matryoshka_count++] = width;
    call made(make_run(), config);
    made.host.world.resize(8);
    CHECK(made.plan() == uform_status_success_k);
    capture(made, 0);
    return made.host.workspace;
}

void test_only_shorter_prefixes_are_copied() {
    uint32_t const hidden = make_run().hidden;
    size_t const whole = workspace_of({});
    CHECK(seen_prefixes.empty() && seen_pairs.indices && seen_pairs.width == hidden);
    CHECK(seen_pairs.vectors == &world_bags && seen_pairs.gradient == &world_bags_gradient);
    size_t const both = workspace_of({8, static_cast<int32_t>(hidden)});
    CHECK(seen_prefixes.size() == 1 && seen_prefixes[0].width == 8 && seen_prefixes[0].normalize == 1);
    CHECK(seen_pairs.indices && seen_pairs.vectors == &world_bags);
    size_t const units = seen_pairs.units_capacity;
    CHECK(both >= whole + units * 17 * sizeof(float) && both < whole + units * 17 * sizeof(float) + 3 * 256);
    CHECK(workspace_of({8, 16}) < both);
    CHECK(seen_prefixes.size() == 2 && !seen_pairs.indices && seen_pairs.width == 16);
    CHECK(seen_pairs.vectors == seen_prefixes[1].vectors && seen_pairs.gradient == seen_prefixes[1].vectors_gradient);
}

void test_groups_out_of_range_name_the_item() {
    uform_contrastive_t config{};
    config.temperature_groups = 2;
    call made(make_run(), config);
    made.host.world.resize(8);
    made.host.bags = {{0, 0, 0, 1}, {0, 1, 1, 5}};
    made.offsets = {0, 0, 0};
    made.items.resize(3);
    for (uint32_t item = 0; item < 3; ++item) {
        made.items[item].content = item;
        made.items[item].bag = item < 2 ? 0 : 1;
    }
    CHECK(made.plan() == uform_status_invalid_argument_k);
    CHECK(has(made.host.message, "item 2") && has(made.host.message, "group 5"));
}

void test_parameters() {
    uform_contrastive_t config{};
    config.temperature_groups = 3;
    config.pair_loss = uform_pair_loss_form_sigmoid_k;
    call made(make_run(), config);
    CHECK(made.host.parameters == (std::vector<std::string>{"log_inverse_temperature", "bias"}));
    uform_parameter_request_t const& temperature = made.host.requests[0];
    CHECK(temperature.rows == 3 && temperature.columns == 0 && temperature.kind == uform_parameter_kind_plain_k);
    CHECK(temperature.value == std::log(10.0));
    CHECK(temperature.minimum == 0 && temperature.maximum == std::log(1000.0));
    CHECK(made.host.requests[1].value == -10 && made.host.requests[1].minimum == 0);
    CHECK(made.host.requests[1].maximum == 0);
}

} // namespace

int main() {
    test_zeros_derive();
    test_forms_derive();
    test_MAT_01_prefixes_are_sorted_and_distinct();
    test_refusals_name_field_and_value();
    test_parameters();
    test_plans_against_the_definition();
    test_only_shorter_prefixes_are_copied();
    test_groups_out_of_range_name_the_item();
    return native_test::report();
}

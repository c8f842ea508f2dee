// Relations: what is refused and how it is named, then the pairs against maps of pairs.
#include "core/relations.h"

#include <algorithm>
#include <limits>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "allocations.h"
#include "check.h"
#include "core/error.h"

using namespace uform;

namespace {

struct edge_set {
    std::vector<std::size_t> offsets;
    std::vector<std::uint32_t> ids;
    std::vector<float> weights;

    uform_edges_t view() const {
        if (offsets.empty())
            return {};
        return {offsets.data(), offsets.size(), ids.data(), ids.size(), weights.empty() ? nullptr : weights.data(),
                weights.size()};
    }
};

std::string refusal(uform_relations_t const& relations, std::size_t items, std::uint64_t limit = 0,
                    std::uint32_t devices = 1) {
    try {
        checked_relations().take(relations, items, limit, devices);
    } catch (uform::error const& failure) {
        CHECK(failure.status == uform_status_invalid_argument_k);
        return failure.message;
    }
    return {};
}

std::string refusal_of(edge_set const& attract, std::size_t items) { return refusal({attract.view(), {}, {}}, items); }

/* ------------------------------------------------------------------------------------------------ validation */

void test_CON_13_offsets_that_do_not_fit() {
    CHECK(refusal_of({{0, 0, 0}, {0, 1, 0}, {}}, 2) ==
          "relations.attract.offsets[2] is 0, expected 3, the number of ids");
    CHECK(refusal_of({{0, 2, 1}, {0, 1}, {}}, 2) == "relations.attract.offsets[2] is 1, less than the 2 before it");
    CHECK(refusal_of({{0, 1}, {0}, {}}, 2) ==
          "relations.attract.offsets has 2 entries, expected 3: one more than the items");
    CHECK(refusal_of({{0, 1, 1, 1}, {0}, {}}, 2) ==
          "relations.attract.offsets has 4 entries, expected 3: one more than the items");
}

void test_CON_15_no_edges() {
    CHECK(refusal_of({{0, 0}, {}, {}}, 1) == "");
    CHECK(refusal_of({{123, 0}, {}, {}}, 1) == "relations.attract.offsets[0] is 123, expected 0");
    CHECK(refusal_of({{0}, {}, {}}, 0) == "");
    CHECK(refusal_of({}, 3) == "");
}

void test_huge_offsets() {
    CHECK(refusal_of({{0, SIZE_MAX, SIZE_MAX}, {0}, {}}, 2).find("offsets[2] is 18446744073709551615") !=
          std::string::npos);
    CHECK(refusal_of({{0, SIZE_MAX, 1}, {0}, {}}, 2).find("offsets[2] is 1, less than the 18446744073709551615") !=
          std::string::npos);
}

void test_ids_and_weights() {
    CHECK(refusal_of({{0, 1, 2}, {1, 2}, {}}, 2) == "relations.attract.ids[1] is 2, but the call has 2 items");
    CHECK(refusal_of({{0, 1, 2}, {1, 0}, {1.f}}, 2) ==
          "relations.attract.weights has 1 entries, expected 2, the number of ids");
    float const nan = std::numeric_limits<float>::quiet_NaN(), infinite = std::numeric_limits<float>::infinity();
    CHECK(refusal_of({{0, 1, 2}, {1, 0}, {1.f, nan}}, 2) ==
          "relations.attract.weights[1] is nan, expected a finite number of at least 0");
    CHECK(refusal_of({{0, 1, 2}, {1, 0}, {infinite, 1.f}}, 2).find("weights[0] is inf") != std::string::npos);
    CHECK(refusal_of({{0, 1, 2}, {1, 0}, {1.f, -0.5f}}, 2).find("weights[1] is -0.5") != std::string::npos);
    CHECK(refusal_of({{0, 1, 2}, {1, 0}, {0.f, 2.f}}, 2) == "");
}

void test_each_set_is_named() {
    edge_set const good = {{0, 1, 1}, {1}, {}}, bad = {{0, 1, 1}, {7}, {}}, weighted = {{0, 1, 1}, {1}, {1.f}};
    CHECK(refusal({good.view(), bad.view(), {}}, 2).starts_with("relations.repel.ids[0] is 7"));
    CHECK(refusal({good.view(), good.view(), bad.view()}, 2).starts_with("relations.ignore.ids[0] is 7"));
    CHECK(refusal({{}, {}, weighted.view()}, 2) ==
          "relations.ignore.weights has 1 entries, but ignored edges have no weights");
}

void test_missing_parts() {
    edge_set const set = {{0, 1, 1}, {1}, {1.f}};
    uform_edges_t edges = set.view();
    edges.offsets = nullptr, edges.offsets_count = 0;
    CHECK(refusal({edges, {}, {}}, 2) == "relations.attract.offsets is missing, but 1 ids and 1 weights are given");
    edges = set.view(), edges.ids = nullptr;
    CHECK(refusal({edges, {}, {}}, 2) == "relations.attract.ids is missing, expected 1 entries");
    edges = set.view(), edges.weights = nullptr;
    CHECK(refusal({edges, {}, {}}, 2) == "relations.attract.weights is missing, expected 1 entries");
}

void test_edge_limit() {
    edge_set const set = {{0, 2, 2}, {1, 1}, {}};
    uform_relations_t const relations = {set.view(), set.view(), set.view()};
    CHECK(count_edges(relations) == 6);
    CHECK(refusal(relations, 2, 3, 2) == "");
    CHECK(refusal(relations, 2, 0, 1) == "");
    CHECK(refusal(relations, 2, 5, 1) ==
          "relations has 6 edges, more than the 5 that contrastive.max_edges_per_device=5 allows on 1 device");
}

void test_what_is_checked_is_kept() {
    edge_set set = {{0, 2, 3}, {1, 0, 1}, {1.f, 2.f, 3.f}}, other = {{0, 1, 1}, {1}, {}};
    edge_set const before = set;
    checked_relations taken;
    taken.take({set.view(), other.view(), {}}, 2, 0, 1);
    set = {{9, ~std::size_t(0), 7}, {8, 9, ~0u}, {-1.f, -1.f, -1.f}};
    other.offsets[1] = 1u << 30;
    uform_edges_t const& kept = taken.sets().attract;
    CHECK(std::equal(before.offsets.begin(), before.offsets.end(), kept.offsets, kept.offsets + kept.offsets_count));
    CHECK(std::equal(before.ids.begin(), before.ids.end(), kept.ids, kept.ids + kept.ids_count));
    CHECK(std::equal(before.weights.begin(), before.weights.end(), kept.weights, kept.weights + kept.weights_count));
    CHECK(taken.sets().repel.offsets[1] == 1);
    CHECK(!taken.sets().ignore.offsets);
    taken.take({}, 2, 0, 1);
    CHECK(!taken.sets().attract.offsets && !taken.sets().attract.ids_count);
}

/* ------------------------------------------------------------------------------------------------ pairs */

struct pair_value {
    int kind;
    float weight;
    bool operator==(pair_value const&) const = default;
};
using pair_map = std::map<std::pair<std::uint32_t, std::uint32_t>, pair_value>;

/** The pairs by the sentences of the contract, one map a set. */
pair_map plain_pairs(uform_relations_t const& relations, std::vector<std::uint32_t> const& unit_of) {
    pair_map pairs;
    uform_edges_t const* const sets[] = {&relations.ignore, &relations.attract, &relations.repel};
    for (int kind = 0; kind != 3; ++kind) {
        std::map<std::pair<std::uint32_t, std::uint32_t>, float> merged;
        for (std::size_t item = 0; sets[kind]->offsets && item != unit_of.size(); ++item)
            for (std::size_t edge = sets[kind]->offsets[item]; edge != sets[kind]->offsets[item + 1]; ++edge) {
                float& weight = merged[{unit_of[item], unit_of[sets[kind]->ids[edge]]}];
                weight = std::max(weight, sets[kind]->weights ? sets[kind]->weights[edge] : 1.f);
            }
        for (auto const& [units, weight] : merged)
            if (weight > 0 && units.first != units.second && units.first != no_unit_k && units.second != no_unit_k)
                pairs.emplace(units, pair_value{kind, weight});
    }
    return pairs;
}

/** A planner's answer as a map; rows and the order within them are checked on the way. */
pair_map pairs_of(uform_pair_rows_t const& rows) {
    pair_map pairs;
    CHECK(rows.offsets[0] == 0);
    for (std::uint32_t row = 0; row != rows.units; ++row)
        for (std::uint32_t pair = rows.offsets[row]; pair != rows.offsets[row + 1]; ++pair) {
            CHECK(pair == rows.offsets[row] || rows.candidates[pair - 1] < rows.candidates[pair]);
            pairs[{row, rows.candidates[pair]}] = {rows.classes[pair], rows.weights[pair]};
        }
    return pairs;
}

uform::thread_pool pool(3);

void test_no_relations() {
    relation_planner planner;
    std::vector<std::uint32_t> const unit_of = {0, 1};
    uform_pair_rows_t const rows = planner.plan({}, unit_of, 2, pool);
    CHECK(rows.units == 2 && rows.offsets[0] == 0 && rows.offsets[1] == 0 && rows.offsets[2] == 0);
    CHECK(rows.candidates && rows.classes && rows.weights);
    CHECK(planner.plan({}, {}, 0, pool).offsets[0] == 0);
}

void test_merging_and_precedence() {
    // Items 0 and 1 are bag 0, 2 is bag 1, 3 is bag 2, 4 was dropped.
    std::vector<std::uint32_t> const unit_of = {0, 0, 1, 2, no_unit_k};
    edge_set const attract = {{0, 3, 6, 8, 9, 10}, {2, 3, 1, 2, 3, 4, 0, 1, 2, 0}, {.5f, 2, 9, .75f, 0, 1, 3, 4, 0, 1}};
    edge_set const repel = {{0, 2, 2, 3, 4, 4}, {2, 3, 3, 2}, {8, 8, 0.25f, 5}};
    edge_set const ignore = {{0, 0, 1, 1, 1, 1}, {3}, {}};
    relation_planner planner;
    uform_relations_t const relations = {attract.view(), repel.view(), ignore.view()};
    CHECK(refusal(relations, 5) == "");
    CHECK(pairs_of(planner.plan(relations, unit_of, 3, pool)) ==
          pair_map{{{0, 1}, {uform_pair_class_attracted_k, .75f}},
                   {{0, 2}, {uform_pair_class_ignored_k, 1.f}},
                   {{1, 0}, {uform_pair_class_attracted_k, 4.f}},
                   {{1, 2}, {uform_pair_class_repelled_k, .25f}},
                   {{2, 1}, {uform_pair_class_repelled_k, 5.f}}});
}

edge_set random_edges(std::mt19937& random, std::uint32_t items, bool weighted) {
    edge_set set;
    set.offsets.push_back(0);
    for (std::uint32_t item = 0; item != items; ++item) {
        for (std::uint32_t edge = 0, count = random() % 6; edge != count; ++edge) {
            set.ids.push_back(random() % items);
            if (weighted)
                set.weights.push_back(static_cast<float>(random() % 4) / 2);
        }
        set.offsets.push_back(set.ids.size());
    }
    return set;
}

void test_against_maps() {
    std::mt19937 random(4);
    relation_planner planner;
    for (int round = 0; round != 1002; ++round) {
        // The last ones are merged in chunks, of which those after the first are moved.
        bool const large = round >= 1000;
        std::uint32_t const items = large ? 30'000 : random() % 30, units = large ? 20'000 : 1 + random() % 20;
        edge_set const attract = random_edges(random, items, random() % 2), repel = random_edges(random, items, true);
        edge_set const ignore = random_edges(random, items, false);
        uform_relations_t const relations = {random() % 8 ? attract.view() : uform_edges_t{}, repel.view(),
                                             random() % 2 ? ignore.view() : uform_edges_t{}};
        std::vector<std::uint32_t> unit_of(items);
        for (std::uint32_t& unit : unit_of)
            unit = random() % 7 ? static_cast<std::uint32_t>(random() % units) : no_unit_k;
        CHECK(refusal(relations, items) == "");
        CHECK(pairs_of(planner.plan(relations, unit_of, units, pool)) == plain_pairs(relations, unit_of));
    }
}

void test_no_allocation_after_the_first() {
    std::mt19937 random(5);
    std::vector<std::uint32_t> unit_of(50);
    for (std::uint32_t item = 0; item != unit_of.size(); ++item)
        unit_of[item] = item;
    edge_set const set = random_edges(random, 50, true);
    relation_planner planner;
    checked_relations taken;
    auto const plan = [&](uform_relations_t const& given) {
        taken.take(given, 50, 0, 1);
        planner.plan(taken.sets(), unit_of, 50, pool);
    };
    plan({set.view(), set.view(), {}});
    std::size_t const before = native_test::allocations();
    plan({set.view(), set.view(), {}});
    plan({set.view(), {}, {}});
    std::size_t const after = native_test::allocations(); // before CHECK makes its text
    CHECK(after == before);
}

} // namespace

int main() {
    test_CON_13_offsets_that_do_not_fit();
    test_CON_15_no_edges();
    test_huge_offsets();
    test_ids_and_weights();
    test_each_set_is_named();
    test_missing_parts();
    test_edge_limit();
    test_what_is_checked_is_kept();
    test_no_relations();
    test_merging_and_precedence();
    test_against_maps();
    test_no_allocation_after_the_first();
    return native_test::report();
}

// Packing: the rules one by one, then random calls against a packer that keeps every row by itself.
#include "core/pack.h"

#include <algorithm>
#include <map>
#include <random>
#include <vector>

#include "allocations.h"
#include "check.h"
#include "core/error.h"

using namespace uform;

namespace {

using words_t = std::vector<std::uint32_t>;

words_t devices_of(packer const& packed) {
    words_t devices;
    for (packed_item_t const& item : packed.items())
        devices.push_back(item.device);
    return devices;
}

void plan_singles(packer& packed, words_t const& columns) {
    packed.plan(columns, {}, static_cast<std::uint32_t>(columns.size()));
}

void plan_bags(packer& packed, words_t const& columns, words_t const& words) {
    bag_numbering numbering;
    numbering.number(words.data(), words.size());
    packed.plan(columns, numbering.bags(), numbering.count());
}

/* ------------------------------------------------------------------------------------------------ numbering */

void test_numbering_by_first_appearance() {
    bag_numbering numbering;
    words_t const words = {7, 0, 7, UINT32_MAX, 0, 9, UINT32_MAX};
    numbering.number(words.data(), words.size());
    CHECK(std::ranges::equal(numbering.bags(), words_t{0, 1, 0, 2, 1, 3, 2}));
    CHECK(numbering.count() == 4);
    numbering.number(nullptr, 5);
    CHECK(numbering.bags().empty() && numbering.count() == 5);
    numbering.number(words.data(), 0);
    CHECK(numbering.bags().empty() && numbering.count() == 0);
}

void test_numbering_of_many_words() {
    std::mt19937 random(1);
    bag_numbering numbering;
    for (std::uint32_t stride : {1u, 2u, 4096u, 0x10000u, 0x01000000u, 0x9E3779B9u}) {
        words_t words(5000);
        for (std::uint32_t& word : words)
            word = random() % 3000 * stride;
        std::map<std::uint32_t, std::uint32_t> expected;
        numbering.number(words.data(), words.size());
        bool equal = true;
        for (std::size_t i = 0; i != words.size(); ++i) {
            auto const [entry, fresh] = expected.emplace(words[i], expected.size());
            equal = equal && numbering.bags()[i] == entry->second;
        }
        CHECK(equal && numbering.count() == expected.size());
    }
}

/* ------------------------------------------------------------------------------------------------ rules */

void test_columns_lie_end_to_end() {
    packer packed({1, 4, 10, 100, 100});
    plan_singles(packed, {3, 10, 5, 1});
    std::uint32_t first = 0;
    for (std::uint32_t i = 0; i != 4; ++i) {
        CHECK(packed.items()[i].device == 0 && packed.items()[i].segment == i && packed.items()[i].first == first);
        CHECK(packed.bags()[i].device == 0 && packed.bags()[i].place == i);
        first += words_t{3, 10, 5, 1}[i];
    }
    packed_device_t const& device = packed.devices()[0];
    CHECK(device.columns == 19 && device.segments == 4 && device.bags == 4 && device.longest == 10);
    CHECK(packed.dropped() == 0);
}

void test_a_segment_never_crosses_rows() {
    packer packed({1, 2, 10, 100, 100});
    // 6 + 6 leave 4 + 4: eight columns are free, but no row has five.
    plan_singles(packed, {6, 6, 5, 4, 4});
    CHECK(devices_of(packed) == words_t{0, 0, dropped_k, 0, 0});
    CHECK(packed.dropped() == 1 && packed.devices()[0].columns == 20);
    CHECK(packed.items()[3].first == 12 && packed.items()[3].segment == 2);
}

void test_best_fit() {
    packer packed({1, 2, 10, 100, 100});
    // The 3 goes beside the 7, which it fills, and leaves room for the 6 beside the 4.
    plan_singles(packed, {4, 7, 3, 6});
    CHECK(packed.dropped() == 0);
}

void test_segments_and_bags_run_out() {
    packer segments({1, 4, 10, 3, 100});
    plan_singles(segments, {1, 1, 1, 1, 1});
    CHECK(devices_of(segments) == words_t{0, 0, 0, dropped_k, dropped_k} && segments.dropped() == 2);
    packer bags({1, 4, 10, 100, 2});
    plan_bags(bags, {1, 1, 1, 1, 1}, {5, 6, 7, 5, 6});
    CHECK(devices_of(bags) == words_t{0, 0, dropped_k, 0, 0} && bags.dropped() == 1);
    CHECK(bags.bags()[2].device == dropped_k && bags.devices()[0].bags == 2);
}

void test_a_bag_pools_the_rest() {
    packer packed({1, 1, 10, 100, 100});
    plan_bags(packed, {4, 9, 3, 3}, {1, 1, 1, 2});
    CHECK(devices_of(packed) == words_t{0, dropped_k, 0, 0});
    CHECK(packed.bags()[0].device == 0 && packed.bags()[1].place == 1 && packed.dropped() == 1);
}

void test_a_bag_without_items_takes_no_place() {
    packer packed({1, 1, 10, 100, 100});
    plan_bags(packed, {8, 5, 2}, {1, 2, 3});
    CHECK(packed.bags()[1].device == dropped_k && packed.bags()[2].place == 1 && packed.devices()[0].bags == 2);
}

void test_devices_with_fewest_columns() {
    packer packed({3, 1, 10, 100, 100});
    plan_singles(packed, {5, 1, 1, 1, 4, 9});
    // Ties go to the lowest index; the 9 finds room nowhere.
    CHECK(devices_of(packed) == words_t{0, 1, 2, 1, 2, dropped_k});
}

void test_a_bag_stays_on_one_device() {
    packer packed({2, 2, 10, 100, 100});
    // The first bag needs both rows of a device, its items apart in the call.
    plan_bags(packed, {6, 3, 6, 3, 6}, {1, 2, 1, 2, 2});
    CHECK(devices_of(packed) == words_t{0, 1, 0, 1, 1});
    CHECK(packed.items()[2].first == 6 && packed.items()[4].first == 6);
}

void test_room_for_the_whole_bag_comes_first() {
    packer packed({2, 1, 10, 100, 100});
    plan_bags(packed, {3, 5, 3, 4}, {1, 2, 3, 3});
    // Bag 3 needs 7: device 0 with 3 columns has exactly that, device 1 has 5.
    CHECK(devices_of(packed) == words_t{0, 1, 0, 0});
    plan_bags(packed, {6, 3, 4, 4, 9}, {1, 2, 3, 3, 4});
    // Bag 3 needs 8: device 1 keeps none of it but one item, device 0 one item as well: the emptier takes it.
    CHECK(devices_of(packed) == words_t{0, 1, 1, dropped_k, dropped_k});
}

void test_nothing() {
    packer packed({2, 1, 10, 100, 100});
    plan_singles(packed, {});
    CHECK(packed.items().empty() && packed.bags().empty() && packed.devices()[1].columns == 0);
}

std::string refusal(auto&& body) {
    try {
        body();
    } catch (uform::error const& failure) {
        return failure.message;
    }
    return {};
}

void test_refusals() {
    packer packed({1, 1, 10, 100, 100});
    CHECK(refusal([&] { plan_singles(packed, {3, 11}); }).find("11 columns") != std::string::npos);
    CHECK(refusal([&] { plan_singles(packed, {3, 0}); }).find("0 columns") != std::string::npos);
    words_t const columns = {1, 1}, bags = {0, 2};
    CHECK(refusal([&] { packed.plan(columns, bags, 2); }).find("bag 2 of 2") != std::string::npos);
    CHECK(refusal([&] { packed.plan(columns, {}, 3); }) != "");
    CHECK(refusal([] { packer({1, 1 << 20, 1 << 20, 1, 1}); }).find("max_rows_per_device") != std::string::npos);
    plan_singles(packed, {3});
    CHECK(packed.dropped() == 0);
}

/* ------------------------------------------------------------------------------------------------ against a plain one
 */

/** The rules again, written with every row by itself and every trial on a copy. */
struct plain_packer {
    struct device_t {
        words_t rows;
        std::uint64_t columns = 0;
        std::uint32_t segments = 0, bags = 0;
    };
    pack_capacities_t capacities;
    std::vector<device_t> devices;
    words_t placed; // the device of each item

    void plan(words_t const& columns, words_t const& bags, std::uint32_t bags_count) {
        devices.assign(capacities.devices, {words_t(capacities.rows, capacities.row_columns)});
        placed.assign(columns.size(), dropped_k);
        for (std::uint32_t bag = 0; bag != bags_count; ++bag)
            place(bag, columns, bags);
    }

    void place(std::uint32_t bag, words_t const& columns, words_t const& bags) {
        std::uint64_t whole = 0;
        for (std::size_t i = 0; i != bags.size(); ++i)
            whole += bags[i] == bag ? columns[i] : 0;
        std::uint32_t chosen = dropped_k;
        std::uint64_t most = 0;
        for (std::uint32_t device = 0; device != capacities.devices; ++device) {
            device_t trial = devices[device];
            std::uint64_t const kept = keep(trial, bag, columns, bags, nullptr);
            bool const better = chosen == dropped_k ? kept > 0
                                : kept == most      ? devices[device].columns < devices[chosen].columns
                                                    : kept > most;
            if (better)
                chosen = device, most = kept;
        }
        if (chosen == dropped_k)
            return;
        words_t kept_items;
        keep(devices[chosen], bag, columns, bags, &kept_items);
        for (std::uint32_t const item : kept_items)
            placed[item] = chosen;
    }

    std::uint64_t keep(device_t& device, std::uint32_t bag, words_t const& columns, words_t const& bags,
                       words_t* kept_items) const {
        std::uint64_t kept = 0;
        if (device.bags == capacities.bags)
            return 0;
        for (std::uint32_t i = 0; i != bags.size(); ++i) {
            if (bags[i] != bag || device.segments == capacities.segments)
                continue;
            auto best = device.rows.end();
            for (auto row = device.rows.begin(); row != device.rows.end(); ++row)
                if (*row >= columns[i] && (best == device.rows.end() || *row < *best))
                    best = row;
            if (best == device.rows.end())
                continue;
            *best -= columns[i];
            device.columns += columns[i];
            kept += columns[i];
            ++device.segments;
            if (kept_items)
                kept_items->push_back(i);
        }
        device.bags += kept > 0;
        return kept;
    }
};

/** What must hold of any plan, whatever was kept. */
bool is_consistent(packer const& packed, words_t const& columns, words_t const& bags) {
    std::vector<packed_device_t> devices(packed.capacities().devices);
    std::vector<words_t> places(devices.size());
    for (std::size_t i = 0; i != columns.size(); ++i) {
        packed_item_t const& item = packed.items()[i];
        if (item.device == dropped_k)
            continue;
        packed_device_t& device = devices[item.device];
        if (item.segment != device.segments++ || item.first != device.columns ||
            packed.bags()[bags[i]].device != item.device)
            return false;
        device.columns += columns[i];
        device.longest = std::max(device.longest, columns[i]);
        places[item.device].push_back(packed.bags()[bags[i]].place);
    }
    for (std::size_t d = 0; d != devices.size(); ++d) {
        std::ranges::sort(places[d]);
        places[d].erase(std::unique(places[d].begin(), places[d].end()), places[d].end());
        devices[d].bags = static_cast<std::uint32_t>(places[d].size());
        if (!places[d].empty() && places[d].back() + 1 != places[d].size())
            return false;
        packed_device_t const& answer = packed.devices()[d];
        if (answer.columns != devices[d].columns || answer.segments != devices[d].segments ||
            answer.bags != devices[d].bags || answer.longest != devices[d].longest)
            return false;
        if (answer.segments > packed.capacities().segments || answer.bags > packed.capacities().bags ||
            answer.columns > packed.capacities().rows * packed.capacities().row_columns)
            return false;
    }
    return true;
}

void test_against_the_plain_packer() {
    std::mt19937 random(2);
    auto const below = [&](std::uint32_t bound) { return static_cast<std::uint32_t>(random() % bound); };
    int dropped_calls = 0;
    for (int round = 0; round != 3000; ++round) {
        pack_capacities_t const capacities = {1 + below(4), 1 + below(6), 1 + below(round % 7 ? 24 : 400),
                                              1 + below(20), 1 + below(12)};
        std::uint32_t const items = below(40), words = 1 + below(30);
        words_t columns(items), bags(items);
        for (std::uint32_t i = 0; i != items; ++i) {
            columns[i] = 1 + below(capacities.row_columns);
            bags[i] = below(words);
        }
        bool const single = round % 5 == 0;
        packer packed(capacities);
        plain_packer plain{capacities, {}, {}};
        bag_numbering numbering;
        numbering.number(single ? nullptr : bags.data(), items);
        packed.plan(columns, numbering.bags(), numbering.count());
        words_t numbers(numbering.bags().begin(), numbering.bags().end());
        for (std::uint32_t i = 0; single && i != items; ++i)
            numbers.push_back(i);
        plain.plan(columns, numbers, numbering.count());
        CHECK(devices_of(packed) == plain.placed);
        CHECK(is_consistent(packed, columns, numbers));
        CHECK(packed.dropped() == static_cast<std::uint64_t>(std::ranges::count(plain.placed, dropped_k)));
        dropped_calls += packed.dropped() > 0;
        packed.plan(columns, numbering.bags(), numbering.count());
        CHECK(devices_of(packed) == plain.placed);
    }
    CHECK(dropped_calls > 500 && dropped_calls < 2900);
}

void test_wide_rows() {
    // Wide enough for several words of the upper level of bits.
    packer packed({1, 2, 65535, 100, 100});
    plan_singles(packed, {65535, 60000, 5535, 1});
    CHECK(devices_of(packed) == words_t{0, 0, 0, dropped_k});
    plan_singles(packed, {1, 64, 63, 65407, 65535});
    CHECK(packed.dropped() == 0 && packed.devices()[0].columns == 2 * 65535);
}

void test_no_allocation_after_the_first() {
    packer packed({2, 8, 64, 100, 100});
    bag_numbering numbering;
    words_t columns(120), words(120);
    std::mt19937 random(3);
    std::size_t before = 0;
    for (int round = 0; round != 20; ++round) {
        for (std::size_t i = 0; i != columns.size(); ++i)
            columns[i] = 1 + random() % 64, words[i] = static_cast<std::uint32_t>(random() % (round ? 60 : 1u << 31));
        if (round == 1)
            before = native_test::allocations();
        std::size_t const items = columns.size() - static_cast<std::size_t>(round);
        numbering.number(words.data(), items);
        packed.plan({columns.data(), items}, numbering.bags(), numbering.count());
    }
    std::size_t const after = native_test::allocations(); // before CHECK makes its text
    CHECK(after == before);
}

} // namespace

int main() {
    test_numbering_by_first_appearance();
    test_numbering_of_many_words();
    test_columns_lie_end_to_end();
    test_a_segment_never_crosses_rows();
    test_best_fit();
    test_segments_and_bags_run_out();
    test_a_bag_pools_the_rest();
    test_a_bag_without_items_takes_no_place();
    test_devices_with_fewest_columns();
    test_a_bag_stays_on_one_device();
    test_room_for_the_whole_bag_comes_first();
    test_nothing();
    test_refusals();
    test_against_the_plain_packer();
    test_wide_rows();
    test_no_allocation_after_the_first();
    return native_test::report();
}

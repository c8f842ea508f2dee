#include "core/pack.h"

#include <algorithm>
#include <bit>
#include <numeric>

#include "core/error.h"

namespace uform {

namespace {

constexpr std::uint32_t word_bits_k = 64;
constexpr std::uint32_t empty_slot_k = UINT32_MAX;

/** A finalizer that spreads every bit of a word: words that callers choose are often multiples of something. */
constexpr std::uint32_t hash_of(std::uint32_t word) noexcept {
    word ^= word >> 16;
    word *= 0x85EBCA6Bu;
    word ^= word >> 13;
    word *= 0xC2B2AE35u;
    return word ^ word >> 16;
}

/** Grows a vector, never shrinks it. */
template <typename element_at> void reserve_elements(std::vector<element_at>& elements, std::size_t count) {
    if (elements.size() < count)
        elements.resize(count);
}

void check_count(std::size_t items) {
    if (items >= UINT32_MAX)
        fail(uform_status_invalid_argument_k, "contents has ", items, " items, but a call takes at most ",
             UINT32_MAX - 1);
}

/** The position of the first bit at or after `from` that is set, or the count of all bits. */
std::size_t find_bit(std::span<std::uint64_t const> words, std::size_t from) noexcept {
    std::size_t word = from / word_bits_k;
    if (word >= words.size())
        return words.size() * word_bits_k;
    std::uint64_t bits = words[word] & (~std::uint64_t(0) << (from % word_bits_k));
    while (!bits) {
        if (++word == words.size())
            return words.size() * word_bits_k;
        bits = words[word];
    }
    return word * word_bits_k + static_cast<std::size_t>(std::countr_zero(bits));
}

} // namespace

/* ------------------------------------------------------------------------------------------------ bag_numbering */

void bag_numbering::number(std::uint32_t const* words, std::size_t items) {
    check_count(items);
    if (!words) {
        items_ = 0;
        count_ = static_cast<std::uint32_t>(items);
        return;
    }
    reserve_elements(bags_, items);
    reserve_elements(words_, items);
    std::size_t const slots = std::bit_ceil(2 * items + 1);
    reserve_elements(table_, slots);
    std::fill_n(table_.begin(), slots, empty_slot_k);
    items_ = items;
    count_ = 0;
    for (std::size_t item = 0; item != items; ++item) {
        std::uint32_t const word = words[item];
        std::size_t slot = hash_of(word) & (slots - 1);
        while (table_[slot] != empty_slot_k && words_[table_[slot]] != word)
            slot = (slot + 1) & (slots - 1);
        if (table_[slot] == empty_slot_k) {
            words_[count_] = word;
            table_[slot] = count_++;
        }
        bags_[item] = table_[slot];
    }
}

/* ------------------------------------------------------------------------------------------------ free_rows */

void free_rows::init(std::uint32_t rows, std::uint32_t row_columns) {
    rows_ = rows;
    row_columns_ = row_columns;
    counts_.resize(std::size_t(row_columns) + 1);
    bits_.resize(row_columns / word_bits_k + 1);
    summary_.resize((bits_.size() - 1) / word_bits_k + 1);
    clear();
}

void free_rows::clear() {
    std::fill(counts_.begin(), counts_.end(), 0);
    std::fill(bits_.begin(), bits_.end(), 0);
    std::fill(summary_.begin(), summary_.end(), 0);
    add(row_columns_);
    counts_[row_columns_] = rows_;
}

std::uint32_t free_rows::take(std::uint32_t columns) {
    std::uint32_t const free = best_fit(columns);
    if (free == none_k)
        return none_k;
    remove(free);
    add(free - columns);
    return free;
}

void free_rows::give_back(std::uint32_t was_free, std::uint32_t columns) {
    remove(was_free - columns);
    add(was_free);
}

std::uint32_t free_rows::best_fit(std::uint32_t columns) const noexcept {
    std::uint32_t const word = columns / word_bits_k;
    if (word >= bits_.size())
        return none_k;
    std::uint64_t const bits = bits_[word] & (~std::uint64_t(0) << (columns % word_bits_k));
    if (bits)
        return word * word_bits_k + static_cast<std::uint32_t>(std::countr_zero(bits));
    std::size_t const next = find_bit(summary_, std::size_t(word) + 1);
    if (next >= bits_.size())
        return none_k;
    return static_cast<std::uint32_t>(next * word_bits_k + static_cast<std::size_t>(std::countr_zero(bits_[next])));
}

void free_rows::add(std::uint32_t free) {
    ++counts_[free];
    std::uint32_t const word = free / word_bits_k;
    bits_[word] |= std::uint64_t(1) << (free % word_bits_k);
    summary_[word / word_bits_k] |= std::uint64_t(1) << (word % word_bits_k);
}

void free_rows::remove(std::uint32_t free) {
    if (--counts_[free])
        return;
    std::uint32_t const word = free / word_bits_k;
    bits_[word] &= ~(std::uint64_t(1) << (free % word_bits_k));
    if (!bits_[word])
        summary_[word / word_bits_k] &= ~(std::uint64_t(1) << (word % word_bits_k));
}

/* ------------------------------------------------------------------------------------------------ packer */

packer::packer(pack_capacities_t const& capacities)
    : capacities_(capacities), states_(capacities.devices), order_(capacities.devices), devices_(capacities.devices) {
    if (!capacities.devices || !capacities.rows || !capacities.row_columns || !capacities.segments || !capacities.bags)
        fail(uform_status_internal_k, "a packer was made without devices, rows, columns, segments or bags");
    if (std::uint64_t(capacities.rows) * capacities.row_columns >= UINT32_MAX)
        fail(uform_status_invalid_argument_k, "batch.max_rows_per_device (", capacities.rows,
             ") times batch.max_columns_per_row (", capacities.row_columns, ") is not below ", UINT32_MAX);
    for (device_t& state : states_)
        state.rows.init(capacities.rows, capacities.row_columns);
}

void packer::plan(std::span<std::uint32_t const> columns, std::span<std::uint32_t const> bags,
                  std::uint32_t bags_count) {
    check(columns, bags, bags_count);
    clear(columns.size(), bags_count);
    if (bags.empty())
        place_single_bags(columns);
    else
        place_bags(columns, bags);
    lay_out(columns);
}

void packer::check(std::span<std::uint32_t const> columns, std::span<std::uint32_t const> bags,
                   std::uint32_t bags_count) const {
    check_count(columns.size());
    std::uint32_t least = 1, most = 1;
    for (std::uint32_t const count : columns)
        least = std::min(least, count), most = std::max(most, count);
    if (least < 1 || most > capacities_.row_columns)
        fail(uform_status_internal_k, "an item measured ", least < 1 ? least : most, " columns, but a row has ",
             capacities_.row_columns);
    if (bags.size() != (bags.empty() ? 0 : columns.size()) || (bags.empty() && bags_count != columns.size()))
        fail(uform_status_internal_k, "bags were numbered for other items than were measured");
    std::uint32_t highest = 0;
    for (std::uint32_t const bag : bags)
        highest = std::max(highest, bag);
    if (!bags.empty() && highest >= bags_count)
        fail(uform_status_internal_k, "an item is in bag ", highest, " of ", bags_count);
}

void packer::clear(std::size_t items, std::uint32_t bags) {
    reserve_elements(items_, items);
    reserve_elements(bags_, bags);
    std::fill_n(items_.begin(), items, packed_item_t{dropped_k, 0, 0});
    std::fill_n(bags_.begin(), bags, packed_bag_t{dropped_k, 0});
    items_count_ = items;
    bags_count_ = bags;
    for (device_t& state : states_) {
        state.rows.clear();
        state.columns = 0;
        state.segments = state.bags = 0;
    }
    std::iota(order_.begin(), order_.end(), 0u);
}

void packer::place_single_bags(std::span<std::uint32_t const> columns) {
    for (std::uint32_t item = 0; item != columns.size(); ++item)
        place_single(item, item, columns[item]);
}

void packer::place_bags(std::span<std::uint32_t const> columns, std::span<std::uint32_t const> bags) {
    group_by_bag(bags);
    for (std::uint32_t bag = 0; bag != bags_count_; ++bag) {
        std::uint32_t const begin = bag_offsets_[bag], count = bag_offsets_[bag + 1] - begin;
        if (count == 1)
            place_single(bag, members_[begin], columns[members_[begin]]);
        else
            place_several(bag, {members_.data() + begin, count}, columns);
    }
}

void packer::group_by_bag(std::span<std::uint32_t const> bags) {
    reserve_elements(bag_offsets_, std::size_t(bags_count_) + 2);
    reserve_elements(members_, bags.size());
    reserve_elements(taken_, bags.size());
    std::fill_n(bag_offsets_.begin(), std::size_t(bags_count_) + 2, 0);
    // Counted one place late, so that the pass that writes members turns ends into beginnings.
    for (std::uint32_t const bag : bags)
        ++bag_offsets_[bag + 2];
    for (std::size_t bag = 2; bag <= bags_count_; ++bag)
        bag_offsets_[bag + 1] += bag_offsets_[bag];
    for (std::uint32_t item = 0; item != bags.size(); ++item)
        members_[bag_offsets_[bags[item] + 1]++] = item;
}

void packer::place_single(std::uint32_t bag, std::uint32_t item, std::uint32_t columns) {
    for (std::uint32_t const device : order_) {
        device_t& state = states_[device];
        if (state.segments == capacities_.segments || state.bags == capacities_.bags ||
            state.rows.take(columns) == free_rows::none_k)
            continue;
        items_[item].device = device;
        return keep_bag(bag, device, columns, 1);
    }
}

void packer::place_several(std::uint32_t bag, std::span<std::uint32_t const> members,
                           std::span<std::uint32_t const> columns) {
    std::uint64_t whole = 0;
    for (std::uint32_t const item : members)
        whole += columns[item];
    kept_t best = {};
    std::uint32_t best_device = dropped_k;
    for (std::uint32_t const device : order_) {
        if (states_[device].bags == capacities_.bags)
            continue;
        kept_t const kept = take_members(device, members, columns);
        if (kept.columns == whole) {
            best = kept, best_device = device;
            break;
        }
        give_back_members(device, members, columns);
        if (kept.columns > best.columns)
            best = kept, best_device = device;
    }
    if (best_device == dropped_k)
        return;
    if (best.columns != whole)
        take_members(best_device, members, columns);
    for (std::size_t member = 0; member != members.size(); ++member)
        if (taken_[member] != free_rows::none_k)
            items_[members[member]].device = best_device;
    keep_bag(bag, best_device, best.columns, best.segments);
}

packer::kept_t packer::take_members(std::uint32_t device, std::span<std::uint32_t const> members,
                                    std::span<std::uint32_t const> columns) {
    device_t& state = states_[device];
    std::uint32_t const room = capacities_.segments - state.segments;
    kept_t kept = {};
    for (std::size_t member = 0; member != members.size(); ++member) {
        std::uint32_t const need = columns[members[member]];
        taken_[member] = kept.segments == room ? free_rows::none_k : state.rows.take(need);
        if (taken_[member] != free_rows::none_k)
            kept.columns += need, ++kept.segments;
    }
    return kept;
}

void packer::give_back_members(std::uint32_t device, std::span<std::uint32_t const> members,
                               std::span<std::uint32_t const> columns) {
    // Backwards: a later item may lie in what an earlier one left of its row.
    for (std::size_t member = members.size(); member--;)
        if (taken_[member] != free_rows::none_k)
            states_[device].rows.give_back(taken_[member], columns[members[member]]);
}

void packer::keep_bag(std::uint32_t bag, std::uint32_t device, std::uint64_t columns, std::uint32_t segments) {
    device_t& state = states_[device];
    bags_[bag] = {device, state.bags++};
    state.columns += columns;
    state.segments += segments;
    auto const comes_after = [&](std::uint32_t other) {
        std::uint64_t const others = states_[other].columns;
        return state.columns > others || (state.columns == others && device > other);
    };
    auto place = std::find(order_.begin(), order_.end(), device);
    for (auto next = place + 1; next != order_.end() && comes_after(*next); place = next++)
        std::iter_swap(place, next);
}

void packer::lay_out(std::span<std::uint32_t const> columns) {
    std::fill(devices_.begin(), devices_.end(), packed_device_t{});
    dropped_ = 0;
    for (std::size_t index = 0; index != columns.size(); ++index) {
        packed_item_t& item = items_[index];
        if (item.device == dropped_k) {
            ++dropped_;
            continue;
        }
        packed_device_t& device = devices_[item.device];
        item.segment = device.segments++;
        item.first = device.columns;
        device.columns += columns[index];
        device.longest = std::max(device.longest, columns[index]);
    }
    for (std::size_t device = 0; device != devices_.size(); ++device)
        devices_[device].bags = states_[device].bags;
}

} // namespace uform

/** From items to devices: bags numbered by first appearance, then segments packed into each device's rows. */
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace uform {

/** The device of an item or a bag that found no room. */
inline constexpr std::uint32_t dropped_k = UINT32_MAX;

/** What one device carries at most, and how many devices this process has. */
struct pack_capacities_t {
    std::uint32_t devices;
    std::uint32_t rows;
    std::uint32_t row_columns;
    std::uint32_t segments;
    std::uint32_t bags;
};

struct packed_item_t {
    std::uint32_t device;  // `dropped_k`: it found no room, and the rest means nothing
    std::uint32_t segment; // its place among the device's segments
    std::uint32_t first;   // its first column on the device
};

struct packed_bag_t {
    std::uint32_t device; // `dropped_k`: it lost all its items
    std::uint32_t place;  // on its device
};

struct packed_device_t {
    std::uint32_t columns; // in use
    std::uint32_t segments;
    std::uint32_t bags;
    std::uint32_t longest; // columns of the longest segment
};

/** Numbers the distinct words of a call by first appearance. Storage grows only with a call larger than all before. */
class bag_numbering {
public:
    /** @param words One an item, or null where each item is its own bag. */
    void number(std::uint32_t const* words, std::size_t items);

    /** The bag of each item; empty where each item is its own bag. */
    std::span<std::uint32_t const> bags() const noexcept { return {bags_.data(), items_}; }

    /** The number of distinct bags. */
    std::uint32_t count() const noexcept { return count_; }

private:
    std::vector<std::uint32_t> bags_;
    std::vector<std::uint32_t> words_; // the word of each bag
    std::vector<std::uint32_t> table_; // open addressing: bags by the hash of their word
    std::size_t items_ = 0;
    std::uint32_t count_ = 0;
};

/**
 *  Free space of one device's rows. Rows are accounting, so it is enough to know how many have how many columns free;
 *  two levels of bits over the free columns find the best fit.
 */
class free_rows {
public:
    static constexpr std::uint32_t none_k = UINT32_MAX;

    void init(std::uint32_t rows, std::uint32_t row_columns);
    void clear();

    /** Takes `columns` from the row that they fill best. Answers what it had free, or `none_k` where no row has room.
     */
    std::uint32_t take(std::uint32_t columns);

    /** Undoes a `take` of so many columns that answered `was_free`. */
    void give_back(std::uint32_t was_free, std::uint32_t columns);

private:
    std::uint32_t best_fit(std::uint32_t columns) const noexcept;
    void add(std::uint32_t free);
    void remove(std::uint32_t free);

    std::uint32_t rows_ = 0;
    std::uint32_t row_columns_ = 0;
    std::vector<std::uint32_t> counts_;  // rows by their free columns
    std::vector<std::uint64_t> bits_;    // a bit for every count above 0
    std::vector<std::uint64_t> summary_; // a bit for every word of them that is not 0
};

/**
 *  Packs a call's items, deterministically. Bags are placed in order of first appearance, each on one device: the one
 *  with the fewest columns so far among those with room for all of it, else the one that can keep most of its columns
 *  (ties: fewest columns, then the lowest index). An item takes the row that it fills best; one without room, or past
 *  the device's segments or bags, is dropped. On the device the kept items lie end to end in the order of the call.
 *  A plan allocates only when it is larger than every plan before.
 */
class packer {
public:
    explicit packer(pack_capacities_t const& capacities);

    pack_capacities_t const& capacities() const noexcept { return capacities_; }

    /**
     *  @param columns What each item needs, its marker included: 1 to `row_columns`.
     *  @param bags The bag of each item, numbered by first appearance; empty: each item is its own bag.
     *  @param bags_count The number of bags.
     */
    void plan(std::span<std::uint32_t const> columns, std::span<std::uint32_t const> bags, std::uint32_t bags_count);

    /** One an item, one a bag, one a device; valid until the next plan. */
    std::span<packed_item_t const> items() const noexcept { return {items_.data(), items_count_}; }
    std::span<packed_bag_t const> bags() const noexcept { return {bags_.data(), bags_count_}; }
    std::span<packed_device_t const> devices() const noexcept { return devices_; }

    /** Items without room. */
    std::uint64_t dropped() const noexcept { return dropped_; }

private:
    struct device_t {
        free_rows rows;
        std::uint64_t columns = 0;
        std::uint32_t segments = 0;
        std::uint32_t bags = 0;
    };

    struct kept_t {
        std::uint64_t columns;
        std::uint32_t segments;
    };

    void check(std::span<std::uint32_t const> columns, std::span<std::uint32_t const> bags,
               std::uint32_t bags_count) const;
    void clear(std::size_t items, std::uint32_t bags);
    void place_single_bags(std::span<std::uint32_t const> columns);
    void place_bags(std::span<std::uint32_t const> columns, std::span<std::uint32_t const> bags);
    void group_by_bag(std::span<std::uint32_t const> bags);
    void place_single(std::uint32_t bag, std::uint32_t item, std::uint32_t columns);
    void place_several(std::uint32_t bag, std::span<std::uint32_t const> members,
                       std::span<std::uint32_t const> columns);
    kept_t take_members(std::uint32_t device, std::span<std::uint32_t const> members,
                        std::span<std::uint32_t const> columns);
    void give_back_members(std::uint32_t device, std::span<std::uint32_t const> members,
                           std::span<std::uint32_t const> columns);
    void keep_bag(std::uint32_t bag, std::uint32_t device, std::uint64_t columns, std::uint32_t segments);
    void lay_out(std::span<std::uint32_t const> columns);

    pack_capacities_t capacities_;
    std::vector<device_t> states_;
    std::vector<std::uint32_t> order_; // devices by their columns, then by their index
    std::vector<packed_item_t> items_;
    std::vector<packed_bag_t> bags_;
    std::vector<packed_device_t> devices_;
    std::vector<std::uint32_t> bag_offsets_; // members of each bag
    std::vector<std::uint32_t> members_;     // items by bag, in order
    std::vector<std::uint32_t> taken_;       // by member of the bag at hand: what its row had free, or none
    std::size_t items_count_ = 0;
    std::uint32_t bags_count_ = 0;
    std::uint64_t dropped_ = 0;
};

} // namespace uform

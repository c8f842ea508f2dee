/** A call's items on their way to the devices: measured, packed into segments, filled into staging, covered. */
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/composition.h"
#include "core/pack.h"
#include "core/threads.h"

namespace uform {

/** One device's staging in host memory, seen through its layout. */
struct staging_view {
    uint8_t* base;
    batch_counts* counts;
    uform_segment_t* segments;
    uint16_t* codes;
    uint32_t* covered;

    staging_view(uint8_t* base, staging_layout const& layout);
};

class batch {
public:
    batch(composition const& whole, thread_pool& pool, pack_capacities_t const& capacities);

    /**
     *  Checks, measures and packs items; refuses bad ones by their place in the call, before anything is written.
     *  @param chosen The places in the call that take part, after a `measure_all` of it; empty: all.
     *  @param words The bag word of each item taking part, or null.
     *  @param groups The temperature group of each content of the call, or null.
     *  @param choices What the call's texts are offered, checked, or null.
     */
    void plan(uform_items_t const& items, std::span<uint32_t const> chosen, uint32_t const* words,
              uint32_t const* groups, uform_choice_texts_t const* choices);

    /** Checks and measures all items of a call: the columns of each segment, valid until the next plan. */
    std::span<uint32_t const> measure_all(uform_items_t const& items, uform_choice_texts_t const* choices);

    /** Writes the kept items into every device's staging. */
    void fill(std::span<staging_view const> staging);

    /** Covers content columns of one kept item; items come modality by modality. */
    void cover(size_t item, uint32_t const* places, uint8_t const* actions, uint8_t const* random_bytes,
               uint32_t count);

    /** Lets modalities close their staging and writes the counts. */
    void finish();

    std::span<uform_item_t const> items() const { return {items_.data(), items_count_}; }
    std::span<uform_bag_t const> bags() const { return {bags_.data(), bags_count_}; }
    std::span<packed_device_t const> devices() const { return packer_.devices(); }
    /** Content columns before each covered modality: the first covered row of the modality at `place` on a device. */
    uint32_t covered_first(size_t device, size_t place) const {
        return covered_first_[device * modalities_capacity_k + place];
    }
    uint32_t covered_count(size_t device, size_t place) const {
        return covered_count_[device * modalities_capacity_k + place];
    }
    uint32_t covered_total(size_t device) const { return covered_total_[device]; }
    uint32_t content_columns(size_t device, size_t place) const {
        return content_columns_[device * modalities_capacity_k + place];
    }
    uint64_t truncated() const { return truncated_; }
    uint64_t dropped() const { return packer_.dropped(); }

private:
    void take(uform_items_t const& items, std::span<uint32_t const> chosen, uform_choice_texts_t const* choices);
    void take_items(uform_items_t const& items);
    void measure();
    uint32_t measure_extra(uform_item_t const& item) const;
    void fill_extra(uform_item_t const& item, uint16_t* codes, uint32_t room) const;
    uform_extra_t extra_of(uform_item_t const& item) const;
    void place(uint32_t const* groups);
    void count_before();
    void fill_item(size_t index);
    void check_cover(size_t index, uint32_t const* places, uint8_t const* actions, uint8_t const* random_bytes,
                     uint32_t count) const;
    size_t place_of(size_t index) const { return chosen_.empty() ? index : chosen_[index]; }

    composition const& whole_;
    thread_pool& pool_;
    packer packer_;
    bag_numbering numbering_;
    uform_items_t given_{};
    uform_choice_texts_t const* choices_ = nullptr;
    std::vector<uint64_t> offsets_;   /* of the tape, our own */
    std::vector<uint8_t> modalities_; /* one an item, our own */
    std::span<uint32_t const> chosen_;
    std::span<staging_view const> staging_;
    int8_t modality_place_[256];
    size_t items_count_ = 0, bags_count_ = 0;
    std::vector<uform_item_t> items_;
    std::vector<uform_bag_t> bags_;
    std::vector<uint32_t> columns_;         /* of each item's segment */
    std::vector<uint32_t> first_;           /* column of each kept item on its device */
    std::vector<uint32_t> before_;          /* content columns of its modality on its device before it */
    std::vector<uint32_t> content_columns_; /* by device and modality */
    std::vector<uint32_t> covered_first_, covered_count_, covered_total_;
    std::vector<uint8_t> is_covered_;   /* by item */
    std::vector<int> covered_modality_; /* the last that was covered, by device */
    uint64_t truncated_ = 0;
};

/** An item's content, out of the list or off the tape. */
uform_content_t content_of(uform_items_t const& items, size_t index);

} // namespace uform

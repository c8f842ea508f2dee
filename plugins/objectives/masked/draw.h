/** Which columns of one item are covered, and how: drawn on the host, once for every backend. */
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <uform/plugin.h>

namespace uform::masked {

/** What is drawn; two purposes never share random numbers. */
enum draw_purpose_t : uint32_t {
    draw_purpose_counts_k = 1,
    draw_purpose_spans_k = 2,
    draw_purpose_actions_k = 3,
    draw_purpose_places_k = 4,
};

/** Draws the covered columns of one item at a time into arrays that are taken once. */
class mask_drawer {
public:
    /** @param columns The most content columns of an item. */
    explicit mask_drawer(size_t columns);

    /** Spans of bytes, some replaced at random, some left. */
    void draw_bytes(double probability, uform_masking_t const& config, uform_plan_t const& plan,
                    uform_item_t const& item);
    /** Single places of a grid of two axes. */
    void draw_places(double ratio, uform_plan_t const& plan, uform_item_t const& item);
    /** The same places in every group of frames. */
    void draw_tubes(double ratio, uform_plan_t const& plan, uform_item_t const& item);
    /** Spans of chunks. */
    void draw_spans(double ratio, double mean_span, uform_plan_t const& plan, uform_item_t const& item);

    /** What was drawn last: ascending and distinct. */
    uint32_t count() const { return static_cast<uint32_t>(places_.size()); }
    uint32_t const* places() const { return places_.data(); }
    uint8_t const* actions() const { return actions_.data(); }
    uint8_t const* random_bytes() const { return random_bytes_.data(); }

private:
    class random_words;

    void mark_spans(uint32_t wanted, uint32_t columns, double mean_span, random_words& random);
    uint32_t mark_span(uint32_t start, uint32_t length, uint32_t wanted, uint32_t columns);
    uint32_t find_unmarked(uint32_t place, uint32_t columns) const;
    void sample(uint32_t wanted, uint32_t columns, random_words& random);
    void collect(uint32_t columns);

    std::vector<uint8_t> marked_; // by content column
    std::vector<uint32_t> order_; // of a sample's places
    std::vector<uint32_t> places_;
    std::vector<uint8_t> actions_;
    std::vector<uint8_t> random_bytes_;
};

} // namespace uform::masked

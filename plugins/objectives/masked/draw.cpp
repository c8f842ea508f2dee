#include "draw.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace uform::masked {

namespace {

double uniform(uint32_t word) { return word * 0x1p-32; }

/** Uniform below `bound`; the bias of the product is at most `bound` / 2^32. */
uint32_t below(uint32_t bound, uint32_t word) { return static_cast<uint32_t>(uint64_t(word) * bound >> 32); }

/** Geometric from 1 on with the given mean, by inversion; at most `most`. */
uint32_t geometric(double mean, uint32_t most, uint32_t word) {
    if (mean <= 1)
        return 1;
    double const tail = std::log1p(-uniform(word)) / std::log1p(-1 / mean);
    return tail >= most ? most : 1 + static_cast<uint32_t>(tail);
}

/** `round(ratio x count)`, but one stays uncovered. */
uint32_t covered_of(double ratio, uint32_t count) {
    if (count == 0)
        return 0;
    return std::min(static_cast<uint32_t>(std::llround(ratio * count)), count - 1);
}

} // namespace

/** The words of one item and purpose, one after another. */
class mask_drawer::random_words {
public:
    random_words(uform_plan_t const& plan, uform_item_t const& item, uint32_t purpose)
        : plan_(plan), world_item_(item.world_item), purpose_(purpose) {}

    uint32_t next() {
        if (used_ % 4 == 0)
            plan_.random(plan_.host, purpose_, world_item_, used_ / 4, words_);
        return words_[used_++ % 4];
    }

private:
    uform_plan_t const& plan_;
    uint64_t world_item_;
    uint32_t purpose_;
    uint32_t used_ = 0;
    uint32_t words_[4] = {};
};

mask_drawer::mask_drawer(size_t columns) : marked_(columns), order_(columns) {
    places_.reserve(columns);
    actions_.reserve(columns);
    random_bytes_.reserve(columns);
}

void mask_drawer::draw_bytes(double probability, uform_masking_t const& config, uform_plan_t const& plan,
                             uform_item_t const& item) {
    uint32_t const bytes = item.measure.columns;
    double const rounding = uniform(random_words(plan, item, draw_purpose_counts_k).next());
    auto const wanted = static_cast<uint32_t>(std::min<double>(std::floor(probability * bytes + rounding), bytes));
    std::fill_n(marked_.begin(), bytes, uint8_t(0));
    random_words spans(plan, item, draw_purpose_spans_k);
    mark_spans(wanted, bytes, config.token_mean_span, spans);
    collect(bytes);
    random_words actions(plan, item, draw_purpose_actions_k);
    for (uint32_t place = 0; place < count(); ++place) {
        // The high bits choose the action, the low ones are the byte: both from one word, as they do not overlap.
        uint32_t const word = actions.next();
        double const choice = (word >> 8) * 0x1p-24;
        actions_[place] = choice < config.replace_fraction                            ? uform_cover_action_mask_k
                          : choice < config.replace_fraction + config.random_fraction ? uform_cover_action_random_k
                                                                                      : uform_cover_action_stay_k;
        random_bytes_[place] = static_cast<uint8_t>(word);
    }
}

void mask_drawer::draw_places(double ratio, uform_plan_t const& plan, uform_item_t const& item) {
    uform_measure_t const& grid = item.measure;
    uint32_t const whole = uint32_t(grid.whole[0]) * grid.whole[1];
    std::fill_n(marked_.begin(), grid.columns, uint8_t(0));
    random_words random(plan, item, draw_purpose_places_k);
    uint32_t const wanted = covered_of(ratio, whole);
    sample(wanted, whole, random);
    for (uint32_t drawn = 0; drawn < wanted; ++drawn) {
        uint32_t const row = order_[drawn] / grid.whole[1];
        uint32_t const column = order_[drawn] % grid.whole[1];
        marked_[row * grid.extents[1] + column] = 1;
    }
    collect(grid.columns);
}

void mask_drawer::draw_tubes(double ratio, uform_plan_t const& plan, uform_item_t const& item) {
    uform_measure_t const& grid = item.measure;
    uint32_t const whole = uint32_t(grid.whole[1]) * grid.whole[2];
    std::fill_n(marked_.begin(), grid.columns, uint8_t(0));
    random_words random(plan, item, draw_purpose_places_k);
    uint32_t const wanted = covered_of(ratio, whole);
    sample(wanted, whole, random);
    for (uint32_t frame = 0; frame < grid.whole[0]; ++frame) {
        for (uint32_t drawn = 0; drawn < wanted; ++drawn) {
            uint32_t const row = order_[drawn] / grid.whole[2];
            uint32_t const column = order_[drawn] % grid.whole[2];
            marked_[(frame * grid.extents[1] + row) * grid.extents[2] + column] = 1;
        }
    }
    collect(grid.columns);
}

void mask_drawer::draw_spans(double ratio, double mean_span, uform_plan_t const& plan, uform_item_t const& item) {
    uint32_t const whole = item.measure.whole[0];
    std::fill_n(marked_.begin(), item.measure.columns, uint8_t(0));
    random_words random(plan, item, draw_purpose_spans_k);
    mark_spans(covered_of(ratio, whole), whole, mean_span, random);
    collect(item.measure.columns);
}

/**
 *  Marks `wanted` of `columns`. Spans that fall on covered columns make no progress, so after a number of draws that
 * leaves next to nothing uncovered each span is moved on to the next uncovered column: then every draw marks at least
 * one.
 */
void mask_drawer::mark_spans(uint32_t wanted, uint32_t columns, double mean_span, random_words& random) {
    uint64_t const free_draws = 4 * uint64_t(wanted) + 16;
    uint64_t draws = 0;
    while (wanted > 0) {
        uint32_t start = below(columns, random.next());
        uint32_t const length = geometric(mean_span, columns, random.next());
        if (draws++ >= free_draws)
            start = find_unmarked(start, columns);
        wanted -= mark_span(start, length, wanted, columns);
    }
}

/** Answers how many columns of the span were not marked before; the span ends early at `wanted` of them. */
uint32_t mask_drawer::mark_span(uint32_t start, uint32_t length, uint32_t wanted, uint32_t columns) {
    uint32_t fresh = 0;
    uint32_t const end = start + std::min(length, columns - start);
    for (uint32_t place = start; place < end && fresh < wanted; ++place) {
        fresh += !marked_[place];
        marked_[place] = 1;
    }
    return fresh;
}

/** The first unmarked column from `place` on, around the end; there is one. */
uint32_t mask_drawer::find_unmarked(uint32_t place, uint32_t columns) const {
    while (marked_[place])
        place = place + 1 == columns ? 0 : place + 1;
    return place;
}

/** The first `wanted` entries of a random order of `columns` places (Fisher and Yates, stopped early). */
void mask_drawer::sample(uint32_t wanted, uint32_t columns, random_words& random) {
    std::iota(order_.begin(), order_.begin() + columns, 0u);
    for (uint32_t place = 0; place < wanted; ++place)
        std::swap(order_[place], order_[place + below(columns - place, random.next())]);
}

/** Lists what is marked, ascending, as columns that become the mask. */
void mask_drawer::collect(uint32_t columns) {
    places_.clear();
    for (uint32_t place = 0; place < columns; ++place)
        if (marked_[place])
            places_.push_back(place);
    actions_.assign(places_.size(), uform_cover_action_mask_k);
    random_bytes_.assign(places_.size(), 0);
}

} // namespace uform::masked

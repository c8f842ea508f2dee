#include "core/choices.h"

#include <cmath>
#include <string>

#include "core/error.h"

namespace uform {

namespace {

/** Rows of float16 probabilities sum to 1 within half of this. */
constexpr double sum_tolerance_k = 1e-3;

bool is_text(uform_items_t const& items, size_t item) {
    return !items.modalities || items.modalities[item] == uform_modality_text_k;
}

/** Offsets that never fall and stay within `end`; those of parts of a whole begin at 0 and end there. */
void check_offsets(char const* field, uint64_t const* offsets, size_t count, uint64_t end, bool whole) {
    if (!offsets)
        fail(uform_status_invalid_argument_k, field, ": they are missing");
    uint64_t before = 0;
    for (size_t index = 0; index <= count; ++index) {
        if (offsets[index] < before)
            fail(uform_status_invalid_argument_k, field, "[", index, "]: ", offsets[index], " is below ", before,
                 ", the one before it");
        if (offsets[index] > end)
            fail(uform_status_invalid_argument_k, field, "[", index, "]: ", offsets[index], " is past ", end,
                 ", where they end");
        before = offsets[index];
    }
    if (whole && (offsets[0] != 0 || offsets[count] != end))
        fail(uform_status_invalid_argument_k, field, ": they go from ", offsets[0], " to ", offsets[count],
             ", and should from 0 to ", end);
}

void check_row(float const* row, uint64_t count, size_t item) {
    double sum = 0;
    for (uint64_t choice = 0; choice != count; ++choice) {
        if (!(row[choice] >= 0 && std::isfinite(row[choice])))
            fail(uform_status_invalid_argument_k, "choice_targets[", item, "][", choice, "]: a probability, not ",
                 row[choice]);
        sum += row[choice];
    }
    if (sum != 0 && std::fabs(sum - 1) > sum_tolerance_k)
        fail(uform_status_invalid_argument_k, "choice_targets[", item, "]: its values sum to ", sum,
             "; a row sums to 1, or is all zeros where its item makes no choice");
}

} // namespace

uint64_t count_choices(uform_choice_texts_t const& choices, uform_items_t const& items, size_t item) {
    if (choices.item_offsets)
        return choices.item_offsets[item + 1] - choices.item_offsets[item];
    return is_text(items, item) ? choices.count : 0;
}

void check_choices(uform_choice_texts_t const& choices, uform_items_t const& items, uint32_t most) {
    check_offsets("offsets of choices", choices.tape_offsets, choices.count, choices.tape_bytes, false);
    if (!choices.tape && choices.tape_bytes)
        fail(uform_status_invalid_argument_k, "choices: their tape of ", choices.tape_bytes, " bytes is missing");
    if (!choices.item_offsets && choices.count > most)
        fail(uform_status_invalid_argument_k, "choices: every text is offered ", choices.count,
             ", but BatchShape.max_choices_per_item is ", most);
    if (!choices.item_offsets)
        return;
    check_offsets("item offsets of choices", choices.item_offsets, items.count, choices.count, true);
    for (size_t item = 0; item != items.count; ++item) {
        uint64_t const count = count_choices(choices, items, item);
        if (count > most)
            fail(uform_status_invalid_argument_k, "choices[", item, "]: the item is offered ", count,
                 ", but BatchShape.max_choices_per_item is ", most);
        if (count && !is_text(items, item))
            fail(uform_status_invalid_argument_k, "choices[", item, "]: the item is offered ", count,
                 ", but it is no text, and only texts choose");
    }
}

void check_choice_targets(uform_choice_texts_t const& choices, uform_items_t const& items) {
    if (!choices.target_offsets || (!choices.targets && choices.targets_count))
        fail(uform_status_invalid_argument_k, "choices: they are given without choice_targets");
    check_offsets("choice_targets.offsets", choices.target_offsets, items.count, choices.targets_count, true);
    for (size_t item = 0; item != items.count; ++item) {
        uint64_t const first = choices.target_offsets[item], count = choices.target_offsets[item + 1] - first;
        uint64_t const offered = count_choices(choices, items, item);
        if (count && count != offered)
            fail(uform_status_invalid_argument_k, "choice_targets[", item, "]: it has ", count,
                 " values, but its item is offered ", offered, " choices");
        check_row(choices.targets + first, count, item);
    }
}

} // namespace uform

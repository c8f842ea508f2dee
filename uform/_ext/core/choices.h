/** A call's choices: which texts each item is offered, and whether they and their targets can be meant. */
#pragma once

#include <cstddef>
#include <cstdint>

#include <uform/uform.h>

namespace uform {

/**
 *  Refuses wrong offsets, choices of what is no text, and more than `most` of one item, by their field and item.
 *  Offsets stay within the tape from here on.
 */
void check_choices(uform_choice_texts_t const& choices, uform_items_t const& items, uint32_t most);

/** Refuses targets, of checked choices, whose rows do not fit them or are no probabilities; a row of zeros is none. */
void check_choice_targets(uform_choice_texts_t const& choices, uform_items_t const& items);

/** How many choices an item is offered. */
uint64_t count_choices(uform_choice_texts_t const& choices, uform_items_t const& items, size_t item);

} // namespace uform

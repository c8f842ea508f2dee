/** The choices that one item is offered, and the columns that they take behind its content. */
#pragma once

#include <cstdint>

#include <uform/plugin.h>

namespace uform::choices {

/** A separator, then a choice column and the bytes of each choice; nothing where there are no choices. */
struct offered {
    uform_choice_texts_t const* texts = nullptr;
    uint64_t first = 0; /* of the call's choices */
    uint64_t count = 0;

    offered(uform_choice_texts_t const* all, uint32_t content, uint32_t modality) {
        if (!all || modality != uform_modality_text_k)
            return;
        texts = all;
        first = all->item_offsets ? all->item_offsets[content] : 0;
        count = all->item_offsets ? all->item_offsets[content + 1] - first : all->count;
    }

    uint64_t bytes(uint64_t choice) const {
        return texts->tape_offsets[first + choice + 1] - texts->tape_offsets[first + choice];
    }
    uint8_t const* data(uint64_t choice) const { return texts->tape + texts->tape_offsets[first + choice]; }

    /** The columns before the `choice`-th one's own. */
    uint64_t columns_before(uint64_t choice) const {
        if (count == 0)
            return 0;
        return 1 + choice + texts->tape_offsets[first + choice] - texts->tape_offsets[first];
    }
    uint64_t columns() const { return columns_before(count); }
};

} // namespace uform::choices

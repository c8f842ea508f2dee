/** What of a step's arguments nothing in the run reads: it says something that would be lost. */
#pragma once

#include <uform/uform.h>

namespace uform {

/** What of a step's arguments something in the run reads. */
struct step_reads {
    bool relations = false, groups = false, sides = false;
};

/** Refuses what is not read and says something: edges, groups but the first, sides but NONE. `sets` are the step's
 *  relations, checked. */
void refuse_unread(uform_step_t const& step, uform_relations_t const& sets, step_reads const& reads);

} // namespace uform

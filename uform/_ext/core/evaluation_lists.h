/** Host memory that evaluations of pairwise losses go through, kept by their executor from one to the next: the first
 *  touch of so many fresh pages takes longer than what is computed in them. */
#pragma once

#include <cstdint>
#include <vector>

#include "core/planning.h"
#include "core/relations.h"

namespace uform {

/** Each grows only with an evaluation larger than all before. */
struct evaluation_lists {
    checked_relations relations;
    std::vector<uform_segment_t> segments;
    std::vector<uform_item_t> items;
    std::vector<uform_bag_t> bags;
    planning_lists planning;
    std::vector<uint8_t> staging;
};

} // namespace uform

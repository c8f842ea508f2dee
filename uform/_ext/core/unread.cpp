#include "core/unread.h"

#include <algorithm>
#include <cstdint>

#include "core/error.h"

namespace uform {

namespace {

constexpr char const* side_names_k[] = {"NONE", "QUERY", "DOCUMENT", "QUERY_AND_DOCUMENT"};

void refuse_edges(char const* set, uform_edges_t const& edges) {
    if (edges.ids_count)
        fail(uform_status_invalid_argument_k, "relations.", set, " has ", edges.ids_count,
             " ids: expected none, since the run's objective is MASKED, which relates nothing");
}

/** The first entry that is not zero, or `count`. */
template <typename entry_at> size_t find_given(entry_at const* entries, size_t count) {
    if (!entries)
        return count;
    return static_cast<size_t>(std::find_if(entries, entries + count, [](entry_at entry) { return entry != 0; }) -
                               entries);
}

} // namespace

void refuse_unread(uform_step_t const& step, uform_relations_t const& sets, step_reads const& reads) {
    size_t const count = step.items.count;
    if (!reads.relations) {
        refuse_edges("attract", sets.attract);
        refuse_edges("repel", sets.repel);
        refuse_edges("ignore", sets.ignore);
    }
    if (size_t const item = reads.groups ? count : find_given(step.temperature_groups, count); item != count)
        fail(uform_status_invalid_argument_k, "temperature_groups[", item, "] is ", step.temperature_groups[item],
             ": expected 0, since the run's objective is MASKED, which has no temperature groups");
    if (size_t const item = reads.sides ? count : find_given(step.sides, count); item != count)
        fail(uform_status_invalid_argument_k, "sides[", item, "] is ", side_names_k[step.sides[item] & 3],
             ": expected NONE, since the run has neither late interaction nor the ambient scope CROSS_SIDE");
}

} // namespace uform

/** Relations: edges between a call's items, checked, then turned into pairs between units (bags or items). */
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <uform/plugin.h>

#include "core/threads.h"

namespace uform {

/** The unit of an item that takes no part: it was dropped. */
inline constexpr std::uint32_t no_unit_k = UINT32_MAX;

/**
 *  A call's edge sets, copied as they are checked: whoever changes the buffers meanwhile changes nothing here. Storage
 * is kept and grows only with a call larger than all before.
 */
class checked_relations {
public:
    /**
     *  Refuses edge sets that do not fit a call of `items` items; the message names the set, the field, the index and
     *  the value.
     *  @param max_edges_per_device The bound on the edges of all sets, times `devices`; 0: none.
     */
    void take(uform_relations_t const& given, std::size_t items, std::uint64_t max_edges_per_device,
              std::uint32_t devices);

    /** What was taken last. */
    uform_relations_t const& sets() const { return sets_; }

private:
    struct edges_copy {
        std::vector<std::size_t> offsets;
        std::vector<std::uint32_t> ids;
        std::vector<float> weights;
    };

    uform_edges_t take_set(char const* set, uform_edges_t edges, std::size_t items, edges_copy& own);

    edges_copy attract_, repel_, ignore_;
    uform_relations_t sets_{};
};

/** The number of edges that the sets name. */
std::uint64_t count_edges(uform_relations_t const& relations) noexcept;

/**
 *  Builds the pairs between units. A pair named twice in one set has the larger weight; one named in two sets is of the
 *  first of ignored, attracted, repelled. Absent are edges of weight 0, edges inside one unit and edges that touch an
 *  item without a unit. Storage is kept between plans and grows only with one larger than all before.
 */
class relation_planner {
public:
    /**
     *  @param relations Of `checked_relations`.
     *  @param unit_of The unit of each item, below `units`, or `no_unit_k`.
     *  @return Valid until the next plan. Ignored pairs have weight 1.
     */
    uform_pair_rows_t plan(uform_relations_t const& relations, std::span<std::uint32_t const> unit_of,
                           std::uint32_t units, thread_pool& pool);

private:
    struct pair_t {
        std::uint64_t key; // candidate, then class: sorting brings a candidate's first class to the front
        float weight;
    };

    void count_rows(uform_edges_t const& edges, std::span<std::uint32_t const> unit_of);
    void scatter(uform_edges_t const& edges, uform_pair_class_t kind, std::span<std::uint32_t const> unit_of);
    void merge_rows(std::uint32_t begin, std::uint32_t end);
    std::uint32_t merge_row(std::uint32_t begin, std::uint32_t end, std::uint32_t to);
    void close_gaps(std::uint32_t units);
    std::uint32_t begin_of(std::uint32_t unit) const { return unit ? cursors_[unit - 1] : 0; }

    std::vector<std::uint32_t> cursors_; // where the next pair of a row goes: in the end where its pairs end, unmerged
    std::vector<pair_t> pairs_;
    std::vector<std::uint32_t> offsets_;
    std::vector<std::uint32_t> candidates_;
    std::vector<std::uint8_t> classes_;
    std::vector<float> weights_;
};

} // namespace uform

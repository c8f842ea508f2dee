#include "core/relations.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"

namespace uform {

namespace {

constexpr unsigned class_bits_k = 2;
constexpr std::uint32_t rows_chunk_k = 2048;

/** Calls `body(row, candidate, weight)` for every edge between two different units whose weight is not 0. */
template <typename body_at>
void for_each_edge(uform_edges_t const& edges, std::span<std::uint32_t const> unit_of, body_at&& body) {
    if (!edges.offsets)
        return;
    for (std::size_t item = 0; item != unit_of.size(); ++item) {
        std::uint32_t const row = unit_of[item];
        if (row == no_unit_k)
            continue;
        for (std::size_t edge = edges.offsets[item]; edge != edges.offsets[item + 1]; ++edge) {
            std::uint32_t const candidate = unit_of[edges.ids[edge]];
            float const weight = edges.weights ? edges.weights[edge] : 1.0f;
            if (candidate != no_unit_k && candidate != row && weight != 0.0f)
                body(row, candidate, weight);
        }
    }
}

template <typename... parts_at> [[noreturn]] void refuse(char const* set, parts_at const&... parts) {
    fail(uform_status_invalid_argument_k, "relations.", set, ".", parts...);
}

void check_offsets(char const* set, uform_edges_t const& edges, std::size_t items) {
    if (edges.offsets[0] != 0)
        refuse(set, "offsets[0] is ", edges.offsets[0], ", expected 0");
    for (std::size_t item = 0; item != items; ++item)
        if (edges.offsets[item + 1] < edges.offsets[item])
            refuse(set, "offsets[", item + 1, "] is ", edges.offsets[item + 1], ", less than the ", edges.offsets[item],
                   " before it");
    if (edges.offsets[items] != edges.ids_count)
        refuse(set, "offsets[", items, "] is ", edges.offsets[items], ", expected ", edges.ids_count,
               ", the number of ids");
}

void check_ids(char const* set, uform_edges_t const& edges, std::size_t items) {
    for (std::size_t edge = 0; edge != edges.ids_count; ++edge)
        if (edges.ids[edge] >= items)
            refuse(set, "ids[", edge, "] is ", edges.ids[edge], ", but the call has ", items, " items");
}

void check_weights(char const* set, uform_edges_t const& edges) {
    for (std::size_t edge = 0; edge != edges.weights_count; ++edge)
        if (!(edges.weights[edge] >= 0.0f) || !std::isfinite(edges.weights[edge]))
            refuse(set, "weights[", edge, "] is ", edges.weights[edge], ", expected a finite number of at least 0");
}

/** Counts and pointers, which are the call's own. */
void check_counts(char const* set, uform_edges_t const& edges, std::size_t items) {
    if (!edges.offsets && (edges.offsets_count || edges.ids_count || edges.weights_count))
        refuse(set, "offsets is missing, but ", edges.ids_count, " ids and ", edges.weights_count,
               " weights are given");
    if (!edges.offsets)
        return;
    if (!edges.ids && edges.ids_count)
        refuse(set, "ids is missing, expected ", edges.ids_count, " entries");
    if (!edges.weights && edges.weights_count)
        refuse(set, "weights is missing, expected ", edges.weights_count, " entries");
    if (edges.offsets_count != items + 1)
        refuse(set, "offsets has ", edges.offsets_count, " entries, expected ", items + 1, ": one more than the items");
}

/** Grows a vector, never shrinks it; at least one element, so that its address can be handed over. */
template <typename element_at> void reserve_elements(std::vector<element_at>& elements, std::size_t count) {
    if (elements.size() < std::max<std::size_t>(count, 1))
        elements.resize(std::max<std::size_t>(count, 1));
}

/** Copies elements, so that nobody else can change them. */
template <typename element_at> void own(element_at const*& elements, std::size_t count, std::vector<element_at>& copy) {
    reserve_elements(copy, count);
    std::copy_n(elements, count, copy.begin());
    elements = copy.data();
}

} // namespace

std::uint64_t count_edges(uform_relations_t const& relations) noexcept {
    return std::uint64_t(relations.attract.ids_count) + relations.repel.ids_count + relations.ignore.ids_count;
}

/** Each part is copied, then checked, before the next is read at the places that it names. */
uform_edges_t checked_relations::take_set(char const* set, uform_edges_t edges, std::size_t items, edges_copy& copy) {
    check_counts(set, edges, items);
    if (!edges.offsets)
        return edges;
    own(edges.offsets, edges.offsets_count, copy.offsets);
    check_offsets(set, edges, items);
    own(edges.ids, edges.ids_count, copy.ids);
    check_ids(set, edges, items);
    if (!edges.weights)
        return edges;
    if (edges.weights_count != edges.ids_count)
        refuse(set, "weights has ", edges.weights_count, " entries, expected ", edges.ids_count, ", the number of ids");
    own(edges.weights, edges.weights_count, copy.weights);
    check_weights(set, edges);
    return edges;
}

void checked_relations::take(uform_relations_t const& given, std::size_t items, std::uint64_t max_edges_per_device,
                             std::uint32_t devices) {
    sets_.attract = take_set("attract", given.attract, items, attract_);
    sets_.repel = take_set("repel", given.repel, items, repel_);
    if (given.ignore.weights || given.ignore.weights_count)
        refuse("ignore", "weights has ", given.ignore.weights_count, " entries, but ignored edges have no weights");
    sets_.ignore = take_set("ignore", given.ignore, items, ignore_);
    std::uint64_t const edges = count_edges(given);
    if (max_edges_per_device && edges > max_edges_per_device * devices)
        fail(uform_status_invalid_argument_k, "relations has ", edges, " edges, more than the ",
             max_edges_per_device * devices, " that contrastive.max_edges_per_device=", max_edges_per_device,
             " allows on ", devices, devices == 1 ? " device" : " devices");
    if (edges >= UINT32_MAX)
        fail(uform_status_invalid_argument_k, "relations has ", edges, " edges, but a call takes at most ",
             UINT32_MAX - 1);
}

uform_pair_rows_t relation_planner::plan(uform_relations_t const& relations, std::span<std::uint32_t const> unit_of,
                                         std::uint32_t units, thread_pool& pool) {
    reserve_elements(offsets_, std::size_t(units) + 1);
    std::fill_n(offsets_.begin(), std::size_t(units) + 1, 0);
    count_rows(relations.ignore, unit_of);
    count_rows(relations.attract, unit_of);
    count_rows(relations.repel, unit_of);
    for (std::size_t unit = 0; unit != units; ++unit)
        offsets_[unit + 1] += offsets_[unit];

    reserve_elements(cursors_, units);
    std::copy_n(offsets_.begin(), units, cursors_.begin());
    std::size_t const edges = offsets_[units];
    reserve_elements(pairs_, edges);
    scatter(relations.ignore, uform_pair_class_ignored_k, unit_of);
    scatter(relations.attract, uform_pair_class_attracted_k, unit_of);
    scatter(relations.repel, uform_pair_class_repelled_k, unit_of);

    reserve_elements(candidates_, edges);
    reserve_elements(classes_, edges);
    reserve_elements(weights_, edges);
    pool.parallel_chunks(units, rows_chunk_k, [this](std::size_t begin, std::size_t end) {
        merge_rows(static_cast<std::uint32_t>(begin), static_cast<std::uint32_t>(end));
    });
    close_gaps(units);
    return {units, offsets_.data(), candidates_.data(), classes_.data(), weights_.data()};
}

void relation_planner::count_rows(uform_edges_t const& edges, std::span<std::uint32_t const> unit_of) {
    for_each_edge(edges, unit_of, [&](std::uint32_t row, std::uint32_t, float) { ++offsets_[row + 1]; });
}

void relation_planner::scatter(uform_edges_t const& edges, uform_pair_class_t kind,
                               std::span<std::uint32_t const> unit_of) {
    for_each_edge(edges, unit_of, [&](std::uint32_t row, std::uint32_t candidate, float weight) {
        pairs_[cursors_[row]++] = {std::uint64_t(candidate) << class_bits_k | kind, weight};
    });
}

/** To where the first one's pairs begin. */
void relation_planner::merge_rows(std::uint32_t begin, std::uint32_t end) {
    std::uint32_t merged = begin_of(begin);
    for (std::uint32_t unit = begin; unit != end; ++unit)
        offsets_[unit + 1] = merged = merge_row(begin_of(unit), cursors_[unit], merged);
}

/** Moves each chunk of rows to the end of the one before it. */
void relation_planner::close_gaps(std::uint32_t units) {
    std::uint32_t merged = 0;
    for (std::uint32_t begin = 0, end = 0; begin < units; begin = end) {
        end = std::min<std::uint32_t>(begin + rows_chunk_k, units);
        std::uint32_t const from = begin_of(begin), gap = from - merged, count = offsets_[end] - from;
        if (gap != 0) {
            std::copy_n(candidates_.begin() + from, count, candidates_.begin() + merged);
            std::copy_n(classes_.begin() + from, count, classes_.begin() + merged);
            std::copy_n(weights_.begin() + from, count, weights_.begin() + merged);
            for (std::uint32_t unit = begin; unit != end; ++unit)
                offsets_[unit + 1] -= gap;
        }
        merged += count;
    }
}

std::uint32_t relation_planner::merge_row(std::uint32_t begin, std::uint32_t end, std::uint32_t to) {
    auto const earlier = [](pair_t const& left, pair_t const& right) { return left.key < right.key; };
    auto const first = pairs_.begin() + begin, last = pairs_.begin() + end;
    if (!std::is_sorted(first, last, earlier))
        std::sort(first, last, earlier);
    for (auto pair = first; pair != last;) {
        std::uint64_t const key = pair->key, candidate = key >> class_bits_k;
        float weight = pair->weight;
        for (++pair; pair != last && pair->key >> class_bits_k == candidate; ++pair)
            if (pair->key == key)
                weight = std::max(weight, pair->weight);
        candidates_[to] = static_cast<std::uint32_t>(candidate);
        classes_[to] = static_cast<std::uint8_t>(key & ((1u << class_bits_k) - 1));
        weights_[to++] = weight;
    }
    return to;
}

} // namespace uform

/** One late interaction at work in one run: its derived configuration and where its arrays lie. */
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <uform/plugin.h>

namespace uform::late_interaction {

/** The number that the world sums: rows that count. */
constexpr uint32_t rows_counter_k = 0;

/** The most of everything on one device: queries are its own, documents the world's. */
struct capacities {
    uint32_t queries;
    uint32_t query_vectors;
    uint32_t documents;
    uint32_t document_vectors;
    uint32_t edges; /* every edge of a call may start from one device's queries */
};

/** Offsets into each device's staging: filled by `plan`, read by the operations. */
struct staging_layout {
    size_t maxsim_counts; /* [3]: queries, their vectors, documents */
    size_t pair_counts;   /* [3]: queries, documents, edges */
    size_t scale;
    size_t cut;       /* queries that were cut, as a term's number */
    size_t queries;   /* runs */
    size_t documents; /* runs */
    size_t own;
    size_t looks;
    size_t faces;
    size_t edge_offsets;
    size_t edge_documents;
    size_t edge_classes;
    size_t edge_weights;
};

/** Offsets into each device's workspace. */
struct workspace_layout {
    size_t lengths; /* [columns] */
    size_t vectors;
    size_t vectors_bytes;
    size_t similarities; /* [queries, documents] */
    size_t coefficients; /* likewise */
    size_t places;       /* [documents, query vectors] */
    size_t maxsim;
    size_t maxsim_bytes;
    size_t pairs;
    size_t pairs_bytes;
};

/** A document as its device tells the world of it. */
struct document_notice {
    uint32_t first; /* column of its device */
    uint32_t columns;
    uint32_t modality;
    uint32_t is_target; /* some attracted or repelled pair of the world points at it */
};

/** What a device tells the world: a count, then as many documents. */
struct notice {
    uint32_t count;
    document_notice documents[1];

    static size_t bytes(uint32_t documents) { return sizeof(uint32_t) + sizeof(document_notice) * documents; }
};

/** A named pair of one row. */
struct edge {
    uint32_t document;
    uint8_t kind; /* uform_pair_class_t */
    float weight;
};

/** Host memory of `plan`, taken once but for what grows with the largest call. */
struct plan_scratch {
    std::vector<uint32_t> item_of;     /* by content of the call: its place among the items */
    std::vector<uint32_t> document_of; /* by content: its place among its device's documents */
    std::vector<uint32_t> rows;        /* contents of the queries that count, device by device in order of segments */
    std::vector<uint32_t> rows_begin;  /* [devices + 1] into `rows` */
    std::vector<uint32_t> row_slots;   /* as `rows`: the host borrows them until the step ends */
    std::vector<uint32_t> item_at;     /* by segment of one device */
    std::vector<uint32_t> world_begin; /* [world devices + 1] documents of the ranks before */
    std::vector<uint32_t> place_of;    /* by document of the world: its place among those that are seen */
    std::vector<edge> row_edges;
    std::vector<std::vector<uint32_t>> answer_offsets; /* by device, in inference */
};

struct state {
    uform_late_interaction_t config;
    capacities most;
    staging_layout staging;
    workspace_layout workspace;
    plan_scratch scratch;
    uint32_t log_inverse_temperature; /* handles */
    uint32_t bias;
    uint32_t projection;
    uint32_t loss;
    uint32_t cut;
};

/** The callback `plan` of the plugin. */
uform_status_t plan(void* self, uform_plan_t const* plan, uint32_t stage);

} // namespace uform::late_interaction

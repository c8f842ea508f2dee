/** One contrastive objective at work in one run: its derived configuration and where its arrays lie. */
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <uform/plugin.h>

namespace uform::contrastive {

/** The number that the world sums: rows that count. */
constexpr uint32_t rows_counter_k = 0;

/** The most units, rows and edges of one device. */
struct capacities {
    uint32_t units; /* every bag of the world */
    uint32_t rows;  /* every bag of the device */
    uint32_t edges; /* every edge of a call may start from one device's bags */
};

/** Offsets into each device's staging: filled by `plan`, read by the operations. */
struct staging_layout {
    size_t counts; /* [3]: units, rows, edges */
    size_t scale;
    size_t slots;      /* [units] row of the world's bags, ascending */
    size_t modalities; /* [units] */
    size_t sides;      /* [units] */
    size_t targets;    /* [units] */
    size_t rows;       /* [rows] unit of each, ascending */
    size_t row_groups; /* [rows] */
    size_t edge_offsets;
    size_t edge_units;
    size_t edge_classes;
    size_t edge_weights;
};

/** Offsets into each device's workspace. */
struct workspace_layout {
    size_t vectors;  /* [units, the widest of the shorter prefixes], tighter for others */
    size_t gradient; /* as `vectors` */
    size_t lengths;  /* [units], as `vectors` only where some prefix is shorter than a bag's vector */
    size_t row_logs; /* [rows] */
    size_t row_forces;
    size_t pairs;
    size_t pairs_bytes;
};

/** A named pair of one row. */
struct edge {
    uint32_t unit;
    uint8_t kind; /* uform_pair_class_t */
    float weight;
};

/** Host memory of `plan`, taken once. */
struct plan_scratch {
    std::vector<uint8_t> counts;     /* by slot: whether it counts as a row */
    std::vector<uint8_t> visible;    /* by slot */
    std::vector<uint32_t> unit_of;   /* by slot, where visible */
    std::vector<uint32_t> bag_at;    /* by place on a device: this call's bag */
    std::vector<uint32_t> row_bags;  /* by row: this call's bag */
    std::vector<uint32_t> row_slots; /* by device, then by row: the host borrows them until the step ends */
    std::vector<uint32_t> row_sets;  /* distinct modality sets of the rows */
    std::vector<edge> row_edges;
};

struct state {
    uform_contrastive_t config;
    capacities most;
    staging_layout staging;
    workspace_layout workspace;
    plan_scratch scratch;
    uint32_t log_inverse_temperature; /* handles */
    uint32_t bias;
    uint32_t term;
};

/** The callback `plan` of the plugin. */
uform_status_t plan(void* self, uform_plan_t const* plan, uint32_t stage);

} // namespace uform::contrastive

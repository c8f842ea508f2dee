/** One choices objective at work in one run: its derived configuration and where its arrays lie. */
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <uform/plugin.h>

namespace uform::choices {

/** The number that the world sums: items that make a choice. */
constexpr uint32_t items_counter_k = 0;

/** Offsets into each device's staging: filled by `plan`, read by the operations. */
struct staging_layout {
    size_t counts; /* [2]: items, rows */
    size_t scale;
    size_t weight;
    size_t offsets; /* [items + 1] */
    size_t columns; /* [rows] the choice column of each */
    size_t targets; /* [rows] smoothed */
};

/** Offsets into each device's workspace. */
struct workspace_layout {
    size_t rows;     /* [rows] hidden states */
    size_t gradient; /* [rows, hidden] */
    size_t probabilities;
    size_t head;
    size_t head_bytes;
};

struct state {
    uform_choices_t config;
    uint32_t items; /* the most of one device */
    uint32_t rows;  /* likewise, choices of all its items */
    staging_layout staging;
    workspace_layout workspace;
    std::vector<std::vector<uint32_t>> segment_rows; /* by device, in inference: [segments + 1] the rows of each */
    uint32_t vector;                                 /* handles */
    uint32_t log_inverse_temperature;
    uint32_t term;
};

/** The callback `plan` of the plugin. */
uform_status_t plan(void* self, uform_plan_t const* plan, uint32_t stage);

} // namespace uform::choices

/** Objectives as functions: one plugin run over given vectors, without an encoder. */
#pragma once

#include "core/executor.h"
#include "core/plugins.h"

namespace uform {

/** A pairwise loss over given vectors: each is the one item of its own bag, or, with offsets, a column of an item. */
struct pair_loss_problem {
    char const* field; /* what refusals call the vectors */
    void const* data;  /* [rows, width] */
    size_t items, rows, width;
    uint64_t const* offsets; /* items + 1: the rows of each; null: one an item */
    int32_t scalar;
    int32_t strided;
    int64_t row_stride, column_stride;
    uint8_t const* modalities;          /* by item, or null */
    uint8_t const* sides;               /* likewise */
    uint32_t const* temperature_groups; /* likewise */
    uform_relations_t const* relations;
    int32_t max_edges;
    /* answers */
    double* loss;
    void* gradient;
    float* log_inverse_temperature_gradient;
    float* bias_gradient;
    float* row_losses;
    uint32_t* counted_rows;
    size_t* rows_count;
};

/** Value and gradients of an objective that reads the world's bags or, with offsets, its vectors. */
void evaluate_pairs(executor& on, selection const& objective, pair_loss_problem const& problem);

} // namespace uform

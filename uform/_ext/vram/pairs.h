/**
 *  Pairwise losses on a GPU. Units are put in an order of places, so that those that see each other as ambient lie
 *  together; scores are computed tile by tile of 128 by 128 places, and a tile that holds no pair is passed over. A
 * tile of rows I and candidates J with I <= J serves both directions: what the bags of I see in those of J, and the
 * other way round. Named pairs (edges) are scored one by one in float32; a tile leaves them out before the exponential.
 *
 *  Forward sums exponentials tile by tile and merges them in the order of tiles. Backward goes through square panels of
 *  places: a panel's coefficients, d loss / d (dot product), are kept as bfloat16, and two products with the vectors
 * add the gradients of its rows and of its candidates. On Hopper groups of warps do both, see pairs_sm90.h; what they
 * leave in memory is the same.
 */
#pragma once

#include <cstddef>
#include <cstdint>

#include <cuda_bf16.h>
#include <vector_types.h>

#include <uform/plugin.h>

#include "vram/stream.h"

namespace uform::vram::pairs {

/** Places of a tile. */
inline constexpr std::uint32_t tile_k = 128;
/** Tiles of a block's side: which pairs it can hold is known of a block, too. */
inline constexpr std::uint32_t block_tiles_k = 32;
/** Tiles of a panel's side in backward at most, a multiple of a block's: it is 8192 x 8192 of bfloat16, 128 MiB. One of
 *  a quarter of that does not stay in the L2 cache either, and its launches are short. */
inline constexpr std::uint32_t panel_tiles_k = 64;
/** Fewer tiles than this would leave multiprocessors idle in so large a panel: then its side is a block's. */
inline constexpr std::uint32_t large_tiles_k = 2 * panel_tiles_k;
/** Tiles of a span's side in forward, a multiple of a block's: its sums are merged by one launch. */
inline constexpr std::uint32_t span_tiles_k = 128;

inline constexpr std::uint32_t no_row_k = UINT32_MAX;

/** Units are ordered by so many keys, counted chunk by chunk. */
inline constexpr std::uint32_t keys_k = 32;
inline constexpr std::uint32_t key_chunk_k = 256;

/** Bits of `look` and `face` that no scope uses: everyone's face has the first, and a place without a unit the second.
 */
inline constexpr std::uint32_t everyone_k = 1u << 30;
inline constexpr std::uint32_t absent_k = 1u << 31;

/**
 *  What ambient pairs a set of places can hold. A row sees a place as ambient where its look and the place's face have
 *  no bit in common.
 */
struct visibility {
    std::uint32_t all_look, any_look, all_face, any_face; // and, or over the places
};

/** How a place's dot products become what the loss is made of, x = slope * dot + offset, to base 2. */
struct alignas(16) row_terms {
    float slope; // tau log2(e)
    float
        offset; // forward: beta log2(e). Backward, softmax: log2 of tau * scale * what the exponential is multiplied by
    float gain; // backward, sigmoid: ambient weight * tau * scale
    float center; // backward: the dot product about which sums are taken
};

/** The least and the largest offset of a tile's places. */
struct offset_range {
    float least, largest;
};

/** A row's sum of kappa 2^x kept by its largest x (softmax), or {0, a plain sum} (sigmoid). */
struct partial_sum {
    float maximum, sum;
};

/** A row's sums of the coefficients of its ambient pairs, and of their products with what the dot products are away
 * from its center. Where one group has all rows, its sum alone counts: tiles may leave what is their columns' with
 * their rows. */
struct coefficient_sums {
    float plain, by_dot;
};

/** Scaled double sums of one row, for its group's parameters. */
struct row_gradients {
    double log_inverse_temperature, bias;
};

/** Everything that the kernels share. Pointers are device-side. */
struct problem {
    // what is given, see uform_pairs_t
    std::uint32_t const* counts; // [3]: units, rows, edges
    std::uint32_t width;
    std::uint32_t groups;
    float const* unit_vectors;    // [units, width], or more rows
    std::uint32_t const* indices; // of the units' rows there, or null
    std::uint32_t const *rows, *row_groups, *modalities, *edge_offsets, *edge_units;
    std::uint8_t const *sides, *targets, *edge_classes;
    float const *edge_weights, *log_inverse_temperature, *bias, *scale;
    std::int32_t form, scope;
    std::uint32_t ambient; // 1: unnamed pairs in scope count
    float ambient_weight;
    double* loss;
    float* row_losses;
    float row_losses_scale;
    float *row_logs, *row_forces, *gradient, *log_inverse_temperature_gradient, *bias_gradient;

    // extents
    std::uint32_t tiles;        // of places that a step may hold: grids reach them
    std::uint32_t padded_width; // of `vectors`, a multiple of 64
    std::uint32_t tile_words;   // of a tile's line of `named_tiles`
    std::uint32_t key_chunks;   // of units
    std::uint32_t panel_stride; // of `panel`
    std::uint32_t panel_side;   // tiles

    // by unit
    std::uint32_t* place_of;
    std::uint32_t* unit_rows; // its row or no_row_k
    std::uint8_t* keys;
    std::uint32_t* key_counts; // [keys, chunks]
    // by place
    std::uint32_t* vector_at; // the row of its unit's vector, and of its gradient
    std::uint32_t* row_at;    // or no_row_k
    std::uint32_t *look, *face;
    row_terms* terms;
    float* lengths;         // of `vectors`
    __nv_bfloat16* vectors; // [places, padded width], zero where there is no unit
    union {
        partial_sum* sums;              // forward
        coefficient_sums* coefficients; // backward
    };
    // by tile, by block
    visibility *tile_views, *block_views;
    float* tile_lengths;        // of the longest vector
    offset_range* tile_offsets; // backward
    std::uint32_t* named_tiles; // [tiles, words] a bit where the tile (row: the lesser) holds a named pair
    // by row
    std::uint32_t* row_places;
    double* row_values;       // forward: its loss
    row_gradients* gradients; // backward
    // by edge, each row's in the order of places
    std::uint32_t* named_places;
    std::uint32_t* named_edges;
    std::uint32_t* named_rows;
    float* named_dots;
    float* named_coefficients;
    // of one span or panel at a time
    union {
        partial_sum* span_sums;               // [2 directions, span tiles, span places]
        coefficient_sums* panel_coefficients; // [2 directions, panel tiles, panel places]
    };
    __nv_bfloat16* panel; // [panel places, panel_stride]
};

/** The problem of an operation, laid out in its workspace; refuses one that is too small. */
problem describe(uform_pairs_t const& pairs);

/** Upper bounds of counts, that grids must reach. */
struct extents {
    std::uint32_t units, rows, edges;
};

// pairs_prepare.cu
/**
 *  Orders the units, rounds their vectors, sorts each row's edges by place and scores them.
 *  @param initial What `sums` starts as at every place.
 */
void prepare(stream const&, problem const&, extents const&, partial_sum initial);

// pairs_forward.cu
/** Sums every row's ambient exponentials, or softplus, into `sums`. */
void sum_ambient(stream const&, problem const&, extents const&);

// pairs_backward.cu
/** Adds every pair's pull to `gradient`, and its rows' sums to `coefficients`. */
void pull(stream const&, problem const&, extents const&);

// pairs_rows.cu
/** Temperatures and biases by place, for forward. */
void set_temperatures(stream const&, problem const&, extents const&);
/** Losses from ambient sums and named pairs. */
void finish_losses(stream const&, problem const&, extents const&);
/** Named pairs' coefficients, and the terms of the ambient ones, for backward. */
void find_forces(stream const&, problem const&, extents const&);
/** Gradients of temperatures and biases. */
void finish_groups(stream const&, problem const&, extents const&);

} // namespace uform::vram::pairs

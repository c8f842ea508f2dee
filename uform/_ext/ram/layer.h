/** What lies in the memory of one block of the encoder: what forward leaves for backward, and the workspace. */
#pragma once

#include "ram/norm.h"
#include "ram/rotary.h"

namespace uform::ram {

/** Six tensors and twice the ratio of inner to hidden, the input that the core keeps among them. */
struct layer_saved {
    float* qkv;      // [columns, 3 * hidden] queries and keys turned
    float* attended; // [columns, hidden] what attention answers
    float* middle;   // [columns, hidden] the states between attention and GeGLU
    float* gate_up;  // [columns, 2 * inner]
    float* log_sums; // [columns, heads] of a row's exponentials of scores
    float* inverse1; // [columns] of the norm before attention
    float* inverse2; // [columns] of the norm before GeGLU

    /** The parts of a layer's memory; refuses one too small for its columns. */
    static layer_saved of(uform_layer_t const& layer);
    static std::size_t bytes(uform_extents_t const& extents, std::size_t columns) noexcept;
};

struct layer_workspace {
    float* normed;    // [columns, hidden] a norm's output
    float* delta;     // [columns, hidden] the gradient of a norm's output, or of attention's
    float* activated; // [columns, inner] gelu(gate) * up
    float* wide;      // the gradient of gate_up [columns, 2 * inner], or that of qkv [columns, 3 * hidden]
    gain_sums gains;

    /** The parts of a layer's memory; refuses one too small for its columns. */
    static layer_workspace of(uform_layer_t const& layer);
    static std::size_t bytes(uform_extents_t const& extents, std::size_t columns) noexcept;
};

} // namespace uform::ram

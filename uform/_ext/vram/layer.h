/** What lies in the memory of one block of the encoder: what forward leaves for backward, and the workspace. */
#pragma once

#include <cstddef>
#include <cstdint>

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <uform/plugin.h>

namespace uform::vram {

/** Columns of one attention head. */
inline constexpr std::size_t head_width_k = 64;

/**
 *  Rows are columns of the batch, `capacity` of them; strides do not depend on how many are in use. Six tensors and
 *  three times the ratio of inner to hidden, the input that the core keeps among them: outputs of norms are made again
 *  in backward. Rows [count, active) of `attended` and `activated` are zero, for they feed the weights' gradients;
 *  those of the other parts hold anything.
 */
struct layer_saved {
    __nv_bfloat16* qkv;       // [columns, 3 * hidden] queries and keys turned, then values
    __nv_bfloat16* attended;  // [columns, hidden] what attention answers
    __nv_bfloat16* middle;    // [columns, hidden] the states between attention and GeGLU
    __nv_bfloat16* gate_up;   // [columns, 2 * inner]
    __nv_bfloat16* activated; // [columns, inner] gelu(gate) * up; backward may leave anything
    float* log_sums;          // [heads, columns] of a row's exponentials of scores, natural logarithm
    float* inverse1;          // [columns] of the norm before attention
    float* inverse2;          // [columns] of the norm before GeGLU

    /** The parts of a layer's memory; refuses one too small for its columns. */
    static layer_saved of(uform_layer_t const& layer);
    static std::size_t bytes(uform_extents_t const& extents, std::size_t columns) noexcept;
};

/**
 *  Rows [count, active) of every part that a product over all active rows reads are zero: whoever writes the part
 *  writes them. Attention's backward leaves the gradient of qkv as it was before queries and keys turned.
 */
struct layer_workspace {
    __nv_bfloat16* normed; // [columns, hidden] a norm's output
    __nv_bfloat16* delta;  // [columns, hidden] the gradient of a norm's output, or of attention's; or squares
    __nv_bfloat16* wide;   // the gradient of gate_up [columns, 2 * inner], or that of qkv [columns, 3 * hidden]
    std::byte* scratch;    // of one operation's launches: products, norms and attention share it
    std::size_t scratch_bytes;

    /** In `wide`, while there are no gradients: cosines and sines of each column's pairs [columns, 32]. */
    float2* turns() const noexcept { return reinterpret_cast<float2*>(wide); }

    /** The parts of a layer's memory; refuses one too small for its columns. */
    static layer_workspace of(uform_layer_t const& layer);
    static std::size_t bytes(uform_extents_t const& extents, std::size_t columns, std::size_t segments) noexcept;
};

/**
 *  Bytes of `scratch` that attention's operations need, forward or backward; defined beside them. Besides, `normed` is
 *  free for attention's backward, and all parts but `scratch` for its forward.
 */
std::size_t attention_scratch_bytes(uform_extents_t const& extents, std::size_t columns, std::size_t segments) noexcept;

} // namespace uform::vram

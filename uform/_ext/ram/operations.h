/** Every operation of the RAM backend, by family; `operations.cpp` puts them into the table. They throw `uform::error`.
 */
#pragma once

#include "ram/backend.h"

namespace uform::ram {

// columns.cpp
void columns_expand(stream const&, uform_columns_t const&);

// embedding.cpp
std::size_t embedding_workspace_bytes(std::uint32_t hidden, std::uint32_t table_rows, std::uint32_t columns);
void embedding_forward(stream const&, uform_embedding_t const&);
void embedding_backward(stream const&, uform_embedding_t const&);

// patches.cpp
std::size_t patches_workspace_bytes(std::uint32_t hidden, std::uint32_t width, std::uint32_t patches);
void patches_forward(stream const&, uform_patches_t const&);
void patches_backward(stream const&, uform_patches_t const&);

// encoder.cpp
std::size_t layer_saved_bytes(uform_extents_t const*, std::uint32_t columns);
std::size_t layer_workspace_bytes(uform_extents_t const*, std::uint32_t columns, std::uint32_t segments);
void norm_qkv_forward(stream const&, uform_layer_t const&);
void out_residual_forward(stream const&, uform_layer_t const&);
void norm_geglu_forward(stream const&, uform_layer_t const&);
void down_residual_forward(stream const&, uform_layer_t const&);
void down_residual_backward(stream const&, uform_layer_t const&);
void norm_geglu_backward(stream const&, uform_layer_t const&);
void out_residual_backward(stream const&, uform_layer_t const&);
void norm_qkv_backward(stream const&, uform_layer_t const&);

// attention.cpp
void attention_forward(stream const&, uform_layer_t const&);
void attention_backward(stream const&, uform_layer_t const&);

// norm.cpp
std::size_t norm_workspace_bytes(std::uint32_t hidden, std::uint32_t columns);
void norm_forward(stream const&, uform_norm_t const&);
void norm_backward(stream const&, uform_norm_t const&);

// pool.cpp
std::size_t pool_workspace_bytes(std::uint32_t hidden, std::uint32_t bags);
void pool_forward(stream const&, uform_pool_t const&);
void pool_backward(stream const&, uform_pool_t const&);

// rows.cpp
void rows_gather(stream const&, uform_rows_t const&);
void rows_scatter(stream const&, uform_rows_t const&);

// scalar.cpp
void rows_narrow(stream const&, uform_narrow_t const&);
void rows_widen(stream const&, uform_widen_t const&);

// heads.cpp
std::size_t bytes_head_workspace_bytes(std::uint32_t hidden, std::uint32_t rows);
std::size_t patches_head_workspace_bytes(std::uint32_t hidden, std::uint32_t width, std::uint32_t rows);
std::size_t cross_entropy_workspace_bytes(std::uint32_t classes, std::uint64_t count);
void bytes_head(stream const&, uform_bytes_head_t const&);
void patches_head(stream const&, uform_patches_head_t const&);
void cross_entropy(stream const&, uform_cross_entropy_t const&);

// choices.cpp
std::size_t choices_head_workspace_bytes(std::uint32_t hidden, std::uint32_t items, std::uint32_t rows);
void choices_head(stream const&, uform_choices_head_t const&);

// pairs.cpp
std::size_t pairs_workspace_bytes(std::uint32_t units, std::uint32_t rows, std::uint32_t edges, std::uint32_t width,
                                  std::uint32_t groups);
void prefix_forward(stream const&, uform_prefix_t const&);
void prefix_backward(stream const&, uform_prefix_t const&);
void pairs_forward(stream const&, uform_pairs_t const&);
void pairs_backward(stream const&, uform_pairs_t const&);

// vectors.cpp
std::size_t vectors_workspace_bytes(std::uint32_t hidden, std::uint32_t width, std::uint32_t columns);
void vectors_forward(stream const&, uform_vectors_t const&);
void vectors_backward(stream const&, uform_vectors_t const&);

// maxsim.cpp
std::size_t maxsim_workspace_bytes(std::uint32_t width, std::uint32_t query_vectors, std::uint32_t documents,
                                   std::uint32_t document_vectors);
void maxsim_forward(stream const&, uform_maxsim_t const&);
void maxsim_backward(stream const&, uform_maxsim_t const&);

// similarity_pairs.cpp
std::size_t similarity_pairs_workspace_bytes(std::uint32_t rows, std::uint32_t edges);
void similarity_pairs(stream const&, uform_similarity_pairs_t const&);

// exchange.cpp: over all devices of the process
void reduce_sum(stream const&, float* const* buffers, std::uint32_t devices, std::uint64_t count);
void reduce_terms(stream const&, double* const* buffers, std::uint32_t devices, std::uint64_t count);
void gather(stream const&, void const* const* from, void* const* to, std::uint32_t devices, std::uint64_t bytes);

// optimizer.cpp
std::size_t update_workspace_bytes(std::uint64_t count);
void update(stream const&, uform_update_t const&);

} // namespace uform::ram

/** Every operation of the VRAM backend, by family, as the table's slots have them. */
#pragma once

#include <cstddef>
#include <cstdint>

#include <uform/plugin.h>

namespace uform::vram {

// backend.cpp
uform_status_t backend_create(uform_backend_options_t const* options, void** made);
void backend_destroy(void* opaque);
char const* backend_gemm(void const* opaque);
std::int32_t backend_gpu_class(void const* opaque);
uform_status_t stream_create(void* owner, std::uint32_t place, uform_stream_t** made);
void stream_destroy(uform_stream_t* opaque);
uform_status_t stream_synchronize(uform_stream_t* opaque);
uform_status_t device_synchronize(uform_stream_t* opaque);
void* stream_handle(uform_stream_t* opaque);
uform_status_t memory_allocate(uform_stream_t* opaque, std::size_t bytes, void** memory);
void memory_release(uform_stream_t* opaque, void* memory);
uform_status_t staging_allocate(uform_stream_t* opaque, std::size_t bytes, void** memory);
void staging_release(uform_stream_t* opaque, void* memory);
uform_status_t memory_upload(uform_stream_t* opaque, void* device, void const* host, std::size_t bytes);
uform_status_t memory_download(uform_stream_t* opaque, void* host, void const* device, std::size_t bytes);
uform_status_t memory_zero(uform_stream_t* opaque, void* device, std::size_t bytes);
uform_status_t memory_copy(uform_stream_t* opaque, void* to, void const* from, std::size_t bytes);
uform_status_t memory_device(uform_stream_t* opaque, void const* memory, std::int32_t* device);
uform_status_t event_create(uform_stream_t* opaque, uform_event_t** made);
void event_destroy(uform_event_t* opaque);
uform_status_t event_record(uform_stream_t* opaque, uform_event_t* event);
uform_status_t stream_wait(uform_stream_t* opaque, uform_event_t* event);
uform_status_t host_wait(uform_event_t* event);
uform_status_t event_elapsed(uform_event_t* from, uform_event_t* to, double* seconds);
void backend_counters(void const* opaque, uform_backend_counters_t* counters);
uform_status_t capture_begin(uform_stream_t* opaque);
uform_status_t capture_end(uform_stream_t* opaque, uform_graph_t** made);
uform_status_t graph_launch(uform_stream_t* opaque, uform_graph_t* launched);
void graph_destroy(uform_graph_t* opaque);

// weights.cu
std::size_t state_bytes(std::uint32_t hidden);
std::size_t weights_bytes(std::uint32_t kind, std::uint32_t rows, std::uint32_t columns);
uform_status_t weights_import(uform_stream_t* opaque, std::uint32_t kind, std::uint32_t rows, std::uint32_t columns,
                              float const* plain, void* working);

// columns.cu
uform_status_t columns_expand(uform_stream_t*, uform_columns_t const*);

// embedding.cu
std::size_t embedding_workspace_bytes(std::uint32_t hidden, std::uint32_t table_rows, std::uint32_t columns);
uform_status_t embedding_forward(uform_stream_t*, uform_embedding_t const*);
uform_status_t embedding_backward(uform_stream_t*, uform_embedding_t const*);

// patches.cu
std::size_t patches_workspace_bytes(std::uint32_t hidden, std::uint32_t width, std::uint32_t patches);
uform_status_t patches_forward(uform_stream_t*, uform_patches_t const*);
uform_status_t patches_backward(uform_stream_t*, uform_patches_t const*);

// encoder.cu
std::size_t layer_saved_bytes(uform_extents_t const* extents, std::uint32_t columns);
std::size_t layer_workspace_bytes(uform_extents_t const* extents, std::uint32_t columns, std::uint32_t segments);
uform_status_t norm_qkv_forward(uform_stream_t*, uform_layer_t const*);
uform_status_t out_residual_forward(uform_stream_t*, uform_layer_t const*);
uform_status_t norm_geglu_forward(uform_stream_t*, uform_layer_t const*);
uform_status_t down_residual_forward(uform_stream_t*, uform_layer_t const*);
uform_status_t down_residual_backward(uform_stream_t*, uform_layer_t const*);
uform_status_t norm_geglu_backward(uform_stream_t*, uform_layer_t const*);
uform_status_t out_residual_backward(uform_stream_t*, uform_layer_t const*);
uform_status_t norm_qkv_backward(uform_stream_t*, uform_layer_t const*);

// attention.cu
uform_status_t attention_forward(uform_stream_t*, uform_layer_t const*);
uform_status_t attention_backward(uform_stream_t*, uform_layer_t const*);

// norm.cu
std::size_t norm_workspace_bytes(std::uint32_t hidden, std::uint32_t columns);
uform_status_t norm_forward(uform_stream_t*, uform_norm_t const*);
uform_status_t norm_backward(uform_stream_t*, uform_norm_t const*);

// pool.cu
std::size_t pool_workspace_bytes(std::uint32_t hidden, std::uint32_t bags);
uform_status_t pool_forward(uform_stream_t*, uform_pool_t const*);
uform_status_t pool_backward(uform_stream_t*, uform_pool_t const*);

// rows.cu
uform_status_t rows_gather(uform_stream_t*, uform_rows_t const*);
uform_status_t rows_scatter(uform_stream_t*, uform_rows_t const*);

// scalar.cu
uform_status_t rows_narrow(uform_stream_t*, uform_narrow_t const*);
uform_status_t rows_widen(uform_stream_t*, uform_widen_t const*);

// heads.cu, heads_classes.cu
std::size_t bytes_head_workspace_bytes(std::uint32_t hidden, std::uint32_t rows);
std::size_t patches_head_workspace_bytes(std::uint32_t hidden, std::uint32_t width, std::uint32_t rows);
std::size_t cross_entropy_workspace_bytes(std::uint32_t classes, std::uint64_t count);
uform_status_t bytes_head(uform_stream_t*, uform_bytes_head_t const*);
uform_status_t patches_head(uform_stream_t*, uform_patches_head_t const*);
uform_status_t cross_entropy(uform_stream_t*, uform_cross_entropy_t const*);

// choices.cu
std::size_t choices_head_workspace_bytes(std::uint32_t hidden, std::uint32_t items, std::uint32_t rows);
uform_status_t choices_head(uform_stream_t*, uform_choices_head_t const*);

// prefix.cu
uform_status_t prefix_forward(uform_stream_t*, uform_prefix_t const*);
uform_status_t prefix_backward(uform_stream_t*, uform_prefix_t const*);

// pairs.cu
std::size_t pairs_workspace_bytes(std::uint32_t units, std::uint32_t rows, std::uint32_t edges, std::uint32_t width,
                                  std::uint32_t groups);
uform_status_t pairs_forward(uform_stream_t*, uform_pairs_t const*);
uform_status_t pairs_backward(uform_stream_t*, uform_pairs_t const*);

// vectors.cu
std::size_t vectors_workspace_bytes(std::uint32_t hidden, std::uint32_t width, std::uint32_t columns);
uform_status_t vectors_forward(uform_stream_t*, uform_vectors_t const*);
uform_status_t vectors_backward(uform_stream_t*, uform_vectors_t const*);

// maxsim.cu
std::size_t maxsim_workspace_bytes(std::uint32_t width, std::uint32_t query_vectors, std::uint32_t documents,
                                   std::uint32_t document_vectors);
uform_status_t maxsim_forward(uform_stream_t*, uform_maxsim_t const*);
uform_status_t maxsim_backward(uform_stream_t*, uform_maxsim_t const*);

// similarity_pairs.cu
std::size_t similarity_pairs_workspace_bytes(std::uint32_t rows, std::uint32_t edges);
uform_status_t similarity_pairs(uform_stream_t*, uform_similarity_pairs_t const*);

// exchange.cu: over all devices of the process
uform_status_t reduce_sum(uform_stream_t* const* streams, float* const* buffers, std::uint32_t devices,
                          std::uint64_t count);
uform_status_t reduce_terms(uform_stream_t* const* streams, double* const* buffers, std::uint32_t devices,
                            std::uint64_t count);
uform_status_t gather(uform_stream_t* const* streams, void const* const* from, void* const* to, std::uint32_t devices,
                      std::uint64_t bytes);

// optimizer.cu
std::size_t update_workspace_bytes(std::uint64_t count);
uform_status_t update(uform_stream_t*, uform_update_t const*);

} // namespace uform::vram

/** The table of the VRAM backend. */
#include "vram/operations.h"

#include "core/operations.h"

namespace uform {

namespace {

using namespace vram;

constexpr uform_operations_t make_operations() {
    uform_operations_t table{};
    table.abi_version = UFORM_PLUGIN_ABI_VERSION;
    table.bytes = sizeof table;
    table.name = "vram";

    table.backend_create = backend_create;
    table.backend_destroy = backend_destroy;
    table.backend_gemm = backend_gemm;
    table.backend_gpu_class = backend_gpu_class;
    table.stream_create = stream_create;
    table.stream_destroy = stream_destroy;
    table.stream_synchronize = stream_synchronize;
    table.memory_allocate = memory_allocate;
    table.memory_release = memory_release;
    table.staging_allocate = staging_allocate;
    table.staging_release = staging_release;
    table.memory_upload = memory_upload;
    table.memory_download = memory_download;
    table.memory_zero = memory_zero;

    table.state_bytes = state_bytes;
    table.weights_bytes = weights_bytes;
    table.layer_saved_bytes = layer_saved_bytes;
    table.layer_workspace_bytes = layer_workspace_bytes;
    table.norm_workspace_bytes = norm_workspace_bytes;
    table.embedding_workspace_bytes = embedding_workspace_bytes;
    table.patches_workspace_bytes = patches_workspace_bytes;
    table.pool_workspace_bytes = pool_workspace_bytes;
    table.bytes_head_workspace_bytes = bytes_head_workspace_bytes;
    table.patches_head_workspace_bytes = patches_head_workspace_bytes;
    table.cross_entropy_workspace_bytes = cross_entropy_workspace_bytes;
    table.pairs_workspace_bytes = pairs_workspace_bytes;
    table.update_workspace_bytes = update_workspace_bytes;

    table.weights_import = weights_import;

    table.columns_expand = columns_expand;
    table.embedding_forward = embedding_forward;
    table.embedding_backward = embedding_backward;
    table.patches_forward = patches_forward;
    table.patches_backward = patches_backward;

    table.norm_qkv_forward = norm_qkv_forward;
    table.attention_forward = attention_forward;
    table.out_residual_forward = out_residual_forward;
    table.norm_geglu_forward = norm_geglu_forward;
    table.down_residual_forward = down_residual_forward;
    table.down_residual_backward = down_residual_backward;
    table.norm_geglu_backward = norm_geglu_backward;
    table.out_residual_backward = out_residual_backward;
    table.attention_backward = attention_backward;
    table.norm_qkv_backward = norm_qkv_backward;

    table.norm_forward = norm_forward;
    table.norm_backward = norm_backward;
    table.pool_forward = pool_forward;
    table.pool_backward = pool_backward;
    table.rows_gather = rows_gather;
    table.rows_scatter = rows_scatter;

    table.bytes_head = bytes_head;
    table.patches_head = patches_head;
    table.cross_entropy = cross_entropy;
    table.prefix_forward = prefix_forward;
    table.prefix_backward = prefix_backward;
    table.pairs_forward = pairs_forward;
    table.pairs_backward = pairs_backward;

    table.reduce_sum = reduce_sum;
    table.reduce_terms = reduce_terms;
    table.gather = gather;

    table.update = update;

    table.device_synchronize = device_synchronize;
    table.stream_handle = stream_handle;
    table.memory_copy = memory_copy;
    table.memory_device = memory_device;
    table.rows_narrow = rows_narrow;
    table.rows_widen = rows_widen;

    table.event_create = event_create;
    table.event_destroy = event_destroy;
    table.event_record = event_record;
    table.stream_wait = stream_wait;
    table.host_wait = host_wait;
    table.event_elapsed = event_elapsed;
    table.backend_counters = backend_counters;

    table.capture_begin = capture_begin;
    table.capture_end = capture_end;
    table.graph_launch = graph_launch;
    table.graph_destroy = graph_destroy;

    table.vectors_workspace_bytes = vectors_workspace_bytes;
    table.maxsim_workspace_bytes = maxsim_workspace_bytes;
    table.similarity_pairs_workspace_bytes = similarity_pairs_workspace_bytes;
    table.vectors_forward = vectors_forward;
    table.vectors_backward = vectors_backward;
    table.maxsim_forward = maxsim_forward;
    table.maxsim_backward = maxsim_backward;
    table.similarity_pairs = similarity_pairs;

    table.choices_head_workspace_bytes = choices_head_workspace_bytes;
    table.choices_head = choices_head;
    return table;
}

constexpr uform_operations_t operations_k = make_operations();

} // namespace

uform_operations_t const& vram_operations() { return operations_k; }

} // namespace uform

#include "ram/operations.h"

#include "ram/device.h"

namespace uform {

namespace {

using namespace ram;

/** An operation as the table has it: what it throws becomes a status. */
template <auto operation_ak> struct guarded;

template <typename arguments_at, void (*operation_ak)(stream const&, arguments_at const&)>
struct guarded<operation_ak> {
    static uform_status_t call(uform_stream_t* opaque, arguments_at const* arguments) {
        return guard([&] { operation_ak(stream::of(opaque), *arguments); });
    }
};

/** The same for an exchange among all devices, whose buffers all lie in the host's memory: one stream is enough. */
template <auto operation_ak> struct exchanged;

template <typename... arguments_at, void (*operation_ak)(stream const&, arguments_at...)>
struct exchanged<operation_ak> {
    static uform_status_t call(uform_stream_t* const* streams, arguments_at... arguments) {
        return guard([&] { operation_ak(stream::of(streams[0]), arguments...); });
    }
};

constexpr uform_operations_t make_operations() {
    uform_operations_t table{};
    table.abi_version = UFORM_PLUGIN_ABI_VERSION;
    table.bytes = sizeof table;
    table.name = "ram";
    table.host_memory = 1;

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

    table.columns_expand = guarded<columns_expand>::call;
    table.embedding_forward = guarded<embedding_forward>::call;
    table.embedding_backward = guarded<embedding_backward>::call;
    table.patches_forward = guarded<patches_forward>::call;
    table.patches_backward = guarded<patches_backward>::call;

    table.norm_qkv_forward = guarded<norm_qkv_forward>::call;
    table.attention_forward = guarded<attention_forward>::call;
    table.out_residual_forward = guarded<out_residual_forward>::call;
    table.norm_geglu_forward = guarded<norm_geglu_forward>::call;
    table.down_residual_forward = guarded<down_residual_forward>::call;
    table.down_residual_backward = guarded<down_residual_backward>::call;
    table.norm_geglu_backward = guarded<norm_geglu_backward>::call;
    table.out_residual_backward = guarded<out_residual_backward>::call;
    table.attention_backward = guarded<attention_backward>::call;
    table.norm_qkv_backward = guarded<norm_qkv_backward>::call;

    table.norm_forward = guarded<norm_forward>::call;
    table.norm_backward = guarded<norm_backward>::call;
    table.pool_forward = guarded<pool_forward>::call;
    table.pool_backward = guarded<pool_backward>::call;
    table.rows_gather = guarded<rows_gather>::call;
    table.rows_scatter = guarded<rows_scatter>::call;

    table.bytes_head = guarded<bytes_head>::call;
    table.patches_head = guarded<patches_head>::call;
    table.cross_entropy = guarded<cross_entropy>::call;
    table.prefix_forward = guarded<prefix_forward>::call;
    table.prefix_backward = guarded<prefix_backward>::call;
    table.pairs_forward = guarded<pairs_forward>::call;
    table.pairs_backward = guarded<pairs_backward>::call;

    table.reduce_sum = exchanged<reduce_sum>::call;
    table.reduce_terms = exchanged<reduce_terms>::call;
    table.gather = exchanged<gather>::call;

    table.update = guarded<update>::call;

    table.device_synchronize = device_synchronize;
    table.stream_handle = stream_handle;
    table.memory_copy = memory_copy;
    table.memory_device = memory_device;
    table.rows_narrow = guarded<rows_narrow>::call;
    table.rows_widen = guarded<rows_widen>::call;

    table.event_create = event_create;
    table.event_destroy = event_destroy;
    table.event_record = event_record;
    table.stream_wait = stream_wait;
    table.host_wait = host_wait;
    table.event_elapsed = event_elapsed;
    table.backend_counters = backend_counters;

    table.choices_head_workspace_bytes = choices_head_workspace_bytes;
    table.choices_head = guarded<choices_head>::call;

    table.vectors_workspace_bytes = vectors_workspace_bytes;
    table.maxsim_workspace_bytes = maxsim_workspace_bytes;
    table.similarity_pairs_workspace_bytes = similarity_pairs_workspace_bytes;
    table.vectors_forward = guarded<vectors_forward>::call;
    table.vectors_backward = guarded<vectors_backward>::call;
    table.maxsim_forward = guarded<maxsim_forward>::call;
    table.maxsim_backward = guarded<maxsim_backward>::call;
    table.similarity_pairs = guarded<similarity_pairs>::call;
    return table;
}

constexpr uform_operations_t operations_k = make_operations();

} // namespace

uform_operations_t const& ram_operations() { return operations_k; }

} // namespace uform

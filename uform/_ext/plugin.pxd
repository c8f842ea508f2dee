# The plugin ABI for Cython: what `uform/plugin.h` declares, and of `uform/uform.h` what that uses.
from libc.stddef cimport size_t
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t


cdef extern from "uform/uform.h" nogil:
    ctypedef enum uform_status_t:
        uform_status_success_k
        uform_status_invalid_argument_k
        uform_status_invalid_type_k
        uform_status_out_of_memory_k
        uform_status_file_k
        uform_status_device_k
        uform_status_mesh_k
        uform_status_cancelled_k
        uform_status_not_finite_k
        uform_status_internal_k

    ctypedef enum uform_modality_t:
        uform_modality_text_k
        uform_modality_image_k
        uform_modality_video_k
        uform_modality_audio_k

    ctypedef enum uform_negatives_t:
        uform_negatives_ambient_k
        uform_negatives_named_k

    ctypedef enum uform_ambient_scope_t:
        uform_ambient_scope_every_k
        uform_ambient_scope_cross_modal_k
        uform_ambient_scope_targets_k
        uform_ambient_scope_cross_side_k

    ctypedef enum uform_pair_loss_form_t:
        uform_pair_loss_form_derived_k
        uform_pair_loss_form_balanced_k
        uform_pair_loss_form_ranked_k
        uform_pair_loss_form_sigmoid_k

    ctypedef enum uform_late_interaction_side_t:
        uform_late_interaction_side_none_k
        uform_late_interaction_side_query_k
        uform_late_interaction_side_document_k
        uform_late_interaction_side_query_and_document_k

    ctypedef enum uform_element_t:
        uform_element_uint8_k
        uform_element_int16_k
        uform_element_float32_k

    ctypedef struct uform_content_t:
        const void* data
        uint64_t bytes
        uint32_t rank
        uint32_t element
        uint64_t[4] extents
        int64_t[4] strides

    ctypedef struct uform_choice_texts_t:
        const uint8_t* tape
        const uint64_t* tape_offsets
        size_t count
        const uint64_t* item_offsets
        const float* targets
        size_t targets_count
        const uint64_t* target_offsets
        uint64_t tape_bytes

    const char* uform_last_error()


cdef extern from "uform/plugin.h" nogil:
    enum:
        UFORM_PLUGIN_ABI_VERSION
        UFORM_CODE_VALUES
        UFORM_AXES
        UFORM_TERMS_CAPACITY
        UFORM_FINDINGS_CAPACITY
        UFORM_MODALITY_FREE
        UFORM_MODALITY_END

    ctypedef enum uform_text_code_t:
        uform_text_code_marker_k
        uform_text_code_mask_k
        uform_text_code_separator_k
        uform_text_code_choice_k
        uform_text_code_count_k

    # configuration

    ctypedef enum uform_field_type_t:
        uform_field_type_int32_k
        uform_field_type_int64_k
        uform_field_type_double_k
        uform_field_type_int32_list_k

    ctypedef struct uform_field_t:
        const char* name
        int32_t type
        size_t offset
        size_t capacity
        size_t count_offset

    ctypedef struct uform_run_t:
        uint32_t hidden
        uint32_t devices
        uint32_t first_rank
        uint32_t world_devices
        uint32_t columns_capacity
        uint32_t row_columns
        uint32_t segments_capacity
        uint32_t bags_capacity
        uint32_t choices_capacity
        uint32_t training
        uint64_t seed

    # device data

    ctypedef struct uform_segment_t:
        uint32_t first
        uint32_t columns
        uint32_t pooled
        uint32_t bag
        uint16_t modality
        uint16_t axes
        uint16_t[3] extents
        uint16_t reserved

    ctypedef struct uform_columns_t:
        uint32_t capacity
        uint32_t active
        uint32_t segments_capacity
        uint32_t bags_capacity
        uint32_t longest
        const uint32_t* counts
        const uform_segment_t* segments
        const uint16_t* codes
        uint32_t* segment_of
        uint16_t* positions

    ctypedef struct uform_stream_t

    ctypedef struct uform_event_t

    ctypedef struct uform_graph_t

    # operations' arguments

    ctypedef struct uform_extents_t:
        uint32_t depth
        uint32_t hidden
        uint32_t inner
        uint32_t heads

    ctypedef struct uform_layer_t:
        uform_extents_t extents
        uform_columns_t columns
        const void* norm1
        const void* qkv
        const void* out
        const void* norm2
        const void* up
        const void* down
        float* norm1_gradient
        float* qkv_gradient
        float* out_gradient
        float* norm2_gradient
        float* up_gradient
        float* down_gradient
        const void* input
        void* output
        void* gradient
        void* saved
        size_t saved_bytes
        void* workspace
        size_t workspace_bytes

    ctypedef struct uform_norm_t:
        uform_columns_t columns
        uint32_t hidden
        const void* gain
        float* gain_gradient
        const void* input
        void* output
        float* inverse_rms
        void* gradient
        void* workspace
        size_t workspace_bytes

    ctypedef struct uform_embedding_t:
        uform_columns_t columns
        uint32_t hidden
        uint32_t modality
        uint32_t table_rows
        const void* table
        float* table_gradient
        void* states
        const void* gradient
        void* workspace
        size_t workspace_bytes

    ctypedef struct uform_patches_t:
        uform_columns_t columns
        uint32_t hidden
        uint32_t width
        uint32_t element
        float multiplier
        float offset
        uint32_t capacity
        uint32_t active
        const uint32_t* count
        const void* values
        const uint32_t* patch_columns
        const void* weight
        float* weight_gradient
        void* states
        const void* gradient
        void* workspace
        size_t workspace_bytes

    ctypedef struct uform_pool_t:
        uform_columns_t columns
        uint32_t hidden
        const void* hidden_states
        float* pooled
        float* lengths
        uint32_t* bag_columns
        const float* pooled_gradient
        void* gradient
        uint32_t accumulate
        void* workspace
        size_t workspace_bytes

    ctypedef struct uform_rows_t:
        uint32_t hidden
        uint32_t capacity
        uint32_t active
        const uint32_t* count
        const uint32_t* indices
        const void* states
        void* rows
        const float* rows_gradient
        void* gradient
        uint32_t accumulate
        uint32_t columns_active

    ctypedef struct uform_bytes_head_t:
        uint32_t hidden
        uint32_t capacity
        uint32_t active
        uint32_t first
        const uint32_t* count
        const void* rows
        const void* table
        const uint8_t* targets
        const float* scale
        const float* weight
        double* loss
        float* rows_gradient
        float* table_gradient
        void* workspace
        size_t workspace_bytes
        const uint32_t* before

    ctypedef struct uform_patches_head_t:
        uint32_t hidden
        uint32_t width
        uint32_t element
        float multiplier
        float offset
        uint32_t capacity
        uint32_t active
        uint32_t first
        const uint32_t* count
        const void* rows
        const void* values
        const uint32_t* covered_patches
        const void* head
        float* head_gradient
        const float* scale
        const float* weight
        double* loss
        float* rows_gradient
        void* workspace
        size_t workspace_bytes
        const uint32_t* before

    ctypedef struct uform_choices_head_t:
        uint32_t hidden
        uint32_t items_capacity
        uint32_t items_active
        uint32_t rows_capacity
        uint32_t rows_active
        const uint32_t* counts
        const uint32_t* offsets
        const void* rows
        const float* vector
        const float* log_inverse_temperature
        float* probabilities
        const float* targets
        const float* scale
        const float* weight
        double* loss
        float* rows_gradient
        float* vector_gradient
        float* log_inverse_temperature_gradient
        void* workspace
        size_t workspace_bytes

    ctypedef struct uform_cross_entropy_t:
        uint32_t classes
        uint64_t count
        const float* logits
        const uint8_t* targets
        float scale
        double* loss
        float* gradient
        void* workspace
        size_t workspace_bytes

    ctypedef enum uform_pair_class_t:
        uform_pair_class_ignored_k
        uform_pair_class_attracted_k
        uform_pair_class_repelled_k

    ctypedef struct uform_prefix_t:
        uint32_t stride
        uint32_t width
        uint32_t normalize
        uint32_t capacity
        uint32_t active
        const uint32_t* count
        const uint32_t* indices
        const float* source
        float* vectors
        float* lengths
        const float* vectors_gradient
        float* source_gradient

    ctypedef struct uform_pairs_t:
        uint32_t width
        uint32_t units_capacity
        uint32_t rows_capacity
        uint32_t edges_capacity
        uint32_t units_active
        uint32_t rows_active
        uint32_t groups
        const uint32_t* counts
        const uint32_t* indices
        const float* vectors
        const uint32_t* rows
        const uint32_t* row_groups
        const uint32_t* modalities
        const uint8_t* sides
        const uint8_t* targets
        const uint32_t* edge_offsets
        const uint32_t* edge_units
        const uint8_t* edge_classes
        const float* edge_weights
        int32_t form
        int32_t negatives
        int32_t scope
        float ambient_weight
        const void* log_inverse_temperature
        const void* bias
        const float* scale
        double* loss
        float* row_losses
        float row_losses_scale
        float* row_logs
        float* row_forces
        float* gradient
        float* log_inverse_temperature_gradient
        float* bias_gradient
        void* workspace
        size_t workspace_bytes

    ctypedef struct uform_vectors_t:
        uform_columns_t columns
        uint32_t hidden
        uint32_t width
        const void* states
        const void* weight
        float* vectors
        float* lengths
        const float* vectors_gradient
        void* gradient
        float* weight_gradient
        void* workspace
        size_t workspace_bytes

    ctypedef struct uform_run_of_rows_t:
        uint32_t first
        uint32_t count
        uint32_t place

    ctypedef struct uform_maxsim_t:
        uint32_t width
        uint32_t vectors_capacity
        uint32_t queries_capacity
        uint32_t query_vectors_capacity
        uint32_t documents_capacity
        uint32_t document_vectors_capacity
        uint32_t longest
        const uint32_t* counts
        const float* vectors
        const uform_run_of_rows_t* queries
        const uform_run_of_rows_t* documents
        float* similarities
        uint16_t* places
        const float* coefficients
        float* gradient
        void* workspace
        size_t workspace_bytes

    ctypedef struct uform_similarity_pairs_t:
        uint32_t rows_capacity
        uint32_t candidates_capacity
        uint32_t edges_capacity
        const uint32_t* counts
        const float* similarities
        const uint32_t* own
        const uint32_t* looks
        const uint32_t* faces
        const uint32_t* edge_offsets
        const uint32_t* edge_candidates
        const uint8_t* edge_classes
        const float* edge_weights
        int32_t form
        float ambient_weight
        const float* log_inverse_temperature
        const float* bias
        const float* scale
        double* loss
        float* row_losses
        float* coefficients
        float* log_inverse_temperature_gradient
        float* bias_gradient
        void* workspace
        size_t workspace_bytes

    ctypedef struct uform_parameter_span_t:
        uint64_t offset
        uint64_t count
        float decay
        float minimum
        float maximum
        uint32_t rows
        uint32_t columns
        uint32_t kind
        void* working

    ctypedef struct uform_update_state_t:
        uint64_t applied
        double learning_rate
        double gradient_norm
        double[32] terms
        uint64_t refused
        uint64_t[32] not_finite

    ctypedef struct uform_update_t:
        uint64_t count
        float* parameters
        float* gradient
        float* first_moment
        float* second_moment
        const uform_parameter_span_t* spans
        uint32_t spans_count
        uint32_t terms_count
        double peak
        double floor
        int64_t warmup_steps
        int64_t steps
        double beta1
        double beta2
        double epsilon
        double decay
        double max_norm
        uform_update_state_t* state
        void* workspace
        size_t workspace_bytes

    ctypedef struct uform_narrow_t:
        uint32_t width
        uint32_t count
        int32_t scalar
        uform_stream_t* source
        const float* from_ "from"
        const uint32_t* places
        void* to
        size_t to_bytes

    ctypedef struct uform_widen_t:
        uint32_t rows
        uint32_t width
        int32_t scalar
        int64_t row_stride
        int64_t column_stride
        const void* from_ "from"
        float* to
        uint64_t* not_finite

    ctypedef enum uform_parameter_kind_t:
        uform_parameter_kind_matrix_k
        uform_parameter_kind_embedding_k
        uform_parameter_kind_vector_k
        uform_parameter_kind_plain_k

    ctypedef struct uform_parallel_t:
        void* pool
        void (*run)(void* pool, size_t tasks, void (*task)(void* state, size_t index) noexcept nogil,
                    void* state) noexcept nogil

    ctypedef struct uform_backend_options_t:
        uform_parallel_t parallel
        const char* blas_path
        const int32_t* devices
        uint32_t devices_count

    ctypedef struct uform_backend_counters_t:
        uint64_t allocations
        uint64_t host_waits

    ctypedef struct uform_operations_t:
        uint32_t abi_version
        uint32_t bytes
        const char* name
        uint32_t host_memory
        # the backend and its devices
        uform_status_t (*backend_create)(const uform_backend_options_t* options, void** backend) noexcept nogil
        void (*backend_destroy)(void* backend) noexcept nogil
        const char* (*backend_gemm)(const void* backend) noexcept nogil
        int32_t (*backend_gpu_class)(const void* backend) noexcept nogil
        uform_status_t (*stream_create)(void* backend, uint32_t device, uform_stream_t** stream) noexcept nogil
        void (*stream_destroy)(uform_stream_t* stream) noexcept nogil
        uform_status_t (*stream_synchronize)(uform_stream_t* stream) noexcept nogil
        uform_status_t (*memory_allocate)(uform_stream_t* stream, size_t bytes, void** memory) noexcept nogil
        void (*memory_release)(uform_stream_t* stream, void* memory) noexcept nogil
        uform_status_t (*staging_allocate)(uform_stream_t* stream, size_t bytes, void** memory) noexcept nogil
        void (*staging_release)(uform_stream_t* stream, void* memory) noexcept nogil
        uform_status_t (*memory_upload)(uform_stream_t* stream, void* device, const void* host,
                                        size_t bytes) noexcept nogil
        uform_status_t (*memory_download)(uform_stream_t* stream, void* host, const void* device,
                                          size_t bytes) noexcept nogil
        uform_status_t (*memory_zero)(uform_stream_t* stream, void* device, size_t bytes) noexcept nogil
        # sizes
        size_t (*state_bytes)(uint32_t hidden) noexcept nogil
        size_t (*weights_bytes)(uint32_t kind, uint32_t rows, uint32_t columns) noexcept nogil
        size_t (*layer_saved_bytes)(const uform_extents_t* extents, uint32_t columns) noexcept nogil
        size_t (*layer_workspace_bytes)(const uform_extents_t* extents, uint32_t columns,
                                        uint32_t segments) noexcept nogil
        size_t (*norm_workspace_bytes)(uint32_t hidden, uint32_t columns) noexcept nogil
        size_t (*embedding_workspace_bytes)(uint32_t hidden, uint32_t table_rows, uint32_t columns) noexcept nogil
        size_t (*patches_workspace_bytes)(uint32_t hidden, uint32_t width, uint32_t patches) noexcept nogil
        size_t (*pool_workspace_bytes)(uint32_t hidden, uint32_t bags) noexcept nogil
        size_t (*bytes_head_workspace_bytes)(uint32_t hidden, uint32_t rows) noexcept nogil
        size_t (*patches_head_workspace_bytes)(uint32_t hidden, uint32_t width, uint32_t rows) noexcept nogil
        size_t (*cross_entropy_workspace_bytes)(uint32_t classes, uint64_t count) noexcept nogil
        size_t (*pairs_workspace_bytes)(uint32_t units, uint32_t rows, uint32_t edges, uint32_t width,
                                        uint32_t groups) noexcept nogil
        size_t (*update_workspace_bytes)(uint64_t count) noexcept nogil
        # weights
        uform_status_t (*weights_import)(uform_stream_t* stream, uint32_t kind, uint32_t rows, uint32_t columns,
                                         const float* plain, void* working) noexcept nogil
        # columns
        uform_status_t (*columns_expand)(uform_stream_t* stream, const uform_columns_t* columns) noexcept nogil
        uform_status_t (*embedding_forward)(uform_stream_t* stream, const uform_embedding_t* embedding) noexcept nogil
        uform_status_t (*embedding_backward)(uform_stream_t* stream, const uform_embedding_t* embedding) noexcept nogil
        uform_status_t (*patches_forward)(uform_stream_t* stream, const uform_patches_t* patches) noexcept nogil
        uform_status_t (*patches_backward)(uform_stream_t* stream, const uform_patches_t* patches) noexcept nogil
        # the encoder's block
        uform_status_t (*norm_qkv_forward)(uform_stream_t* stream, const uform_layer_t* layer) noexcept nogil
        uform_status_t (*attention_forward)(uform_stream_t* stream, const uform_layer_t* layer) noexcept nogil
        uform_status_t (*out_residual_forward)(uform_stream_t* stream, const uform_layer_t* layer) noexcept nogil
        uform_status_t (*norm_geglu_forward)(uform_stream_t* stream, const uform_layer_t* layer) noexcept nogil
        uform_status_t (*down_residual_forward)(uform_stream_t* stream, const uform_layer_t* layer) noexcept nogil
        uform_status_t (*down_residual_backward)(uform_stream_t* stream, const uform_layer_t* layer) noexcept nogil
        uform_status_t (*norm_geglu_backward)(uform_stream_t* stream, const uform_layer_t* layer) noexcept nogil
        uform_status_t (*out_residual_backward)(uform_stream_t* stream, const uform_layer_t* layer) noexcept nogil
        uform_status_t (*attention_backward)(uform_stream_t* stream, const uform_layer_t* layer) noexcept nogil
        uform_status_t (*norm_qkv_backward)(uform_stream_t* stream, const uform_layer_t* layer) noexcept nogil
        # after the last block
        uform_status_t (*norm_forward)(uform_stream_t* stream, const uform_norm_t* norm) noexcept nogil
        uform_status_t (*norm_backward)(uform_stream_t* stream, const uform_norm_t* norm) noexcept nogil
        uform_status_t (*pool_forward)(uform_stream_t* stream, const uform_pool_t* pool) noexcept nogil
        uform_status_t (*pool_backward)(uform_stream_t* stream, const uform_pool_t* pool) noexcept nogil
        uform_status_t (*rows_gather)(uform_stream_t* stream, const uform_rows_t* rows) noexcept nogil
        uform_status_t (*rows_scatter)(uform_stream_t* stream, const uform_rows_t* rows) noexcept nogil
        # objectives
        uform_status_t (*bytes_head)(uform_stream_t* stream, const uform_bytes_head_t* head) noexcept nogil
        uform_status_t (*patches_head)(uform_stream_t* stream, const uform_patches_head_t* head) noexcept nogil
        uform_status_t (*cross_entropy)(uform_stream_t* stream, const uform_cross_entropy_t* problem) noexcept nogil
        uform_status_t (*prefix_forward)(uform_stream_t* stream, const uform_prefix_t* prefix) noexcept nogil
        uform_status_t (*prefix_backward)(uform_stream_t* stream, const uform_prefix_t* prefix) noexcept nogil
        uform_status_t (*pairs_forward)(uform_stream_t* stream, const uform_pairs_t* pairs) noexcept nogil
        uform_status_t (*pairs_backward)(uform_stream_t* stream, const uform_pairs_t* pairs) noexcept nogil
        # the devices of one process among themselves
        uform_status_t (*reduce_sum)(uform_stream_t** streams, float** buffers, uint32_t devices,
                                     uint64_t count) noexcept nogil
        uform_status_t (*reduce_terms)(uform_stream_t** streams, double** buffers, uint32_t devices,
                                       uint64_t count) noexcept nogil
        uform_status_t (*gather)(uform_stream_t** streams, const void** sources, void** targets, uint32_t devices,
                                 uint64_t bytes) noexcept nogil
        # the update
        uform_status_t (*update)(uform_stream_t* stream, const uform_update_t* update) noexcept nogil
        # memory that others hand over and take
        uform_status_t (*device_synchronize)(uform_stream_t* stream) noexcept nogil
        void* (*stream_handle)(uform_stream_t* stream) noexcept nogil
        uform_status_t (*memory_copy)(uform_stream_t* stream, void* to, const void* from_, size_t bytes) noexcept nogil
        uform_status_t (*memory_device)(uform_stream_t* stream, const void* memory, int32_t* device) noexcept nogil
        uform_status_t (*rows_narrow)(uform_stream_t* stream, const uform_narrow_t* narrow) noexcept nogil
        uform_status_t (*rows_widen)(uform_stream_t* stream, const uform_widen_t* widen) noexcept nogil
        # order among streams
        uform_status_t (*event_create)(uform_stream_t* stream, uform_event_t** event) noexcept nogil
        void (*event_destroy)(uform_event_t* event) noexcept nogil
        uform_status_t (*event_record)(uform_stream_t* stream, uform_event_t* event) noexcept nogil
        uform_status_t (*stream_wait)(uform_stream_t* stream, uform_event_t* event) noexcept nogil
        uform_status_t (*host_wait)(uform_event_t* event) noexcept nogil
        uform_status_t (*event_elapsed)(uform_event_t* begin, uform_event_t* end, double* seconds) noexcept nogil
        void (*backend_counters)(const void* backend, uform_backend_counters_t* counters) noexcept nogil
        # captured work
        uform_status_t (*capture_begin)(uform_stream_t* stream) noexcept nogil
        uform_status_t (*capture_end)(uform_stream_t* stream, uform_graph_t** graph) noexcept nogil
        uform_status_t (*graph_launch)(uform_stream_t* stream, uform_graph_t* graph) noexcept nogil
        void (*graph_destroy)(uform_graph_t* graph) noexcept nogil
        size_t (*choices_head_workspace_bytes)(uint32_t hidden, uint32_t items, uint32_t rows) noexcept nogil
        uform_status_t (*choices_head)(uform_stream_t* stream, const uform_choices_head_t* head) noexcept nogil
        # late interaction
        size_t (*vectors_workspace_bytes)(uint32_t hidden, uint32_t width, uint32_t columns) noexcept nogil
        size_t (*maxsim_workspace_bytes)(uint32_t width, uint32_t query_vectors, uint32_t documents,
                                         uint32_t document_vectors) noexcept nogil
        size_t (*similarity_pairs_workspace_bytes)(uint32_t rows, uint32_t edges) noexcept nogil
        uform_status_t (*vectors_forward)(uform_stream_t* stream, const uform_vectors_t* vectors) noexcept nogil
        uform_status_t (*vectors_backward)(uform_stream_t* stream, const uform_vectors_t* vectors) noexcept nogil
        uform_status_t (*maxsim_forward)(uform_stream_t* stream, const uform_maxsim_t* maxsim) noexcept nogil
        uform_status_t (*maxsim_backward)(uform_stream_t* stream, const uform_maxsim_t* maxsim) noexcept nogil
        uform_status_t (*similarity_pairs)(uform_stream_t* stream, const uform_similarity_pairs_t* pairs) noexcept nogil

    const uform_operations_t* uform_operations_ram()

    # what plugins are given

    ctypedef struct uform_host_t

    ctypedef struct uform_parameter_request_t:
        const char* name
        uint32_t rows
        uint32_t columns
        uint32_t kind
        double deviation
        double value
        double minimum
        double maximum

    ctypedef enum uform_staging_unit_t:
        uform_staging_unit_whole_k
        uform_staging_unit_content_k
        uform_staging_unit_covered_k

    ctypedef enum uform_cover_kind_t:
        uform_cover_kind_none_k
        uform_cover_kind_bytes_k
        uform_cover_kind_places_k
        uform_cover_kind_tubes_k
        uform_cover_kind_spans_k

    ctypedef struct uform_covering_t:
        const char* name
        uint32_t modality
        uint32_t kind
        double ratio
        double weight

    ctypedef struct uform_declare_t:
        uform_host_t* host
        const uform_operations_t* operations
        uform_status_t (*fail)(uform_host_t* host, uform_status_t status, const char* message) noexcept nogil
        uform_status_t (*parameter)(uform_host_t* host, const uform_parameter_request_t* request,
                                    uint32_t* handle) noexcept nogil
        uform_status_t (*term)(uform_host_t* host, const char* name, double weight, uint32_t* handle) noexcept nogil
        uform_status_t (*staging)(uform_host_t* host, size_t bytes, size_t* offset) noexcept nogil
        uform_status_t (*workspace)(uform_host_t* host, size_t bytes, size_t* offset) noexcept nogil
        uform_status_t (*column_staging)(uform_host_t* host, uint32_t unit, size_t bytes, size_t* offset) noexcept nogil
        uform_status_t (*vectors)(uform_host_t* host, uint32_t width) noexcept nogil
        uform_status_t (*notice)(uform_host_t* host, size_t bytes) noexcept nogil
        const char* plugin
        uform_status_t (*cover)(uform_host_t* host, double ratio, double weight) noexcept nogil
        uint32_t (*coverings)(uform_host_t* host, const uform_covering_t** all) noexcept nogil

    ctypedef enum uform_tap_t:
        uform_tap_covered_k
        uform_tap_columns_k
        uform_tap_bags_k
        uform_tap_world_bags_k
        uform_tap_world_vectors_k

    ctypedef enum uform_cover_action_t:
        uform_cover_action_mask_k
        uform_cover_action_random_k
        uform_cover_action_stay_k

    ctypedef struct uform_measure_t:
        uint32_t columns
        uint32_t truncated
        uint16_t axes
        uint16_t[3] extents
        uint16_t[3] whole
        uint32_t[4] scratch

    ctypedef struct uform_item_t:
        uint32_t content
        uint32_t modality
        uint32_t device
        uint32_t segment
        uint32_t bag
        uint64_t world_item
        uform_measure_t measure

    ctypedef struct uform_bag_t:
        uint32_t device
        uint32_t place
        uint32_t slot
        uint32_t group

    ctypedef struct uform_world_bag_t:
        uint32_t modalities
        uint8_t sides
        uint8_t flags
        uint8_t present
        uint8_t reserved

    ctypedef struct uform_pair_rows_t:
        uint32_t units
        const uint32_t* offsets
        const uint32_t* candidates
        const uint8_t* classes
        const float* weights

    ctypedef struct uform_device_view_t:
        uint8_t* staging
        uint32_t columns
        uint32_t segments_count
        uint32_t bags_count
        const uform_segment_t* segments

    ctypedef struct uform_plan_t:
        uform_host_t* host
        const uform_run_t* run
        uint64_t call
        uform_status_t (*fail)(uform_host_t* host, uform_status_t status, const char* message) noexcept nogil
        size_t items_count
        const uform_item_t* items
        size_t bags_count
        const uform_bag_t* bags
        const uform_device_view_t* devices
        uform_status_t (*pairs)(uform_host_t* host, uint32_t by_bag, uform_pair_rows_t* pairs) noexcept nogil
        uform_status_t (*flag)(uform_host_t* host, uint32_t bag, uint8_t flags) noexcept nogil
        uform_status_t (*count)(uform_host_t* host, uint32_t index, double value) noexcept nogil
        double (*counted)(uform_host_t* host, uint32_t index) noexcept nogil
        void (*random)(uform_host_t* host, uint32_t purpose, uint64_t world_item, uint32_t column,
                       uint32_t* words) noexcept nogil
        const uform_world_bag_t* (*world)(uform_host_t* host) noexcept nogil
        uform_status_t (*rows)(uform_host_t* host, uint32_t device, const uint32_t* slots,
                               uint32_t count) noexcept nogil
        uform_status_t (*cover)(uform_host_t* host, size_t item, const uint32_t* places, const uint8_t* actions,
                                const uint8_t* random_bytes, uint32_t count) noexcept nogil
        const uform_choice_texts_t* choices
        const uint8_t* sides
        void* (*notice_of)(uform_host_t* host, uint32_t device) noexcept nogil
        const void* (*notice_from)(uform_host_t* host, uint32_t rank) noexcept nogil
        uform_parallel_t parallel

    ctypedef struct uform_pass_t:
        uform_host_t* host
        const uform_run_t* run
        const uform_operations_t* operations
        uform_stream_t* stream
        uint32_t device
        uint32_t rank
        uint32_t backward
        uform_columns_t columns
        const uint8_t* staging
        uint8_t* workspace
        const void** weights
        float** gradients
        double** terms
        void* states
        void* states_gradient
        uint32_t states_written
        const float* bags
        float* bags_gradient
        const float* world_bags
        float* world_bags_gradient
        uform_status_t (*reconstruct)(uform_host_t* host, uint32_t device, uint32_t modality, const float* scale,
                                      const float* weight, double* term) noexcept nogil
        float* row_losses
        float* vectors
        const float* world_vectors
        float* world_vectors_gradient
        uform_status_t (*fail)(uform_host_t* host, uform_status_t status, const char* message) noexcept nogil

    ctypedef struct uform_reconstruction_t:
        uint32_t first
        uint32_t active
        uint32_t capacity
        const uint32_t* count
        const void* rows
        float* rows_gradient
        const float* scale
        const float* weight
        double* term
        const uint32_t* before

    ctypedef struct uform_fill_t:
        const uform_content_t* content
        const uform_measure_t* measure
        const uform_segment_t* segment
        uint16_t* codes
        uint8_t* staging
        uint32_t before
        uint32_t device

    ctypedef struct uform_cover_t:
        const uform_segment_t* segment
        uint16_t* codes
        uint8_t* staging
        uint32_t before
        uint32_t covered
        uint32_t device
        const uint32_t* places
        const uint8_t* actions
        const uint8_t* random_bytes
        uint32_t count

    ctypedef struct uform_extra_t:
        uint32_t content
        uint32_t modality
        uint32_t limit
        const uform_choice_texts_t* choices

    ctypedef struct uform_answer_t:
        const float* values
        uint32_t width
        const uint32_t* offsets

    ctypedef enum uform_answer_kind_t:
        uform_answer_kind_none_k
        uform_answer_kind_tokens_k
        uform_answer_kind_choices_k

    # plugins

    ctypedef struct uform_modality_plugin_t:
        uint32_t abi_version
        uint32_t bytes
        const char* name
        uint32_t modality
        uint32_t cover_kind
        const uform_field_t* fields
        size_t fields_count
        size_t config_bytes
        uform_status_t (*derive)(void* config, const uform_run_t* run, const uform_declare_t* declare,
                                 uint32_t* enabled) noexcept nogil
        uform_status_t (*create)(const void* config, const uform_run_t* run, const uform_declare_t* declare,
                                 void** self) noexcept nogil
        void (*destroy)(void* self) noexcept nogil
        uform_status_t (*measure)(void* self, const uform_content_t* content, uint32_t limit, uform_measure_t* measure,
                                  char* message, size_t message_bytes) noexcept nogil
        uform_status_t (*fill)(void* self, const uform_fill_t* fill) noexcept nogil
        uform_status_t (*cover)(void* self, const uform_cover_t* cover) noexcept nogil
        uform_status_t (*finish)(void* self, uint32_t device, uint8_t* staging, uint32_t columns,
                                 uint32_t covered) noexcept nogil
        uform_status_t (*embed_forward)(void* self, const uform_pass_t* step) noexcept nogil
        uform_status_t (*embed_backward)(void* self, const uform_pass_t* step) noexcept nogil
        uform_status_t (*reconstruct)(void* self, const uform_pass_t* step,
                                      const uform_reconstruction_t* reconstruction) noexcept nogil
        uint32_t capturable

    ctypedef struct uform_objective_plugin_t:
        uint32_t abi_version
        uint32_t bytes
        const char* name
        uint32_t taps
        uint32_t capturable
        const uform_field_t* fields
        size_t fields_count
        size_t config_bytes
        uform_status_t (*derive)(void* config, const uform_run_t* run, const uform_declare_t* declare) noexcept nogil
        uform_status_t (*create)(const void* config, const uform_run_t* run, const uform_declare_t* declare,
                                 void** self) noexcept nogil
        void (*destroy)(void* self) noexcept nogil
        size_t (*covered_capacity)(void* self) noexcept nogil
        uform_status_t (*plan)(void* self, const uform_plan_t* plan, uint32_t stage) noexcept nogil
        uform_status_t (*forward_backward)(void* self, const uform_pass_t* step) noexcept nogil
        uform_status_t (*extra_columns)(void* self, const uform_extra_t* extra, uint32_t* columns, char* message,
                                        size_t message_bytes) noexcept nogil
        uform_status_t (*extra_fill)(void* self, const uform_extra_t* extra, uint16_t* codes) noexcept nogil
        uint32_t answer_kind
        uform_status_t (*infer)(void* self, const uform_pass_t* step, uform_answer_t* answer) noexcept nogil
        uform_status_t (*columns_forward)(void* self, const uform_pass_t* step) noexcept nogil
        uform_status_t (*columns_backward)(void* self, const uform_pass_t* step) noexcept nogil

    # registration

    uform_status_t uform_objective_register(const uform_objective_plugin_t* plugin)
    uform_status_t uform_modality_register(const uform_modality_plugin_t* plugin)
    const uform_objective_plugin_t* uform_objective_find(const char* name)
    const uform_modality_plugin_t* uform_modality_find(const char* name)

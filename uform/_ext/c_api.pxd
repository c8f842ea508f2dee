# The C API: what `uform/uform.h` declares, as far as the modules beside this file use it. The header documents it.
from libc.stddef cimport size_t
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t


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

    ctypedef enum uform_scalar_t:
        uform_scalar_float32_k
        uform_scalar_float16_k
        uform_scalar_bfloat16_k
        uform_scalar_int8_k
        uform_scalar_bit_k

    ctypedef enum uform_element_t:
        uform_element_uint8_k
        uform_element_int16_k
        uform_element_float32_k

    ctypedef enum uform_executor_kind_t:
        uform_executor_kind_ram_k
        uform_executor_kind_vram_k

    # configuration

    ctypedef struct uform_image_shape_t:
        int32_t patch_side
        int32_t channels

    ctypedef struct uform_video_shape_t:
        int32_t patch_side
        int32_t tube_frames
        int32_t frame_stride
        int32_t channels

    ctypedef struct uform_audio_shape_t:
        int32_t chunk_samples
        int32_t sample_rate

    ctypedef struct uform_batch_shape_t:
        int32_t max_rows_per_device
        int32_t max_segments_per_device
        int32_t max_columns_per_row
        int32_t max_bags_per_device
        int32_t max_choices_per_item
        uform_image_shape_t image
        uform_video_shape_t video
        uform_audio_shape_t audio

    ctypedef struct uform_masking_t:
        double token_mask_probability
        double token_mean_span
        double replace_fraction
        double random_fraction
        double image_mask_ratio
        double video_mask_ratio
        double audio_mask_ratio
        double text_weight
        double image_weight
        double video_weight
        double audio_weight

    enum:
        UFORM_MATRYOSHKA_CAPACITY

    ctypedef struct uform_contrastive_t:
        int32_t[16] matryoshka_dimensions
        int32_t matryoshka_count
        int32_t temperature_groups
        double inverse_temperature
        double bias
        int32_t negatives
        double ambient_repulsion_weight
        int32_t max_edges_per_device
        int32_t pair_loss
        int32_t ambient_scope

    ctypedef struct uform_late_interaction_t:
        double weight
        int32_t width
        double inverse_temperature
        double bias
        int32_t max_query_span
        int32_t max_query_tokens_per_device
        int32_t max_documents_per_device
        int32_t max_document_tokens_per_device
        int32_t pair_loss
        int32_t negatives
        double ambient_repulsion_weight
        int32_t max_edges_per_device
        int32_t ambient_scope

    ctypedef struct uform_choices_t:
        double weight
        double inverse_temperature
        double label_smoothing

    ctypedef struct uform_schedule_t:
        double learning_rate
        double min_learning_rate
        int64_t warmup_steps
        int64_t steps

    ctypedef struct uform_optimizer_t:
        double beta1
        double beta2
        double epsilon
        double weight_decay
        double max_gradient_norm

    ctypedef int (*uform_progress_t)(uint64_t done, uint64_t total, void* state) noexcept

    ctypedef struct uform_plugin_option_t:
        const char* name
        const void* config
        size_t config_bytes

    ctypedef struct uform_trainer_options_t:
        const char* resume
        int32_t depth
        int32_t hidden
        uform_batch_shape_t batch
        int32_t objective
        uform_masking_t masking
        uform_contrastive_t contrastive
        const uform_late_interaction_t* late_interaction
        const uform_choices_t* choices
        uform_schedule_t schedule
        uform_optimizer_t optimizer
        uint64_t seed
        const uform_plugin_option_t* plugins
        size_t plugins_count
        uform_progress_t progress
        void* progress_state
        uint64_t progress_steps

    # a step's input

    ctypedef struct uform_content_t:
        const void* data
        uint64_t bytes
        uint32_t rank
        uint32_t element
        uint64_t[4] extents
        int64_t[4] strides

    ctypedef struct uform_items_t:
        size_t count
        const uint8_t* modalities
        const uform_content_t* contents
        const uint8_t* tape
        const uint64_t* tape_offsets
        uint64_t tape_bytes
        const uint32_t* bags

    ctypedef struct uform_edges_t:
        const size_t* offsets
        size_t offsets_count
        const uint32_t* ids
        size_t ids_count
        const float* weights
        size_t weights_count

    ctypedef struct uform_relations_t:
        uform_edges_t attract
        uform_edges_t repel
        uform_edges_t ignore

    ctypedef struct uform_choice_texts_t:
        const uint8_t* tape
        const uint64_t* tape_offsets
        size_t count
        const uint64_t* item_offsets
        const float* targets
        size_t targets_count
        const uint64_t* target_offsets
        uint64_t tape_bytes

    ctypedef struct uform_output_t:
        void* data
        size_t rows
        size_t row_bytes
        int32_t scalar

    ctypedef struct uform_step_t:
        uform_items_t items
        const uint32_t* temperature_groups
        const uint8_t* sides
        const uform_choice_texts_t* choices
        uform_relations_t relations
        uform_output_t output

    ctypedef struct uform_named_value_t:
        const char* name
        double value

    ctypedef struct uform_trainer_step_stats_t:
        uint64_t step
        double learning_rate
        double loss
        double contrastive_loss
        double masked_text_loss
        double masked_image_loss
        double masked_video_loss
        double masked_audio_loss
        double late_interaction_loss
        double choices_loss
        uint64_t truncated
        uint64_t dropped
        double gradient_norm
        const uform_named_value_t* extra
        size_t extra_count

    # the process

    const char* uform_last_error()
    int32_t uform_last_error_number()
    const char* uform_last_error_path()
    const char* uform_version()
    const char* uform_build_config()
    uform_status_t uform_gpus(char** json)
    void uform_string_free(char* string)
    uform_status_t uform_scalar_row_bytes(int32_t scalar, size_t width, size_t* bytes)
    uform_status_t uform_items_bags(const uform_items_t* items, size_t* bags)

    # executors

    ctypedef struct uform_executor_t
    uform_status_t uform_executor_init_ram(int32_t devices, int32_t threads, const char* blas_path,
                                           uform_executor_t** executor)
    uform_status_t uform_executor_init_vram(const int32_t* devices, size_t devices_count, uform_executor_t** executor)
    void uform_executor_free(uform_executor_t* executor)
    int32_t uform_executor_kind(const uform_executor_t* executor)
    int32_t uform_executor_devices(const uform_executor_t* executor)
    int32_t uform_executor_threads(const uform_executor_t* executor)
    int32_t uform_executor_gpu_class(const uform_executor_t* executor)
    int32_t uform_executor_device(const uform_executor_t* executor, int32_t place)
    void* uform_executor_stream(const uform_executor_t* executor, int32_t place)
    const char* uform_executor_gemm(const uform_executor_t* executor)

    # arenas

    ctypedef struct uform_arena_t
    uform_status_t uform_arena_init_ram(size_t capacity, uform_arena_t** arena)
    uform_status_t uform_arena_init_vram(int32_t device, size_t capacity, uform_arena_t** arena)
    void uform_arena_free(uform_arena_t* arena)
    uform_status_t uform_arena_allocate(uform_arena_t* arena, size_t bytes, void** memory)
    uform_status_t uform_arena_init_on(uform_executor_t* executor, int32_t device, size_t capacity,
                                       uform_arena_t** arena)
    uform_status_t uform_arena_give_back(uform_arena_t* arena, const void* memory)
    uform_status_t uform_arena_reset(uform_arena_t* arena)
    uform_status_t uform_arena_copy(uform_arena_t* arena, void* to, const void* from_, size_t bytes)
    uform_status_t uform_arena_pin(uform_arena_t* arena, int32_t change)
    size_t uform_arena_used(const uform_arena_t* arena)
    size_t uform_arena_capacity(const uform_arena_t* arena)

    # trainers

    ctypedef struct uform_trainer_t
    uform_status_t uform_trainer_init_ram(uform_executor_t* executor, const uform_trainer_options_t* options,
                                          uform_trainer_t** trainer)
    uform_status_t uform_trainer_init_vram(uform_executor_t* executor, const uform_trainer_options_t* options,
                                           uform_trainer_t** trainer)
    uform_status_t uform_trainer_plan_ram(uform_executor_t* executor, const uform_trainer_options_t* options,
                                          char** json)
    uform_status_t uform_trainer_plan_vram(uform_executor_t* executor, const uform_trainer_options_t* options,
                                           char** json)
    void uform_trainer_free(uform_trainer_t* trainer)
    uform_status_t uform_trainer_step(uform_trainer_t* trainer, const uform_step_t* step,
                                      uform_trainer_step_stats_t* stats)
    ctypedef struct uform_pending_t
    uform_status_t uform_trainer_submit(uform_trainer_t* trainer, const uform_step_t* step, uform_pending_t** pending)
    uform_status_t uform_pending_wait(uform_pending_t* pending, uform_trainer_step_stats_t* stats)
    void uform_pending_free(uform_pending_t* pending)

    ctypedef struct uform_trainer_counters_t:
        uint64_t steps
        double device_seconds
        uint64_t allocations
        uint64_t host_waits
        uint64_t graphs
        uint64_t graph_launches

    uform_status_t uform_trainer_counters(uform_trainer_t* trainer, uform_trainer_counters_t* counters)
    uform_status_t uform_trainer_save(uform_trainer_t* trainer, const char* path, uform_progress_t progress,
                                      void* progress_state, uint64_t progress_steps)
    uform_status_t uform_trainer_describe(uform_trainer_t* trainer, char** json)
    uform_status_t uform_trainer_read(uform_trainer_t* trainer, const char* name, int32_t what, float* to, size_t count)
    uform_status_t uform_trainer_write(uform_trainer_t* trainer, const char* name, const float* from_, size_t count)

    # models

    ctypedef struct uform_model_t
    uform_status_t uform_model_init_ram(uform_executor_t* executor, const char* path, uform_model_t** model)
    uform_status_t uform_model_init_vram(uform_executor_t* executor, const char* path, uform_model_t** model)
    void uform_model_free(uform_model_t* model)
    uform_status_t uform_model_embed(uform_model_t* model, const uform_items_t* items, const uform_output_t* output,
                                     uint64_t* truncated, uform_progress_t progress, void* progress_state)
    uform_status_t uform_model_text_choose(uform_model_t* model, const uform_items_t* items,
                                           const uform_choice_texts_t* choices, float* probabilities, size_t count,
                                           uint64_t* truncated, uform_progress_t progress, void* progress_state)
    uform_status_t uform_model_measure_tokens(uform_model_t* model, const uform_items_t* items, const uint8_t* sides,
                                              uint64_t* offsets, size_t* width)
    uform_status_t uform_model_embed_tokens(uform_model_t* model, const uform_items_t* items, const uint8_t* sides,
                                            const uform_output_t* output, uint64_t* truncated,
                                            uform_progress_t progress, void* progress_state)
    uform_status_t uform_model_describe(uform_model_t* model, char** json)

    # losses

    ctypedef struct uform_contrastive_loss_t:
        const void* embeddings
        size_t count
        size_t width
        uform_relations_t relations
        uform_contrastive_t contrastive
        const uint8_t* modalities
        const uint8_t* sides
        const uint32_t* temperature_groups
        double* loss
        void* gradient
        float* log_inverse_temperature_gradient
        float* bias_gradient
        float* row_losses
        uint32_t* rows
        size_t* rows_count
        int32_t scalar
        int32_t strided
        int64_t row_stride
        int64_t column_stride

    ctypedef struct uform_late_interaction_loss_t:
        const void* tokens
        const uint64_t* offsets
        size_t count
        size_t width
        const uint8_t* sides
        const uint8_t* modalities
        uform_relations_t relations
        uform_late_interaction_t late_interaction
        uform_contrastive_t contrastive
        double* loss
        void* gradient
        float* log_inverse_temperature_gradient
        float* bias_gradient
        float* row_losses
        uint32_t* rows
        size_t* rows_count
        int32_t scalar
        int32_t strided
        int64_t row_stride
        int64_t column_stride

    ctypedef struct uform_masked_bytes_loss_t:
        const void* logits
        const uint8_t* targets
        size_t count
        double* loss
        void* gradient
        int32_t scalar
        int32_t strided
        int64_t row_stride
        int64_t column_stride

    uform_status_t uform_contrastive_loss(uform_executor_t* executor, const uform_contrastive_loss_t* problem)
    uform_status_t uform_late_interaction_loss(uform_executor_t* executor, const uform_late_interaction_loss_t* problem)
    uform_status_t uform_masked_bytes_loss(uform_executor_t* executor, const uform_masked_bytes_loss_t* problem)

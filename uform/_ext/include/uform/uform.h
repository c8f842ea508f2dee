/**
 *  The whole C API of uform: executors, arenas, trainers, models and the losses as functions.
 *
 *  Every structure mirrors the user's page field by field, and a field left at zero derives. Every function that can
 * fail answers a `uform_status_t`; its message is fetched, on the same thread, with `uform_last_error()`. Handles are
 * made by `uform_<noun>_init_*` and destroyed by `uform_<noun>_free`, which takes a null pointer as well. Every other
 * pointer is borrowed for the length of the call. No function of this header prints, exits the process or needs Python.
 */
#ifndef UFORM_UFORM_H_
#define UFORM_UFORM_H_

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define UFORM_API __attribute__((visibility("default")))
#else
#define UFORM_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---------------------------------------------------------------------------------------------------- enumerations */

typedef enum uform_status_t {
    uform_status_success_k = 0,
    uform_status_invalid_argument_k = 1,
    uform_status_invalid_type_k = 2,
    uform_status_out_of_memory_k = 3,
    uform_status_file_k = 4,
    uform_status_device_k = 5,
    uform_status_mesh_k = 6,
    uform_status_cancelled_k = 7,
    uform_status_not_finite_k = 8,
    uform_status_internal_k = 9,
} uform_status_t;

typedef enum uform_modality_t {
    uform_modality_text_k = 0,
    uform_modality_image_k = 1,
    uform_modality_video_k = 2,
    uform_modality_audio_k = 3,
} uform_modality_t;

typedef enum uform_objective_t {
    uform_objective_masked_k = 0,
    uform_objective_contrastive_k = 1,
    uform_objective_joint_k = 2,
} uform_objective_t;

typedef enum uform_negatives_t {
    uform_negatives_ambient_k = 0,
    uform_negatives_named_k = 1,
} uform_negatives_t;

/** Which bags a row sees as ambient negatives. */
typedef enum uform_ambient_scope_t {
    uform_ambient_scope_every_k = 0,
    uform_ambient_scope_cross_modal_k = 1,
    uform_ambient_scope_targets_k = 2,
    uform_ambient_scope_cross_side_k = 3,
} uform_ambient_scope_t;

typedef enum uform_pair_loss_form_t {
    uform_pair_loss_form_derived_k = 0,
    uform_pair_loss_form_balanced_k = 1,
    uform_pair_loss_form_ranked_k = 2,
    uform_pair_loss_form_sigmoid_k = 3,
} uform_pair_loss_form_t;

typedef enum uform_late_interaction_side_t {
    uform_late_interaction_side_none_k = 0,
    uform_late_interaction_side_query_k = 1,
    uform_late_interaction_side_document_k = 2,
    uform_late_interaction_side_query_and_document_k = 3,
} uform_late_interaction_side_t;

typedef enum uform_gpu_class_t {
    uform_gpu_class_none_k = 0,
    uform_gpu_class_ampere_k = 80,
    uform_gpu_class_ada_k = 89,
    uform_gpu_class_hopper_k = 90,
    uform_gpu_class_blackwell_k = 100,
} uform_gpu_class_t;

typedef enum uform_multimem_tier_t {
    uform_multimem_tier_none_k = 0,
    uform_multimem_tier_peer_k = 1,
    uform_multimem_tier_multicast_k = 2,
} uform_multimem_tier_t;

/** Element types of outputs: int8 are unit vectors scaled by 127, bits are signs, most significant first. */
typedef enum uform_scalar_t {
    uform_scalar_float32_k = 0,
    uform_scalar_float16_k = 1,
    uform_scalar_bfloat16_k = 2,
    uform_scalar_int8_k = 3,
    uform_scalar_bit_k = 4,
} uform_scalar_t;

/** Element types of contents given as arrays. */
typedef enum uform_element_t {
    uform_element_uint8_k = 0,
    uform_element_int16_k = 1,
    uform_element_float32_k = 2,
} uform_element_t;

/* ---------------------------------------------------------------------------------------------------- configuration */

typedef struct uform_image_shape_t {
    int32_t patch_side;
    int32_t channels;
} uform_image_shape_t;

typedef struct uform_video_shape_t {
    int32_t patch_side;
    int32_t tube_frames;
    int32_t frame_stride;
    int32_t channels;
} uform_video_shape_t;

typedef struct uform_audio_shape_t {
    int32_t chunk_samples;
    int32_t sample_rate;
} uform_audio_shape_t;

typedef struct uform_batch_shape_t {
    int32_t max_rows_per_device;
    int32_t max_segments_per_device;
    int32_t max_columns_per_row;
    int32_t max_bags_per_device;
    int32_t max_choices_per_item;
    uform_image_shape_t image;
    uform_video_shape_t video;
    uform_audio_shape_t audio;
} uform_batch_shape_t;

typedef struct uform_masking_t {
    double token_mask_probability;
    double token_mean_span;
    double replace_fraction;
    double random_fraction;
    double image_mask_ratio;
    double video_mask_ratio;
    double audio_mask_ratio;
    double text_weight;
    double image_weight;
    double video_weight;
    double audio_weight;
} uform_masking_t;

/** The most prefixes that one contrastive configuration lists. */
#define UFORM_MATRYOSHKA_CAPACITY 16

typedef struct uform_contrastive_t {
    int32_t matryoshka_dimensions[UFORM_MATRYOSHKA_CAPACITY];
    int32_t matryoshka_count;
    int32_t temperature_groups;
    double inverse_temperature;
    double bias;
    int32_t negatives; /* uform_negatives_t */
    double ambient_repulsion_weight;
    int32_t max_edges_per_device;
    int32_t pair_loss;     /* uform_pair_loss_form_t */
    int32_t ambient_scope; /* uform_ambient_scope_t */
} uform_contrastive_t;

typedef struct uform_late_interaction_t {
    double weight;
    int32_t width;
    double inverse_temperature;
    double bias;
    int32_t max_query_span;
    int32_t max_query_tokens_per_device;
    int32_t max_documents_per_device;
    int32_t max_document_tokens_per_device;
    int32_t pair_loss; /* uform_pair_loss_form_t */
    /* what is the run's Contrastive's is taken from there, whatever stands here */
    int32_t negatives;
    double ambient_repulsion_weight;
    int32_t max_edges_per_device;
    int32_t ambient_scope;
} uform_late_interaction_t;

typedef struct uform_choices_t {
    double weight;
    double inverse_temperature;
    double label_smoothing;
} uform_choices_t;

typedef struct uform_schedule_t {
    double learning_rate;
    double min_learning_rate;
    int64_t warmup_steps;
    int64_t steps;
} uform_schedule_t;

/** AdamW with decoupled decay (on matrices only) and a bound on the global norm of the gradient. */
typedef struct uform_optimizer_t {
    double beta1;
    double beta2;
    double epsilon;
    double weight_decay;
    double max_gradient_norm;
} uform_optimizer_t;

/** Called with (done, total, state) on the calling thread; 0 cancels. */
typedef int (*uform_progress_t)(uint64_t done, uint64_t total, void* state);

/** A third party's objective or modality, by its registered name, and its configuration structure (null: all zeros). */
typedef struct uform_plugin_option_t {
    char const* name;
    void const* config;
    size_t config_bytes;
} uform_plugin_option_t;

/** A field of the structures that is not zero and that nothing in the run would read is refused by its name. */
typedef struct uform_trainer_options_t {
    char const* resume; /* a path as the filesystem spells it, or null */
    int32_t depth;
    int32_t hidden;
    uform_batch_shape_t batch;
    int32_t objective; /* uform_objective_t */
    uform_masking_t masking;
    uform_contrastive_t contrastive;
    uform_late_interaction_t const* late_interaction; /* null leaves late interaction out of the run */
    uform_choices_t const* choices;                   /* null leaves choices out, unless the batch has room for them */
    uform_schedule_t schedule;
    uform_optimizer_t optimizer;
    uint64_t seed;
    uform_plugin_option_t const* plugins;
    size_t plugins_count;
    uform_progress_t progress;
    void* progress_state;
    uint64_t progress_steps;
} uform_trainer_options_t;

/* ---------------------------------------------------------------------------------------------------- a step's input
 */

/**
 *  One item's content. `rank` 0: `bytes` bytes at `data` (UTF-8 text). Otherwise an array of `rank` extents with byte
 *  strides, as decoded: images [height, width] or [height, width, channels].
 */
typedef struct uform_content_t {
    void const* data;
    uint64_t bytes;
    uint32_t rank;
    uint32_t element; /* uform_element_t */
    uint64_t extents[4];
    int64_t strides[4];
} uform_content_t;

/** The items of one call: `contents`, or a tape of texts where `contents` is null. */
typedef struct uform_items_t {
    size_t count;
    uint8_t const* modalities; /* one a content, or null: every item is a text */
    uform_content_t const* contents;
    uint8_t const* tape;          /* content i is tape[tape_offsets[i] .. tape_offsets[i + 1]) */
    uint64_t const* tape_offsets; /* count + 1 */
    uint64_t tape_bytes;          /* the length of the tape, that no offset may pass */
    uint32_t const* bags;         /* one a content, or null: each its own bag */
} uform_items_t;

typedef struct uform_edges_t {
    size_t const* offsets;
    size_t offsets_count;
    uint32_t const* ids;
    size_t ids_count;
    float const* weights; /* null: every weight is 1 */
    size_t weights_count;
} uform_edges_t;

/** Edge sets over the call's items; a set whose offsets are null is absent. */
typedef struct uform_relations_t {
    uform_edges_t attract;
    uform_edges_t repel;
    uform_edges_t ignore;
} uform_relations_t;

/** Choices of a call: texts end to end; item i makes those numbered [item_offsets[i], item_offsets[i + 1]). */
typedef struct uform_choice_texts_t {
    uint8_t const* tape;
    uint64_t const* tape_offsets; /* count + 1 */
    size_t count;
    uint64_t const* item_offsets; /* null: every text item is offered all of them */
    float const* targets;
    size_t targets_count;
    uint64_t const* target_offsets; /* items + 1 */
    uint64_t tape_bytes;            /* the length of the tape, that no offset may pass */
} uform_choice_texts_t;

/** Where the pooled embeddings go: `rows` rows of `row_bytes` bytes. */
typedef struct uform_output_t {
    void* data; /* in memory of the host or of one of the executor's GPUs; null: nothing is answered */
    size_t rows;
    size_t row_bytes;
    int32_t scalar; /* uform_scalar_t */
} uform_output_t;

typedef struct uform_step_t {
    uform_items_t items;
    uint32_t const* temperature_groups; /* one a content, or null */
    uint8_t const* sides;               /* uform_late_interaction_side_t, one a content, or null */
    uform_choice_texts_t const* choices;
    uform_relations_t relations;
    uform_output_t output;
} uform_step_t;

typedef struct uform_named_value_t {
    char const* name;
    double value;
} uform_named_value_t;

typedef struct uform_trainer_step_stats_t {
    uint64_t step;
    double learning_rate;
    double loss;
    double contrastive_loss;
    double masked_text_loss;
    double masked_image_loss;
    double masked_video_loss;
    double masked_audio_loss;
    double late_interaction_loss;
    double choices_loss;
    uint64_t truncated;
    uint64_t dropped;
    double gradient_norm;
    uform_named_value_t const* extra; /* borrowed until the trainer's next call */
    size_t extra_count;
} uform_trainer_step_stats_t;

/* ---------------------------------------------------------------------------------------------------- process */

/** The message of this thread's last failure; empty after none. */
UFORM_API char const* uform_last_error(void);

/** Where that was the system's refusal of a file: its `errno`, and the file, whose name begins the message. Else 0 and
 *  an empty text. */
UFORM_API int32_t uform_last_error_number(void);
UFORM_API char const* uform_last_error_path(void);

/** "MAJOR.MINOR.PATCH". */
UFORM_API char const* uform_version(void);

/** How this library was built, as JSON: version, compiler, whether VRAM is in. Static. */
UFORM_API char const* uform_build_config(void);

/** The GPUs that this process sees, as a JSON array; refused where there are none, with why. Makes no context. */
UFORM_API uform_status_t uform_gpus(char** json);

/** Frees a string that a function of this header handed over. */
UFORM_API void uform_string_free(char* string);

/** Bytes of one output row of `width` values. */
UFORM_API uform_status_t uform_scalar_row_bytes(int32_t scalar, size_t width, size_t* bytes);

/** Converts float32 rows of `width` values into rows of `scalar`. */
UFORM_API uform_status_t uform_scalar_convert(float const* from, size_t rows, size_t width, int32_t scalar, void* to);

/** The distinct bags among a call's items, which is the number of rows that it answers. */
UFORM_API uform_status_t uform_items_bags(uform_items_t const* items, size_t* bags);

/* ---------------------------------------------------------------------------------------------------- executors */

typedef struct uform_executor_t uform_executor_t; /* a child of fork may free what its parent made, and that alone */

typedef enum uform_executor_kind_t {
    uform_executor_kind_ram_k = 0,
    uform_executor_kind_vram_k = 1,
} uform_executor_kind_t;

/**
 *  The reference executor.
 *  @param devices Virtual devices in this process, at least 1.
 *  @param threads Worker threads in all; 0 takes the size of the affinity mask.
 *  @param blas_path A shared library with the CBLAS interface, opened at run time, or null for the plain GEMM.
 */
UFORM_API uform_status_t uform_executor_init_ram(int32_t devices, int32_t threads, char const* blas_path,
                                                 uform_executor_t** executor);

/** An executor on GPUs; `devices` null takes every visible one. */
UFORM_API uform_status_t uform_executor_init_vram(int32_t const* devices, size_t devices_count,
                                                  uform_executor_t** executor);
UFORM_API void uform_executor_free(uform_executor_t* executor);
UFORM_API int32_t uform_executor_kind(uform_executor_t const* executor);
UFORM_API int32_t uform_executor_devices(uform_executor_t const* executor);
UFORM_API int32_t uform_executor_threads(uform_executor_t const* executor);
UFORM_API int32_t uform_executor_gpu_class(uform_executor_t const* executor);

/** The index of the executor's device at `place`, or -1. */
UFORM_API int32_t uform_executor_device(uform_executor_t const* executor, int32_t place);

/**
 *  A stream of the executor's device at `place`, as the device's own API knows it (a `cudaStream_t`); null in RAM. What
 *  a call reads of the device's memory, it reads after all that was put on the stream before the call.
 */
UFORM_API void* uform_executor_stream(uform_executor_t const* executor, int32_t place);

/** The name of the GEMM that a RAM executor uses: "openblas" or "plain". Static. */
UFORM_API char const* uform_executor_gemm(uform_executor_t const* executor);

/* ---------------------------------------------------------------------------------------------------- arenas */

typedef struct uform_arena_t uform_arena_t;

/** An arena in RAM; it grows where `capacity` is 0, and otherwise takes all its bytes at once. */
UFORM_API uform_status_t uform_arena_init_ram(size_t capacity, uform_arena_t** arena);
/** The same in the memory of the GPU of that index. */
UFORM_API uform_status_t uform_arena_init_vram(int32_t device, size_t capacity, uform_arena_t** arena);
/** The same in the memory of one of an executor's devices, which it keeps alive. */
UFORM_API uform_status_t uform_arena_init_on(uform_executor_t* executor, int32_t device, size_t capacity,
                                             uform_arena_t** arena);
UFORM_API void uform_arena_free(uform_arena_t* arena);
/**
 *  Bytes that stay where they are until they are given back, or the arena is reset or freed; aligned to 64, and on a
 * GPU to 256. Safe from several threads.
 */
UFORM_API uform_status_t uform_arena_allocate(uform_arena_t* arena, size_t bytes, void** memory);
/** Makes room again of what one allocation took. */
UFORM_API uform_status_t uform_arena_give_back(uform_arena_t* arena, void const* memory);
/** Frees all at once, when the device is done with it; refuses while a step that writes into it is in flight. */
UFORM_API uform_status_t uform_arena_reset(uform_arena_t* arena);
/** Copies between the arena's memory and that of the host or its device, after all that the device was given to do. */
UFORM_API uform_status_t uform_arena_copy(uform_arena_t* arena, void* to, void const* from, size_t bytes);
/** Counts a step in flight (+1) or its end (-1). */
UFORM_API uform_status_t uform_arena_pin(uform_arena_t* arena, int32_t change);
UFORM_API size_t uform_arena_used(uform_arena_t const* arena);
UFORM_API size_t uform_arena_capacity(uform_arena_t const* arena);

/* ---------------------------------------------------------------------------------------------------- trainers */

typedef struct uform_trainer_t uform_trainer_t;

UFORM_API uform_status_t uform_trainer_init_ram(uform_executor_t* executor, uform_trainer_options_t const* options,
                                                uform_trainer_t** trainer);
UFORM_API uform_status_t uform_trainer_init_vram(uform_executor_t* executor, uform_trainer_options_t const* options,
                                                 uform_trainer_t** trainer);
/**
 *  What a run with these options would take, as JSON to free with `uform_string_free`; nothing of it is allocated, and
 * no progress is told. "planned_bytes_per_device" is what `uform_trainer_describe` tells of the run, by purpose;
 * "planned_host_bytes" is the staging that a device's transfers pass through, of all devices. What the GPU's driver and
 * NCCL keep for themselves comes on top.
 */
UFORM_API uform_status_t uform_trainer_plan_ram(uform_executor_t* executor, uform_trainer_options_t const* options,
                                                char** json);
UFORM_API uform_status_t uform_trainer_plan_vram(uform_executor_t* executor, uform_trainer_options_t const* options,
                                                 char** json);
/** The trainer keeps its executor alive, and waits here for the steps that are under way. */
UFORM_API void uform_trainer_free(uform_trainer_t* trainer);
/** One optimizer step; `stats` may be null. Calls from several threads are served one after another. */
UFORM_API uform_status_t uform_trainer_step(uform_trainer_t* trainer, uform_step_t const* step,
                                            uform_trainer_step_stats_t* stats);
/** A step that was submitted, until its outcome is fetched. */
typedef struct uform_pending_t uform_pending_t;

/**
 *  Submits a step and goes on while it runs, after all that were submitted before. The items are read before this
 *  returns; `step->output.data` is borrowed until the step is final. Wrong arguments are refused here, a step's numbers
 *  by `uform_pending_wait`, without disturbing the steps behind it. Waits while as many steps are under way as the
 *  devices have staging for. At most 64 steps' handles are not freed at a time.
 */
UFORM_API uform_status_t uform_trainer_submit(uform_trainer_t* trainer, uform_step_t const* step,
                                              uform_pending_t** pending);
/**
 *  Waits until the step is final, and answers what `uform_trainer_step` would; `stats->extra` is borrowed until the
 *  handle is freed. From any thread, even after the trainer was freed.
 */
UFORM_API uform_status_t uform_pending_wait(uform_pending_t* pending, uform_trainer_step_stats_t* stats);
/** Every handle is freed, once; waits where the step is not final. */
UFORM_API void uform_pending_free(uform_pending_t* pending);

/** What a run and its devices have done so far: for tests and inspection. */
typedef struct uform_trainer_counters_t {
    uint64_t steps;        /* submitted */
    double device_seconds; /* that the first device spent on them, from a step's first operation to its last */
    uint64_t allocations;  /* of the executor: device memory and staging */
    uint64_t host_waits;   /* of the executor: of the host for a device */
    uint64_t graphs;       /* captured */
    uint64_t graph_launches;
} uform_trainer_counters_t;

/** Waits until all steps are final. */
UFORM_API uform_status_t uform_trainer_counters(uform_trainer_t* trainer, uform_trainer_counters_t* counters);

UFORM_API uform_status_t uform_trainer_save(uform_trainer_t* trainer, char const* path, uform_progress_t progress,
                                            void* progress_state, uint64_t progress_steps);
/** The derived configuration, parameter count and planned bytes as JSON, to free with `uform_string_free`. */
UFORM_API uform_status_t uform_trainer_describe(uform_trainer_t* trainer, char** json);
/** Copies a parameter, its last gradient or a moment, in the plain form (tests, inspection). `what`: 0, 1, 2, 3. */
UFORM_API uform_status_t uform_trainer_read(uform_trainer_t* trainer, char const* name, int32_t what, float* to,
                                            size_t count);
/** Overwrites a parameter on every device. */
UFORM_API uform_status_t uform_trainer_write(uform_trainer_t* trainer, char const* name, float const* from,
                                             size_t count);

/* ---------------------------------------------------------------------------------------------------- models */

typedef struct uform_model_t uform_model_t;

UFORM_API uform_status_t uform_model_init_ram(uform_executor_t* executor, char const* path, uform_model_t** model);
UFORM_API uform_status_t uform_model_init_vram(uform_executor_t* executor, char const* path, uform_model_t** model);
UFORM_API void uform_model_free(uform_model_t* model);
/**
 *  Any number of items: they are split by bags. `truncated` may be null, and so may `progress`, which is called with
 * the bags (in the verbs below items) that are done; where it cancels, the output holds some rows.
 */
UFORM_API uform_status_t uform_model_embed(uform_model_t* model, uform_items_t const* items,
                                           uform_output_t const* output, uint64_t* truncated, uform_progress_t progress,
                                           void* progress_state);
/**
 *  The probabilities of the choices that each of any number of texts is offered: those of text i are as many as its
 *  choices, after those of the texts before it. Targets are not read. `truncated` may be null.
 *  @param count The length of `probabilities`, all the choices that all the texts are offered.
 */
UFORM_API uform_status_t uform_model_text_choose(uform_model_t* model, uform_items_t const* items,
                                                 uform_choice_texts_t const* choices, float* probabilities,
                                                 size_t count, uint64_t* truncated, uform_progress_t progress,
                                                 void* progress_state);
/**
 *  How many token vectors `uform_model_embed_tokens` answers for each item, as places of their first: count + 1.
 *  @param sides uform_late_interaction_side_t by item, or null: a QUERY's are those of its first max_query_span
 * columns.
 *  @param width Where the values of a vector go.
 */
UFORM_API uform_status_t uform_model_measure_tokens(uform_model_t* model, uform_items_t const* items,
                                                    uint8_t const* sides, uint64_t* offsets, size_t* width);
/** The late-interaction vectors of any number of items, one row a column, in the order of items. */
UFORM_API uform_status_t uform_model_embed_tokens(uform_model_t* model, uform_items_t const* items,
                                                  uint8_t const* sides, uform_output_t const* output,
                                                  uint64_t* truncated, uform_progress_t progress, void* progress_state);
UFORM_API uform_status_t uform_model_describe(uform_model_t* model, char** json);

/* ---------------------------------------------------------------------------------------------------- losses */

/**
 *  The contrastive objective over given vectors; one item is one bag. They lie in host memory, or in that of one of the
 * executor's GPUs, which is then where the work is done; `gradient` and the arrays after it lie there, too. Memory of
 * a GPU is read after what `uform_executor_stream` has been given, and all is done when the call returns.
 */
typedef struct uform_contrastive_loss_t {
    void const* embeddings; /* [count, width] */
    size_t count;
    size_t width;
    uform_relations_t relations;
    uform_contrastive_t contrastive;
    uint8_t const* modalities;          /* or null */
    uint8_t const* sides;               /* or null */
    uint32_t const* temperature_groups; /* or null */
    /* answers */
    double* loss;
    void* gradient;                          /* [count, width], of the embeddings' type, end to end */
    float* log_inverse_temperature_gradient; /* [groups] */
    float* bias_gradient;                    /* [groups] */
    float* row_losses;                       /* [count], the first *rows_count are written */
    uint32_t* rows;                          /* [count], the items that counted, ascending; on the host */
    size_t* rows_count;
    /* how the embeddings lie */
    int32_t scalar;     /* uform_scalar_t: float32, or in a GPU's memory bfloat16 */
    int32_t strided;    /* 0: end to end, and the strides are not read */
    int64_t row_stride; /* in values */
    int64_t column_stride;
} uform_contrastive_loss_t;

UFORM_API uform_status_t uform_contrastive_loss(uform_executor_t* executor, uform_contrastive_loss_t const* problem);

/**
 *  The late-interaction objective over given token vectors: item i has rows [offsets[i], offsets[i + 1]), at least one
 *  where it has a side. Of `contrastive` only the negatives, their scope and their weight are read, and the bound on
 *  edges. Where things lie is as above.
 */
typedef struct uform_late_interaction_loss_t {
    void const* tokens;      /* [offsets[count], width] */
    uint64_t const* offsets; /* count + 1 */
    size_t count;
    size_t width;
    uint8_t const* sides;      /* uform_late_interaction_side_t */
    uint8_t const* modalities; /* or null */
    uform_relations_t relations;
    uform_late_interaction_t late_interaction;
    uform_contrastive_t contrastive;
    /* answers */
    double* loss;
    void* gradient;                          /* like the tokens, end to end */
    float* log_inverse_temperature_gradient; /* [1] */
    float* bias_gradient;                    /* [1] */
    float* row_losses;                       /* [count], the first *rows_count are written */
    uint32_t* rows;                          /* [count], the items that counted, ascending; on the host */
    size_t* rows_count;
    /* how the tokens lie */
    int32_t scalar;
    int32_t strided;
    int64_t row_stride;
    int64_t column_stride;
} uform_late_interaction_loss_t;

UFORM_API uform_status_t uform_late_interaction_loss(uform_executor_t* executor,
                                                     uform_late_interaction_loss_t const* problem);

/** Mean cross-entropy over `count` rows of 256 logits, and its gradient. Where they lie is as above. */
typedef struct uform_masked_bytes_loss_t {
    void const* logits;     /* [count, 256] */
    uint8_t const* targets; /* [count] */
    size_t count;
    /* answers */
    double* loss;
    void* gradient; /* [count, 256], of the logits' type, end to end; or null */
    /* how the logits lie */
    int32_t scalar;
    int32_t strided;
    int64_t row_stride;
    int64_t column_stride;
} uform_masked_bytes_loss_t;

UFORM_API uform_status_t uform_masked_bytes_loss(uform_executor_t* executor, uform_masked_bytes_loss_t const* problem);

#ifdef __cplusplus
}
#endif

#endif

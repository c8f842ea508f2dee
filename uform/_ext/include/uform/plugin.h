/**
 *  The plugin ABI: what an objective or a modality offers, what it is given, and the table of operations.
 *
 *  Plain C, versioned and append-only. A plugin is a structure of function pointers with a name and a description of
 * its configuration structure. First-party plugins use nothing else than this header. Every callback answers a
 *  `uform_status_t`, after leaving its message with the `fail` of what it was given, or as an operation answered it.
 *  They allocate nothing during a step: what they need is declared once. plugins/README.md is a walk-through.
 *
 *  Words: an item is one content of a call; a kept item became one segment of columns on one device; a bag pools some
 * items into one embedding. A slot numbers a bag over the world: device rank * bags capacity + its place on the device.
 */
#ifndef UFORM_PLUGIN_H_
#define UFORM_PLUGIN_H_

#include <stddef.h>
#include <stdint.h>

#include <uform/uform.h>

#ifdef __cplusplus
extern "C" {
#endif

#define UFORM_PLUGIN_ABI_VERSION 1

/** A code that marks a column whose state comes from values, not from its modality's table. */
#define UFORM_CODE_VALUES 0xFFFFu

/** Rows of the texts' table: a row for each byte comes first. */
typedef enum uform_text_code_t {
    uform_text_code_marker_k = 256,
    uform_text_code_mask_k = 257,
    uform_text_code_separator_k = 258, /* between a text and its choices */
    uform_text_code_choice_k = 259,    /* leads every choice */
    uform_text_code_count_k = 260,
} uform_text_code_t;

/** Third parties' modalities are numbered from the first of these to below the second. */
#define UFORM_MODALITY_FREE 16
#define UFORM_MODALITY_END 32

/** The most axes of rotary positions. */
#define UFORM_AXES 3

/* ---------------------------------------------------------------------------------------------------- configuration */

typedef enum uform_field_type_t {
    uform_field_type_int32_k = 0,
    uform_field_type_int64_k = 1,
    uform_field_type_double_k = 2,
    /** An int32 array of `capacity`, followed elsewhere by its int32 count at `count_offset`. */
    uform_field_type_int32_list_k = 3,
} uform_field_type_t;

/**
 *  One field of a configuration structure: it is described, saved in checkpoints and compared by this.
 *
 *  A plugin may grow: a field that a checkpoint lacks is zero there, and derives. Any other value that a run could not
 *  have derived is refused there, with the field's name.
 */
typedef struct uform_field_t {
    char const* name;
    int32_t type; /* uform_field_type_t */
    size_t offset;
    size_t capacity;
    size_t count_offset;
} uform_field_t;

/** What a plugin is told about the run, all derived. */
typedef struct uform_run_t {
    uint32_t hidden;
    uint32_t devices;    /* of this process */
    uint32_t first_rank; /* of this process's first device in the world */
    uint32_t world_devices;
    uint32_t columns_capacity; /* a device */
    uint32_t row_columns;      /* columns of one row: the most that a segment takes */
    uint32_t segments_capacity;
    uint32_t bags_capacity;
    uint32_t choices_capacity; /* an item */
    uint32_t training;         /* 0: inference only, heads and most objectives are left out */
    uint64_t seed;
} uform_run_t;

/* ---------------------------------------------------------------------------------------------------- device data */

/** One item's columns: the marker, its content, then what objectives asked for. Device-side as well. */
typedef struct uform_segment_t {
    uint32_t first;   /* its first column */
    uint32_t columns; /* all of them */
    uint32_t pooled;  /* the leading columns that are pooled: marker and content */
    uint32_t bag;     /* its bag's place on the device */
    uint16_t modality;
    uint16_t axes; /* 1, 2 or 3 */
    uint16_t
        extents[UFORM_AXES]; /* of the content's grid, slowest first; a single axis has the count of columns in [0] */
    uint16_t reserved;
} uform_segment_t;

/** The columns of one device's batch. Pointers are device-side; `active` is the host's rounded-up count. */
typedef struct uform_columns_t {
    uint32_t capacity;
    uint32_t active; /* columns that grids must reach */
    uint32_t segments_capacity;
    uint32_t bags_capacity;
    uint32_t longest;       /* an upper bound of a segment's columns */
    uint32_t const* counts; /* [3]: columns, segments, bags */
    uform_segment_t const* segments;
    uint16_t const* codes; /* [capacity] row of the modality's table, or UFORM_CODE_VALUES */
    uint32_t* segment_of;  /* [capacity], written by columns_expand */
    uint16_t* positions;   /* [capacity][3], written by columns_expand */
} uform_columns_t;

/** Opaque: the order of work on one device. In RAM it carries the worker threads. */
typedef struct uform_stream_t uform_stream_t;

/** Opaque: a point in the order of work, which other streams and the host wait for. */
typedef struct uform_event_t uform_event_t;

/** Opaque: work that was captured off a stream, to be put on it again as often as wanted. */
typedef struct uform_graph_t uform_graph_t;

/* ---------------------------------------------------------------------------------------------------- operations'
 * arguments */

typedef struct uform_extents_t {
    uint32_t depth;
    uint32_t hidden;
    uint32_t inner;
    uint32_t heads;
} uform_extents_t;

/**
 *  One block of the encoder. Weights are in the backend's own form (see `weights_import`), their gradients are plain
 *  float32 that operations add to. `input`, `output` and the two gradients are [active, hidden] in the backend's type.
 *  `saved` holds what forward leaves for backward, `workspace` nothing that outlives one block.
 */
typedef struct uform_layer_t {
    uform_extents_t extents;
    uform_columns_t columns;
    void const *norm1, *qkv, *out, *norm2, *up, *down;
    float *norm1_gradient, *qkv_gradient, *out_gradient, *norm2_gradient, *up_gradient, *down_gradient;
    void const* input;
    void* output;
    void* gradient; /* of the output when backward enters the block, of the input when it leaves */
    void* saved;
    size_t saved_bytes;
    void* workspace;
    size_t workspace_bytes;
} uform_layer_t;

/** RMSNorm with a gain after the last block: hidden = x / sqrt(mean(x^2) + 1e-6) * gain. */
typedef struct uform_norm_t {
    uform_columns_t columns;
    uint32_t hidden;
    void const* gain;
    float* gain_gradient;
    void const* input;
    void* output;
    float* inverse_rms; /* [active] */
    void* gradient;     /* of the output in, of the input out */
    void* workspace;
    size_t workspace_bytes;
} uform_norm_t;

/** Rows of a modality's table for every column whose code is one: x[c] = table[codes[c]]. */
typedef struct uform_embedding_t {
    uform_columns_t columns;
    uint32_t hidden;
    uint32_t modality; /* columns of other modalities are left alone */
    uint32_t table_rows;
    void const* table;
    float* table_gradient; /* added to, in a fixed order */
    void* states;          /* forward writes them */
    void const* gradient;  /* backward reads that of `states` */
    void* workspace;
    size_t workspace_bytes;
} uform_embedding_t;

/** A linear map of raw values: x[columns[p]] = weight (values[p] * multiplier + offset), weight [hidden, width]. */
typedef struct uform_patches_t {
    uform_columns_t columns;
    uint32_t hidden;
    uint32_t width;
    uint32_t element; /* uform_element_t of the values */
    float multiplier;
    float offset;
    uint32_t capacity;
    uint32_t active;               /* the host's rounded-up count */
    uint32_t const* count;         /* device-side */
    void const* values;            /* [capacity, width] */
    uint32_t const* patch_columns; /* [capacity] the column of each; a column with a code is skipped */
    void const* weight;
    float* weight_gradient;
    void* states;
    void const* gradient;
    void* workspace;
    size_t workspace_bytes;
} uform_patches_t;

/** Mean of each bag's pooled columns scaled to unit length: z = m / max(|m|, 1e-12). */
typedef struct uform_pool_t {
    uform_columns_t columns;
    uint32_t hidden;
    void const* hidden_states;
    float* pooled;         /* [bags_capacity, hidden]; rows past the count are zero */
    float* lengths;        /* [bags_capacity] |m| */
    uint32_t* bag_columns; /* [bags_capacity] pooled columns of each */
    float const* pooled_gradient;
    void* gradient;      /* of hidden_states */
    uint32_t accumulate; /* 0: overwrite every active column (zero where not pooled); 1: add */
    void* workspace;
    size_t workspace_bytes;
} uform_pool_t;

/** Rows of the hidden states by index, and their gradients back. Indices are distinct. */
typedef struct uform_rows_t {
    uint32_t hidden;
    uint32_t capacity;
    uint32_t active;
    uint32_t const* count;
    uint32_t const* indices;
    void const* states;
    void* rows;                 /* [capacity, hidden] in the backend's type */
    float const* rows_gradient; /* [capacity, hidden] */
    void* gradient;             /* of the states */
    uint32_t accumulate;        /* 0: overwrite all `columns_active` rows (zero elsewhere); 1: add */
    uint32_t columns_active;
} uform_rows_t;

/** Prediction of covered bytes with weights tied to the table's first 256 rows. Gradients are added to. */
typedef struct uform_bytes_head_t {
    uint32_t hidden;
    uint32_t capacity;
    uint32_t active;
    uint32_t first; /* rows [first, first + *count) are this modality's */
    uint32_t const* count;
    void const* rows; /* [*, hidden] */
    void const* table;
    uint8_t const* targets; /* [capacity], by place after `first` */
    float const* scale;     /* device-side: 1 / the world's covered bytes */
    float const* weight;    /* device-side: the gradient's factor on top */
    double* loss;           /* += scale * sum of cross-entropies */
    float* rows_gradient;   /* rows [first, ...) are overwritten; null: value only */
    float* table_gradient;  /* added to; null: value only */
    void* workspace;
    size_t workspace_bytes;
    uint32_t const* before; /* device-side: rows begin at first + *before; null: at first */
} uform_bytes_head_t;

/** Prediction of covered patches: head [width, hidden]; targets are the values, normalised each by mean and variance.
 */
typedef struct uform_patches_head_t {
    uint32_t hidden;
    uint32_t width;
    uint32_t element;
    float multiplier;
    float offset;
    uint32_t capacity;
    uint32_t active;
    uint32_t first;
    uint32_t const* count;
    void const* rows;
    void const* values;              /* [*, width] of all patches */
    uint32_t const* covered_patches; /* [capacity] the patch of each covered row, by place after `first` */
    void const* head;
    float* head_gradient;
    float const*
        scale; /* device-side: 1 / the world's covered patches; the mean over a patch's width is the operation's */
    float const* weight; /* device-side: the gradient's factor on top */
    double* loss;
    float* rows_gradient;
    void* workspace;
    size_t workspace_bytes;
    uint32_t const* before; /* device-side: rows begin at first + *before; null: at first */
} uform_patches_head_t;

/**
 *  A softmax over each item's choices: the logit of row r is exp(*log_inverse_temperature) * rows[r] . vector. The loss
 *  of an item is the cross-entropy to its targets, so that of zeros is 0. Gradients are added to but for the rows'.
 */
typedef struct uform_choices_head_t {
    uint32_t hidden;
    uint32_t items_capacity;
    uint32_t items_active;
    uint32_t rows_capacity;
    uint32_t rows_active;
    uint32_t const* counts;               /* device-side [2]: items, rows */
    uint32_t const* offsets;              /* [items + 1] rows of each item; an item has at least one */
    void const* rows;                     /* [rows, hidden] hidden states at the choice columns */
    float const* vector;                  /* [hidden] plain */
    float const* log_inverse_temperature; /* [1] plain */
    float* probabilities;                 /* [rows] overwritten */
    float const* targets;   /* [rows]; null: only probabilities, and nothing below but the workspace is read */
    float const* scale;     /* device-side: 1 / the world's items that make a choice */
    float const* weight;    /* device-side: the gradient's factor on top */
    double* loss;           /* += scale * sum of the items' losses */
    float* rows_gradient;   /* [rows, hidden] overwritten; null: value only */
    float* vector_gradient; /* [hidden] */
    float* log_inverse_temperature_gradient;
    void* workspace;
    size_t workspace_bytes;
} uform_choices_head_t;

/** Mean cross-entropy of plain float32 logits; the gradient may be null or alias the logits. */
typedef struct uform_cross_entropy_t {
    uint32_t classes;
    uint64_t count;
    float const* logits;    /* [count, classes] */
    uint8_t const* targets; /* [count] */
    float scale;            /* 1 / the count of the mean */
    double* loss;           /* += */
    float* gradient;        /* overwritten */
    void* workspace;
    size_t workspace_bytes;
} uform_cross_entropy_t;

typedef enum uform_pair_class_t {
    uform_pair_class_ignored_k = 0,
    uform_pair_class_attracted_k = 1,
    uform_pair_class_repelled_k = 2,
} uform_pair_class_t;

/** The first `width` columns of chosen vectors, scaled to unit length where `normalize`. */
typedef struct uform_prefix_t {
    uint32_t stride; /* of the source */
    uint32_t width;
    uint32_t normalize; /* 0: copied as they are */
    uint32_t capacity;
    uint32_t active;
    uint32_t const* count;
    uint32_t const* indices; /* [capacity] distinct rows of the source */
    float const* source;     /* [*, stride] */
    float* vectors;          /* [capacity, width] */
    float* lengths;          /* [capacity] */
    float const* vectors_gradient;
    float* source_gradient; /* rows at indices are added to */
} uform_prefix_t;

/**
 *  A pairwise loss over `units`: bags whose vectors are compared. Row r is the unit rows[r]; every other unit is its
 *  candidate, with the class and weight of the row's edges, else ambient where negatives and scope say so, else no
 * pair. design/objectives: "Pairs". All sums of exponentials are kept as logarithms.
 */
typedef struct uform_pairs_t {
    uint32_t width;
    uint32_t units_capacity;
    uint32_t rows_capacity;
    uint32_t edges_capacity;
    uint32_t units_active;
    uint32_t rows_active;
    uint32_t groups;
    uint32_t const* counts;       /* device-side [3]: units, rows, edges */
    uint32_t const* indices;      /* [units] distinct rows of `vectors` and `gradient`; null: unit u is row u */
    float const* vectors;         /* [units, width]; with indices [*, width] */
    uint32_t const* rows;         /* [rows] units, ascending */
    uint32_t const* row_groups;   /* [rows] temperature group */
    uint32_t const* modalities;   /* [units] set of modalities, a bit each */
    uint8_t const* sides;         /* [units] */
    uint8_t const* targets;       /* [units] 1 where some attracted or repelled pair of the world points at it */
    uint32_t const* edge_offsets; /* [rows + 1] */
    uint32_t const* edge_units;   /* [edges] ascending within a row, never the row itself */
    uint8_t const* edge_classes;  /* [edges] uform_pair_class_t */
    float const* edge_weights;    /* [edges] */
    int32_t form;                 /* uform_pair_loss_form_t, not derived */
    int32_t negatives;
    int32_t scope;
    float ambient_weight;
    void const* log_inverse_temperature; /* [groups] plain float32 */
    void const* bias;                    /* [groups] plain float32 */
    float const* scale;                  /* device-side: 1 / (the world's rows * prefixes) */
    double* loss;                        /* += scale * sum of row losses */
    float* row_losses;                   /* [rows_capacity] += row_losses_scale * row loss, or null */
    float row_losses_scale;
    float* row_logs;   /* [rows_capacity] L_i or n_i, forward writes, backward reads */
    float* row_forces; /* [rows_capacity] RANKED's A_i */
    float* gradient;   /* as `vectors`, by backward: overwritten; with indices the rows there are added to */
    float* log_inverse_temperature_gradient; /* [groups], added to */
    float* bias_gradient;                    /* [groups], added to */
    void* workspace;
    size_t workspace_bytes;
} uform_pairs_t;

/** Every column's hidden state mapped to `width` values and scaled to unit length: v = m / max(|m|, 1e-12), m = W h. */
typedef struct uform_vectors_t {
    uform_columns_t columns;
    uint32_t hidden;
    uint32_t width;
    void const* states;            /* [active, hidden] */
    void const* weight;            /* [width, hidden], a matrix */
    float* vectors;                /* [capacity, width] */
    float* lengths;                /* [capacity] |m| */
    float const* vectors_gradient; /* [capacity, width], read up to the count of columns */
    void* gradient;                /* of the states: added to, [active, hidden] */
    float* weight_gradient;        /* added to */
    void* workspace;
    size_t workspace_bytes;
} uform_vectors_t;

/** Rows [first, first + count) of vectors; `place` is how many rows the runs before it have together. */
typedef struct uform_run_of_rows_t {
    uint32_t first;
    uint32_t count;
    uint32_t place;
} uform_run_of_rows_t;

/** The most rows of one run. */
#define UFORM_RUN_CAPACITY 65535u

/**
 *  How well queries match documents, both runs of vectors: similarity [q][d] is the mean over the query's vectors of
 *  the largest dot product with any of the document's. Runs of queries do not overlap, nor do those of documents; none
 *  is empty. The gradient follows the largest product, of equal ones that of the lowest row.
 */
typedef struct uform_maxsim_t {
    uint32_t width;
    uint32_t vectors_capacity;
    uint32_t queries_capacity;
    uint32_t query_vectors_capacity;
    uint32_t documents_capacity;
    uint32_t document_vectors_capacity;
    uint32_t longest;       /* an upper bound of a document's rows */
    uint32_t const* counts; /* device-side [3]: queries, their vectors, documents */
    float const* vectors;   /* [vectors_capacity, width] */
    uform_run_of_rows_t const* queries;
    uform_run_of_rows_t const* documents;
    float* similarities;       /* [queries, documents_capacity] */
    uint16_t* places;          /* [documents, query_vectors_capacity] where in the document; forward writes them */
    float const* coefficients; /* [queries, documents_capacity] d loss / d similarity */
    float* gradient;           /* [vectors_capacity, width] overwritten by backward */
    void* workspace;           /* keeps what forward leaves for backward */
    size_t workspace_bytes;
} uform_maxsim_t;

/**
 *  A pairwise loss over given similarities, in the forms of `uform_pairs_t`: a row's candidate has the class and weight
 *  of the row's edges, else it is ambient where the row's look and its face have no bit in common, else there is no
 *  pair. Score = exp(*log_inverse_temperature) * similarity + *bias, the bias in the sigmoid form alone.
 */
typedef struct uform_similarity_pairs_t {
    uint32_t rows_capacity;
    uint32_t candidates_capacity;
    uint32_t edges_capacity;
    uint32_t const* counts;          /* device-side [3]: rows, candidates, edges */
    float const* similarities;       /* [rows, candidates_capacity] */
    uint32_t const* own;             /* [rows] the candidate that is the row itself; UINT32_MAX: none */
    uint32_t const* looks;           /* [rows] */
    uint32_t const* faces;           /* [candidates] */
    uint32_t const* edge_offsets;    /* [rows + 1] */
    uint32_t const* edge_candidates; /* [edges] ascending within a row, never the row itself */
    uint8_t const* edge_classes;     /* [edges] uform_pair_class_t */
    float const* edge_weights;       /* [edges] */
    int32_t form;                    /* uform_pair_loss_form_t, not derived */
    float ambient_weight;
    float const* log_inverse_temperature;
    float const* bias;
    float const* scale; /* device-side: what a row's loss counts */
    double* loss;       /* += scale * sum of row losses */
    float* row_losses;  /* [rows_capacity] += row loss, or null */
    float*
        coefficients; /* [rows, candidates_capacity] scale * d row loss / d similarity, overwritten; null: value only */
    float* log_inverse_temperature_gradient; /* [1], added to */
    float* bias_gradient;                    /* [1], added to */
    void* workspace;
    size_t workspace_bytes;
} uform_similarity_pairs_t;

/** One parameter as the update sees it; device-side array, ascending by offset, covering the flat buffers whole. */
typedef struct uform_parameter_span_t {
    uint64_t offset;
    uint64_t count;
    float decay;   /* 0 or 1: whether weight decay applies */
    float minimum; /* put back after the update; -inf and inf where unbounded */
    float maximum;
    uint32_t rows;
    uint32_t columns;
    uint32_t kind; /* uform_parameter_kind_t */
    void* working; /* the backend's own form; the plain values themselves in RAM */
} uform_parameter_span_t;

/** The most loss terms of a run. */
#define UFORM_TERMS_CAPACITY 32

/** The most gradients of third parties that a run looks through. */
#define UFORM_FINDINGS_CAPACITY 32

/** Device-side; downloaded once a step. */
typedef struct uform_update_state_t {
    uint64_t applied;                   /* optimizer steps so far */
    double learning_rate;               /* of the last one */
    double gradient_norm;               /* before the clip */
    double terms[UFORM_TERMS_CAPACITY]; /* world means, summed over devices */
    uint64_t refused;                   /* 1: the last call was not finite and changed nothing */
    /** The first value that is not finite in what a third party's plugin wrote, by place; UINT64_MAX: there is none. */
    uint64_t not_finite[UFORM_FINDINGS_CAPACITY];
} uform_update_state_t;

/** AdamW with decoupled decay over flat buffers, unless a term or the norm is not finite. */
typedef struct uform_update_t {
    uint64_t count;
    float* parameters;
    float* gradient;
    float* first_moment;
    float* second_moment;
    uform_parameter_span_t const* spans; /* device-side */
    uint32_t spans_count;
    uint32_t terms_count;
    double peak, floor; /* learning rates */
    int64_t warmup_steps, steps;
    double beta1, beta2, epsilon, decay, max_norm; /* max_norm 0: no clip */
    uform_update_state_t* state;
    void* workspace;
    size_t workspace_bytes;
} uform_update_t;

/**
 *  Rows of float32 as rows of another element type, as `uform_scalar_convert` rounds: row places[i] of `to` becomes row
 * i of `from`. Both are device-side, on one device or on two of the process.
 */
typedef struct uform_narrow_t {
    uint32_t width;
    uint32_t count;
    int32_t scalar;         /* uform_scalar_t */
    uform_stream_t* source; /* where `from` lies: what was put on it before is awaited; null: the operation's own */
    float const* from;      /* [count, width] */
    uint32_t const* places; /* host: [count] distinct, or null: one after another */
    void* to;
    size_t to_bytes; /* from one row of `to` to the next, whole elements */
} uform_narrow_t;

/** A matrix of float32 or bfloat16 with strides as float32 rows end to end, looked through for what is not finite. */
typedef struct uform_widen_t {
    uint32_t rows;
    uint32_t width;
    int32_t scalar;     /* uform_scalar_t: float32 or bfloat16 */
    int64_t row_stride; /* in values */
    int64_t column_stride;
    void const* from;
    float* to;            /* [rows, width], or null: it is only looked through */
    uint64_t* not_finite; /* row * width + column of the first such value, UINT64_MAX where there is none */
} uform_widen_t;

typedef enum uform_parameter_kind_t {
    uform_parameter_kind_matrix_k = 0,    /* decayed, multiplied by the backend's GEMM */
    uform_parameter_kind_embedding_k = 1, /* decayed, read by row */
    uform_parameter_kind_vector_k = 2,    /* gains: not decayed */
    uform_parameter_kind_plain_k = 3,     /* temperatures, biases: float32 on every backend, not decayed */
} uform_parameter_kind_t;

/** Work of many independent tasks on the host's worker threads; tasks are numbered, their size is the caller's. */
typedef struct uform_parallel_t {
    void* pool;
    void (*run)(void* pool, size_t tasks, void (*task)(void* state, size_t index), void* state);
} uform_parallel_t;

typedef struct uform_backend_options_t {
    uform_parallel_t parallel;
    char const* blas_path;
    int32_t const* devices; /* indices of GPUs; null in RAM */
    uint32_t devices_count;
} uform_backend_options_t;

/** What a backend did so far that a step must not do: for tests and inspection. */
typedef struct uform_backend_counters_t {
    uint64_t allocations; /* of device memory and of staging */
    uint64_t host_waits;  /* of the host for a device */
} uform_backend_counters_t;

/**
 *  The table of operations, which each backend implements: the one seam between what is computed and where. An
 * operation takes plain pointers, extents, device-side counts and a stream; it allocates nothing and waits for nothing
 * unless its name says so.
 */
typedef struct uform_operations_t {
    uint32_t abi_version;
    uint32_t bytes;
    char const* name;
    uint32_t host_memory; /* 1: device memory is the host's, so that staging is filled where it is read */

    /* the backend and its devices */
    uform_status_t (*backend_create)(uform_backend_options_t const* options, void** backend);
    void (*backend_destroy)(void* backend);
    char const* (*backend_gemm)(void const* backend);
    int32_t (*backend_gpu_class)(void const* backend); /* uform_gpu_class_t that every device dispatches as */
    uform_status_t (*stream_create)(void* backend, uint32_t device, uform_stream_t** stream);
    void (*stream_destroy)(uform_stream_t* stream);
    uform_status_t (*stream_synchronize)(uform_stream_t* stream);
    uform_status_t (*memory_allocate)(uform_stream_t* stream, size_t bytes, void** memory);
    void (*memory_release)(uform_stream_t* stream, void* memory);
    /** Memory of the host that uploads read at full speed. */
    uform_status_t (*staging_allocate)(uform_stream_t* stream, size_t bytes, void** memory);
    void (*staging_release)(uform_stream_t* stream, void* memory);
    uform_status_t (*memory_upload)(uform_stream_t* stream, void* device, void const* host, size_t bytes);
    uform_status_t (*memory_download)(uform_stream_t* stream, void* host, void const* device, size_t bytes);
    uform_status_t (*memory_zero)(uform_stream_t* stream, void* device, size_t bytes);

    /* sizes: pure */
    size_t (*state_bytes)(uint32_t hidden); /* of one column's hidden state */
    size_t (*weights_bytes)(uint32_t kind, uint32_t rows,
                            uint32_t columns); /* of the backend's own form; 0: the plain one */
    size_t (*layer_saved_bytes)(uform_extents_t const*, uint32_t columns);
    size_t (*layer_workspace_bytes)(uform_extents_t const*, uint32_t columns, uint32_t segments);
    size_t (*norm_workspace_bytes)(uint32_t hidden, uint32_t columns);
    size_t (*embedding_workspace_bytes)(uint32_t hidden, uint32_t table_rows, uint32_t columns);
    size_t (*patches_workspace_bytes)(uint32_t hidden, uint32_t width, uint32_t patches);
    size_t (*pool_workspace_bytes)(uint32_t hidden, uint32_t bags);
    size_t (*bytes_head_workspace_bytes)(uint32_t hidden, uint32_t rows);
    size_t (*patches_head_workspace_bytes)(uint32_t hidden, uint32_t width, uint32_t rows);
    size_t (*cross_entropy_workspace_bytes)(uint32_t classes, uint64_t count);
    size_t (*pairs_workspace_bytes)(uint32_t units, uint32_t rows, uint32_t edges, uint32_t width, uint32_t groups);
    size_t (*update_workspace_bytes)(uint64_t count);

    /* weights between the plain form and the backend's */
    uform_status_t (*weights_import)(uform_stream_t*, uint32_t kind, uint32_t rows, uint32_t columns,
                                     float const* plain, void* working);

    /* columns */
    uform_status_t (*columns_expand)(uform_stream_t*, uform_columns_t const*);
    uform_status_t (*embedding_forward)(uform_stream_t*, uform_embedding_t const*);
    uform_status_t (*embedding_backward)(uform_stream_t*, uform_embedding_t const*);
    uform_status_t (*patches_forward)(uform_stream_t*, uform_patches_t const*);
    uform_status_t (*patches_backward)(uform_stream_t*, uform_patches_t const*);

    /* the encoder's block */
    uform_status_t (*norm_qkv_forward)(uform_stream_t*, uform_layer_t const*);
    uform_status_t (*attention_forward)(uform_stream_t*, uform_layer_t const*);
    uform_status_t (*out_residual_forward)(uform_stream_t*, uform_layer_t const*);
    uform_status_t (*norm_geglu_forward)(uform_stream_t*, uform_layer_t const*);
    uform_status_t (*down_residual_forward)(uform_stream_t*, uform_layer_t const*);
    uform_status_t (*down_residual_backward)(uform_stream_t*, uform_layer_t const*);
    uform_status_t (*norm_geglu_backward)(uform_stream_t*, uform_layer_t const*);
    uform_status_t (*out_residual_backward)(uform_stream_t*, uform_layer_t const*);
    uform_status_t (*attention_backward)(uform_stream_t*, uform_layer_t const*);
    uform_status_t (*norm_qkv_backward)(uform_stream_t*, uform_layer_t const*);

    /* after the last block */
    uform_status_t (*norm_forward)(uform_stream_t*, uform_norm_t const*);
    uform_status_t (*norm_backward)(uform_stream_t*, uform_norm_t const*);
    uform_status_t (*pool_forward)(uform_stream_t*, uform_pool_t const*);
    uform_status_t (*pool_backward)(uform_stream_t*, uform_pool_t const*);
    uform_status_t (*rows_gather)(uform_stream_t*, uform_rows_t const*);
    uform_status_t (*rows_scatter)(uform_stream_t*, uform_rows_t const*);

    /* objectives */
    uform_status_t (*bytes_head)(uform_stream_t*, uform_bytes_head_t const*);
    uform_status_t (*patches_head)(uform_stream_t*, uform_patches_head_t const*);
    uform_status_t (*cross_entropy)(uform_stream_t*, uform_cross_entropy_t const*);
    uform_status_t (*prefix_forward)(uform_stream_t*, uform_prefix_t const*);
    uform_status_t (*prefix_backward)(uform_stream_t*, uform_prefix_t const*);
    uform_status_t (*pairs_forward)(uform_stream_t*, uform_pairs_t const*);
    uform_status_t (*pairs_backward)(uform_stream_t*, uform_pairs_t const*);

    /* the devices of one process among themselves: element-wise sum into every buffer; blocks of every rank to every
     * rank */
    uform_status_t (*reduce_sum)(uform_stream_t* const* streams, float* const* buffers, uint32_t devices,
                                 uint64_t count);
    uform_status_t (*reduce_terms)(uform_stream_t* const* streams, double* const* buffers, uint32_t devices,
                                   uint64_t count);
    uform_status_t (*gather)(uform_stream_t* const* streams, void const* const* from, void* const* to, uint32_t devices,
                             uint64_t bytes);

    /* the update */
    uform_status_t (*update)(uform_stream_t*, uform_update_t const*);

    /* memory that others hand over and take */
    uform_status_t (*device_synchronize)(uform_stream_t*); /* waits for all work on the device, whoever put it there */
    void* (*stream_handle)(uform_stream_t*); /* the stream as the device's own API knows it; null in RAM */
    /** Between the host and any device of the process: addresses tell which. */
    uform_status_t (*memory_copy)(uform_stream_t*, void* to, void const* from, size_t bytes);
    /** The index of the GPU that memory lies on; -1: the host's. */
    uform_status_t (*memory_device)(uform_stream_t*, void const* memory, int32_t* device);
    uform_status_t (*rows_narrow)(uform_stream_t*, uform_narrow_t const*);
    uform_status_t (*rows_widen)(uform_stream_t*, uform_widen_t const*);

    /* order among streams, and between them and the host: an event that was never recorded has passed */
    uform_status_t (*event_create)(uform_stream_t* stream, uform_event_t** event);
    void (*event_destroy)(uform_event_t* event);
    uform_status_t (*event_record)(uform_stream_t* stream, uform_event_t* event);
    /** What comes later on the stream waits until the event, as it was recorded last, has passed. */
    uform_status_t (*stream_wait)(uform_stream_t* stream, uform_event_t* event);
    uform_status_t (*host_wait)(uform_event_t* event);
    /** Seconds between two events that have passed. */
    uform_status_t (*event_elapsed)(uform_event_t* from, uform_event_t* to, double* seconds);
    void (*backend_counters)(void const* backend, uform_backend_counters_t* counters);

    /* captured work: null where a backend has none */
    /** What comes on the stream until `capture_end` is kept, and not done: from one thread, and waiting for nothing. */
    uform_status_t (*capture_begin)(uform_stream_t* stream);
    /** @param graph Where the work goes; null: it is forgotten. */
    uform_status_t (*capture_end)(uform_stream_t* stream, uform_graph_t** graph);
    uform_status_t (*graph_launch)(uform_stream_t* stream, uform_graph_t* graph);
    void (*graph_destroy)(uform_graph_t* graph);

    /* choices */
    size_t (*choices_head_workspace_bytes)(uint32_t hidden, uint32_t items, uint32_t rows);
    uform_status_t (*choices_head)(uform_stream_t*, uform_choices_head_t const*);

    /* late interaction */
    size_t (*vectors_workspace_bytes)(uint32_t hidden, uint32_t width, uint32_t columns);
    size_t (*maxsim_workspace_bytes)(uint32_t width, uint32_t query_vectors, uint32_t documents,
                                     uint32_t document_vectors);
    size_t (*similarity_pairs_workspace_bytes)(uint32_t rows, uint32_t edges);
    uform_status_t (*vectors_forward)(uform_stream_t*, uform_vectors_t const*);
    uform_status_t (*vectors_backward)(uform_stream_t*, uform_vectors_t const*);
    uform_status_t (*maxsim_forward)(uform_stream_t*, uform_maxsim_t const*);
    uform_status_t (*maxsim_backward)(uform_stream_t*, uform_maxsim_t const*);
    uform_status_t (*similarity_pairs)(uform_stream_t*, uform_similarity_pairs_t const*);
} uform_operations_t;

/** The table of the reference backend, for a plugin's tests of its own operations. Static. */
UFORM_API uform_operations_t const* uform_operations_ram(void);

/* ---------------------------------------------------------------------------------------------------- what plugins are
 * given */

/** The handle that `declare` and `plan` callbacks pass back to the host's functions. */
typedef struct uform_host_t uform_host_t;

typedef struct uform_parameter_request_t {
    char const* name;
    uint32_t rows;
    uint32_t columns;
    uint32_t kind;    /* uform_parameter_kind_t */
    double deviation; /* of a normal initial value; 0: `value` everywhere */
    double value;
    double minimum; /* bounds put back after each update; both 0: none */
    double maximum;
} uform_parameter_request_t;

/** Which of a modality's columns staging is for. */
typedef enum uform_staging_unit_t {
    uform_staging_unit_whole_k = 0,   /* none: it is uploaded whole */
    uform_staging_unit_content_k = 1, /* its content columns */
    uform_staging_unit_covered_k = 2, /* those that objectives covered */
} uform_staging_unit_t;

/** How a modality's columns are covered. */
typedef enum uform_cover_kind_t {
    uform_cover_kind_none_k = 0,
    uform_cover_kind_bytes_k = 1,  /* spans of bytes, some replaced at random, some left */
    uform_cover_kind_places_k = 2, /* single places */
    uform_cover_kind_tubes_k = 3,  /* the same places in every group of frames */
    uform_cover_kind_spans_k = 4,  /* spans of chunks */
} uform_cover_kind_t;

/** A modality of the run whose columns may be covered. */
typedef struct uform_covering_t {
    char const* name;
    uint32_t modality;
    uint32_t kind; /* uform_cover_kind_t */
    double ratio;  /* which share of an item's columns is covered; `Masking` has that of the first party's */
    double weight; /* of the term of its reconstruction; likewise */
} uform_covering_t;

/** Functions of the host during `declare`; each answers through its last argument a handle to use later. */
typedef struct uform_declare_t {
    uform_host_t* host;
    uform_operations_t const* operations;
    uform_status_t (*fail)(uform_host_t*, uform_status_t status, char const* message);
    /** A parameter of this plugin; its full name is "<plugin>.<name>". */
    uform_status_t (*parameter)(uform_host_t*, uform_parameter_request_t const*, uint32_t* handle);
    /**
     *  A loss term: its value is reported under `name`, the total counts it `weight` times. A third party's is named as
     *  the plugin, or begins with its name and an underscore or a dot.
     */
    uform_status_t (*term)(uform_host_t*, char const* name, double weight, uint32_t* handle);
    /** Bytes of each device's staging: filled on the host by `plan` or `fill`, then uploaded to the same offset. */
    uform_status_t (*staging)(uform_host_t*, size_t bytes, size_t* offset);
    /** Bytes on each device, kept from one pass's forward to its backward. */
    uform_status_t (*workspace)(uform_host_t*, size_t bytes, size_t* offset);
    /** Staging of `bytes` for each of a modality's columns on a device: a step uploads only as many as it has. */
    uform_status_t (*column_staging)(uform_host_t*, uint32_t unit, size_t bytes, size_t* offset);
    /** A float32 vector of `width` values for every column, for objectives with the vectors tap: once, no part of the
     * workspace. */
    uform_status_t (*vectors)(uform_host_t*, uint32_t width);
    /** Bytes that stage 0 writes for each device and stage 1 reads of every rank of the world. */
    uform_status_t (*notice)(uform_host_t*, size_t bytes);
    char const* plugin; /* the name of the plugin that is asked, so that several may share their functions */
    /** For a third party's modality with a `cover_kind`, in `create` of a run that trains: which share of an item's
     * columns is covered, from 0 to 1, and what predicting them counts. */
    uform_status_t (*cover)(uform_host_t*, double ratio, double weight);
    /** For objectives: the run's modalities that may be covered, in the order in which `plan` covers them; borrowed as
     * long as the run. Answers their count. */
    uint32_t (*coverings)(uform_host_t*, uform_covering_t const** all);
} uform_declare_t;

/** What taps an objective reads; only those are gathered and given gradients. */
typedef enum uform_tap_t {
    uform_tap_covered_k = 1 << 0,       /* covered columns of each modality */
    uform_tap_columns_k = 1 << 1,       /* every column's hidden state */
    uform_tap_bags_k = 1 << 2,          /* this device's pooled bags */
    uform_tap_world_bags_k = 1 << 3,    /* the whole world's pooled bags */
    uform_tap_world_vectors_k = 1 << 4, /* its own vectors of every column, see `columns_forward`, of the whole world */
} uform_tap_t;

typedef enum uform_cover_action_t {
    uform_cover_action_mask_k = 0,   /* becomes the mask column */
    uform_cover_action_random_k = 1, /* becomes the random byte given */
    uform_cover_action_stay_k = 2,   /* stays as it is */
} uform_cover_action_t;

/** What one item needs, as its modality measured it. */
typedef struct uform_measure_t {
    uint32_t columns;   /* of content, without the marker */
    uint32_t truncated; /* 1: cut or scaled down to fit */
    uint16_t axes;
    uint16_t extents[UFORM_AXES]; /* of the grid, slowest first */
    uint16_t whole[UFORM_AXES];   /* of its part that content fills wholly: only that may be covered */
    uint32_t scratch[4];          /* the modality's own notes for `fill` */
} uform_measure_t;

/** One item in the host's view while a step is planned. */
typedef struct uform_item_t {
    uint32_t content; /* its place in this call */
    uint32_t modality;
    uint32_t device;     /* of this process; UINT32_MAX: dropped */
    uint32_t segment;    /* its place among the device's segments */
    uint32_t bag;        /* this call's bag, numbered by first appearance */
    uint64_t world_item; /* its place among the world's items: it counts random draws */
    uform_measure_t measure;
} uform_item_t;

/** One bag of this call. */
typedef struct uform_bag_t {
    uint32_t device; /* UINT32_MAX: dropped whole */
    uint32_t place;  /* on its device */
    uint32_t slot;   /* in the world */
    uint32_t group;  /* temperature group, its first item's */
} uform_bag_t;

/** One bag of the world as every rank knows it. */
typedef struct uform_world_bag_t {
    uint32_t modalities; /* set, a bit each */
    uint8_t sides;       /* set: 1 query, 2 document */
    uint8_t flags;       /* 1: some attracted or repelled pair points at it */
    uint8_t present;
    uint8_t reserved;
} uform_world_bag_t;

/** Pairs after mapping, merging and precedence: row u's are [offsets[u], offsets[u + 1]), ascending by unit, weight >
 * 0. */
typedef struct uform_pair_rows_t {
    uint32_t units;
    uint32_t const* offsets;
    uint32_t const* candidates; /* unit of the same call */
    uint8_t const* classes;     /* uform_pair_class_t */
    float const* weights;
} uform_pair_rows_t;

typedef struct uform_device_view_t {
    uint8_t* staging; /* this plugin's staging on the host: offsets are the plugin's own */
    uint32_t columns; /* in use */
    uint32_t segments_count;
    uint32_t bags_count;
    uform_segment_t const* segments; /* host */
} uform_device_view_t;

/** A step while it is planned on the host. Stage 0 sees this process alone; stage 1 the agreed world. */
typedef struct uform_plan_t {
    uform_host_t* host;
    uform_run_t const* run;
    uint64_t call; /* numbers the random draws */
    uform_status_t (*fail)(uform_host_t*, uform_status_t status, char const* message);
    size_t items_count;
    uform_item_t const* items;
    size_t bags_count;
    uform_bag_t const* bags;
    uform_device_view_t const* devices; /* [run->devices] */
    /** Pairs over bags (by_bag 1) or items of this call; borrowed until the step ends. */
    uform_status_t (*pairs)(uform_host_t*, uint32_t by_bag, uform_pair_rows_t* pairs);
    /** Sets the flag of a bag of this call for the world (stage 0). Several threads may. */
    uform_status_t (*flag)(uform_host_t*, uint32_t bag, uint8_t flags);
    /** Adds to a number that the world agrees on (stage 0); `index` below 16, a plugin's own. */
    uform_status_t (*count)(uform_host_t*, uint32_t index, double value);
    /** The world's sum of it (stage 1). */
    double (*counted)(uform_host_t*, uint32_t index);
    /** Four words of Philox4x32-10 of this call: the same on every backend, however the work is shared. */
    void (*random)(uform_host_t*, uint32_t purpose, uint64_t world_item, uint32_t column, uint32_t words[4]);
    /** [run->world_devices * run->bags_capacity] by slot (stage 1). */
    uform_world_bag_t const* (*world)(uform_host_t*);
    /** Tells which slots count as rows on one device, in the order of `row_losses` (stage 1); borrowed until the step
     * ends. */
    uform_status_t (*rows)(uform_host_t*, uint32_t device, uint32_t const* slots, uint32_t count);
    /**
     *  Covers content columns of one kept item (stage 0), modality by modality in the order of `coverings`. `places`
     * are the item's content columns, ascending and distinct.
     */
    uform_status_t (*cover)(uform_host_t*, size_t item, uint32_t const* places, uint8_t const* actions,
                            uint8_t const* random_bytes, uint32_t count);
    uform_choice_texts_t const* choices; /* of the call, checked; null where there are none */
    uint8_t const* sides;                /* uform_late_interaction_side_t by content, checked; null: none has a side */
    void* (*notice_of)(uform_host_t*, uint32_t device);       /* this process's, zeros at first (stage 0) */
    void const* (*notice_from)(uform_host_t*, uint32_t rank); /* any rank's (stage 1) */
    uform_parallel_t parallel; /* for calls of very many items; its tasks may call `flag` and nothing else of these */
} uform_plan_t;

/** A step on one device, not always the thread's current one. Pointers are device-side unless they say otherwise. */
typedef struct uform_pass_t {
    uform_host_t* host;
    uform_run_t const* run;
    uform_operations_t const* operations;
    uform_stream_t* stream;
    uint32_t device;   /* of this process */
    uint32_t rank;     /* in the world */
    uint32_t backward; /* 0: values only */
    uform_columns_t columns;
    uint8_t const* staging;     /* this plugin's */
    uint8_t* workspace;         /* this plugin's */
    void const* const* weights; /* host array by the plugin's own handles: the backend's form */
    float* const* gradients;    /* host array by handle; null in inference */
    double* const* terms;       /* host array by the plugin's own handles: device-side numbers to add to */
    void* states;               /* columns' states while modalities embed, hidden states while objectives score */
    void* states_gradient;      /* of `states`: for modalities' backward; for objectives with the columns tap */
    uint32_t states_written;    /* 0: the first writer of states_gradient overwrites it all, else adds */
    float const* bags;          /* [bags_capacity, hidden] */
    float* bags_gradient;       /* added to */
    float const* world_bags;    /* [world_devices * bags_capacity, hidden] by slot */
    float* world_bags_gradient; /* added to; summed over devices afterwards, each keeps its own */
    /** Losses of covered columns of a modality into `term`: scale and weight are device-side. */
    uform_status_t (*reconstruct)(uform_host_t*, uint32_t device, uint32_t modality, float const* scale,
                                  float const* weight, double* term);
    float* row_losses; /* objectives over rows add theirs, mean over prefixes, in the order of rows; or null */
    /* objectives that declared vectors */
    float* vectors;                /* [columns.capacity, width] of this device */
    float const* world_vectors;    /* [world_devices * columns.capacity, width] by rank */
    float* world_vectors_gradient; /* overwritten; summed over devices afterwards, each reads its own rank's part */
    uform_status_t (*fail)(uform_host_t*, uform_status_t status, char const* message);
} uform_pass_t;

/** Where a modality reconstructs: `count` rows of the covered taps are its own, from first + *before on, in the order
 * covered. */
typedef struct uform_reconstruction_t {
    uint32_t first;
    uint32_t active;
    uint32_t capacity;
    uint32_t const* count; /* device-side */
    void const* rows;      /* all covered hidden states, [*, hidden], backend's type */
    float* rows_gradient;  /* the same rows; null: value only */
    float const* scale;
    float const* weight;
    double* term;
    uint32_t const* before; /* device-side */
} uform_reconstruction_t;

/** Where one kept item is filled in on the host. */
typedef struct uform_fill_t {
    uform_content_t const* content;
    uform_measure_t const* measure;
    uform_segment_t const* segment;
    uint16_t* codes; /* of the segment's columns, marker first: the modality writes every one of its `pooled` columns */
    uint8_t* staging; /* this modality's, on the item's device */
    uint32_t before;  /* content columns of this modality on the device before this item */
    uint32_t device;
} uform_fill_t;

/** Where columns of one kept item are covered on the host. */
typedef struct uform_cover_t {
    uform_segment_t const* segment;
    uint16_t* codes;
    uint8_t* staging;
    uint32_t before;  /* content columns of this modality on the device before this item */
    uint32_t covered; /* columns of this modality covered on the device before this item */
    uint32_t device;
    uint32_t const* places;
    uint8_t const* actions;
    uint8_t const* random_bytes;
    uint32_t count;
} uform_cover_t;

/** One item whose segment an objective may lengthen, behind its content. */
typedef struct uform_extra_t {
    uint32_t content; /* its place in this call */
    uint32_t modality;
    uint32_t limit;                      /* the most columns that its row has for them */
    uform_choice_texts_t const* choices; /* of the call, checked; null where there are none */
} uform_extra_t;

/**
 *  What an objective answers in inference: rows of float32, those of one segment after those of the one before. Of
 *  tokens a row is `vectors` wide as declared, and a segment has one for each of its columns (a query's side, no more
 *  than `max_query_span`); of choices a row is one value, and a segment has one for each of its choices. An answer that
 *  has a null pointer, another width, other rows or offsets that descend is refused by the plugin's name. Both arrays
 *  are read before the plugin is called again, for another device too.
 */
typedef struct uform_answer_t {
    float const* values; /* device-side [*, width] */
    uint32_t width;
    uint32_t const* offsets; /* host: [segments + 1], where the rows of each begin and the last's end; the first is 0 */
} uform_answer_t;

/** The model's verb that an objective answers. */
typedef enum uform_answer_kind_t {
    uform_answer_kind_none_k = 0,
    uform_answer_kind_tokens_k = 1,  /* embed_tokens */
    uform_answer_kind_choices_k = 2, /* text_choose */
} uform_answer_kind_t;

/* ---------------------------------------------------------------------------------------------------- plugins */

typedef struct uform_modality_plugin_t {
    uint32_t abi_version;
    uint32_t bytes; /* sizeof, so that a later host knows what an older plugin has */
    char const* name;
    uint32_t modality;
    uint32_t cover_kind;
    uform_field_t const* fields;
    size_t fields_count;
    size_t config_bytes;

    /**
     *  Derives zeros in place and refuses bad values; *enabled 0 leaves the modality out of the run. What it derived
     *  derives to itself; where zero is a value, a negative one (-1, or a number above -1e-20) asks for it.
     */
    uform_status_t (*derive)(void* config, uform_run_t const*, uform_declare_t const*, uint32_t* enabled);
    /** Makes the plugin's state for one run and declares what it needs. */
    uform_status_t (*create)(void const* config, uform_run_t const*, uform_declare_t const*, void** self);
    void (*destroy)(void* self);

    /** Pure and safe from several threads: content columns within `limit`. */
    uform_status_t (*measure)(void* self, uform_content_t const*, uint32_t limit, uform_measure_t*, char* message,
                              size_t message_bytes);
    /** Safe from several threads for different items. */
    uform_status_t (*fill)(void* self, uform_fill_t const*);
    /** Neither this nor `reconstruct` is needed where `cover_kind` is none. */
    uform_status_t (*cover)(void* self, uform_cover_t const*);
    /** After every fill and cover: `columns` content columns and `covered` of them on this device. */
    uform_status_t (*finish)(void* self, uint32_t device, uint8_t* staging, uint32_t columns, uint32_t covered);

    uform_status_t (*embed_forward)(void* self, uform_pass_t const*);
    uform_status_t (*embed_backward)(void* self, uform_pass_t const*);
    uform_status_t (*reconstruct)(void* self, uform_pass_t const*, uform_reconstruction_t const*);
    uint32_t capturable; /* as an objective's, of the three functions above */
} uform_modality_plugin_t;

typedef struct uform_objective_plugin_t {
    uint32_t abi_version;
    uint32_t bytes;
    char const* name;
    uint32_t taps; /* uform_tap_t, or-ed */
    /**
     *  1: for the same `active` and `longest` columns `forward_backward` puts the same work on the stream, whatever
     *  else varies being read from device memory, and neither waits nor looks at results: it may be called once for
     *  many steps. 0: it is called in every step.
     */
    uint32_t capturable;
    uform_field_t const* fields;
    size_t fields_count;
    size_t config_bytes;

    /** As a modality's, which is always enabled. */
    uform_status_t (*derive)(void* config, uform_run_t const*, uform_declare_t const*);
    uform_status_t (*create)(void const* config, uform_run_t const*, uform_declare_t const*, void** self);
    void (*destroy)(void* self);
    /** The most columns of one device that the objective may cover, where it covers any. */
    size_t (*covered_capacity)(void* self);
    /** Stage 0, then stage 1, before the upload. */
    uform_status_t (*plan)(void* self, uform_plan_t const*, uint32_t stage);
    /** Adds to its terms and, where `backward`, to the gradients of its taps and parameters. */
    uform_status_t (*forward_backward)(void* self, uform_pass_t const*);

    /**
     *  Columns behind an item's content, which are encoded with it and not pooled: pure, and safe from several threads.
     *  An item for which they leave less room is cut; more than `limit` of them is a refusal. Null: there are none.
     */
    uform_status_t (*extra_columns)(void* self, uform_extra_t const*, uint32_t* columns, char* message,
                                    size_t message_bytes);
    /** Writes their codes, rows of the table of the item's modality; safe from several threads for different items. */
    uform_status_t (*extra_fill)(void* self, uform_extra_t const*, uint16_t* codes);

    /** What it is in inference, where it is planned as in training; none: it is left out there. */
    uint32_t answer_kind; /* uform_answer_kind_t */
    /** Answers a device's batch from its hidden states. */
    uform_status_t (*infer)(void* self, uform_pass_t const*, uform_answer_t*);

    /** With the vectors tap: writes `vectors` from the states, after the encoder; `infer` finds them written. */
    uform_status_t (*columns_forward)(void* self, uform_pass_t const*);
    /** Adds to the gradients of the states and of parameters, by `world_vectors_gradient` once it is summed. */
    uform_status_t (*columns_backward)(void* self, uform_pass_t const*);
} uform_objective_plugin_t;

/* ---------------------------------------------------------------------------------------------------- registration */

/** Adds a plugin to this process; it must outlive every run. Refuses another ABI, a missing function, a taken name, and
 * fields that do not lie side by side in the structure, each with a name and a type of its own. */
UFORM_API uform_status_t uform_objective_register(uform_objective_plugin_t const* plugin);
UFORM_API uform_status_t uform_modality_register(uform_modality_plugin_t const* plugin);

/** The registered plugin of that name, or null. */
UFORM_API uform_objective_plugin_t const* uform_objective_find(char const* name);
UFORM_API uform_modality_plugin_t const* uform_modality_find(char const* name);

/** The first party's own, null at the end, listed in plugins/register.cpp. */
extern uform_objective_plugin_t const* const uform_own_objectives[];
extern uform_modality_plugin_t const* const uform_own_modalities[];

#ifdef __cplusplus
}
#endif

#endif

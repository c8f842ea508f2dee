from libc.stdint cimport int32_t, int64_t

from uform._ext.c_api cimport (
    uform_audio_shape_t,
    uform_batch_shape_t,
    uform_choices_t,
    uform_contrastive_t,
    uform_image_shape_t,
    uform_late_interaction_t,
    uform_masking_t,
    uform_optimizer_t,
    uform_schedule_t,
    uform_video_shape_t,
)
from uform._ext.record cimport Record


cdef class ImageShape(Record):
    cdef readonly int32_t patch_side
    cdef readonly int32_t channels
    cdef void fill(self, uform_image_shape_t* c)


cdef class VideoShape(Record):
    cdef readonly int32_t patch_side
    cdef readonly int32_t tube_frames
    cdef readonly int32_t frame_stride
    cdef readonly int32_t channels
    cdef void fill(self, uform_video_shape_t* c)


cdef class AudioShape(Record):
    cdef readonly int32_t chunk_samples
    cdef readonly int32_t sample_rate
    cdef void fill(self, uform_audio_shape_t* c)


cdef class BatchShape(Record):
    cdef readonly int32_t max_rows_per_device
    cdef readonly int32_t max_segments_per_device
    cdef readonly int32_t max_columns_per_row
    cdef readonly int32_t max_bags_per_device
    cdef readonly int32_t max_choices_per_item
    cdef readonly ImageShape image
    cdef readonly VideoShape video
    cdef readonly AudioShape audio
    cdef void fill(self, uform_batch_shape_t* c)


cdef class Masking(Record):
    cdef readonly double token_mask_probability
    cdef readonly double token_mean_span
    cdef readonly double replace_fraction
    cdef readonly double random_fraction
    cdef readonly double image_mask_ratio
    cdef readonly double video_mask_ratio
    cdef readonly double audio_mask_ratio
    cdef readonly double text_weight
    cdef readonly double image_weight
    cdef readonly double video_weight
    cdef readonly double audio_weight
    cdef void fill(self, uform_masking_t* c)


cdef class Contrastive(Record):
    cdef readonly object matryoshka_dimensions
    cdef readonly int32_t temperature_groups
    cdef readonly double inverse_temperature
    cdef readonly double bias
    cdef readonly object negatives
    cdef readonly double ambient_repulsion_weight
    cdef readonly int32_t max_edges_per_device
    cdef readonly object pair_loss
    cdef readonly object ambient_scope
    cdef void fill(self, uform_contrastive_t* c)


cdef class LateInteraction(Record):
    cdef readonly double weight
    cdef readonly int32_t width
    cdef readonly double inverse_temperature
    cdef readonly double bias
    cdef readonly int32_t max_query_span
    cdef readonly int32_t max_query_tokens_per_device
    cdef readonly int32_t max_documents_per_device
    cdef readonly int32_t max_document_tokens_per_device
    cdef readonly object pair_loss
    cdef void fill(self, uform_late_interaction_t* c)


cdef class Choices(Record):
    cdef readonly double weight
    cdef readonly double inverse_temperature
    cdef readonly double label_smoothing
    cdef void fill(self, uform_choices_t* c)


cdef class Schedule(Record):
    cdef readonly double learning_rate
    cdef readonly double min_learning_rate
    cdef readonly int64_t warmup_steps
    cdef readonly int64_t steps
    cdef void fill(self, uform_schedule_t* c)


cdef class Optimizer(Record):
    cdef readonly double beta1
    cdef readonly double beta2
    cdef readonly double epsilon
    cdef readonly double weight_decay
    cdef readonly double max_gradient_norm
    cdef void fill(self, uform_optimizer_t* c)

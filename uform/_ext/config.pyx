# cython: language_level=3, annotation_typing=False, auto_pickle=False
"""What configures a run: structures that mirror the C ones field by field. A field left out is zero, which derives."""

cimport cython
from libc.stdint cimport int32_t

from uform._ext.c_api cimport UFORM_MATRYOSHKA_CAPACITY
from uform._ext.fields cimport as_double, as_enum, as_int32, as_int64, as_sequence, refused
from uform._ext.record cimport Record, refuse_unknown

from uform._ext.enums import AmbientScope, Negatives, PairLossForm


@cython.final
cdef class ImageShape(Record):
    """ImageShape(*, patch_side=0, channels=0)\n--\n\n\
The image slice of a `BatchShape`; a zero `patch_side` leaves images out of the run.

    Attributes:
        patch_side: pixels along each side of a square patch.
        channels: 1 for grey, 3 for RGB; 0 derives 3.
    """

    _fields = ("patch_side", "channels")

    def __cinit__(
        self,
        *positional,
        patch_side=0,
        channels=0,
        **unknown,
    ):
        refuse_unknown(ImageShape, positional, unknown)
        self.patch_side = as_int32(patch_side, "ImageShape.patch_side")
        self.channels = as_int32(channels, "ImageShape.channels")

    cdef void fill(self, uform_image_shape_t* c):
        c.patch_side = self.patch_side
        c.channels = self.channels


@cython.final
cdef class VideoShape(Record):
    """VideoShape(*, patch_side=0, tube_frames=0, frame_stride=0, channels=0)\n--\n\n\
The video slice of a `BatchShape`; a zero `patch_side` leaves video out of the run.

    Attributes:
        patch_side: pixels along each side of a square patch.
        tube_frames: frames that one tube spans; 0 derives 2.
        frame_stride: one frame out of so many is taken; 0 derives 4.
        channels: 1 for grey, 3 for RGB; 0 derives 3.
    """

    _fields = ("patch_side", "tube_frames", "frame_stride", "channels")

    def __cinit__(
        self,
        *positional,
        patch_side=0,
        tube_frames=0,
        frame_stride=0,
        channels=0,
        **unknown,
    ):
        refuse_unknown(VideoShape, positional, unknown)
        self.patch_side = as_int32(patch_side, "VideoShape.patch_side")
        self.tube_frames = as_int32(tube_frames, "VideoShape.tube_frames")
        self.frame_stride = as_int32(frame_stride, "VideoShape.frame_stride")
        self.channels = as_int32(channels, "VideoShape.channels")

    cdef void fill(self, uform_video_shape_t* c):
        c.patch_side = self.patch_side
        c.tube_frames = self.tube_frames
        c.frame_stride = self.frame_stride
        c.channels = self.channels


@cython.final
cdef class AudioShape(Record):
    """AudioShape(*, chunk_samples=0, sample_rate=0)\n--\n\n\
The audio slice of a `BatchShape`; a zero `chunk_samples` leaves audio out of the run.

    Attributes:
        chunk_samples: samples of one column.
        sample_rate: samples a second; 0 derives 16000.
    """

    _fields = ("chunk_samples", "sample_rate")

    def __cinit__(
        self,
        *positional,
        chunk_samples=0,
        sample_rate=0,
        **unknown,
    ):
        refuse_unknown(AudioShape, positional, unknown)
        self.chunk_samples = as_int32(chunk_samples, "AudioShape.chunk_samples")
        self.sample_rate = as_int32(sample_rate, "AudioShape.sample_rate")

    cdef void fill(self, uform_audio_shape_t* c):
        c.chunk_samples = self.chunk_samples
        c.sample_rate = self.sample_rate


cdef object _shape(type shape, object value, str field):
    """A nested shape: itself, a tuple of its fields in order, or None."""
    if value is None or type(value) is shape:
        return value
    if not isinstance(value, tuple):
        raise refused(field, value, f"{shape.__name__} or a tuple")
    names = shape._fields
    if len(value) > len(names):
        raise ValueError(f"{field} has {len(value)} fields: {shape.__name__} has {len(names)}: {', '.join(names)}")
    try:
        return shape(**dict(zip(names, value)))
    except (TypeError, ValueError) as error:
        raise type(error)(f"{field}: {error}") from None


@cython.final
cdef class BatchShape(Record):
    """BatchShape(*, max_rows_per_device=0, max_segments_per_device=0, max_columns_per_row=0, max_bags_per_device=0, \
max_choices_per_item=0, image=None, video=None, audio=None)\n--\n\n\
What one device's step carries at most, whatever the modality mix, fixed at creation.

    Attributes:
        max_rows_per_device: rows of columns; 0 derives 64.
        max_segments_per_device: items; 0 derives 4 a row.
        max_columns_per_row: columns, which bounds an item's; 0 derives 1024.
        max_bags_per_device: pooled embeddings; 0 derives as many as segments.
        max_choices_per_item: choices offered to one item; 0 leaves choices out, unless a `Choices` is given:
            then 16.
        image: an `ImageShape` or a tuple of its fields in order; None leaves images out.
        video: a `VideoShape` or a tuple of its fields in order; None leaves video out.
        audio: an `AudioShape` or a tuple of its fields in order; None leaves audio out.
    """

    _fields = (
        "max_rows_per_device", "max_segments_per_device", "max_columns_per_row", "max_bags_per_device",
        "max_choices_per_item", "image", "video", "audio",
    )

    def __cinit__(
        self,
        *positional,
        max_rows_per_device=0,
        max_segments_per_device=0,
        max_columns_per_row=0,
        max_bags_per_device=0,
        max_choices_per_item=0,
        image=None,
        video=None,
        audio=None,
        **unknown,
    ):
        refuse_unknown(BatchShape, positional, unknown)
        self.max_rows_per_device = as_int32(max_rows_per_device, "BatchShape.max_rows_per_device")
        self.max_segments_per_device = as_int32(max_segments_per_device, "BatchShape.max_segments_per_device")
        self.max_columns_per_row = as_int32(max_columns_per_row, "BatchShape.max_columns_per_row")
        self.max_bags_per_device = as_int32(max_bags_per_device, "BatchShape.max_bags_per_device")
        self.max_choices_per_item = as_int32(max_choices_per_item, "BatchShape.max_choices_per_item")
        self.image = _shape(ImageShape, image, "BatchShape.image")
        self.video = _shape(VideoShape, video, "BatchShape.video")
        self.audio = _shape(AudioShape, audio, "BatchShape.audio")

    cdef void fill(self, uform_batch_shape_t* c):
        c.max_rows_per_device = self.max_rows_per_device
        c.max_segments_per_device = self.max_segments_per_device
        c.max_columns_per_row = self.max_columns_per_row
        c.max_bags_per_device = self.max_bags_per_device
        c.max_choices_per_item = self.max_choices_per_item
        if self.image is not None:
            self.image.fill(&c.image)
        if self.video is not None:
            self.video.fill(&c.video)
        if self.audio is not None:
            self.audio.fill(&c.audio)


@cython.final
cdef class Masking(Record):
    """Masking(*, token_mask_probability=0.0, token_mean_span=0.0, replace_fraction=0.0, random_fraction=0.0, \
image_mask_ratio=0.0, video_mask_ratio=0.0, audio_mask_ratio=0.0, text_weight=0.0, image_weight=0.0, \
video_weight=0.0, audio_weight=0.0)\n--\n\n\
How the masked objective corrupts a batch and weighs its heads; every zero derives.

    Attributes:
        token_mask_probability: share of a text's bytes that are covered; 0 derives 0.3.
        token_mean_span: mean bytes of a covered span; 0 derives 6.
        replace_fraction: share of covered bytes that become the mask column; 0 derives 0.8.
        random_fraction: share of covered bytes that become a random byte; 0 derives 0.1.
        image_mask_ratio: share of patches that are covered; 0 derives 0.6.
        video_mask_ratio: share of tubes that are covered; 0 derives 0.9.
        audio_mask_ratio: share of chunks that are covered; 0 derives 0.65.
        text_weight: weight of the text term; 0 derives 1.
        image_weight: weight of the image term; 0 derives 1.
        video_weight: weight of the video term; 0 derives 1.
        audio_weight: weight of the audio term; 0 derives 1.
    """

    _fields = (
        "token_mask_probability", "token_mean_span", "replace_fraction", "random_fraction", "image_mask_ratio",
        "video_mask_ratio", "audio_mask_ratio", "text_weight", "image_weight", "video_weight", "audio_weight",
    )

    def __cinit__(
        self,
        *positional,
        token_mask_probability=0.0,
        token_mean_span=0.0,
        replace_fraction=0.0,
        random_fraction=0.0,
        image_mask_ratio=0.0,
        video_mask_ratio=0.0,
        audio_mask_ratio=0.0,
        text_weight=0.0,
        image_weight=0.0,
        video_weight=0.0,
        audio_weight=0.0,
        **unknown,
    ):
        refuse_unknown(Masking, positional, unknown)
        self.token_mask_probability = as_double(token_mask_probability, "Masking.token_mask_probability")
        self.token_mean_span = as_double(token_mean_span, "Masking.token_mean_span")
        self.replace_fraction = as_double(replace_fraction, "Masking.replace_fraction")
        self.random_fraction = as_double(random_fraction, "Masking.random_fraction")
        self.image_mask_ratio = as_double(image_mask_ratio, "Masking.image_mask_ratio")
        self.video_mask_ratio = as_double(video_mask_ratio, "Masking.video_mask_ratio")
        self.audio_mask_ratio = as_double(audio_mask_ratio, "Masking.audio_mask_ratio")
        self.text_weight = as_double(text_weight, "Masking.text_weight")
        self.image_weight = as_double(image_weight, "Masking.image_weight")
        self.video_weight = as_double(video_weight, "Masking.video_weight")
        self.audio_weight = as_double(audio_weight, "Masking.audio_weight")

    cdef void fill(self, uform_masking_t* c):
        c.token_mask_probability = self.token_mask_probability
        c.token_mean_span = self.token_mean_span
        c.replace_fraction = self.replace_fraction
        c.random_fraction = self.random_fraction
        c.image_mask_ratio = self.image_mask_ratio
        c.video_mask_ratio = self.video_mask_ratio
        c.audio_mask_ratio = self.audio_mask_ratio
        c.text_weight = self.text_weight
        c.image_weight = self.image_weight
        c.video_weight = self.video_weight
        c.audio_weight = self.audio_weight


cdef object _dimensions(object value, str field):
    """Widths as a tuple, or None."""
    if value is None:
        return None
    if isinstance(value, (bytes, bytearray)):
        raise refused(field, value, "a sequence of int")
    given = as_sequence(value, field, "a sequence of int", UFORM_MATRYOSHKA_CAPACITY)
    return tuple([as_int32(width, f"{field}[{place}]") for place, width in enumerate(given)])


@cython.final
cdef class Contrastive(Record):
    """Contrastive(*, matryoshka_dimensions=None, temperature_groups=0, inverse_temperature=0.0, bias=0.0, \
negatives=Negatives.AMBIENT, ambient_repulsion_weight=0.0, max_edges_per_device=0, \
pair_loss=PairLossForm.DERIVED, ambient_scope=AmbientScope.EVERY)\n--\n\n\
How the contrastive loss scores the pooled embeddings; every zero derives.

    Attributes:
        matryoshka_dimensions: widths of the prefixes that are scored, at most 16; None derives the full width
            only.
        temperature_groups: learned temperatures; 0 derives 1.
        inverse_temperature: initial value; 0 derives 1/0.07, for SIGMOID 10.
        bias: initial value, for SIGMOID alone; 0 derives -10 there. A magnitude below 1e-20 is zero. A run refuses
            any beside another `pair_loss`.
        negatives: AMBIENT: every bag of the world in scope; NAMED: those of repel edges alone.
        ambient_repulsion_weight: weight of an ambient negative; 0 derives 1, a negative value is a true zero. A run
            whose negatives are NAMED refuses it, and `ambient_scope`.
        max_edges_per_device: edges of a call, times the devices; 0 derives 4 a segment.
        pair_loss: DERIVED is SIGMOID where a bias is given, RANKED where negatives are NAMED, else BALANCED.
        ambient_scope: which bags a row sees as ambient negatives.
    """

    _fields = (
        "matryoshka_dimensions", "temperature_groups", "inverse_temperature", "bias", "negatives",
        "ambient_repulsion_weight", "max_edges_per_device", "pair_loss", "ambient_scope",
    )

    def __cinit__(
        self,
        *positional,
        matryoshka_dimensions=None,
        temperature_groups=0,
        inverse_temperature=0.0,
        bias=0.0,
        negatives=Negatives.AMBIENT,
        ambient_repulsion_weight=0.0,
        max_edges_per_device=0,
        pair_loss=PairLossForm.DERIVED,
        ambient_scope=AmbientScope.EVERY,
        **unknown,
    ):
        refuse_unknown(Contrastive, positional, unknown)
        self.matryoshka_dimensions = _dimensions(matryoshka_dimensions, "Contrastive.matryoshka_dimensions")
        self.temperature_groups = as_int32(temperature_groups, "Contrastive.temperature_groups")
        self.inverse_temperature = as_double(inverse_temperature, "Contrastive.inverse_temperature")
        self.bias = as_double(bias, "Contrastive.bias")
        self.negatives = as_enum(Negatives, negatives, "Contrastive.negatives")
        self.ambient_repulsion_weight = as_double(ambient_repulsion_weight, "Contrastive.ambient_repulsion_weight")
        self.max_edges_per_device = as_int32(max_edges_per_device, "Contrastive.max_edges_per_device")
        self.pair_loss = as_enum(PairLossForm, pair_loss, "Contrastive.pair_loss")
        self.ambient_scope = as_enum(AmbientScope, ambient_scope, "Contrastive.ambient_scope")

    cdef void fill(self, uform_contrastive_t* c):
        cdef int32_t place = 0
        if self.matryoshka_dimensions is not None:
            for width in self.matryoshka_dimensions:
                c.matryoshka_dimensions[place] = width
                place += 1
        c.matryoshka_count = place
        c.temperature_groups = self.temperature_groups
        c.inverse_temperature = self.inverse_temperature
        c.bias = self.bias
        c.negatives = self.negatives
        c.ambient_repulsion_weight = self.ambient_repulsion_weight
        c.max_edges_per_device = self.max_edges_per_device
        c.pair_loss = self.pair_loss
        c.ambient_scope = self.ambient_scope


@cython.final
cdef class LateInteraction(Record):
    """LateInteraction(*, weight=0.0, width=0, inverse_temperature=0.0, bias=0.0, max_query_span=0, \
max_query_tokens_per_device=0, max_documents_per_device=0, max_document_tokens_per_device=0, \
pair_loss=PairLossForm.DERIVED)\n--\n\n\
How the late-interaction loss scores the token vectors of queries and documents; every zero derives.

    Attributes:
        weight: weight of the term; 0 derives 1.
        width: values of a token vector; 0 derives 128.
        inverse_temperature: initial value; 0 derives 20.
        bias: initial value, for SIGMOID alone; 0 derives -10 there. A run refuses any beside another `pair_loss`.
        max_query_span: leading columns of a query that give vectors; 0 derives 128.
        max_query_tokens_per_device: query vectors; 0 derives from the batch's.
        max_documents_per_device: documents; 0 derives from the batch's.
        max_document_tokens_per_device: document vectors; 0 derives from the batch's.
        pair_loss: as in `Contrastive`.
    """

    _fields = (
        "weight", "width", "inverse_temperature", "bias", "max_query_span", "max_query_tokens_per_device",
        "max_documents_per_device", "max_document_tokens_per_device", "pair_loss",
    )

    def __cinit__(
        self,
        *positional,
        weight=0.0,
        width=0,
        inverse_temperature=0.0,
        bias=0.0,
        max_query_span=0,
        max_query_tokens_per_device=0,
        max_documents_per_device=0,
        max_document_tokens_per_device=0,
        pair_loss=PairLossForm.DERIVED,
        **unknown,
    ):
        refuse_unknown(LateInteraction, positional, unknown)
        self.weight = as_double(weight, "LateInteraction.weight")
        self.width = as_int32(width, "LateInteraction.width")
        self.inverse_temperature = as_double(inverse_temperature, "LateInteraction.inverse_temperature")
        self.bias = as_double(bias, "LateInteraction.bias")
        self.max_query_span = as_int32(max_query_span, "LateInteraction.max_query_span")
        self.max_query_tokens_per_device = as_int32(
            max_query_tokens_per_device, "LateInteraction.max_query_tokens_per_device")
        self.max_documents_per_device = as_int32(max_documents_per_device, "LateInteraction.max_documents_per_device")
        self.max_document_tokens_per_device = as_int32(
            max_document_tokens_per_device, "LateInteraction.max_document_tokens_per_device")
        self.pair_loss = as_enum(PairLossForm, pair_loss, "LateInteraction.pair_loss")

    cdef void fill(self, uform_late_interaction_t* c):
        c.weight = self.weight
        c.width = self.width
        c.inverse_temperature = self.inverse_temperature
        c.bias = self.bias
        c.max_query_span = self.max_query_span
        c.max_query_tokens_per_device = self.max_query_tokens_per_device
        c.max_documents_per_device = self.max_documents_per_device
        c.max_document_tokens_per_device = self.max_document_tokens_per_device
        c.pair_loss = self.pair_loss


@cython.final
cdef class Choices(Record):
    """Choices(*, weight=0.0, inverse_temperature=0.0, label_smoothing=0.0)\n--\n\n\
How the choices loss scores; every zero derives.

    Attributes:
        weight: weight of the term; 0 derives 1, a negative one is 0.
        inverse_temperature: initial value, from 0.01 to 100; 0 derives 1. It is learned, and put back between these
            after each update.
        label_smoothing: share of a target spread evenly over an item's choices, up to 1; 0 stays 0.
    """

    _fields = ("weight", "inverse_temperature", "label_smoothing")

    def __cinit__(
        self,
        *positional,
        weight=0.0,
        inverse_temperature=0.0,
        label_smoothing=0.0,
        **unknown,
    ):
        refuse_unknown(Choices, positional, unknown)
        self.weight = as_double(weight, "Choices.weight")
        self.inverse_temperature = as_double(inverse_temperature, "Choices.inverse_temperature")
        self.label_smoothing = as_double(label_smoothing, "Choices.label_smoothing")

    cdef void fill(self, uform_choices_t* c):
        c.weight = self.weight
        c.inverse_temperature = self.inverse_temperature
        c.label_smoothing = self.label_smoothing


@cython.final
cdef class Schedule(Record):
    """Schedule(*, learning_rate=0.0, min_learning_rate=0.0, warmup_steps=0, steps=0)\n--\n\n\
The learning-rate schedule: a linear warmup to the peak, then a cosine decay to the floor.

    Attributes:
        learning_rate: the peak; 0 derives 3e-4.
        min_learning_rate: the floor, which holds after `steps`; 0 derives a tenth of the peak, a negative
            value is a true zero.
        warmup_steps: steps of warmup; 0 derives a twentieth of `steps`.
        steps: steps until the floor; 0 derives 100000.
    """

    _fields = ("learning_rate", "min_learning_rate", "warmup_steps", "steps")

    def __cinit__(
        self,
        *positional,
        learning_rate=0.0,
        min_learning_rate=0.0,
        warmup_steps=0,
        steps=0,
        **unknown,
    ):
        refuse_unknown(Schedule, positional, unknown)
        self.learning_rate = as_double(learning_rate, "Schedule.learning_rate")
        self.min_learning_rate = as_double(min_learning_rate, "Schedule.min_learning_rate")
        self.warmup_steps = as_int64(warmup_steps, "Schedule.warmup_steps")
        self.steps = as_int64(steps, "Schedule.steps")

    cdef void fill(self, uform_schedule_t* c):
        c.learning_rate = self.learning_rate
        c.min_learning_rate = self.min_learning_rate
        c.warmup_steps = self.warmup_steps
        c.steps = self.steps


@cython.final
cdef class Optimizer(Record):
    """Optimizer(*, beta1=0.0, beta2=0.0, epsilon=0.0, weight_decay=0.0, max_gradient_norm=0.0)\n--\n\n\
AdamW with decoupled decay on matrices and a bound on the gradient's global norm.

    Every zero derives; a negative value asks for a true zero.

    Attributes:
        beta1: decay of the first moment; 0 derives 0.9.
        beta2: decay of the second moment; 0 derives 0.98.
        epsilon: added to the second moment's root; 0 derives 1e-6, and no true zero is taken.
        weight_decay: 0 derives 0.01.
        max_gradient_norm: the norm that a longer gradient is scaled down to; 0 derives 1.
    """

    _fields = ("beta1", "beta2", "epsilon", "weight_decay", "max_gradient_norm")

    def __cinit__(
        self,
        *positional,
        beta1=0.0,
        beta2=0.0,
        epsilon=0.0,
        weight_decay=0.0,
        max_gradient_norm=0.0,
        **unknown,
    ):
        refuse_unknown(Optimizer, positional, unknown)
        self.beta1 = as_double(beta1, "Optimizer.beta1")
        self.beta2 = as_double(beta2, "Optimizer.beta2")
        self.epsilon = as_double(epsilon, "Optimizer.epsilon")
        self.weight_decay = as_double(weight_decay, "Optimizer.weight_decay")
        self.max_gradient_norm = as_double(max_gradient_norm, "Optimizer.max_gradient_norm")

    cdef void fill(self, uform_optimizer_t* c):
        c.beta1 = self.beta1
        c.beta2 = self.beta2
        c.epsilon = self.epsilon
        c.weight_decay = self.weight_decay
        c.max_gradient_norm = self.max_gradient_norm

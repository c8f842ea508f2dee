from collections.abc import Sequence
from typing import Final, final

from uform._ext.enums import AmbientScope, Negatives, PairLossForm
from uform._ext.record import Record

@final
class ImageShape(Record):
    def __new__(
        cls,
        *,
        patch_side: int = 0,
        channels: int = 0,
    ) -> ImageShape: ...
    patch_side: Final[int]
    channels: Final[int]

@final
class VideoShape(Record):
    def __new__(
        cls,
        *,
        patch_side: int = 0,
        tube_frames: int = 0,
        frame_stride: int = 0,
        channels: int = 0,
    ) -> VideoShape: ...
    patch_side: Final[int]
    tube_frames: Final[int]
    frame_stride: Final[int]
    channels: Final[int]

@final
class AudioShape(Record):
    def __new__(
        cls,
        *,
        chunk_samples: int = 0,
        sample_rate: int = 0,
    ) -> AudioShape: ...
    chunk_samples: Final[int]
    sample_rate: Final[int]

@final
class BatchShape(Record):
    def __new__(
        cls,
        *,
        max_rows_per_device: int = 0,
        max_segments_per_device: int = 0,
        max_columns_per_row: int = 0,
        max_bags_per_device: int = 0,
        max_choices_per_item: int = 0,
        image: ImageShape | tuple[int, ...] | None = None,
        video: VideoShape | tuple[int, ...] | None = None,
        audio: AudioShape | tuple[int, ...] | None = None,
    ) -> BatchShape: ...
    max_rows_per_device: Final[int]
    max_segments_per_device: Final[int]
    max_columns_per_row: Final[int]
    max_bags_per_device: Final[int]
    max_choices_per_item: Final[int]
    image: Final[ImageShape | None]
    video: Final[VideoShape | None]
    audio: Final[AudioShape | None]

@final
class Masking(Record):
    def __new__(
        cls,
        *,
        token_mask_probability: float = 0.0,
        token_mean_span: float = 0.0,
        replace_fraction: float = 0.0,
        random_fraction: float = 0.0,
        image_mask_ratio: float = 0.0,
        video_mask_ratio: float = 0.0,
        audio_mask_ratio: float = 0.0,
        text_weight: float = 0.0,
        image_weight: float = 0.0,
        video_weight: float = 0.0,
        audio_weight: float = 0.0,
    ) -> Masking: ...
    token_mask_probability: Final[float]
    token_mean_span: Final[float]
    replace_fraction: Final[float]
    random_fraction: Final[float]
    image_mask_ratio: Final[float]
    video_mask_ratio: Final[float]
    audio_mask_ratio: Final[float]
    text_weight: Final[float]
    image_weight: Final[float]
    video_weight: Final[float]
    audio_weight: Final[float]

@final
class Contrastive(Record):
    def __new__(
        cls,
        *,
        matryoshka_dimensions: Sequence[int] | None = None,
        temperature_groups: int = 0,
        inverse_temperature: float = 0.0,
        bias: float = 0.0,
        negatives: Negatives = ...,
        ambient_repulsion_weight: float = 0.0,
        max_edges_per_device: int = 0,
        pair_loss: PairLossForm = ...,
        ambient_scope: AmbientScope = ...,
    ) -> Contrastive: ...
    matryoshka_dimensions: Final[Sequence[int] | None]
    temperature_groups: Final[int]
    inverse_temperature: Final[float]
    bias: Final[float]
    negatives: Final[Negatives]
    ambient_repulsion_weight: Final[float]
    max_edges_per_device: Final[int]
    pair_loss: Final[PairLossForm]
    ambient_scope: Final[AmbientScope]

@final
class LateInteraction(Record):
    def __new__(
        cls,
        *,
        weight: float = 0.0,
        width: int = 0,
        inverse_temperature: float = 0.0,
        bias: float = 0.0,
        max_query_span: int = 0,
        max_query_tokens_per_device: int = 0,
        max_documents_per_device: int = 0,
        max_document_tokens_per_device: int = 0,
        pair_loss: PairLossForm = ...,
    ) -> LateInteraction: ...
    weight: Final[float]
    width: Final[int]
    inverse_temperature: Final[float]
    bias: Final[float]
    max_query_span: Final[int]
    max_query_tokens_per_device: Final[int]
    max_documents_per_device: Final[int]
    max_document_tokens_per_device: Final[int]
    pair_loss: Final[PairLossForm]

@final
class Choices(Record):
    def __new__(
        cls,
        *,
        weight: float = 0.0,
        inverse_temperature: float = 0.0,
        label_smoothing: float = 0.0,
    ) -> Choices: ...
    weight: Final[float]
    inverse_temperature: Final[float]
    label_smoothing: Final[float]

@final
class Schedule(Record):
    def __new__(
        cls,
        *,
        learning_rate: float = 0.0,
        min_learning_rate: float = 0.0,
        warmup_steps: int = 0,
        steps: int = 0,
    ) -> Schedule: ...
    learning_rate: Final[float]
    min_learning_rate: Final[float]
    warmup_steps: Final[int]
    steps: Final[int]

@final
class Optimizer(Record):
    def __new__(
        cls,
        *,
        beta1: float = 0.0,
        beta2: float = 0.0,
        epsilon: float = 0.0,
        weight_decay: float = 0.0,
        max_gradient_norm: float = 0.0,
    ) -> Optimizer: ...
    beta1: Final[float]
    beta2: Final[float]
    epsilon: Final[float]
    weight_decay: Final[float]
    max_gradient_norm: Final[float]

from typing import ClassVar, final

@final
class TrainerStepStats:
    def __new__(cls) -> TrainerStepStats: ...
    __hash__: ClassVar[None]  # type: ignore[assignment]
    step: int
    learning_rate: float
    loss: float
    contrastive_loss: float
    masked_text_loss: float
    masked_image_loss: float
    masked_video_loss: float
    masked_audio_loss: float
    late_interaction_loss: float
    choices_loss: float
    truncated: int
    dropped: int
    gradient_norm: float
    extra: dict[str, float]
    def __eq__(self, other: object, /) -> bool: ...
    def __getstate__(self) -> dict[str, object]: ...
    def __setstate__(self, state: dict[str, object]) -> None: ...

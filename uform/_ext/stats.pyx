# cython: language_level=3, annotation_typing=False, auto_pickle=False
"""What a step reports."""

cimport cython
from libc.string cimport memset

from uform._ext.c_api cimport uform_trainer_step_stats_t
from uform._ext.fields cimport as_double, as_str, as_uint64, refused, shown

_FIELDS = (
    "step",
    "learning_rate",
    "loss",
    "contrastive_loss",
    "masked_text_loss",
    "masked_image_loss",
    "masked_video_loss",
    "masked_audio_loss",
    "late_interaction_loss",
    "choices_loss",
    "truncated",
    "dropped",
    "gradient_norm",
    "extra",
)


cdef str _extra_name(object name):
    return f"TrainerStepStats.extra[{shown(name)}]"


@cython.final
cdef class TrainerStepStats:
    """TrainerStepStats()\n--\n\n\
What `step` reports, overwritten by every call it is passed to, every loss its world mean."""

    def __cinit__(self, *positional, **keywords):
        if positional or keywords:
            raise TypeError("TrainerStepStats takes no arguments: a step fills in its fields")
        memset(&self.c, 0, sizeof(self.c))
        self._extra = {}

    @property
    def extra(self) -> dict[str, float]:
        """What plugins report, by name."""
        return self._extra

    @extra.setter
    def extra(self, value: dict[str, float]) -> None:
        if not isinstance(value, dict):
            raise refused("TrainerStepStats.extra", value, "a dict of float by str")
        self._extra = {as_str(name, "TrainerStepStats.extra has a key that"): as_double(number, _extra_name(name))
                       for name, number in value.items()}

    @property
    def step(self) -> int:
        """The optimizer step the call applied, counted from one."""
        return self.c.step

    @step.setter
    def step(self, value: int) -> None:
        self.c.step = as_uint64(value, "TrainerStepStats.step")

    @property
    def learning_rate(self) -> float:
        """The learning rate it applied."""
        return self.c.learning_rate

    @learning_rate.setter
    def learning_rate(self, value: float) -> None:
        self.c.learning_rate = as_double(value, "TrainerStepStats.learning_rate")

    @property
    def loss(self) -> float:
        """The total loss the step minimized, its world mean."""
        return self.c.loss

    @loss.setter
    def loss(self, value: float) -> None:
        self.c.loss = as_double(value, "TrainerStepStats.loss")

    @property
    def contrastive_loss(self) -> float:
        """The contrastive term; 0 when absent."""
        return self.c.contrastive_loss

    @contrastive_loss.setter
    def contrastive_loss(self, value: float) -> None:
        self.c.contrastive_loss = as_double(value, "TrainerStepStats.contrastive_loss")

    @property
    def masked_text_loss(self) -> float:
        """The text reconstruction term, unweighted."""
        return self.c.masked_text_loss

    @masked_text_loss.setter
    def masked_text_loss(self, value: float) -> None:
        self.c.masked_text_loss = as_double(value, "TrainerStepStats.masked_text_loss")

    @property
    def masked_image_loss(self) -> float:
        """The image reconstruction term, unweighted."""
        return self.c.masked_image_loss

    @masked_image_loss.setter
    def masked_image_loss(self, value: float) -> None:
        self.c.masked_image_loss = as_double(value, "TrainerStepStats.masked_image_loss")

    @property
    def masked_video_loss(self) -> float:
        """The video reconstruction term, unweighted."""
        return self.c.masked_video_loss

    @masked_video_loss.setter
    def masked_video_loss(self, value: float) -> None:
        self.c.masked_video_loss = as_double(value, "TrainerStepStats.masked_video_loss")

    @property
    def masked_audio_loss(self) -> float:
        """The audio reconstruction term, unweighted."""
        return self.c.masked_audio_loss

    @masked_audio_loss.setter
    def masked_audio_loss(self, value: float) -> None:
        self.c.masked_audio_loss = as_double(value, "TrainerStepStats.masked_audio_loss")

    @property
    def late_interaction_loss(self) -> float:
        """The late-interaction term, weighted."""
        return self.c.late_interaction_loss

    @late_interaction_loss.setter
    def late_interaction_loss(self, value: float) -> None:
        self.c.late_interaction_loss = as_double(value, "TrainerStepStats.late_interaction_loss")

    @property
    def choices_loss(self) -> float:
        """The choices term over the items that made a choice, unweighted."""
        return self.c.choices_loss

    @choices_loss.setter
    def choices_loss(self, value: float) -> None:
        self.c.choices_loss = as_double(value, "TrainerStepStats.choices_loss")

    @property
    def truncated(self) -> int:
        """Items cut at a row's width."""
        return self.c.truncated

    @truncated.setter
    def truncated(self, value: int) -> None:
        self.c.truncated = as_uint64(value, "TrainerStepStats.truncated")

    @property
    def dropped(self) -> int:
        """Segments dropped whole because the batch had no room for them, since the last stats read."""
        return self.c.dropped

    @dropped.setter
    def dropped(self, value: int) -> None:
        self.c.dropped = as_uint64(value, "TrainerStepStats.dropped")

    @property
    def gradient_norm(self) -> float:
        """The gradient's global norm, before it was clipped."""
        return self.c.gradient_norm

    @gradient_norm.setter
    def gradient_norm(self, value: float) -> None:
        self.c.gradient_norm = as_double(value, "TrainerStepStats.gradient_norm")

    def __repr__(self) -> str:
        given = [f"{name}={value!r}" for name, value in self.__getstate__().items() if value]
        return f"TrainerStepStats({', '.join(given)})"

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return NotImplemented
        return self.__getstate__() == other.__getstate__()

    __hash__ = None

    def __reduce__(self) -> tuple[object, ...]:
        return TrainerStepStats, (), self.__getstate__()

    def __getstate__(self) -> dict[str, object]:
        return {name: getattr(self, name) for name in _FIELDS}

    def __setstate__(self, state: dict[str, object]) -> None:
        if not isinstance(state, dict):
            raise refused("state", state, "a dict of the fields")
        for name, value in state.items():
            if name not in _FIELDS:
                raise ValueError(f"state has the name {shown(name)}: TrainerStepStats has {', '.join(_FIELDS)}")
            setattr(self, name, value)

    cdef void take(self, const uform_trainer_step_stats_t* reported):
        """Overwrites all fields; what the report borrows is copied."""
        cdef size_t place
        self.c = reported[0]
        self._extra = {reported.extra[place].name.decode(): reported.extra[place].value
                       for place in range(reported.extra_count)}
        self.c.extra = NULL
        self.c.extra_count = 0

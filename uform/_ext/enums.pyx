# cython: language_level=3, annotation_typing=False
"""Enumerations, valued as those of the C API."""

from enum import IntEnum


class Modality(IntEnum):
    """What the bytes of one training item hold, valued as `uform_modality_t`."""

    __module__ = "uform"

    TEXT = 0
    IMAGE = 1
    VIDEO = 2
    AUDIO = 3


class Objective(IntEnum):
    """Which losses a training step relaxes, valued as `uform_objective_t`."""

    __module__ = "uform"

    MASKED = 0
    CONTRASTIVE = 1
    JOINT = 2


class Negatives(IntEnum):
    """Which pairs the contrastive loss pushes apart, valued as `uform_negatives_t`."""

    __module__ = "uform"

    AMBIENT = 0
    NAMED = 1


class AmbientScope(IntEnum):
    """Which bags a row sees as ambient negatives, valued as `uform_ambient_scope_t`.

    EVERY is all of the world's bags; CROSS_MODAL those that share no modality with the row; TARGETS those that an
    attract or repel edge points at; CROSS_SIDE those that take the other late-interaction side.
    """

    __module__ = "uform"

    EVERY = 0
    CROSS_MODAL = 1
    TARGETS = 2
    CROSS_SIDE = 3


class PairLossForm(IntEnum):
    """How a contrastive term turns a row of scores into forces, valued as `uform_pair_loss_form_t`."""

    __module__ = "uform"

    DERIVED = 0
    BALANCED = 1
    RANKED = 2
    SIGMOID = 3


class LateInteractionSide(IntEnum):
    """Which side of a late-interaction score an item takes, valued as `uform_late_interaction_side_t`."""

    __module__ = "uform"

    NONE = 0
    QUERY = 1
    DOCUMENT = 2
    QUERY_AND_DOCUMENT = 3


class Scalar(IntEnum):
    """Element types of outputs, valued as `uform_scalar_t`.

    INT8 are unit vectors scaled by 127; BIT are signs, packed eight a byte, the most significant first.
    """

    __module__ = "uform"

    FLOAT32 = 0
    FLOAT16 = 1
    BFLOAT16 = 2
    INT8 = 3
    BIT = 4


class GPUClass(IntEnum):
    """The class of kernels that every GPU of a run dispatches as, valued as `uform_gpu_class_t`: the world's lowest."""

    __module__ = "uform"

    NONE = 0
    AMPERE = 80
    ADA = 89
    HOPPER = 90
    BLACKWELL = 100


class MultimemTier(IntEnum):
    """What all devices of the world can do among themselves, valued as `uform_multimem_tier_t`."""

    __module__ = "uform"

    NONE = 0
    PEER = 1
    MULTICAST = 2


_FIELDS = {"negatives": Negatives, "pair_loss": PairLossForm, "ambient_scope": AmbientScope}


def with_members(description: dict[str, Any]) -> dict[str, Any]:
    """A run's description with members of enumerations in the place of their numbers and names."""
    for section in ("contrastive", "late_interaction"):
        fields = description.get(section, {})
        fields.update({name: member(fields[name]) for name, member in _FIELDS.items() if name in fields})
    # A run of others' objectives alone has none of the page's.
    description["objective"] = Objective.__members__.get(description["objective"])
    return description

from enum import IntEnum
from typing import Any

class Modality(IntEnum):
    TEXT = 0
    IMAGE = 1
    VIDEO = 2
    AUDIO = 3

class Objective(IntEnum):
    MASKED = 0
    CONTRASTIVE = 1
    JOINT = 2

class Negatives(IntEnum):
    AMBIENT = 0
    NAMED = 1

class AmbientScope(IntEnum):
    EVERY = 0
    CROSS_MODAL = 1
    TARGETS = 2
    CROSS_SIDE = 3

class PairLossForm(IntEnum):
    DERIVED = 0
    BALANCED = 1
    RANKED = 2
    SIGMOID = 3

class LateInteractionSide(IntEnum):
    NONE = 0
    QUERY = 1
    DOCUMENT = 2
    QUERY_AND_DOCUMENT = 3

class Scalar(IntEnum):
    FLOAT32 = 0
    FLOAT16 = 1
    BFLOAT16 = 2
    INT8 = 3
    BIT = 4

class GPUClass(IntEnum):
    NONE = 0
    AMPERE = 80
    ADA = 89
    HOPPER = 90
    BLACKWELL = 100

class MultimemTier(IntEnum):
    NONE = 0
    PEER = 1
    MULTICAST = 2

def with_members(description: dict[str, Any]) -> dict[str, Any]: ...

"""Trains and runs one encoder over text, images, video and audio."""

from uform import data, losses, progress
from uform._ext.arena import Arena, ArenaBuffer
from uform._ext.config import (
    AudioShape,
    BatchShape,
    Choices,
    Contrastive,
    ImageShape,
    LateInteraction,
    Masking,
    Optimizer,
    Schedule,
    VideoShape,
)
from uform._ext.decoders import get_decoder, set_decoder
from uform._ext.deferred import Deferred, DeferredOn, On
from uform._ext.enums import (
    AmbientScope,
    GPUClass,
    LateInteractionSide,
    Modality,
    MultimemTier,
    Negatives,
    Objective,
    PairLossForm,
    Scalar,
)
from uform._ext.executor import Executor
from uform._ext.mesh import Mesh, MeshDescription, MeshOptions
from uform._ext.model import Model
from uform._ext.plugin_batch import Pairs, PluginArray, PluginBatch
from uform._ext.process import show_config, version
from uform._ext.registry import register
from uform._ext.relations import Edges, Relations
from uform._ext.rows_tape import RowsTape
from uform._ext.stats import TrainerStepStats
from uform._ext.status import Cancelled, DeviceError, MeshError
from uform._ext.trainer import Trainer
from uform.build import get_cython_path, get_include
from uform.registry import register_first_party

__version__ = version()

__all__ = [
    "AmbientScope",
    "Arena",
    "ArenaBuffer",
    "AudioShape",
    "BatchShape",
    "Cancelled",
    "Choices",
    "Contrastive",
    "Deferred",
    "DeferredOn",
    "DeviceError",
    "Edges",
    "Executor",
    "GPUClass",
    "ImageShape",
    "LateInteraction",
    "LateInteractionSide",
    "Masking",
    "Mesh",
    "MeshDescription",
    "MeshError",
    "MeshOptions",
    "Modality",
    "Model",
    "MultimemTier",
    "Negatives",
    "Objective",
    "On",
    "Optimizer",
    "PairLossForm",
    "Pairs",
    "PluginArray",
    "PluginBatch",
    "Relations",
    "RowsTape",
    "Scalar",
    "Schedule",
    "Trainer",
    "TrainerStepStats",
    "VideoShape",
    "data",
    "get_cython_path",
    "get_decoder",
    "get_include",
    "losses",
    "progress",
    "register",
    "set_decoder",
    "show_config",
]

register_first_party()

"""The losses as functions of given arrays: their values and gradients, through the code that trains."""

from uform._ext.losses import MaskedLoss, PairLoss, contrastive, late_interaction, masked_bytes

__all__ = ["MaskedLoss", "PairLoss", "contrastive", "late_interaction", "masked_bytes"]

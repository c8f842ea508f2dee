"""What the oracle says of a call, for a run as the trainer itself describes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

import uform
from tests.helpers.calls import Call, Content
from tests.helpers.runs import read_all
from tests.oracle import masks, step
from tests.oracle.contrastive import Form
from tests.oracle.image import patches_of
from tests.oracle.late_interaction import item_pairs
from tests.oracle.pairs import AmbientScope, Negatives, classify, modalities_by_bag, sides_by_bag
from tests.oracle.relations import to_bags
from tests.oracle.segment import Segment, choice_codes, text_segment

Array = npt.NDArray[Any]

VALUES = 1e-5  # relative error in the 2-norm against float64, of values and of gradients
GRADIENTS = 1e-4


def relative_error(found: Any, expected: Any) -> float:
    """In the 2-norm; absolute where the expected values are all zero."""
    given, known = np.asarray(found, np.float64), np.asarray(expected, np.float64)
    norm = float(np.linalg.norm(known))
    return float(np.linalg.norm(given - known)) / (norm if norm > 0 else 1.0)


def batch_of(described: Mapping[str, Any], call: Call, number: int = 0) -> step.Batch:
    """The oracle's batch of a call, covered as the `number`-th call of the run covers it (counted from 0)."""
    masked = "masking" in described
    contrasts = (
        described["objective"] != uform.Objective.MASKED
    )  # else late interaction alone reads what is described of it
    segments = []
    for item, content in enumerate(call.contents):
        draws = masks.Draws(described["seed"], number, item) if masked else None
        segments.append(_segment(described, content, call.bag_of[item], draws, call.choices_of(item)))
    return step.Batch(
        segments=segments,
        contrastive=_contrastive(described, call) if contrasts else None,
        masked_weights=_weights(described) if masked else {},
        choices=_choices(described, call) if "choices" in described else None,
        late_interaction=_late_interaction(described, call) if "late_interaction" in described else None,
    )


def run(trainer: uform.Trainer, call: Call, number: int = 0) -> step.StepResult:
    """The oracle's step from the trainer's present parameters."""
    return step.run(read_all(trainer), batch_of(trainer.describe(), call, number))


def _weights(described: Mapping[str, Any]) -> dict[str, float]:
    weights = {"text": described["masking"]["text_weight"]}
    if "image" in described["batch"]:
        weights["image"] = described["masking"]["image_weight"]
    return weights


def _choices(described: Mapping[str, Any], call: Call) -> step.ChoicesTerm:
    settings = described["choices"]
    rows = [()] * len(call.contents) if call.choice_targets is None else call.choice_targets
    return step.ChoicesTerm(rows, label_smoothing=settings["label_smoothing"], weight=settings["weight"])


def _late_interaction(described: Mapping[str, Any], call: Call) -> step.LateInteractionTerm:
    own, of_pairs = described["late_interaction"], described["contrastive"]
    pairs = item_pairs(
        call.item_relations,
        [0] * len(call.contents) if call.sides is None else call.sides,
        negatives=Negatives(of_pairs["negatives"]),
        scope=AmbientScope(of_pairs["ambient_scope"]),
        ambient_weight=of_pairs["ambient_repulsion_weight"],
        modalities=call.modalities,
    )
    return step.LateInteractionTerm(
        pairs=pairs, form=Form(own["pair_loss"]), span=own["max_query_span"], weight=own["weight"]
    )


def _segment(
    described: Mapping[str, Any], content: Content, bag: int, draws: masks.Draws | None, choices: Sequence[bytes]
) -> Segment:
    if isinstance(content, np.ndarray):
        return _image_segment(described, content, bag, draws)
    room = described["batch"]["max_columns_per_row"] - 1 - len(choice_codes(choices))
    text = (content.encode() if isinstance(content, str) else content)[:room]
    if draws is None:
        return text_segment(text, bag=bag, choices=choices)
    masking = described["masking"]
    covered = masks.cover_bytes(
        text,
        draws,
        probability=masking["token_mask_probability"],
        mean_span=masking["token_mean_span"],
        replace_fraction=masking["replace_fraction"],
        random_fraction=masking["random_fraction"],
    )
    return text_segment(text, bag=bag, covered=covered.places, replacements=covered.codes, choices=choices)


def _image_segment(described: Mapping[str, Any], pixels: Array, bag: int, draws: masks.Draws | None) -> Segment:
    patches = patches_of(pixels, described["batch"]["image"]["patch_side"])
    covered = np.zeros(0, dtype=np.int64)
    if draws is not None:
        ratio = described["masking"]["image_mask_ratio"]
        covered = masks.cover_patches(patches.whole, patches.grid, draws, ratio=ratio)
    return Segment(modality="image", bag=bag, content=patches.values, grid=patches.grid, covered=covered)


def _contrastive(described: Mapping[str, Any], call: Call) -> step.ContrastiveTerm:
    settings, bag_of = described["contrastive"], call.bag_of
    count = 1 + max(bag_of)
    groups = [0] * count
    if call.groups is not None:
        for bag, group in reversed(list(zip(bag_of, call.groups, strict=True))):
            groups[bag] = group  # a bag takes its first item's
    pairs = classify(
        count,
        to_bags(call.item_relations, bag_of),
        negatives=Negatives(settings["negatives"]),
        scope=AmbientScope(settings["ambient_scope"]),
        ambient_weight=settings["ambient_repulsion_weight"],
        modalities=modalities_by_bag(call.modalities, bag_of),
        sides=sides_by_bag([0] * len(bag_of) if call.sides is None else call.sides, bag_of),
    )
    return step.ContrastiveTerm(
        pairs=pairs, form=Form(settings["pair_loss"]), groups=groups, prefixes=settings["matryoshka_dimensions"]
    )

"""A whole step: the total loss of a batch and its gradients by all parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import autograd.numpy as np

from . import choices, contrastive, late_interaction, masked
from .contrastive import Form
from .encoder import encode, pool
from .numeric import Array, gradient
from .pairs import Pairs
from .parameters import (
    BIAS,
    CHOICES_LOG_INVERSE_TEMPERATURE,
    CHOICES_VECTOR,
    LATE_BIAS,
    LATE_LOG_INVERSE_TEMPERATURE,
    LOG_INVERSE_TEMPERATURE,
    PROJECTION,
)
from .segment import TEXT, Segment

CONTRASTIVE = "contrastive"
CHOICES = "choices"
LATE_INTERACTION = "late_interaction"


@dataclass(frozen=True)
class ContrastiveTerm:
    """What the contrastive loss of a batch needs beside the embeddings.

    Attributes:
        pairs: Class and weight of every pair of bags.
        form: Which of the three losses.
        groups: Each bag's temperature group; None puts all in group 0.
        prefixes: Matryoshka widths; None is the full width only.
    """

    pairs: Pairs
    form: Form
    groups: Sequence[int] | None = None
    prefixes: Sequence[int] | None = None


@dataclass(frozen=True)
class ChoicesTerm:
    """What the choices loss of a batch needs beside the segments.

    Attributes:
        targets: Each segment's row, empty or zeros where it abstains.
        label_smoothing: The share of a target that is spread over all choices.
        weight: The term's in the total.
    """

    targets: Sequence[Array]
    label_smoothing: float = 0.0
    weight: float = 1.0


@dataclass(frozen=True)
class LateInteractionTerm:
    """What late interaction needs beside the segments.

    Attributes:
        pairs: Class and weight of every pair of items.
        form: Which of the three losses.
        span: A query's columns past so many are cut.
        weight: The term's in the total.
    """

    pairs: Pairs
    form: Form
    span: int
    weight: float = 1.0


@dataclass(frozen=True)
class Batch:
    """The world's batch of one step.

    Attributes:
        segments: Every item, with its covered columns already replaced.
        contrastive: The contrastive term; None where the objective leaves it out.
        masked_weights: The weight of each modality's masked loss; empty where the objective leaves it out.
        choices: The choices term; None where the run makes none.
        late_interaction: That term; None where the run leaves it out.
    """

    segments: Sequence[Segment]
    contrastive: ContrastiveTerm | None = None
    masked_weights: Mapping[str, float] = field(default_factory=dict)
    choices: ChoicesTerm | None = None
    late_interaction: LateInteractionTerm | None = None


@dataclass(frozen=True)
class StepResult:
    """What a step computes before the optimizer.

    Attributes:
        loss: The total.
        losses: The unweighted terms: `contrastive`, `choices`, `late_interaction`, and a modality's name for its masked
            loss.
        embeddings: The pooled embeddings, `[bags, hidden]`.
        gradients: Of the total by every parameter, unclipped.
    """

    loss: float
    losses: dict[str, float]
    embeddings: Array
    gradients: dict[str, Array]


def masked_loss(
    parameters: Mapping[str, Array], segments: Sequence[Segment], states: Sequence[Array], modality: str
) -> Array:
    """One modality's masked loss, mean over all covered columns of the batch."""
    own = [(segment, state) for segment, state in zip(segments, states, strict=True) if segment.modality == modality]
    if sum(len(segment.covered) for segment, _ in own) == 0:
        return 0.0
    # The marker is column 0, so content begins at 1.
    covered = np.concatenate([state[1 + segment.covered] for segment, state in own])
    if modality == TEXT:
        targets = np.concatenate([segment.targets for segment, _ in own])
        return masked.masked_bytes(masked.byte_logits(covered, parameters["text.table"]), targets)
    values = np.concatenate([segment.content[segment.covered] for segment, _ in own])
    return masked.masked_patches(masked.patch_predictions(covered, parameters[f"{modality}.head"]), values)


def choice_scores(parameters: Mapping[str, Array], segments: Sequence[Segment], states: Sequence[Array]) -> list[Array]:
    """The logits of every segment's choices."""
    vector, temperature = parameters[CHOICES_VECTOR], parameters[CHOICES_LOG_INVERSE_TEMPERATURE][0]
    return [
        choices.logits(state[segment.choice_columns], vector, temperature)
        for segment, state in zip(segments, states, strict=True)
    ]


def token_vectors(parameters: Mapping[str, Array], segments: Sequence[Segment], states: Sequence[Array]) -> list[Array]:
    """Every segment's vectors of its marker and its content."""
    return [
        late_interaction.token_vectors(state[: 1 + len(segment.content)], parameters[PROJECTION])
        for segment, state in zip(segments, states, strict=True)
    ]


def terms(parameters: Mapping[str, Array], batch: Batch) -> tuple[dict[str, Array], Array]:
    """The unweighted loss terms by name, and the embeddings, from one pass over the batch."""
    states = [encode(parameters, segment) for segment in batch.segments]
    embeddings = pool(states, batch.segments)
    losses = {modality: masked_loss(parameters, batch.segments, states, modality) for modality in batch.masked_weights}
    if batch.contrastive is not None:
        term = batch.contrastive
        losses[CONTRASTIVE] = contrastive.loss(
            embeddings,
            parameters[LOG_INVERSE_TEMPERATURE],
            parameters[BIAS],
            pairs=term.pairs,
            form=term.form,
            groups=[0] * embeddings.shape[0] if term.groups is None else term.groups,
            prefixes=term.prefixes,
        )
    if batch.choices is not None:
        losses[CHOICES] = choices.loss(
            choice_scores(parameters, batch.segments, states),
            batch.choices.targets,
            label_smoothing=batch.choices.label_smoothing,
        )
    if batch.late_interaction is not None:
        losses[LATE_INTERACTION] = late_interaction.loss(
            token_vectors(parameters, batch.segments, states),
            parameters[LATE_LOG_INVERSE_TEMPERATURE],
            parameters[LATE_BIAS],
            pairs=batch.late_interaction.pairs,
            form=batch.late_interaction.form,
            span=batch.late_interaction.span,
        )
    return losses, embeddings


def total_loss(parameters: Mapping[str, Array], batch: Batch) -> Array:
    """The contrastive loss plus weight times each of the others: masked by modality, choices, late interaction."""
    losses, _ = terms(parameters, batch)
    weights = dict(batch.masked_weights)
    if batch.choices is not None:
        weights[CHOICES] = batch.choices.weight
    if batch.late_interaction is not None:
        weights[LATE_INTERACTION] = batch.late_interaction.weight
    return sum((weights.get(name, 1.0) * value for name, value in losses.items()), start=0.0)


def run(parameters: Mapping[str, Array], batch: Batch) -> StepResult:
    """Losses, embeddings and gradients of a batch; parameters of any float type are read as float64."""
    exact = {name: np.asarray(value, dtype=np.float64) for name, value in parameters.items()}
    losses, embeddings = terms(exact, batch)
    return StepResult(
        loss=float(total_loss(exact, batch)),
        losses={name: float(value) for name, value in losses.items()},
        embeddings=embeddings,
        gradients=gradient(lambda variables: total_loss(variables, batch), exact),
    )

"""Our losses against those that users bring from other packages, on what no one here wrote.

Run by `tools/test --peers`, which installs the packages apart; elsewhere what is not installed is skipped.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import uform
import uform.torch
from uform import AmbientScope, LateInteractionSide, Modality, PairLossForm

torch: Any = pytest.importorskip("torch")
normalize = torch.nn.functional.normalize

PAIRS, WIDTH, SCALE, BIAS = 24, 64, 20.0, -10.0


@pytest.fixture(scope="module")
def ram() -> uform.Executor:
    return uform.Executor.for_ram()


def unit(*shape: int, seed: int) -> Any:
    """Unit vectors that ask for their gradient; partners lie near each other."""
    values = np.random.default_rng(seed).normal(size=shape)
    values[..., : shape[-1] // 2] += np.random.default_rng(1).normal(size=(*shape[:-1], shape[-1] // 2))
    vectors = torch.from_numpy((values / np.linalg.norm(values, axis=-1, keepdims=True)).astype(np.float32))
    return vectors.requires_grad_()


def edges(targets: dict[int, list[int]], items: int) -> uform.Relations:
    """Each item of `targets` attracts those."""
    rows = [targets.get(item, []) for item in range(items)]
    return uform.Relations(attract=(np.cumsum([0, *map(len, rows)]), [one for row in rows for one in row]))


def one_way(count: int = PAIRS) -> uform.Relations:
    return edges({item: [count + item] for item in range(count)}, 2 * count)


def both_ways(count: int = PAIRS) -> uform.Relations:
    return edges({item: [(item + count) % (2 * count)] for item in range(2 * count)}, 2 * count)


def check_same(ours: Any, theirs: Any, *tensors: Any) -> None:
    """The same value, and the same gradient in each tensor."""
    assert ours.item() == pytest.approx(theirs.item(), rel=1e-5)
    of_ours = torch.autograd.grad(ours, tensors)
    for one, other in zip(of_ours, torch.autograd.grad(theirs, tensors), strict=True):
        assert float((one - other).norm()) <= 1e-4 * float(other.norm())


@pytest.mark.parametrize("form", [PairLossForm.DERIVED, PairLossForm.SIGMOID])
@pytest.mark.parametrize("value", [-10.0, -1e-3, -1e-30, -0.0, 0.0, 1e-30, 1e-3, 2.0])
@pytest.mark.parametrize("late", [False, True])
def test_a_learned_bias_is_the_number_that_it_is(
    late: bool, value: float, form: PairLossForm, ram: uform.Executor
) -> None:
    """Only one that is not given derives: 0 on its way to another value is 0."""
    vectors = unit(2 * PAIRS, WIDTH, seed=3)
    bias = torch.tensor(value, requires_grad=True)
    sides = [LateInteractionSide.QUERY] * PAIRS + [LateInteractionSide.DOCUMENT] * PAIRS
    if late:
        ours = uform.torch.late_interaction(
            ram,
            vectors,
            np.arange(2 * PAIRS + 1),
            sides=sides,
            relations=one_way(),
            bias=bias,
            late_interaction=uform.LateInteraction(pair_loss=form, inverse_temperature=SCALE),
        )
    else:
        ours = uform.torch.contrastive(
            ram,
            vectors,
            sides=sides,
            relations=one_way(),
            bias=bias,
            contrastive=uform.Contrastive(
                pair_loss=form, inverse_temperature=SCALE, ambient_scope=AmbientScope.CROSS_SIDE
            ),
        )
    scores = SCALE * vectors[:PAIRS].double() @ vectors[PAIRS:].double().T + bias.double()
    theirs = torch.nn.functional.softplus((1 - 2 * torch.eye(PAIRS)) * scores).sum() / PAIRS
    check_same(ours, theirs, vectors, bias)


class Given(torch.nn.Module):
    """A model whose embeddings are those that it is given."""

    skiplist: list[int] = []  # noqa: RUF012
    do_query_expansion = True

    def get_sentence_embedding_dimension(self) -> int:
        return WIDTH

    def forward(self, features: Any) -> Any:
        return features


def test_multiple_negatives_ranking_loss(ram: uform.Executor) -> None:
    losses = pytest.importorskip("sentence_transformers.losses")
    from sentence_transformers.util import dot_score

    anchors, positives = unit(PAIRS, WIDTH, seed=2), unit(PAIRS, WIDTH, seed=3)
    theirs = losses.MultipleNegativesRankingLoss(Given(), scale=SCALE, similarity_fct=dot_score)
    ours = uform.torch.contrastive(
        ram,
        torch.cat([anchors, positives]),
        relations=one_way(),
        contrastive=uform.Contrastive(inverse_temperature=SCALE, ambient_scope=AmbientScope.TARGETS),
    )
    features = [{"sentence_embedding": anchors}, {"sentence_embedding": positives}]
    check_same(ours, theirs(features, torch.zeros(0)), anchors, positives)


def test_matryoshka_loss(ram: uform.Executor) -> None:
    losses = pytest.importorskip("sentence_transformers.losses")
    anchors, positives = unit(PAIRS, WIDTH, seed=4), unit(PAIRS, WIDTH, seed=5)
    model, dims = Given(), [48, 32, 8]
    theirs = losses.MatryoshkaLoss(model, losses.MultipleNegativesRankingLoss(model, scale=SCALE), dims)
    ours = uform.torch.contrastive(
        ram,
        torch.cat([anchors, positives]),
        relations=one_way(),
        contrastive=uform.Contrastive(
            inverse_temperature=SCALE, ambient_scope=AmbientScope.TARGETS, matryoshka_dimensions=dims
        ),
    )
    features = [{"sentence_embedding": anchors}, {"sentence_embedding": positives}]
    # Theirs is the sum over the prefixes, ours the mean.
    check_same(len(dims) * ours, theirs(features, torch.zeros(0)), anchors, positives)


def test_clip_loss(ram: uform.Executor) -> None:
    loss = pytest.importorskip("open_clip.loss")
    pictures, texts = unit(PAIRS, WIDTH, seed=6), unit(PAIRS, WIDTH, seed=7)
    scale = torch.tensor(SCALE, requires_grad=True)
    ours = uform.torch.contrastive(
        ram,
        torch.cat([pictures, texts]),
        relations=both_ways(),
        contrastive=uform.Contrastive(ambient_scope=AmbientScope.CROSS_MODAL),
        modalities=[Modality.IMAGE] * PAIRS + [Modality.TEXT] * PAIRS,
        inverse_temperature=scale,
    )
    check_same(ours, loss.ClipLoss()(pictures, texts, scale), pictures, texts, scale)


def test_sig_lip_loss(ram: uform.Executor) -> None:
    loss = pytest.importorskip("open_clip.loss")
    pictures, texts = unit(PAIRS, WIDTH, seed=8), unit(PAIRS, WIDTH, seed=9)
    scale, bias = torch.tensor(SCALE, requires_grad=True), torch.tensor(BIAS, requires_grad=True)
    ours = uform.torch.contrastive(
        ram,
        torch.cat([pictures, texts]),
        relations=both_ways(),
        contrastive=uform.Contrastive(ambient_scope=AmbientScope.CROSS_MODAL, pair_loss=PairLossForm.SIGMOID),
        modalities=[Modality.IMAGE] * PAIRS + [Modality.TEXT] * PAIRS,
        inverse_temperature=scale,
        bias=bias,
    )
    check_same(ours, loss.SigLipLoss()(pictures, texts, scale, bias), pictures, texts, scale, bias)


def test_sup_con_loss(ram: uform.Executor) -> None:
    losses = pytest.importorskip("pytorch_metric_learning.losses")
    distances = pytest.importorskip("pytorch_metric_learning.distances")
    vectors = unit(2 * PAIRS, WIDTH, seed=10)
    labels = np.random.default_rng(11).integers(0, 7, 2 * PAIRS)
    same = {
        item: [other for other in range(2 * PAIRS) if other != item and labels[other] == labels[item]]
        for item in range(2 * PAIRS)
    }
    ours = uform.torch.contrastive(
        ram,
        vectors,
        relations=edges(same, 2 * PAIRS),
        contrastive=uform.Contrastive(inverse_temperature=SCALE, pair_loss=PairLossForm.BALANCED),
    )
    dot = distances.DotProductSimilarity(normalize_embeddings=False)
    theirs = losses.SupConLoss(temperature=1 / SCALE, distance=dot)(vectors, torch.from_numpy(labels))
    check_same(ours, theirs, vectors)


def test_late_interaction_of_pylate(ram: uform.Executor) -> None:
    losses = pytest.importorskip("pylate.losses")
    query_tokens, document_tokens, temperature = 5, 9, 0.25
    queries, documents = unit(PAIRS, query_tokens, WIDTH, seed=12), unit(PAIRS, document_tokens, WIDTH, seed=13)
    features = [
        {
            "token_embeddings": tokens,
            "input_ids": torch.ones(tokens.shape[:2], dtype=torch.long),
            "attention_mask": torch.ones(tokens.shape[:2], dtype=torch.long),
        }
        for tokens in (queries, documents)
    ]
    counts = [query_tokens] * PAIRS + [document_tokens] * PAIRS
    ours = uform.torch.late_interaction(
        ram,
        normalize(torch.cat([queries.flatten(0, 1), documents.flatten(0, 1)]), dim=1),  # as theirs does
        np.cumsum([0, *counts]),
        sides=[LateInteractionSide.QUERY] * PAIRS + [LateInteractionSide.DOCUMENT] * PAIRS,
        relations=one_way(),
        # Theirs sums over a query's tokens, ours is their mean.
        late_interaction=uform.LateInteraction(inverse_temperature=query_tokens / temperature),
    )
    theirs = losses.Contrastive(Given(), temperature=temperature)(features)
    check_same(ours, theirs, queries, documents)


def test_masked_bytes_is_cross_entropy(ram: uform.Executor) -> None:
    logits = torch.randn(37, 256, generator=torch.Generator().manual_seed(14)).requires_grad_()
    targets = torch.arange(37, dtype=torch.uint8) * 7
    theirs = torch.nn.functional.cross_entropy(logits, targets.long())
    check_same(uform.torch.masked_bytes(ram, logits, targets), theirs, logits)


def test_a_gradient_reaches_what_the_vectors_came_from(ram: uform.Executor) -> None:
    weights = unit(2 * PAIRS, WIDTH, seed=15).detach().requires_grad_()
    scale = torch.tensor(SCALE, requires_grad=True)
    optimizer = torch.optim.SGD([weights, scale], lr=1.0)
    losses = []
    for _ in range(10):
        optimizer.zero_grad()
        loss = uform.torch.contrastive(ram, normalize(weights, dim=1), relations=both_ways(), inverse_temperature=scale)
        (3 * loss).backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0]


def test_learned_scalars_are_checked(ram: uform.Executor) -> None:
    vectors, groups = unit(4, WIDTH, seed=16), uform.Contrastive(temperature_groups=2)
    for learned, options, message in (
        (torch.ones(2), None, r"inverse_temperature has the shape \(2,\): expected one number"),
        (torch.zeros(1), None, r"inverse_temperature is 0\.0: expected more than 0"),
        (torch.ones(1), groups, "inverse_temperature is one number, and temperature_groups is 2"),
    ):
        with pytest.raises(ValueError, match=message):
            uform.torch.contrastive(ram, vectors, relations=None, inverse_temperature=learned, contrastive=options)


@pytest.mark.parametrize("form", [PairLossForm.BALANCED, PairLossForm.RANKED])
@pytest.mark.parametrize("value", [-1.0, 0.0])
def test_a_learned_bias_that_the_form_does_not_read_is_refused(
    form: PairLossForm, value: float, ram: uform.Executor
) -> None:
    vectors, bias = unit(4, WIDTH, seed=17), torch.tensor(value)
    told = f"^bias is {value}: nothing reads it, since pair_loss is {form.name}$"
    with pytest.raises(ValueError, match=told):
        uform.torch.contrastive(ram, vectors, relations=None, bias=bias, contrastive=uform.Contrastive(pair_loss=form))
    with pytest.raises(ValueError, match=told):
        uform.torch.late_interaction(
            ram,
            vectors,
            np.arange(5),
            sides=[LateInteractionSide.QUERY] * 2 + [LateInteractionSide.DOCUMENT] * 2,
            relations=None,
            bias=bias,
            late_interaction=uform.LateInteraction(pair_loss=form),
        )

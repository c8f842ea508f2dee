"""Late interaction on a GPU as RAM has it: given token vectors, whole steps, answers of models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import uform
from tests.gpu.naive import matrices, to_bfloat16
from uform import LateInteraction, LateInteractionSide, Modality, Objective, PairLossForm

FORMS = [PairLossForm.BALANCED, PairLossForm.RANKED, PairLossForm.SIGMOID]
QUERIES, DOCUMENTS = 12, 18
ITEMS = QUERIES + DOCUMENTS
SIDES = [LateInteractionSide.QUERY] * QUERIES + [LateInteractionSide.DOCUMENT] * DOCUMENTS
SIDES[0] = LateInteractionSide.QUERY_AND_DOCUMENT
RELATIONS = uform.Relations(
    attract=(
        np.minimum(np.arange(ITEMS + 1), QUERIES).astype(np.uint64),
        np.arange(QUERIES, 2 * QUERIES).astype(np.uint32),
    )
)
TEXTS = [
    f"{'question' if item < QUERIES else 'an answer of some length to question'} {item % QUERIES}"
    for item in range(ITEMS)
]


def given(width: int) -> tuple[Any, Any]:
    """Token vectors that bfloat16 holds exactly, and where each item's begin."""
    lengths = [3 + item * 7 % 11 if item < QUERIES else 1 + item * 37 % 150 for item in range(ITEMS)]
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.uint64)
    values = np.random.default_rng(4).normal(size=(int(offsets[-1]), width)).astype(np.float32)
    values /= np.linalg.norm(values, axis=1, keepdims=True)
    return (values.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32), offsets


def distance(left: Any, right: Any) -> float:
    return float(np.linalg.norm(left - right) / max(float(np.linalg.norm(right)), 1e-30))


@pytest.fixture(params=["own", "AMPERE"])
def of_class(request: pytest.FixtureRequest, gpu: uform.Executor, monkeypatch: pytest.MonkeyPatch) -> uform.Executor:
    """The GPU with its own class's kernels, and with those of any."""
    if request.param == "own":
        return gpu
    monkeypatch.setenv("UFORM_GPU_CLASS", request.param)
    return uform.Executor.for_vram([0])


@pytest.mark.parametrize("width", [8, 64, 128, 200])
@pytest.mark.parametrize("form", FORMS)
def test_given_vectors(form: PairLossForm, width: int, of_class: uform.Executor, ram: uform.Executor) -> None:
    gpu, torch = of_class, pytest.importorskip("torch")
    tokens, offsets = given(width)
    asked: dict[str, Any] = {
        "sides": SIDES,
        "relations": RELATIONS,
        "late_interaction": LateInteraction(pair_loss=form),
    }
    here = uform.losses.late_interaction(ram, tokens, offsets, **asked)
    for values in (torch.from_numpy(tokens).cuda(), torch.from_numpy(tokens).cuda().bfloat16()):
        there = uform.losses.late_interaction(gpu, values, offsets, **asked)
        assert there.loss == pytest.approx(here.loss, rel=1e-3)
        np.testing.assert_array_equal(there.rows, here.rows)
        for name in ("gradient", "log_inverse_temperature_gradient", "bias_gradient", "row_losses"):
            found = torch.from_dlpack(getattr(there, name)).float().cpu().numpy()
            assert distance(found, getattr(here, name)) < 2e-2, name
        again = uform.losses.late_interaction(gpu, values, offsets, **asked)
        assert torch.equal(torch.from_dlpack(again.gradient), torch.from_dlpack(there.gradient))


def test_given_vectors_may_begin_anywhere(of_class: uform.Executor) -> None:
    torch = pytest.importorskip("torch")
    tokens, offsets = given(64)
    asked: dict[str, Any] = {"sides": SIDES, "relations": RELATIONS}
    dense = torch.from_numpy(tokens).cuda()
    expected = uform.losses.late_interaction(of_class, dense, offsets, **asked)
    for before in (1, 2, 3):
        room = torch.zeros(before + tokens.size, device="cuda")
        room[before:] = dense.reshape(-1)
        found = uform.losses.late_interaction(of_class, room[before:].view(-1, 64), offsets, **asked)
        assert found.loss == expected.loss
        np.testing.assert_array_equal(found.gradient.numpy(), expected.gradient.numpy())


def score(executor: uform.Executor, tokens: Any, offsets: list[int]) -> float:
    """The score of items 0 and 1, out of the loss: with one repelled document SIGMOID's is softplus(score)."""
    torch = pytest.importorskip("torch")
    items = len(offsets) - 1
    found = uform.losses.late_interaction(
        executor,
        torch.tensor(tokens, dtype=torch.float32, device="cuda"),
        offsets,
        sides=[LateInteractionSide.QUERY, LateInteractionSide.DOCUMENT, *[LateInteractionSide.NONE] * (items - 2)],
        relations=uform.Relations(repel=uform.Edges(offsets=[0, *[1] * items], ids=[1])),
        late_interaction=LateInteraction(pair_loss=PairLossForm.SIGMOID, bias=1e-30, inverse_temperature=1.0),
    )
    assert torch.isfinite(torch.from_dlpack(found.gradient)).all()
    return float(np.log(np.expm1(found.loss)))


@pytest.mark.parametrize("width", [2, 8, 64, 128])
def test_LAT_01_padding_never_wins(of_class: uform.Executor, width: int) -> None:
    rest = [0.0] * (width - 2)
    query, document = [1.0, 0.0, *rest], [[-1.0, 0.0, *rest], [-0.6, 0.8, *rest]]
    assert score(of_class, [query, *document], [0, 1, 3]) == pytest.approx(-0.6, abs=5e-3)
    zeros = [[0.0] * width] * 6
    assert score(of_class, [query, *document, *zeros], [0, 1, 3, 9]) == pytest.approx(-0.6, abs=5e-3)


def model_of(executor: uform.Executor, folder: Path) -> uform.Model:
    make(executor, Objective.CONTRASTIVE).save(folder / "run")
    return uform.Model.init_vram(executor, folder / "run")


def maxsim(query: Any, document: Any) -> float:
    return float(np.mean(np.max(np.asarray(query, np.float64) @ np.asarray(document, np.float64).T, axis=1)))


def test_LAT_03_scores_do_not_depend_on_the_batch(gpu: uform.Executor, tmp_path: Path) -> None:
    texts, model = ["what is it", "it is a document", "a much longer one " * 10], model_of(gpu, tmp_path)
    alone, beside = (list(model.embed_tokens([Modality.TEXT] * count, texts[:count])) for count in (2, 3))
    assert maxsim(*alone) == pytest.approx(maxsim(*beside[:2]), abs=5e-3)
    losses = []
    for count in (2, 3):
        trainer, stats = make(gpu, Objective.CONTRASTIVE, pair_loss=PairLossForm.SIGMOID), uform.TrainerStepStats()
        trainer.step(
            [Modality.TEXT] * count,
            texts[:count],
            sides=[LateInteractionSide.QUERY, LateInteractionSide.DOCUMENT, LateInteractionSide.NONE][:count],
            relations=uform.Relations(attract=([0, *[1] * count], [1])),
            stats=stats,
        )
        losses.append(stats.late_interaction_loss)
    assert losses[0] == pytest.approx(losses[1], rel=5e-3)


def test_LAT_07_an_empty_document(gpu: uform.Executor) -> None:
    trainer, stats = make(gpu, Objective.CONTRASTIVE), uform.TrainerStepStats()
    texts = ["a query", "the answer to the query", "", "third", "fourth", "fifth"]
    trainer.step(
        [Modality.TEXT] * 6,
        texts,
        sides=[LateInteractionSide.QUERY, *[LateInteractionSide.DOCUMENT] * 5],
        relations=uform.Relations(attract=([0, *[1] * 6], [1])),
        stats=stats,
    )
    assert np.isfinite([stats.late_interaction_loss, stats.gradient_norm]).all()


def test_LAT_09_training_s_score_is_that_of_exported_vectors(gpu: uform.Executor, tmp_path: Path) -> None:
    trainer = make(gpu, Objective.CONTRASTIVE, pair_loss=PairLossForm.SIGMOID, bias=1e-30)
    trainer.save(tmp_path / "run")
    tape = list(uform.Model.init_vram(gpu, tmp_path / "run").embed_tokens([Modality.TEXT] * ITEMS, TEXTS, sides=SIDES))
    expected = []
    for query in range(1, QUERIES):  # the first is a document as well, and its query is cut
        scores = {other: 20 * maxsim(tape[query], tape[other]) for other in range(QUERIES, ITEMS)}
        expected.append(sum(np.log1p(np.exp(-v if other == QUERIES + query else v)) for other, v in scores.items()))
    sides = [LateInteractionSide.NONE, *SIDES[1:]]
    stats = uform.TrainerStepStats()
    offsets = np.clip(np.arange(ITEMS + 1) - 1, 0, QUERIES - 1).astype(np.uint64)
    ids = np.arange(QUERIES + 1, 2 * QUERIES, dtype=np.uint32)
    trainer.step(
        [Modality.TEXT] * ITEMS, TEXTS, sides=sides, relations=uform.Relations(attract=(offsets, ids)), stats=stats
    )
    assert stats.late_interaction_loss == pytest.approx(np.mean(expected), rel=1e-3)


def make(executor: uform.Executor, objective: Objective, **fields: Any) -> uform.Trainer:
    init = uform.Trainer.init_vram if executor.kind == "vram" else uform.Trainer.init_ram
    return init(
        executor,
        depth=2,
        hidden=128,
        objective=objective,
        batch=uform.BatchShape(max_rows_per_device=8, max_columns_per_row=256),
        late_interaction=LateInteraction(max_query_span=10, **fields),
        schedule=uform.Schedule(learning_rate=1e-3, warmup_steps=2, steps=50),
        seed=11,
    )


def step(trainer: uform.Trainer) -> uform.TrainerStepStats:
    stats = uform.TrainerStepStats()
    trainer.step([Modality.TEXT] * ITEMS, TEXTS, sides=SIDES, relations=RELATIONS, stats=stats)
    return stats


def gradient_of(trainer: uform.Trainer) -> Any:
    names = [entry["name"] for entry in trainer.describe()["parameters"]]
    return np.concatenate([trainer.read(name, "gradient").ravel() for name in names])


@pytest.mark.parametrize("objective", list(Objective))
@pytest.mark.parametrize("form", FORMS)
def test_gradients_of_a_step(
    form: PairLossForm, objective: Objective, gpu: uform.Executor, ram: uform.Executor
) -> None:
    there, here, naive = (make(executor, objective, pair_loss=form) for executor in (gpu, ram, ram))
    for name, values in matrices(naive).items():
        naive.write(name, to_bfloat16(values))
    on_gpu, in_ram, _ = (step(trainer) for trainer in (there, here, naive))
    assert on_gpu.late_interaction_loss == pytest.approx(in_ram.late_interaction_loss, rel=1e-3)
    assert on_gpu.loss == pytest.approx(in_ram.loss, rel=1e-3)
    assert on_gpu.extra == in_ram.extra == {"late_interaction.cut": float(QUERIES)}
    # Covered columns are nearly equal at first, so that rounding alone lets another of them match.
    expected = gradient_of(here)
    assert distance(gradient_of(there), expected) < 2 * distance(gradient_of(naive), expected) + 2e-2


def test_a_run_learns_and_repeats_itself(gpu: uform.Executor, tmp_path: Path) -> None:
    weights = []
    for _ in range(2):
        trainer = make(gpu, Objective.CONTRASTIVE)
        losses = [step(trainer).late_interaction_loss for _ in range(20)]
        assert losses[-1] < 0.8 * losses[0]
        weights.append(trainer.read("late_interaction.projection"))
    np.testing.assert_array_equal(weights[0], weights[1])


def test_several_replicas_of_one_gpu(gpu: uform.Executor) -> None:
    losses = [step(make(executor, Objective.JOINT)) for executor in (gpu, uform.Executor.for_vram([0, 0, 0]))]
    assert losses[0].late_interaction_loss == pytest.approx(losses[1].late_interaction_loss, rel=1e-3)
    assert losses[0].gradient_norm == pytest.approx(losses[1].gradient_norm, rel=5e-2)


@pytest.mark.parametrize("scalar", list(uform.Scalar))
def test_token_vectors(gpu: uform.Executor, ram: uform.Executor, tmp_path: Path, scalar: uform.Scalar) -> None:
    trainer = make(gpu, Objective.CONTRASTIVE)
    step(trainer)
    trainer.save(tmp_path / "run")
    there, here = uform.Model.init_vram(gpu, tmp_path / "run"), uform.Model.init_ram(ram, tmp_path / "run")
    modalities = [Modality.TEXT] * ITEMS
    expected = here.embed_tokens(modalities, TEXTS, sides=SIDES)
    for arena in (None, uform.Arena.for_vram(0)):
        found = there.embed_tokens(modalities, TEXTS, sides=SIDES, arena=arena, outputs_scalar=scalar)
        np.testing.assert_array_equal(found.offsets, expected.offsets)
        assert found.device == ("ram" if arena is None else "vram:0")
        assert [len(row) for row in found] == [len(row) for row in expected]
        if scalar == uform.Scalar.FLOAT32:
            assert distance(found.numpy(), expected.numpy()) < 2e-2
            np.testing.assert_array_equal(found[1], found.numpy()[int(found.offsets[1]) : int(found.offsets[2])])

"""The emoji run's own functions, a short run through the same lines as the long one, and its twin in PyTorch."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import uform
from tools.emoji.__main__ import main
from tools.emoji.batches import Batch, find_alike, make_batches, move, prefetch, stretch
from tools.emoji.data import Emojis, read_emojis
from tools.emoji.learner import Learner
from tools.emoji.recall import recalls
from tools.emoji.recipe import Recipe
from tools.emoji.run import seconds_to_reach, train

SIDE = 16
RECIPE = Recipe(depth=2, hidden=64, pictures=8, names_each=2, steps=60, learning_rate=2e-3)
WORDS = ["red", "green", "blue", "black", "white", "cyan", "pink", "gold", "grey", "lime", "navy", "plum"]


def emojis(count: int = len(WORDS)) -> Emojis:
    """Pictures of one tone each, named in three languages."""
    rng = np.random.default_rng(1)
    tones = rng.integers(0, 256, (count, 1, 1, 3))
    pictures = np.broadcast_to(tones, (count, SIDE, SIDE, 3)).astype(np.uint8)
    return Emojis(pictures.copy(), [[f"{word}", f"das {word}", f"el {word}é"] for word in WORDS[:count]])


@pytest.fixture(scope="module")
def executor() -> uform.Executor:
    return uform.Executor.for_ram()


def test_attracted_and_ignored_edges_stand_both_ways() -> None:
    batch = Batch(np.zeros((3, 8, 8, 3), np.uint8), list("abcdef"), np.array([[0, 2], [2, 0]]))
    offsets, ids = batch.attracted()
    assert offsets.tolist() == [0, 2, 4, 6, 7, 8, 9, 10, 11, 12]
    assert ids.tolist() == [3, 4, 5, 6, 7, 8, 0, 0, 1, 1, 2, 2]
    offsets, ids = batch.ignored()
    edges = {(row, int(one)) for row in range(9) for one in ids[int(offsets[row]) : int(offsets[row + 1])]}
    assert edges == {(0, 7), (0, 8), (7, 0), (8, 0), (2, 3), (2, 4), (3, 2), (4, 2)}


def test_alike_are_those_that_look_the_same_or_share_a_name() -> None:
    given = emojis(4)
    given.pictures[3] = given.pictures[0]
    given.names[2][1] = given.names[1][0]
    assert np.argwhere(find_alike(given)).tolist() == [[0, 3], [1, 2], [2, 1], [3, 0]]


def test_stretching_keeps_the_middle_and_the_white_ground() -> None:
    picture = np.full((1, 40, 40, 3), 255, np.uint8)
    picture[0, 10:30, 10:30] = 0
    assert np.array_equal(stretch(picture, 1.0, 1.0), picture)
    half = stretch(picture, 0.5, 1.0)[0, :, :, 0].round()
    assert (half[16:24, 11:29] == 0).all()
    assert (half[:13] == 255).all()
    assert (half[:, :9] == 255).all()
    assert np.array_equal(half, half[::-1])


def test_moved_pictures_are_windows_into_their_variants() -> None:
    given = emojis()
    pictures = move(
        [np.pad(given.pictures, ((0, 0), (8, 8), (8, 8), (0, 0)))], np.array([4, 0]), np.random.default_rng(0)
    )
    assert pictures.shape == (2, SIDE, SIDE, 3)


def test_batches_depend_on_their_seed_alone_and_go_through_all() -> None:
    one, same, other = (list(make_batches(emojis(), 4, 2, 6, seed)) for seed in (5, 5, 6))
    for left, right in zip(one, same, strict=True):
        assert left.names == right.names
        np.testing.assert_array_equal(left.pictures, right.pictures)
    assert [batch.names for batch in one] != [batch.names for batch in other]
    for epoch in (one[:3], one[3:]):
        firsts = {name.split()[-1].removesuffix("é") for batch in epoch for name in batch.names[::2]}
        assert firsts == set(WORDS)
    assert all(len(set(batch.names)) == 8 for batch in one)


def test_prefetching_keeps_the_order_and_passes_failures_on() -> None:
    def fails() -> Iterator[int]:
        yield 1
        raise RuntimeError("no more")

    assert list(prefetch(range(20), depth=2)) == list(range(20))
    items = prefetch(fails())
    assert next(items) == 1
    with pytest.raises(RuntimeError, match="no more"):
        next(items)


def test_recall_counts_hits_among_the_first() -> None:
    axes = np.eye(8, dtype=np.float32)
    pictures, owners = axes[:7], np.repeat(np.arange(7), 2)
    assert set(recalls(pictures, axes[owners], owners).values()) == {1.0}
    names = axes[owners].copy()
    names[0] = axes[7]  # orthogonal to all: its own picture is tied with six others
    found = recalls(pictures, names, owners)
    assert found["picture to name@1"] == 1.0
    assert found["name to picture@1"] == found["name to picture@5"] == pytest.approx(13 / 14)
    names[1] = axes[7]
    found = recalls(pictures, names, owners)
    assert found["picture to name@5"] == pytest.approx(6 / 7)


def test_a_short_run_learns_its_own_emojis(executor: uform.Executor) -> None:
    learner = Learner(executor, RECIPE, emojis())
    batches = prefetch(make_batches(emojis(), RECIPE.pictures, RECIPE.names_each, RECIPE.steps, 0))
    points = list(train(learner, batches, emojis(), {1, RECIPE.steps}))
    learner.close()
    assert [point.step for point in points] == [1, RECIPE.steps]
    assert points[1].loss < 0.7 * points[0].loss
    assert points[1].mean > max(0.5, points[0].mean)
    assert points[1].seconds > points[0].seconds > 0
    assert seconds_to_reach(points, points[1].mean) == points[1].seconds
    assert seconds_to_reach(points, 1.1) is None


def test_the_twin_in_pytorch_takes_the_same_steps(executor: uform.Executor) -> None:
    pytest.importorskip("torch")
    from tools.emoji.peer import Peer

    learner = Learner(executor, RECIPE, emojis())
    peer = Peer(learner.weights(), RECIPE, emojis(), "cpu")
    for left, right in zip(learner.embed(emojis()), peer.embed(emojis()), strict=True):
        np.testing.assert_allclose(right, left, atol=1e-5)
    given = emojis()
    given.names[1][0] = given.names[0][0]  # so that some pairs are ignored
    batches = list(make_batches(given, RECIPE.pictures, RECIPE.names_each, 12, 0))
    assert any(len(batch.alike) for batch in batches)
    losses = np.array([[learner.step_and_tell(batch), peer.step_and_tell(batch)] for batch in batches])
    np.testing.assert_allclose(losses[:, 1], losses[:, 0], rtol=2e-3)
    for left, right in zip(learner.embed(given), peer.embed(given), strict=True):
        np.testing.assert_allclose(right, left, atol=2e-2)


def write_parquet(path: Path, given: Emojis, valid: Emojis) -> None:
    """A file as the tool reads it."""
    parquet = pytest.importorskip("pyarrow.parquet")
    table = pytest.importorskip("pyarrow").table
    image = pytest.importorskip("PIL.Image")

    def png(picture: np.ndarray) -> bytes:
        file = io.BytesIO()
        image.fromarray(picture).save(file, "PNG")
        return file.getvalue()

    splits = [("train", given), ("valid", valid)]
    columns = {
        "png": [png(picture) for _, part in splits for picture in part.pictures],
        "names": [names for _, part in splits for names in part.names],
        "split": [split for split, part in splits for _ in part.names],
    }
    parquet.write_table(table(columns), path)


def test_the_tool_reads_trains_and_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    data, output, plot = (tmp_path / name for name in ("emoji.parquet", "emoji.json", "emoji.png"))
    write_parquet(data, emojis(), emojis(4))
    read, held = read_emojis(data)
    np.testing.assert_array_equal(read.pictures, emojis().pictures)
    assert held.names == emojis(4).names
    options = ["--ram", "--depth", "1", "--hidden", "64", "--pictures", "4", "--names-each", "1", "--steps", "10"]
    assert main(["--data", str(data), "--output", str(output), "--plot", str(plot), *options]) == 0
    told = json.loads(output.read_text())
    assert [point["step"] for point in told["runs"]["uform"]] == list(range(1, 11))
    assert told["recipe"]["hidden"] == 64
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert "picture to name@1" in capsys.readouterr().out


def test_options_that_need_more_than_is_installed_are_refused_before_any_work(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tools.emoji.__main__.find_spec", lambda name: None)
    for option in (["--peer"], ["--plot", "emoji.png"]):
        with pytest.raises(SystemExit):
            main(["--data", "no such file", *option])
        assert "is not installed" in capsys.readouterr().err

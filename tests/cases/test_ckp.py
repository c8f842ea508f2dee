"""CKP: checkpoints and resuming. Fresh processes are in tests/unit/test_resume.py."""

from __future__ import annotations

import errno
import os
import struct
import subprocess
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

import uform
from tests.helpers.calls import Call
from tests.helpers.processes import run_python
from tests.helpers.runs import digest, make_trainer, ram, read_all, resume, shape
from uform import (
    AudioShape,
    BatchShape,
    Choices,
    Contrastive,
    ImageShape,
    LateInteraction,
    Masking,
    Objective,
    PairLossForm,
    Schedule,
    VideoShape,
)

TEXTS = ["one", "two", "three", "four"]
CALL = Call(TEXTS, attract=((0, 1, 1.0), (2, 3, 1.0)))
JOINT: dict[str, Any] = {"objective": Objective.JOINT, "schedule": Schedule(learning_rate=1e-2, steps=100)}


def call_of(step: int) -> Call:
    return Call([f"{text} {step}" for text in TEXTS], attract=CALL.attract)


def steps(trainer: uform.Trainer, first: int, last: int) -> list[tuple[float, float]]:
    """Rate and loss of the steps `first` to `last`, each over its own texts."""
    answers = [call_of(step).step(trainer).stats for step in range(first, last + 1)]
    assert [stats.step for stats in answers] == list(range(first, last + 1))
    return [(stats.learning_rate, stats.loss) for stats in answers]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "checkpoint.safetensors"


SAVER = """
    import os, random, signal, sys
    from pathlib import Path
    import numpy as np
    import uform

    target, first, second = sys.argv[1:4]
    rng = random.Random(7)
    sources = [Path(first), Path(second)]
    killed = []

    def save_until_killed(attempt, ready):
        executor = uform.Executor.for_ram(threads=1)
        trainers = [uform.Trainer.init_ram(executor, resume=source) for source in sources]
        tensors = 2 * 3 * len(trainers[0].describe()["parameters"])  # of both
        fatal, written = rng.randrange(1, tensors + 1) if attempt % 2 else 0, 0

        def progress(done, total):
            nonlocal written
            written += 1
            if written == fatal:
                os.kill(os.getpid(), signal.SIGKILL)

        os.write(ready, b"!")
        while True:  # two checkpoints in turn, so that the file is always the one or the other
            for trainer in trainers:
                trainer.save(target, progress=progress)

    for attempt in range(50):
        rng.seed(attempt)
        waited, ready = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                save_until_killed(attempt, ready)
            finally:
                os._exit(1)
        os.close(ready)
        os.read(waited, 1)
        if attempt % 2 == 0:  # at any time, also while it synchronises and renames
            spins = rng.randrange(200_000)
            while spins:
                spins -= 1
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        os.close(waited)
        data = Path(target).read_bytes()
        known = [source.read_bytes() for source in sources]
        killed.append(os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL and data in known)
    beside = lambda: [name for name in os.listdir(Path(target).parent) if name.startswith(".")]
    left = len(beside())
    trainer = uform.Trainer.init_ram(uform.Executor.for_ram(threads=1), resume=target)
    trainer.save(target)
    print("[%d, %d, %d, %d, %d]" % (len(killed), sum(killed), trainer.describe()["step"], left, len(beside())))
"""


def test_CKP_01_killed_while_saving(path: Path, tmp_path: Path) -> None:
    """Fifty times: half at a known tensor, half at any time. The file is always one of the two, byte for byte, and what
    the killed had written beside it is gone with the next save."""
    trainer = make_trainer(**JOINT)
    sources = [tmp_path / "first", tmp_path / "second"]
    for source in sources:
        CALL.step(trainer)
        trainer.save(source)
    path.write_bytes(sources[0].read_bytes())
    attempts, whole, step, left, after = run_python(SAVER, path, *sources)
    assert (attempts, whole) == (50, 50)
    assert step in (1, 2)
    assert left >= 1
    assert after == 0


@pytest.mark.parametrize("cut", ["0", "7", "8", "header-1", "header", "end-1"])
def test_CKP_03_cut_file(path: Path, cut: str) -> None:
    make_trainer(**JOINT).save(path)
    data = path.read_bytes()
    header = 8 + struct.unpack("<Q", data[:8])[0]
    size = {"header-1": header - 1, "header": header, "end-1": len(data) - 1}.get(cut)
    path.write_bytes(data[: int(cut) if size is None else size])
    for opening in (lambda: resume(path), lambda: uform.Model.init_ram(ram(), path)):
        with pytest.raises(OSError, match=path.name):
            opening()


def test_CKP_03_other_files(path: Path) -> None:
    for content in (b"", b"\xff" * 64, struct.pack("<Q", 2) + b"{}", struct.pack("<Q", 1 << 40) + b"{}", b"PK\x03\x04"):
        path.write_bytes(content)
        with pytest.raises(OSError, match=path.name):
            resume(path)
    with pytest.raises(OSError, match="absent") as missing:
        resume(path.with_name("absent"))
    assert missing.value.errno in (None, errno.ENOENT)
    with pytest.raises(OSError, match=path.parent.name):
        resume(path.parent)


def test_CKP_05_tied_weights(path: Path) -> None:
    """The bytes' table is the head's weights as well: it is kept once, and both uses go on with it."""
    trainer = make_trainer(masking=Masking(token_mask_probability=0.5))
    CALL.step(trainer)
    trainer.save(path)
    tensors = load_file(path)
    shaped = [name for name, value in tensors.items() if value.shape == (260, 64) and "moment" not in name]
    assert shaped == ["text.table"]
    resumed = resume(path)
    np.testing.assert_array_equal(resumed.read("text.table"), tensors["text.table"])
    assert CALL.step(resumed).stats.loss == CALL.step(trainer).stats.loss
    np.testing.assert_array_equal(resumed.read("text.table", "gradient"), trainer.read("text.table", "gradient"))


def test_safetensors_reads_what_is_saved(path: Path) -> None:
    trainer = make_trainer(**JOINT)
    CALL.step(trainer)
    trainer.save(path)
    tensors = load_file(path)
    for name, value in read_all(trainer).items():
        np.testing.assert_array_equal(tensors[name], value, err_msg=name)
        assert tensors[name].dtype == np.float32
        assert tensors[name].shape == value.shape


def test_CKP_07_stopped_within_the_warmup(path: Path) -> None:
    """Stopped at 37 of 100 steps, 40 of them warmup: rate, loss and weights follow the straight run."""
    given = {**JOINT, "schedule": Schedule(learning_rate=1e-2, warmup_steps=40, steps=100)}
    straight = make_trainer(**given)
    steps(straight, 1, 37)
    straight.save(path)
    expected = steps(straight, 38, 60)
    resumed = resume(path)
    assert steps(resumed, 38, 60) == expected
    assert digest(resumed) == digest(straight)
    assert expected[0][0] == pytest.approx(1e-2 * 38 / 40)


def test_CKP_09_loss_after_resuming(path: Path) -> None:
    straight = make_trainer(**JOINT)
    steps(straight, 1, 20)
    straight.save(path)
    after = steps(straight, 21, 21)[0][1]
    assert steps(resume(path), 21, 21)[0][1] == pytest.approx(after, rel=1e-6)
    untrained = call_of(21).step(make_trainer(**JOINT)).stats.loss
    assert abs(untrained - after) > 1e-3


@pytest.mark.parametrize("devices", [1, 2])
def test_CKP_11_other_count_of_devices(path: Path, devices: int) -> None:
    four = make_trainer(devices=4, **JOINT)
    steps(four, 1, 3)
    four.save(path)
    resumed = resume(path, devices=devices)
    assert resumed.describe()["step"] == 3
    for name, value in read_all(four).items():
        np.testing.assert_array_equal(read_all(resumed)[name], value)
    for expected, found in zip(steps(four, 4, 6), steps(resumed, 4, 6), strict=True):
        assert found == pytest.approx(expected, rel=1e-4)


def test_CKP_11_no_item_is_repeated_or_lost() -> None:
    """Two epochs of 25 items in batches of 8, which four hosts begin, two go on with and one ends."""
    read: list[int] = []
    for step, hosts in enumerate([4] * 3 + [2] * 2 + [1] * 3):
        for host in range(hosts):
            resumed = uform.data.batches(25, size=8, step=step, host_domain_index=host, host_domain_count=hosts)
            read += next(resumed).tolist()
    assert sorted(read[:25]) == sorted(read[25:]) == list(range(25))
    assert read == [*uform.data.order(25, epoch=0), *uform.data.order(25, epoch=1)]


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"hidden": 128}, ["hidden", "64", "128"]),
        ({"depth": 2}, ["depth", "1", "2"]),
        ({"objective": Objective.CONTRASTIVE}, ["objective", "JOINT", "CONTRASTIVE"]),
        ({"batch": BatchShape(image=ImageShape(patch_side=8))}, ["patch_side", "4", "8"]),
        ({"batch": BatchShape(image=ImageShape(patch_side=4, channels=1))}, ["channels", "3", "1"]),
        ({"contrastive": Contrastive(temperature_groups=3)}, ["contrastive.temperature_groups", "2", "3"]),
        ({"contrastive": Contrastive(inverse_temperature=20)}, ["contrastive.inverse_temperature", "14.28", "20"]),
        ({"contrastive": Contrastive(bias=-7)}, ["contrastive.bias", "0", "-7"]),
        ({"contrastive": Contrastive(pair_loss=PairLossForm.SIGMOID)}, ["contrastive.pair_loss", "1", "3"]),
        ({"late_interaction": LateInteraction(width=64)}, ["late_interaction", "none", "one was asked"]),
        ({"choices": Choices(weight=2)}, ["choices", "none", "some were asked"]),
        ({"batch": BatchShape(video=VideoShape(patch_side=4))}, ["video.patch_side", "0", "4"]),
        ({"batch": BatchShape(audio=AudioShape(chunk_samples=80))}, ["audio.chunk_samples", "0", "80"]),
    ],
    ids=[
        "hidden",
        "depth",
        "objective",
        "patch_side",
        "channels",
        "temperature_groups",
        "inverse_temperature",
        "bias",
        "pair_loss",
        "late_interaction",
        "choices",
        "video",
        "audio",
    ],
)
def test_CKP_13_another_shape_names_both(path: Path, fields: dict[str, Any], named: list[str]) -> None:
    trainer = make_trainer(
        objective=Objective.JOINT, batch=shape(images=True), contrastive=Contrastive(temperature_groups=2)
    )
    trainer.save(path)
    before = path.read_bytes()
    with pytest.raises(ValueError, match=f"{path.name}.*{named[0]}") as refusal:
        resume(path, **fields)
    assert all(word in str(refusal.value) for word in named)
    assert path.read_bytes() == before
    assert digest(resume(path)) == digest(trainer)


def test_CKP_13_images_that_the_checkpoint_lacks(path: Path) -> None:
    make_trainer().save(path)
    with pytest.raises(ValueError, match="patch_side"):
        resume(path, batch=BatchShape(image=ImageShape(patch_side=4)))


def test_CKP_17_two_savers_of_one_target(path: Path) -> None:
    """A hundred times two trainers of their own executors, hence at once: each report is success, the file whole."""
    trainers = [
        uform.Trainer.init_ram(uform.Executor.for_ram(threads=1), depth=1, hidden=64, batch=shape(), seed=seed)
        for seed in (1, 2)
    ]
    alone = []
    for trainer in trainers:
        trainer.save(path)
        alone.append(path.read_bytes())
    failures: list[BaseException] = []
    together = threading.Barrier(3)

    def save(trainer: uform.Trainer) -> None:
        for _ in range(100):
            together.wait()
            try:
                trainer.save(path)
            except BaseException as failure:
                failures.append(failure)
            together.wait()

    threads = [threading.Thread(target=save, args=(trainer,)) for trainer in trainers]
    for thread in threads:
        thread.start()
    whole = 0
    for _ in range(100):
        together.wait()
        together.wait()
        whole += path.read_bytes() in alone
    for thread in threads:
        thread.join()
    assert failures == []
    assert whole == 100
    assert sorted(os.listdir(path.parent)) == [path.name]


def test_CKP_17_deferred_saves(path: Path) -> None:
    executor = uform.Executor.for_ram(threads=1)
    trainer = uform.Trainer.init_ram(executor, depth=1, hidden=64, batch=shape())
    deferred = trainer.deferred(executor)
    for _ in range(100):
        first, second = deferred.save(path), deferred.save(path)
        assert first.result() is None
        assert second.result() is None
        assert resume(path).describe()["step"] == 0
    assert os.listdir(path.parent) == [path.name]


FULL = """
    import os, resource, signal, sys
    import uform

    source, target = sys.argv[1:3]
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    trainer = uform.Trainer.init_ram(uform.Executor.for_ram(threads=1), resume=source)
    resource.setrlimit(resource.RLIMIT_FSIZE, (os.path.getsize(source) - 1000,) * 2)
    try:
        trainer.save(target)
        print('"saved"')
    except OSError as failure:
        print('"%s"' % str(failure).replace('"', "'"))
"""


def test_no_room_for_the_file(path: Path, tmp_path: Path) -> None:
    """A limit on the size of files stands for a full disk: it ends a write in the same place."""
    source = tmp_path / "source"
    make_trainer().save(source)
    path.write_bytes(b"the old one")
    assert path.name in run_python(FULL, source, path)
    assert path.read_bytes() == b"the old one"
    assert sorted(os.listdir(tmp_path)) == [path.name, "source"]


def test_full_file_system(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounting = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)]
    try:
        mounted = subprocess.run(mounting, capture_output=True, text=True, check=False)
    except OSError as failure:
        pytest.skip(f"no small file system can be mounted: {failure}")
    if mounted.returncode:
        pytest.skip(f"no small file system can be mounted: {mounted.stderr.strip()}")
    try:
        target = disk / "checkpoint.safetensors"
        target.write_bytes(b"the old one")
        with pytest.raises(OSError, match=target.name) as refusal:
            make_trainer().save(target)
        assert refusal.value.errno in (None, errno.ENOSPC)
        assert target.read_bytes() == b"the old one"
        assert os.listdir(disk) == [target.name]
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_saving_can_be_cancelled(path: Path) -> None:
    trainer = make_trainer()
    trainer.save(path)
    before = path.read_bytes()
    CALL.step(trainer)
    seen: list[tuple[int, int]] = []

    def progress(done: int, total: int) -> bool:
        seen.append((done, total))
        return done < 3

    with pytest.raises(uform.Cancelled):
        trainer.save(path, progress=progress)
    assert [done for done, _ in seen] == [1, 2, 3]
    assert path.read_bytes() == before
    assert os.listdir(path.parent) == [path.name]
    with pytest.raises(ZeroDivisionError):
        trainer.save(path, progress=lambda done, total: bool(1 // 0))
    assert path.read_bytes() == before
    trainer.save(os.fsencode(path), progress=lambda done, total: None, progress_steps=4)
    assert path.read_bytes() != before


def test_paths_that_cannot_be_written(tmp_path: Path) -> None:
    trainer = make_trainer()
    for target in (tmp_path / "absent" / "file", tmp_path, "", tmp_path / ("x" * 300)):
        with pytest.raises((OSError, ValueError)):
            trainer.save(target)
    with pytest.raises(ValueError, match="path"):
        trainer.save(str(tmp_path / "a\0b"))
    with pytest.raises(TypeError, match="path"):
        trainer.save(3)  # type: ignore[arg-type]
    assert os.listdir(tmp_path) == []

"""Memory that does not suffice, and a GPU that faults: what is said, what is given back, what goes on."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import uform
from tests.gpu.test_training import make, step
from tests.helpers.cuda_driver import Driver
from tests.helpers.processes import run_python
from uform import Modality, Objective

pytestmark = pytest.mark.alone

# What the allocator may round an allocation to.
GRANULE = 2 << 20


@pytest.fixture(scope="module")
def driver() -> Driver:
    return Driver()


def asked_and_free(failure: BaseException) -> tuple[int, int]:
    numbers = re.search(r"(\d+) bytes were asked for, (\d+) are free", str(failure))
    assert numbers is not None, failure
    return int(numbers[1]), int(numbers[2])


def big(executor: uform.Executor) -> uform.Trainer:
    return make(executor, Objective.JOINT, depth=4, hidden=1024)


def small(executor: uform.Executor) -> uform.Trainer:
    return make(executor, Objective.JOINT)


def warm_up(executor: uform.Executor) -> int:
    """Runs both once, so that all that stays is there; answers the bytes that the big one plans for a device."""
    planned = []
    for build in (small, big):
        trainer = build(executor)
        step(trainer)
        planned.append(int(trainer.describe()["planned_bytes_per_device"]["total"]))
        trainer.close()
    return planned[-1]


@pytest.fixture(scope="module")
def plan(gpu: uform.Executor) -> int:
    return warm_up(gpu)


def test_a_plan_that_does_not_fit_names_its_bytes_and_leaves_nothing(
    gpu: uform.Executor, driver: Driver, plan: int
) -> None:
    with driver.ballast(leave=plan // 2):
        before = driver.free_bytes()
        with pytest.raises(MemoryError) as caught:
            big(gpu)
        asked, free = asked_and_free(caught.value)
        assert asked == plan
        assert abs(free - before) <= GRANULE
        assert driver.free_bytes() >= before
        trainer = small(gpu)
        step(trainer)
        trainer.close()
        assert driver.free_bytes() >= before


def test_a_second_replica_that_does_not_fit_gives_back_the_first(
    gpu: uform.Executor, driver: Driver, plan: int
) -> None:
    executor = uform.Executor.for_vram([0, 0])
    plan = warm_up(executor)
    with driver.ballast(leave=plan + plan // 2):
        before = driver.free_bytes()
        with pytest.raises(MemoryError) as caught:
            big(executor)
        asked, free = asked_and_free(caught.value)
        assert asked == plan
        assert free < plan
        assert driver.free_bytes() >= before
        trainer = small(executor)
        step(trainer)
        trainer.close()
        assert driver.free_bytes() >= before


def test_a_resumed_run_and_a_model_that_do_not_fit(
    gpu: uform.Executor, driver: Driver, plan: int, tmp_path: Path
) -> None:
    path = tmp_path / "big.safetensors"
    trainer = big(gpu)
    trainer.save(path)
    trainer.close()
    texts = ["one", "two"]
    uform.Model.init_vram(gpu, path).embed([Modality.TEXT] * 2, texts)
    loads: list[Callable[[], object]] = [
        lambda: uform.Trainer.init_vram(gpu, resume=path),
        lambda: uform.Model.init_vram(gpu, path),
    ]
    for load in loads:
        with driver.ballast(leave=64 << 20):
            before = driver.free_bytes()
            with pytest.raises(MemoryError) as caught:
                load()
            asked, free = asked_and_free(caught.value)
            assert asked > free
            assert driver.free_bytes() >= before
    vectors = uform.Model.init_vram(gpu, path).embed([Modality.TEXT] * 2, texts)
    assert vectors.shape == (2, 1024)


def test_losses_that_do_not_fit(gpu: uform.Executor, driver: Driver) -> None:
    torch = pytest.importorskip("torch")
    vectors = torch.randn(20_000, 1024, device="cuda", generator=torch.Generator("cuda").manual_seed(0))

    def loss(count: int) -> float:
        edges = (np.arange(count + 1, dtype=np.uint64), (np.arange(count) ^ 1).astype(np.uint32))
        relations = uform.Relations(attract=edges)
        found: uform.losses.PairLoss = uform.losses.contrastive(gpu, vectors[:count], relations=relations)
        return found.loss

    before = loss(100)
    with driver.ballast(leave=32 << 20):
        free_before = driver.free_bytes()
        with pytest.raises(MemoryError) as caught:
            loss(len(vectors))
        asked, free = asked_and_free(caught.value)
        assert asked > free
        assert driver.free_bytes() >= free_before
    assert loss(100) == before


# Kernels are loaded when they are first started: only a process of its own has none yet.
NO_ROOM = """
import json
import uform
from tests.gpu.test_training import make, step
from tests.helpers.cuda_driver import Driver

executor = uform.Executor.for_vram([0])
trainer = make(executor, uform.Objective.CONTRASTIVE)
told = []
with Driver().no_room():
    for _ in range(3):
        try:
            step(trainer)
        except MemoryError as failure:
            told.append(str(failure))
applied = trainer.describe()["step"]
losses = [step(trainer)[0].loss for _ in range(4 - applied)]
alone = make(executor, uform.Objective.CONTRASTIVE)
print(json.dumps([told, applied, losses, [step(alone)[0].loss for _ in range(4)]]))
"""


def test_kernels_that_find_no_room(gpu: uform.Executor) -> None:
    """No fault, but a want of memory: the run goes on once there is room."""
    told, applied, losses, expected = run_python(NO_ROOM)
    assert len(told) == 3 - applied
    assert told
    for message in told:
        assert "out of memory" in message, told
    assert losses == expected[applied:]


# A fault stays: the context of the process is lost with all its memory. So each of them has a process of its own, which
# must say what happened, end in order and leave the GPU to the next.
FAULT = """
import json, sys
import uform
from tests.gpu.test_training import make, step
from tests.helpers.cuda_driver import ILLEGAL_ADDRESS, Driver

after, waits = float(sys.argv[1]), sys.argv[2] == "waits"
executor = uform.Executor.for_vram([0])
trainers = [make(executor, objective) for objective in (uform.Objective.JOINT, uform.Objective.CONTRASTIVE)]
arena = uform.Arena.for_vram()
for trainer in trainers:
    _, answer = step(trainer, arena)
deferred = trainers[1].deferred(executor)
driver = Driver()
driver.fault(after)
if waits:
    assert driver.wait() == ILLEGAL_ADDRESS
told = []

def refused(call):
    try:
        call()
    except uform.DeviceError as failure:
        told.append(str(failure))

for _ in range(2000):
    if not told:
        refused(lambda: step(trainers[0]))
refused(lambda: step(trainers[0]))
refused(lambda: step(trainers[1]))
refused(lambda: trainers[0].read("norm"))
refused(lambda: trainers[0].save("/dev/shm/never.safetensors"))
refused(lambda: answer.numpy())
refused(arena.reset)
refused(lambda: make(executor, uform.Objective.JOINT))
refused(lambda: uform.Executor.for_vram([0]))
refused(lambda: make(uform.Executor.for_vram([0]), uform.Objective.JOINT))
trainers[0].close()
del trainers, deferred, executor
print(json.dumps(told))
"""


@pytest.mark.parametrize(("after", "waits"), [(0.0, "waits"), (0.05, "goes on")])
def test_a_fault_names_the_operation_and_ends_in_order(after: float, waits: str) -> None:
    told = run_python(FAULT, after, waits)
    assert len(told) >= 8, told
    for message in told:
        assert re.match(r"\w+: .*\(cudaError\w+\)$", message), message
    assert "cudaErrorIllegalAddress" in told[0]
    assert not Path("/dev/shm/never.safetensors").exists()


def test_a_gpu_that_others_have_filled(driver: Driver) -> None:
    """Not even a context finds room there: no fault, but a want of memory."""
    with driver.ballast(leave=16 << 20):
        told = run_python(
            """
            import json
            import uform
            try:
                uform.Executor.for_vram([0])
            except MemoryError as failure:
                print(json.dumps(str(failure)))
            """
        )
    assert re.match(r"backend_create: GPU 0 has too little free memory", told), told


def test_no_gpu_is_visible(gpu: uform.Executor) -> None:
    told = run_python(
        """
        import json, os
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
        import uform
        told = []
        for make in (uform.Executor.for_vram, uform.Arena.for_vram):
            try:
                make()
            except uform.DeviceError as failure:
                told.append(str(failure))
        print(json.dumps(told))
        """
    )
    assert told == ["no GPU is visible to this process"] * 2


FORKED = """
import gc, json, os, signal, warnings
import uform
from tests.gpu.test_training import make, step

warnings.simplefilter("ignore")  # of threads that do not come along
executor = uform.Executor.for_vram([0])
trainer, arena = make(executor, uform.Objective.JOINT), uform.Arena.for_vram()
_, answer = step(trainer, arena)
reads, writes = os.pipe()
child = os.fork()
if child == 0:
    signal.alarm(60)  # a child that hangs is killed, and its status tells
    told = []
    for call in (lambda: uform.Executor.for_vram([0]), uform.Arena.for_vram, answer.numpy, arena.reset,
                 lambda: step(trainer)):
        try:
            call()
            told.append("nothing was refused")
        except (uform.DeviceError, RuntimeError) as refusal:
            told.append(str(refusal))
    os.write(writes, json.dumps(told).encode())
    del trainer, arena, answer, executor
    gc.collect()
    os._exit(0)
os.close(writes)
told = json.loads(os.fdopen(reads).read() or "[]")
_, status = os.waitpid(child, 0)
before = answer.numpy().tobytes()
step(trainer)
print(json.dumps([status, told, before == answer.numpy().tobytes(), trainer.describe()["step"]]))
"""


def test_a_forked_child_is_refused_and_ends() -> None:
    status, told, intact, steps = run_python(FORKED)
    assert (status, intact, steps) == (0, True, 2)
    for message in told[:2]:
        assert 'start such processes by "spawn"' in message, told
    assert len(told) == 5
    assert "nothing was refused" not in told


def test_after_a_fault_another_process_trains(gpu: uform.Executor) -> None:
    run_python(FAULT, 0.0, "waits")
    trained = run_python(
        """
        import json
        import uform
        from tests.gpu.test_training import make, step
        trainer = make(uform.Executor.for_vram([0]), uform.Objective.JOINT)
        losses = [step(trainer)[0].loss for _ in range(20)]
        print(json.dumps(losses))
        """
    )
    assert trained[-1] < trained[0]
    step(make(gpu, Objective.JOINT))  # and so does this process

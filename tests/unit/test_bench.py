"""The benchmark's arithmetic and tables, and its step through the same lines on RAM; times are not what is tested."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

import uform
from tools.bench import __main__ as bench
from tools.bench import attention, losses, operations, processes, report, step, timeline

PRINTED = """
bench ceiling copy: 0.5000 ms, 2000000000 bytes, 0 operations, 4000 GB/s
bench ceiling product of 8192 x 8192 x 8192: 1.0000 ms, 1 bytes, 700000000000 operations, 700.0 TFLOP/s
bench 12x512 norm_forward: 0.1000 ms, 200000000 bytes, 0 operations, plain 0.0800 ms, 2000 GB/s
bench 12x512 norm_qkv_forward: 0.2000 ms, 4000000 bytes, 70000000000 operations, 20 GB/s, 350.0 TFLOP/s
bench 12x512 bytes_head: 0.1000 ms, 60000000 bytes, 15000000000 operations, 600 GB/s, 150.0 TFLOP/s
bench N=65536 pairs: 50.0000 ms, 800000000 bytes, 17500000000000 operations, 16 GB/s, 350.0 TFLOP/s
bench 512x32:1024x256 maxsim: 4.2000 ms, 400000000 bytes, 1100000000000 operations, 95 GB/s, 261.9 TFLOP/s
memory N=65536 pairs: 536870912 bytes of gradients and workspace
"""
ATTENTION = """
bench attention_forward 65536 columns, 8 heads, segments of 32 0.0854 ms 50.3 TFLOP/s 0.06 of 790
bench attention_backward 65536 columns, 8 heads, segments of 32, owned 1985 0.1676 ms 64.0 TFLOP/s 0.08 of 790
bench attention_backward 65536 columns, 8 heads, segments of 32, turned back 0.1916 ms 56.0 TFLOP/s 0.07 of 790
bench attention_forward 65536 columns, 8 heads, segments of 65 0.1201 ms 72.6 TFLOP/s 0.09 of 790
bench attention_forward 65536 columns, 12 heads, segments of 256 0.1849 ms 278.7 TFLOP/s 0.35 of 790
"""
PEERS: list[dict[str, Any]] = [
    {"peer": "InfoNCE N=4096 D=512 full compiled", "ms": 1.0, "tflops": 1.0, "extra_gib": 0.1},
    {"peer": "InfoNCE N=65536 D=512 full compiled", "ms": None, "error": "out of memory"},
    {"peer": "InfoNCE N=65536 D=512 chunked 4096", "ms": 270.0, "tflops": 48.0, "extra_gib": 3.0},
    {"peer": "MaxSim 128x32 vs 256x256 W=128 chunked", "ms": 9.0, "tflops": 9.0, "extra_gib": 0.1},
    {"peer": "MaxSim 512x32 vs 1024x256 W=128 chunked", "ms": 100.0, "tflops": 11.0, "extra_gib": 1.4},
    {"peer": "masked bytes compiled", "ms": 0.2, "extra_gib": 0.05},
    {"loss": "uform.losses InfoNCE N=65536", "pairs": 65536, "ms": 55.0, "extra_gib": 0.6},
    {"loss": "uform.losses InfoNCE N=16384", "refused": "embeddings is of type Tensor"},
]


def test_a_floor_is_the_larger_of_copies_and_products() -> None:
    timings = operations.read_timings(PRINTED)
    assert [one.operation for one in timings[2:4]] == ["norm_forward", "norm_qkv_forward"]
    ceilings = operations.ceilings_of(timings)
    assert (ceilings.bytes_per_ms, ceilings.operations_per_ms) == (4e9, 7e11)
    by_name = {one.operation: ceilings.floor_ms(one) for one in timings}
    assert by_name["norm_forward"] == pytest.approx(0.05)
    assert by_name["norm_qkv_forward"] == pytest.approx(0.1)
    assert by_name["pairs"] == pytest.approx(25.0)


def test_an_operation_faster_than_the_ceilings_product_is_the_ceiling() -> None:
    timings = operations.read_timings(PRINTED + "bench 12x512 fast: 1.0 ms, 1 bytes, 800000000000 operations\n")
    assert operations.ceilings_of(timings).operations_per_ms == 8e11


def test_losses_stand_beside_their_peers() -> None:
    timings = operations.read_timings(PRINTED)
    ours = losses.our_rows(timings, losses.read_memory(PRINTED), operations.ceilings_of(timings))
    rows = ours + losses.peer_rows(PEERS)
    assert [(row.loss, row.by, row.ms) for row in rows] == [
        ("masked bytes 19660x512", "uform's operations", 0.1),
        ("InfoNCE N=65536 D=512", "uform's operations", 50.0),
        ("MaxSim 512x32 vs 1024x256 W=128", "uform's operations", 4.2),
        ("InfoNCE N=65536 D=512", "PyTorch full compiled", None),
        ("InfoNCE N=65536 D=512", "PyTorch chunked 4096", 270.0),
        ("MaxSim 512x32 vs 1024x256 W=128", "PyTorch chunked", 100.0),
        ("masked bytes 19660x512", "PyTorch compiled", 0.2),
        ("InfoNCE N=65536 D=512", "uform.losses", 55.0),
    ]
    assert rows[1].extra_gib == 0.5
    assert rows[1].of_floor == pytest.approx(0.5)
    table = list(report.loss_table(rows))
    assert len(table) == 9
    assert "no room" in table[3]


def test_attention_stands_beside_its_peer() -> None:
    theirs = {"segment": 32, "forward_ms": 0.4580, "forward_tflops": 10, "backward_ms": 1.7370, "backward_tflops": 6}
    rows = attention.our_rows(ATTENTION) + attention.peer_rows([theirs])
    assert rows == [attention.Row(32, "uform", 0.0854, 0.1916), attention.Row(32, "PyTorch", 0.458, 1.737)]
    _, first, second = report.attention_table(rows)
    assert first.split() == ["32", "uform", "0.0854", "0.1916"]
    assert second.split() == ["32", "PyTorch", "0.4580", "1.7370"]


def steps(peer: bool) -> list[dict[str, Any]]:
    ours = {"depth": 12, "hidden": 512, "tokens": 65536, "step_ms": 40.0, "planned_gib": 10.5, "held_gib": 11.25}
    return [{"uform": ours, "peer": {"step_ms": 50.0, "peak_gib": 13.25, "held_gib": 14.5} if peer else None}]


def test_the_table_of_steps_with_and_without_a_peer() -> None:
    _, alone = report.step_table(steps(peer=False))
    assert alone.split() == ["12", "x", "512,", "65536", "40.00", "10.50", "11.25"]
    _, beside = report.step_table(steps(peer=True))
    assert beside.split()[4:] == ["40.00", "10.50", "11.25", "50.00", "13.25", "14.50", "1.25"]


def test_operations_are_told_as_shares_of_their_floors() -> None:
    timings = operations.read_timings(PRINTED)
    head, _, *lines = report.operation_table(timings, operations.ceilings_of(timings))
    assert "copies 4000 GB/s, products 700 TFLOP/s" in head
    assert lines[0].split() == ["12x512", "norm_forward", "0.1000", "200.0", "0.0", "0.0500", "50%", "0.0800", "80%"]
    assert lines[1].split()[-2:] == ["0.1000", "50%"]
    assert len(lines) == 5


def test_a_step_is_measured_on_ram() -> None:
    told = step.measure(uform.Executor.for_ram(), depth=1, hidden=64, rows=1, steps=3)
    assert told["tokens"] == 1024
    assert 0 < told["min_ms"] <= told["step_ms"] <= told["max_ms"]
    assert told["planned_gib"] > 0
    assert 0 < told["loss"] < 20


def programs(name: str, *arguments: str) -> str:
    """What each program prints."""
    return {(operations.PROGRAM,): PRINTED, (attention.PROGRAM, "--bench", "--unchecked"): ATTENTION}[name, *arguments]


class FakeGpu:
    name = "a GPU"
    used = 0

    def used_bytes(self) -> int:
        FakeGpu.used += 1 << 20
        return FakeGpu.used


def test_what_a_process_prints_and_holds(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import json\nprint('noise')\nprint(json.dumps({'ms': 1}))\n")
    lines, held = processes.measure_process([script], FakeGpu())  # type: ignore[arg-type]
    assert lines == [{"ms": 1}]
    assert held > 0
    script.write_text("raise SystemExit('no such shape')\n")
    with pytest.raises(processes.MeasurementError, match="no such shape"):
        processes.measure_process([script], FakeGpu())  # type: ignore[arg-type]


def test_the_tool_prints_writes_and_draws(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calls: list[list[str]] = []

    def fake(command: list[str | Path], gpu: object) -> processes.Answer:
        calls.append([str(part) for part in command])
        if "tools.bench.step" in command or command[0] == peer:
            return processes.Answer([steps(True)[0]["uform" if "-m" in command else "peer"]], 11.25)
        if command[0] == tmp_path / "peer_attention.py":
            return processes.Answer([{"segment": 32, "forward_ms": 0.4, "backward_ms": 1.7}], 0.0)
        return processes.Answer([dict(line) for line in PEERS], 0.0)

    peer = tmp_path / "peer_torch.py"
    (tmp_path / "peer_attention.py").touch()
    (tmp_path / "peer_losses.py").touch()
    monkeypatch.setattr(bench, "Gpu", FakeGpu)
    monkeypatch.setattr(bench, "measure_process", fake)
    monkeypatch.setattr(operations, "run_program", programs)
    monkeypatch.setattr(bench, "find_spec", lambda name: name)
    pytest.importorskip("matplotlib")
    output, plot = tmp_path / "bench.json", tmp_path / "bench.png"
    assert bench.main(["--peer", str(peer), "--output", str(output), "--plot", str(plot)]) == 0
    beside = [str(tmp_path / "peer_attention.py"), "-m", str(tmp_path / "peer_losses.py")]
    assert [call[0] for call in calls] == ["-m", str(peer)] * 3 + beside
    told = json.loads(output.read_text())
    assert told["gpu"] == "a GPU"
    assert len(told["steps"]) == 3
    assert [one["by"] for one in told["attention"]] == ["uform", "PyTorch"]
    assert told["operations"][2]["floor_ms"] == pytest.approx(0.05)
    assert [one["plain_ms"] for one in told["operations"][2:4]] == [0.08, None]
    assert plot.read_bytes().startswith(b"\x89PNG")
    printed = capsys.readouterr().out
    assert "1.25" in printed
    assert "norm_qkv_forward" in printed


def test_without_a_peer_nothing_of_pytorch_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "Gpu", FakeGpu)
    monkeypatch.setattr(bench, "measure_process", lambda command, gpu: pytest.fail(f"{command}"))
    monkeypatch.setattr(operations, "run_program", programs)
    assert bench.main(["losses", "operations"]) == 0
    assert "tools.bench.torch_losses" not in sys.modules
    with pytest.raises(SystemExit):
        bench.main(["speed"])


def test_options_that_need_more_than_is_installed_are_refused_before_any_work(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench, "find_spec", lambda name: None)
    for option in ("--peer", "--plot"):
        with pytest.raises(SystemExit):
            bench.main([option, "path"])
        assert f"{option} needs" in capsys.readouterr().err


def test_what_was_measured_before_a_failure_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(name: str, *arguments: str) -> str:
        raise processes.MeasurementError("the program stopped")

    monkeypatch.setattr(bench, "Gpu", FakeGpu)
    monkeypatch.setattr(
        bench, "measure_process", lambda command, gpu: processes.Answer([steps(False)[0]["uform"]], 11.25)
    )
    monkeypatch.setattr(operations, "run_program", fails)
    assert bench.main(["--output", str(tmp_path / "bench.json")]) == 1
    assert "the program stopped" in capsys.readouterr().err
    assert len(json.loads((tmp_path / "bench.json").read_text())["steps"]) == 3


def test_without_a_gpu_the_tool_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def missing() -> FakeGpu:
        raise OSError("libnvidia-ml.so.1: cannot open shared object file")

    monkeypatch.setattr(bench, "Gpu", missing)
    with pytest.raises(SystemExit):
        bench.main([])
    assert "no GPU to measure: libnvidia-ml.so.1" in capsys.readouterr().err


def trace_of(gap: float) -> dict[str, Any]:
    """Steps of a kernel of 80 us, one of 40 us that overlaps it by 20, and a copy back; each `gap` after the last."""
    events: list[dict[str, Any]] = [{"ph": "M", "name": "process_name"}]

    def add(category: str, name: str, begin: float, length: float, thread: int) -> None:
        events.append({"ph": "X", "cat": category, "name": name, "ts": begin, "dur": length, "tid": thread})

    for number in range(timeline.STEPS):
        begin = 1000 + number * (102 + gap)
        add("gpu_memcpy", "Memcpy HtoD", begin - 50, 10, 8)
        add("kernel", "score", begin + 60, 40, 7)
        add("kernel", "forward", begin, 80, 7)
        add("gpu_memcpy", "Memcpy DtoH", begin + 100, 2, 7)
        add("cuda_runtime", "cudaEventSynchronize", begin, 102, 3)
        add("cuda_runtime", "cudaGraphLaunch", begin - 40, 5, 4)
    return {"traceEvents": events}


def test_a_timeline_tells_idle_time() -> None:
    packed = timeline.digest(trace_of(0))
    assert packed["busy"] == pytest.approx(1)
    assert [step["end"] - step["begin"] for step in packed["steps"]] == pytest.approx([102] * 20)
    assert {wait["name"] for wait in packed["waits"]} == {"cudaEventSynchronize"}
    loose = timeline.digest(trace_of(98))
    assert loose["steps"][1]["busy"] == pytest.approx(112)  # with the upload, which is before its own step
    assert loose["busy"] == pytest.approx((20 * 102 + 19 * 10) / (20 * 102 + 19 * 98))
    with pytest.raises(ValueError, match="19 copies to the host"):
        timeline.digest({"traceEvents": trace_of(0)["traceEvents"][:-6]})


def test_a_timeline_is_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    both = {"blocking": timeline.digest(trace_of(98)), "deferred": timeline.digest(trace_of(0))}
    recording = tmp_path / "timeline.json"
    recording.write_text(json.dumps([{"depth": 3, "hidden": 128, "tokens": 16384, **both}]))
    timeline.main(["draw", str(recording), str(tmp_path / "timeline.png")])
    assert (tmp_path / "timeline.png").stat().st_size > 1000
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[4] for line in lines[1:]] == ["blocking", "deferred"]
    assert lines[2].split()[-3:] == ["100.0%", "0.0", "20"]

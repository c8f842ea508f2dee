"""Every compilation goes through ccache where it is installed, and needs none."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.small_tree import (
    build,
    forget_switches,
    make_program,
    make_tree,
    path_without,
    put_before_path,
    use_cuda,
)
from tools.build.switches import BuildError

CPP = ["plugins/register.cpp", "uform/_ext/core/one.cpp", "uform/_ext/core/two.cpp"]
CU = ["uform/_ext/vram/other.cu", "uform/_ext/vram/tile.cu"]


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    forget_switches(monkeypatch)
    return make_tree(tmp_path / "tree", cuda=True)


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What a ccache that only passes on was called with: a line a call, where it ran first."""
    log = tmp_path / "log"
    script = f'#!/bin/sh\necho "$CCACHE_BASEDIR $CCACHE_NOHASHDIR $*" >> {log}\nexec "$@"\n'
    make_program(tmp_path / "bin" / "ccache", script)
    put_before_path(monkeypatch, tmp_path / "bin")
    return log


def compiled(log: Path) -> dict[str, list[str]]:
    """From a source to the call that compiled it: the two variables, then the command."""
    calls = [line.split() for line in log.read_text().splitlines()]
    return {call[call.index("-c") + 1]: call for call in calls}


def test_cpp_and_cythons_c_go_through_ccache(tree: Path, log: Path) -> None:
    build(tree)
    calls = compiled(log)
    (module,) = (source for source in calls if source.endswith("/module.c"))
    assert sorted(calls) == sorted([*CPP, module])
    for source, call in calls.items():
        # Another folder, such as pip's temporary one, must hit as well.
        assert call[:2] == [str(tree), "1"]
        assert Path(call[2]).name in (("gcc", "cc", "clang") if source == module else ("g++", "clang++"))


def test_nvcc_goes_through_ccache(tree: Path, log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_cuda(monkeypatch, tmp_path)
    build(tree)
    calls = compiled(log)
    assert {source for source in calls if not source.endswith("/module.c")} == {*CPP, *CU}
    for source in CU:
        assert calls[source][:3] == [str(tree), "1", str(tmp_path / "toolkit" / "bin" / "nvcc")]


def test_what_is_up_to_date_does_not_even_ask_ccache(tree: Path, log: Path) -> None:
    build(tree)
    log.unlink()
    assert build(tree) == []
    assert not log.exists()


@pytest.mark.parametrize("cuda", [False, True])
def test_without_ccache_all_is_compiled_as_well(
    cuda: bool, tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if cuda:
        use_cuda(monkeypatch, tmp_path)
    path_without(monkeypatch, "ccache", tmp_path / "programs")
    ran = build(tree)
    assert {label for label in ran if label.endswith((".cpp", ".cu"))} == {*CPP, *(CU if cuda else ())}


def test_a_failing_ccache_fails_the_build(tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Whoever calls the compiler past ccache would not notice.
    make_program(tmp_path / "bin" / "ccache", "#!/bin/sh\nexit 9\n")
    put_before_path(monkeypatch, tmp_path / "bin")
    with pytest.raises(BuildError, match=r"failed: .*one\.cpp"):
        build(tree)

"""The rules of "who may know whom", read off the sources: no compiler, no GPU, no built package."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from third_party.finder import CUDA_WHEELS, CUTLASS_WHEEL

ROOT = Path(__file__).resolve().parents[1]
EXTENSION = ROOT / "uform" / "_ext"
INCLUDES = EXTENSION / "include"
NATIVE_SUFFIXES = {".h", ".cuh", ".cpp", ".cu"}
CYTHON_SUFFIXES = {".pyx", ".pxd"}
OUR_FOLDERS = ("core", "ram", "vram", "plugins")


def files(folder: Path, suffixes: set[str]) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.suffix in suffixes and path.is_file())


def includes(path: Path) -> list[str]:
    """The headers that a source includes, whichever brackets they stand in."""
    return re.findall(r'^\s*#\s*include\s+[<"]([^>"]+)[>"]', path.read_text(), flags=re.MULTILINE)


def is_ours(header: str) -> bool:
    return header.startswith(("uform/", *(f"{folder}/" for folder in OUR_FOLDERS)))


def code_of(path: Path) -> str:
    """The source without its comments."""
    text = re.sub(r"/\*.*?\*/", "", path.read_text(), flags=re.DOTALL)
    return re.sub(r"//[^\n]*", "", text)


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def strangers(folder: Path, allowed: tuple[str, ...]) -> list[str]:
    """Includes of ours that a folder may not have."""
    return [
        f"{name_of(path)} includes {header}"
        for path in files(folder, NATIVE_SUFFIXES)
        for header in includes(path)
        if is_ours(header) and not header.startswith(allowed)
    ]


def test_there_is_something_to_check() -> None:
    for folder in ("core", "ram", "vram", "include"):
        assert files(EXTENSION / folder, NATIVE_SUFFIXES), folder
    assert files(ROOT / "plugins", NATIVE_SUFFIXES)


def test_core_includes_the_api_and_itself() -> None:
    assert strangers(EXTENSION / "core", ("uform/", "core/")) == []


@pytest.mark.parametrize("backend", ["ram", "vram"])
def test_backend_includes_the_operations_and_itself(backend: str) -> None:
    # core/operations.h is the seam; error.h and threads.h are how the core reports and runs, not what it computes.
    allowed = ("uform/", f"{backend}/", "core/operations.h", "core/error.h", "core/threads.h", "core/random.h")
    assert strangers(EXTENSION / backend, allowed) == []


def test_plugins_include_plugin_h_and_their_neighbours() -> None:
    """And what all of their kind share, which lies beside their folders: nothing of another plugin's."""
    found = []
    for path in files(ROOT / "plugins", NATIVE_SUFFIXES):
        if path == ROOT / "plugins" / "register.cpp":
            continue
        for header in includes(path):
            own = (ROOT / header).is_relative_to(path.parent) or (ROOT / header).parent == path.parent.parent
            inside = header.startswith("plugins/") and own
            outside = ".." in Path(header).parts
            if outside or (is_ours(header) and header != "uform/plugin.h" and not inside):
                found.append(f"{name_of(path)} includes {header}")
    assert found == []


def test_public_headers_stand_alone() -> None:
    for path in files(INCLUDES, NATIVE_SUFFIXES):
        ours = [header for header in includes(path) if header.startswith("uform/")]
        assert [header for header in includes(path) if "/" in header and header not in ours] == [], path.name
        assert all((INCLUDES / header).is_file() for header in ours), path.name


def test_cython_declares_only_the_public_headers() -> None:
    found = [
        f"{name_of(path)} declares {header}"
        for path in files(EXTENSION, CYTHON_SUFFIXES)
        for header in re.findall(r"cdef\s+extern\s+from\s+[\"']<?([^\"'>]+)", path.read_text())
        if "/" in header and header not in {"uform/uform.h", "uform/plugin.h"}
    ]
    assert found == []


def test_cython_imports_no_python_of_ours() -> None:
    found = [
        f"{name_of(path)}: {line.strip()}"
        for path in files(EXTENSION, CYTHON_SUFFIXES)
        for line in re.findall(r"^\s*(?:from|import)\s+uform\b.*", path.read_text(), flags=re.MULTILINE)
        if not re.match(r"\s*(?:from|import)\s+uform\._ext\b", line)
    ]
    assert found == []


def plugin_names() -> set[str]:
    return {path.name for path in (ROOT / "plugins").glob("*/*") if path.is_dir() and not path.name.startswith("_")}


def test_only_the_adapter_names_a_plugin() -> None:
    names = plugin_names()
    assert {"contrastive", "masked", "text", "image"} <= names
    found = [
        f"{name_of(path)} names the plugin {name}"
        for folder in ("core", "ram", "vram")
        for path in files(EXTENSION / folder, NATIVE_SUFFIXES)
        if path.name != "adapter.cpp"
        for name in sorted(names)
        if re.search(rf'"{name}(?:[./][^"]*)?"', code_of(path))
    ]
    assert found == []


def test_core_needs_neither_python_nor_cuda() -> None:
    foreign = re.compile(r"Python\.h|cuda|cutlass|cute/|nccl|driver_types")
    found = [
        f"{name_of(path)} includes {header}"
        for folder in ("core", "ram", "include")
        for path in files(EXTENSION / folder, NATIVE_SUFFIXES)
        for header in includes(path)
        if foreign.search(header)
    ]
    assert found == []


def test_cuda_sources_lie_in_vram_or_a_plugin() -> None:
    found = [
        name_of(path) for path in files(ROOT / "uform", {".cu", ".cuh"}) if not path.is_relative_to(EXTENSION / "vram")
    ]
    assert found == []


def requirement_names(requirements: list[str]) -> set[str]:
    return {re.split(r"[\[<>=!~ ;]", requirement)[0] for requirement in requirements}


def test_manifest_lists_what_is_not_ours() -> None:
    manifest = tomllib.loads((ROOT / "third_party" / "manifest.toml").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    needed = requirement_names([*CUDA_WHEELS, CUTLASS_WHEEL])
    needed |= requirement_names(project["build-system"]["requires"])
    needed |= requirement_names(project["project"]["dependencies"])
    for extra in project["project"]["optional-dependencies"].values():
        needed |= requirement_names(extra) - {"uform"}
    assert needed - manifest.keys() == set()
    for name, entry in manifest.items():
        assert set(entry) == {"licence", "use", "why", "found"}, name
        assert entry["use"] in {"runtime", "optional", "build", "develop"}, name


def text_files() -> list[Path]:
    folders = ("uform", "plugins", "third_party", "tools", "tests", "docs", ".ci")
    suffixes = NATIVE_SUFFIXES | CYTHON_SUFFIXES | {".py", ".pyi", ".md", ".toml", ".sh", ".txt", ".json", ""}
    found = [path for folder in folders if (ROOT / folder).is_dir() for path in files(ROOT / folder, suffixes)]
    found += [path for path in ROOT.iterdir() if path.is_file() and path.suffix in suffixes]
    return [path for path in found if "__pycache__" not in path.parts and path != Path(__file__)]


def test_no_path_of_one_machine() -> None:
    machine = re.compile(r"(?<![\w.])/(?:work|home|root|farm|Users)/\w|/tmp/\w")
    found = [
        f"{name_of(path)}:{number}"
        for path in text_files()
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1)
        if machine.search(line)
    ]
    assert found == []


def test_nothing_is_left_open() -> None:
    marks = re.compile(r"\b(?:TODO|FIXME|XXX)\b")
    found = [name_of(path) for path in text_files() if marks.search(path.read_text(errors="replace"))]
    assert found == []


def test_files_can_be_read_whole() -> None:
    # The public headers are one whole each, and so is what declares them to Cython.
    mirrors = {EXTENSION / "plugin.pxd", EXTENSION / "c_api.pxd"}
    suffixes = NATIVE_SUFFIXES | CYTHON_SUFFIXES | {".py"}
    sources = [path for folder in ("uform", "plugins", "tools") for path in files(ROOT / folder, suffixes)]
    own = [path for path in sources if INCLUDES not in path.parents and path not in mirrors]
    lengths = {name_of(path): len(path.read_text().splitlines()) for path in own}
    found = {name: lines for name, lines in lengths.items() if lines > 700}
    assert found == {}

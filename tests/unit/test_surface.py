"""The surface against the users' page: every class, value, field, signature, default and sentence of it."""

from __future__ import annotations

import ast
import inspect
import re
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Any

import pytest

import uform

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT.parent / "shared" / "contract" / "training.md"
STUBS = ROOT / "uform" / "_ext"

pytestmark = pytest.mark.skipif(not PAGE.is_file(), reason="the users' page does not lie beside this checkout")


@dataclass
class Member:
    """A constructor, a verb or a field of the page."""

    name: str
    declaration: str
    sentence: str = ""


@dataclass
class PageClass:
    """A class of the page: what it derives from, its first sentence, an enumeration's values, its members."""

    name: str
    bases: str
    sentence: str
    values: dict[str, int] = field(default_factory=dict)
    constructor: str = ""
    members: list[Member] = field(default_factory=list)


def plain(sentence: str) -> str:
    """The sentence without its links: [`step`](#step) is `step`."""
    return re.sub(r"\[(`[^`]+`)\]\([^)]*\)", r"\1", sentence).strip()


def read_page() -> list[PageClass]:
    classes: list[PageClass] = []
    for section in re.split(r"^## ", PAGE.read_text(), flags=re.MULTILINE)[1:]:
        name, _, rest = section.partition("\n")
        before, code, after = re.match(r"(.*?)```python\n(.*?)```(.*)", rest, flags=re.DOTALL).groups()  # type: ignore[union-attr]
        declaration = code.strip()
        if declaration.startswith("class "):
            bases = re.match(r"class \w+(?:\((\w+)\))?", declaration).group(1) or ""  # type: ignore[union-attr]
            values = {key: int(value) for key, value in re.findall(r"- `(\w+)` = `(\d+)`", after)}
            classes.append(PageClass(name, bases, plain(before), values))
        elif declaration.startswith(f"{classes[-1].name}("):
            classes[-1].constructor = declaration
        else:
            classes[-1].members.append(Member(name, declaration, plain(before)))
    return classes


CLASSES = read_page() if PAGE.is_file() else []
ENUMERATIONS = [entry for entry in CLASSES if entry.bases == "IntEnum"]
STRUCTURES = [entry for entry in CLASSES if entry.constructor]


def is_verb(member: Member) -> bool:
    return "def " in member.declaration


FIELDS = [(entry, member) for entry in CLASSES for member in entry.members if not is_verb(member)]
VERBS = [(entry, member) for entry in CLASSES for member in entry.members if is_verb(member)]


def name_of(value: Any) -> str:
    return value.name if isinstance(value, (PageClass, Member)) else ""


def parsed(declaration: str) -> ast.FunctionDef:
    """A declaration of the page as a function."""
    source = declaration if "def " in declaration else f"def {declaration}"
    function = ast.parse(source + ": pass").body[0]
    assert isinstance(function, ast.FunctionDef)
    return function


def parameters_of(function: ast.FunctionDef) -> list[tuple[str, str, str, str]]:
    """Name, kind, annotation and default of each, without self and cls."""
    arguments = function.args
    positional = arguments.posonlyargs + arguments.args
    defaults: list[ast.expr | None] = [None] * (len(positional) - len(arguments.defaults)) + list(arguments.defaults)
    found = []
    for argument, default in zip(positional, defaults, strict=True):
        kind = "positional only" if argument in arguments.posonlyargs else "positional"
        if argument.arg not in ("self", "cls"):
            found.append(described(argument, kind, default))
    for argument, keyword_default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        found.append(described(argument, "keyword only", keyword_default))
    return found


def described(argument: ast.arg, kind: str, default: ast.expr | None) -> tuple[str, str, str, str]:
    annotation = ast.unparse(argument.annotation) if argument.annotation else ""
    return argument.arg, kind, annotation, ast.unparse(default) if default else ""


def stub_classes() -> dict[str, ast.ClassDef]:
    return {
        node.name: node
        for path in STUBS.glob("*.pyi")
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef)
    }


def stub_functions(name: str) -> dict[str, ast.FunctionDef]:
    return {node.name: node for node in stub_classes()[name].body if isinstance(node, ast.FunctionDef)}


def check_runtime(signature: inspect.Signature, page: ast.FunctionDef) -> None:
    """The page's own parameters come first, as it has them; what is added is keyword-only and has a default."""
    kinds: dict[Any, str] = {
        inspect.Parameter.POSITIONAL_ONLY: "positional only",
        inspect.Parameter.POSITIONAL_OR_KEYWORD: "positional",
        inspect.Parameter.KEYWORD_ONLY: "keyword only",
    }
    actual = [entry for entry in signature.parameters.values() if entry.name != "self"]
    expected = parameters_of(page)
    for entry, (name, kind, annotation, default) in zip(actual, expected, strict=False):
        assert (entry.name, kinds[entry.kind]) == (name, kind)
        if entry.annotation is not inspect.Parameter.empty:
            assert entry.annotation == annotation, name
        if default == "...":
            assert isinstance(entry.default, IntEnum), name
            assert entry.default == 0, name
        elif default:
            value = ast.literal_eval(default)
            assert entry.default == value, name
            assert type(entry.default) is type(value), name
        else:
            assert entry.default is inspect.Parameter.empty, name
    assert len(actual) >= len(expected)
    for entry in actual[len(expected) :]:
        assert entry.kind is inspect.Parameter.KEYWORD_ONLY, entry.name
        assert entry.default is not inspect.Parameter.empty, entry.name


def test_the_page_is_read_whole() -> None:
    assert len(CLASSES) == 17
    assert len(ENUMERATIONS) == 5
    assert len(STRUCTURES) == 10
    assert len(FIELDS) == 66
    assert [member.name for _, member in VERBS] == ["init_vram", "on", "deferred", "step", "save"]


@pytest.mark.parametrize("entry", CLASSES, ids=name_of)
def test_classes_say_what_the_page_says(entry: PageClass) -> None:
    made = getattr(uform, entry.name)
    assert entry.name in uform.__all__
    assert made.__name__ == entry.name
    assert made.__doc__.splitlines()[0] == entry.sentence


@pytest.mark.parametrize("entry", ENUMERATIONS, ids=name_of)
def test_enumerations_have_the_page_s_values(entry: PageClass) -> None:
    made = getattr(uform, entry.name)
    assert issubclass(made, IntEnum)
    assert {member.name: member.value for member in made} == entry.values


@pytest.mark.parametrize("entry", STRUCTURES, ids=name_of)
def test_constructors_have_the_page_s_signature(entry: PageClass) -> None:
    check_runtime(inspect.signature(getattr(uform, entry.name)), parsed(entry.constructor))


@pytest.mark.parametrize("entry", STRUCTURES, ids=name_of)
def test_stubs_of_constructors_equal_the_page(entry: PageClass) -> None:
    expected = parameters_of(parsed(entry.constructor))
    assert parameters_of(stub_functions(entry.name)["__new__"])[: len(expected)] == expected


@pytest.mark.parametrize(("entry", "member"), FIELDS, ids=name_of)
def test_fields_of_the_page(entry: PageClass, member: Member) -> None:
    made = getattr(uform, entry.name)
    assert hasattr(made, member.name)
    if member.sentence:
        assert getattr(made, member.name).__doc__ == member.sentence
    annotations = {
        ast.unparse(node.target): ast.unparse(node.annotation)
        for node in stub_classes()[entry.name].body
        if isinstance(node, ast.AnnAssign)
    }
    assert f"{member.name}: {annotations[member.name]}" == member.declaration


@pytest.mark.parametrize("entry", STRUCTURES, ids=name_of)
def test_fields_are_read_only(entry: PageClass) -> None:
    made = getattr(uform, entry.name)()
    for member in entry.members:
        with pytest.raises(AttributeError, match=member.name):
            setattr(made, member.name, getattr(made, member.name))
    with pytest.raises(AttributeError):
        made.anything = 1


@pytest.mark.parametrize("entry", STRUCTURES, ids=name_of)
def test_fields_left_out_are_zero(entry: PageClass) -> None:
    made = getattr(uform, entry.name)()
    for name, _, _, default in parameters_of(parsed(entry.constructor)):
        expected = 0 if default == "..." else ast.literal_eval(default)
        assert getattr(made, name) == expected, name


@pytest.mark.parametrize(("entry", "member"), VERBS, ids=name_of)
def test_verbs_of_the_page(entry: PageClass, member: Member) -> None:
    verb = inspect.getattr_static(getattr(uform, entry.name), member.name)
    page = parsed(member.declaration)
    is_classmethod = bool(page.decorator_list)
    assert isinstance(verb, classmethod) == is_classmethod
    bound = getattr(getattr(uform, entry.name), member.name)
    signature = inspect.signature(bound)
    check_runtime(signature, page)
    assert signature.return_annotation == ast.unparse(page.returns)  # type: ignore[arg-type]
    assert bound.__doc__.splitlines()[0] == member.sentence


@pytest.mark.parametrize(("entry", "member"), VERBS, ids=name_of)
def test_stubs_of_verbs_equal_the_page(entry: PageClass, member: Member) -> None:
    stub, page = stub_functions(entry.name)[member.name], parsed(member.declaration)
    expected = parameters_of(page)
    assert parameters_of(stub)[: len(expected)] == expected
    assert ast.unparse(stub.returns) == ast.unparse(page.returns)  # type: ignore[arg-type]
    assert [ast.unparse(one) for one in stub.decorator_list] == [ast.unparse(one) for one in page.decorator_list]


def test_init_ram_has_the_keywords_of_init_vram() -> None:
    assert inspect.signature(uform.Trainer.init_ram) == inspect.signature(uform.Trainer.init_vram)


def test_statistics_can_be_written() -> None:
    stats = uform.TrainerStepStats()
    for member in next(entry for entry in CLASSES if entry.name == "TrainerStepStats").members:
        setattr(stats, member.name, 3)
        assert getattr(stats, member.name) == 3


def test_every_public_name_is_there() -> None:
    assert [name for name in uform.__all__ if not hasattr(uform, name)] == []
    assert uform.__all__ == sorted(uform.__all__, key=lambda name: (not name[0].isupper(), name))

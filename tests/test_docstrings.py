"""Docstrings: every public name has one, begins it with a verb, and states shapes, dtypes and errors.

The contract of the public API is checked as far as signatures and code tell it:

1. Each parameter that is a tensor or an array is named in a sentence with its shape; a dtype is stated too. So is the
   result of a callable that returns tensors.
2. A callable that raises an error says "Raises". UserError counts if it comes from a function that is called directly,
   unless all arguments of that call are literals.
3. Each tensor of a dataclass or NamedTuple is named in the docstring of the class or its own, with shape and dtype.

A docstring may refer to another public name's by "as in `BertModel`", "that of `BertForMaskedLM`" or "follows", and
the shapes and dtypes of `forward` and of the methods of records (`PackedBatch`) may stand in that of their class.
"""

import ast
import importlib
import inspect
import pkgutil
import re
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import is_dataclass
from functools import cache, cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from fastbert.errors import UserError
from fastbert.models import registry

ROOT = Path(__file__).resolve().parents[1]
SOURCES = sorted(file for folder in ("fastbert", "kernels", "benchmarks") for file in (ROOT / folder).rglob("*.py"))
PUBLIC_MODULES = (
    "fastbert",
    "fastbert.ops",
    "fastbert.models",
    "fastbert.tokenizers",
    "fastbert.losses",
    "fastbert.data",
)

TENSOR = re.compile(r"\b(Tensor|ndarray|NDArray)\b")
SIZE = r"(?:\.\.\.|\w+(?:\(\w+\))?(?: [+*] \w+)?)"
# "(B,)", "(rows, width + 1)", "a scalar", "x's shape", "the shape of x".
SHAPE = re.compile(rf"\({SIZE}(?:, {SIZE})*,\)|\({SIZE}(?:, {SIZE})+\)|\bscalars?\b|\bshapes?\b")
DTYPE = re.compile(r"\b(bf16|fp16|fp32|float64|u?int\d+|bool|floating|dtypes?)\b")
REFERENCE = re.compile(r"\b(?:as in|that of|those of|follows) `(\w+)`")
RAISES = re.compile(r"\b[Rr]aises?\b")
# For the interpreter and for subclasses, not for callers.
PROTOCOL = {"NotImplementedError", "AttributeError"}


class Member(NamedTuple):
    """A class, function, method or property."""

    name: str
    value: Any
    owner: type | None = None
    """The class of a method or property."""

    @property
    def function(self) -> Callable[..., Any]:
        """The code behind the name; of a class its constructor's."""
        value = self.value
        if inspect.isclass(value):
            return getattr(value, "__post_init__", value.__init__)
        if isinstance(value, cached_property):
            return value.func
        function: Callable[..., Any] = getattr(value, "fget", None) or getattr(value, "__func__", value)
        return function

    @property
    def doc(self) -> str:
        """The docstring as one line; a method without one has that of the method it overrides."""
        value = self.value if self.owner is None else getattr(self.owner, self.name.rpartition(".")[2])
        return " ".join((inspect.getdoc(value) or "").split())


def is_ours(value: Any) -> bool:
    return str(getattr(value, "__module__", "")).partition(".")[0] == "fastbert"


def members_of(name: str, value: Any) -> Iterator[Member]:
    """Yield a class or function, and the public methods and properties of a class, its own and inherited ones."""
    yield Member(name, value)
    bases = reversed(value.__mro__) if inspect.isclass(value) else ()
    methods = {key: method for base in bases if is_ours(base) for key, method in vars(base).items()}
    for key, method in methods.items():
        is_method = inspect.isfunction(method) and method.__name__ in (key, "__call__")
        is_method = is_method or isinstance(method, property | cached_property | classmethod | staticmethod)
        if is_method and (key == "__call__" or not key.startswith("_")):
            yield Member(f"{name}.{key}", method, value)


def modules(package: str) -> Iterator[tuple[str, Any]]:
    """Yield the public modules below a package by name."""
    for module in pkgutil.walk_packages(importlib.import_module(package).__path__, f"{package}."):
        if module.name.rpartition(".")[2].startswith("_") or ".benchmarks" in module.name:
            continue
        if ".kernels" not in module.name or importlib.util.find_spec("triton") is not None:
            yield module.name, importlib.import_module(module.name)


def defined_names(name: str, module: Any) -> Iterator[tuple[str, Any]]:
    """Yield the public classes and functions that a module defines."""
    for key, value in vars(module).items():
        is_defined = inspect.isclass(value) or inspect.isfunction(value)
        if is_defined and not key.startswith("_") and value.__module__ == name:
            yield f"{name}.{key}", value


@cache
def public_api() -> dict[str, Member]:
    """Return, by name, what the public packages list in `__all__`, what the modules of one without it define, and the
    records of tensors that functions among these take or return."""
    members: list[Member] = []
    for package in PUBLIC_MODULES:
        home = importlib.import_module(package)
        if hasattr(home, "__all__"):
            named = [(f"{package}.{name}", getattr(home, name)) for name in home.__all__]
        else:
            named = [pair for module in modules(package) for pair in defined_names(*module)]
        for name, value in named:
            if inspect.isclass(value) or inspect.isroutine(value):
                members += members_of(name, value)
    records = {f"{kind.__module__}.{kind.__name__}": kind for member in members for kind in records_of(member)}
    members += [member for name, kind in records.items() for member in members_of(name, kind)]
    return {member.name: member for member in members}


def records_of(member: Member) -> Iterator[type]:
    """Yield the records of tensors that a function takes or returns."""
    if not inspect.isclass(member.value):
        signature = inspect.signature(member.function)
        annotations = [signature.return_annotation, *(item.annotation for item in signature.parameters.values())]
        for name in re.findall(r"\w+", " ".join(map(str, annotations))):
            kind = getattr(member.function, "__globals__", {}).get(name)
            if inspect.isclass(kind) and is_ours(kind) and tensor_fields(kind):
                yield kind


def contract(member: Member, seen: frozenset[str] = frozenset()) -> str:
    """Return the docstrings that state a member's contract, as one line."""
    texts = [member.doc]
    references = {ending for name in REFERENCE.findall(texts[0]) for ending in (f".{name}", f".{name}.forward")}
    for other in public_api().values():
        if other.name not in seen and other.name.endswith(tuple(references)):
            texts.append(contract(other, seen | {member.name, other.name}))
    return " ".join(texts)


def tensor_fields(kind: type) -> list[str]:
    """Return the names of the tensors in a dataclass or NamedTuple."""
    hints = vars(kind).get("__annotations__", {}) if is_dataclass(kind) or hasattr(kind, "_fields") else {}
    return [name for name, hint in hints.items() if TENSOR.search(str(hint))]


def field_docs(kind: type) -> str:
    """Return the docstrings of a class's fields, each behind its name."""
    body = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0].body  # type: ignore[attr-defined]
    docs = [
        f"{ast.unparse(field.target)}: {doc.value.value}"
        for field, doc in pairwise(body)
        if isinstance(field, ast.AnnAssign) and isinstance(doc, ast.Expr) and isinstance(doc.value, ast.Constant)
    ]
    return " ".join(" ".join(docs).split())


def tensors_of(member: Member) -> tuple[list[str], bool]:
    """Return the names of the tensors that a member takes or holds, and whether it has any, its result included."""
    if inspect.isclass(member.value) and (names := tensor_fields(member.value)):
        return names, True
    signature = inspect.signature(member.function)
    names = [name for name, item in signature.parameters.items() if TENSOR.search(str(item.annotation))]
    return names, bool(names) or bool(TENSOR.search(str(signature.return_annotation)))


@cache
def errors_and_calls(function: Callable[..., Any]) -> tuple[set[str], list[ast.expr]]:
    """Return the errors that a function raises itself, and the functions that it calls."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError):  # not written in Python
        return set(), []
    raised = [node.exc for node in ast.walk(tree) if isinstance(node, ast.Raise) and node.exc is not None]
    names = {ast.unparse(error.func if isinstance(error, ast.Call) else error) for error in raised}
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    literal = [call for call in calls if call.args and all(isinstance(each, ast.Constant) for each in call.args)]
    # A name in small letters is an error that was caught, or made by a function.
    return names - PROTOCOL, [call.func for call in calls if call not in literal]


def called(member: Member, node: ast.expr) -> Any:
    """Return the function or class of fastbert that an expression names; None for others."""
    first, *names = ast.unparse(node).split(".")
    if first == "self" and not names:  # the call of an instance, not of its class
        names = ["__call__"]
    value = member.owner if first in ("self", "cls") else getattr(member.function, "__globals__", {}).get(first)
    for name in names:
        value = inspect.getattr_static(value, name, None)
    return value if is_ours(value) else None


def errors_of(member: Member) -> set[str]:
    """Return the errors that a member raises, and whether a function that it calls raises UserError."""
    errors, calls = errors_and_calls(member.function)
    for callee in filter(None, (called(member, node) for node in calls)):
        function = Member("", callee).function
        for error in errors_and_calls(function)[0] if inspect.isfunction(function) else ():
            kind = getattr(function, "__globals__", {}).get(error)
            if inspect.isclass(kind) and issubclass(kind, UserError):
                errors = errors | {f"{error} of {callee.__qualname__}"}
    return errors


def omissions(member: Member) -> list[str]:
    """Return what the docstring of a member does not state, though its signature or its code has it."""
    if not member.doc:
        return ["no docstring"]
    text, owner, missing = contract(member), member.owner, []
    errors = errors_of(member)
    if errors and not RAISES.search(text):
        missing.append(f"does not say that it raises {', '.join(sorted(errors))}")
    names, has_tensors = tensors_of(member)
    if inspect.isclass(member.value) and tensor_fields(member.value):
        text = f"{text} {field_docs(member.value)}"
    elif owner is not None and (member.name.endswith(".forward") or tensor_fields(owner)):
        text = f"{text} {Member('', owner).doc}"
    for name in names:
        sentences = [part for part in re.split(r"(?<=[.;])\s", text) if re.search(rf"(?<![\w.]){name}(?!\w)", part)]
        if not any(SHAPE.search(sentence) for sentence in sentences):
            missing.append(f"no shape of {name}")
    if has_tensors:
        missing += [f"no {what}" for what, stated in (("shape", SHAPE), ("dtype", DTYPE)) if not stated.search(text)]
    return missing


def test_the_public_api_states_its_contract() -> None:
    listed = {name.rpartition(".")[0] for name in public_api()}
    assert listed.issuperset(PUBLIC_MODULES[:-1])
    wrong = [f"{name}: {', '.join(what)}" for name, member in public_api().items() if (what := omissions(member))]
    assert not wrong, "\n".join(wrong)


class Example(NamedTuple):
    """A record; `x` (rows,)."""

    x: "Tensor"  # type: ignore[name-defined]  # noqa: F821


def scaled(x: "Tensor", bias: "Tensor", p: float) -> "Tensor":  # type: ignore[name-defined]  # noqa: F821
    """Return x (rows, width) times p. A bias is added."""
    if p < 0:
        raise UserError(f"p={p} must be at least 0")
    return p * x + bias


def test_what_a_docstring_lacks_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    raises = "does not say that it raises UserError"
    assert omissions(Member("scaled", scaled)) == [raises, "no shape of bias", "no dtype"]
    assert omissions(Member("Example", Example)) == ["no dtype"]
    monkeypatch.setattr(scaled, "__doc__", "Return x + bias. x (rows, width) and bias (width,) fp32. Raises UserError.")
    assert not omissions(Member("scaled", scaled))
    pack = public_api()["fastbert.PackedBatch.padded_to"]
    documented = pack.doc
    monkeypatch.setattr(pack.function, "__doc__", documented.replace("Raises", "Has"))
    assert omissions(pack) == [f"{raises}, UserError of PackedBatch"]
    monkeypatch.setattr(pack.function, "__doc__", None)
    assert omissions(pack) == ["no docstring"]


@pytest.mark.parametrize("module", PUBLIC_MODULES)
def test_every_public_module_has_a_docstring(module: str) -> None:
    assert importlib.import_module(module).__doc__


def test_models_of_every_architecture_are_documented() -> None:
    for record in registry.ARCHITECTURES.values():
        for name, model in registry.model_classes(record).items():
            assert (model.__doc__ or "").startswith(f"The {record.title} encoder"), name
            assert inspect.getdoc(model.forward), name


def test_every_public_name_of_all_modules_is_documented() -> None:
    """Overrides may inherit the docstring of what they override."""
    named = [
        pair for root in ("fastbert", "fastbert.kernels") for module in modules(root) for pair in defined_names(*module)
    ]
    bare = [member.name for pair in named for member in members_of(*pair) if not member.doc]
    assert not bare, f"{len(bare)} without a docstring: {', '.join(bare)}"


def test_operations_state_their_numeric_contract() -> None:
    """Whatever their code shows: arguments are checked by the records that all backends share."""
    functions = [member for name, member in public_api().items() if re.fullmatch(r"fastbert\.ops\.[a-z_]+", name)]
    assert len(functions) >= 10
    rules = (SHAPE, DTYPE, re.compile(r"Raises `?UserError"))
    for member in functions:
        missing = [rule.pattern for rule in rules if not rule.search(member.doc)]
        assert not missing, f"{member.name}: {missing}"


def test_docstrings_of_functions_begin_with_a_verb() -> None:
    wrong = []
    for file in SOURCES:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.FunctionDef):
                words = (ast.get_docstring(node) or "").split(maxsplit=1)
                if words and words[0] in ("What", "Whether", "Of", "How"):
                    wrong.append(f"{file.relative_to(ROOT)}:{node.lineno} {' '.join(words)[:60]}")
    assert not wrong, "\n".join(wrong)


def test_every_module_says_what_it_is_for() -> None:
    bare = [str(file.relative_to(ROOT)) for file in SOURCES if not ast.get_docstring(ast.parse(file.read_text()))]
    assert not bare

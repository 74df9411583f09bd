"""Types: every public name has one that all type checkers read alike, as py.typed promises.

`pyright --verifytypes fastbert --ignoreexternal` is the judge (CONTRIBUTING.md); it needs node. These rules, on syntax
alone, catch most of what it would report, in the package, its kernels and its benchmarks:

1. Each parameter and result of a function has an annotation. Triton annotates its kernels itself.
2. A public attribute or variable is annotated where it is first assigned, unless all its values are constants, or
   parameters, whose annotations it has. Names in capitals are constants to type checkers.
"""

import ast
import textwrap
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import fastbert

ROOT = Path(__file__).resolve().parents[1]
SOURCES = sorted(file for folder in ("fastbert", "kernels", "benchmarks") for file in (ROOT / folder).rglob("*.py"))
Function = ast.FunctionDef | ast.AsyncFunctionDef
Classes = dict[str, list[ast.ClassDef]]
OWN = {"self", "cls", "mcs"}


def is_public(name: str) -> bool:
    return not name.startswith("_")


def is_plain(value: ast.expr | None) -> bool:
    """Return whether every type checker infers the same type of an expression."""
    match value:
        case ast.Constant():
            return True
        case ast.UnaryOp(operand=operand):
            return is_plain(operand)
        case ast.Tuple(elts=elements):
            return all(map(is_plain, elements))
    # Names and their attributes: classes, functions, members of enums.
    return isinstance(value, ast.Name | ast.Attribute)


def assigned(statement: ast.stmt) -> Iterator[tuple[ast.expr, ast.expr | None]]:
    """Yield the targets of an assignment with their values, None for one that is taken apart."""
    for target in statement.targets if isinstance(statement, ast.Assign) else ():
        if isinstance(target, ast.Tuple):
            yield from ((element, None) for element in target.elts)
        else:
            yield target, statement.value  # type: ignore[attr-defined]


def arguments(function: Function) -> list[ast.arg]:
    given = function.args
    every = [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]
    return [argument for argument in every if argument is not None]


def is_kernel(function: Function) -> bool:
    """Return whether Triton compiles a function, or configures one."""
    return any(
        "jit" in ast.unparse(each) or "constexpr_function" in ast.unparse(each) for each in function.decorator_list
    )


def statements(node: ast.AST) -> Iterator[ast.stmt]:
    """Yield the statements inside of a node; expressions, most of a tree, hold none."""
    for name in ("body", "orelse", "finalbody", "handlers", "cases"):
        for each in getattr(node, name, ()):
            if isinstance(each, ast.stmt):
                yield each
            yield from statements(each)


@cache
def classes_in(tree: ast.Module) -> list[ast.ClassDef]:
    return [node for node in statements(tree) if isinstance(node, ast.ClassDef)]


def untyped_functions(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield the functions outside of others, and methods, that lack annotations."""
    classes = [tree, *classes_in(tree)]
    for function in (node for scope in classes for node in scope.body if isinstance(node, Function)):
        bare = [each.arg for each in arguments(function) if each.annotation is None and each.arg not in OWN]
        if not is_kernel(function) and (bare or function.returns is None):
            yield function.lineno, f"{function.name}: {', '.join(bare) or 'no result'}"


@cache
def own_names(node: ast.ClassDef) -> frozenset[str]:
    """Return the names that a class annotates or defines."""
    names = {each.name for each in node.body if isinstance(each, Function)}
    targets = [each.target for each in statements(node) if isinstance(each, ast.AnnAssign)]
    return frozenset(names.union(getattr(target, "attr", getattr(target, "id", "")) for target in targets))


def declared(node: ast.ClassDef, classes: Classes, seen: frozenset[str] = frozenset()) -> set[str]:
    """Return the names that a class, or one of its bases that are ours, annotates or defines."""
    names = set(own_names(node))
    for base in {ast.unparse(base).partition("[")[0].rpartition(".")[2] for base in node.bases} - seen:
        for each in classes.get(base, ()):
            names |= declared(each, classes, seen | {node.name, base})
    return names


def untyped_attributes(node: ast.ClassDef, classes: Classes) -> Iterator[tuple[int, str]]:
    """Yield the public attributes of a class whose type is a type checker's guess."""
    known = declared(node, classes)
    for statement in node.body:
        for target, value in assigned(statement):
            name = target.id if isinstance(target, ast.Name) and not target.id.isupper() else "_"
            if is_public(name) and name not in known and not is_plain(value):
                yield statement.lineno, f"{node.name}.{name}"
    for function in (each for each in node.body if isinstance(each, Function)):
        typed = {each.arg for each in arguments(function) if each.annotation is not None}
        for statement in statements(function):
            for target, value in assigned(statement):
                match target:
                    case ast.Attribute(value=ast.Name("self"), attr=name) if is_public(name) and name not in known:
                        from_parameter = isinstance(value, ast.Name) and value.id in typed
                        if not from_parameter and not isinstance(value, ast.Constant):
                            yield statement.lineno, f"{node.name}.{name}"


def untyped(tree: ast.Module, classes: Classes) -> list[tuple[int, str]]:
    """Return the lines and names of a module that need an annotation."""
    missing = list(untyped_functions(tree))
    for statement in tree.body:
        for target, value in assigned(statement):
            if isinstance(target, ast.Name) and is_public(target.id) and target.id.islower() and not is_plain(value):
                missing.append((statement.lineno, target.id))
        if isinstance(statement, ast.ClassDef) and is_public(statement.name):
            missing += untyped_attributes(statement, classes)
    return missing


def classes_of(trees: list[ast.Module]) -> Classes:
    """Return the classes of modules by name, which may be that of several."""
    classes: dict[str, list[ast.ClassDef]] = {}
    for node in (each for tree in trees for each in classes_in(tree)):
        classes.setdefault(node.name, []).append(node)
    return classes


def test_public_names_are_annotated() -> None:
    trees = {file: ast.parse(file.read_text(encoding="utf-8")) for file in SOURCES}
    classes = classes_of(list(trees.values()))
    missing = [
        f"{file.relative_to(ROOT)}:{line} {name}"
        for file, tree in trees.items()
        for line, name in untyped(tree, classes)
    ]
    assert not missing, f"{len(missing)} need an annotation:\n" + "\n".join(missing)


def test_what_lacks_a_type_is_named() -> None:
    text = """
    sizes = measure()
    LIMITS = measure()

    def scale(x, factor: float = 1.0) -> float: ...
    def reset(): ...

    class Base:
        size: int

    class Window(Base):
        kind = "mean"
        parts = parts_of(kind)

        def __init__(self, size: int, rows):
            self.size = int(size)
            self.width = size
            self.height: int = int(size)
            self.first, self._last = rows
            self.rows = list(rows)
            self.steps = 0
    """
    tree = ast.parse(textwrap.dedent(text))
    names = [name for _, name in sorted(untyped(tree, classes_of([tree])))]
    assert names == [
        "sizes", "scale: x", "reset: no result", "Window.parts", "__init__: rows", "Window.first", "Window.rows"
    ]  # fmt: skip


def test_the_package_says_that_it_is_typed() -> None:
    assert (Path(fastbert.__file__).parent / "py.typed").exists()

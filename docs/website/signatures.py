"""Write the signatures of Python objects as a reader would: names without modules, long lists left out."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

LONGEST = 40  # parameters; a function with more (the flags of a command) shows those that its code names
# Types whose names Sphinx would otherwise take for attributes of classes.
FOREIGN = re.compile(r"(?<![\w.])(device|dtype)(?!\w)")
MODULES = re.compile(r"(?<![\w.'\"])(?:[a-z_]\w*\.)+(?=[A-Za-z_])")


def signature(function: Callable[..., Any], *, method: bool = False, local: dict[str, str] | None = None) -> str:
    """Return the parameters and the result of a callable; a method's without its object.

    `local` has the qualified names of what annotations mean in the callable's module.
    """
    try:
        found = inspect.signature(function)
        if len(found.parameters) > LONGEST:
            # As the code has it: `**options` instead of a signature that stands for all flags.
            found = inspect.Signature.from_callable(_without_signature(function))
    except (TypeError, ValueError):  # written in C
        return "(...)"
    parameters = list(found.parameters.values())
    if method and parameters and parameters[0].name in ("self", "cls"):
        parameters = parameters[1:]
    words, keyword_only = [], False
    for parameter in parameters:
        if parameter.kind is parameter.VAR_POSITIONAL:
            keyword_only = True
        elif parameter.kind is parameter.KEYWORD_ONLY and not keyword_only:
            words.append("*")
            keyword_only = True
        words.append(_parameter(parameter, local))
    result = found.return_annotation
    shown = "" if result is found.empty or inspect.isclass(function) else f" -> {annotation(result, local)}"
    return f"({', '.join(words)}){shown}"


def annotation(hint: Any, local: dict[str, str] | None = None) -> str:
    """Return an annotation without the modules of its names, but for those in `local` and torch's."""
    text = hint if isinstance(hint, str) else inspect.formatannotation(hint)
    text = re.sub(r"Optional\[(Literal\[[^\]]*\])\]", r"\1 | None", MODULES.sub("", text))
    for name, qualified in (local or {}).items():
        text = re.sub(rf"(?<![\w.'\"]){name}(?!\w)", qualified, text)
    return "None" if text == "NoneType" else FOREIGN.sub(r"torch.\1", text)


def default(value: Any) -> str:
    """Return a default as code; an ellipsis for what has no short form."""
    text = MODULES.sub("", repr(value))
    return "..." if "<" in text or len(text) > 60 else text.replace("PosixPath(", "Path(")


def _parameter(parameter: inspect.Parameter, local: dict[str, str] | None) -> str:
    stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
    text = stars + parameter.name
    if parameter.annotation is not parameter.empty:
        text += f": {annotation(parameter.annotation, local)}"
    if parameter.default is not parameter.empty:
        text += f" = {default(parameter.default)}" if ":" in text else f"={default(parameter.default)}"
    return text


def _without_signature(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of the same code whose signature is that of the code."""
    import types

    code = getattr(function, "__code__", None)
    if code is None:
        return function
    bare = types.FunctionType(code, {}, function.__name__, function.__defaults__, function.__closure__)
    bare.__kwdefaults__ = function.__kwdefaults__
    bare.__annotations__ = function.__annotations__
    return bare

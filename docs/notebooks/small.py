"""Shared parts of the notebooks: a small model that is trained once and cached, its text, Python's docstrings, and the
look of pictures."""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import re
import sysconfig
import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path

import guests
import hotels
import matplotlib.pyplot as plt

from fastbert import BertConfig, pretrain
from fastbert.data.python_text import python_documents
from fastbert.io.atomic_write import write_json_atomic
from fastbert.training.demo import write_corpus

CACHE = Path(__file__).resolve().parent / "cache"
VOCABULARY = 3000
STEPS = 900
PYTHON_BYTES = 2_500_000
HOTELS = 4000
FIRST_TEXT = 1_000_000  # numbers of the hotels and messages in the text: those of tasks are smaller
SHAPE = BertConfig(
    vocab_size=VOCABULARY,
    hidden_size=192,
    num_hidden_layers=4,
    num_attention_heads=4,
    intermediate_size=768,
    max_position_embeddings=256,
)

plt.rcParams.update({"figure.constrained_layout.use": True, "font.size": 9, "axes.titlesize": 10, "savefig.dpi": 100})


def text_file(scale: float = 1.0) -> Path:
    """Return a file of sentences, written on first use: Python's documentation and docstrings, descriptions of invented
    hotels and messages of their guests. `scale` multiplies its size."""
    path = CACHE / f"text-{scale:g}.txt"
    if not path.exists():
        numbers = range(FIRST_TEXT, FIRST_TEXT + max(round(HOTELS * scale), 50))
        documents = ([*re.split(r"(?<=\.) ", hotels.hotel(number).text), *messages(number)] for number in numbers)
        write_corpus(chain(documents, python_documents(round(PYTHON_BYTES * scale))), path, lambda written: None)
    return path


def messages(number: int) -> list[str]:
    """Return three messages of guests, the last of them with names in it."""
    texts = [guests.message(3 * number + index)[1] for index in range(2)]
    return [*texts, " ".join(word for word, _ in guests.booking(number))]


def shape_file() -> Path:
    """Return the file with the shape of the small model."""
    path = CACHE / "shape.json"
    write_json_atomic(path, asdict(SHAPE))
    return path


def steps(scale: float = 1.0) -> int:
    """Return the number of steps of the pre-training."""
    return max(round(STEPS * scale), 10)


def pretrained(scale: float = 1.0) -> Path:
    """Return the folder of a small BERT, pre-trained on first use: 4 layers, 192 wide, as in the notebook of
    pre-training. `scale` multiplies the steps and the size of the text. An interrupted training continues when called
    again."""
    run = pretrain(
        corpus=text_file(scale),
        text_format="lines",
        model=str(shape_file()),
        objective="mlm",
        vocab_size=VOCABULARY,
        max_length=128,
        batch_size=16,
        lr=1e-3,
        steps=steps(scale),
        eval_samples=256,
        out=CACHE / f"pretrained-{scale:g}",
        resume=True,
    )
    return run.model


@dataclass(frozen=True)
class Function:
    """A function's name with its module, the first sentence of its docstring, and the rest."""

    name: str
    summary: str
    details: str

    @property
    def title(self) -> str:
        """Return the words of the name."""
        return " ".join(re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+", self.name))


def docstrings(count: int) -> list[Function]:
    """Return the docstrings of `count` functions, methods and classes of Python's standard library and numpy in a fixed
    order, or all if there are fewer. Source files are parsed, nothing is imported."""
    functions: dict[str, Function] = {}
    for path, name in sorted(_modules(), key=lambda module: hashlib.sha256(module[1].encode()).digest()):
        if len(functions) >= count:
            break
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # old sources contain invalid escapes
            try:
                tree = ast.parse(path.read_text(encoding="utf-8"))
            except (UnicodeDecodeError, SyntaxError, ValueError):
                continue
        functions |= {function.summary: function for function in _functions(tree, name)}
    return list(functions.values())[:count]


def _modules() -> Iterator[tuple[Path, str]]:
    """Yield source files with the names of their modules."""
    standard, spec = Path(sysconfig.get_path("stdlib")), importlib.util.find_spec("numpy")
    files = [(path, standard) for path in standard.rglob("*.py")]
    if spec is not None and spec.origin is not None:
        library = Path(spec.origin).parent
        files += [(path, library.parent) for path in library.rglob("*.py")]
    for path, root in files:
        name = ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")
        if not re.search(r"\b(tests?|testing|site-packages|dist-packages|idlelib|lib2to3|config-\w+)\b", name):
            yield path, name


def _functions(tree: ast.AST, name: str) -> Iterator[Function]:
    """Yield the documented functions, methods and classes of a module."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            function = _function(f"{name}.{node.name}", ast.get_docstring(node) or "")
            if function is not None:
                yield function
            if isinstance(node, ast.ClassDef):
                yield from _functions(node, f"{name}.{node.name}")


def _function(name: str, docstring: str) -> Function | None:
    """Return a function with a first sentence and details of enough prose, None for others."""
    prose = re.split(r"\n\s*\n(?=\.\.|>>>|\w+:\s*\n|[^\n]+\n\s*---)", docstring)[0]
    summary, *details = re.split(r"(?<=[.!?])\s+", " ".join(prose.split()))
    text = " ".join(details)[:400]
    letters = sum(character.isalpha() or character == " " for character in text)
    if not (15 <= len(summary) <= 150 and len(text) >= 40 and letters >= 0.85 * len(text)):
        return None
    return Function(name, summary, text)

"""Extract English text from the Python installation: the topics of the language reference, docstrings of libraries.

Files are parsed, never imported, in sorted order, so the same installation always gives the same text.
"""

from __future__ import annotations

import ast
import importlib.util
import inspect
import os
import sysconfig
import warnings
from collections.abc import Iterator
from pathlib import Path

from fastbert.data.sentences import split_sentences

PACKAGES = ("numpy", "torch")
SKIPPED_FOLDERS = {"test", "tests", "testing", "site-packages", "dist-packages", "__pycache__", "idlelib", "lib2to3"}
MIN_SENTENCE_CHARS = 16  # shorter lines are headings, names and the like
MIN_DOCUMENT_SENTENCES = 3
MIN_LETTER_SHARE = 0.75  # of a sentence's characters, including spaces
LISTING = (">>>", "...", "|", "+-", "::=", "$ ")  # first characters of examples, tables and grammars


def python_documents(max_bytes: int = 6_000_000) -> Iterator[list[str]]:
    """Yield documents (lists of sentences) of at most `max_bytes` of text in total: the topics and each source file's
    docstrings, taking libraries in turn so that the limit excludes none of them."""
    used = 0
    for document in _interleaved([_topics(), *(_docstrings(folder) for folder in _libraries())]):
        size = sum(len(sentence) for sentence in document)
        if used + size > max_bytes:
            return
        used += size
        yield document


def _libraries() -> list[Path]:
    origins = [spec.origin for spec in map(importlib.util.find_spec, PACKAGES) if spec is not None]
    return [Path(sysconfig.get_path("stdlib")), *(Path(origin).parent for origin in origins if origin)]


def _interleaved(sources: list[Iterator[list[str]]]) -> Iterator[list[str]]:
    while sources:
        for source in list(sources):
            document = next(source, None)
            if document is None:
                sources.remove(source)
            else:
                yield document


def _topics() -> Iterator[list[str]]:
    """Yield the chapters that `help()` shows, from the dictionary literal in pydoc_data/topics.py."""
    path = Path(sysconfig.get_path("stdlib")) / "pydoc_data" / "topics.py"
    if not path.exists():
        return
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Dict):
            for key, value in sorted(
                zip(node.keys, node.values), key=lambda pair: ast.dump(pair[0]) if pair[0] else ""
            ):
                if isinstance(value, ast.Constant) and isinstance(value.value, str) and key is not None:
                    yield from _document(value.value)


def _docstrings(folder: Path) -> Iterator[list[str]]:
    """Yield one document per source file, and one per class (with its methods) and function at its top level."""
    for path in _source_files(folder):
        try:
            source = path.read_text(encoding="utf-8")
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # old sources contain invalid escapes
                tree = ast.parse(source)
        except (OSError, UnicodeDecodeError, SyntaxError, ValueError):
            continue  # not every file of a library is Python of this version
        yield from _document(ast.get_docstring(tree) or "")
        for definition in _definitions(tree.body):
            docstrings = [ast.get_docstring(node) for node in (definition, *_definitions(definition.body))]
            yield from _document("\n\n".join(text for text in docstrings if text))


def _source_files(folder: Path) -> Iterator[Path]:
    """Yield the source files below a folder in the order of their paths; each folder is read when its turn comes."""
    try:
        with os.scandir(folder) as entries:
            members = sorted(entries, key=lambda entry: entry.name)
    except OSError:
        return
    for member in members:
        if member.is_dir(follow_symlinks=False):
            if member.name not in SKIPPED_FOLDERS:
                yield from _source_files(Path(member.path))
        elif member.name.endswith(".py"):
            yield Path(member.path)


def _definitions(statements: list[ast.stmt]) -> Iterator[ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef]:
    """Yield the classes and functions among statements, including those under `if` and `try`."""
    for statement in statements:
        if isinstance(statement, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield statement
        elif isinstance(statement, ast.If | ast.Try | ast.With):
            yield from _definitions(statement.body)


def _document(text: str) -> Iterator[list[str]]:
    """Yield the sentences of a text if there are enough of them: prose, without code, tables or grammars."""
    sentences = []
    for paragraph in inspect.cleandoc(text).split("\n\n"):
        lines = [line.strip() for line in paragraph.splitlines()]
        if any(line.startswith(LISTING) for line in lines):
            continue
        prose = " ".join(line for line in lines if any(character.isalnum() for character in line))
        for sentence in split_sentences(prose):
            letters = sum(character.isalpha() or character == " " for character in sentence)
            if len(sentence) >= MIN_SENTENCE_CHARS and letters >= MIN_LETTER_SHARE * len(sentence):
                sentences.append(sentence)
    if len(sentences) >= MIN_DOCUMENT_SENTENCES:
        yield sentences

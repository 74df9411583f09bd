"""Fuzzing of the readers of files: only `UserError` may leave one, within two seconds and in bounded memory.

    python -m torture.reader_fuzzing FORMAT SECONDS SEED CORPUS [ARTIFACTS]

fuzzes one of `reader_formats` for some seconds of a processor, guided by coverage if atheris is installed
(pip install atheris), else with random damage alone. An input is the number of the file, in a byte, and its content.
Damage is that of bytes, and of what formats are made of: numbers, strings, brackets and pieces of other inputs.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import os
import random
import re
import resource
import shutil
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from torture.reader_formats import NAMED, Format, check_refusal

MAX_BYTES = 30_000
SECONDS = 2.0  # of a processor per input
HEADROOM = 400 << 20  # bytes of addresses that all inputs of a process may add
STRANGE = [
    b"0", b"-1", b"1e999", b"NaN", b"4294967296", b"9223372036854775808", b"18446744073709551615", b"1e-400", b"0.1",
    b"9" * 400, b"null", b"true", b'""', b"[]", b"{}", b'"a"', b'"\\ud800"', b'"\\u0000"', b'"../x"', b'"/etc/passwd"',
    b'"[MASK]"', b"\xff\xfe", b"\xef\xbb\xbf", b"\0", b"\r\n", b"\t", b"[" * 2000, b'{"a":' * 2000, b"\x80\x02", b"(",
    b".", b"\xff" * 10, b"\x7f\xff\xff\xff", b"\x00\x00\x00\x80", b"1,1", b"\xed\xa0\x80", b"\xe2\x80\xa8", b"##", b" ",
]  # fmt: skip
TOKENS = re.compile(rb'-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?|"(?:[^"\\]|\\.){0,200}"|true|false|null|[\[\]{},:]|\s+|\w+')


def damaged(data: bytes, draw: random.Random, others: Sequence[bytes]) -> bytes:
    """Return an input with one damage, or a few."""
    for _ in range(draw.choice((1, 1, 1, 2, 4))):
        data = _damaged_once(data, draw, others)
    return data[:MAX_BYTES]


def _damaged_once(data: bytes, draw: random.Random, others: Sequence[bytes]) -> bytes:
    if not data:
        return draw.choice(STRANGE)
    kind, at = draw.randrange(10), draw.randrange(len(data))
    until = min(len(data), at + draw.choice((1, 2, 4, 8, 64, 1000)))
    if kind == 0:
        return data[:at]
    if kind == 1:
        return data[:at] + data[until:]
    if kind == 2:
        return data[:until] + data[at:]
    if kind == 3:
        return data[:at] + draw.choice(STRANGE) + data[draw.choice((at, until)) :]
    if kind == 4:
        other = draw.choice(others)
        return data[:at] + other[draw.randrange(len(other) + 1) :][: draw.choice((4, 30, 1000))] + data[until:]
    if kind in (5, 6, 7) and (tokens := list(TOKENS.finditer(data, at, min(len(data), at + 4000)))):
        token = draw.choice(tokens[:50])
        new = draw.choice(STRANGE) if kind < 7 else draw.choice(tokens).group()
        return data[: token.start()] + new + data[token.end() :]
    changed = bytearray(data)
    for _ in range(draw.choice((1, 1, 3, 20))):
        where = draw.randrange(len(data))
        changed[where] = draw.choice((changed[where] ^ (1 << draw.randrange(8)), draw.randrange(256), 0, 255, 127, 128))
    return bytes(changed)


class Reader:
    """A format's folder, and what its reader does with inputs."""

    def __init__(self, known: Format, folder: Path) -> None:
        from fastbert.errors import UserError

        self.known, self.folder, self.refusal = known, folder, UserError
        known.make(folder)
        self.valid = [bytes([index]) + data for index, data in known.seeds(folder)]
        self.refused = self.accepted = 0
        self.longest = 0.0
        for data in self.valid:
            self.read(data)
        assert self.accepted == len(self.valid), f"{known.name}: the valid files are refused"

    def read(self, data: bytes) -> None:
        """Read an input; raises AssertionError for anything but a result or a refusal in one line."""
        index = data[0] % len(self.known.files) if data else 0
        begin = time.process_time()
        try:
            self.known.put(self.folder, index, data[1:])
            self.known.read(self.folder)
            self.accepted += 1
        except self.refusal as error:
            check_refusal(str(error))
            self.refused += 1
        finally:
            self.known.put(self.folder, index, next(seed[1:] for seed in self.valid if seed[0] == index))
        seconds = time.process_time() - begin
        self.longest = max(self.longest, seconds)
        assert seconds < SECONDS * patience(), f"{seconds:.1f} s for {len(data):,} bytes"

    def figures(self) -> dict[str, float]:
        """Return what became of the inputs."""
        figures = {"refused": float(self.refused), "accepted": float(self.accepted)}
        return {**figures, "longest_seconds_of_an_input": round(self.longest, 3)}


def patience() -> float:
    """Return the factor on times of this machine."""
    from patience import PATIENCE

    return PATIENCE


@contextlib.contextmanager
def bounded_memory() -> Iterator[None]:
    """Let the process map little more memory than it has now, where the system tells how much that is."""
    if not sys.platform.startswith("linux"):
        yield
        return
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + HEADROOM, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep warnings and the log of what is read to ourselves, and checksums of folders out of the way."""
    import logging

    before = os.environ.get("FASTBERT_VERIFY")
    os.environ["FASTBERT_VERIFY"] = "0"
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)
        if before is None:
            del os.environ["FASTBERT_VERIFY"]
        else:
            os.environ["FASTBERT_VERIFY"] = before


def attempt(reader: Reader, data: bytes, where: str) -> None:
    """Read an input; what goes wrong names it, with the bytes that repeat it."""
    try:
        reader.read(data)
    except Exception as error:
        shown = data if len(data) < 3000 else data[:3000]
        raise AssertionError(
            f"{reader.known.name}, {where}: {type(error).__name__}: {error}; input {shown!r}"
        ) from error


def random_damage(reader: Reader, numbers: Sequence[int], inputs: Sequence[bytes], each: int) -> None:
    """Read `each` damaged inputs per number, which alone determines them."""
    for number in numbers:
        draw = random.Random(f"{reader.known.name} {number}")
        for index in range(each):
            chosen = draw.choice(inputs)
            data = chosen[:1] + damaged(chosen[1:], draw, inputs)
            attempt(reader, data, f"number {number}, input {index}")


def _fuzz(name: str, seconds: float, seed: int, corpus: Path, artifacts: Path) -> None:
    """Fuzz with random damage until the time is over; raises AssertionError."""
    begin = time.process_time()
    with tempfile.TemporaryDirectory() as folder, quiet():
        reader = Reader(NAMED[name], Path(folder) / name)
        inputs = [*reader.valid, *(file.read_bytes() for file in sorted(corpus.iterdir()) if file.stat().st_size)]
        with bounded_memory():
            number = 0
            while time.process_time() - begin < seconds:
                random_damage(reader, [seed * 1_000_000 + number], inputs, 20)
                number += 1
        print("figures", json.dumps(reader.figures()))


def read_figures(line: str) -> dict[str, float]:
    """Return the figures of the line with which a fuzzer ends."""
    figures: dict[str, float] = json.loads(line.removeprefix("figures "))
    return figures


def _fuzz_guided(name: str, seconds: float, seed: int, corpus: Path, artifacts: Path) -> None:
    """Fuzz with atheris, which ends the process."""
    import atheris

    with atheris.instrument_imports(include=["fastbert"]):
        for module in MODULES[name]:
            importlib.import_module(module)
    folder = Path(tempfile.mkdtemp())
    stack = contextlib.ExitStack()
    stack.enter_context(quiet())
    reader = Reader(NAMED[name], folder / name)
    for data in reader.valid:
        (corpus / hashlib.sha1(data).hexdigest()).write_bytes(data)
    stack.enter_context(bounded_memory())
    begin = time.process_time()

    def one(data: bytes) -> None:
        if time.process_time() - begin > seconds:
            print("figures", json.dumps(reader.figures()), flush=True)
            shutil.rmtree(folder, ignore_errors=True)
            os._exit(0)
        attempt(reader, data, f"seed {seed}")

    def mutate(data: bytes, max_size: int, number: int) -> bytes:
        draw = random.Random(number)
        if draw.random() < 0.4:
            return atheris.Mutate(data, max_size)
        return (data[:1] + damaged(data[1:], draw, reader.valid))[:max_size]

    options = [f"-seed={seed % 2**31 + 1}", f"-max_len={MAX_BYTES}", "-timeout=300", "-rss_limit_mb=0"]
    options += [f"-artifact_prefix={artifacts}/", str(corpus)]
    atheris.Setup([sys.argv[0], *options], one, custom_mutator=mutate)
    atheris.Fuzz()


_CHECKPOINTS = [f"fastbert.checkpoints.formats.{name}" for name in ("safetensors", "pickle", "shards", "tensorflow")]
_TOKENIZERS = ["fastbert.tokenizers.loading", "fastbert.tokenizers.piece_models", "fastbert.tokenizers.pipeline_files"]
_TASKS = [
    f"fastbert.tasks.readers.{name}" for name in ("texts", "text_groups", "choices", "sequences", "squad", "conll")
]
# What is instrumented: the modules of a format, and those that they import.
MODULES: dict[str, list[str]] = {
    **dict.fromkeys(("safetensors", "weight_shards", "pickle_zip", "pickle_stream", "pickle_program"), _CHECKPOINTS),
    **dict.fromkeys(("tensorflow", "tensorflow_record"), _CHECKPOINTS),
    **dict.fromkeys(("vocab_txt", "merges_txt", "sentencepiece"), _TOKENIZERS),
    **dict.fromkeys(("tokenizer_json", "tokenizer_json_bpe", "tokenizer_json_unigram"), _TOKENIZERS),
    "config": ["fastbert.models.registry"],
    "manifest": ["fastbert.checkpoints.manifest"],
    "delta": ["fastbert.checkpoints.delta.files"],
    "adapter": ["fastbert.finetuning.adapters"],
    "checkpoint_state": ["fastbert.training.checkpoint"],
    "checkpoint_manifest": ["fastbert.training.checkpoint"],
    "run_files": ["fastbert.training.run_files", "fastbert.training.metrics", "fastbert.training.step_log"],
    "token_shards": ["fastbert.data.shards"],
    "vector_files": ["fastbert.vectors"],
    "search_index": ["fastbert.search.index"],
    "tables": _TASKS,
    "task_files": [*_TASKS, "fastbert.tasks.readers.judgements"],
    "corpus_files": ["fastbert.data.corpus", "fastbert.data.wikipedia"],
    "sentence_transformers": [
        "fastbert.embeddings.folder", "fastbert.retrieval.settings", "fastbert.reranking.settings",
    ],
    "tuning_table": ["fastbert.ops.native.matmul_table"],
}  # fmt: skip


def main(arguments: Sequence[str]) -> None:
    name, seconds, seed = arguments[0], float(arguments[1]), int(arguments[2])
    corpus, artifacts = Path(arguments[3]), Path(arguments[4] if len(arguments) > 4 else ".")
    guided = importlib.util.find_spec("atheris") is not None
    fuzz: Any = _fuzz_guided if guided else _fuzz
    fuzz(name, seconds, seed, corpus, artifacts)


if __name__ == "__main__":
    main(sys.argv[1:])

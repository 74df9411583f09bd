"""Hostile artefacts of every format that fastbert reads: named ones, and formats with one value of a file replaced.

An artefact is a folder that `write` makes and `damage` spoils; `load` must raise a UserError, or read it as if the
hostile value were not there. All are numbered in one order, which mixes the families.

One file: the values, the ways to put them into files, and the list of formats, which is read against them.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import pickle
import random
import shutil
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from checkpoints.toy import header_of, replaced, save
from checkpoints.toy import write as write_safetensors
from torture import stored_folders
from torture.hostile_models import FORMS
from torture.hostile_pickles import Trap
from toy_tasks import VOCABULARY, sentiment

from fastbert import BertModel
from fastbert.checkpoints import manifest
from fastbert.data.corpus import Corpus
from fastbert.embeddings.folder import load_embedder
from fastbert.finetuning.adapters import load_adapter
from fastbert.finetuning.config import FinetuneConfig
from fastbert.io.checksums import SEAL, sealed
from fastbert.models import registry
from fastbert.tasks.finetuned_model import load_task
from fastbert.tasks.readers.arrow_files import read_columns
from fastbert.tasks.registry import make_task
from fastbert.tasks.settings import TaskSettings
from fastbert.tokenizers.loading import load_tokenizer
from fastbert.training import checkpoint
from fastbert.training.run_files import read_record
from fastbert.training.run_folder import read_run
from fastbert.vectors.files import read_vectors

Damage = Callable[[Path], Any]
TRAP = "fastbert_test_trap"
"""A module that nothing may import."""


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


VALUES: dict[str, Any] = {
    "null": None, "true": True, "minus-1": -1, "10^12": 10**12, "2^63": 1 << 63, "10^400": 10**400, "1e308": 1e308,
    "nan": float("nan"), "infinity": float("inf"), "class": f"{TRAP}.Trap", "reference": f"--{TRAP}.Trap",
    "long": "x" * 300_000, "empty": "", "list": [], "object": {}, "nested": nested(400),
    "parent": "../outside/secret.json",
    "absolute": "/etc/passwd", "nul": "a\0b", "surrogate": "\ud800",
    "code": "__import__('os').system('touch trap')", "template": "{{ cycler.__init__.__globals__.os.popen('id') }}",
    "mapping": {"AutoModel": f"{TRAP}--modeling.Trap", "AutoConfig": f"{TRAP}.Trap"},
}  # fmt: skip
UNKNOWN = (
    "auto_map",
    "trust_remote_code",
    "custom_pipelines",
    "_attn_implementation_internal",
    "__class__",
    "base_model",
)
"""Keys that name code in other libraries."""


@dataclass(frozen=True)
class Family:
    """A format: how it is written, what is damaged, and how it is read."""

    name: str
    write: Callable[[Path], object]
    load: Callable[[Path], object]
    damages: dict[str, Damage]
    checked: bool = False
    """True if manifests are compared, which would refuse most changes before they are parsed."""


@dataclass(frozen=True)
class Artefact:
    family: Family
    name: str

    @property
    def label(self) -> str:
        return f"{self.family.name} {self.name}"


def places(content: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the places of values in JSON, of lists those of the first two."""
    pairs = content.items() if isinstance(content, dict) else list(enumerate(content))[:2]
    for index, (key, value) in enumerate(pairs):
        if index < 24:
            yield (*path, key)
            if isinstance(value, dict | list) and len(path) < 4:
                yield from places(value, (*path, key))


def put(content: Any, path: tuple[Any, ...], value: Any) -> None:
    for key in path[:-1]:
        content = content[key]
    content[path[-1]] = value


def changed(
    folder: Path, files: list[str], count: int, *, reseal: bool = False, after: Callable[[Path], None] | None = None
) -> dict[str, Damage]:
    """Return damages that put a hostile value in the place of one in the JSON files of a folder, `count` of each."""
    damages: dict[str, Damage] = {}

    def damage(file: str, path: tuple[Any, ...], value: Any) -> Damage:
        def apply(artefact: Path) -> None:
            content = json.loads((artefact / file).read_text())
            content.pop(SEAL, None) if isinstance(content, dict) and reseal else None
            put(content, path, value)
            text = json.dumps(sealed(content) if reseal else content)
            (artefact / file).write_text(text)
            if after is not None:
                after(artefact)

        return apply

    for file in files:
        draw = random.Random(f"{folder.name} {file}")
        content = json.loads((folder / file).read_text())
        options = [(path, name) for path in places(content) for name in VALUES if path[-1] != SEAL]
        if isinstance(content, dict):
            options += [((key,), name) for key in UNKNOWN for name in ("class", "reference", "mapping", "true")]
        for path, name in draw.sample(options, min(count, len(options))):
            damages[f"{file} {'.'.join(map(str, path))}={name}"] = damage(file, path, VALUES[name])
    return damages


def bomb(data: bytes, size: int = 60_000_000) -> bytes:
    return gzip.compress(data * (size // len(data)), 1)


def zipped(**entries: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in entries.items():
            archive.writestr(name, data)
    return file.getvalue()


def pickled() -> bytes:
    return pickle.dumps(Trap(os.system, "touch trap"))


def object_array() -> bytes:
    file = io.BytesIO()
    np.save(file, np.array([Trap(os.system, "touch trap")], dtype=object), allow_pickle=True)
    return file.getvalue()


def array_header(text: str) -> bytes:
    header = text.encode().ljust(118) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + bytes(64)


RAW: dict[str, bytes] = {
    "empty": b"", "zeros": bytes(1000), "ff": b"\xff\xfe" * 500, "one-line-of-3-MB": b"x" * 3_000_000,
    "lists": b"[" * 100_000, "objects": b'{"a":' * 100_000, "digits": b'{"label": ' + b"9" * 100_000 + b"}",
    "zip-bomb": zipped(data=bytes(30_000_000)), "gzip-bomb": bomb(b"a"),
    "gzip-bomb-of-lines": bomb(b"a house " * 12 + b"\tb\n", 20_000_000),
    "pickle": pickled(), "polyglot": b'{"a": 1}\n' + zipped(a=b"b"), "quotes": b'"' * 100_001,
    "returns": b"\r" * 100_000,
    "surrogate": b'{"text": "\\ud800", "label": "\\udfff"}\n', "array-of-objects": object_array(),
    "key-twice": b'{"text": "a", "text": "b", "label": 1, "label": 2}\n', 
    "nan": b'{"text": NaN, "label": Infinity}\n',
    "tabs": b"\t" * 100_000 + b"\n", "half": b"label\tsentence\ngood", "elf": b"\x7fELF" + bytes(500),
    "bom": b"\xef\xbb\xbf" * 3,
}  # fmt: skip
ARRAYS: dict[str, bytes] = {
    "objects": object_array(),
    "absurd": array_header("{'descr': '<f2', 'fortran_order': False, 'shape': (1 << 62, 2), }"),
    "absurd-number": array_header(f"{{'descr': '<f2', 'fortran_order': False, 'shape': ({1 << 62}, 16), }}"),
    "negative": array_header("{'descr': '<f2', 'fortran_order': False, 'shape': (-1, 16), }"),
    "code": array_header("__import__('os').system('touch trap')"), "object-dtype": array_header("{'descr': '|O', "
    "'fortran_order': False, 'shape': (2,), }"), "nested": array_header("(" * 100), "fortran": array_header("{'descr': "
    "'<f2', 'fortran_order': True, 'shape': (2, 16), }"), "zip": zipped(a=bytes(10_000_000)), "empty": b"",
    "header-of-4-GB": b"\x93NUMPY\x02\x00\xff\xff\xff\xff{", "version-9": b"\x93NUMPY\x09\x00" + bytes(100),
}  # fmt: skip


def whole_file(name: str, contents: dict[str, bytes]) -> dict[str, Damage]:
    return {f"{name} {label}": replaced(name, data) for label, data in contents.items()}


def special(name: str) -> dict[str, Damage]:
    """Something that is no regular file, or a link that leads out."""

    def instead(make: Callable[[Path], object]) -> Damage:
        def damage(folder: Path) -> None:
            (folder / name).unlink(missing_ok=True)
            make(folder / name)

        return damage

    return {
        f"{name} a-pipe": instead(os.mkfifo), f"{name} a-device": instead(lambda path: path.symlink_to("/dev/zero")),
        f"{name} a-folder": instead(Path.mkdir), f"{name} a-loop": instead(lambda path: path.symlink_to(path.name)),
    }  # fmt: skip


MODULES: dict[str, Any] = {
    "foreign-class": {"type": f"{TRAP}.Trap"}, "os": {"type": "os.system"}, "parent": {"path": "../outside"},
    "absolute": {"path": "/etc"}, "nul": {"path": "a\0b"}, "path-of-none": {"path": None},
    "type-of-list": {"type": [TRAP]},
    "dense-of-another": {"type": "sentence_transformers.models.Dense", "path": "1_Pooling"},
}  # fmt: skip


def modules(number: int, values: dict[str, Any]) -> Damage:
    def damage(folder: Path) -> None:
        listed = json.loads((folder / "modules.json").read_text())
        listed[number].update(values)
        (folder / "modules.json").write_text(json.dumps(listed))

    return damage


def delta_header(folder: Path, count: int) -> dict[str, Damage]:
    """Damages of the JSON in a file of differences, with a checksum that is right."""
    outer, _ = header_of(folder / "task.delta")
    header = json.loads(outer["__metadata__"]["header"])
    draw = random.Random("delta")
    options = [(path, name) for path in places(header) for name in VALUES]

    def damage(path: tuple[Any, ...], value: Any) -> Damage:
        def apply(artefact: Path) -> None:
            whole, data = header_of(artefact / "task.delta")
            content = json.loads(whole["__metadata__"]["header"])
            put(content, path, value)
            text = json.dumps(content)
            digest = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()
            whole["__metadata__"] |= {"header": text, "sha256": digest}
            write_safetensors(artefact / "task.delta", whole, data)

        return apply

    return {
        f"header {'.'.join(map(str, path))}={name}": damage(path, VALUES[name])
        for path, name in draw.sample(options, min(count, len(options)))
    }


def rehashed(folder: Path) -> None:
    """Write the manifest of a checkpoint anew."""
    path = folder / "manifest.json"
    values = json.loads(path.read_text())
    values["sha256"] = {name: checkpoint.digest(folder / name) for name in values["sha256"]}
    path.write_text(json.dumps(values))


def read_task(task: str, name: str) -> Callable[[Path], object]:
    return lambda folder: make_task(task, TaskSettings(max_length=16), None).read(str(folder / name))


def corpus(name: str) -> Callable[[Path], object]:
    return lambda folder: sum(len(document) for document in Corpus.find([str(folder / name)]).documents())


def families(root: Path) -> list[Family]:
    """Write a whole folder of each format, and return the formats."""
    made: list[Family] = []

    def add(
        name: str, write: Callable[[Path], object], load: Callable[[Path], object],
        damages: Callable[[Path], dict[str, Damage]], *, checked: bool = False,
    ) -> None:  # fmt: skip
        folder = root / name
        write(folder)
        made.append(Family(name, write, load, damages(folder), checked))

    for form, (base, damages) in FORMS.items():
        add(
            f"model-{form}", lambda folder, base=base: save(folder, base),
            lambda folder: BertModel.from_pretrained(folder, pickles=True), lambda folder, named=damages: named,
        )  # fmt: skip

    def zero(write: Callable[[Path, int], Path]) -> Callable[[Path], object]:
        return lambda folder: write(folder, 0)

    add(
        "configuration", zero(stored_folders.sharded), registry.load,
        lambda folder: {
            **changed(folder, ["config.json"], 40), **changed(folder, ["model.safetensors.index.json"], 12),
        },
    )  # fmt: skip
    add(
        "wordpiece", zero(stored_folders.sharded), lambda folder: load_tokenizer(folder)("a house ?"),
        lambda folder: {
            **changed(folder, ["tokenizer_config.json", "special_tokens_map.json"], 20),
            **whole_file("vocab.txt", RAW), **special("vocab.txt"), **whole_file("added_tokens.json", RAW),
        },
    )  # fmt: skip
    for kind in ("roberta", "xlm-roberta"):
        add(
            f"tokenizer-of-{kind}", zero(stored_folders.family(kind)),
            lambda folder: load_tokenizer(folder)("a house ?"),
            lambda folder: {
                **changed(folder, ["tokenizer.json"], 40), **changed(folder, ["tokenizer_config.json"], 10),
                **whole_file("tokenizer.json", {name: RAW[name] for name in ("empty", "lists", "pickle", "zip-bomb")}),
            },
        )  # fmt: skip
    add(
        "sentencepiece", zero(stored_folders.sentencepiece), lambda folder: load_tokenizer(folder)("a house ?"),
        lambda folder: {**whole_file("spiece.model", RAW), **special("spiece.model")},
    )  # fmt: skip
    add(
        "embedder", zero(stored_folders.embedder), load_embedder,
        lambda folder: {
            **{
                f"module-{number} {name}": modules(number, values)
                for name, values in MODULES.items() for number in range(3)
            },
            **changed(folder, ["1_Pooling/config.json", "2_Dense/config.json"], 10),
            **changed(folder, ["config_sentence_transformers.json", "modules.json", "sentence_bert_config.json"], 10),
        },
    )  # fmt: skip
    add("task", zero(stored_folders.embedder), load_task, lambda folder: changed(folder, ["fastbert_task.json"], 25))
    add(
        "manifest", zero(stored_folders.embedder),
        lambda folder: manifest.verify_files(folder, *manifest.KINDS),
        lambda folder: {
            **changed(folder, [manifest.NAME], 20, reseal=True), **whole_file(manifest.NAME, RAW),
            **special(manifest.NAME),
        },
        checked=True,
    )  # fmt: skip
    add(
        "adapter", zero(stored_folders.adapter), lambda folder: load_adapter(BertModel(stored_folders.SMALL), folder),
        lambda folder: {
            **changed(folder, ["adapter_config.json"], 40), **whole_file("adapter_model.safetensors", RAW),
            "auto-mapping": lambda path: _update(
                path / "adapter_config.json", auto_mapping={"base_model_class": "Trap", "parent_library": TRAP}
            ),
            "pickled": lambda path: ((path / "adapter_model.safetensors").unlink(),
                                     (path / "adapter_model.bin").write_bytes(pickled())),
        },
    )  # fmt: skip
    add("delta", zero(stored_folders.deltas), stored_folders.restored, lambda folder: delta_header(folder, 40))
    add(
        "token-shards", zero(stored_folders.shards), stored_folders.tokens,
        lambda folder: {
            **changed(folder, ["index.json"], 30, reseal=True), **special("unigrams.bin"), **special("index.json"),
            **whole_file("index.json", {name: RAW[name] for name in ("lists", "digits", "pickle", "zip-bomb", "ff")}),
        },
    )  # fmt: skip
    add(
        "search-index", zero(stored_folders.index), stored_folders.hits,
        lambda folder: {
            **changed(folder, ["index.json"], 25, reseal=True), **special("texts.jsonl"), **special("index.json"),
            **whole_file("vectors.fp16.npy", ARRAYS), **whole_file("texts.offsets.npy", ARRAYS),
        },
    )  # fmt: skip
    run = root / "runs"
    stored_folders.pretraining_run(run / "pretraining", 0)
    stored_folders.finetuning_run(run / "finetuning", 0)
    shutil.rmtree(run / "finetuning/run/model")

    def copied(name: str) -> Callable[[Path], object]:
        return lambda folder: shutil.copytree(run / name / "run", folder)

    add(
        "pretraining-run", copied("pretraining"), lambda folder: (read_run(folder), stored_folders.newest(folder)),
        lambda folder: {
            **changed(folder, ["config.json"], 25, reseal=True),
            **changed(folder, ["checkpoints/step-00000004/state.json"], 15,
                      after=lambda path: rehashed(path / "checkpoints/step-00000004")),
            **changed(folder, ["checkpoints/step-00000004/manifest.json"], 6),
        },
    )  # fmt: skip
    add(
        "finetuning-run", copied("finetuning"),
        lambda folder: (
            FinetuneConfig.from_dict(_record(folder)), stored_folders.finetuning_checkpoint(folder),
            stored_folders.finetuning_results(folder),
        ),
        lambda folder: {
            **changed(folder, ["results.json"], 20, reseal=True),
            **changed(folder, ["checkpoints/step-00000005/state.json"], 25,
                      after=lambda path: rehashed(path / "checkpoints/step-00000005")),
        },
    )  # fmt: skip
    files: dict[str, Callable[[Path], object]] = {
        "classification.tsv": read_task("classification", "classification.tsv"),
        "classification.jsonl": read_task("classification", "classification.jsonl"),
        "classification.csv": read_task("classification", "classification.csv"),
        "classification.tsv.gz": read_task("classification", "classification.tsv.gz"),
        "tagging.txt": read_task("tagging", "tagging.txt"),
        "span.json": read_task("span", "span.json"),
        "choice.jsonl": read_task("choice", "choice.jsonl"),
        "table.parquet": lambda folder: read_columns(str(folder / "table.parquet")),
        "table.arrow": lambda folder: read_columns(str(folder / "table.arrow")),
        "vectors.txt": lambda folder: read_vectors(folder / "vectors.txt"),
        "corpus.txt": corpus("corpus.txt"),
        "corpus.jsonl": corpus("corpus.jsonl"),
    }
    for name, load in files.items():
        add(
            f"data-{name}", lambda folder, name=name: (folder.mkdir(), sentiment(folder / name, 4)), load,
            lambda folder, name=name: {**whole_file(name, RAW), **special(name)},
        )  # fmt: skip
    assert len(VOCABULARY) > 5
    return made


def _update(path: Path, **values: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def _record(folder: Path) -> Any:
    return (read_record(folder, "finetune", FinetuneConfig.CHANGEABLE) or {})["finetune"]


def artefacts(made: list[Family]) -> list[Artefact]:
    """Return all artefacts, in an order that mixes the families."""
    every = [Artefact(family, name) for family in made for name in family.damages]
    random.Random(0).shuffle(every)
    return every

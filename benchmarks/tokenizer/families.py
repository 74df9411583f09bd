"""Tokenizers other than WordPiece and their texts: byte-level BPE and Unigram files of the data folder, or of the user,
or trained here on Python's own documentation."""

from __future__ import annotations

import itertools
import lzma
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from fastbert.benchmarks.harness.texts import (
    ENGLISH,
    PYTHON,
    Family,
    Workload,
    all_news,
    as_one_document,
    packed_lines,
    up_to,
)
from fastbert.errors import UserError
from fastbert.tokenizers.json_files import read_json
from fastbert.tokenizers.pipeline_files import kind_of

BPE, UNIGRAM = "BPE", "Unigram"
FAMILIES = {
    "gpt2": BPE,
    "roberta-base": BPE,
    "modernbert-base": BPE,
    "xlm-roberta-base": UNIGRAM,
    "deberta-v3-base": UNIGRAM,
    "albert-base-v2": UNIGRAM,
}
LANGUAGES = "24 languages"
DOCUMENT = "one document"
NEWS = "multilingual/ntrex.tar.xz"
WIKIPEDIA = "wiki-en/wiki_en.sent.txt.xz"
PYTHON_PIECES = 4000
ALPHABET = 256  # byte tokens of byte-level BPE


def data_workloads(
    data: Path, folder: Path, names: Sequence[str], limit: int, other_limit: int, skipped: Callable[[str], None]
) -> list[Workload]:
    """Return the workloads of the named families with files of the data folder, which are unpacked to `folder`; at most
    `limit` bytes of sentences and `other_limit` of the other texts. `skipped` receives a line per missing file."""
    english = list(up_to(limit, packed_lines(data / WIKIPEDIA))) if (data / WIKIPEDIA).is_file() else []
    if not english:
        skipped(f"{data}: no {WIKIPEDIA}; its texts are left out")
    languages = list(up_to(other_limit, all_languages(data / NEWS))) if (data / NEWS).is_file() else []
    if not languages:
        skipped(f"{data}: no {NEWS}; its texts are left out")
    table: list[Workload] = []
    for name in names:
        family = unpack(data / "tokenizers" / name, folder / name)
        if family is None:
            skipped(f"{data}: no tokenizers/{name}; it is left out")
            continue
        table += english_workloads(family, ENGLISH, english, other_limit)
        if family.model == UNIGRAM and languages:
            table.append(Workload(f"{name}: {LANGUAGES}", languages, family))
    return table


def english_workloads(family: Family, title: str, texts: list[str], other_limit: int) -> list[Workload]:
    """Return the workloads of short texts and of one document."""
    if not texts:
        return []
    return [
        Workload(f"{family.name}: {title}", texts, family),
        Workload(f"{family.name}: {DOCUMENT}", [as_one_document(texts, other_limit)], family),
    ]


def folder_workloads(folder: Path, title: str, texts: list[str], other_limit: int) -> list[Workload]:
    """Return the workloads of a user's folder. Raises `UserError` for a folder without a tokenizer.json of BPE or
    Unigram."""
    return english_workloads(_family(folder), title, texts, other_limit)


def python_workloads(folder: Path, names: Sequence[str], limit: int, other_limit: int) -> list[Workload]:
    """Return workloads of sentences of this Python's docstrings, with tokenizers trained on them; `names` are "BPE" and
    "Unigram"."""
    from fastbert.data.python_text import python_documents

    texts = [sentence for document in python_documents(limit) for sentence in document]
    table: list[Workload] = []
    for name in names:
        trained = folder / name
        _train(trained, name, texts)
        table += english_workloads(Family(name, trained, name), PYTHON[0], texts, other_limit)
    return table


def all_languages(path: Path) -> Iterator[str]:
    """Yield the parallel text: a line of each language in turn, so that every part of it holds all languages."""
    columns = [lines for _, lines in all_news(path)]
    for row in itertools.zip_longest(*columns):
        yield from (line for line in row if line is not None)


def unpack(packed: Path, folder: Path) -> Family | None:
    """Unpack a family's files; None if there is no tokenizer.json.

    Reconstructed files have ".reconstructed" in their name there, and not here.
    """
    files = sorted(packed.glob("*.xz"))
    folder.mkdir(parents=True, exist_ok=True)
    for file in files:
        name = file.name.removesuffix(".xz").replace(".reconstructed", "").replace(".written", "")
        (folder / name).write_bytes(lzma.decompress(file.read_bytes()))
    return _family(folder) if (folder / "tokenizer.json").is_file() else None


def _family(folder: Path) -> Family:
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise UserError(f"{folder}: has no tokenizer.json; give the folder of a tokenizer of byte-level BPE or Unigram")
    kind = kind_of(read_json(path).get("model"))
    if kind not in (BPE, UNIGRAM):
        raise UserError(
            f"{path}: its model is {kind}; this measures byte-level BPE and Unigram,"
            " `fastbert bench tokenizer` WordPiece"
        )
    return Family(folder.name, folder, kind)


def _train(folder: Path, model: str, texts: Sequence[str]) -> None:
    """Write the tokenizer.json of a tokenizer trained on the texts."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

    pieces = min(PYTHON_PIECES, max(2 * ALPHABET, sum(map(len, texts)) // 100))
    if model == BPE:
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(vocab_size=pieces, initial_alphabet=alphabet, show_progress=False)
    else:
        tokenizer = Tokenizer(models.Unigram())
        tokenizer.normalizer = normalizers.NFKC()
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
        tokenizer.decoder = decoders.Metaspace()
        trainer = trainers.UnigramTrainer(
            vocab_size=pieces, unk_token="<unk>", special_tokens=["<unk>"], show_progress=False
        )
    tokenizer.train_from_iterator(texts, trainer)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))

"""Every file that fastbert reads: a small valid folder of each format, and the function that reads it.

One file: a list, of which each entry is independent of the others.

A format's `files` are damaged one at a time. `wrap` puts an input where a checksum or a container would stop it: the
pickle inside of a zip, a record of TensorFlow's index, a checkpoint's state.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import lzma
import os
import random
import shutil
import zipfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

Make = Callable[[Path], object]
TEXT = "The quick [MASK] fox, 中国 don't e\u0301 123\u00a0x"


@dataclass(frozen=True)
class Format:
    """A format of files: `make` writes a valid folder, `read` reads it as a user's command would."""

    name: str
    files: tuple[str, ...]
    make: Make
    read: Callable[[Path], object]
    wrap: Callable[[Path, bytes], None] | None = None
    """Writes an input for the first of the files, instead of its bytes."""
    unwrap: Callable[[Path], bytes] | None = None
    """Returns the input of the valid file."""

    def put(self, folder: Path, index: int, data: bytes) -> None:
        """Write an input as one of the files."""
        if self.wrap is not None:
            self.wrap(folder, data)
        else:
            (folder / self.files[index]).write_bytes(data)

    def seeds(self, folder: Path) -> list[tuple[int, bytes]]:
        """Return the inputs of the valid folder."""
        if self.unwrap is not None:
            return [(0, self.unwrap(folder))]
        return [(index, (folder / name).read_bytes()) for index, name in enumerate(self.files)]


def _written(**files: str | bytes | dict[str, Any] | list[Any]) -> Make:
    """Make a folder of files, whose names have `__` for a dot; what is not text is JSON."""

    def make(folder: Path) -> None:
        folder.mkdir(parents=True)
        for name, content in files.items():
            data = content if isinstance(content, bytes | str) else json.dumps(content)
            (folder / name.replace("__", ".")).write_bytes(data.encode() if isinstance(data, str) else data)

    return make


def check_refusal(message: str) -> None:
    """Assert that a refusal is a line."""
    assert message, "a refusal without a word"
    assert "\n" not in message, f"a refusal of several lines: {message}"
    assert len(message) < 2000, f"a refusal of {len(message)} characters"


def _each(reads: Iterable[Callable[[], object]]) -> list[object]:
    """Call several readers of the same files, of which each may refuse."""
    from fastbert.errors import UserError

    results: list[object] = []
    for read in reads:
        try:
            results.append(read())
        except UserError as error:
            check_refusal(str(error))
            results.append(str(error))  # its traceback would keep what the reader holds
    return results


# Weights and configurations.


def _toy(form: str) -> Make:
    def make(folder: Path) -> None:
        from checkpoints.toy import save

        save(folder, form)

    return make


def _tensors(name: str) -> Callable[[Path], object]:
    def read(folder: Path) -> object:
        from fastbert.checkpoints.formats.pickle import read_pickle
        from fastbert.checkpoints.formats.safetensors import read_safetensors
        from fastbert.checkpoints.formats.shards import read_shards
        from fastbert.checkpoints.formats.tensorflow import read_bundle

        if name.endswith("index.json"):
            stored = read_shards(folder / name, read_safetensors)
        elif name.endswith(".index"):
            stored = read_bundle(folder / name.removesuffix(".index"))
        else:
            stored = (read_pickle if name.endswith("bin") else read_safetensors)(folder / name)
        return {key: tensor.read() for key, tensor in stored.items()}

    return read


def _in_zip(folder: Path, data: bytes) -> None:
    path = folder / "pytorch_model.bin"
    with zipfile.ZipFile(path) as old:
        content = {name: old.read(name) for name in old.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as new:
        for name, stored in content.items():
            new.writestr(name, data if name.endswith("data.pkl") else stored)


def _from_zip(folder: Path) -> bytes:
    with zipfile.ZipFile(folder / "pytorch_model.bin") as archive:
        return next(archive.read(name) for name in archive.namelist() if name.endswith("data.pkl"))


_TABLE, _RECORD = "bert_model.ckpt.index", b"bert/embeddings/word_embeddings"


def _in_table(folder: Path, data: bytes) -> None:
    from fastbert.checkpoints.formats.sstable import read_table, write_table

    path = folder / _TABLE
    table = read_table(path.read_bytes()) | {_RECORD: data}
    path.write_bytes(write_table(sorted(table.items())))


def _from_table(folder: Path) -> bytes:
    from fastbert.checkpoints.formats.sstable import read_table

    return read_table((folder / _TABLE).read_bytes())[_RECORD]


def _read_config(folder: Path) -> object:
    from fastbert.models.registry import read_config

    return read_config(folder)


def _model_folder(folder: Path) -> None:
    from embedding import saved

    saved(folder, 0)


def _verify(folder: Path) -> None:
    from fastbert.checkpoints.manifest import verify_files

    os.environ["FASTBERT_VERIFY"] = "1"
    try:
        verify_files(folder, "model", "tokenizer", "embedder")
    finally:
        os.environ["FASTBERT_VERIFY"] = "0"


def _make_delta(folder: Path) -> None:
    import torch
    from embedding import saved

    from fastbert import BertModel
    from fastbert.checkpoints.delta.files import write_delta

    saved(folder / "base", 0)
    shutil.copytree(folder / "base", folder / "model")
    model = BertModel.from_pretrained(folder / "base", mapped=False)
    with torch.no_grad():
        next(model.parameters()).mul_(1.001)
    model.save_pretrained(folder / "model")
    write_delta(folder / "model", folder / "base", folder / "task.delta")


def _read_delta(folder: Path) -> object:
    from fastbert.checkpoints.delta.files import read_delta

    return read_delta(folder / "task.delta", folder / "base")


def _make_adapter(folder: Path) -> None:
    import torch
    from safetensors.torch import save_file

    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["query"], "base_model_name_or_path": "x"}
    _written(adapter_config__json=config)(folder)
    names = [f"base_model.model.bert.encoder.layer.0.attention.self.query.lora_{part}.weight" for part in "AB"]
    save_file(
        {name: torch.ones(2, 8) for name in names}, folder / "adapter_model.safetensors", metadata={"format": "pt"}
    )


def _read_adapter(folder: Path) -> object:
    from fastbert.finetuning.adapters import check_adapter

    return check_adapter(folder)


def _make_checkpoint(folder: Path) -> None:
    from toy_checkpoints import Writer

    Writer(folder).save(3)


def _in_checkpoint(folder: Path, data: bytes) -> None:
    from fastbert.training import checkpoint

    step = folder / "step-00000003"
    (step / checkpoint.STATE).write_bytes(data)
    manifest = json.loads((step / checkpoint.MANIFEST).read_bytes())
    manifest["sha256"][checkpoint.STATE] = checkpoint.digest(step / checkpoint.STATE)
    (step / checkpoint.MANIFEST).write_text(json.dumps(manifest))


def _read_checkpoint(folder: Path) -> object:
    from fastbert.training import checkpoint

    return checkpoint.load(folder / "step-00000003")


def _read_run(folder: Path) -> object:
    from fastbert.training.metrics import read_metrics
    from fastbert.training.run_files import read_record
    from fastbert.training.step_log import read_steps

    return read_record(folder, "run", ()), read_metrics(folder / "metrics.jsonl"), read_steps(folder)


def _make_run(folder: Path) -> None:
    from fastbert.training.run_files import write_record

    line: dict[str, Any] = {"step": 5, "split": "train", "loss": 1.5, "mlm_loss": 1.0, "nsp_loss": None}
    line |= {"mlm_accuracy": 0.5, "nsp_accuracy": None, "tokens": 100, "tokens_per_second": 5.0, "learning_rate": 1e-4}
    line |= {"gradient_norm": 1.0, "seconds": 2.0}
    steps = "".join(json.dumps({"step": n, "loss": 1.0, "gradient_norm": 2.0, "weights": n}) + "\n" for n in range(3))
    _written(metrics__jsonl=json.dumps(line) + "\n", steps__jsonl=steps)(folder)
    write_record(folder, {"run": {"lr": 1e-4, "steps": 9, "out": "x"}, "vocabulary": "abc"})


# Tokenizers.

_VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "quick", "##s", "é", "中国", "don", "##'", "\u2028"]


def _make_wordpiece(folder: Path) -> None:
    from fastbert import WordPieceTokenizer

    tokenizer = WordPieceTokenizer(_VOCABULARY)
    tokenizer.add_tokens(["new one"])
    tokenizer.save_pretrained(folder)


def _make_vocabulary(folder: Path) -> None:
    special = {f"{name}_token": f"[{name.upper()}]" for name in ("unk", "sep", "pad", "cls", "mask")}
    _written(
        vocab__txt="".join(f"{token}\n" for token in _VOCABULARY),
        tokenizer_config__json={"do_lower_case": True, "model_max_length": 64, "tokenizer_class": "BertTokenizer"},
        special_tokens_map__json=special,
        added_tokens__json={"new": 13},
    )(folder)


def _make_pipeline(kind: str) -> Make:
    def make(folder: Path) -> None:
        from hostile_texts import PARTS
        from tokenizer_pipelines import random_tokenizer

        from fastbert import _C

        folder.mkdir()
        content = random_tokenizer(random.Random(f"{kind} 4"), PARTS, _C.byte_level_alphabet(), kind)
        (folder / "tokenizer.json").write_text(json.dumps(content))

    return make


def _make_merges(folder: Path) -> None:
    from fastbert import _C

    merges = [("t", "h"), ("th", "e"), ("Ġ", "the"), ("1", "2")]
    tokens = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", *_C.byte_level_alphabet(), *("".join(pair) for pair in merges)]
    _written(
        vocab__json={token: index for index, token in enumerate(tokens)},
        merges__txt="#version: 0.2\n" + "".join(f"{a} {b}\n" for a, b in merges),
        tokenizer_config__json={"tokenizer_class": "RobertaTokenizer"},
        config__json={"model_type": "roberta"},
    )(folder)


def _varint(value: int) -> bytes:
    data = b""
    while value > 127:
        data, value = data + bytes([value & 127 | 128]), value >> 7
    return data + bytes([value])


def _field(number: int, data: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _make_sentencepiece(folder: Path) -> None:
    pieces = [("<pad>", 0.0, 3), ("<unk>", 0.0, 2), ("[CLS]", 0.0, 3), ("[SEP]", 0.0, 3), ("[MASK]", 0.0, 3)]
    pieces += [(piece, -1.0 - index, 1) for index, piece in enumerate(["▁", "▁the", "a", "b", "é", "中", "qu"])]
    model = b""
    for piece, score, kind in pieces:
        score_field = b"\x15" + np.float32(score).tobytes()
        model += _field(1, _field(1, piece.encode()) + score_field + b"\x18" + _varint(kind))
    model += _field(2, b"\x18\x01") + _field(3, _field(1, b"nmt_nfkc"))
    config = {"model_type": "albert"}
    _written(spiece__model=model, tokenizer_config__json={"tokenizer_class": "AlbertTokenizer"}, config__json=config)(
        folder
    )


def _tokenize(folder: Path) -> object:
    import fastbert

    tokenizer = fastbert.load_tokenizer(folder)
    # Without a token to pad with, a call that is to pad is refused as one in transformers: it is not the file's fault.
    encoding = tokenizer([TEXT, ""], padding=tokenizer.pad_token is not None, return_offsets_mapping=True)
    return tokenizer.decode(encoding.input_ids[0]), len(tokenizer), tokenizer.pack([TEXT])


# Corpora, tables, vectors.


def _make_shards(folder: Path) -> None:
    from fastbert import WordPieceTokenizer
    from fastbert.data.prepare import prepare

    tokenizer = WordPieceTokenizer([*_VOCABULARY, *"abcdefgh"])
    prepare([["a b c", "d e"], ["f g h a", "b", "c d"], ["the quick a"]], tokenizer, folder, shard_tokens=8)


def _list_files(value: Any, folder: Path) -> None:
    """Put the size and the SHA-256 that files have into an index, so that their content is what is tested."""
    from fastbert.data.shards import describe

    for part in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        name = part.get("name") if isinstance(part, dict) else None
        if isinstance(name, str) and "sha256" in part and "/" not in name and (folder / name[:99]).is_file():
            part.update(describe(folder / name))
        _list_files(part, folder)


def _read_shards(folder: Path) -> object:
    from fastbert.data.shards import TokenShards

    with contextlib.suppress(ValueError, RecursionError):
        index = json.loads((folder / "index.json").read_bytes())
        _list_files(index, folder)
        (folder / "index.json").write_text(json.dumps(index))
    shards = TokenShards.open(folder)
    ranges = shards.document_ranges()
    sentences = [shards.sentence(number) for number in range(min(shards.num_sentences, 20))]
    return shards.count(ranges), sentences, shards.corpus.num_tokens, shards.token_ranges(ranges)


def _make_vectors(folder: Path) -> None:
    lines = [f"w{row} " + " ".join(f"{value:.3f}" for value in np.sin(np.arange(3.0) + row)) for row in range(5)]
    _written(vectors__txt="5 3\n" + "\n".join(lines) + "\n")(folder)
    (folder / "vectors.gz").write_bytes(gzip.compress("\n".join(lines).encode()))


def _read_vectors(folder: Path) -> object:
    from fastbert.vectors import WordVectors

    return [WordVectors.load(folder / name) for name in ("vectors.txt", "vectors.gz")]


def _make_index(folder: Path) -> None:
    import torch

    from fastbert.search import Index

    generator = torch.Generator().manual_seed(0)
    vectors = torch.randn(9, 4, generator=generator)
    Index.from_vectors(folder, vectors, [(f"id{n}", f"text {n}") for n in range(9)], store="int8").close()


def _read_index(folder: Path) -> object:
    from fastbert.search import Index

    with Index.open(folder) as index:
        return index.query(np.ones((2, index.settings.width), np.float32), top=3)


_ROWS = [("1", 'a "b"', "x y"), ("0", "é\u2028", "z"), ("1", "中", "w,v")]
_RECORDS = [{"label": a, "sentence": b, "sentence2": c, "id": n} for n, (a, b, c) in enumerate(_ROWS)]
_GROUPS = [{"anchor": "a", "positive": "p", "negative": "n"}, {"anchor": "b", "positive": "q", "negative": "m"}]
_CHOICES = [{"prompt": "a", "endings": ["b", "c"], "label": 1}, {"prompt": "d", "endings": ["e", "f"], "label": 0}]
_QUESTIONS = {
    "version": "2",
    "data": [
        {
            "paragraphs": [
                {
                    "context": "the quick fox",
                    "qas": [
                        {"id": "1", "question": "who", "answers": [{"text": "fox", "answer_start": 10}]},
                        {"id": "2", "question": "why", "answers": [], "is_impossible": True},
                    ],
                }
            ]
        }
    ],
}
_CONLL = "-DOCSTART- O\n\nEU NNP B-ORG\nrejects VBZ O\n\nPeter NNP B-PER\n"


def _make_tables(folder: Path) -> None:
    lines = "".join(json.dumps(row) + "\n" for row in _RECORDS)
    _written(
        t__tsv="label\tsentence\tsentence2\n" + "".join("\t".join(row) + "\n" for row in _ROWS),
        t__csv="label,sentence,sentence2\n"
        + "".join(f'{a},"{b.replace(chr(34), chr(34) * 2)}","{c}"\n' for a, b, c in _ROWS),
        t__jsonl=lines,
        t__json=_RECORDS,
    )(folder)
    (folder / "t.jsonl.xz").write_bytes(lzma.compress(lines.encode(), preset=0))


def _read_tables(folder: Path) -> object:
    from fastbert.tasks.readers.documents import read_texts as read_documents
    from fastbert.tasks.readers.tables import read_table
    from fastbert.tasks.readers.texts import read_texts
    from fastbert.tasks.settings import Columns

    def examples(path: str, **options: Any) -> list[Any]:
        return list(read_texts(path, Columns(), regression=False, **options))

    paths = [str(folder / name) for name in ("t.tsv", "t.csv", "t.jsonl", "t.json", "t.jsonl.xz")]
    readers: list[Callable[[str], object]] = [read_table, read_documents, partial(examples, labelled=True)]
    readers.append(partial(examples, labelled=False, skip_bad=True))
    return _each(partial(read, path) for path in paths for read in readers)


def _make_tasks(folder: Path) -> None:
    _written(
        groups__jsonl="".join(json.dumps(row) + "\n" for row in _GROUPS),
        choices__jsonl="".join(json.dumps(row) + "\n" for row in _CHOICES),
        sequences__jsonl="".join(json.dumps({"source": a, "target": b}) + "\n" for _, a, b in _ROWS),
        squad__json=_QUESTIONS,
        tags__conll=_CONLL,
        judgements__txt="q1 0 d1 1\nq1 0 d2 0\nq2 0 d1 2\n",
        run__txt="q1 Q0 d1 1 0.5 x\nq1 Q0 d2 2 0.25 x\n",
    )(folder)


def _read_tasks(folder: Path) -> object:
    from fastbert.tasks.readers.choices import read_choices
    from fastbert.tasks.readers.conll import read_conll
    from fastbert.tasks.readers.judgements import read_judgements, read_run
    from fastbert.tasks.readers.sequences import read_sequences
    from fastbert.tasks.readers.squad import read_squad
    from fastbert.tasks.readers.text_groups import read_text_groups
    from fastbert.tasks.settings import Columns

    path = {file.name: str(file) for file in folder.iterdir()}
    reads: list[Callable[[], object]] = [
        lambda: read_text_groups(path["groups.jsonl"]),
        lambda: read_text_groups(path["groups.jsonl"], labelled=False, skip_bad=True),
        lambda: list(read_choices(path["choices.jsonl"], Columns(), labelled=True)),
        lambda: list(read_sequences(path["sequences.jsonl"], Columns(), labelled=True)),
        lambda: list(read_squad(path["squad.json"], labelled=True, report=str)),
        lambda: list(read_squad(path["squad.json"], labelled=False, report=str, skip_bad=True)),
        lambda: list(read_conll(path["tags.conll"], Columns(), labelled=True)),
        lambda: list(read_conll(path["tags.conll"], Columns(), labelled=False, skip_bad=True)),
        lambda: read_judgements(path["judgements.txt"]),
        lambda: read_run(path["run.txt"]),
    ]
    return _each(reads)


_DUMP = """<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.11/"><siteinfo><namespaces>
<namespace key="0" /><namespace key="6">File</namespace></namespaces></siteinfo>
<page><title>A</title><ns>0</ns><revision><text>'''A''' is [[b|c]]. {{x}} &amp;lt;ref&amp;gt;

== H ==
More <ref>y</ref> text. [[File:z.png|thumb|w]]</text></revision></page></mediawiki>
"""


def _make_corpus(folder: Path) -> None:
    _written(
        a__txt="One sentence. Another one.\n\nA paragraph\nthat goes on.\n\n\nNext\r\n",
        b__jsonl='{"text": "One sentence. Another."}\n{"text": "More é\\u0301"}\n',
        c__xml=_DUMP,
    )(folder)
    (folder / "d.txt.gz").write_bytes(gzip.compress(b"Some text.\n\nMore text.\n"))


def _read_corpus(folder: Path) -> object:
    from fastbert.data.corpus import read_documents

    def read(name: str) -> list[list[str]]:
        return list(islice(read_documents(str(folder / name)), 100))

    return _each(partial(read, name) for name in ("a.txt", "b.jsonl", "c.xml", "d.txt.gz"))


def _make_embedder(folder: Path) -> None:
    from embedding import small_model, small_tokenizer
    from saved_models import PROMPTS, layer

    from fastbert.embeddings.settings import EmbedSettings
    from fastbert.retrieval.saving import save_with_settings

    settings = EmbedSettings(prompts=PROMPTS, dense=(layer(0, 32, 8),), normalize=True)
    save_with_settings(small_model(0), settings, folder)
    small_tokenizer().save_pretrained(folder)


def _read_embedder(folder: Path) -> object:
    from fastbert.embeddings.folder import read_settings as read_embedder
    from fastbert.reranking.settings import read_settings as read_ranker
    from fastbert.retrieval.settings import read_sparse_settings, read_token_settings

    readers = (read_embedder, read_ranker, read_token_settings, read_sparse_settings)
    return _each(partial(read, folder) for read in readers)


def _make_table(folder: Path) -> None:
    from fastbert.ops.native.matmul_table import FORMAT

    _written(products__json={"format": FORMAT, "entries": {"cpu": {"a": "own", "b": "library"}}})(folder)


def _read_tuning_table(folder: Path) -> object:
    from fastbert.ops.native.matmul_table import load

    return load(folder / "products.json")


_JSON_OF_MODULES = ("modules.json", "config_sentence_transformers.json", "sentence_bert_config.json", "config.json")

FORMATS = [
    Format("safetensors", ("model.safetensors",), _toy("safetensors"), _tensors("model.safetensors")),
    Format(
        "weight_shards", ("model.safetensors.index.json",), _toy("shards"), _tensors("model.safetensors.index.json")
    ),
    Format("pickle_zip", ("pytorch_model.bin",), _toy("zip"), _tensors("pytorch_model.bin")),
    Format("pickle_stream", ("pytorch_model.bin",), _toy("stream"), _tensors("pytorch_model.bin")),
    Format("pickle_program", ("data.pkl",), _toy("zip"), _tensors("pytorch_model.bin"), _in_zip, _from_zip),
    Format("tensorflow", (_TABLE, "bert_model.ckpt.data-00000-of-00001"), _toy("tensorflow"), _tensors(_TABLE)),
    Format("tensorflow_record", ("record",), _toy("tensorflow"), _tensors(_TABLE), _in_table, _from_table),
    Format("config", ("config.json",), _model_folder, _read_config),
    Format("manifest", ("fastbert_manifest.json",), _model_folder, _verify),
    Format("delta", ("task.delta",), _make_delta, _read_delta),
    Format("adapter", ("adapter_config.json", "adapter_model.safetensors"), _make_adapter, _read_adapter),
    Format(
        "checkpoint_state",
        ("state.json",),
        _make_checkpoint,
        _read_checkpoint,
        _in_checkpoint,
        lambda folder: (folder / "step-00000003/state.json").read_bytes(),
    ),
    Format("checkpoint_manifest", ("step-00000003/manifest.json",), _make_checkpoint, _read_checkpoint),
    Format("run_files", ("config.json", "metrics.jsonl", "steps.jsonl"), _make_run, _read_run),
    Format(
        "vocab_txt",
        ("vocab.txt", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
        _make_vocabulary,
        _tokenize,
    ),
    Format("tokenizer_json", ("tokenizer.json", "tokenizer_config.json"), _make_wordpiece, _tokenize),
    Format("tokenizer_json_bpe", ("tokenizer.json",), _make_pipeline("BPE"), _tokenize),
    Format("tokenizer_json_unigram", ("tokenizer.json",), _make_pipeline("Unigram"), _tokenize),
    Format("merges_txt", ("merges.txt", "vocab.json", "tokenizer_config.json"), _make_merges, _tokenize),
    Format("sentencepiece", ("spiece.model", "tokenizer_config.json"), _make_sentencepiece, _tokenize),
    Format(
        "token_shards",
        ("index.json", *(f"shard-00000.{kind}.bin" for kind in ("tokens", "sentences", "documents")), "unigrams.bin"),
        _make_shards,
        _read_shards,
    ),
    Format("vector_files", ("vectors.txt", "vectors.gz"), _make_vectors, _read_vectors),
    Format(
        "search_index",
        ("index.json", "vectors.int8.npy", "scales.npy", "texts.jsonl", "texts.offsets.npy", "vectors.fp16.npy"),
        _make_index,
        _read_index,
    ),
    Format("tables", ("t.tsv", "t.csv", "t.jsonl", "t.json", "t.jsonl.xz"), _make_tables, _read_tables),
    Format(
        "task_files",
        ("groups.jsonl", "choices.jsonl", "sequences.jsonl", "squad.json", "tags.conll", "judgements.txt", "run.txt"),
        _make_tasks,
        _read_tasks,
    ),
    Format("corpus_files", ("a.txt", "b.jsonl", "c.xml", "d.txt.gz"), _make_corpus, _read_corpus),
    Format(
        "sentence_transformers",
        (*_JSON_OF_MODULES, "1_Pooling/config.json", "2_Dense/config.json", "2_Dense/model.safetensors"),
        _make_embedder,
        _read_embedder,
    ),
    Format("tuning_table", ("products.json",), _make_table, _read_tuning_table),
]
NAMED = {known.name: known for known in FORMATS}

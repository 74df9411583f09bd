"""`fastbert features`: write hidden states of chosen layers to a file, and compute Table 7 of the BERT paper."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from fastbert.cli.checks import check_examples, check_file, check_model, check_new_folder, check_texts
from fastbert.cli.counts import counted
from fastbert.cli.model_flags import InferenceFlags
from fastbert.errors import UserError
from fastbert.flags import DATA, MACHINE, MODEL, OUTPUT, TRAINING, rare, require, required
from fastbert.io.atomic_write import write_json_atomic
from fastbert.io.output_files import FEATURES, check_output
from fastbert.io.progress import Bars
from fastbert.tasks.text_files import TextFile
from fastbert.vectors import WordVectors

if TYPE_CHECKING:
    from fastbert.features.tagging import Table7Row
    from fastbert.models.encoder import EncoderModel
    from fastbert.tokenizers.tokenizer import Tokenizer

LAYER_NAMES = ("embeddings", "second-to-last", "last", "sum-last-four", "concat-last-four", "sum-all")
"""Those of fastbert.features.extract, which imports torch."""
EXAMPLES = (
    "fastbert features --model MiniLM --text sentences.txt --out features.npz --layers 0,-2,-1",
    "fastbert features --model MiniLM --table7 --train train.conll --eval dev.conll --out table7",
)


@dataclass(frozen=True, kw_only=True)
class _Data:
    """The texts, or the tagged sentences."""

    GROUP: ClassVar = DATA

    text: str | None = required("a file with the texts, or - for standard input", unless=("table7", "vectors"))
    """File with the texts: .txt, one per line; .jsonl, .csv or .tsv with --column; also .gz and .xz; - reads lines from
    standard input."""
    column: str | None = None
    """Key or column of the text in .jsonl, .csv and .tsv files (default: text)."""
    max_length: int | None = None
    """Tokens per model input (default: as many as the model allows); longer texts are split into parts."""
    train: str | None = required("sentences with tags", when="table7")
    """Tagged sentences to train on, CoNLL columns."""
    eval: str | None = required("sentences with tags", when="table7")
    """Tagged sentences to score on."""


@dataclass(frozen=True, kw_only=True)
class _Model:
    """The model, and which of its hidden states are written; or static vectors."""

    GROUP: ClassVar = MODEL

    model: str | None = required(
        "the folder of a trained model; or give --vectors to train taggers on", unless=("vectors",)
    )
    """Folder of the model, or its name in the Hub's cache."""
    vectors: Path | None = None
    """Static word vectors to train a tagger on instead of a model, as with --table7: a text file of word2vec or
    GloVe."""
    unknown: Literal["zero", "mean"] = rare("zero")
    """Vector of words that are not in --vectors, nor in lower case: zeros, or the mean of all vectors."""
    layers: str = "last"
    """embeddings, second-to-last, last, sum-last-four, concat-last-four, sum-all; or numbers such as 0,-2,-1 (0: the
    embeddings), which are concatenated."""
    per: Literal["token", "word"] = "token"
    """One vector per token, or per word, that of its first token (words are separated by spaces)."""


@dataclass(frozen=True, kw_only=True)
class _Training:
    """The taggers of --table7."""

    GROUP: ClassVar = TRAINING

    table7: bool = False
    """Train taggers on --train, score them on --eval, and print the table; --vectors implies it."""
    epochs: int = rare(10)
    """Passes over the training sentences per row; the best epoch on --eval counts."""
    batch_size: int = rare(32)
    """Sentences per step."""
    lr: float = rare(1e-3)
    """Adam's learning rate for the tagger."""
    hidden_size: int = rare(768)
    """Width of each of the BiLSTM's two layers, half of it from each direction."""
    seed: int = rare(0)
    """Seed of the tagger's weights, its dropout and the order of sentences."""


@dataclass(frozen=True, kw_only=True)
class _Output:
    """The file of features."""

    GROUP: ClassVar = OUTPUT

    out: Path | None = required("the file to write, .npy, .npz, .safetensors, .parquet or .jsonl")
    """File to write: .npy, .npz, .safetensors, .parquet or .jsonl; with --table7 a folder."""
    overwrite: bool = False
    """Replace the file if it exists."""


@dataclass(frozen=True, kw_only=True)
class _Machine(InferenceFlags):
    """Device and dtype."""

    GROUP: ClassVar = MACHINE

    dtype: Literal["auto", "fp32", "bf16"] = "auto"
    """Dtype of matmuls: auto is the faster of fp32 and bf16."""


@dataclass(frozen=True, kw_only=True)
class Config(_Machine, _Output, _Training, _Model, _Data):
    """Write hidden states of a frozen encoder, one vector per token or word of each text; or with --table7 train a
    BiLSTM tagger on six kinds of them, as in Table 7 of the BERT paper, or on static word vectors."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.is_table and (self.train is not None or self.eval is not None):
            raise UserError("--train and --eval require --table7; features are written for --text")
        if self.is_table and self.text is not None:
            flag = "--table7" if self.table7 else "--vectors"
            raise UserError(f"--text cannot be combined with {flag}, which reads --train and --eval")
        if self.vectors is not None and self.model is not None:
            raise UserError("--vectors takes the place of --model; leave one out")

    @property
    def is_table(self) -> bool:
        """Return whether taggers are trained, and no features of texts written."""
        return self.table7 or self.vectors is not None


def check(config: Config) -> None:
    """Raise `UserError` for what can be found wrong before torch is imported."""
    values = {} if config.vectors is not None else check_model("--model", require(config, "model"))
    check_file("--vectors", config.vectors)
    out = require(config, "out")
    if config.is_table:
        from fastbert.tasks.readers.conll import read_conll
        from fastbert.tasks.settings import Columns

        for name, path in (("--train", require(config, "train")), ("--eval", require(config, "eval"))):
            check_examples(name, path, "tagging", lambda path: read_conll(path, Columns(), labelled=True))
        check_new_folder("--out", out, parents=True)
        if (out / "table7.json").exists() and not config.overwrite:
            raise UserError(f"--out {out}: holds a table7.json; give another folder, or --overwrite to replace it")
        return
    _check_layers(config.layers, values.get("num_hidden_layers", values.get("n_layers")))
    check_texts("--text", require(config, "text"), config.column)
    check_output(out, FEATURES, config.overwrite, "--out")


def run(config: Config, *, quiet: bool = False) -> int:
    """Write the features, or train the taggers."""
    if config.is_table:
        return _run_table(config, quiet)
    source = require(config, "model")
    text = require(config, "text")
    out = require(config, "out")
    from fastbert.features.extract import extract_chunks
    from fastbert.features.files import FeatureFile

    file, texts = FeatureFile(out, overwrite=config.overwrite), TextFile(text, config.column)
    model, tokenizer, why = _load(config, source)
    with Bars(quiet) as bars, file:
        bars.message(f"{why}, {file.path}")
        update = bars.stage("features", texts.total_bytes, "texts")
        chunk_begin = chunk_end = 0  # bytes

        def progress(first: int, count: int, done: float) -> None:
            nonlocal chunk_begin, chunk_end
            if texts.position != chunk_end:
                chunk_begin, chunk_end = chunk_end, texts.position
            position = chunk_begin + done * (chunk_end - chunk_begin)
            update(position, f"{counted(file.items, config.per)} written", counted=first + done * count)

        chunks = extract_chunks(
            model,
            tokenizer,
            texts,
            parse_layers(config.layers),
            per=config.per,
            max_length=config.max_length,
            batch_tokens=config.batch_tokens,
            progress=progress,
        )
        began = time.perf_counter()
        for features in chunks:
            file.append(features)
        if not file.texts:
            raise UserError(f"{texts.name} holds no text")
        seconds = time.perf_counter() - began
    print(
        f"{counted(file.texts, 'text')}, {counted(file.items, config.per)}, {counted(file.width, 'number')} each:"
        f" {seconds:.1f} s, {file.texts / max(seconds, 1e-9):,.0f} texts/s"
    )
    return 0


def parse_layers(text: str) -> str | tuple[int, ...]:
    """Return a name unchanged, or numbers separated by commas as a tuple. Raises `UserError`."""
    if not any(character.isdigit() for character in text):
        if text not in LAYER_NAMES:
            raise UserError(f"--layers {text}: must be {', '.join(LAYER_NAMES)}, or numbers such as 0,-2,-1")
        return text
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise UserError(f"--layers {text}: give a name, or numbers separated by commas such as 0,-2,-1") from None


def _check_layers(text: str, count: object) -> None:
    """Raise `UserError` for layers that a model of `count` layers lacks, if the configuration tells it as a number."""
    layers = parse_layers(text)
    if isinstance(layers, tuple) and isinstance(count, int):
        for number in layers:
            if not -count - 1 <= number <= count:
                raise UserError(
                    f"--layers {text}: {number} is not a layer of the model, which has 0 (embeddings) to {count}"
                )


def _run_table(config: Config, quiet: bool) -> int:
    train, dev = require(config, "train"), require(config, "eval")
    out = require(config, "out")
    from fastbert.features.learned import tag_with_learned_vectors
    from fastbert.features.static import tag_with_vectors
    from fastbert.features.tagging import FeatureTraining, rows_of, table7
    from fastbert.tasks.readers.conll import read_conll
    from fastbert.tasks.settings import Columns

    training = FeatureTraining(
        hidden_size=config.hidden_size,
        epochs=config.epochs,
        batch_size=config.batch_size,
        lr=config.lr,
        seed=config.seed,
        max_length=config.max_length,
    )
    train_set, dev_set = (read_conll(path, Columns(), labelled=True) for path in (train, dev))
    sizes = f"{counted(len(train_set), 'sentence')} to train on, {len(dev_set):,} to score on"
    with Bars(quiet) as bars:
        done = 0

        def progress(name: str, epoch: int, f1: float) -> None:
            nonlocal done
            done += 1
            update(done, f"{name}, epoch {epoch}: {f1:.1f}")

        result: dict[str, Any] = {"kind": "table7"}
        if config.vectors is not None:
            vectors = WordVectors.load(config.vectors)
            bars.message(f"{counted(len(vectors), 'vector')} of {counted(vectors.size, 'number')}, {sizes}")
            update = bars.stage("training", config.epochs, "epochs")
            static = tag_with_vectors(vectors, train_set, dev_set, training, unknown=config.unknown, progress=progress)
            rows = [static.row]
            shares = {"unknown_train": static.unknown_train, "unknown_eval": static.unknown_dev}
            result |= {"vectors": str(config.vectors), "unknown": config.unknown, **shares}
            note = "\nwords without a vector: {:.1%} of --train, {:.1%} of --eval".format(*shares.values())
        else:
            result["model"] = source = require(config, "model")
            model, tokenizer, why = _load(config, source)
            bars.message(f"{why}, {sizes}")
            is_elmo = model.config.model_type == "elmo"
            update = bars.stage("training", (len(rows_of(model)) + is_elmo) * config.epochs, "epochs")
            rows, note = table7(model, tokenizer, train_set, dev_set, training, progress=progress), ""
            if is_elmo:  # the row without an ELMo
                size = model.config.hidden_size
                rows.insert(0, tag_with_learned_vectors(size, train_set, dev_set, training, progress=progress))
    out.mkdir(parents=True, exist_ok=True)
    result |= {"train": train, "eval": dev, "rows": [asdict(row) for row in rows]}
    write_json_atomic(out / "table7.json", result)
    print(describe(rows) + note)
    return 0


def describe(rows: list[Table7Row]) -> str:
    """Return the table as text."""
    width = max(len(row.name) for row in rows)
    score = f"dev {'F1' if rows[0].metric == 'f1' else rows[0].metric}"
    lines = [f"{row.name:<{width}}  {row.f1:{len(score)}.2f}" for row in rows]
    return "\n".join([f"{'features':<{width}}  {score}", *lines])


def _load(config: Config, source: str) -> tuple[EncoderModel, Tokenizer, str]:
    """Return the encoder on its device, its tokenizer, and a description of dtype and device."""
    from fastbert.checkpoints.source import find_source
    from fastbert.models import registry
    from fastbert.tasks.inference import choose_inference
    from fastbert.tokenizers.loading import load_tokenizer

    device, dtype, why = choose_inference(config.device, config.dtype)
    model = registry.load_encoder(source, dtype=dtype)
    return model.to(device), load_tokenizer(find_source(source)), f"{why} on {device}"

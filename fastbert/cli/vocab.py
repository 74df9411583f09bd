"""`fastbert vocab`: build a vocabulary of any kind from a corpus, measure one on a text, or extend one for a domain."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from fastbert.checkpoints.atomic_folder import atomic_folder
from fastbert.checkpoints.source import find_source
from fastbert.cli.checks import check_corpus, check_exists, check_new_folder, check_source
from fastbert.data.corpus import CorpusFlags
from fastbert.errors import UserError
from fastbert.flags import DATA, OUTPUT, require, required
from fastbert.flags import flag as flag_name
from fastbert.io.output_files import check_writable
from fastbert.io.progress import Bars
from fastbert.tokenizers.layouts import Kind, lower_cases
from fastbert.tokenizers.piece_training import check_kind_size

if TYPE_CHECKING:
    from fastbert.models.base import PreTrainedModel
    from fastbert.tokenizers.extension import Extension
    from fastbert.tokenizers.tokenizer import Tokenizer
    from fastbert.tokenizers.word_counts import Split, Words

REPORT = "vocab_report.json"
_VOCABULARY, _MIN_FREQUENCY, _MIN_FREQUENCY_OF_WORDS = 30_522, 2, 5
_TOKENIZER_FILES = ("vocab.txt", "tokenizer.json")
# Of a tokenizer that was in the folder before: readers would prefer them, or compare them with the new files.
_SUPERSEDED = (*_TOKENIZER_FILES, "vocab.json", "merges.txt", "added_tokens.json")

EXAMPLES = (
    "fastbert vocab --corpus my_text/ --out vocab",
    "fastbert vocab --corpus my_text/ --kind unigram --vocab-size 32000 --out vocab",
    "fastbert vocab --corpus my_text/ --model MiniLM --extend --out MiniLM-mine",
)


@dataclass(frozen=True, kw_only=True)
class _Data(CorpusFlags):
    """The corpus, and what is learned from it."""

    GROUP: ClassVar = DATA

    kind: Kind = "wordpiece"
    """Kind of the vocabulary: wordpiece in BERT's layout, byte-level bpe in RoBERTa's, or unigram in XLM-RoBERTa's."""
    vocab_size: int | None = None
    """Entries, special tokens included (default: 30522)."""
    cased: bool = False
    """Keep capitals and accents, as bpe and unigram always do without --lower-case."""
    lower_case: bool = False
    """Lower-case text and remove accents, as wordpiece always does without --cased."""
    min_frequency: int | None = None
    """Drop pieces of wordpiece and bpe that occur less often (default: 2); with --extend, words (default: 5)."""
    validation_fraction: float = 0.05
    """Fraction of the documents held out to measure on; 0 learns from all documents and measures on them."""


@dataclass(frozen=True, kw_only=True)
class _Extension:
    """The tokenizer and model to extend."""

    GROUP: ClassVar = "Existing tokenizer"

    tokenizer: Path | None = None
    """Folder, tokenizer.json or vocab.txt of a vocabulary to measure, or to extend."""
    extend: bool = False
    """Add the words of the corpus whose splitting costs most tokens to --tokenizer; without --out only list them."""
    model: Path | None = None
    """With --extend: folder of the model to extend, too; its tokenizer is the default of --tokenizer."""
    add: int | Literal["auto"] = "auto"
    """With --extend: number of words to add; auto stops when the next 100 would save less than 0.1 % of the tokens."""
    keep_unused: bool = False
    """With --extend: append all words, instead of filling WordPiece's [unusedN] entries first."""


@dataclass(frozen=True, kw_only=True)
class _Output:
    """The folder of the vocabulary."""

    GROUP: ClassVar = OUTPUT

    out: Path | None = required("the folder to write the vocabulary to", unless=("tokenizer", "extend"))
    """Folder for the tokenizer's files, the report, and the model with --model."""
    report: Path | None = None
    """JSON file for the report (default: vocab_report.json in --out)."""
    overwrite: bool = False
    """Replace an existing vocabulary."""


@dataclass(frozen=True, kw_only=True)
class Config(_Output, _Extension, _Data):
    """Build a vocabulary (--kind wordpiece, bpe or unigram) and report how well it covers held-out text; the same
    corpus always gives the same files. With --tokenizer: measure an existing one instead. With --tokenizer and
    --extend: add the words of a domain to it, and to --model."""

    @property
    def entries(self) -> int:
        """Return the size of a new vocabulary."""
        return _VOCABULARY if self.vocab_size is None else self.vocab_size

    def __post_init__(self) -> None:
        if not 0 <= self.validation_fraction < 1:
            raise UserError(f"--validation-fraction {self.validation_fraction} must be from 0 to below 1")
        if self.min_frequency is not None and self.min_frequency < 1:
            raise UserError(f"--min-frequency {self.min_frequency} must be at least 1")
        if not self.extend:
            for flag, is_set in (("model", self.model), ("add", self.add != "auto"), ("keep-unused", self.keep_unused)):
                if is_set:
                    raise UserError(f"--{flag} requires --extend; add that, or leave --{flag} out")
        elif self.add != "auto" and self.add < 1:
            raise UserError(f"--add {self.add} must be at least 1, or auto")
        if self.tokenizer is not None and not self.extend and self.out is not None:
            raise UserError(
                "--tokenizer is measured, not built, so --out has no effect; use --report FILE, or --extend"
            )
        lower_cases(self.kind, cased=self.cased, lower_case=self.lower_case)
        if self.tokenizer is not None or self.extend:
            for flag, is_set in (
                ("cased", self.cased),
                ("lower-case", self.lower_case),
                (f"vocab-size {self.vocab_size}", self.vocab_size is not None),
                (f"kind {self.kind}", self.kind != "wordpiece"),
            ):
                if is_set:
                    raise UserError(f"--{flag} is for a new vocabulary; that of --tokenizer has its own setting")
            if not self.extend and self.min_frequency is not None:
                raise UserError("--min-frequency is for a new vocabulary, or --extend; leave it out to measure one")
        elif self.kind == "unigram" and self.min_frequency is not None:
            raise UserError("--min-frequency is for --kind wordpiece and bpe; unigram has no such limit, leave it out")


def check(config: Config) -> None:
    """Raise `UserError` for what can be found wrong before torch is imported."""
    if config.tokenizer is None and not config.extend:
        check_kind_size(config.kind, config.entries)
    check_corpus(config)
    check_exists("--tokenizer", config.tokenizer)
    check_source("--model", config.model)
    check_new_folder("--out", config.out, parents=True)
    if config.report is not None:
        check_writable(config.report, "--report")


def run(config: Config, *, quiet: bool = False) -> int:
    """Build, measure or extend a vocabulary."""
    require(config, "corpus")
    if config.model is not None:
        config = replace(config, model=find_source(config.model))
    if config.extend:
        _extend(config, quiet)
    elif config.tokenizer is not None:
        _measure(config, quiet)
    else:
        _build(config, quiet)
    return 0


def _build(config: Config, quiet: bool) -> None:
    from fastbert.cli import vocab_view as view
    from fastbert.tokenizers import coverage, piece_training

    out = require(config, "out")
    _refuse_present(out, _TOKENIZER_FILES, config.overwrite)
    lower_case = lower_cases(config.kind, cased=config.cased, lower_case=config.lower_case)
    with Bars(quiet) as bars:
        words = piece_training.words_of_kind(config.kind, lower_case)
        split = _count(config, bars, words, config.validation_fraction)
        beat = bars.waiting("learning pieces")
        tokenizer = piece_training.learn_tokenizer(
            split.learn.words,
            config.kind,
            config.entries,
            lower_case=lower_case,
            min_frequency=config.min_frequency or _MIN_FREQUENCY,
            heartbeat=beat,
        )
        beat(0.0, done=True)
        measured = coverage.measure_coverage(tokenizer, split.held_out)
    report = {"kind": "vocabulary", **_source(config, split), "coverage": measured.to_dict()}
    with atomic_folder(out, superseded=_SUPERSEDED) as folder:
        tokenizer.save_pretrained(folder)
        report_file = _write_report(config, report, folder)
    print(
        f"{out}/{view.vocabulary_file(tokenizer)}: {tokenizer.vocab_size:,} entries\n\n"
        f"{view.coverage_table(measured, split.unit)}\n\n"
        f"report: {report_file or out / REPORT}\n"
        f"{_next_command(config, out)}"
    )


def _measure(config: Config, quiet: bool) -> None:
    from fastbert.cli.vocab_view import coverage_table
    from fastbert.tokenizers import coverage, word_counts

    tokenizer = _read_tokenizer(config)
    with Bars(quiet) as bars:
        split = _count(config, bars, word_counts.words_of(tokenizer), 0.0)
        measured = coverage.measure_coverage(tokenizer, split.held_out)
    file = _write_report(config, {"kind": "vocabulary", **_source(config, split), "coverage": measured.to_dict()}, None)
    print(f"{config.tokenizer}: {tokenizer.vocab_size:,} entries\n\n{coverage_table(measured, 'all')}")
    if file is not None:
        print(f"\nreport: {file}")


def _extend(config: Config, quiet: bool) -> None:
    from fastbert.cli import vocab_view as view
    from fastbert.tokenizers import coverage, word_counts
    from fastbert.tokenizers.extension import extend_for, propose

    tokenizer = _read_tokenizer(config)
    model = None
    if config.model is not None:
        if config.out is None:
            raise UserError("--out is missing: the folder to write the extended tokenizer and model to")
        model = _read_model(config.model, tokenizer)
    if config.out is not None:
        written = _TOKENIZER_FILES + (("config.json", "model.safetensors") if config.model is not None else ())
        _refuse_present(config.out, written, config.overwrite, model is not None)
    with Bars(quiet) as bars:
        split = _count(config, bars, word_counts.words_of(tokenizer), config.validation_fraction)
        working = bars.waiting("tokenizing its words")
        proposal = propose(tokenizer, split.learn.words, min_frequency=config.min_frequency or _MIN_FREQUENCY_OF_WORDS)
        rows = proposal.worth if config.add == "auto" else min(config.add, len(proposal.candidates))
        chosen = proposal.candidates[:rows]
        extension, changed = extend_for(tokenizer, chosen, split.learn.words, keep_unused=config.keep_unused)
        before = coverage.measure_coverage(tokenizer, split.held_out)
        after = coverage.measure_coverage(extension.tokenizer, split.held_out)
        working(0.0, done=True)
    print(view.proposal_table(proposal, rows, split.learn.total_words))
    print(view.choice(proposal, rows, config.add))
    if not extension.entries:
        print("nothing to extend: no file was written")
        return
    print(view.effect(before, after, changed, split))
    report = {
        "kind": "extension",
        **_source(config, split),
        "before": before.to_dict(),
        "after": after.to_dict(),
        "extension": view.extension_record(proposal, extension, changed),
    }
    if config.out is not None:
        file = _save_extension(config, config.out, extension, model, report)
        print(view.written(config.out, extension, model))
        print(f"report: {file}")
        print(_next_command(config, config.out))
        return
    named = _write_report(config, report, None)
    print((f"report: {named}\n" if named else "") + "next: the same command with --out FOLDER writes the tokenizer")


def _save_extension(
    config: Config, out: Path, extension: Extension, model: PreTrainedModel | None, report: dict[str, Any]
) -> Path:
    """Write tokenizer, report and model; return the path of the report."""
    with atomic_folder(out, superseded=_SUPERSEDED) as folder:
        extension.tokenizer.save_pretrained(folder)
        named = _write_report(config, report, folder)
        if config.model is not None and model is not None:
            from fastbert.models.vocabulary_extension import extend_embeddings, save_like

            extend_embeddings(model, extension)
            save_like(model, config.model, folder)
    return named or out / REPORT


def _read_tokenizer(config: Config) -> Tokenizer:
    from fastbert.tokenizers.loading import load_tokenizer
    from fastbert.tokenizers.words import WordTokenizer

    folder = config.tokenizer or config.model
    if folder is None:
        raise UserError("--tokenizer is missing: the folder or vocab.txt of the tokenizer to extend")
    tokenizer = load_tokenizer(folder)
    if isinstance(tokenizer, WordTokenizer):
        raise UserError(f"{folder}: holds a tokenizer of words for ELMo, which has no pieces to measure or extend")
    return tokenizer


def _read_model(folder: Path, tokenizer: Tokenizer) -> PreTrainedModel:
    """Read the model, before the corpus, so that a wrong one is reported at once."""
    from fastbert.checkpoints.manifest import check_fingerprint
    from fastbert.models import registry
    from fastbert.models.vocabulary_extension import check_sizes

    check_sizes(registry.read_config(folder).vocab_size, tokenizer.vocab_size, f"--model {folder}")
    check_fingerprint(folder, tokenizer.fingerprint, "--tokenizer")
    return registry.load(folder)


def _count(config: Config, bars: Bars, words: Words, holdout: float) -> Split:
    from fastbert.tokenizers.word_counts import count_documents

    corpus = config.find_corpus()
    total = corpus.total_bytes
    update = bars.stage("reading", total)

    def progress(done: int) -> None:
        update(done, f"{done / 1e6:,.1f} of {total / 1e6:,.1f} MB")

    return count_documents(corpus.documents(progress), words, holdout=holdout)


def _source(config: Config, split: Split) -> dict[str, Any]:
    """Return the corpus and the held-out part, for the report."""
    return {
        "corpus": [str(path) for path in config.corpus],
        "held_out": split.unit,
        "learned_from": {"documents": split.learn.documents, "words": split.learn.total_words},
    }


def _next_command(config: Config, out: Path) -> str:
    corpus = shlex.join(map(str, config.corpus))
    for name in ("text_format", "text_key"):
        value, default = getattr(config, name), getattr(CorpusFlags, name)
        corpus += "" if value == default else f" {flag_name(name)} {shlex.quote(str(value))}"
    if config.model is not None:
        return f"next: fastbert pretrain --init {shlex.quote(str(out))} --corpus {corpus} --out runs/mine"
    return f"next: fastbert prepare --corpus {corpus} --tokenizer {shlex.quote(str(out))} --out shards"


def _write_report(config: Config, report: dict[str, Any], folder: Path | None) -> Path | None:
    """Write the report to --report, else into the output folder; return the value of --report."""
    from fastbert.tokenizers.coverage import write_report

    if config.report is None and folder is not None:
        write_report(folder / REPORT, report)
    elif config.report is not None:
        write_report(config.report, report)
    return config.report


def _refuse_present(out: Path, names: tuple[str, ...], overwrite: bool, with_model: bool = False) -> None:
    present = [name for name in names if (out / name).exists()]
    if present and not overwrite:
        raise UserError(f"--out {out}: already holds a {present[0]}; replace it with --overwrite")
    if out.exists() and not out.is_dir():
        raise UserError(f"--out {out}: is a file; name a folder")
    if (out / "model.safetensors").exists() and not with_model:
        raise UserError(
            f"--out {out}: holds a model, which would not fit a different vocabulary; choose another folder, or"
            " --extend it with --model"
        )

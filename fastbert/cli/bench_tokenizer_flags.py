"""The flags of `fastbert bench tokenizer` and `fastbert bench tokenizers`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from fastbert.cli.bench_flags import BenchFlags, MachineFlags, MeasurementFlags
from fastbert.flags import DATA, MACHINE


@dataclass(frozen=True, kw_only=True)
class _TokenizerData:
    """The texts."""

    GROUP: ClassVar = DATA

    data: Path | None = None
    """Folder of real text and vocabularies (default: FASTBERT_DATA, else the text that comes with Python)."""
    text: Path | None = None
    """Your own text instead, one text per line; needs --vocab."""
    vocab: Path | None = None
    """The vocab.txt for --text."""
    megabytes: float | None = None
    """Maximum size of each text in MB (default: 8; with --quick 1)."""


@dataclass(frozen=True, kw_only=True)
class _TokenizerMeasurement(MeasurementFlags):
    """The measurements and their settings."""

    GROUP: ClassVar = MeasurementFlags.GROUP

    contenders: tuple[str, ...] = ()
    """Contenders: fastbert nanotoken flash_tokenizer huggingface (default: all that are installed)."""
    rounds: int | None = None
    """Timed calls per contender (default: 5; with --quick 3)."""
    measures: tuple[str, ...] = ()
    """Measures: cold warm padded aligned threads load memory hostile (default: all)."""


@dataclass(frozen=True, kw_only=True)
class _TokenizerMachine(MachineFlags):
    """The threads."""

    GROUP: ClassVar = MACHINE

    threads: int | None = None
    """Number of threads to compare with one (default: 2)."""


@dataclass(frozen=True, kw_only=True)
class TokenizerConfig(_TokenizerMachine, _TokenizerMeasurement, _TokenizerData, BenchFlags):
    """Compare WordPiece tokenizers: ids first, then megabytes of text per second."""

    MODULE: ClassVar[str] = "bench_tokenizer"


@dataclass(frozen=True, kw_only=True)
class _TokenizersData:
    """The tokenizers and texts."""

    GROUP: ClassVar = DATA

    data: Path | None = None
    """Folder of real text and tokenizers (default: FASTBERT_DATA, else the text that comes with Python)."""
    families: tuple[str, ...] = ()
    """Only tokenizers with one of these parts in their name: gpt2 roberta-base modernbert-base xlm-roberta-base
    deberta-v3-base albert-base-v2; without data BPE Unigram (default: all)."""
    folder: Path | None = None
    """Folder of your own tokenizer instead, with a tokenizer.json of BPE or Unigram; needs --text."""
    text: Path | None = None
    """Text for --folder, one text per line."""
    megabytes: float | None = None
    """Maximum size of each text in MB (default: 8; with --quick 0.25)."""


@dataclass(frozen=True, kw_only=True)
class _TokenizersMeasurement(MeasurementFlags):
    """The measurements and their settings."""

    GROUP: ClassVar = MeasurementFlags.GROUP

    contenders: tuple[str, ...] = ()
    """Contenders: fastbert huggingface gigatoken fastokens splintr tokie iree kitoken tiktoken sentencepiece (default:
    all that are installed)."""
    rounds: int | None = None
    """Timed calls per contender (default: 5; with --quick 3)."""
    measures: tuple[str, ...] = ()
    """Measures: cold warm load memory hostile (default: all)."""
    hostile: int | None = None
    """Number of hostile texts per tokenizer (default: 200; with --quick one of each kind)."""


@dataclass(frozen=True, kw_only=True)
class _TokenizersMachine(MachineFlags):
    """The threads."""

    GROUP: ClassVar = MACHINE

    threads: int | None = None
    """Threads of every contender (default: 1)."""


@dataclass(frozen=True, kw_only=True)
class TokenizersConfig(_TokenizersMachine, _TokenizersMeasurement, _TokenizersData, BenchFlags):
    """Compare tokenizers of byte-level BPE and Unigram: ids first, then megabytes of text per second."""

    MODULE: ClassVar[str] = "bench_tokenizers"

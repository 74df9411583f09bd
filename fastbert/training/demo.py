"""The demonstration: pre-train a small BERT on text that ships with Python, in minutes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from itertools import chain, count
from pathlib import Path

from fastbert.config import BertConfig
from fastbert.data.corpus import Corpus
from fastbert.data.python_text import python_documents
from fastbert.errors import UserError
from fastbert.io.atomic_write import atomic_write, write_json_atomic
from fastbert.io.locations import LocationText
from fastbert.models import BertForPreTraining
from fastbert.tasks.fill_mask import Guess, fill_mask
from fastbert.tokenizers import WordPieceTokenizer
from fastbert.training.config import PretrainConfig
from fastbert.training.pretrain import PretrainResult, pretrain
from fastbert.training.reporter import Reporter

# Tuned for the lowest loss that two CPU cores reach within the time, from normal initial weights. Against the 4-layer
# "mini" at length 128: half the layers process twice the text, and the pieces of a small vocabulary occur often enough
# to be learned.
SHAPE = BertConfig(vocab_size=2048, hidden_size=256, num_hidden_layers=2, num_attention_heads=4, intermediate_size=1024)
BATCH_SIZE = 32
MAX_LENGTH = 64
LEARNING_RATE = 1e-3
TOKEN_BUDGET = 4_000_000
MINUTES = 2.5
CORPUS_BYTES = 6_000_000
# On topics of the Python text.
PROMPTS = (
    "If the file does not exist, an exception is [MASK].",
    "Return a new [MASK] with the given shape and type.",
    "The default value of this [MASK] is None.",
)
BLANKS_SHOWN = 3
WORDS_IN_PROMPT = range(7, 16)


@dataclass(frozen=True)
class DemoResult:
    """The pre-training result, and the model's candidates for the blank of each prompt."""

    run: PretrainResult
    blanks: list[tuple[str, list[Guess]]]


def run_demo(
    out: Path,
    *,
    corpus: tuple[LocationText, ...] = (),
    minutes: float | None = None,
    steps: int | None = None,
    seed: int = 0,
    overwrite: bool = False,
    reporter: Reporter | None = None,
) -> DemoResult:
    """Pre-train a 2-layer, 256-wide BERT into `out` and fill in three blanks.

    Without `corpus` the text is the English that ships with Python, written to `out/corpus.txt`. Training ends after a
    fixed budget of 4 million tokens or 2.5 minutes, whichever comes first; `minutes` or `steps` replace that budget.
    """
    reporter = reporter or Reporter()
    if steps is None and minutes is None:
        steps = round(TOKEN_BUDGET / (BATCH_SIZE * MAX_LENGTH * 0.86))  # not every sequence is full
        minutes = MINUTES
    paths = corpus
    if not corpus:
        if (out / "config.json").exists() and not overwrite:  # before anything is written into the folder
            raise UserError(f"--out {out}: already holds a run; choose another --out, or replace it with --overwrite")
        report = reporter.on_stage("reading Python's own text", CORPUS_BYTES)
        paths = (LocationText(str(write_corpus(python_documents(CORPUS_BYTES), out / "corpus.txt", report))),)
    shape = out / "shape.json"
    out.mkdir(parents=True, exist_ok=True)
    write_json_atomic(shape, asdict(SHAPE))
    config = PretrainConfig(
        corpus=paths,
        text_format="auto" if corpus else "lines",
        model=str(shape),
        out=out,
        vocab_size=SHAPE.vocab_size,
        batch_size=BATCH_SIZE,
        max_length=MAX_LENGTH,
        lr=LEARNING_RATE,
        steps=steps,
        hours=None if minutes is None else minutes / 60,
        eval_samples=512,
        seed=seed,
        overwrite=overwrite,
    )
    result = pretrain(config, reporter)
    tokenizer = WordPieceTokenizer.from_pretrained(result.model)
    model = BertForPreTraining.from_pretrained(result.model)
    prompts = prompts_from(Corpus.find(paths), tokenizer) if corpus else PROMPTS
    return DemoResult(result, [(prompt, fill_mask(model, tokenizer, prompt, top_k=4)[0]) for prompt in prompts])


def free_folder(base: Path) -> Path:
    """Return `base`, or `base-2`, `base-3`, ...: the first that does not exist."""
    numbered = (base.with_name(f"{base.name}-{number}") for number in count(2))
    return next(folder for folder in chain([base], numbered) if not folder.exists())


def write_corpus(documents: Iterable[list[str]], path: Path, report: Callable[[int], None]) -> Path:
    """Write documents to a text file: one sentence per line, a blank line between documents."""
    path.parent.mkdir(parents=True, exist_ok=True)
    written = 0
    with atomic_write(path) as partial, partial.open("w", encoding="utf-8") as file:
        for document in documents:
            written += file.write("\n".join(document) + "\n\n")
            report(written)
    return path


def prompts_from(corpus: Corpus, tokenizer: WordPieceTokenizer) -> list[str]:
    """Return the first sentences of medium length in a corpus, each with its longest known word masked."""
    prompts: list[str] = []
    for document in corpus.documents():
        for sentence in document:
            words = sentence.split()
            known = [word for word in words[1:-1] if len(tokenizer.tokenize(word)) == 1]
            if len(words) in WORDS_IN_PROMPT and known and "[" not in sentence:
                longest = max(known, key=len)
                prompts.append(
                    " ".join("[MASK]" if i == words.index(longest) else word for i, word in enumerate(words))
                )
                break
        if len(prompts) == BLANKS_SHOWN:
            break
    return prompts

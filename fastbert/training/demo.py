"""The demonstration: a small BERT pre-trained on text that every machine has, in minutes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from fastbert.data.corpus import Corpus
from fastbert.data.python_text import python_documents
from fastbert.errors import UserError
from fastbert.models.heads import BertForPreTraining
from fastbert.tasks.fill_mask import Guess, fill_mask
from fastbert.tokenizers import WordPieceTokenizer
from fastbert.training.config import PretrainConfig
from fastbert.training.loop import Reporter
from fastbert.training.pretrain import PretrainResult, pretrain

# Tuned on two CPU cores for the lowest validation loss within the time: docs/demo.md tells what was tried.
MODEL = "mini"
VOCAB_SIZE = 8192
BATCH_SIZE = 32
MAX_LENGTH = 128
LEARNING_RATE = 1e-3
TOKEN_BUDGET = 1_800_000
MINUTES = 2.5
CORPUS_BYTES = 6_000_000
# The prompts are about what the Python text speaks of.
PROMPTS = (
    "If the file does not exist, an exception is [MASK].",
    "Return a new [MASK] with the given shape and type.",
    "The default value of this [MASK] is None.",
)
BLANKS_SHOWN = 3
WORDS_IN_PROMPT = range(7, 16)


@dataclass(frozen=True)
class DemoResult:
    """The pre-training result, and what the model put in the blanks of each prompt."""

    run: PretrainResult
    blanks: list[tuple[str, list[Guess]]]


def run_demo(
    out: Path,
    *,
    corpus: tuple[Path, ...] = (),
    minutes: float | None = None,
    steps: int | None = None,
    seed: int = 0,
    overwrite: bool = False,
    reporter: Reporter | None = None,
) -> DemoResult:
    """Pre-train a 4-layer, 256-wide BERT into `out` and fill in three blanks.

    Without `corpus` the text is the English that ships with Python, written to `out/corpus.txt`. Training ends after a
    fixed budget of 1.8 million tokens or 2.5 minutes, whichever comes first; `minutes` or `steps` replace that budget.
    """
    if minutes is not None and minutes <= 0:
        raise UserError(f"--minutes {minutes} must be above 0")
    reporter = reporter or Reporter()
    if steps is None and minutes is None:
        steps = round(TOKEN_BUDGET / (BATCH_SIZE * MAX_LENGTH * 0.95))  # one sequence in ten is shorter
        minutes = MINUTES
    paths = corpus
    if not corpus:
        refuse_existing(out, overwrite)
        paths = (write_corpus(python_documents(CORPUS_BYTES), out / "corpus.txt"),)
    config = PretrainConfig(
        corpus=paths,
        text_format="auto" if corpus else "lines",
        model=MODEL,
        out=out,
        vocab_size=VOCAB_SIZE,
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
    blanks = [(prompt, fill_mask(model, tokenizer, prompt, top_k=4)[0]) for prompt in prompts]
    return DemoResult(result, blanks)


def refuse_existing(out: Path, overwrite: bool) -> None:
    """Raise `UserError` before anything is written into a folder that holds a run."""
    if (out / "config.json").exists() and not overwrite:
        raise UserError(f"--out {out}: already holds a run; choose another --out, or replace it with --overwrite")


def free_folder(base: Path) -> Path:
    """`base`, or `base-2`, `base-3`, ...: the first that does not exist yet."""
    number, folder = 1, base
    while folder.exists():
        number += 1
        folder = base.with_name(f"{base.name}-{number}")
    return folder


def write_corpus(documents: Iterable[list[str]], path: Path) -> Path:
    """Write documents as a text file, a sentence per line and a blank line between documents."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    with partial.open("w", encoding="utf-8") as file:
        for document in documents:
            file.write("\n".join(document) + "\n\n")
    partial.replace(path)
    return path


def prompts_from(corpus: Corpus, tokenizer: WordPieceTokenizer) -> list[str]:
    """The first sentences of medium length in a corpus, each with its longest known word blanked."""
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

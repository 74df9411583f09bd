"""The tasks of `fastbert evaluate` that need no fine-tuning: minimal pairs, perplexities and held-out losses."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from fastbert.cli.checks import check_corpus_paths, check_folder, check_model, check_new_folder, check_texts, named
from fastbert.cli.counts import counted
from fastbert.data.corpus import Corpus, TextFormat
from fastbert.errors import CorpusError, UserError
from fastbert.flags import flag, rare
from fastbert.io.atomic_write import atomic_write, write_json_atomic
from fastbert.io.locations import LocationText
from fastbert.io.output_files import check_output
from fastbert.io.progress import Bars
from fastbert.scoring.blimp import Paradigm, ParadigmScores, accuracies, read_pairs, score_pairs, table
from fastbert.tasks.text_files import TextFile

if TYPE_CHECKING:
    from fastbert.data.pretraining import PretrainingData
    from fastbert.scoring.log_likelihood import CausalScorer
    from fastbert.scoring.pseudo_log_likelihood import MaskedScorer
    from fastbert.scoring.tokenized_texts import Scorer

# Tasks of fastbert.cli.retrieval_task, which share two flags.
RETRIEVAL = ("retrieval", "reranking")
# What other tasks are scored by.
SCORED_FILES = ("gold", "predictions", "glue", "report", "no_answer")
MAX_LENGTH = 128
# Name -> what it needs.
LANGUAGE_MODEL_TASKS = {
    "blimp": "BLiMP's folder or file",
    "pseudo-perplexity": "a file of texts",
    "mlm": "text, or token shards with --data",
    "nsp": "text, or token shards with --data",
}
_SOURCES = {"blimp": ("data",), "pseudo-perplexity": ("text",), "mlm": ("corpus", "data"), "nsp": ("corpus", "data")}
_FLAGS = {
    "data": ("blimp", "mlm", "nsp", *RETRIEVAL),
    "text": ("pseudo-perplexity",),
    "corpus": ("mlm", "nsp"),
    "out": ("blimp", "pseudo-perplexity", *RETRIEVAL),
    "ngram": ("blimp",),
    "limit": ("blimp",),
    "score_mode": ("blimp", "pseudo-perplexity"),
    "max_length": ("mlm", "nsp", *RETRIEVAL),
    "mask_prob": ("mlm", "nsp"),
    "seed": ("mlm", "nsp"),
}
RESULTS, SCORES = "results.json", "scores.jsonl"


@dataclass(frozen=True, kw_only=True)
class LanguageModelFlags:
    """The texts that score a language model without fine-tuning."""

    GROUP: ClassVar = "Language models (--task blimp, pseudo-perplexity, mlm, nsp)"

    data: Path | None = None
    """For blimp: folder, file or archive of BLiMP's pairs, .jsonl or .tsv, also .gz, .xz and .tar of these. For mlm and
    nsp: token shards of `fastbert prepare`. For retrieval and reranking: folder in BEIR's layout."""
    text: str | None = None
    """For pseudo-perplexity: file with texts, .txt, one per line, or .jsonl, .csv or .tsv with --text-column; also .gz
    and .xz."""
    corpus: tuple[LocationText, ...] = ()
    """For mlm and nsp: text, files, folders, globs or URLs, as --corpus of `fastbert pretrain`."""
    ngram: tuple[LocationText, ...] = ()
    """For blimp: text, as --corpus, to train a 5-gram model on, which is scored beside the model."""
    limit: int | None = None
    """For blimp: pairs per paradigm (default: all)."""
    out: Path | None = None
    """For blimp: folder to write results.json and scores.jsonl to; for pseudo-perplexity: .jsonl file of the texts'
    scores; for retrieval and reranking: .jsonl file of the queries' metrics."""
    overwrite: bool = False
    """Replace what --out names if it exists."""
    score_mode: Literal["original", "within-word"] = rare("original")
    """Tokens that are masked to score one: itself, or with within-word also the later tokens of its word."""
    max_length: int | None = rare(None)
    """Tokens per sample of mlm and nsp (default: 128), per text or pair of retrieval and reranking (default: the
    folder's)."""
    mask_prob: float = rare(0.15)
    """Fraction of tokens that mlm and nsp mask."""
    seed: int = rare(0)
    """Seed of the samples and masks of mlm and nsp."""
    text_format: TextFormat = rare("auto")
    """Layout of --corpus and --ngram: one sentence per line, one paragraph per line, or wrapped prose; auto detects it
    for each file."""
    text_key: str = rare("text")
    """Key of the text in .jsonl files of --corpus and --ngram, and its column in .parquet and .arrow files."""


def check_flags(config: Any, task: str | None) -> None:
    """Raise `UserError` for flags that do not fit the task, before any file is read."""
    refuse_flags(config, task, _FLAGS, LanguageModelFlags())
    if task not in LANGUAGE_MODEL_TASKS:
        return
    refuse_scored_files(config, task)
    if config.model is None:
        raise UserError("--model is missing: the folder of a pre-trained model, or of its run")
    sources = [name for name in _SOURCES[task] if getattr(config, name)]
    if not sources:
        raise UserError(f"{flag(_SOURCES[task][0])} is missing: {LANGUAGE_MODEL_TASKS[task]}")
    if len(sources) > 1:
        raise UserError("give either --corpus or --data, not both")
    for name in ("limit", "max_length"):
        value = getattr(config, name)
        if value is not None and value < 1:
            raise UserError(f"{flag(name)} {value} must be at least 1")


def refuse_flags(config: Any, task: str | None, flags: Mapping[str, tuple[str, ...]], defaults: Any) -> None:
    """Raise `UserError` for the first of some flags, which belong to tasks, that differs from its default although the
    task is a different one."""
    for name, tasks in flags.items():
        if getattr(config, name) != getattr(defaults, name) and task not in tasks:
            other = f", not for {task}; leave it out" if task is not None else "; name the task"
            raise UserError(f"{flag(name)} is for --task {' or '.join(tasks)}{other}")


def refuse_scored_files(config: Any, task: str) -> None:
    """Raise `UserError` for flags of files of predictions and of fine-tuned models."""
    for name in SCORED_FILES:
        if getattr(config, name) is not None:
            raise UserError(f"{flag(name)} is for files of predictions and fine-tuned models, not for --task {task}")


def check_files(config: Any) -> None:
    """Raise `UserError` for what can be found wrong with files and folders before torch is imported."""
    check_model("--model", config.model)
    if config.task == "blimp":
        with named("--data"):
            read_pairs(config.data, 1)
        if config.ngram:
            check_corpus_paths(config.ngram, "--ngram")
        if config.out is not None:
            check_new_folder("--out", config.out, parents=True)
            if any((config.out / name).exists() for name in (RESULTS, SCORES)) and not config.overwrite:
                raise UserError(f"--out {config.out}: holds results; give another folder, or --overwrite")
    elif config.task == "pseudo-perplexity":
        check_texts("--text", config.text, config.text_column)
        if config.out is not None:
            check_output(config.out, (".jsonl",), config.overwrite, "--out")
    elif config.corpus:
        check_corpus_paths(config.corpus)
    else:
        check_folder("--data", config.data)


def evaluate(config: Any, quiet: bool) -> dict[str, Any]:
    """Score the model on its task, print the figures, and return them."""
    tasks: dict[str, Callable[[Any, Bars], dict[str, Any]]] = {"blimp": _blimp, "pseudo-perplexity": _perplexity}
    with Bars(quiet) as bars:
        results = tasks.get(config.task, _held_out)(config, bars)
    text = results.pop("text")
    print(text)
    if config.out is not None:
        print(f"scores: {config.out}")
    return results


def _load(config: Any, bars: Bars) -> tuple[MaskedScorer | CausalScorer, dict[str, Any]]:
    """Return the scorer of the model, and what it computes on."""
    from fastbert.scoring.scorer import load_scorer

    device, dtype, why = _inference(config)
    scorer = load_scorer(
        config.model, device, dtype, config.score_mode, config.batch_tokens, quantize=config.dtype == "int8"
    )
    bars.message(f"{type(scorer.model).__name__}, {why} on {device}")
    return scorer, describe_machine(device, config.dtype)


def _inference(config: Any) -> tuple[str, Any, str]:
    """Return device and dtype: fp32 unless another one was chosen, so that scores are the same everywhere."""
    from fastbert.tasks.inference import choose_inference

    return choose_inference(config.device, "fp32" if config.dtype == "auto" else config.dtype)


def describe_machine(device: str, dtype: str) -> dict[str, Any]:
    """Return device and dtype, CPU, threads, GPU and versions, as results hold them."""
    import torch

    from fastbert.doctor import examine

    diagnosis = examine()
    return {
        "device": device,
        "dtype": "fp32" if dtype == "auto" else dtype,
        "cpu": diagnosis.cpu.model,
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if device == "cuda" else None,
        "versions": {name: version for name, version in diagnosis.versions.items() if version is not None},
    }


def _blimp(config: Any, bars: Bars) -> dict[str, Any]:
    paradigms = read_pairs(config.data, config.limit)
    scorer, machine = _load(config, bars)
    pairs = sum(len(paradigm.pairs) for paradigm in paradigms)
    bars.message(f"{counted(pairs, 'pair')} in {counted(len(paradigms), 'paradigm')}")

    def scored(scorer: Scorer, name: str) -> tuple[list[ParadigmScores], float]:
        update, began = bars.stage(name, 1.0, "pairs"), time.perf_counter()
        scores = score_pairs(scorer, paradigms, lambda part: update(part, counted=part * pairs))
        return scores, time.perf_counter() - began

    scores, seconds = scored(scorer, "scoring")
    all_scores, results = {"model": scores}, {"model": accuracies(scores)}
    content: dict[str, Any] = {"task": "blimp", "model": config.model, "data": str(config.data), "limit": config.limit}
    content |= {"score_mode": config.score_mode, **results["model"], "seconds": round(seconds, 3), "machine": machine}
    if config.ngram:
        ngram, described = _ngram(config, scorer, bars)
        all_scores["ngram"], _ = scored(ngram, "scoring by n-grams")
        results["ngram"] = accuracies(all_scores["ngram"])
        content["ngram"] = described | results["ngram"]
    if config.out is not None:
        config.out.mkdir(parents=True, exist_ok=True)
        _write_scores(config.out / SCORES, paradigms, all_scores)
        write_json_atomic(config.out / RESULTS, content)
    lines = [table(results, paradigms), f"{counted(pairs, 'pair')} in {seconds:.1f} s"]
    for name, result in results.items():
        if result["ties"]:
            lines.append(f"{name}: {counted(result['ties'], 'pair')} with equal scores, which count as wrong")
    return content | {"text": "\n".join(lines)}


def _ngram(config: Any, scorer: Scorer, bars: Bars) -> tuple[Scorer, dict[str, Any]]:
    """Train the n-gram model of --ngram; return it and its description."""
    from fastbert.scoring.ngram import train_ngrams

    corpus = Corpus.find(config.ngram, text_format=config.text_format, text_key=config.text_key)
    update = bars.stage("n-grams", corpus.total_bytes)
    sentences = (sentence for document in corpus.documents(update) for sentence in document)
    model = train_ngrams(sentences, scorer.tokenizer)
    update.end()
    bars.message(f"{model.order}-grams of {counted(model.tokens, 'token')}")
    described = {"corpus": list(map(str, config.ngram)), "order": model.order, "tokens": model.tokens}
    return model, described | {"sizes": model.sizes}


def _write_scores(path: Path, paradigms: list[Paradigm], scores: Mapping[str, list[ParadigmScores]]) -> None:
    """Write one object per pair: the score of its acceptable and its unacceptable sentence, by model."""
    with atomic_write(path) as partial, partial.open("w", encoding="utf-8") as file:
        for index, paradigm in enumerate(paradigms):
            for number in range(len(paradigm.pairs)):
                record: dict[str, Any] = {"paradigm": paradigm.name, "pair": number}
                for name, each in scores.items():
                    values = (float(each[index].good[number]), float(each[index].bad[number]))
                    record[name] = [round(value, 6) for value in values]
                file.write(json.dumps(record) + "\n")


def _perplexity(config: Any, bars: Bars) -> dict[str, Any]:
    from fastbert.scoring.text_scores import TextTotals, score_texts

    texts, totals = TextFile(config.text, config.text_column), TextTotals()
    scorer, machine = _load(config, bars)
    update, began = bars.stage("scoring", None, "texts"), time.perf_counter()

    def source(index: int) -> str:
        return f"{texts.name}, line {index + 1}" if texts.kind == ".txt" else f"{texts.name}, text {index + 1}"

    with ExitStack() as stack:
        file = None
        if config.out is not None:
            partial = stack.enter_context(atomic_write(config.out))
            file = stack.enter_context(partial.open("w", encoding="utf-8"))
        for score in score_texts(scorer, texts, totals, source, update):
            if file is not None:
                file.write(json.dumps(score.record()) + "\n")
    update.end()
    seconds = time.perf_counter() - began
    name = "perplexity" if scorer.model.base_model.causal else "pseudo-perplexity"
    figures = {
        name: totals.perplexity,
        "bits per character": totals.bits_per_character,
        "log-probability": totals.log_probability,
    }
    counts = {"texts": totals.texts, "empty": totals.empty, "tokens": totals.tokens, "characters": totals.characters}
    return {
        "task": config.task,
        "model": config.model,
        "data": config.text,
        "score_mode": config.score_mode,
        **{key.replace(" ", "_").replace("-", "_"): value for key, value in figures.items()},
        **counts,
        "seconds": round(seconds, 3),
        "machine": machine,
        "text": _lines(figures, f"{counted(totals.texts, 'text')}, {counted(totals.tokens, 'token')}", seconds),
    }


def _held_out(config: Any, bars: Bars) -> dict[str, Any]:
    from fastbert.scoring.held_out import masked_lm, next_sentence
    from fastbert.scoring.scorer import load_with_trained_head
    from fastbert.tokenizers.fit import check_tokenizer

    device, dtype, why = _inference(config)
    masked = config.task == "mlm"
    model, tokenizer = load_with_trained_head(
        config.model, "ForMaskedLM" if masked else "ForNextSentencePrediction", dtype
    )
    check_tokenizer(tokenizer, model.config.vocab_size, str(config.model))
    model = model.to(device)
    if config.dtype == "int8":
        model.quantize("int8")
    bars.message(f"{type(model).__name__}, {why} on {device}")
    with tempfile.TemporaryDirectory(prefix="fastbert-evaluate-") as folder:
        data = _pretraining_data(config, tokenizer, Path(folder), bars)
        update, began = bars.stage("scoring", 1.0, "samples"), time.perf_counter()
        samples = data.samples_per_epoch(0)
        measure = masked_lm if masked else next_sentence
        result = measure(model, data, config.batch_tokens, lambda part: update(part, counted=part * samples))
        seconds = time.perf_counter() - began
    figures = {
        "loss": result.loss,
        **({"perplexity": result.perplexity} if masked else {}),
        "accuracy": result.accuracy,
    }
    shown = {"accuracy, %" if name == "accuracy" else name: value for name, value in figures.items()}
    counts = {"predictions": result.predictions, "samples": result.samples, "tokens": result.tokens}
    what = f"{counted(result.predictions, 'masked token')} in {counted(result.samples, 'sample')}"
    return {
        "task": config.task,
        "model": config.model,
        "data": str(config.data) if config.data is not None else list(map(str, config.corpus)),
        "max_length": config.max_length or MAX_LENGTH,
        **{name: getattr(config, name) for name in ("mask_prob", "seed")},
        **figures,
        **counts,
        "seconds": round(seconds, 3),
        "machine": describe_machine(device, config.dtype),
        "text": _lines(shown, what if masked else counted(result.predictions, "pair"), seconds),
    }


def _pretraining_data(config: Any, tokenizer: Any, folder: Path, bars: Bars) -> PretrainingData:
    """Return all documents of --data or --corpus as samples of pre-training."""
    from fastbert.data.prepare import prepare
    from fastbert.data.pretraining import PretrainingData
    from fastbert.data.shards import TokenShards

    if config.data is not None:
        shards = TokenShards.open(config.data)
        if shards.fingerprint != tokenizer.fingerprint:
            raise UserError(
                f"--data {config.data}: was tokenized with a different vocabulary than that of {config.model}; prepare"
                " it with the model's tokenizer, or give --corpus"
            )
    else:
        corpus = Corpus.find(config.corpus, text_format=config.text_format, text_key=config.text_key)
        update = bars.stage("tokenizing", corpus.total_bytes)
        shards = prepare(corpus, tokenizer, folder / "shards", progress=lambda done, _: update(done))
    source = f"--corpus {' '.join(map(str, config.corpus))}" if config.data is None else f"--data {config.data}"
    if config.task == "nsp" and len(shards.document_ranges()) < 2:
        raise UserError(
            f"{source}: holds one document, and next-sentence pairs need a second one for their negatives; separate"
            " documents by blank lines, or add text"
        )
    try:
        return PretrainingData(
            shards,
            objective="mlm" if config.task == "mlm" else "mlm+nsp",
            max_length=config.max_length or MAX_LENGTH,
            short_sequence_prob=0.0,
            mask_prob=config.mask_prob,
            seed=config.seed,
            validation_fraction=0.0,
        )
    except CorpusError as error:  # which names the folder of the shards, perhaps a temporary one
        raise UserError(str(error).replace(str(shards.folder), source)) from None


def _lines(figures: Mapping[str, float], what: str, seconds: float) -> str:
    width = max(map(len, figures))
    return "\n".join(
        [*(f"{name:<{width}}  {value:>11.4f}" for name, value in figures.items()), f"{what} in {seconds:.1f} s"]
    )

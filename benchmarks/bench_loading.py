"""Compare loading with transformers, from `from_pretrained` to the first output: seconds, and peak memory.

    python benchmarks/bench_loading.py --quick
    python benchmarks/bench_loading.py --model base --rounds 9 --json rows.json

Every measurement runs in a new process, in turns: libraries are imported first, then the clock starts, the model is
loaded, and one batch computed. The file is in the page cache. Memory is the growth of the process at its peak, mapped
files included. Outputs are compared before anything is reported.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fastbert.benchmarks.harness import child_process, process_memory, records
from fastbert.benchmarks.harness.measure import FASTBERT, Row, Timing, make_rows
from fastbert.config import PRESETS, BertConfig

PEER = "transformers"
# Lengths of the computed sequences; none: loading alone.
WORKLOADS = {
    "load": (),
    "first-sentence": (16,),
    "first-batch": (128, 17, 64, 33, 96, 24, 80, 48, 12, 110, 56, 40, 72, 20, 30, 100),
}
CLOSE = 2e-5


@dataclass(frozen=True, kw_only=True)
class Options:
    """The selection and size of the measurement."""

    model: str
    threads: int
    rounds: int
    json: Path | None


def measure(options: Options, folder: Path) -> list[Row]:
    """Return the rows of all workloads; exit if a contender's output differs."""
    rows: list[Row] = []
    for workload in WORKLOADS:
        measured: dict[str, list[dict[str, Any]]] = {FASTBERT: [], PEER: []}
        for _ in range(options.rounds):
            for contender, runs in measured.items():
                runs.append(_in_a_process(contender, workload, folder, options.threads))
        actual, expected = (np.asarray(measured[name][0]["output"], np.float32) for name in (FASTBERT, PEER))
        difference = float(np.abs(actual - expected).max(initial=0.0))
        if difference > CLOSE:
            sys.exit(f"{workload}: outputs differ by {difference:.2g}: there is nothing to compare")
        timings = {name: [Timing(run["seconds"], run["processor"]) for run in runs] for name, runs in measured.items()}
        workload_rows = make_rows(
            workload,
            timings,
            dtype="fp32",
            threads=options.threads,
            differences=dict.fromkeys(timings, difference),
            outputs=dict.fromkeys(timings, "close" if WORKLOADS[workload] else "not compared"),
        )
        for row in workload_rows:
            peak = max(run["peak_bytes"] for run in measured[row.contender])
            weights = measured[row.contender][0]["weight_bytes"]
            details = {"model": options.model, "peak_bytes": peak, "peak_to_weights": round(peak / weights, 3)}
            rows.append(replace(row, details={**row.details, **details}))
    return rows


def _in_a_process(contender: str, workload: str, folder: Path, threads: int) -> dict[str, Any]:
    environment = {"OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1"}
    words = (contender, workload, folder, threads)
    return child_process.answer_of("fastbert.benchmarks.bench_loading", words, f"{contender}, {workload}", environment)


def child(contender: str, workload: str, folder: str, threads: str) -> dict[str, Any]:
    """Load the model, compute once; return time, memory and output."""
    import torch

    torch.set_num_threads(int(threads))
    if contender == FASTBERT:
        from fastbert import BertModel as Model
    else:
        from transformers import AutoModel
        from transformers.models.bert.modeling_bert import BertModel as Model

        assert issubclass(Model, torch.nn.Module)
        Model = AutoModel
    lengths = WORKLOADS[workload]
    width = max(lengths, default=0)
    mask = (torch.arange(width) < torch.tensor(lengths)[:, None]).long() if lengths else None
    ids = torch.randint(1000, 30000, (len(lengths), width), generator=torch.Generator().manual_seed(0))
    process_memory.forget_high_water()
    before, start, processor = process_memory.high_water(), time.perf_counter(), time.process_time()
    model = Model.from_pretrained(folder)
    output = torch.empty(0, 0)
    if mask is not None:
        with torch.no_grad():
            output = model(input_ids=ids, attention_mask=mask).last_hidden_state[mask.bool()]
    seconds, processor = time.perf_counter() - start, time.process_time() - processor
    return {
        "seconds": seconds,
        "processor": processor,
        "peak_bytes": (process_memory.high_water() or 0) - (before or 0),
        "weight_bytes": sum(parameter.nbytes for parameter in model.parameters()),
        "output": output[::16, ::32].flatten().tolist(),
    }


def show(rows: Sequence[Row]) -> None:
    """Print a table."""
    print(f"{'workload':<16}{'contender':<14}{'ms':>8}{'p20':>8}{'p80':>8}{'ratio':>8}{'peak / weights':>16}")
    for row in rows:
        print(
            f"{row.workload:<16}{row.contender:<14}{row.median_ms:>8.0f}{row.p20:>8.0f}{row.p80:>8.0f}"
            f"{row.ratio_to_fastbert or 0:>8.2f}{row.details['peak_to_weights']:>16.2f}"
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    argv = list(sys.argv[1:] if arguments is None else arguments)
    if child_process.answered(argv, child):
        return 0
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the mini model, three rounds")
    parser.add_argument("--model", choices=sorted(PRESETS), help="size of the model (default: base)")
    parser.add_argument("--threads", type=int, help="threads of both (default: all cores)")
    parser.add_argument("--rounds", type=int, help="processes of each (default: 7)")
    parser.add_argument("--json", type=Path, help="file to write the rows to")
    flags = parser.parse_args(argv)
    options = Options(
        model=flags.model or ("mini" if flags.quick else "base"),
        threads=flags.threads or len(os.sched_getaffinity(0)),
        rounds=flags.rounds or (3 if flags.quick else 7),
        json=flags.json,
    )
    from fastbert.benchmarks.bench_encoder import save_model

    with tempfile.TemporaryDirectory(prefix="fastbert-bench-") as temporary:
        rows = measure(options, save_model(Path(temporary), BertConfig.preset(options.model)))
    show(rows)
    if options.json is not None:
        records.write(options.json, records.record("loading", map(asdict, rows)))
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Compare greedy generation by GPT-2 with transformers' `generate`, on the CPU: texts first, then tokens per second.

    python benchmarks/bench_generation.py --quick
    python benchmarks/bench_generation.py --threads 2 --json rows.json --chart rows.png
    python benchmarks/bench_generation.py --workloads "small, batch 16" --contenders bf16

Each call continues prompts of 16 random tokens by 256 tokens. Models have random weights, which both libraries read
from one file. Each generated token is compared with the most probable one of a forward pass without a cache. `--quick`
measures the mini model and 64 new tokens; `--model` is not used. docs/performance-cpu.md describes the measurement.
"""

from __future__ import annotations

import importlib.util
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from fastbert import cpu_capability
from fastbert.benchmarks.cpu import command, report
from fastbert.benchmarks.cpu.command import CpuOptions, choose
from fastbert.benchmarks.cpu.lineup import Absent, Result, with_ratios
from fastbert.benchmarks.harness import command_line
from fastbert.benchmarks.harness.command_line import Progress, Say
from fastbert.benchmarks.harness.measure import Row, interleave, make_rows, timed
from fastbert.benchmarks.harness.suite import Call, Case, Workshop
from fastbert.errors import UserError

KIND = "generation"
PACKAGES = ("fastbert-engine", "torch", "transformers")
PROMPT, NEW_TOKENS, QUICK_TOKENS = 16, 256, 64
SEED = 20
BATCHES = (1, 16)
# Fields of GPT2Config.
SHAPES: dict[str, dict[str, int]] = {
    "mini": {
        "vocab_size": 30522, "hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4,
        "intermediate_size": 1024,
    },
    "small": {
        "vocab_size": 50257, "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12,
        "intermediate_size": 3072,
    },
}  # fmt: skip
FASTBERT, PEER, UNCACHED = "fastbert", "transformers", "uncached fastbert"
# Dtype by contender.
CONTENDERS = {f"{name} {dtype}": dtype for dtype in ("fp32", "bf16") for name in (FASTBERT, PEER)}
CONTENDERS[f"{UNCACHED} fp32"] = "fp32"
# A token may differ from the most probable one if its logit is that close, in standard deviations of all logits: such
# tokens are exchanged by rounding.
CLOSE = {"fp32": 1e-3, "bf16": 0.1}


@dataclass(frozen=True, kw_only=True)
class Options(CpuOptions):
    """The selection and size of the measurement: `quick` measures the mini model and 64 new tokens."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.model is not None:
            raise UserError("--model names an encoder: choose the shape with --workloads mini or --workloads small")
        choose("contender", list(CONTENDERS), self.contenders)
        self.selected()

    def selected(self) -> list[str]:
        """Return the names of the workloads."""
        shapes = ["mini"] if self.quick else list(SHAPES)
        return choose("workload", [f"{shape}, batch {batch}" for shape in shapes for batch in BATCHES], self.workloads)

    @property
    def new_tokens(self) -> int:
        """Return the number of generated tokens per prompt."""
        return QUICK_TOKENS if self.quick else NEW_TOKENS


class Verdict(NamedTuple):
    """The comparison of texts: equal or close, the largest gap of a logit, and the share of equal tokens."""

    outputs: str
    gap: float
    equal: float


def run(options: Options, say: Say, progress: Progress | None = None) -> Result:
    """Measure. `say` receives lines for the user; `progress` the completed steps, all steps and the next one's name."""
    import torch

    cpu_capability.current()  # raises for a wrong FASTBERT_CPU
    progress = progress or (lambda *_: None)
    names, result = options.selected(), Result()
    before = torch.get_num_threads()
    torch.set_num_threads(options.thread_count)
    try:
        for shape in dict.fromkeys(name.split(",")[0] for name in names):
            with tempfile.TemporaryDirectory(prefix="fastbert-bench-") as folder:
                models = _Models(Path(folder), shape, options, say)
                for name in [name for name in names if name.startswith(f"{shape},")]:
                    progress(names.index(name), len(names), name)
                    measured = models.measure(name, int(name.rsplit(" ", 1)[1]), options)
                    result.rows += measured.rows
                    result.absent += measured.absent
    finally:
        torch.set_num_threads(before)
    progress(len(names), len(names), "")
    return result


class _Models:
    """The models of one shape, by library and dtype, with the same weights."""

    def __init__(self, folder: Path, shape: str, options: Options, say: Say) -> None:
        import fastbert

        self.shape, self.say = shape, say
        _save(folder, shape)
        chosen = choose("contender", list(CONTENDERS), options.contenders)
        self.reference: Any = fastbert.load(folder).eval()
        self.models: dict[str, Any] = {}
        self.absent: dict[str, str] = {}
        for name in chosen:
            if name.startswith(PEER) and importlib.util.find_spec(PEER) is None:
                self.absent[name] = f"not installed (no module {PEER})"
                continue
            self.models[name] = _load(folder, name, self.reference)

    def measure(self, workload: str, batch: int, options: Options) -> Result:
        """Compare the texts of every contender, then time them in turns."""
        count, prompts = options.new_tokens, _prompts(self.shape, batch)
        calls: dict[str, Callable[[], Any]] = {
            name: _call(name, model, prompts, count)
            for name, model in self.models.items()
            if batch == 1 or not name.startswith(UNCACHED)  # seconds per text
        }
        verdicts = {name: self._verdict(name, call(), prompts) for name, call in calls.items()}
        for name, verdict in verdicts.items():
            if verdict.outputs not in ("equal", "close"):
                self.say(f"{name}: {workload}: {verdict.outputs}")
        timings = interleave({name: timed(call) for name, call in calls.items()}, options.round_count)
        rows = make_rows(
            workload,
            timings,
            dtype=CONTENDERS,
            threads=options.thread_count,
            tokens=batch * count,
            differences={name: verdict.gap for name, verdict in verdicts.items()},
            outputs={name: verdict.outputs for name, verdict in verdicts.items()},
        )
        rows = [_with_work(row, verdicts[row.contender], self.reference, batch, count) for row in rows]
        missing = [Absent(workload, name, CONTENDERS[name], reason) for name, reason in self.absent.items()]
        return Result(with_ratios(rows), missing)

    def _verdict(self, name: str, texts: Any, prompts: Any) -> Verdict:
        """Return whether each token of `texts` int64 (rows, count) is the most probable one, or nearly, of the fp32
        model without a cache after the same tokens."""
        import torch

        close, gap, equal = CLOSE[CONTENDERS[name]], 0.0, 0
        for prompt, text in zip(prompts, texts, strict=True):
            whole = torch.cat((prompt, text))[None, :-1]
            with torch.no_grad():
                logits = self.reference(input_ids=whole).logits[0, len(prompt) - 1 :].double()
            best = logits.max(-1)
            behind = (best.values - logits.gather(1, text[:, None])[:, 0]) / logits.std(-1)
            gap, equal = max(gap, float(behind.max())), equal + int((best.indices == text).sum())
        share = equal / texts.numel()
        if gap > close:
            return Verdict(f"a token is {gap:.3g} deviations behind the most probable", gap, share)
        return Verdict("equal" if share == 1 else "close", float(f"{gap:.3g}"), round(share, 5))


def _save(folder: Path, shape: str) -> Path:
    """Write a model with random weights; return its folder."""
    import torch

    import fastbert
    from fastbert.models.gpt2.config import GPT2Config

    torch.manual_seed(SEED)
    fastbert.GPT2LMHeadModel(GPT2Config(**SHAPES[shape])).save_pretrained(folder)
    return folder


def _prompts(shape: str, batch: int) -> Any:
    """Return random prompts, int64 (batch, PROMPT)."""
    import torch

    generator = torch.Generator().manual_seed(SEED + batch)
    return torch.randint(0, SHAPES[shape]["vocab_size"], (batch, PROMPT), generator=generator)


def _load(folder: Path, name: str, reference: Any) -> Any:
    """Return a contender's model."""
    import torch

    import fastbert

    dtype = torch.float32 if CONTENDERS[name] == "fp32" else torch.bfloat16
    if not name.startswith(PEER):
        return reference if dtype == torch.float32 else fastbert.load(folder).eval().to(dtype)
    from transformers import GPT2LMHeadModel
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    return GPT2LMHeadModel.from_pretrained(folder).eval().to(dtype)


def _call(name: str, model: Any, prompts: Any, count: int) -> Callable[[], Any]:
    """Return the function that generates `count` tokens per prompt, int64 (rows, count)."""
    import torch

    from fastbert.models.causal_generation import NO_END, TextSettings, generate

    if name.startswith(UNCACHED):
        return lambda: without_cache(model, prompts, count)
    if name.startswith(FASTBERT):
        settings = TextSettings(max_new_tokens=count)
        return lambda: torch.tensor(generate(model, prompts, settings=settings, end=NO_END).tokens)

    def peer() -> Any:
        mask = torch.ones_like(prompts)
        with torch.no_grad():
            texts = model.generate(
                prompts, attention_mask=mask, max_new_tokens=count, min_new_tokens=count, do_sample=False,
                pad_token_id=0,
            )  # fmt: skip
        return texts[:, prompts.shape[1] :]

    return peer


def without_cache(model: Any, prompts: Any, count: int) -> Any:
    """Return greedy texts, int64 (rows, count), of which every token costs a forward pass over all before it."""
    import torch

    from fastbert.ops.native.matmul_table import same_in_every_batch
    from fastbert.packing import unpad

    ids = prompts
    with torch.no_grad(), same_in_every_batch():
        for _ in range(count):
            batch = unpad(ids, torch.ones_like(ids))[0]
            states, _ = model.base_model.encode(batch, causal=True, token_indices=batch.cu_seqlens[1:].long() - 1)
            ids = torch.cat((ids, model.head(states).argmax(-1)[:, None]), dim=1)
    return ids[:, prompts.shape[1] :]


def _with_work(row: Row, verdict: Verdict, model: Any, batch: int, count: int) -> Row:
    """Return the row with its rate of multiplications and additions in matmuls with weights, one pass per token."""
    weights = sum(parameter.numel() for parameter in model.parameters() if parameter.dim() == 2)
    # The position table is looked up; the token table is the last matmul.
    weights -= model.base_model.embeddings.position_embeddings.weight.numel()
    operations = 2.0 * weights * batch * count
    details = {
        "workload": f"{PROMPT} tokens continued by {count}",
        "gflops": float(f"{operations / (row.median_ms / 1e3) / 1e9:.4g}"),
        "equal_tokens": verdict.equal,
        "milliseconds_per_step": float(f"{row.median_ms / count:.5g}"),
        "weight_gigabytes_per_second": float(
            f"{weights * (4 if row.dtype == 'fp32' else 2) * count / (row.median_ms / 1e3) / 1e9:.4g}"
        ),
    }
    return replace(row, details={**row.details, **details})


show: Callable[..., None] = report.show


def publish(result: Result, options: Options, json: Path | None, chart: Path | None) -> None:
    """Write the results to the requested files."""
    what = "Greedy generation by GPT-2"
    command.publish(result, options, json, chart, benchmark=KIND, packages=PACKAGES, what=what)


def cases(full: bool) -> list[Case]:
    """Return the cases of `pytest benchmarks`."""
    options = Options(quick=not full)
    return [
        Case(
            benchmark=KIND, workload=workload, contender=name, dtype=dtype, open=partial(_open, options, workload, name)
        )
        for workload in options.selected()
        for name, dtype in CONTENDERS.items()
        if name.startswith(FASTBERT)
    ]


def _open(options: Options, workload: str, name: str, workshop: Workshop) -> Call:
    """Return the generation of a workload's texts."""
    import fastbert

    shape, batch = workload.split(",")[0], int(workload.rsplit(" ", 1)[1])
    folder = workshop.once(shape, partial(_save, shape=shape))
    model = _load(folder, name, fastbert.load(folder).eval())
    run = _call(name, model, _prompts(shape, batch), options.new_tokens)
    return Call(run=run, tokens=batch * options.new_tokens)


def test_speed(case: Case, measured: Callable[[Case], None]) -> None:
    """Time one case with pytest-benchmark."""
    measured(case)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    parser = command.parser(__doc__, quick="the mini model, 64 new tokens, three rounds", model="not used here")
    return command_line.execute(parser, arguments, Options, run, show, publish)


if __name__ == "__main__":
    sys.exit(main())

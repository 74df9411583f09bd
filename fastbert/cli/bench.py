"""`fastbert bench`: measure speed against the alternatives: table, JSON, chart; a sub-command per workload.

`all` runs every benchmark, and `compare` reads two measurements.
"""

from __future__ import annotations

import difflib
import tempfile
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from fastbert.cli.bench_flags import (
    BenchFlags,
    EmbedConfig,
    EncoderConfig,
    GenerationConfig,
    KernelsConfig,
    LoadingConfig,
    RerankConfig,
    ScalingConfig,
    ServingConfig,
    TrainingConfig,
)
from fastbert.cli.bench_record import RecordConfig
from fastbert.cli.bench_suite_flags import AllConfig, CompareConfig
from fastbert.cli.bench_tokenizer_flags import TokenizerConfig, TokenizersConfig
from fastbert.cli.checks import check_exists, check_file, check_new_file, check_new_folder
from fastbert.errors import UserError
from fastbert.flags import require
from fastbert.io.progress import Bars

BENCHMARKS: dict[str, tuple[type[BenchFlags], str]] = {
    "tokenizer": (TokenizerConfig, "WordPiece tokenizers: ids, then MB of text per second"),
    "tokenizers": (TokenizersConfig, "BPE and Unigram tokenizers: ids, then MB of text per second"),
    "kernels": (KernelsConfig, "single operations: values, then GFLOP/s and GB/s"),
    "encoder": (EncoderConfig, "encoders: hidden states, then tokens per second and latency"),
    "training": (TrainingConfig, "training steps: losses and gradients, then speed and memory"),
    "embed": (EmbedConfig, "embeddings from text to vector: vectors, then texts per second"),
    "rerank": (RerankConfig, "cross-encoders from text to scores: scores, then milliseconds"),
    "generation": (GenerationConfig, "generation by GPT-2: texts, then tokens per second"),
    "loading": (LoadingConfig, "from a file to the first output: outputs, then time and memory"),
    "scaling": (ScalingConfig, "speed over threads, and two processes on the same cores"),
    "serving": (ServingConfig, "servers: vectors, then requests per second and latency"),
}
SUBCOMMANDS: dict[str, tuple[type[Any], str]] = {
    **BENCHMARKS,
    "record": (RecordConfig, "this processor's records: those missing or older than their code"),
    "all": (AllConfig, "every benchmark, one after the other"),
    "compare": (CompareConfig, "two measurements: what became slower or faster beyond noise"),
}
ALIASES = {"serve": "serving"}  # the command that is measured -> the benchmark's name

EXAMPLES: dict[str, tuple[str, ...]] = {
    "tokenizer": ("fastbert bench tokenizer --quick", "fastbert bench tokenizer --text my.txt --vocab vocab.txt"),
    "tokenizers": ("fastbert bench tokenizers --quick", "fastbert bench tokenizers --families gpt2 --measures warm"),
    "kernels": ("fastbert bench kernels --quick", "fastbert bench kernels --workloads attention layer-norm"),
    "encoder": ("fastbert bench encoder --quick", "fastbert bench encoder --model base --chart encoder.png"),
    "training": ("fastbert bench training --quick", "fastbert bench training --workloads finetune --json rows.json"),
    "embed": ("fastbert bench embed --quick", "fastbert bench embed --folder MiniLM --text my.txt"),
    "rerank": ("fastbert bench rerank --quick", "fastbert bench rerank --threads 2 --contenders fastbert openvino"),
    "generation": ("fastbert bench generation --quick", "fastbert bench generation --workloads small --json rows.json"),
    "loading": ("fastbert bench loading --quick", "fastbert bench loading --model base --workloads first-sentence"),
    "scaling": ("fastbert bench scaling --quick", "fastbert bench scaling --workloads lognormal --json rows.json"),
    "serving": ("fastbert bench serving --quick", "fastbert bench serving --workloads single --infinity ENVIRONMENT"),
    "record": ("fastbert bench record --list", "fastbert bench record --only encoder matmuls --minutes 30"),
    "all": ("fastbert bench all --quick --json before", "fastbert bench all --quick --compare before"),
    "compare": (
        "fastbert bench compare before.json after.json",
        "fastbert bench compare benchmarks/results/encoder/amx.json rows.json",
    ),
}
EXAMPLES |= {alias: EXAMPLES[name] for alias, name in ALIASES.items()}


def overview() -> str:
    """Return the sub-commands, one per line, and the shortest useful call."""
    width = max(map(len, SUBCOMMANDS)) + 2
    names = "\n".join(f"  {name:<{width}}{description}" for name, (_, description) in SUBCOMMANDS.items())
    return (
        f"usage: fastbert bench WHAT [FLAGS]\n\n{names}\n\n"
        "fastbert is measured beside every alternative that is installed; outputs are\n"
        "compared before anything is timed. `fastbert bench WHAT --help` shows the flags.\n\n"
        "About a minute: fastbert bench tokenizer --quick"
    )


def subcommand(what: str) -> type[Any]:
    """Return the flags of a sub-command. Raises `UserError` for an unknown one."""
    what = ALIASES.get(what, what)
    if what in SUBCOMMANDS:
        return SUBCOMMANDS[what][0]
    close = difflib.get_close_matches(what, [*SUBCOMMANDS, *ALIASES], n=1)
    hint = f"did you mean `fastbert bench {close[0]}`?" if close else "`fastbert bench` describes them"
    problem = "comes before the workload" if what.startswith("-") else "is not a workload"
    raise UserError(f"bench {what!r}: {problem}; choose one of {', '.join(SUBCOMMANDS)} ({hint})")


def check(config: BenchFlags | RecordConfig | AllConfig | CompareConfig) -> None:
    """Raise `UserError` for what can be found wrong before torch is imported."""
    if isinstance(config, RecordConfig):
        return
    if isinstance(config, CompareConfig):
        if len(require(config, "files")) != 2:
            raise UserError(f"FILES {' '.join(map(str, config.files))}: must be two, the earlier and the later one")
        for file in config.files:
            check_file("FILES", file)
        return
    if isinstance(config, AllConfig):
        check_new_folder("--json", config.json)
        check_exists("--compare", config.compare)
        for name in config.only:
            if ALIASES.get(name, name) not in BENCHMARKS:
                raise UserError(f"--only {name}: is not a benchmark; choose from {', '.join(BENCHMARKS)}")
        return
    check_new_file("--json", config.json)
    check_new_file("--chart", config.chart)
    check_file("--compare", config.compare)


def run(config: BenchFlags | RecordConfig | AllConfig | CompareConfig, *, quiet: bool = False) -> int:
    """Measure, print the table, write the files, or make records; return 1 if something became slower than in
    `--compare`. SIGTERM meanwhile ends what was started."""
    # By name, since fastbert.benchmarks lies outside of the package in the source tree.
    with import_module("fastbert.benchmarks.harness.termination").sigterm_raises():
        return _run(config, quiet)


def _run(config: BenchFlags | RecordConfig | AllConfig | CompareConfig, quiet: bool) -> int:
    comparison = import_module("fastbert.benchmarks.harness.comparison")
    if isinstance(config, CompareConfig):
        compared = comparison.compare(*map(comparison.read, config.files))
        comparison.show(compared)
        return int(compared.exit_code)
    if isinstance(config, AllConfig):
        bench_all = import_module("fastbert.benchmarks.bench_all")
        only = [ALIASES.get(name, name) for name in config.only]
        names = [name for name in BENCHMARKS if not only or name in only]
        return int(bench_all.run(names, bench_all.Options(**vars(config))))
    bench = import_module(f"fastbert.benchmarks.{config.MODULE}")
    options = bench.Options(**config.options())
    if isinstance(config, RecordConfig):
        return int(bench.run(options, partial(print, flush=True)))
    import_module("fastbert.benchmarks.harness.command_line").check_files(config.json, config.chart)
    old = None if config.compare is None else comparison.read_for(config.compare, config.benchmark)
    with Bars(quiet) as bars:
        import_module("fastbert.benchmarks.harness.quietness").warn(bars.message, config.threads)
        result = bench.run(options, bars.message, partial(bars.count, "measuring", unit="workloads"))
    bench.show(result)
    bench.publish(result, options, config.json, config.chart)
    if old is None:
        return 0
    with tempfile.TemporaryDirectory(prefix="fastbert-bench-") as folder:
        file = config.json or Path(folder) / "rows.json"
        if config.json is None:
            bench.publish(result, options, file, None)
        compared = comparison.compare(old, comparison.read(file))
    comparison.show(compared)
    return int(compared.exit_code)

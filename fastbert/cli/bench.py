"""`fastbert bench`: measure speed against the alternatives: table, JSON, chart; a sub-command per workload."""

from __future__ import annotations

import difflib
from functools import partial
from importlib import import_module

from fastbert.cli.bench_flags import (
    BenchFlags,
    EmbedConfig,
    EncoderConfig,
    GenerationConfig,
    RerankConfig,
    ServingConfig,
    TokenizerConfig,
    TokenizersConfig,
    TrainingConfig,
)
from fastbert.cli.bench_record import RecordConfig
from fastbert.cli.checks import check_new_file
from fastbert.errors import UserError
from fastbert.io.progress import Bars

SUBCOMMANDS: dict[str, tuple[type[BenchFlags | RecordConfig], str]] = {
    "tokenizer": (TokenizerConfig, "WordPiece tokenizers: ids, then MB of text per second"),
    "tokenizers": (TokenizersConfig, "BPE and Unigram tokenizers: ids, then MB of text per second"),
    "encoder": (EncoderConfig, "encoders: hidden states, then tokens per second and latency"),
    "training": (TrainingConfig, "training steps: losses and gradients, then speed and memory"),
    "embed": (EmbedConfig, "embeddings from text to vector: vectors, then texts per second"),
    "rerank": (RerankConfig, "cross-encoders from text to scores: scores, then milliseconds"),
    "generation": (GenerationConfig, "generation by GPT-2: texts, then tokens per second"),
    "serving": (ServingConfig, "servers: vectors, then requests per second and latency"),
    "record": (RecordConfig, "this processor's records: those missing or older than their code"),
}

EXAMPLES: dict[str, tuple[str, ...]] = {
    "tokenizer": ("fastbert bench tokenizer --quick", "fastbert bench tokenizer --text my.txt --vocab vocab.txt"),
    "tokenizers": ("fastbert bench tokenizers --quick", "fastbert bench tokenizers --families gpt2 --measures warm"),
    "encoder": ("fastbert bench encoder --quick", "fastbert bench encoder --model base --chart encoder.png"),
    "training": ("fastbert bench training --quick", "fastbert bench training --workloads finetune --json rows.json"),
    "embed": ("fastbert bench embed --quick", "fastbert bench embed --folder MiniLM --text my.txt"),
    "rerank": ("fastbert bench rerank --quick", "fastbert bench rerank --threads 2 --contenders fastbert openvino"),
    "generation": ("fastbert bench generation --quick", "fastbert bench generation --workloads small --json rows.json"),
    "serving": ("fastbert bench serving --quick", "fastbert bench serving --workloads single --infinity ENVIRONMENT"),
    "record": ("fastbert bench record --list", "fastbert bench record --only encoder matmuls --minutes 30"),
}


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


def subcommand(what: str) -> type[BenchFlags | RecordConfig]:
    """Return the flags of a sub-command. Raises `UserError` for an unknown one."""
    if what in SUBCOMMANDS:
        return SUBCOMMANDS[what][0]
    close = difflib.get_close_matches(what, SUBCOMMANDS, n=1)
    hint = f"did you mean `fastbert bench {close[0]}`?" if close else "`fastbert bench` describes them"
    problem = "comes before the workload" if what.startswith("-") else "is not a workload"
    raise UserError(f"bench {what!r}: {problem}; choose one of {', '.join(SUBCOMMANDS)} ({hint})")


def check(config: BenchFlags | RecordConfig) -> None:
    """Raise `UserError` for what can be found wrong before torch is imported."""
    if isinstance(config, RecordConfig):
        return
    check_new_file("--json", config.json)
    check_new_file("--chart", config.chart)


def run(config: BenchFlags | RecordConfig, *, quiet: bool = False) -> int:
    """Measure, print the table, write the files; or make records."""
    # By name, since fastbert.benchmarks lies outside of the package in the source tree.
    bench = import_module(f"fastbert.benchmarks.{config.MODULE}")
    options = bench.Options(**config.options())
    if isinstance(config, RecordConfig):
        return int(bench.run(options, partial(print, flush=True)))
    import_module("fastbert.benchmarks.harness.command_line").check_files(config.json, config.chart)
    with Bars(quiet) as bars:
        import_module("fastbert.benchmarks.harness.quietness").warn(bars.message)
        result = bench.run(options, bars.message, partial(bars.count, "measuring", unit="workloads"))
    bench.show(result)
    bench.publish(result, options, config.json, config.chart)
    return 0

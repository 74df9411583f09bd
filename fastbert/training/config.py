"""The flags of a pre-training run. Imports no torch: the command line is generated from this class."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Literal, Self, get_args

from fastbert.config import PRESETS
from fastbert.data.corpus import CorpusFlags
from fastbert.data.dedup_flags import DedupFlags
from fastbert.errors import UserError
from fastbert.flags import DATA, MACHINE, MODEL, OUTPUT, TRAINING, flag, rare, required, switch
from fastbert.io.locations import LocationText
from fastbert.tokenizers.layouts import Kind
from fastbert.training import tracking_flags
from fastbert.training.averaging_flags import AveragingFlags
from fastbert.training.initial_flags import InitialModelFlags
from fastbert.training.loss_flags import LossFlags
from fastbert.training.precision_flags import PrecisionFlags
from fastbert.training.progress_flags import ProcessFlags, ProgressFlags
from fastbert.training.run_config import DISTILLATION, RunConfig
from fastbert.training.sampling_flags import SamplingFlags
from fastbert.training.saving_flags import AsyncSaveFlags, RetentionFlags
from fastbert.training.schedule_flags import ScheduleFlags
from fastbert.training.schedules import ScheduledValue
from fastbert.training.stream_flags import CHANGEABLE as STREAMING
from fastbert.training.stream_flags import StreamFlags

Objective = Literal["mlm+nsp", "mlm", "mlm+sop", "rtd", "ltr", "bilm"]
PAIRED: tuple[Objective, ...] = ("mlm+nsp", "mlm+sop")  # samples of two segments
UNMASKED: tuple[Objective, ...] = ("ltr", "bilm")  # no token is masked
DEFAULT_REPLACEMENT = (80.0, 10.0, 10.0)  # percent of masked tokens: [MASK], random, unchanged
RTD_REPLACEMENT = (85.0, 0.0, 15.0)  # of ELECTRA's released code
GENERATOR_SIZE = 0.25  # of ELECTRA-small and -large; ELECTRA-base has a third
# The objective of an architecture's paper and the kind of vocabulary that pre-training builds; others have OTHERS.
DEFAULTS: dict[str, tuple[Objective, Kind]] = {
    "bert": ("mlm+nsp", "wordpiece"),
    "roberta": ("mlm", "bpe"),
    "xlm-roberta": ("mlm", "unigram"),
    "camembert": ("mlm", "unigram"),
    "electra": ("rtd", "wordpiece"),
    "elmo": ("bilm", "wordpiece"),
    "gpt2": ("ltr", "wordpiece"),
    "openai-gpt": ("ltr", "wordpiece"),
    "roberta-prelayernorm": ("mlm", "bpe"),
    "mpnet": ("mlm", "bpe"),  # whose <pad> has the id at which MPNet's positions begin
    "modernbert": ("mlm", "bpe"),
    "eurobert": ("mlm", "bpe"),
    "deberta-v2": ("mlm", "unigram"),
    "albert": ("mlm+sop", "unigram"),
    "jina_embeddings_v3": ("mlm", "unigram"),
}
MASK_RATE = 0.15
# Of papers that mask more: Warner et al. 2024, Nussbaum et al. 2024, Boizard et al. 2025, Günther et al. 2023.
MASK_RATES = {"modernbert": 0.3, "nomic_bert": 0.3, "eurobert": 0.5, "jina_bert": 0.3}
OTHERS: tuple[Objective, Kind] = ("mlm", "wordpiece")
CudaGraphs = Literal["auto", "on", "off"]


@dataclass(frozen=True, kw_only=True)
class _Data(CorpusFlags, DedupFlags):
    """The text of a run, and its tokenizer."""

    GROUP: ClassVar = DATA

    corpus: tuple[LocationText, ...] = required(
        "text files, folders or globs; or give --data with prepared shards", unless=("data", "resume"), default=()
    )
    """Text: files, folders or globs of .txt, .jsonl, .parquet and .arrow, Wikipedia's XML dumps, folders saved by
    `datasets`, also compressed (.gz, .xz, .zst, .bz2) and as URLs (s3://, https:// ...)."""
    data: tuple[str, ...] | None = None
    """Token shards written by `fastbert prepare`, instead of --corpus: a folder, or a URL (s3://, https://, ...) from
    which they are streamed; several are mixed (--mix)."""
    tokenizer: Path | None = None
    """Folder or vocab.txt of the tokenizer (default: that of --init, else a vocabulary is built from the corpus)."""
    vocab_size: int | None = None
    """Entries of the vocabulary that is built without --tokenizer; for ELMo the most frequent words, which it predicts
    (default: by the size of the corpus, 2048 to 30522)."""
    vocab_kind: Kind | None = rare(None)
    """Kind of the vocabulary that is built without --tokenizer (default: that of the architecture: bpe for RoBERTa,
    unigram for XLM-RoBERTa and CamemBERT, wordpiece for the others; ELMo has words)."""
    cased: bool = False
    """Build a cased vocabulary: keep capitals and accents, as bpe and unigram always do without --lower-case."""
    lower_case: bool = rare(False)
    """Lower-case text and remove accents, as wordpiece always does without --cased."""
    max_length: int = 128
    """Tokens per sequence, special tokens included."""
    short_sequence_prob: float = rare(0.1)
    """Fraction of the samples with a random target length below the maximum."""
    validation_fraction: float = rare(0.1)
    """Fraction of the documents held out for validation."""


@dataclass(frozen=True, kw_only=True)
class _Model:
    """The model and what it learns."""

    GROUP: ClassVar = MODEL

    model: str = "base"
    """Model size (tiny, mini, small, medium, base or large), or the path of a config.json; with --init FOLDER, that of
    the folder."""
    architecture: str | None = None
    """Architecture of the model: bert, roberta, xlm-roberta, camembert, electra, distilbert, gpt2, openai-gpt, elmo,
    roberta-prelayernorm, mpnet, modernbert, deberta-v2, nomic_bert, eurobert, albert, jina_embeddings_v3 or jina_bert
    (default: bert, or that of a config.json or of --init)."""
    objective: Objective | None = None
    """Masked LM with next-sentence prediction, masked LM alone, masked LM with sentence-order prediction, ELECTRA's
    replaced-token detection beside a small generator, left to right, where each token is predicted from those before
    it, or ELMo's two language models over words, one in each direction (default: mlm+nsp for BERT; rtd for ELECTRA, ltr
    for GPT, bilm for ELMo, mlm for the others)."""
    generator_size: float | None = rare(None)
    """Width of the generator of rtd as a fraction of the discriminator's (default: 0.25)."""
    mask_prob: float | None = rare(None)
    """Fraction of the tokens that are masked and predicted (default: that of the architecture's paper, 0.3 for
    ModernBERT, NomicBERT and JinaBERT, 0.5 for EuroBERT, else 0.15)."""
    mask_replacement: tuple[float, ...] | None = rare(None, alias="mask_split", separator="/")
    """Percent of the masked tokens that become [MASK], become a random token, and stay, also as 80/10/10 and also as
    --mask-split (default: 80 10 10; 85 0 15 with rtd)."""
    whole_word: bool = False
    """Whole-word masking: mask all pieces of a word together, as --masking whole-word."""


@dataclass(frozen=True, kw_only=True)
class _Teacher:
    """The teacher of distillation."""

    GROUP: ClassVar = DISTILLATION

    teacher: str | None = rare(None)
    """Folder of a pre-trained teacher."""
    student_layers: int | None = rare(None)
    """Initialise the model with this many layers of --teacher, evenly spread, instead of random weights."""


@dataclass(frozen=True, kw_only=True)
class _Training:
    """The length of a run, and its optimisation."""

    GROUP: ClassVar = TRAINING

    epochs: float | None = None
    """Passes over the corpus, also a fraction of one (default: as many as make 6 million tokens, 1 to 40, unless
    --steps or --hours is given)."""
    steps: int | None = None
    """Optimiser steps; with --epochs, whichever ends first."""
    hours: float | None = None
    """Training time in hours; the schedule follows the clock. With --steps or --epochs, whichever ends first."""
    batch_size: int | None = None
    """Effective batch size: sequences per optimiser step, accumulated over micro-batches (default: by the length of the
    run, 32 to the paper's 256)."""
    lr: float | None = None
    """Peak learning rate (default: by the width of the model, 1e-3 to the paper's 1e-4; half of that with --init
    FOLDER)."""
    dropout: float | None = rare(None)
    """Dropout probability of all layers while pre-training (default: that of --init or of a config.json; else 0 for
    less than 10 epochs, 0.1 for more). The saved model keeps its config's own for fine-tuning."""
    warmup: float = 0.1
    """Warm-up as a fraction of the run."""
    seed: int = 0
    """Seed of the weights, the validation split, sentence pairs, masks and dropout."""


@dataclass(frozen=True, kw_only=True)
class _Output:
    """The run's folder, and how often it is written."""

    GROUP: ClassVar = OUTPUT

    out: Path = Path("runs/pretrain")
    """Folder of the run: config, tokenizer, metrics, loss curve, checkpoints and the trained model."""
    eval_every: int | None = rare(None)
    """Steps between validations (default: ten validations per run)."""
    compare: str | None = rare(None)
    """Expected losses beside those of each validation and in the loss curve: mini (`fastbert pretrain --model mini` on
    English encyclopaedia and books), or the folder of an earlier run."""
    eval_samples: int | None = rare(None)
    """Maximum number of sequences per validation (default: as many as take 4 % of the run's time, 32 to 1024)."""
    checkpoint_every: int | None = rare(None)
    """Steps between checkpoints (default: twenty per run, and every 1000 steps)."""
    keep_checkpoints: int = rare(2)
    """Number of newest checkpoints to keep."""


@dataclass(frozen=True, kw_only=True)
class _Machine:
    """Micro-batches, and what a step saves or recomputes."""

    GROUP: ClassVar = MACHINE

    micro_batch: int | None = None
    """Sequences per forward and backward pass (default: 32 on a CPU, the whole batch on a GPU)."""
    checkpoint_mode: Literal["layer", "selective"] = rare("layer")
    """Recomputed by --checkpoint-activations: whole layers, or only operations that are cheap next to matmuls."""
    cuda_graphs: CudaGraphs = switch("auto", bare="on")
    """Capture the training step in CUDA graphs, one per batch size: less host time per step on a GPU (default: for
    bf16 where it can be captured)."""


@dataclass(frozen=True, kw_only=True)
class PretrainConfig(
    RunConfig,
    ProcessFlags,
    SamplingFlags,
    PrecisionFlags,
    _Machine,
    RetentionFlags,
    AsyncSaveFlags,
    _Output,
    _Teacher,
    AveragingFlags,
    LossFlags,
    ProgressFlags,
    ScheduleFlags,
    _Training,
    InitialModelFlags,
    _Model,
    StreamFlags,
    _Data,
):
    """Pre-train a BERT encoder from raw text: vocabulary, token shards, training, checkpoints and a loss curve in one
    folder. Defaults follow from the sizes of model and corpus; for large ones they are the paper's (Devlin et al. 2019,
    appendix A.2) except the sequence length."""

    # How long, where and how often; what saves memory and changes rounding alone; and the paths of inputs, whose hashes
    # checkpoints hold.
    CHANGEABLE: ClassVar = frozenset(
        (
            *("steps", "epochs", "hours", "eval_every", "checkpoint_every", "keep_checkpoints", "keep_every"),
            *("device", "cuda_graphs", "parallel", "async_save", "on_nan", "on_spike", "log_every", "compare"),
            *("micro_batch", "checkpoint_activations", "checkpoint_mode"),
            *("loader_workers", "out", "data", "tokenizer", "resume", "overwrite"),
            *STREAMING,
            *tracking_flags.CHANGEABLE,
        )
    )

    def __post_init__(self) -> None:
        data = (self.data,) if isinstance(self.data, str | Path) else self.data
        object.__setattr__(self, "data", tuple(map(str, data)) if data else None)
        if isinstance(self.cuda_graphs, bool):
            object.__setattr__(self, "cuda_graphs", "on" if self.cuda_graphs else "off")
        self.check_groups()
        objective = self.objective or default_objective(self.architecture)
        shortest = 5 if objective in PAIRED else 3
        counts = ("max_length", "keep_checkpoints", "log_every")
        optional = (
            *("steps", "batch_size", "micro_batch", "eval_every", "eval_samples", "checkpoint_every"),
            *("vocab_size", "student_layers"),
        )
        self.require(
            *((name, getattr(self, name) >= 1, "at least 1") for name in counts),
            *((name, getattr(self, name) is None or getattr(self, name) >= 1, "at least 1") for name in optional),
            ("hours", self.hours is None or self.hours > 0, "above 0"),
            ("epochs", self.epochs is None or 0 < self.epochs < float("inf"), "above 0 and finite"),
            ("mask_prob", self.mask_prob is None or 0 < self.mask_prob <= 1, "above 0 and at most 1"),
            ("short_sequence_prob", 0 <= self.short_sequence_prob <= 1, "from 0 to 1"),
            ("dropout", self.dropout is None or 0 <= self.dropout < 1, "from 0 to below 1"),
            ("lr", self.lr is None or 0 < self.lr < float("inf"), "above 0 and finite"),
            ("warmup", 0 <= self.warmup < 1, "from 0 to below 1 (a fraction of the run)"),
            ("temperature", self.temperature > 0, "above 0"),
            ("soft_weight", 0 <= self.soft_weight <= 1, "from 0 to 1"),
            ("validation_fraction", 0 < self.validation_fraction < 1, "between 0 and 1"),
            ("generator_size", self.generator_size is None or 0 < self.generator_size <= 1, "above 0 and at most 1"),
            ("seed", 0 <= self.seed < 2**63, "from 0 to 2^63 - 1"),
            ("max_length", self.max_length >= shortest, f"at least {shortest}"),
            ("cuda_graphs", self.cuda_graphs in get_args(CudaGraphs), "auto, on or off"),
        )
        shares = self.mask_replacement or DEFAULT_REPLACEMENT  # those of rtd are valid too
        if len(shares) != 3 or not all(0 <= share <= 100 for share in shares) or abs(sum(shares) - 100) > 1e-4:
            raise UserError(
                f"--mask-replacement {' '.join(f'{share:g}' for share in shares)} must be three percentages that add up"
                " to 100: [MASK], random, unchanged"
            )
        if self.resume and self.overwrite:
            raise UserError(
                "--resume and --overwrite exclude each other: the first continues the run, the second replaces it"
            )
        if self.student_layers is not None and self.teacher is None:
            raise UserError("--student-layers takes layers of a --teacher; name its folder")
        if self.student_layers is not None and self.architecture not in (None, "bert"):
            raise UserError(
                f"--student-layers takes layers of a BERT, not of --architecture {self.architecture}; leave one out"
            )
        if self.student_layers is not None and self.init is not None:
            raise UserError("--init and --student-layers exclude each other: a student has its teacher's weights")
        if self.student_layers is not None and self.dropout is not None:
            raise UserError("--dropout and --student-layers exclude each other: a student has its teacher's dropout")
        # Runs that began with 0.15 as the default of --mask-prob say so, whatever their objective is.
        no_masks = (("mask_prob", MASK_RATE), ("mask_replacement", None), ("whole_word", False), ("masking", None))
        for name, default in no_masks:
            if objective in UNMASKED and getattr(self, name) not in (None, default):
                raise UserError(
                    f"{flag(name)} is about masked tokens, and --objective {objective} has none; leave it out"
                )
        if self.cased and self.lower_case:
            raise UserError("--cased and --lower-case exclude each other; leave one out")
        if self.vocab_kind is not None and (self.tokenizer or self.data or self.teacher or objective == "bilm"):
            what = next((flag(name) for name in ("tokenizer", "data", "teacher") if getattr(self, name)), "ELMo")
            raise UserError(f"--vocab-kind is for a vocabulary that is built, and {what} has its own; leave one out")
        if self.teacher is not None and objective in UNMASKED:
            raise UserError(f"--teacher teaches masked tokens, and --objective {objective} has none; leave one out")
        if self.teacher is not None and objective == "rtd":
            raise UserError(
                "--teacher teaches masked tokens, and --objective rtd trains a discriminator; leave one out"
            )
        if self.objective not in ("rtd", None) and self.generator_size is not None:
            raise UserError(f"--generator-size belongs to --objective rtd, not {self.objective}; leave it out")
        if self.teacher is not None and self.cuda_graphs == "on":
            raise UserError("--teacher and --cuda-graphs exclude each other; leave one out")
        if self.corpus and self.data is not None:
            raise UserError("give either --corpus or --data, not both")
        averaged = self.batch_tokens is not None or self.batch_schedule is not None
        if self.micro_batch is not None and not averaged and self.micro_batch > (self.batch_size or self.micro_batch):
            raise UserError(f"--micro-batch {self.micro_batch} is larger than --batch-size {self.batch_size}")
        if self.model not in PRESETS and not self.model.endswith(".json"):
            raise UserError(
                f"--model {self.model!r} is neither a size ({', '.join(PRESETS)}) nor the path of a config.json"
            )

    @property
    def lengths(self) -> list[tuple[float, int]]:
        """Return the phases of the run: the finished fraction at which each ends, and its tokens per sequence."""
        schedule = self.scheduled("length_schedule")
        if schedule is None:
            return [(1.0, self.max_length)]
        return [(segment.end, int(segment.first)) for segment in schedule.segments]

    @property
    def longest(self) -> int:
        """Return the tokens per sequence of the phase with the longest ones."""
        return max(length for _, length in self.lengths)

    @property
    def batches(self) -> ScheduledValue:
        """Return the sequences per step over the run; --batch-size must have been chosen."""
        return self.scheduled("batch_schedule") or ScheduledValue.parse(self.batch_size or 1)

    @property
    def mask_rate(self) -> float:
        """Return the share of masked tokens."""
        return MASK_RATES.get(self.architecture or "bert", MASK_RATE) if self.mask_prob is None else self.mask_prob

    @property
    def replacement_shares(self) -> tuple[float, float, float]:
        """Return the shares of masked tokens that become [MASK], become a random token, and stay; they add up to 1."""
        default = RTD_REPLACEMENT if self.objective == "rtd" else DEFAULT_REPLACEMENT
        mask, random, unchanged = self.mask_replacement or default
        return mask / 100, random / 100, unchanged / 100

    def resumed_from(self, saved: Self) -> Self:
        """Return the configuration to continue `saved` with; --steps alone takes the place of its --epochs, and the
        reverse."""
        if self.steps is not None or self.epochs is not None:
            saved = replace(saved, steps=None, epochs=None)
        return super().resumed_from(saved)


def default_objective(architecture: str | None) -> Objective:
    """Return the objective of an architecture's paper; masked LM alone for RoBERTa and others that have no segments."""
    return DEFAULTS.get(architecture or "bert", OTHERS)[0]


def default_kind(architecture: str | None) -> Kind:
    """Return the kind of vocabulary that pre-training builds for an architecture."""
    return DEFAULTS.get(architecture or "bert", OTHERS)[1]


@dataclass(frozen=True, kw_only=True)
class Budget:
    """The length of a run: optimiser steps, seconds of training, or whichever ends first."""

    steps: int | None
    seconds: float | None = None

    def progress(self, steps: float, seconds: float) -> float:
        """Return the finished fraction of the run, 0 to 1."""
        of_steps = 0.0 if self.steps is None else steps / self.steps
        of_seconds = 0.0 if self.seconds is None else seconds / self.seconds
        return min(max(of_steps, of_seconds), 1.0)


def described(config: PretrainConfig, budget: Budget, samples_per_epoch: int) -> str:
    """Describe the length of a run and its hyper-parameters in one line."""
    assert config.batch_size is not None
    lengths = []
    if budget.seconds is not None:
        long = budget.seconds >= 3600
        value, unit = (f"{budget.seconds / 3600:.4g}", "hour") if long else (f"{budget.seconds / 60:.3g}", "minute")
        lengths.append(f"{value} {unit}{'s' * (value != '1')}")
    if budget.steps is not None:
        epochs = f"{budget.steps * config.batch_size / samples_per_epoch:.3g}"
        steps = f"{budget.steps:,} step{'s' * (budget.steps != 1)}"
        lengths.append(f"{steps} ({epochs} epoch{'s' * (epochs != '1')})")
    dropout = "" if config.dropout is None else f", dropout {config.dropout:g}"
    size = f"{config.batch_schedule or config.batch_size} sequences"
    if config.batch_tokens is not None:
        size = f"{config.batch_tokens:,} tokens"
    return f"{' or '.join(lengths)} of {size}, learning rate {config.lr:g}{dropout}"

"""Training runs with and without graphs, and the comparison of two."""

import json
from pathlib import Path

import pytest
import torch
from rerunning import Rerun

from fastbert.config import BertConfig
from fastbert.graphs import Buckets
from fastbert.models import BertForPreTraining
from fastbert.packing import PackedBatch
from fastbert.training.config import Budget, PretrainConfig
from fastbert.training.device_step import DeviceStep
from fastbert.training.graphed import GraphedStep
from fastbert.training.loop import Trainer
from fastbert.training.metrics import MEASURED
from fastbert.training.reporter import Reporter
from fastbert.training.step_spec import Cursor, StepSpec

BERT = BertConfig(
    vocab_size=150, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
    max_position_embeddings=32,
)  # fmt: skip
EXACT = Buckets(tokens=1, sequences=1, masked=1, per_doubling=2**20, shortest=1)
BATCH = 6
COARSE = Buckets(tokens=64, sequences=4, masked=8, per_doubling=1)


class Data:
    """Random sequences as a function of seed, step and micro-batch; with `same` all have the same lengths."""

    def __init__(self, seed: int = 0, *, pairs: bool = True, same: bool = False) -> None:
        self.seed, self.pairs, self.same = seed, pairs, same

    start, batch_size = (0,), BATCH

    def spec(self, number: int, cursor: Cursor, progress: float) -> StepSpec:
        samples = range(cursor[0], cursor[0] + self.batch_size)
        return StepSpec(number, progress, samples, (samples.stop,))

    def batches(self, spec: StepSpec, micro_batch: int, rank: int, size: int) -> list[PackedBatch]:
        return [self.batch(spec.number - 1, first, micro_batch) for first in range(0, self.batch_size, micro_batch)]

    def validation_batches(self, samples: int, micro_batch: int, *_: object) -> list[PackedBatch]:
        return [self.batch(10_000, 0, micro_batch)]

    def batch(self, step: int, first: int, sequences: int) -> PackedBatch:
        draw = torch.Generator().manual_seed(hash((self.seed, step, first)))
        lengths = torch.randint(5, 33, (sequences,), generator=draw)
        if self.same:
            lengths = torch.arange(5, 5 + sequences)
        tokens = int(lengths.sum())
        masked = torch.arange(1, tokens, 5)
        return PackedBatch(
            input_ids=torch.randint(0, BERT.vocab_size, (tokens,), generator=draw),
            cu_seqlens=torch.cat((torch.zeros(1), lengths.cumsum(0))).int(),
            max_seqlen=int(lengths.max()),
            dropout_key=torch.randint(0, 2**62, (sequences,), generator=draw),
            masked_positions=masked,
            labels=torch.randint(0, BERT.vocab_size, masked.shape, generator=draw),
            next_sentence_label=torch.randint(0, 2, (sequences,), generator=draw) if self.pairs else None,
        )


class Run:
    """A trainer over `Data`, with or without graphs, and what it reported."""

    def __init__(self, folder: Path, data: Data, buckets: Buckets | None, device: str = "cpu", **flags) -> None:
        steps = flags.pop("steps", 5)
        self.reported: list[dict] = []
        self.messages: list[str] = []
        self.recorder = Rerun(failing=flags.pop("failing", None))
        dtype, kind = flags.pop("dtype", torch.float32), flags.pop("kind", BertForPreTraining)
        launched = flags.pop("launched", False)  # the step of a GPU, on whatever device
        defaults = {"batch_size": BATCH, "micro_batch": 3, "max_length": 32, "lr": 1e-3, "warmup": 0.0, "log_every": 3}
        config = PretrainConfig(**{**defaults, "eval_every": 100, "checkpoint_every": 100, **flags})
        data.batch_size = config.batch_size
        model = kind(BERT)
        model.init_weights(seed=data.seed % 2**31)
        folder.mkdir(exist_ok=True)
        self.trainer = Trainer(
            model, data, config, Budget(steps=steps), device=torch.device(device), dtype=dtype, folder=folder,
            fingerprint="", data_fingerprint="",
            reporter=Reporter(on_step=self.on_step, on_message=self.messages.append),
        )  # fmt: skip
        if buckets is not None:
            self.trainer.computer.graphs = GraphedStep(
                model, self.trainer.optimizer, max_grad_norm=config.max_grad_norm, dtype=dtype, buckets=buckets,
                recorder=self.recorder if device == "cpu" else None,
            )  # fmt: skip
        elif launched:
            computer = self.trainer.computer
            computer.device_step = DeviceStep(
                computer.loss, computer.optimizer, computer.scaler, max_grad_norm=config.max_grad_norm, dtype=dtype,
            )  # fmt: skip
        elif device == "cpu":
            # What is recorded stands for a GPU's steps, whose norm is torch's.
            optimizer, check = self.trainer.optimizer, self.trainer.optimizer._norm

            def norm(used: list) -> float:
                check(used)
                return float(torch.nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None]))

            optimizer._norm = norm

    def on_step(self, metrics, finished: float) -> None:
        self.reported.append(timeless({**metrics, "finished": finished}))

    def weights(self) -> dict[str, torch.Tensor]:
        return {name: value.detach().cpu().clone() for name, value in self.trainer.model.state_dict().items()}

    def lines(self) -> list[dict]:
        lines = (self.trainer.folder / "metrics.jsonl").read_text().splitlines()
        return [timeless(json.loads(line)) for line in lines]


def timeless(values: dict) -> dict:
    """Metrics without what a clock measured, and without what is no number."""
    return {k: v for k, v in values.items() if k not in MEASURED and v is not None and k != "split"}


def assert_same(first: Run, second: Run, tolerance: float) -> None:
    """Equal weights, lines and reports: to the bit with a tolerance of 0."""
    actual = second.weights()
    for name, value in first.weights().items():
        assert float((actual[name] - value).abs().max()) <= tolerance, name
    for a, b in ((first.lines(), second.lines()), (first.reported, second.reported)):
        assert len(a) == len(b) > 0
        for line, other in zip(a, b):
            assert other == (pytest.approx(line, rel=1e-5) if tolerance else line)

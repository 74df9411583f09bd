"""Contenders that train embedders: single steps on request, with their time and memory.

fastbert runs its fine-tuning loop; sentence-transformers a plain loop of its tokenizer, model and loss with torch's
fused AdamW, without the overhead of its Trainer. Each process has one contender.
"""

from __future__ import annotations

import gc
import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from fastbert.benchmarks.embedding import peer_training
from fastbert.benchmarks.embedding.examples import Example, ExampleForm
from fastbert.benchmarks.embedding.peer_training import PeerBatch, Recipe
from fastbert.benchmarks.finetuning.contender import Contender
from fastbert.benchmarks.harness import process_memory
from fastbert.finetuning import order, start
from fastbert.finetuning.config import FinetuneConfig, Trial
from fastbert.finetuning.coupled_step import CoupledStep
from fastbert.finetuning.fit import Fit, Setting
from fastbert.tasks.registry import make_task
from fastbert.tokenizers.loading import load_tokenizer
from fastbert.training.device import choose_device
from fastbert.training.metrics import MetricsLog
from fastbert.training.reporter import Reporter
from fastbert.training.stopping import StopRequest

FASTBERT = "fastbert"
FORM: ExampleForm = "triplets"


class EmbeddingContender(Contender):
    """`fastbert` or `sentence-transformers`, a dtype, and for the latter's cached gradients the size of a mini-batch:
    `fastbert fp32`, `sentence-transformers bf16`, `sentence-transformers fp32 32`."""

    def __init__(self, name: str, spec: str) -> None:
        super().__init__(name, spec)
        words = name.split()
        self.dtype: torch.dtype = torch.bfloat16 if "bf16" in words else torch.float32
        if name == FASTBERT:
            _, self.dtype = choose_device("cpu", "auto", lambda message: None)
        self.mini_batch: int | None = int(words[-1]) if words[-1].isdigit() else None
        self.recipe: Recipe = Recipe(**self.spec["recipe"])
        self.examples: list[Example] = [Example(tuple(texts)) for texts in self.spec["texts"]]

    def begin(self) -> dict[str, Any]:
        """Load the model, prepare the examples, start the thread; no step is taken. Return the first losses, without
        dropout, to be compared."""
        torch.set_num_threads(self.spec["threads"])
        began = time.perf_counter()
        train, losses = self._fastbert() if self.is_fastbert else self._peer()
        prepared = time.perf_counter() - began
        gc.collect()
        self.loaded: int | None = process_memory.resident()
        self.since_loading: bool = process_memory.forget_high_water()
        first = list(losses)
        self.thread: threading.Thread = threading.Thread(target=self._guarded(train), daemon=True)
        self.thread.start()
        dtype = "bf16" if self.dtype == torch.bfloat16 else "fp32"
        return {"prepare_seconds": round(prepared, 2), "losses": first, "dtype": dtype}

    def timed(self, count: int) -> dict[str, Any]:
        """Take `count` steps; return their seconds, the processor's seconds, and their losses."""
        used = time.process_time()
        return {**self.steps(count), "processor_seconds": time.process_time() - used}

    def memory(self) -> dict[str, Any]:
        """Return the peak resident memory since the model was loaded, and the resident memory at that time, in bytes;
        None except on Linux."""
        return {
            "peak_bytes": process_memory.high_water(),
            "loaded_bytes": self.loaded,
            "since_loading": self.since_loading,
        }

    def _fastbert(self) -> tuple[Callable[[], object], Iterator[float]]:
        """Return the training, and the first losses."""
        spec, recipe = self.spec, self.recipe
        self.config: FinetuneConfig = FinetuneConfig(
            task="embedding",
            model=spec["model"],
            loss="info-nce",
            steps=recipe.steps,
            max_length=recipe.max_length,
            warmup=recipe.warmup,
            dropout=recipe.dropout,
            weight_decay=recipe.weight_decay,
            max_grad_norm=recipe.max_grad_norm,
            pass_tokens=spec["pass_tokens"],
            log_every=1_000_000,
        )
        task: Any = make_task("embedding", self.config.task_settings())
        self.task = task
        examples = self.task.read(spec["train"], labelled=True)
        self.task.learn_labels(examples)
        folder = Path(spec["model"])
        self.model: Any = start.begin(self.task, folder, self.config, recipe.seed)
        self.task.prepare(self.model, folder, recipe.seed)
        self.rows: Any = self.task.encode(examples, load_tokenizer(folder), labelled=True)
        self.trial: Trial = Trial(
            lr=recipe.lr, batch_size=recipe.batch_size, epochs=float(recipe.steps), seed=recipe.seed
        )
        scratch = Path(spec["scratch"])
        setting = Setting(
            config=self.config,
            task=self.task,
            rows=self.rows,
            objective=self.task.loss,
            items=self.task.items,
            save=lambda folder: None,
            evaluate=None,
            choose=lambda scores: 0.0,
            folder=scratch,
            device=torch.device("cpu"),
            dtype=self.dtype,
            log=MetricsLog(scratch / "metrics.jsonl", None),
            reporter=Reporter(on_step=lambda record, progress: self._stepped(record["loss"])),
            parts=task.parts,
        )
        return Fit(self.model, self.trial, setting, StopRequest(lambda message: None)).run, self._fastbert_losses(
            setting
        )

    def _fastbert_losses(self, setting: Setting) -> Iterator[float]:
        task: Any = setting.task
        self.model.eval()
        coupled = CoupledStep(
            *(self.model, task, self.rows, setting.world, self.dtype), pass_tokens=self.config.pass_tokens
        )
        scaler = torch.amp.GradScaler("cpu", enabled=False)
        for epoch, units in self._compared():
            share = coupled.share(units, order.dropout_keys(units, self.recipe.seed, epoch))
            yield float(coupled.backward(share, scaler, 0.0)[0])
            self.model.zero_grad(set_to_none=True)

    def _compared(self) -> Iterator[tuple[int, Any]]:
        recipe = self.recipe
        return order.batches(len(self.examples), recipe.batch_size, recipe.seed, 0, self.spec["compared"])

    def _peer(self) -> tuple[Callable[[], object], Iterator[float]]:
        """Return the training, and the first losses."""
        from sentence_transformers.sentence_transformer import losses

        spec = self.spec
        model = peer_training.load_peer(Path(spec["model"]), "embedder", self.recipe.max_length)
        if self.mini_batch is None:
            loss: Any = losses.MultipleNegativesRankingLoss(model)
        else:
            loss = losses.CachedMultipleNegativesRankingLoss(model, mini_batch_size=self.mini_batch)

        def loss_of(batch: PeerBatch, progress: float) -> torch.Tensor:
            with torch.autocast("cpu", torch.bfloat16, enabled=self.dtype == torch.bfloat16):
                result: torch.Tensor = loss(batch.columns, batch.labels)
            return result

        def train() -> None:
            peer_training.train(model, "embedder", FORM, self.examples, self.recipe, loss_of, self._stepped)

        def first() -> Iterator[float]:
            model.eval()
            for chosen in peer_training.batches_of(self.examples, replace(self.recipe, steps=spec["compared"])):
                result = loss_of(PeerBatch(model, "embedder", FORM, chosen), 0.0)
                result.backward()
                model.zero_grad(set_to_none=True)
                yield float(result.detach())

        return train, first()


def write_spec(path: Path, model: Path, train: Path, texts: list[tuple[str, ...]], recipe: Recipe, **more: Any) -> Path:
    """Write the file that contenders read: `more` are `threads`, `pass_tokens`, `compared` and `scratch`."""
    values = {"model": str(model), "train": str(train), "texts": texts, "recipe": vars(recipe), **more}
    path.write_text(json.dumps(values), encoding="utf-8")
    return path

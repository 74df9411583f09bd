"""fastbert's fine-tuning and transformers' Trainer as contenders: single steps on request, then the rest, then a score.

Both train in a thread that waits before each step until it is requested. The rows of tokens, their order, the initial
weights and the scoring are fastbert's for both; padding, loss, optimizer and loop are each one's own.
"""

from __future__ import annotations

import json
import math
import queue
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fastbert.finetuning import order, start
from fastbert.finetuning.config import FinetuneConfig, Trial
from fastbert.finetuning.fit import Fit, Setting
from fastbert.tasks.examples import Dataset
from fastbert.tasks.predicting import outputs_of
from fastbert.tasks.registry import make_task
from fastbert.tasks.rows import Rows
from fastbert.tokenizers import WordPieceTokenizer
from fastbert.training.metrics import MetricsLog
from fastbert.training.reporter import Reporter
from fastbert.training.stopping import StopRequest

if TYPE_CHECKING:
    from fastbert.tasks.base import Task

WARMUP = 0.1
HEADS = {
    "classification": "AutoModelForSequenceClassification",
    "regression": "AutoModelForSequenceClassification",
    "tagging": "AutoModelForTokenClassification",
    "span": "AutoModelForQuestionAnswering",
    "choice": "AutoModelForMultipleChoice",
}


class Contender:
    """fastbert's fine-tuning or transformers' Trainer, in a dtype: `fastbert`, `fastbert bf16`, `Trainer fp32`,
    `Trainer bf16`."""

    def __init__(self, name: str, spec: str) -> None:
        self.is_fastbert: bool = name.startswith("fastbert")
        self.bf16: bool = name.endswith("bf16")
        self.spec: dict[str, Any] = json.loads(Path(spec).read_text(encoding="utf-8"))
        self.requests: queue.Queue[int] = queue.Queue()
        self.answers: queue.Queue[Any] = queue.Queue()
        self.losses: list[float] = []
        self.seconds: float = 0.0
        self.last_loss: float = 0.0
        self.ended: bool = False

    def open(self) -> None:
        """Read the task, construct the model, start the thread; no step is taken."""
        spec = self.spec
        torch.set_num_threads(spec["threads"])
        self.config: FinetuneConfig = FinetuneConfig(
            task=spec["task"],
            model=spec["model"],
            dropout=spec["dropout"],
            max_length=spec["max_length"],
            warmup=WARMUP,
            log_every=1_000_000,
        )
        self.task: Task[Any] = make_task(spec["task"], self.config.task_settings())
        folder = Path(spec["model"])
        tokenizer = WordPieceTokenizer.from_pretrained(folder)
        train = self.task.read(spec["train"], labelled=True)
        if spec["limit"]:
            train = Dataset(train.path, train.examples[: spec["limit"]])
        self.task.learn_labels(train)
        self.rows: Rows = self.task.encode(train, tokenizer, labelled=True)
        self.gold: Dataset[Any] = self.task.read_gold(spec["eval"])
        self.gold_rows: Rows = self.task.encode(self.gold, tokenizer, labelled=False)
        self.trial: Trial = Trial(
            lr=spec["lr"], batch_size=spec["batch_size"], epochs=spec["epochs"], seed=spec["seed"]
        )
        self.model: Any = start.begin(self.task, folder, self.config, spec["seed"])
        train_whole = self._train_fastbert if self.is_fastbert else self._train_peer()
        self.thread: threading.Thread = threading.Thread(target=self._guarded(train_whole), daemon=True)
        self.thread.start()

    def _guarded(self, train: Callable[[], object]) -> Callable[[], None]:
        def run() -> None:
            try:
                self._wait()
                train()
                self.answers.put("ended")
            except BaseException as error:  # noqa: BLE001 - whoever waits for the thread raises it
                self.answers.put(error)

        return run

    def _wait(self) -> None:
        """Wait until a step is requested."""
        self.requests.get()

    def _stepped(self, loss: float) -> None:
        """Report a completed step."""
        self.losses.append(loss)
        self.answers.put(None)
        self._wait()

    def steps(self, count: int) -> dict[str, Any]:
        """Take `count` steps; return their losses and the seconds they took."""
        first, began = len(self.losses), time.perf_counter()
        for _ in range(0 if self.ended else count):
            self.requests.put(1)
            answer = self.answers.get()
            if isinstance(answer, BaseException):
                raise answer
            if answer == "ended":
                self.ended = True
                break
        seconds = time.perf_counter() - began
        self.seconds += seconds
        return {"seconds": seconds, "losses": self.losses[first:]}

    def finish(self) -> dict[str, Any]:
        """Train to the end; return the score on the evaluation file and the seconds of all steps."""
        while not self.ended:
            self.steps(50)
        began = time.perf_counter()
        outputs = outputs_of(self.task, self.model, self.gold_rows) if self.is_fastbert else self._peer_outputs()
        predictions = self.task.decode(self.gold, self.gold_rows, outputs)
        scores = self.task.score(self.gold, predictions)
        return {
            "metric": self.task.main_metric,
            "score": round(scores[self.task.main_metric], 4),
            "scores": {name: round(value, 4) for name, value in scores.items()},
            "steps": len(self.losses),
            "seconds": round(self.seconds, 2),
            "evaluation_seconds": round(time.perf_counter() - began, 2),
        }

    def _train_fastbert(self) -> None:
        scratch = Path(self.spec["initial"]).with_name(f"own-{self.bf16}")
        scratch.mkdir()
        setting = Setting(
            config=self.config,
            task=self.task,
            rows=self.rows,
            objective=self.task.loss,
            items=self.task.items,
            save=self.model.save_pretrained,
            evaluate=None,
            choose=lambda scores: 0.0,
            folder=scratch,
            device=torch.device("cpu"),
            dtype=torch.bfloat16 if self.bf16 else torch.float32,
            log=MetricsLog(scratch / "metrics.jsonl", None),
            reporter=Reporter(on_step=lambda record, progress: self._stepped(record["loss"])),
        )
        fit = Fit(self.model, self.trial, setting, StopRequest(lambda message: None))
        fit.run()

    def _train_peer(self) -> Callable[[], None]:
        import transformers

        contender = self
        initial = Path(self.spec["initial"])
        if not initial.exists():
            self.model.save_pretrained(initial)
        drop = (
            {}
            if self.spec["dropout"] is None
            else dict.fromkeys(
                ("hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout"), self.spec["dropout"]
            )
        )
        head = getattr(transformers, HEADS[self.spec["task"]])
        self.model = head.from_pretrained(initial, **drop)
        trial, rows = self.trial, self.rows
        per_epoch, total = order.steps_of(rows.units, trial.batch_size, trial.epochs, None)
        # Whole batches only, so that epochs end where batches do.
        epochs = math.ceil(total / per_epoch)
        units = np.concatenate([order.permutation(rows.units, trial.seed, epoch) for epoch in range(epochs)])

        class InOrder(transformers.Trainer):
            """Reads the examples in their order."""

            def _get_train_sampler(self, *_: Any, **__: Any) -> Any:
                return torch.utils.data.SequentialSampler(self.train_dataset)  # type: ignore[arg-type]

            def compute_loss(self, model: Any, inputs: Any, *positional: Any, **options: Any) -> Any:
                """Return the loss before the Trainer rounds it. transformers' loss of spans includes padding among the
                positions of an answer; it is excluded here, as in fastbert."""
                if contender.task.name == "span":
                    loss = span_loss(model(**inputs), inputs)
                else:
                    loss = super().compute_loss(model, inputs, *positional, **options)
                contender.last_loss = float(loss)
                return loss

        class ReportLoss(transformers.TrainerCallback):
            """Reports each step's loss, and waits for the next step."""

            def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
                contender._stepped(contender.last_loss)

        arguments = transformers.TrainingArguments(
            output_dir=str(initial.with_name(f"unused-{id(self)}")),
            per_device_train_batch_size=trial.batch_size,
            num_train_epochs=1,
            max_steps=total,
            learning_rate=trial.lr,
            warmup_steps=math.ceil(total * WARMUP),
            weight_decay=self.config.weight_decay,
            adam_epsilon=1e-6,
            max_grad_norm=self.config.max_grad_norm,
            logging_strategy="no",
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            use_cpu=True,
            bf16=self.bf16,
            remove_unused_columns=False,
            seed=trial.seed,
        )
        trainer = InOrder(
            model=self.model,
            args=arguments,
            train_dataset=units.tolist(),
            data_collator=lambda indices: padded(self.task.name, rows, np.array(indices)),
            callbacks=[ReportLoss()],
        )
        trainer.remove_callback(transformers.PrinterCallback)
        return lambda: trainer.train()

    def _peer_outputs(self) -> list[np.ndarray]:
        """Return the peer's outputs per row of the evaluation file, in the form that the task decodes."""
        rows, outputs = self.gold_rows, {}
        self.model.eval()
        with torch.no_grad():
            for indices in rows.by_length(4096):
                batch = rows.packed(indices)
                inputs = batch.unpack()
                labels = inputs.pop("labels", None)
                if self.task.name == "choice":
                    inputs = {name: values[:, None] for name, values in inputs.items()}
                output = self.model(**inputs)
                if self.task.name == "span":
                    values = torch.stack((output.start_logits, output.end_logits), -1)
                    per_row = [values[i, : int(n)].T for i, n in enumerate(batch.cu_seqlens.diff())]
                elif self.task.name == "tagging":
                    # Only the first tokens of words are scored.
                    assert labels is not None
                    per_row = self._of_words(output.logits, batch)
                else:
                    per_row = list(output.logits)
                outputs.update(
                    zip(indices.tolist(), (row_output.float().numpy() for row_output in per_row), strict=True)
                )
        return [outputs[row] for row in range(len(rows))]

    @staticmethod
    def _of_words(logits: torch.Tensor, batch: Any) -> list[torch.Tensor]:
        positions = batch.masked_positions
        sequences, columns = batch.sequence_ids[positions], batch.offsets_in_sequence[positions]
        values = logits[sequences, columns]
        return list(values.split(torch.bincount(sequences, minlength=len(batch)).tolist()))


def span_loss(output: Any, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    """Return the mean of both cross-entropies over the positions that are not padding."""
    padding = inputs["attention_mask"] == 0
    losses = [
        torch.nn.functional.cross_entropy(logits.float().masked_fill(padding, -torch.inf), inputs[target])
        for logits, target in ((output.start_logits, "start_positions"), (output.end_logits, "end_positions"))
    ]
    return torch.stack(losses).mean()


def padded(task: str, rows: Rows, units: np.ndarray) -> dict[str, torch.Tensor]:
    """Return units as a padded batch under transformers' names."""
    batch = rows.batch(units)
    inputs = batch.inputs.unpack()
    if task == "choice":
        inputs = {name: values.view(len(units), rows.per_unit, -1) for name, values in inputs.items()}
    names = {"start": "start_positions", "end": "end_positions"}
    return {**inputs, **{names.get(name, name): target for name, target in batch.targets.items()}}

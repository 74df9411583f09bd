"""A pre-training run in a process of its own, for the memory and the time that `fastbert plan` predicts.

Memory is the process's high-water mark above what it uses after a run of a toy model, which loads every library.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

from fastbert.benchmarks.harness import process_memory

VOCABULARY = 30522  # of the released models
CORPUS_BYTES = 1_500_000
LEARNED = 4096  # entries from the text; the others are placeholders
WARMING_STEPS = 2


def prepare_shards(folder: Path, vocab_size: int | None = None) -> Path:
    """Write token shards of the English that ships with Python; `vocab_size` is that of the released models by
    default."""
    from fastbert.data.corpus import Corpus
    from fastbert.data.prepare import prepare
    from fastbert.data.python_text import python_documents
    from fastbert.tokenizers import WordPieceTokenizer, train_vocabulary
    from fastbert.training.demo import write_corpus

    path = write_corpus(python_documents(CORPUS_BYTES), folder / "corpus.txt", lambda _: None)
    corpus = Corpus.find(path, text_format="lines")
    sentences = (sentence for document in corpus.documents() for sentence in document)
    vocabulary = train_vocabulary(sentences, LEARNED)
    unused = (VOCABULARY if vocab_size is None else vocab_size) - len(vocabulary)
    vocabulary = [*vocabulary, *(f"[unused{index}]" for index in range(unused))]
    prepare(corpus, WordPieceTokenizer(vocabulary), folder / "shards", overwrite=True)
    return folder / "shards"


class PlannedRun:
    """Runs `pretrain` with the flags of a plan, and reports the time of its steps and its memory."""

    def __init__(self, shards: str, scratch: str, threads: int, flags: dict[str, Any]) -> None:
        """`flags` are those of `pretrain`; the toy model runs with them too."""
        import torch

        torch.set_num_threads(threads)
        self.shards: Path = Path(shards)
        self.scratch: Path = Path(scratch)
        self.flags = flags
        self.scratch.mkdir(parents=True, exist_ok=True)
        toy = {"model": self._toy(), "batch_size": 2, "max_length": 32, "micro_batch": None}
        self._run(1, {**flags, **toy})

    def _toy(self) -> str:
        from fastbert.config import BertConfig
        from fastbert.io.atomic_write import write_json_atomic

        shape = {"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 64}
        path = self.scratch / "toy.json"
        write_json_atomic(path, asdict(BertConfig(vocab_size=VOCABULARY, **shape)))  # type: ignore[arg-type]
        return str(path)

    def run(self, steps: int) -> dict[str, Any]:
        """Return the median seconds and mean tokens of a step, without those that warm up, the same of processor time,
        and the peak of memory in bytes above that before the run, None except on Linux."""
        return self._run(steps, self.flags)

    def _run(self, steps: int, flags: dict[str, Any]) -> dict[str, Any]:
        from fastbert.training.config import PretrainConfig
        from fastbert.training.pretrain import pretrain
        from fastbert.training.reporter import Reporter

        gc.collect()
        before, reset = process_memory.resident(), process_memory.forget_high_water()
        seconds: list[float] = []
        processor: list[float] = []
        tokens: list[int] = []

        def on_step(record: dict[str, Any], finished: float) -> None:
            del finished
            seconds.append(record["seconds"])
            tokens.append(record["tokens"])
            processor.append(time.process_time())

        config = PretrainConfig(
            data=(str(self.shards),), out=self.scratch / "run", overwrite=True, steps=steps, log_every=1,
            eval_samples=8, eval_every=steps + 1, checkpoint_every=steps + 1, keep_checkpoints=1, device="cpu", **flags,
        )  # fmt: skip
        pretrain(config, Reporter(on_step=on_step))
        peak = process_memory.high_water()
        taken, used, read = (_differences(values)[WARMING_STEPS - 1 :] for values in (seconds, processor, tokens))
        return {
            "seconds": statistics.median(taken) if taken else None,
            "processor_seconds": statistics.median(used) if used else None,
            "tokens": statistics.mean(read) if read else None,
            "step_seconds": taken,
            "peak_bytes": None if peak is None or before is None or not reset else peak - before,
        }


def _differences(values: list[Any]) -> list[Any]:
    return [after - before for before, after in pairwise(values)]


class Prediction:
    """Predicts a run as `fastbert plan --device cpu` does."""

    def __init__(self, shards: str, threads: int, flags: dict[str, Any], processor_time: bool = False) -> None:
        """`processor_time` predicts processor seconds, of one thread, which other processes disturb less."""
        import torch

        torch.set_num_threads(threads)
        self.shards: Path = Path(shards)
        self.flags = flags
        self.clock: Callable[[], float] = time.process_time if processor_time else time.perf_counter

    def predict(self) -> dict[str, Any]:
        """Return the predicted seconds and tokens of a step, and the peak of memory in bytes above that of a process
        without a model."""
        from fastbert.planning.flags import PlanFlags
        from fastbert.planning.plan import make_plan

        plan = make_plan(
            PlanFlags(data=(str(self.shards),), device="cpu", measure=True, **self.flags), clock=self.clock
        )
        assert plan.measured is not None
        return {
            "seconds": plan.times.step,
            "tokens": plan.tokens_per_step,
            "peak_bytes": plan.memory.total - plan.memory.parts.get("framework", 0),
            "parts_bytes": plan.memory.parts,
            "layers_measured": plan.measured.layers,
        }

"""Compare pre-training steps of ELMo with plain PyTorch: the loss and the gradients first, then seconds per step.

    python benchmarks/bench_elmo.py --quick
    python benchmarks/bench_elmo.py --model mini --text wiki.txt --threads 2 --json rows.json

Plain PyTorch convolves the characters of every token, padded to 50, runs nn.LSTM over padded sentences and writes the
logits of the whole batch (fastbert/benchmarks/training/plain_elmo.py). Both have the same weights and batches, without
dropout; a step is forward pass, backward pass, clipping to norm 1 and AdamW. bf16 is autocast over weights in fp32.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fastbert.benchmarks.harness import records
from fastbert.benchmarks.harness.measure import FASTBERT, Row, interleave, make_rows, timed
from fastbert.benchmarks.training.plain_elmo import PlainElmo, padded_batch, padded_characters
from fastbert.benchmarks.training.step_options import documents_of, parser, values
from fastbert.data.prepare import prepare
from fastbert.data.pretraining import PretrainingData
from fastbert.models import registry
from fastbert.models.elmo.config import ElmoConfig
from fastbert.packing import PackedBatch
from fastbert.tokenizers.words import word_tokenizer
from fastbert.training.optimizer import adamw

PLAIN = "PyTorch, padded"
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
CLOSE = {"fp32": 1e-5, "bf16": 0.01}  # of losses, relative
CLOSE_GRADIENTS = {"fp32": 1e-3, "bf16": 0.05}  # of their joint norms, relative


@dataclass(frozen=True, kw_only=True)
class Options:
    """The selection and size of the measurement."""

    model: str = "mini"
    text: Path | None = None
    vocab_size: int = 20_000
    batch_size: int = 32
    max_length: int = 128
    batches: int = 4
    threads: int = 1
    rounds: int = 5
    dtypes: tuple[str, ...] = tuple(DTYPES)
    json: Path | None = None


def batches_of(options: Options) -> tuple[ElmoConfig, tuple[str, ...], list[PackedBatch]]:
    """Return the model's config, the words of its vocabulary, and batches of the text."""
    with tempfile.TemporaryDirectory(prefix="fastbert-bench-") as folder:
        documents = documents_of(options.text)
        tokenizer = word_tokenizer((sentence for document in documents for sentence in document), 0)
        shards = prepare(documents, tokenizer, Path(folder) / "shards")
        data = PretrainingData(shards, objective="bilm", max_length=options.max_length)
        size = options.batch_size
        batches = [data.samples(range(n * size, (n + 1) * size)).longest_first() for n in range(options.batches)]
        words = shards.vocabulary
    sizes = {"vocab_size": len(words), "output_size": min(options.vocab_size, len(words))}
    return ElmoConfig.preset(options.model, **sizes, hidden_dropout_prob=0.0), words, batches


def measure(options: Options, say: Callable[[str], None] = print) -> list[Row]:
    """Return the rows of all dtypes. Exits where the loss or the gradients differ."""
    torch.set_num_threads(options.threads)
    config, words, batches = batches_of(options)
    model = registry.head_class(config, "ForBidirectionalLM")(config).train()
    model.init_weights(0)
    model.set_vocabulary(words)
    table = padded_characters(model)
    tokens = sum(batch.num_tokens for batch in batches)
    padded = [padded_batch(batch) for batch in batches]
    slots = sum(ids.numel() for ids, _ in padded)
    size = f"{config.num_parameters(True):,} parameters, {config.output_size:,} words predicted"
    say(f"{size}; {tokens / slots:.0%} of the padded batches are words")
    rows: list[Row] = []
    for name in options.dtypes:
        plain = PlainElmo(model)  # from the same weights
        losses: dict[str, Callable[[int], Tensor]] = {
            FASTBERT: lambda n: model(batches[n]).loss,
            PLAIN: lambda n, plain=plain: plain(table[padded[n][0]], *padded[n]),  # type: ignore[misc]
        }
        difference = _compared(losses, {FASTBERT: model, PLAIN: plain}, name)
        steps = {FASTBERT: _stepper(model, losses[FASTBERT], name), PLAIN: _stepper(plain, losses[PLAIN], name)}
        calls = {
            contender: timed(lambda step=step: [step(n) for n in range(len(batches))])  # type: ignore[misc]
            for contender, step in steps.items()
        }
        timings = interleave(calls, options.rounds)
        rows += make_rows(
            f"{options.model}-{name}",
            timings,
            dtype=name,
            threads=options.threads,
            tokens=tokens,
            differences={PLAIN: difference},
            outputs=dict.fromkeys(timings, "close"),
        )
    return rows


def _compared(losses: dict[str, Callable[[int], Tensor]], models: dict[str, nn.Module], dtype: str) -> float:
    """Return the difference of the losses of the first batch, relative to the loss; exit if they, or the gradients'
    norms, are not the same."""
    values, norms = {}, {}
    for name, loss in losses.items():
        with torch.autocast("cpu", dtype=DTYPES[dtype], enabled=dtype != "fp32"):
            value = loss(0)
        value.backward()
        gradients = [parameter.grad for parameter in models[name].parameters() if parameter.grad is not None]
        values[name], norms[name] = float(value.detach()), float(nn.utils.get_total_norm(gradients))
        models[name].zero_grad(set_to_none=True)
    difference = abs(values[FASTBERT] / values[PLAIN] - 1)
    if difference > CLOSE[dtype]:
        sys.exit(f"{dtype}: losses differ by {difference:.2g}: there is nothing to compare")
    if abs(norms[FASTBERT] / norms[PLAIN] - 1) > CLOSE_GRADIENTS[dtype]:
        sys.exit(f"{dtype}: gradients differ, with norms {norms[FASTBERT]:.6g} and {norms[PLAIN]:.6g}")
    return difference


def _stepper(model: Any, loss: Callable[[int], Tensor], dtype: str) -> Callable[[int], None]:
    """Return a function that takes an optimiser step on a batch: ours for our model, torch's fused AdamW for others."""
    ours = hasattr(model, "set_vocabulary")
    optimizer = (
        adamw(model, lr=1e-4, weight_decay=0.01) if ours else torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    )

    def step(number: int) -> None:
        with torch.autocast("cpu", dtype=DTYPES[dtype], enabled=dtype != "fp32"):
            value = loss(number)
        value.backward()
        if ours:
            optimizer.clip_gradients(1.0)  # type: ignore[attr-defined]
        else:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def show(rows: Sequence[Row]) -> None:
    """Print a table."""
    print(f"{'workload':<14}{'contender':<18}{'ms':>9}{'p20':>9}{'p80':>9}{'tokens/s':>11}{'ratio':>8}{'CPU used':>10}")
    for row in rows:
        print(
            f"{row.workload:<14}{row.contender:<18}{row.median_ms:>9.0f}{row.p20:>9.0f}{row.p80:>9.0f}"
            f"{row.tokens_per_second or 0:>11,.0f}{row.ratio_to_fastbert or 0:>8.2f}{row.threads_used or 0:>10.2f}"
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    line = parser(__doc__, quick="the tiny model, 2,000 words, one batch, two rounds")
    line.add_argument("--vocab-size", type=int, help="words that are predicted (default: 20,000)")
    line.add_argument("--dtypes", nargs="+", choices=sorted(DTYPES), help="dtypes of matmuls (default: both)")
    flags = line.parse_args(arguments)
    options = Options(
        **values(flags),
        vocab_size=flags.vocab_size or (2_000 if flags.quick else 20_000),
        batches=1 if flags.quick else 4,
        dtypes=tuple(flags.dtypes or DTYPES),
    )
    rows = measure(options)
    show(rows)
    if options.json is not None:
        records.write(options.json, records.record("elmo", map(asdict, rows)))
    return 0


if __name__ == "__main__":
    sys.exit(main())

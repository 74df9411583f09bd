"""Compare packed with padded pre-training on the same samples: the losses first, then tokens of text per second.

    python benchmarks/bench_packing.py --quick
    python benchmarks/bench_packing.py --model mini --text wiki.txt --threads 2 --json rows.json

All contenders take the same steps on the same samples of a corpus with the same weights, without dropout: forward
pass, backward pass, clipping to norm 1 and AdamW. Rates count tokens of text and special tokens, never padding.

- fastbert: the sequences of each batch, packed.
- fastbert, padded call: the same model given padded `input_ids` and `attention_mask`, which it packs itself.
- fastbert, padding computed: the same kernels, but what padding to `--max-length` would add is computed: dummy
  sequences. What packing alone is worth.
- transformers, sdpa and eager: BertForPreTraining on batches padded to `--max-length`, as its data collator does for
  a `pad_to_multiple_of` of it; and padded to the longest sequence of each batch.
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

from fastbert import BertForPreTraining
from fastbert.benchmarks.harness import records
from fastbert.benchmarks.harness.measure import FASTBERT, Row, interleave, make_rows, timed
from fastbert.benchmarks.training.step_options import documents_of, parser, values
from fastbert.config import BertConfig
from fastbert.data.prepare import prepare
from fastbert.data.pretraining import PretrainingData
from fastbert.data.step_samples import StepSamples
from fastbert.packing import IGNORE_INDEX, PackedBatch
from fastbert.tokenizers.piece_training import train_tokenizer
from fastbert.training.optimizer import adamw

PADDED_CALL, COMPUTED = "fastbert, padded call", "fastbert, padding computed"
ATTENTION = ("sdpa", "eager")
CLOSE = 1e-4  # of losses, relative


@dataclass(frozen=True, kw_only=True)
class Options:
    """The selection and size of the measurement."""

    model: str = "mini"
    text: Path | None = None
    vocab_size: int = 8192
    batch_size: int = 32
    max_length: int = 128
    objective: str = "mlm+nsp"
    batches: int = 4
    threads: int = 1
    rounds: int = 5
    json: Path | None = None


def batches_of(options: Options) -> list[PackedBatch]:
    """Return batches of `batch_size` samples of the text."""
    with tempfile.TemporaryDirectory(prefix="fastbert-bench-") as folder:
        documents = documents_of(options.text)
        sentences = (sentence for document in documents for sentence in document)
        tokenizer = train_tokenizer(sentences, "wordpiece", options.vocab_size, lower_case=True)
        shards = prepare(documents, tokenizer, Path(folder) / "shards")
        objective: Any = options.objective
        data = PretrainingData(shards, objective=objective, max_length=options.max_length)
        samples = range(options.batches * options.batch_size)
        parts = StepSamples(data).micro_batches(samples, sequences=options.batch_size)
        return [data.samples(part).longest_first() for part in parts]


def padded(batch: PackedBatch, width: int) -> dict[str, Tensor]:
    """Return a batch as transformers takes it, padded to `width` tokens: int64 (sequences, width) each, with labels."""
    rows, columns = batch.sequence_ids, batch.position_ids

    def spread(values: Tensor, fill: int) -> Tensor:
        return torch.full((len(batch), width), fill).index_put_((rows, columns), values)

    labels = torch.full_like(batch.input_ids, IGNORE_INDEX)
    assert batch.masked_positions is not None
    assert batch.labels is not None
    labels[batch.masked_positions] = batch.labels
    arguments = {
        "input_ids": spread(batch.input_ids, 0),
        "attention_mask": spread(torch.ones_like(batch.input_ids), 0),
        "token_type_ids": spread(batch.token_type_ids, 0),
        "labels": spread(labels, IGNORE_INDEX),
    }
    if batch.next_sentence_label is not None:
        arguments["next_sentence_label"] = batch.next_sentence_label
    return arguments


def measure(options: Options, say: Callable[[str], None] = print) -> list[Row]:
    """Return the rows of all contenders. Exits where their losses differ."""
    torch.set_num_threads(options.threads)
    batches = batches_of(options)
    slots = options.batches * options.batch_size * options.max_length
    tokens = sum(batch.num_tokens for batch in batches)
    say(f"{tokens:,} tokens in {slots:,} slots: {tokens / slots:.1%} of the padded batches are text")
    config = BertConfig.preset(
        options.model,
        vocab_size=options.vocab_size,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        max_position_embeddings=max(options.max_length, 512),
    )
    contenders = _contenders(config, options, batches)
    losses = {name: each.loss(batches[0]) for name, each in contenders.items()}
    differences = {name: abs(loss / losses[FASTBERT] - 1) for name, loss in losses.items() if name != FASTBERT}
    for name, difference in differences.items():
        if difference > CLOSE:
            sys.exit(f"{name}: its loss differs by {difference:.2g}: there is nothing to compare")
    timings = interleave({name: timed(each) for name, each in contenders.items()}, options.rounds)
    return make_rows(
        f"{options.model}-{options.max_length}",
        timings,
        dtype="fp32",
        threads=options.threads,
        tokens=tokens,
        differences=differences,
        outputs=dict.fromkeys(timings, "close"),
    )


class _Contender:
    """A model that takes an optimiser step on each batch when called."""

    def __init__(
        self,
        model: Any,
        batches: Sequence[PackedBatch],
        prepare_batch: Callable[[PackedBatch], Any],
        call: Callable[[Any], Any],
    ) -> None:
        self.model, self.prepare, self.call = model.train(), prepare_batch, call
        self.inputs = [prepare_batch(batch) for batch in batches]
        self.ours = isinstance(model, BertForPreTraining)
        self.optimizer: Any = (
            adamw(model, lr=1e-4, weight_decay=0.01)
            if self.ours
            else torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
        )

    def loss(self, batch: PackedBatch) -> float:
        """Return the loss of a batch before the first step."""
        with torch.no_grad():
            return float(self.call(self.prepare(batch)).loss)

    def __call__(self) -> None:
        for inputs in self.inputs:
            self.call(inputs).loss.backward()
            if self.ours:
                self.optimizer.clip_gradients(1.0)
            else:
                nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)


def _contenders(config: BertConfig, options: Options, batches: list[PackedBatch]) -> dict[str, _Contender]:
    """Return all contenders, with the same weights."""
    import transformers

    model = BertForPreTraining(config)
    model.init_weights(seed=0)
    width = options.max_length

    def copy() -> BertForPreTraining:
        twin = BertForPreTraining(config)
        twin.load_state_dict(model.state_dict())
        return twin

    contenders: dict[str, _Contender] = {}

    def add(name: str, own: Any, prepare_batch: Any, *, spread: bool) -> None:
        contenders[name] = _Contender(own, batches, prepare_batch, (lambda x: own(**x)) if spread else own)

    add(FASTBERT, model, lambda batch: batch, spread=False)
    add(PADDED_CALL, copy(), lambda batch: padded(batch, width), spread=True)
    add(COMPUTED, copy(), lambda batch: _computed(batch, width), spread=False)
    with tempfile.TemporaryDirectory(prefix="fastbert-bench-") as folder:
        model.save_pretrained(folder)
        for attention in ATTENTION:
            for padding in ("max_length", "longest"):
                if attention == "eager" and padding == "longest":
                    continue
                peer = transformers.BertForPreTraining.from_pretrained(folder, attn_implementation=attention)
                padded_to = width if padding == "max_length" else None
                add(
                    f"transformers {attention}, {padding}",
                    peer,
                    lambda batch, size=padded_to: padded(batch, size or batch.max_seqlen),
                    spread=True,
                )
    return contenders


def _computed(batch: PackedBatch, width: int) -> PackedBatch:
    """Return a batch with dummy sequences for what padding to `width` tokens would add."""
    total = len(batch) * width
    missing = total - batch.num_tokens
    return batch.padded_to(total, len(batch) + -(-missing // width), max_seqlen=width)


def show(rows: Sequence[Row]) -> None:
    """Print a table."""
    titles = f"{'ms':>9}{'p20':>9}{'p80':>9}{'text tokens/s':>15}{'ratio':>8}{'CPU used':>10}"
    print(f"{'workload':<12}{'contender':<32}{titles}")
    for row in rows:
        print(
            f"{row.workload:<12}{row.contender:<32}{row.median_ms:>9.0f}{row.p20:>9.0f}{row.p80:>9.0f}"
            f"{row.tokens_per_second or 0:>15,.0f}{row.ratio_to_fastbert or 0:>8.2f}{row.threads_used or 0:>10.2f}"
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    line = parser(__doc__, quick="the tiny model, a vocabulary of 2,048, two batches")
    line.add_argument("--max-length", type=int, default=128, help="tokens per sequence (default: 128)")
    line.add_argument("--batch-size", type=int, default=32, help="sequences per batch (default: 32)")
    line.add_argument("--objective", choices=["mlm+nsp", "mlm"], default="mlm+nsp", help="default: mlm+nsp")
    flags = line.parse_args(arguments)
    options = Options(
        **values(flags),
        vocab_size=2048 if flags.quick else 8192,
        max_length=flags.max_length,
        batch_size=flags.batch_size,
        objective=flags.objective,
        batches=2 if flags.quick else 4,
    )
    rows = measure(options)
    show(rows)
    if options.json is not None:
        records.write(options.json, records.record("packing", map(asdict, rows)))
    return 0


if __name__ == "__main__":
    sys.exit(main())

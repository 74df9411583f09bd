"""Compare an ONNX file, run by ONNX Runtime, with the model that it was written of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fastbert.embeddings.pooling import normalized, pool
from fastbert.embeddings.settings import EmbedSettings
from fastbert.errors import CheckpointError
from fastbert.integrations.onnx.graph import FILE
from fastbert.models.heads.sequence import ForMultipleChoice

# The largest difference, as a share of the largest value, or of 1 if that is larger.
TOLERANCE = 1e-4
# Of int8, the root mean square of the differences, as a share of that of the values.
INT8_TOLERANCE = 0.5
SHAPES = ((1, 3), (2, 16), (4, 33), (3, 128))
CHOICES = 2


@dataclass(frozen=True)
class Comparison:
    """The differences of an output between ONNX Runtime and fastbert, over all batches."""

    output: str
    max_difference: float
    relative_difference: float
    """The root mean square of the differences, divided by that of the values."""
    largest: float
    """The largest absolute value of the output."""
    int8: bool

    @property
    def tolerance(self) -> float:
        """Return what `relative_difference` may be in int8, and `max_difference` in fp32."""
        return INT8_TOLERANCE if self.int8 else TOLERANCE * max(1.0, self.largest)

    @property
    def agrees(self) -> bool:
        """Return whether the output is within the tolerance; one with a NaN is not."""
        return (self.relative_difference if self.int8 else self.max_difference) <= self.tolerance

    def describe(self) -> str:
        """Return the comparison as text."""
        if self.int8:
            return (
                f"{self.output}: root mean square error of {100 * self.relative_difference:.2g} % of fastbert's fp32"
                f" values (tolerance {100 * self.tolerance:g} %), at most {self.max_difference:.2g} of"
                f" {self.largest:.3g}"
            )
        return (
            f"{self.output}: at most {self.max_difference:.1e} from fastbert's values (tolerance {self.tolerance:.1e}),"
            f" which are up to {self.largest:.3g}"
        )


@torch.no_grad()
def compare(model: Any, folder: Path, settings: EmbedSettings | None, *, int8: bool) -> list[Comparison]:
    """Return the differences of the outputs of the file in a folder from those of a model, on random tokens in batches
    of several sizes and lengths, with padding."""
    runtime: Any = import_module("onnxruntime")
    options = runtime.SessionOptions()
    options.log_severity_level = 3  # errors
    options.intra_op_num_threads = torch.get_num_threads()
    session = runtime.InferenceSession(str(folder / FILE), options, providers=["CPUExecutionProvider"])
    names = [node.name for node in session.get_outputs()]
    differences: dict[str, list[tuple[Tensor, Tensor]]] = {name: [] for name in names}
    for batch in batches(model, {node.name for node in session.get_inputs()}):
        actual = session.run(names, {name: tensor.numpy() for name, tensor in batch.items()})
        expected = reference(model, settings, batch)
        is_token = batch["attention_mask"].bool()
        for name, values in zip(names, map(torch.from_numpy, actual), strict=True):
            pair = (values, expected[name])
            assert pair[0].shape == pair[1].shape, f"{name}: {pair[0].shape}, but fastbert has {pair[1].shape}"
            # Nothing is said of padding.
            of_tokens = values.shape[:2] == is_token.shape
            differences[name].append((pair[0][is_token], pair[1][is_token]) if of_tokens else pair)
    return [_comparison(name, pairs, int8) for name, pairs in differences.items()]


def check(comparisons: list[Comparison], source: str) -> None:
    """Raise `CheckpointError` for an output that differs by more than the tolerance."""
    for comparison in comparisons:
        if not comparison.agrees:
            cure = "; use --dtype fp32" if comparison.int8 else "; install the onnxruntime of constraints.txt"
            raise CheckpointError(f"{source}: as ONNX, in ONNX Runtime, {comparison.describe()}{cure}; wrote nothing")


def batches(model: Any, names: set[str]) -> Iterator[dict[str, Tensor]]:
    """Yield inputs of several shapes, in which every second row ends, and the last begins with padding."""
    config, generator = model.config, torch.Generator().manual_seed(0)
    longest = max(min(config.max_sequence_length, SHAPES[-1][1]), 1)
    for rows, length in SHAPES:
        length = min(length, longest)
        lengths = torch.randint(1, length + 1, (rows, 1), generator=generator)
        lengths[::2] = length
        mask = torch.arange(length) < lengths
        mask[-1] = mask[-1].flip(0)
        ids = torch.randint(0, config.vocab_size, (rows, length), generator=generator)
        padding = config.pad_token_id
        ids = ids.where((ids != padding) & mask, torch.where(mask, (padding + 1) % config.vocab_size, padding))
        types = torch.randint(0, max(config.type_vocab_size, 1), (rows, length), generator=generator)
        tensors = {"input_ids": ids, "attention_mask": mask.long(), "token_type_ids": types * mask}
        yield {name: _shaped(model, tensor) for name, tensor in tensors.items() if name in names}


def _shaped(model: Any, tensor: Tensor) -> Tensor:
    """Return (rows, length) as a model takes it: of choices as (rows, choices, length)."""
    return torch.stack([tensor] * CHOICES, 1) if isinstance(model, ForMultipleChoice) else tensor


def reference(model: Any, settings: EmbedSettings | None, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return what fastbert computes of a batch, by the names of its outputs."""
    outputs: dict[str, Tensor] = dict(model(**batch))
    if settings is None:
        return outputs
    is_token = batch["attention_mask"].bool()
    counts = is_token.sum(1)
    vectors = outputs["last_hidden_state"][is_token]
    starts = torch.cat((counts.new_zeros(1), counts.cumsum(0)))
    if settings.pooling == "cls":
        pooled = vectors[starts[:-1]].float()
    else:
        pooled = pool(vectors, starts, settings.pooling)
        pooled = pooled / counts[:, None] if settings.pooling == "mean" else pooled
    for dense in settings.dense:
        pooled = dense(pooled)
    return outputs | {"sentence_embedding": normalized(pooled) if settings.normalize else pooled}


def _comparison(name: str, pairs: list[tuple[Tensor, Tensor]], int8: bool) -> Comparison:
    actual, expected = (torch.cat([pair[index].flatten().double() for pair in pairs]) for index in (0, 1))
    errors = actual - expected
    most, largest = float(errors.abs().max()), float(expected.abs().max())
    relative = float(errors.norm() / expected.norm().clamp(min=1e-30))
    return Comparison(name, most, relative, largest, int8)

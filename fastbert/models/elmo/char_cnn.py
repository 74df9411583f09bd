"""Word vectors from characters: convolution, maximum over time, highways, projection (Kim et al. 2016, section 2).

Words are packed: characters of all words end to end, so that a short word costs little. All filter widths are one
matmul, in which narrow filters have zeros behind their width.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fastbert.models.elmo.characters import ALPHABET, Characters, Windows, windows_of
from fastbert.models.elmo.config import MOST_CHARACTERS, ElmoConfig
from fastbert.models.fusibility import project
from fastbert.models.initialisation import draw


class Highway(nn.Module):
    """g * x + (1 - g) * relu(W x + b) with g = sigmoid(V x + c) (Srivastava et al. 2015)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.dense: nn.Linear = nn.Linear(width, 2 * width)
        """Both layers: the transformation, then the gate."""

    def forward(self, x: Tensor) -> Tensor:
        """(words, width) -> the same shape."""
        transformed, gate = project(self.dense, x).chunk(2, dim=-1)
        return torch.lerp(transformed.relu(), x.to(transformed.dtype), gate.sigmoid())


class CharacterCnn(nn.Module):
    """Vectors of words, (words, projection_size), from their characters."""

    def __init__(self, config: ElmoConfig) -> None:
        super().__init__()
        filters, width = sum(config.filters), config.character_embedding_size
        self.character_embeddings: nn.Embedding = nn.Embedding(ALPHABET, width)
        self.convolutions: nn.ModuleList = nn.ModuleList(
            nn.Conv1d(width, count, k) for k, count in enumerate(config.filters, 1)
        )
        self.highways: nn.ModuleList = nn.ModuleList(Highway(filters) for _ in range(config.num_highways))
        self.projection: nn.Linear = nn.Linear(filters, config.projection_size)

    def init_weights(self, generator: torch.Generator | None) -> None:
        """Draw new weights: characters uniformly, others with the variance of their inputs' number; a highway begins by
        passing most of its input on."""
        draw(nn.init.uniform_, self.character_embeddings.weight, -1.0, 1.0, generator=generator)
        for convolution in self._convolutions():
            fan_in = convolution.weight.shape[1] * convolution.weight.shape[2]
            draw(nn.init.normal_, convolution.weight, std=1 / math.sqrt(fan_in), generator=generator)
            nn.init.zeros_(_bias(convolution))
        for highway in self.highways:
            assert isinstance(highway, Highway)
            width = highway.dense.in_features
            draw(nn.init.normal_, highway.dense.weight, std=1 / math.sqrt(width), generator=generator)
            nn.init.zeros_(highway.dense.bias)
            nn.init.constant_(highway.dense.bias[width:], 2.0)
        draw(
            nn.init.normal_, self.projection.weight, std=1 / math.sqrt(self.projection.in_features), generator=generator
        )
        nn.init.zeros_(self.projection.bias)

    def forward(self, characters: Characters, words: Tensor) -> Tensor:
        """Return the vectors of `words`, int64 (words,), indices into `characters`: (words, projection_size)."""
        if not len(words):
            return self.projection.weight.new_zeros(0, self.projection.out_features)
        windows = windows_of(characters, words, len(self.convolutions))
        embedded = self.character_embeddings(windows.characters).flatten(1)
        x: Tensor = F.linear(embedded, self._joined_filters())
        x = self._mask_outside(x, windows)
        maxima: Tensor = _GroupedMaximum.apply(x, windows.groups)
        x = (maxima + torch.cat([_bias(convolution) for convolution in self._convolutions()])).relu()
        for highway in self.highways:
            x = highway(x)
        x = project(self.projection, x)
        return torch.empty_like(x).index_copy(0, windows.words, x)

    def _convolutions(self) -> list[nn.Conv1d]:
        return [module for module in self.convolutions if isinstance(module, nn.Conv1d)]

    def _joined_filters(self) -> Tensor:
        """Return all filters as one matrix (filters, width * character_embedding_size)."""
        widest = len(self.convolutions)
        padded = [F.pad(c.weight, (0, widest - c.weight.shape[2])) for c in self._convolutions()]
        return torch.cat(padded).transpose(1, 2).flatten(1)

    def _mask_outside(self, x: Tensor, windows: Windows) -> Tensor:
        """Exclude windows that reach behind character 50, which words of nearly 50 characters alone have."""
        widest = len(self.convolutions)
        if windows.longest <= MOST_CHARACTERS - widest + 1:
            return x
        counts = torch.tensor([len(_bias(c)) for c in self._convolutions()])
        lasts = (MOST_CHARACTERS - torch.arange(1, widest + 1)).repeat_interleave(counts).to(x.device)
        return x.masked_fill(windows.starts.unsqueeze(1) > lasts, -torch.inf)


def _bias(module: nn.Conv1d) -> Tensor:
    assert module.bias is not None
    return module.bias


class _GroupedMaximum(torch.autograd.Function):
    """The maximum over the windows of each word, whose gradient goes to the first window that has it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, groups: list[tuple[int, int]]) -> Tensor:
        """Return (words, filters) of x (windows, filters); `groups` are those of `Windows`."""
        words, filters = sum(count for count, _ in groups), x.shape[1]
        maxima, rows = x.new_empty(words, filters), torch.empty(words, filters, dtype=torch.int64, device=x.device)
        word = window = 0
        for count, size in groups:
            values, places = x[window : window + count * size].view(count, size, filters).max(dim=1)
            maxima[word : word + count] = values
            first = torch.arange(window, window + count * size, size, device=x.device)
            torch.add(places, first.unsqueeze(1), out=rows[word : word + count])
            word, window = word + count, window + count * size
        ctx.save_for_backward(rows)
        ctx.windows = len(x)
        return maxima

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        """Return the gradient of x."""
        (rows,) = ctx.saved_tensors
        return grad.new_zeros(ctx.windows, grad.shape[1]).scatter_(0, rows, grad), None

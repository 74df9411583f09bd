"""Bidirectional LSTMs over packed sequences: between an encoder and its head (Devlin et al. 2019, section 5.1), and in
a tagger on frozen features with a learned mix of layers (section 5.3; ELMo's mix)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import PackedSequence

from fastbert.errors import UserError
from fastbert.models.elmo.lstm import Steps
from fastbert.models.encoder import summary_tokens
from fastbert.models.initialisation import draw
from fastbert.models.padded import PaddedBatch
from fastbert.ops.autocast import without_autocast
from fastbert.packing import PackedBatch


class BiLstm(nn.LSTM):
    """torch's LSTM in both directions over packed sequences, with torch's names of its weights."""

    def __init__(self, input_size: int, output_size: int, num_layers: int = 1, dropout: float = 0.0) -> None:
        """`output_size` is that of both directions together; `dropout` is between layers."""
        p = dropout if num_layers > 1 else 0.0
        super().__init__(input_size, output_size // 2, num_layers, bidirectional=True, dropout=p)

    @torch.no_grad()
    def init_weights(self, generator: torch.Generator | None = None) -> None:
        """Draw new weights as torch's LSTM does, from a generator: uniform in +-1 / sqrt(units)."""
        for parameter in self.parameters():
            if not parameter.is_meta:
                bound = self.hidden_size**-0.5
                draw(nn.init.uniform_, parameter, -bound, bound, generator=generator)

    def forward(self, x: Tensor, batch: PackedBatch) -> Tensor:  # type: ignore[override]
        """Return the outputs (tokens, output_size) of x (tokens, input_size), the tokens of a batch's sequences.

        They have the dtype of the weights, also under autocast. Raises `UserError` where PyTorch records the call,
        which keeps padding.
        """
        if isinstance(batch, PaddedBatch):
            raise UserError("a model with a BiLSTM (bilstm_size) cannot be traced, exported or transformed by PyTorch")
        dtype = next(self.parameters()).dtype
        if not len(x):
            return x.new_zeros(0, 2 * self.hidden_size, dtype=dtype)
        steps = Steps.of(batch)
        order = steps.tokens[0]
        with without_autocast(x.device):
            packed = PackedSequence(x.index_select(0, order).to(dtype), torch.tensor(steps.sizes))
            outputs, _ = super().forward(packed)
        rows = torch.empty_like(order)
        rows[order] = torch.arange(len(order), device=order.device)
        result: Tensor = outputs.data.index_select(0, rows)
        return result


def sequence_states(x: Tensor, batch: PackedBatch) -> Tensor:
    """Select from the outputs of a `BiLstm` (tokens, size) what stands for each sequence, (sequences, size): the
    forward half at its last token and the backward half at its first, each of which has read the whole sequence."""
    half = x.shape[1] // 2
    return torch.cat((summary_tokens(x, batch, causal=True)[:, :half], summary_tokens(x, batch)[:, half:]), dim=1)


@dataclass(frozen=True, kw_only=True)
class BiLstmConfig:
    """The tagger's shape. The paper's has two layers of 768: each direction gives half of the outputs."""

    input_size: int
    """Numbers of a layer's hidden state."""
    num_labels: int
    input_layers: int = 1
    """Hidden states of each word."""
    mix: bool = False
    """Add the states up with learned weights, else lay them end to end."""
    hidden_size: int = 768
    num_layers: int = 2
    dropout: float = 0.1
    """Dropout probability of the features, between the layers and of the classifier's inputs."""

    def __post_init__(self) -> None:
        for name in ("input_size", "num_labels", "input_layers", "hidden_size", "num_layers"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise UserError(f"{name}={value!r} must be a positive integer")
        if self.hidden_size % 2:
            raise UserError(f"hidden_size={self.hidden_size} must be even: each direction gives a half")
        if not 0 <= self.dropout < 1:
            raise UserError(f"dropout={self.dropout!r} must be at least 0 and below 1")


class ScalarMix(nn.Module):
    """gamma * sum over layers of softmax(weights)_l h_l (Peters et al. 2018, equation 1)."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.weights: nn.Parameter = nn.Parameter(torch.zeros(layers))
        self.gamma: nn.Parameter = nn.Parameter(torch.ones(()))

    def forward(self, states: Tensor) -> Tensor:
        """(..., layers, width) -> (..., width)."""
        return self.gamma * torch.einsum("l,...lw->...w", F.softmax(self.weights, dim=0), states)


class BiLstmTagger(nn.Module):
    """Logits of each word's tag from its features and those of its sentence."""

    def __init__(self, config: BiLstmConfig) -> None:
        super().__init__()
        self.config = config
        self.mix: ScalarMix | None = ScalarMix(config.input_layers) if config.mix else None
        width = config.input_size * (1 if config.mix else config.input_layers)
        self.lstm: BiLstm = BiLstm(width, config.hidden_size, config.num_layers, config.dropout)
        self.dropout: nn.Dropout = nn.Dropout(config.dropout)
        self.classifier: nn.Linear = nn.Linear(config.hidden_size, config.num_labels)

    def forward(self, states: Tensor, lengths: Tensor) -> Tensor:
        """Words of sentences end to end, `states` (words, layers, width), and int64 `lengths` (sentences,) on the CPU,
        each at least 1 -> logits fp32 (words, num_labels)."""
        states = states.float()
        features = states.flatten(1) if self.mix is None else self.mix(states)
        ends = torch.cat((lengths.new_zeros(1), lengths.cumsum(0))).to(dtype=torch.int32, device=states.device)
        ids = torch.zeros(len(states), dtype=torch.int64, device=states.device)  # no embedding reads them
        batch = PackedBatch(input_ids=ids, cu_seqlens=ends, max_seqlen=int(lengths.max()))
        logits: Tensor = self.classifier(self.dropout(self.lstm(self.dropout(features), batch)))
        return logits

"""A BiLSTM tagger on frozen features, with a learned mix of layers (Devlin et al. 2019, section 5.3; ELMo's mix)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from fastbert.errors import UserError


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
        self.weights = nn.Parameter(torch.zeros(layers))
        self.gamma = nn.Parameter(torch.ones(()))

    def forward(self, states: Tensor) -> Tensor:
        """(..., layers, width) -> (..., width)."""
        return self.gamma * torch.einsum("l,...lw->...w", F.softmax(self.weights, dim=0), states)


class BiLstmTagger(nn.Module):
    """Logits of each word's tag from its features and those of its sentence."""

    def __init__(self, config: BiLstmConfig) -> None:
        super().__init__()
        self.config = config
        self.mix = ScalarMix(config.input_layers) if config.mix else None
        width = config.input_size * (1 if config.mix else config.input_layers)
        self.lstm = nn.LSTM(
            width,
            config.hidden_size // 2,
            config.num_layers,
            batch_first=True,
            bidirectional=True,
            dropout=config.dropout if config.num_layers > 1 else 0.0,
        )
        self.dropout = nn.Dropout(config.dropout)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)

    def forward(self, states: Tensor, lengths: Tensor) -> Tensor:
        """Words of sentences end to end, `states` (words, layers, width), and int64 `lengths` (sentences,) on the CPU,
        each at least 1 -> logits fp32 (words, num_labels)."""
        states = states.float()
        features = states.flatten(1) if self.mix is None else self.mix(states)
        sentences = self.dropout(features).split(lengths.tolist())
        padded = nn.utils.rnn.pad_sequence(list(sentences), batch_first=True)
        packed = pack_padded_sequence(padded, lengths, batch_first=True, enforce_sorted=False)
        padded, _ = pad_packed_sequence(self.lstm(packed)[0], batch_first=True)
        real = torch.arange(padded.shape[1])[None] < lengths[:, None]
        logits: Tensor = self.classifier(self.dropout(padded[real.to(padded.device)]))
        return logits

"""ELMo as plain PyTorch writes it: every token's characters padded to 50, padded LSTMs, logits of the whole batch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fastbert.models.elmo.characters import PADDING
from fastbert.models.elmo.config import MOST_CHARACTERS
from fastbert.packing import IGNORE_INDEX, PackedBatch


class PlainElmo(nn.Module):
    """The language models of an `ElmoForBidirectionalLM`, with copies of its weights, without dropout."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        config, weights = model.config, {name: tensor.detach() for name, tensor in model.named_parameters()}
        self.output_size: Any = config.output_size
        self.unknown: Any = config.unk_token_id
        width, units = config.projection_size, config.intermediate_size
        filters = sum(config.filters)
        self.characters: nn.Embedding = nn.Embedding.from_pretrained(
            weights["elmo.embeddings.character_embeddings.weight"].clone(), freeze=False
        )
        self.convolutions: nn.ModuleList = nn.ModuleList(
            nn.Conv1d(config.character_embedding_size, count, k) for k, count in enumerate(config.filters, 1)
        )
        self.highways: nn.ModuleList = nn.ModuleList(
            nn.Linear(filters, 2 * filters) for _ in range(config.num_highways)
        )
        self.projection: nn.Linear = nn.Linear(filters, width)
        self.decoder: nn.Linear = nn.Linear(width, config.output_size)
        self.directions: nn.ModuleList = nn.ModuleList(
            nn.ModuleList(
                nn.LSTM(width, units, proj_size=width, batch_first=True) for _ in range(config.num_hidden_layers)
            )
            for _ in range(2)
        )
        with torch.no_grad():
            self._copy(weights)

    def _copy(self, weights: dict[str, Tensor]) -> None:
        """Copy all weights but those of characters."""
        for number, convolution in enumerate(self.convolutions):
            for name, parameter in convolution.named_parameters():
                parameter.copy_(weights[f"elmo.embeddings.convolutions.{number}.{name}"])
        for number, highway in enumerate(self.highways):
            for name, parameter in highway.named_parameters():
                parameter.copy_(weights[f"elmo.embeddings.highways.{number}.dense.{name}"])
        for name, parameter in self.projection.named_parameters():
            parameter.copy_(weights[f"elmo.embeddings.projection.{name}"])
        for name, parameter in self.decoder.named_parameters():
            parameter.copy_(weights[f"lm_head.decoder.{name}"])
        for direction, layers in enumerate(self.directions):
            assert isinstance(layers, nn.ModuleList)
            for number, layer in enumerate(layers):
                stem = f"elmo.encoder.layer.{number}."
                for name, source in (("ih", "weight_ih"), ("hh", "weight_hh"), ("hr", "weight_hr")):
                    layer.get_parameter(f"weight_{name}_l0").copy_(weights[stem + source][direction])
                layer.get_parameter("bias_ih_l0").copy_(weights[f"{stem}bias"][direction])
                layer.get_parameter("bias_hh_l0").zero_().requires_grad_(False)  # one bias suffices

    def words(self, characters: Tensor) -> Tensor:
        """Return the vectors (..., width) of words of padded characters, int64 (..., 50)."""
        embedded = self.characters(characters.flatten(0, -2)).transpose(1, 2)
        x = torch.cat([convolution(embedded).amax(dim=2) for convolution in self.convolutions], dim=1).relu()
        for highway in self.highways:
            transformed, gate = highway(x).chunk(2, dim=-1)
            x = gate.sigmoid() * x + (1 - gate.sigmoid()) * transformed.relu()
        vectors: Tensor = self.projection(x)
        return vectors.unflatten(0, characters.shape[:-1])

    def states(self, characters: Tensor, lengths: Tensor) -> list[Tensor]:
        """Return the states of all layers, (sequences, length, 2 * width) each, of padded characters (sequences,
        length, 50) and lengths int64 (sequences,)."""
        x = self.words(characters)
        states = [torch.cat((x, x), dim=2)]
        columns = torch.arange(x.shape[1]).expand(x.shape[:2])
        reversed_columns = torch.where(columns < lengths[:, None], lengths[:, None] - 1 - columns, columns)
        back = reversed_columns.unsqueeze(2).expand_as(x)
        sides = [x, x.gather(1, back)]
        for number in range(len(self.directions[0])):  # type: ignore[arg-type]
            outputs = [layers[number](side)[0] for layers, side in zip(self.directions, sides, strict=True)]  # type: ignore[index]
            sides = [output + side if number else output for output, side in zip(outputs, sides, strict=True)]
            states.append(torch.cat((sides[0], sides[1].gather(1, back)), dim=2))
        return states

    def forward(self, characters: Tensor, ids: Tensor, lengths: Tensor) -> Tensor:
        """Return the mean loss of both directions of a padded batch, ids int64 (sequences, length)."""
        forward, backward = self.states(characters, lengths)[-1].chunk(2, dim=2)
        inside = torch.arange(ids.shape[1]) < lengths[:, None]
        outputs = ids.masked_fill(ids >= self.output_size, self.unknown).masked_fill(~inside, IGNORE_INDEX)
        logits = torch.cat((self.decoder(forward[:, :-1]), self.decoder(backward[:, 1:])))
        before = outputs[:, :-1].masked_fill(outputs[:, 1:] == IGNORE_INDEX, IGNORE_INDEX)
        targets = torch.cat((outputs[:, 1:], before))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORE_INDEX)


def padded_characters(model: Any) -> Tensor:
    """Return the characters of a model's vocabulary, int64 (words, 50), padded."""
    characters = model.elmo._vocabulary
    lengths = characters.offsets.diff()
    table = torch.full((len(characters), MOST_CHARACTERS), PADDING)
    table[torch.arange(MOST_CHARACTERS) < lengths[:, None]] = characters.ids.long()
    return table


def padded_batch(batch: PackedBatch) -> tuple[Tensor, Tensor]:
    """Return the ids (sequences, length) and the lengths (sequences,) of a packed batch."""
    return batch.unpack()["input_ids"], batch.cu_seqlens.diff().long()

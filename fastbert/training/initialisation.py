"""Initial weights from which a short pre-training run learns context at once.

From normally distributed weights, masked LM spends its first steps on word frequencies, and then thousands on which
words occur together before a head attends by position; a short run ends there. Two things that need not be learned are
given to the weights instead. The output bias holds the logarithm of the word frequencies, and heads of the first layer
attend to the words next to theirs. The latter is structured initialisation: Zheng et al. (2024, "Structured
Initialization for Attention in Vision Transformers") give the heads of a vision transformer the filters of a
convolution. All weights are trained as usual, and the model is BERT as before.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fastbert.config import BertConfig
from fastbert.models import registry
from fastbert.models.electra.pretraining import GeneratorAndDiscriminator
from fastbert.models.elmo.language_model import ForBidirectionalLM
from fastbert.models.encoder import EncoderModel
from fastbert.models.heads.base import ModelWithHead
from fastbert.models.heads.causal import ForCausalLM
from fastbert.models.heads.pretraining import ForMaskedLM, ForPreTraining

# From the position of a head's query to that of the key which it attends to.
OFFSETS, CAUSAL_OFFSETS = (-1, 1, -2, 2), (-1, -2, -3, -4)
POSITION_SCALE = 1.5  # root mean square of the sinusoids, in units of `initializer_range`
SHARPNESS = 8.0  # logit of the key at the offset, if the sinusoids alone were in the hidden states; of others, about 0


def can_be_structured(config: BertConfig) -> bool:
    """Return whether a model has the parts that `initialise_structured` changes: a table of positions, a first layer of
    its own and a head with a bias, which GPT's lacks."""
    record = registry.architecture_of(config)
    if record.tied_head or record.replacements.get(EncoderModel) is not None:
        return not record.tied_head
    spec = record.spec(config)
    return bool(spec.embeddings.positions) and spec.shared is None and not spec.embeddings.projects_before_norm


@torch.no_grad()
def initialise_structured(
    model: ForPreTraining | ForMaskedLM | ForCausalLM | ForBidirectionalLM | GeneratorAndDiscriminator,
    counts: NDArray[np.int64],
    seed: int,
) -> None:
    """Give a newly initialised BERT, RoBERTa, DistilBERT or ELECTRA an output bias of word frequencies, and heads that
    attend to neighbouring words; an ELMo, which has no heads, the bias alone.

    Sinusoids, with frequencies spread over 0 to pi, replace the first columns of the position embedding, as many as a
    head has dimensions. A rotation of these columns is added to the query weights of head h in the first layer, and the
    identity to its key weights, so that it attends to the position `OFFSETS[h]` away, `CAUSAL_OFFSETS[h]` in a
    left-to-right model; heads without an offset and all other weights stay as they are. In ELECTRA, where a projection
    follows the embeddings, its rows of these columns are those of the identity.

    Args:
        model: changed in place.
        counts: int64 (outputs,), the number of times each id, or output of ELMo, occurs in the training text.
        seed: of the sinusoids' frequencies.
    """
    logarithms = (torch.from_numpy(counts).double() + 1).log()
    logarithms -= logarithms.mean()
    if isinstance(model, ForBidirectionalLM):
        model.lm_head.decoder.bias.copy_(logarithms)
        return
    heads: list[Any] = [model]
    if isinstance(model, GeneratorAndDiscriminator):
        heads = [model.discriminator, model.generator]
    heads[-1].get_parameter("cls.predictions.bias").copy_(logarithms)

    frequencies = _write_sinusoids(heads[0], seed)
    for head in heads:
        _attend_to_neighbours(head.base_model, frequencies)


def _write_sinusoids(model: ModelWithHead, seed: int) -> Tensor:
    """Write sinusoids to the first columns of the position embedding; return their frequencies (pairs,).

    The columns are first the cosines and then the sines, as many of both as half of a head has dimensions.
    """
    config = model.config
    pairs = min(config.head_dim, config.token_embedding_size) // 2
    generator = torch.Generator().manual_seed(seed)
    # Drawn from equal bands: equally spaced frequencies would repeat after 2 * pairs positions.
    frequencies = (torch.arange(pairs) + torch.rand(pairs, generator=generator)) * (math.pi / max(pairs, 1))
    table = model.base_model.get_parameter("embeddings.position_embeddings.weight")
    angles = torch.arange(len(table)).unsqueeze(1) * frequencies
    amplitude = math.sqrt(2) * POSITION_SCALE * config.initializer_range
    table[:, : 2 * pairs] = amplitude * torch.cat([angles.cos(), angles.sin()], dim=1)
    return frequencies


def _attend_to_neighbours(encoder: EncoderModel, frequencies: Tensor) -> None:
    """Let heads of an encoder's first layer attend by the sinusoids of its position embedding.

    A projection behind the embeddings hands them on unchanged, or, to heads that are narrower than the number of
    sinusoids, some of them, spread over all frequencies.
    """
    config = encoder.config
    head_size, pairs = config.head_dim, len(frequencies)
    kept = min(head_size // 2, pairs)
    if encoder.embeddings_project is not None:
        chosen = torch.arange(kept) * pairs // max(kept, 1)
        weight = encoder.get_parameter("embeddings_project.weight")
        weight[: 2 * kept] = 0
        weight[torch.arange(2 * kept), torch.cat((chosen, chosen + pairs))] = 1
        frequencies, pairs = frequencies[chosen], kept
    query, key = (encoder.get_parameter(f"encoder.layer.0.attention.self.{name}.weight") for name in ("query", "key"))
    gain = math.sqrt(SHARPNESS / math.sqrt(head_size))
    identity = torch.eye(2 * pairs)
    offsets = CAUSAL_OFFSETS if config.is_decoder else OFFSETS
    for head, offset in zip(range(config.num_attention_heads), offsets, strict=False):
        cos, sin = (offset * frequencies).cos().diag(), (offset * frequencies).sin().diag()
        rotation = torch.cat([torch.cat([cos, -sin], dim=1), torch.cat([sin, cos], dim=1)])
        rows, columns = slice(head * head_size, head * head_size + 2 * pairs), slice(2 * pairs)
        query[rows, columns] += gain * rotation
        key[rows, columns] += gain * identity

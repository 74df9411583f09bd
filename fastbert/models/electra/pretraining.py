"""ELECTRA's pre-training: a generator that replaces masked tokens, and the discriminator that finds the replaced ones.

The generator is a smaller masked language model with the discriminator's embeddings. It is trained on masked tokens
alone; its samples are not differentiated.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from fastbert.errors import UserError
from fastbert.models.base import PreTrainedModel
from fastbert.models.electra.architecture import ELECTRA
from fastbert.models.electra.config import ElectraConfig, generator_config
from fastbert.models.electra.heads import ForReplacedTokenDetection
from fastbert.models.electra.sampling import sample_tokens, uniform_draws
from fastbert.models.heads.pretraining import ForMaskedLM
from fastbert.models.labels import check_token_labels
from fastbert.models.outputs import HeadOutput
from fastbert.ops.dropout.masks import draw_keys
from fastbert.packing import PackedBatch

DISCRIMINATOR_WEIGHT = 50.0
"""The weight of the discriminator's loss beside the generator's (Clark et al. 2020, section 3.1 and appendix A)."""
_DISCRIMINATOR_KEY = 0x5DEECE66D1CE4E5B
"""Changes the keys of sequences, so that the discriminator's dropout masks are not the generator's."""


@dataclass(eq=False)
class ReplacedTokenOutput(HeadOutput):
    """The losses of a generator and its discriminator.

    `loss` is the mean of the generator's over masked tokens, plus `DISCRIMINATOR_WEIGHT` times that of the
    discriminator over all tokens, an fp32 scalar; the sums and counts are those of `PreTrainingOutput` and of
    `DetectionOutput`.
    """

    loss: Tensor | None = None
    mlm_loss_sum: Tensor | None = None
    mlm_count: Tensor | None = None
    mlm_correct: Tensor | None = None
    rtd_loss_sum: Tensor | None = None
    rtd_count: Tensor | None = None
    rtd_correct: Tensor | None = None
    rtd_flagged: Tensor | None = None
    rtd_replaced: Tensor | None = None
    rtd_found: Tensor | None = None
    nsp_loss_sum: None = None
    nsp_count: None = None
    nsp_correct: None = None


class GeneratorAndDiscriminator(PreTrainedModel):
    """A discriminator of `config`, and a generator of `generator_size` times its width with the same embeddings.

    Token, position and segment embeddings and their LayerNorm are shared, as in the released models.
    """

    architecture = ELECTRA
    base_model_prefix = "discriminator"
    config_type: ClassVar[type[ElectraConfig]] = ElectraConfig
    config: ElectraConfig

    def __init__(self, config: ElectraConfig, generator_size: float) -> None:
        """Make both models with new weights, from torch's global generator."""
        super().__init__(config)
        self.discriminator: ForReplacedTokenDetection = ELECTRA.model_class(ForReplacedTokenDetection)(config)
        self.generator: ForMaskedLM = ELECTRA.model_class(ForMaskedLM)(generator_config(config, generator_size))
        self.generator.base_model.embeddings = self.discriminator.base_model.embeddings
        self.tie_weights()

    @property
    def tied_keys(self) -> tuple[str, ...]:  # type: ignore[override]
        """Return the names of the generator's parameters that are the discriminator's, or repeat others."""
        shared = self.discriminator.base_model.embeddings.state_dict()
        names = (*(f"electra.embeddings.{name}" for name in shared), *self.generator.tied_keys)
        return tuple(f"generator.{name}" for name in names)

    def tie_weights(self) -> None:
        """Share the token embedding with the generator's decoder."""
        self.generator.tie_weights()

    def set_config(self, config: ElectraConfig) -> None:
        """Set the config of the discriminator, and what the generator has of it, such as dropout for fine-tuning."""
        generator = self.generator.config
        shape = ("hidden_size", "num_attention_heads", "intermediate_size")
        self.config = self.discriminator.config = config
        self.generator.config = replace(config, **{name: getattr(generator, name) for name in shape})

    def replaced(self, batch: PackedBatch, key: Tensor, x: Tensor) -> tuple[PackedBatch, Tensor]:
        """Return a batch with sampled tokens at its masked positions, and what tells them from the original ones: int64
        (tokens,), 1 where a sample is not the original token.

        `x` (masked, hidden_size) are the generator's hidden states there; `key` int64 (sequences,) decides on samples.
        """
        positions, labels = batch.masked_positions, batch.labels
        assert positions is not None
        assert labels is not None
        with torch.no_grad():
            sampled = sample_tokens(self.generator.cls.predictions, x.detach(), uniform_draws(batch, key, positions))
        original = batch.input_ids.index_copy(0, positions, labels)
        ids = batch.input_ids.index_copy(0, positions, sampled)
        corrupted = replace(
            batch, input_ids=ids, masked_positions=None, labels=None, dropout_key=key ^ _DISCRIMINATOR_KEY
        )
        return corrupted, (ids != original).long()

    def forward(self, batch: PackedBatch) -> ReplacedTokenOutput:
        """Compute both losses of a `PackedBatch` with `masked_positions` and `labels`.

        Samples are a function of `dropout_key` and of the position of a token in its sequence; without keys, keys are
        drawn. Raises `UserError` for an input that is not such a batch.
        """
        labels = batch.labels if isinstance(batch, PackedBatch) else None
        if labels is None or batch.masked_positions is None:
            raise UserError("a generator and its discriminator train on a PackedBatch with masked_positions and labels")
        key = draw_keys(len(batch), batch.device) if batch.dropout_key is None else batch.dropout_key
        batch = replace(batch, dropout_key=key)
        x, _ = self.generator.base_model.encode(batch, token_indices=batch.masked_positions)
        mlm = self.generator.cls.predictions.loss(x, labels)
        corrupted, targets = self.replaced(batch, key, x)
        rtd = self.discriminator(corrupted, labels=targets)
        return ReplacedTokenOutput(
            loss=mlm.loss_sum / mlm.count.clamp(min=1) + DISCRIMINATOR_WEIGHT * rtd.loss,
            mlm_loss_sum=mlm.loss_sum,
            mlm_count=mlm.count,
            mlm_correct=mlm.correct,
            **{name: getattr(rtd, name) for name in vars(rtd) if name.startswith("rtd_")},
        )

    def check_ranges(self, batch: PackedBatch) -> None:
        """Check that all ids, labels and masked positions of a batch are in range; on a GPU this is a host-device sync.

        Raises `UserError` that names the field and the value.
        """
        self.discriminator.base_model.check_ranges(batch)
        check_token_labels(batch, self.config.vocab_size)

"""ELECTRA's heads: the discriminator of replaced tokens, and the scores of choices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Unpack

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fastbert.config import BertConfig
from fastbert.errors import UserError
from fastbert.io.untrusted_input import shown
from fastbert.models.architecture import ClassificationHeadSpec
from fastbert.models.electra.config import ElectraConfig
from fastbert.models.fusibility import project, project_without_bias
from fastbert.models.heads.base import ClassificationHead, ModelWithHead
from fastbert.models.heads.sequence import ForMultipleChoice
from fastbert.models.labels import check_classes, integers
from fastbert.models.outputs import LogitsOutput
from fastbert.models.packed import read_inputs
from fastbert.models.unsupported_arguments import TransformersArguments
from fastbert.ops.gelu.op import bias_gelu
from fastbert.packing import IGNORE_INDEX, PackedBatch


@dataclass(eq=False)
class DetectionOutput(LogitsOutput):
    """The output of the discriminator: `logits` fp (..., ) per token, above 0 where it was replaced.

    With labels there are scalars for means over several batches: the sum of the losses (`rtd_loss_sum`, fp32), and the
    numbers, int64, of labelled tokens (`rtd_count`), of correct predictions (`rtd_correct`), of tokens that were
    predicted to be replaced (`rtd_flagged`), that were (`rtd_replaced`), and both (`rtd_found`).
    """

    rtd_loss_sum: Tensor | None = None
    rtd_count: Tensor | None = None
    rtd_correct: Tensor | None = None
    rtd_flagged: Tensor | None = None
    rtd_replaced: Tensor | None = None
    rtd_found: Tensor | None = None


class DiscriminatorPredictions(nn.Module):
    """Linear layer, GELU and one logit per token."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.dense: nn.Linear = nn.Linear(config.hidden_size, config.hidden_size)
        self.dense_prediction: nn.Linear = nn.Linear(config.hidden_size, 1)
        self.approximate: str = config.gelu_approximation

    def forward(self, x: Tensor) -> Tensor:
        """Return logits (rows,) of hidden states (rows, hidden_size)."""
        product, bias = project_without_bias(self.dense, x)
        return project(self.dense_prediction, bias_gelu(product, bias, self.approximate)).squeeze(-1)


class ForReplacedTokenDetection(ModelWithHead):
    """An encoder with ELECTRA's discriminator, which tells replaced tokens from original ones.

    Clark et al. 2020, section 3.1.
    """

    with_pooler = False

    def add_head(self, config: BertConfig) -> None:
        """Add the discriminator's head."""
        self.discriminator_predictions: DiscriminatorPredictions = DiscriminatorPredictions(config)

    def forward(
        self,
        batch: PackedBatch | Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        *,
        input_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        output_hidden_states: bool | None = None,
        past_key_values: None = None,
        **unsupported: Unpack[TransformersArguments],
    ) -> DetectionOutput:
        """Compute `logits`, (B, S), or (tokens,) of a packed batch, and from labels the loss; inputs as in `BertModel`.

        `labels` are integers or bool, (B, S), or (tokens,) with a packed batch: 1 where a token was replaced, 0 where
        it is the original one, -100 to ignore it. The loss, an fp32 scalar, is the mean binary cross-entropy over the
        labelled tokens that are not padding. Raises `UserError` for labels of the wrong shape, dtype or range.
        """
        packed = read_inputs(
            self, batch, input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds,
            past_key_values=past_key_values, **unsupported,
        )  # fmt: skip
        x, hidden_states = self._encode(packed, None, output_hidden_states)
        logits = self.discriminator_predictions(x)
        output = DetectionOutput(logits=packed.restore(logits), hidden_states=hidden_states)
        if labels is None:
            return output
        if isinstance(labels, Tensor) and labels.dtype == torch.bool:
            labels = labels.long()
        targets = packed.labels(integers("labels", labels, "1 where a token was replaced, else 0"))
        if targets.shape != logits.shape:
            raise UserError(
                f"labels have shape {tuple(targets.shape)}, but the batch has {packed.batch.num_tokens} tokens"
            )
        check_classes("labels", targets, 2, "use 1 where a token was replaced and 0 where not", packed.index_of)
        labelled, replaced = targets != IGNORE_INDEX, targets == 1
        losses = F.binary_cross_entropy_with_logits(logits.float(), replaced.float(), reduction="none")
        flagged = (logits > 0) & labelled
        output.rtd_loss_sum, output.rtd_count = torch.where(labelled, losses, 0.0).sum(), labelled.sum()
        output.rtd_correct = ((flagged == replaced) & labelled).sum()
        output.rtd_flagged, output.rtd_replaced = flagged.sum(), replaced.sum()
        output.rtd_found = (flagged & replaced).sum()
        output.loss = output.rtd_loss_sum / output.rtd_count.clamp(min=1)
        return output


class ElectraForMultipleChoice(ForMultipleChoice):
    """An encoder with one score per choice, behind a summary of its first token.

    The loss is that of a softmax over a question's choices.
    """

    def add_head(self, config: BertConfig) -> None:
        """Add the summary and the classifier. Raises `UserError` for a summary other than the released models'."""
        assert isinstance(config, ElectraConfig)
        expected = {"summary_type": "first", "summary_use_proj": True, "summary_activation": "gelu"}
        for name, value in expected.items():
            if getattr(config, name) != value:
                raise UserError(f"{name}={shown(getattr(config, name))} is not supported, only {value!r}")
        self.classifier: ClassificationHead = ClassificationHead(
            ClassificationHeadSpec("gelu"), config.head_input_size, 1
        )

    @property
    def classifier_dropout_prob(self) -> float:
        """Return the dropout probability in front of the classifier of sequences."""
        assert isinstance(self.config, ElectraConfig)
        return self.config.summary_last_dropout

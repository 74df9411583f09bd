"""The modules of the pre-training heads, under Hugging Face's names."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fastbert.config import BertConfig
from fastbert.models.activations import activation_of
from fastbert.models.architecture import PredictionSpec
from fastbert.models.base import resized
from fastbert.models.fusibility import is_plain, is_plain_without_bias, project, project_without_bias
from fastbert.models.layers import ROWS_MULTIPLE, multiplies_in_bf16
from fastbert.models.norm import Norm, is_plain_norm, norm_of
from fastbert.ops.cross_entropy.op import CrossEntropy, linear_cross_entropy
from fastbert.ops.dispatch import preferred_backend
from fastbert.ops.encoder_layer.composition import activate
from fastbert.ops.encoder_layer.spec import APPROXIMATIONS, Activation, NormSpec
from fastbert.ops.native.matmul_table import prefers_native
from fastbert.ops.norm.op import gelu_layer_norm
from fastbert.packing import IGNORE_INDEX


class PredictionTransform(nn.Module):
    """Linear layer, activation and LayerNorm between the encoder and the matmul with the vocabulary."""

    def __init__(self, hidden_size: int, spec: PredictionSpec) -> None:
        super().__init__()
        assert spec.norm is not None
        self.dense: nn.Linear = nn.Linear(hidden_size, spec.width, bias=spec.bias)
        self.LayerNorm: Norm = norm_of(spec.norm, spec.width)
        self.activation: Activation = spec.activation

    def forward(self, x: Tensor) -> Tensor:
        """Transform hidden states (rows, hidden_size) into rows of the token embedding's width."""
        norm = self.LayerNorm
        product, bias = project_without_bias(self.dense, x)
        if is_plain_norm(norm) and self.activation in APPROXIMATIONS:
            approximate = APPROXIMATIONS[self.activation]
            return gelu_layer_norm(product, bias, norm.weight, norm.bias, norm.eps, approximate)
        normed: Tensor = norm(activate(product, bias, self.activation))
        return normed


class VocabularyHead(nn.Module):
    """A head that predicts tokens: `transform`, then the matmul with the vocabulary, `decoder`."""

    transform: nn.Module
    decoder: nn.Linear
    z_loss: float = 0.0
    """Weight of the z-loss in `loss` while training; see `set_z_loss`."""

    def tie(self, weight: Tensor) -> None:
        """Share the token embedding's weight (vocab_size, width) with the decoder."""
        self.decoder.weight = weight

    def resize(self, rows: int) -> None:
        """Predict that many tokens, before `tie` sets a weight with as many rows."""
        self.decoder.out_features = rows

    def forward(self, x: Tensor) -> Tensor:
        """Return logits (rows, vocab_size) of hidden states (rows, hidden_size)."""
        return project(self.decoder, self.transform(x))

    def loss(self, x: Tensor, labels: Tensor, label_smoothing: float = 0.0) -> CrossEntropy:
        """Return the cross-entropy of hidden states (rows, hidden_size) and labels int64 (rows,), -100 to ignore a row.

        The sum over the labels is fp32; where the decoder is plain, logits are never written to memory as a whole. In
        training it includes `z_loss` times the squared log normaliser of each labelled row.
        """
        z_loss = self.z_loss if self.training else 0.0
        padding = -len(x) % ROWS_MULTIPLE if self._library_multiplies_bf16(len(x)) else 0
        if padding:  # rows without a label
            x = F.pad(x, (0, 0, 0, padding))
            labels = F.pad(labels, (0, padding), value=IGNORE_INDEX)
        x = self.transform(x)
        if is_plain(self.decoder) or is_plain_without_bias(self.decoder):
            weight, bias = self.decoder.weight, self.decoder.bias
            return linear_cross_entropy(x, weight, bias, labels, label_smoothing=label_smoothing, z_loss=z_loss)
        logits, counted = self.decoder(x), labels != IGNORE_INDEX
        wide = logits.float()
        loss = F.cross_entropy(
            wide, labels, ignore_index=IGNORE_INDEX, label_smoothing=label_smoothing, reduction="sum"
        )
        if z_loss:
            loss = loss + z_loss * wide.logsumexp(-1).square().masked_fill(~counted, 0.0).sum()
        return CrossEntropy(loss, counted.sum(), ((logits.argmax(-1) == labels) & counted).sum())

    def _library_multiplies_bf16(self, rows: int) -> bool:
        """Return whether torch's library will multiply bf16 on the CPU, not our kernels, which are compiled for every
        number of rows."""
        weight = self.decoder.weight
        if not multiplies_in_bf16(weight):
            return False
        if torch.compiler.is_compiling() or preferred_backend("linear_cross_entropy", weight.device) != "native":
            return True
        plain = is_plain(self.decoder) or is_plain_without_bias(self.decoder)
        return not (plain and prefers_native("bf16", rows, *weight.shape))


def set_z_loss(model: nn.Module, z_loss: float) -> None:
    """Set the weight of the z-loss in the training loss of a model's heads that predict tokens."""
    for module in model.modules():
        if isinstance(module, VocabularyHead):
            module.z_loss = z_loss


class PredictionHead(VocabularyHead):
    """The masked-LM head, whose decoder shares the token embedding's weight and has its own bias, unless the
    architecture's record says otherwise."""

    def __init__(self, config: BertConfig, spec: PredictionSpec | None = None) -> None:
        super().__init__()
        spec = prediction_spec(config) if spec is None else spec
        self.transform: nn.Identity | PredictionTransform = (
            nn.Identity() if spec.norm is None else PredictionTransform(config.hidden_size, spec)
        )
        self.decoder: nn.Linear = nn.Linear(spec.width, config.vocab_size, bias=spec.decoder_bias)
        self.bias: nn.Parameter | None = nn.Parameter(torch.zeros(config.vocab_size)) if spec.decoder_bias else None
        self.decoder.bias = self.bias  # type: ignore[assignment]
        self.tied: bool = spec.tied
        self.std: float = config.initializer_range

    def tie(self, weight: Tensor) -> None:
        """Share the token embedding's weight (vocab_size, width) with the decoder of a tied head, and the bias."""
        if self.tied:
            super().tie(weight)
        self.decoder.bias = self.bias  # type: ignore[assignment]

    def resize(self, rows: int) -> None:
        """Predict that many tokens; the bias of new ones is 0, weights that are not tied are drawn."""
        super().resize(rows)
        if self.bias is not None:
            self.bias = resized(self.bias, rows, self.bias.detach().new_zeros(max(rows - len(self.bias), 0)))
        if not self.tied:
            weight = self.decoder.weight
            added = weight.detach().new_empty(max(rows - len(weight), 0), weight.shape[1])
            nn.init.trunc_normal_(added, std=self.std, a=-2 * self.std, b=2 * self.std)
            self.decoder.weight = resized(weight, rows, added)

    @property
    def tied_names(self) -> tuple[str, ...]:
        """Return the names of its parameters that repeat others."""
        names = (("decoder.weight", self.tied), ("decoder.bias", self.bias is not None))
        return tuple(name for name, repeats in names if repeats)


def prediction_spec(config: BertConfig) -> PredictionSpec:
    """Return the masked-LM head of BERT, in a model of this config."""
    return PredictionSpec(
        config.token_embedding_size, activation_of(config.prediction_activation), NormSpec(config.layer_norm_eps)
    )


class TiedHead(VocabularyHead):
    """The head of GPT: the matmul with the token embedding, without a transform and a bias."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.transform: nn.Identity = nn.Identity()
        self.decoder: nn.Linear = nn.Linear(config.hidden_size, config.vocab_size, bias=False)


class PreTrainingHeads(nn.Module):
    """The heads of pre-training: `predictions` if `mlm`, `seq_relationship` if `nsp`."""

    def __init__(self, config: BertConfig, mlm: bool, nsp: bool, spec: PredictionSpec | None = None) -> None:
        super().__init__()
        if mlm:
            self.predictions: PredictionHead = PredictionHead(config, spec)
        if nsp:
            self.seq_relationship: nn.Linear = nn.Linear(config.hidden_size, 2)

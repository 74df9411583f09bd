"""ELMo (Peters et al. 2018) as an architecture record: an encoder of its own, which has no transformer layers."""

from __future__ import annotations

from typing import Any

from fastbert.errors import UserError
from fastbert.models.architecture import Architecture, ArchitectureSpec
from fastbert.models.elmo.config import ElmoConfig
from fastbert.models.elmo.heads import HEADS
from fastbert.models.elmo.language_model import ForBidirectionalLM
from fastbert.models.elmo.model import ElmoModel
from fastbert.models.encoder import EncoderModel


def elmo_spec(config: Any) -> ArchitectureSpec:
    """Raise UserError: the layers are LSTMs, which a spec of transformer layers does not describe."""
    raise UserError(f"model_type={config.model_type!r} has LSTM layers, which no ArchitectureSpec describes")


ELMO = Architecture(
    name="elmo",
    title="ELMo (Peters et al. 2018)",
    spec=elmo_spec,
    config=ElmoConfig,
    class_prefix="Elmo",
    base_model_prefix="elmo",
    replacements={EncoderModel: ElmoModel, **HEADS},
    heads=(ForBidirectionalLM, *HEADS),
    layouts=(),
)

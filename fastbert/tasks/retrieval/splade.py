"""Sparse vectors over the vocabulary from the masked-LM head (SPLADE: Formal et al. 2021)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from fastbert.config import BertConfig
from fastbert.errors import UserError
from fastbert.tasks.retrieval.flags import SparseFlags
from fastbert.tasks.retrieval.groups import SideTokens
from fastbert.tasks.retrieval.task import pools
from fastbert.tasks.retrieval.vectors import VectorSettings, VectorTask

if TYPE_CHECKING:
    from torch import Tensor

    from fastbert.models.base import PreTrainedModel
    from fastbert.packing import PackedBatch

RAMP = 1 / 3
"""The fraction of the training in which the regularisers' weights rise to their full values."""


@dataclass(frozen=True, kw_only=True)
class SparseTaskSettings(VectorSettings, SparseFlags):
    """Settings of sparse vectors."""

    stored_prompts: dict[str, str] | None = None
    """The prompts of the folder that the model was trained from."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("query_flops", "document_flops"):
            value = getattr(self, name)
            if not 0 <= value < float("inf"):
                raise UserError(f"--{name.replace('_', '-')} {value:g} must be at least 0 and finite")


class Splade(VectorTask):
    """max over a text's tokens of log(1 + relu(logit)), compared by dot product; the FLOPS regulariser keeps most
    entries at 0."""

    name = "splade"
    head_name = "ForMaskedLM"
    settings_type: ClassVar[type[SparseTaskSettings]] = SparseTaskSettings
    settings: SparseTaskSettings

    def base_config(self, folder: Path) -> BertConfig:
        """Read the config of the encoder in a folder, and the folder's prompts."""
        from fastbert.retrieval.settings import read_sparse_settings

        if pools(folder):
            raise UserError(
                f"--model {folder}: is an embedder without a masked-LM head, which makes sparse vectors; name a"
                " pre-trained model"
            )
        stored = read_sparse_settings(folder)
        self._take(stored.folder.prompts)
        return super().base_config(stored.folder.encoder)

    def _take(self, prompts: Any) -> None:
        if self.settings.stored_prompts is None:
            self.settings = replace(self.settings, stored_prompts=dict(prompts))

    def load_head(self, folder: Path, **options: Any) -> PreTrainedModel:
        from fastbert.retrieval.settings import read_sparse_settings

        stored = read_sparse_settings(folder)
        self._check(stored.pooling, stored.logarithms, folder)
        self._take(stored.folder.prompts)
        return super().load_head(stored.folder.encoder, **options)

    @staticmethod
    def _check(pooling: str, logarithms: int, folder: object) -> None:
        if pooling != "max" or logarithms != 1:
            raise UserError(
                f"--model {folder}: its sparse vectors are not the maximum of log(1 + relu); it is not trained"
            )

    def prepare(self, model: PreTrainedModel, source: Path | None, seed: int) -> None:
        """Refuse a model without a masked-LM head."""
        from fastbert.retrieval.settings import read_sparse_settings

        if any(name.startswith("cls.predictions") for name in model.new_weights):
            raise UserError(
                f"--model {source}: holds no masked-LM head, which makes sparse vectors; name a pre-trained model"
            )
        if source is not None:
            stored = read_sparse_settings(source)
            self._check(stored.pooling, stored.logarithms, source)
            self._take(stored.folder.prompts)

    def save_model(self, model: Any, folder: Path) -> None:
        """Write the model with its settings in the format of sentence-transformers."""
        from fastbert.retrieval.saving import save_with_settings
        from fastbert.retrieval.settings import Folder, SparseSettings

        prompts = self.save_prompts(self.settings.stored_prompts or {})
        settings = SparseSettings(folder=Folder(max_length=self.settings.max_length, prompts=prompts))
        save_with_settings(model, settings, folder)

    def sides(self) -> tuple[SideTokens, SideTokens]:
        query, document = self.prompts_of(self.settings.stored_prompts or {})
        length = self.settings.max_length
        return SideTokens(prompt=query, max_length=length), SideTokens(prompt=document, max_length=length)

    def represent(self, model: Any, inputs: PackedBatch) -> Tensor:
        """Return the sparse vector of each row, fp32 (rows, vocab_size)."""
        from fastbert.tasks.retrieval.vocabulary_maximum import vocabulary_maximum

        head = model.cls.predictions
        states = head.transform(model.base_model.encode(inputs)[0])
        return vocabulary_maximum(states, head.decoder, inputs.cu_seqlens).relu().log1p()

    def regularizer(self, sides: Sequence[Tensor], progress: float) -> Tensor | float:
        """Return the weighted FLOPS of queries and documents, whose weights rise quadratically."""
        import torch

        from fastbert import losses

        queries, *documents = sides
        ramp = min(progress / RAMP, 1.0) ** 2
        weights = self.settings.query_flops * ramp, self.settings.document_flops * ramp
        return weights[0] * losses.flops(queries) + weights[1] * losses.flops(torch.cat(documents))

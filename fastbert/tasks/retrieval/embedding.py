"""Embedders: one vector per text, the pooled vectors of its tokens (Reimers and Gurevych 2019)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from fastbert.checkpoints.pipeline_files import ROLE_PROMPTS, role_prompt
from fastbert.config import BertConfig
from fastbert.errors import UserError
from fastbert.tasks.retrieval.flags import EmbeddingFlags, check_embedding_flags
from fastbert.tasks.retrieval.groups import SideTokens
from fastbert.tasks.retrieval.vectors import VectorSettings, VectorTask

if TYPE_CHECKING:
    from torch import Tensor

    from fastbert.embeddings.settings import EmbedSettings
    from fastbert.models.base import PreTrainedModel
    from fastbert.packing import PackedBatch


@dataclass(frozen=True, kw_only=True)
class EmbeddingSettings(VectorSettings, EmbeddingFlags):
    """Settings of embedders."""

    stored_prompts: dict[str, str] | None = None
    """The prompts of the folder that the model was trained from."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.matryoshka, list):  # JSON has no tuples
            object.__setattr__(self, "matryoshka", tuple(self.matryoshka))
        check_embedding_flags(self)


class Embedding(VectorTask):
    """A vector per text, compared by cosine or dot product."""

    name = "embedding"
    settings_type: ClassVar[type[EmbeddingSettings]] = EmbeddingSettings
    default_temperature: ClassVar[float] = 0.05
    settings: EmbeddingSettings
    _pooling, _normalize, _similarity = "mean", False, "cosine"

    def head(self, config: BertConfig) -> type[PreTrainedModel]:
        from fastbert.models import registry
        from fastbert.models.encoder import EncoderModel

        kind: type[PreTrainedModel] = registry.architecture_of(config).model_class(EncoderModel)
        return kind

    def base_config(self, folder: Path) -> BertConfig:
        """Read the config of the encoder in a folder, and the folder's settings."""
        from fastbert.embeddings.folder import read_settings

        encoder, settings, _ = read_settings(folder)
        if self.settings.similarity is None and settings.similarity not in (None, "cosine", "dot"):
            raise UserError(
                f"--model {folder}: compares vectors by {settings.similarity} distance, which no loss here does; give"
                " --similarity cosine or dot"
            )
        self._take(settings)
        self.has_head: bool = bool(settings.dense)
        config = super().base_config(encoder)
        width = config.hidden_size if not settings.dense else len(settings.dense[-1].weight)
        for narrow in self.settings.matryoshka:
            if narrow > width:
                raise UserError(f"--matryoshka {narrow}: the model's vectors have {width} numbers; leave it out")
        return config

    def _take(self, settings: Any) -> None:
        """Complete the flags with a folder's settings."""
        flags = self.settings
        self._pooling = flags.pooling or settings.pooling
        self._normalize = flags.normalize or settings.normalize
        self._similarity = flags.similarity or settings.similarity or "cosine"
        if flags.stored_prompts is None:
            self.settings = replace(flags, stored_prompts=_by_role(settings))

    def load_head(self, folder: Path, **options: Any) -> PreTrainedModel:
        from fastbert.embeddings.folder import read_settings
        from fastbert.models import registry

        encoder, settings, _ = read_settings(folder)
        model = registry.load_encoder(encoder, **options)
        settings.check_width(model.config.hidden_size, str(folder))
        model.embed_settings = settings
        leave_pooler_out(model)
        self._take(settings)
        return self._with_layers(model)

    def prepare(self, model: PreTrainedModel, source: Path | None, seed: int) -> None:
        """Give the model its settings; a pooler of next sentences is left out, or stays as it is."""
        from fastbert.embeddings.folder import read_settings
        from fastbert.embeddings.settings import EmbedSettings

        settings = EmbedSettings() if source is None else read_settings(source)[1]
        self._take(settings)
        model.embed_settings = settings  # type: ignore[assignment]
        self._with_layers(model)
        leave_pooler_out(model)

    def _with_layers(self, model: Any) -> Any:
        """Add the layers behind pooling to the model, so that they are trained."""
        from fastbert.tasks.retrieval.projections import Projections

        dense = model.embed_settings.dense
        if dense:
            model.add_module("projections", Projections.of(dense).to(next(model.parameters()).dtype))
        return model

    def save_model(self, model: Any, folder: Path) -> None:
        """Write the model with its settings in the format of sentence-transformers."""
        from fastbert.tasks.retrieval.projections import without

        stored: EmbedSettings = model.embed_settings
        with without(model, "projections") as projections:
            model.embed_settings = replace(
                stored,
                pooling=self._pooling,
                normalize=self._normalize,
                similarity=self._similarity,
                max_length=self.settings.max_length,
                prompts=self.save_prompts({**stored.prompts, **(self.settings.stored_prompts or {})}),
                dense=() if projections is None else projections.dense(),
            )
            try:
                model.save_pretrained(folder)
            finally:
                model.embed_settings = stored

    def sides(self) -> tuple[SideTokens, SideTokens]:
        query, document = self.prompts_of(self.settings.stored_prompts or {})
        length = self.settings.max_length
        return SideTokens(prompt=query, max_length=length), SideTokens(prompt=document, max_length=length)

    def similarity_kind(self) -> str:
        return self._similarity

    def widths(self) -> tuple[int, ...]:
        return self.settings.matryoshka

    def represent(self, model: Any, inputs: PackedBatch) -> Tensor:
        """Return the vector of each row, (rows, width)."""
        from torch.nn import functional as F

        from fastbert.embeddings.pooling import pool
        from fastbert.models.encoder import summary_indices

        if self._pooling == "cls":
            vectors = model.encode(inputs, token_indices=summary_indices(inputs, model.causal))[0].float()
        else:
            offsets = inputs.cu_seqlens.long()
            vectors = pool(model.encode(inputs)[0], offsets, self._pooling)
            if self._pooling == "mean":
                vectors = vectors / offsets.diff()[:, None]
        projections = getattr(model, "projections", None)
        vectors = vectors if projections is None else projections(vectors)
        return F.normalize(vectors, dim=1) if self._normalize else vectors


def _by_role(settings: EmbedSettings) -> dict[str, str]:
    """Return a folder's prompts. A role without one has an empty prompt if there is a default one, so that the trained
    model's queries and documents get no other prompt than in the training."""
    prompts = dict(settings.prompts)
    if settings.default_prompt is not None:
        for role in ROLE_PROMPTS:
            if role_prompt(role, settings.prompts) is None:
                prompts[role] = ""
    return prompts


def leave_pooler_out(model: Any) -> None:
    """Remove a pooler with new weights; freeze one that a file has, since nothing reads its output."""
    pooler = getattr(model, "pooler", None)
    if pooler is None:
        return
    if any(name.startswith("pooler.") for name in model.new_weights):
        model.pooler = None
        model.new_weights = tuple(name for name in model.new_weights if not name.startswith("pooler."))
    else:
        pooler.requires_grad_(False)

"""One vector per token, compared by MaxSim (ColBERT: Khattab and Zaharia 2020)."""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from fastbert.config import BertConfig
from fastbert.errors import UserError
from fastbert.tasks.coupled import CoupledBatch, CoupledLosses
from fastbert.tasks.examples import Dataset, Prediction, TextGroup
from fastbert.tasks.retrieval.embedding import leave_pooler_out
from fastbert.tasks.retrieval.flags import LossName, TokenVectorFlags
from fastbert.tasks.retrieval.groups import SideTokens, TrainingForm
from fastbert.tasks.retrieval.scores import predictions_of
from fastbert.tasks.retrieval.task import pools
from fastbert.tasks.retrieval.vectors import TEACHER_LOSSES, VectorSettings, VectorTask
from fastbert.tasks.rows import Rows, TaskBatch, bounds
from fastbert.tokenizers.tokenizer import Tokenizer

if TYPE_CHECKING:
    from torch import Tensor

    from fastbert.models.base import PreTrainedModel
    from fastbert.packing import PackedBatch
    from fastbert.retrieval.rows import Expansion, Prefix
    from fastbert.retrieval.settings import TokenSettings

WIDTH, QUERY_LENGTH = 128, 32
SHORTEST = 3
"""Tokens of the shortest query that settings can hold."""


@dataclass(frozen=True, kw_only=True)
class TokenTaskSettings(VectorSettings, TokenVectorFlags):
    """Settings of vectors of tokens."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.token_width is not None and self.token_width < 1:
            raise UserError(f"--token-width {self.token_width} must be at least 1")
        if self.query_length is not None and self.query_length != 0 and self.query_length < SHORTEST:
            raise UserError(f"--query-length {self.query_length} must be 0 or at least {SHORTEST}")


@dataclass(frozen=True, kw_only=True)
class TokenSide(SideTokens):
    """A side with a marker in front and masks behind."""

    prefix: Prefix
    expansion: Expansion | None = None

    def encode(self, tokenizer: Tokenizer, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        from fastbert.retrieval.rows import read_rows

        read = read_rows(tokenizer, texts, self.max_length, self.prefix, self.expansion)
        attended = read.rows.lengths if read.attend else read.sizes
        return read.rows.input_ids, read.rows.offsets, attended


class Colbert(VectorTask):
    """Projected vectors of tokens, of length 1; the score of a text is the sum over the query's tokens of the largest
    product with a token of the text."""

    name = "colbert"
    settings_type: ClassVar[type[TokenTaskSettings]] = TokenTaskSettings
    losses: ClassVar[Mapping[TrainingForm, tuple[LossName, ...]]] = {
        "groups": ("info-nce", *TEACHER_LOSSES),
        "lists": ("info-nce", *TEACHER_LOSSES),
    }
    settings: TokenTaskSettings
    stored: TokenSettings | None = None
    """The settings of the folder that the model comes from."""

    def head(self, config: BertConfig) -> type[PreTrainedModel]:
        from fastbert.models import registry
        from fastbert.models.encoder import EncoderModel

        kind: type[PreTrainedModel] = registry.architecture_of(config).model_class(EncoderModel)
        return kind

    def base_config(self, folder: Path) -> BertConfig:
        """Read the config of the encoder in a folder, and the folder's settings."""
        stored = _initial_settings(folder)
        self._take(stored)
        config = super().base_config(stored.folder.encoder)
        length = (self.known.expansion or {}).get("length", 0)
        if length > config.max_sequence_length:
            raise UserError(
                f"--query-length {length} is more than the {config.max_sequence_length} positions of {folder}; lower it"
            )
        return config

    def _take(self, stored: TokenSettings) -> None:
        """Complete a folder's settings with the flags and, for an encoder without any, with ColBERT's."""
        settings = self.settings
        trained = bool(stored.dense)
        query, document = self.prompts_of(stored.folder.prompts)
        length, expansion = settings.query_length, stored.expansion
        if length is None and not trained:
            length = QUERY_LENGTH
        if length is not None:
            attend = True if expansion is None else bool(expansion.get("attend"))
            expansion = {"strategy": "fixed", "length": length, "attend": attend} if length else None
        lengths = {**stored.lengths, "document": settings.max_length}
        if settings.query_length and "query" in lengths:
            lengths["query"] = settings.query_length
        self.stored = replace(
            stored,
            folder=replace(
                stored.folder, prompts=self.save_prompts(stored.folder.prompts), max_length=settings.max_length
            ),
            markers={
                role: marker
                for role, marker in stored.markers.items()
                if {"query": query, "document": document}.get(role, "").startswith(marker)
            },
            normalize=stored.normalize or not trained,
            lengths=lengths,
            expansion=expansion,
            skiplist=stored.skiplist if trained else {"document": tuple(string.punctuation)},
        )

    @property
    def known(self) -> TokenSettings:
        """The settings of the model's folder. They are known once a model has been named."""
        assert self.stored is not None
        return self.stored

    def load_head(self, folder: Path, **options: Any) -> PreTrainedModel:
        from fastbert.models import registry

        stored = _initial_settings(folder)
        model: Any = registry.load_encoder(stored.folder.encoder, **options)
        leave_pooler_out(model)
        self._take(stored)
        return self._with_projection(model, 0)

    def prepare(self, model: PreTrainedModel, source: Path | None, seed: int) -> None:
        """Give the model its projection: that of its folder, or a new one initialised from `seed`."""
        leave_pooler_out(model)
        self._with_projection(model, seed)

    def _with_projection(self, model: Any, seed: int) -> Any:
        import torch

        from fastbert.tasks.retrieval.projections import Projections

        dense, width = self.known.dense, self.settings.token_width
        if dense and width not in (None, len(dense[-1].weight)):
            raise UserError(f"--token-width {width}: the model's are {len(dense[-1].weight)} wide; leave it out")
        if dense:
            projections = Projections.of(dense)
        else:
            layer = torch.nn.Linear(model.config.hidden_size, width or WIDTH, bias=False)
            generator = torch.Generator().manual_seed(seed)
            torch.nn.init.normal_(layer.weight, std=model.config.initializer_range, generator=generator)
            projections = Projections([layer], ["Identity"])
            model.new_weights = (*model.new_weights, "projections.layers.0.weight")
        model.add_module("projections", projections.to(next(model.parameters()).dtype))
        return model

    def save_model(self, model: Any, folder: Path) -> None:
        """Write the model with its settings in the format of sentence-transformers."""
        from fastbert.retrieval.saving import save_with_settings
        from fastbert.tasks.retrieval.projections import without

        with without(model, "projections") as projections:
            save_with_settings(model, replace(self.known, dense=projections.dense()), folder)

    def sides(self) -> tuple[SideTokens, SideTokens]:
        from fastbert.retrieval.rows import Expansion

        stored, expansion = self.known, None
        values = stored.expansion or {}
        limit = stored.lengths.get("query", self.settings.max_length)
        if values.get("length"):
            token = values.get("token")
            filler = self.tokenizer.mask_token_id if token is None else self.tokenizer.get_vocab().get(token)
            if filler is None:
                raise UserError(
                    f"--query-length: the tokenizer has no {token or 'mask'}, by which queries are expanded"
                )
            expansion = Expansion(length=values["length"], token_id=filler, attend=bool(values.get("attend")))
            limit = max(limit, expansion.length) if values.get("strategy") == "min" else expansion.length
        query = TokenSide(prefix=self._prefix("query"), expansion=expansion, max_length=limit)
        return query, TokenSide(prefix=self._prefix("document"), max_length=self.settings.max_length)

    def _prefix(self, role: str) -> Prefix:
        from fastbert.retrieval.rows import Prefix

        text = self.known.folder.prompts.get(role, "")
        marker = self.known.markers.get(role)
        return Prefix(text=text) if not marker else Prefix.marked(text, marker, self.tokenizer)

    tokenizer: Tokenizer

    def packed(self, rows: Rows, indices: np.ndarray, keys: np.ndarray | None = None) -> PackedBatch:
        """Return a batch whose tokens attend to all tokens but masks that nobody attends to."""
        import torch

        from fastbert.models.keyed import KeyedBatch

        batch, attended, lengths = (
            rows.packed(indices, keys),
            rows.row_targets["attended"][indices],
            rows.lengths[indices],
        )
        if (attended == lengths).all():
            return batch
        is_key = batch.position_ids.numpy() < np.repeat(attended, lengths)
        return KeyedBatch(
            **vars(batch),
            key_indices=torch.from_numpy(np.flatnonzero(is_key)),
            cu_seqlens_k=torch.from_numpy(bounds(attended).astype(np.int32)),
        )

    def kept_tokens(self, rows: Rows, indices: np.ndarray) -> np.ndarray:
        from fastbert.tasks.rows import runs

        tokens = rows.input_ids[runs(rows.offsets[indices], rows.lengths[indices])]
        is_query = np.repeat(rows.row_targets["is_query"][indices], rows.lengths[indices])
        vocabulary, kept = self.tokenizer.get_vocab(), np.ones(len(tokens), dtype=bool)
        for role, of_role in (("query", is_query), ("document", ~is_query)):
            skipped = [vocabulary[word] for word in self.known.skiplist.get(role, ()) if word in vocabulary]
            if skipped:
                kept &= ~(of_role & np.isin(tokens, skipped))
        return kept

    def represent(self, model: Any, inputs: PackedBatch) -> Tensor:
        """Return the vector of each token, fp32 (tokens, width)."""
        from torch.nn import functional as F

        vectors: Tensor = model.projections(model.encode(inputs)[0].float())
        return F.normalize(vectors, dim=1) if self.known.normalize else vectors

    def coupled_loss(self, vectors: Tensor, batch: CoupledBatch, items: float, progress: float) -> CoupledLosses:
        import torch

        from fastbert import losses

        first, _, others = self.parts_of(batch.sizes)
        masked = torch.zeros((), device=vectors.device)
        queries, query_offsets = ragged(vectors, batch.offsets, first)
        if self.loss_name == "info-nce":
            documents, offsets = ragged(vectors, batch.offsets, torch.cat((first + 1, others)))
            excluded, count = self.false_negatives(batch)
            scores = losses.maxsim_scores(queries, query_offsets, documents, offsets)
            total = losses.info_nce_from_scores(
                scores, temperature=self.temperature, symmetric=self.settings.symmetric, excluded=excluded
            )
            return CoupledLosses(total, (masked + count,))
        count = len(others) // len(first)
        rows = (first[:, None] + 1 + torch.arange(count + 1, device=first.device)).reshape(-1)
        documents, offsets = ragged(vectors, batch.offsets, rows)
        scores = losses.maxsim_pairs(queries, query_offsets, documents, offsets)
        teacher = batch.targets["teacher"][rows].view(len(first), -1)
        if self.loss_name == "margin-mse":
            total = losses.margin_mse(scores[:, 0], scores[:, 1:], teacher[:, 0], teacher[:, 1:])
        else:
            total = losses.kl_distillation(scores / self.temperature, teacher)
        return CoupledLosses(total, (masked,))

    def outputs(self, model: Any, batch: TaskBatch) -> list[np.ndarray]:
        """Return the vectors of each row's tokens, fp32 (tokens, width)."""
        import torch

        from fastbert.ops.native import matmul_table

        with matmul_table.same_in_every_batch():
            vectors = self.represent(model, batch.inputs).float().cpu()
        lengths = batch.inputs.cu_seqlens.diff().tolist()
        return [piece.numpy() for piece in torch.split(vectors, lengths)]

    def decode(self, dataset: Dataset[TextGroup], rows: Rows, outputs: Sequence[np.ndarray]) -> list[Prediction]:
        import torch

        from fastbert import losses

        every = np.arange(len(rows))
        counts = self.vector_counts(rows, every, kept := self.kept_tokens(rows, every))
        vectors = torch.from_numpy(np.concatenate(outputs)[kept])
        offsets = torch.from_numpy(bounds(counts))

        def similarities(queries: list[int], documents: list[int]) -> Tensor:
            return losses.maxsim_scores(
                *ragged(vectors, offsets, torch.tensor(queries)), *ragged(vectors, offsets, torch.tensor(documents))
            )

        def pairs(queries: list[int], documents: list[int]) -> Tensor:
            return torch.cat([similarities([a], [b])[0] for a, b in zip(queries, documents, strict=True)])

        predictions = predictions_of(dataset, similarities, pairs)
        return [{"id": example.id, **each} for example, each in zip(dataset, predictions, strict=True)]


def _initial_settings(folder: Path) -> TokenSettings:
    """Return the settings of a folder; for an embedder of one vector per text, those of its encoder alone."""
    from fastbert.embeddings.folder import read_settings
    from fastbert.retrieval.settings import Folder, TokenSettings, read_token_settings

    if pools(folder):
        encoder, _, lower_case = read_settings(folder)
        return TokenSettings(folder=Folder(encoder=encoder, lower_case=lower_case))
    return read_token_settings(folder)


def ragged(vectors: Tensor, offsets: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return the vectors of some rows, one row after the other, (vectors, width), and their offsets, int64
    (rows + 1,)."""
    import torch

    begins, sizes = offsets[rows], (offsets[rows + 1] - offsets[rows])
    ends = sizes.cumsum(0)
    starts = ends - sizes
    total = int(ends[-1]) if len(ends) else 0
    index = torch.arange(total, device=vectors.device) + torch.repeat_interleave(begins - starts, sizes)
    return vectors[index], torch.cat((ends.new_zeros(1), ends))

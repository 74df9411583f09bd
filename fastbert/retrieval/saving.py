"""Save a model with its settings as a folder of sentence-transformers: embedders, cross-encoders, and models of sparse
vectors and of token vectors."""

from __future__ import annotations

from pathlib import Path

from fastbert.checkpoints.atomic_folder import atomic_folder
from fastbert.errors import UserError
from fastbert.models.base import PreTrainedModel
from fastbert.models.encoder import EmbeddingSettings, EncoderModel
from fastbert.models.heads.pretraining import ForMaskedLM
from fastbert.models.heads.sequence import ForSequenceClassification
from fastbert.reranking.settings import CrossEncoderSettings, several_labels
from fastbert.retrieval.settings import SparseSettings


def save_with_settings(
    model: PreTrainedModel,
    settings: EmbeddingSettings,
    folder: str | Path,
    *,
    max_shard_size: int | str | None = None,
) -> None:
    """Write a model and its settings to a folder that fastbert, sentence-transformers and transformers load.

    `settings` are the `EmbedSettings` or `TokenSettings` of an encoder, which replace its `embed_settings`, the
    `SparseSettings` of a model with a masked-LM head, or the `CrossEncoderSettings` of a classifier with one label. All
    files appear at once: if writing fails, the folder stays as it was. Other files in it stay, so the tokenizer may be
    saved there before or afterwards; before, a killed process leaves no model without one. `max_shard_size` is that of
    `save_pretrained`.

    Raises `UserError`, before anything is written, for a model of a different kind than the settings, for settings that
    do not fit it, and for links and files in the way, and `CheckpointError` if writing fails.
    """
    folder, width = Path(folder), _width(model, settings)
    settings.check_width(width, "settings")
    settings.check_folder(folder)
    encoder = model if isinstance(model, EncoderModel) else None
    before = None if encoder is None else encoder.embed_settings
    folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        if encoder is not None:  # its own would be written first
            encoder.embed_settings = None
        with atomic_folder(folder, superseded=("model*.safetensors*",)) as partial:
            model.save_pretrained(partial, max_shard_size=max_shard_size)
            settings.save(partial, width)
    finally:
        if encoder is not None:
            encoder.embed_settings = before


def _width(model: PreTrainedModel, settings: EmbeddingSettings) -> int:
    """Return the width that the settings are checked against. Raises UserError for a model of a different kind."""
    kinds = {SparseSettings: ForMaskedLM, CrossEncoderSettings: ForSequenceClassification}
    expected = kinds.get(type(settings), EncoderModel)
    if not isinstance(model, expected):
        name = "an encoder without a head" if expected is EncoderModel else f"a {expected.__name__}"
        raise UserError(f"the model is a {type(model).__name__}, and {type(settings).__name__} are those of {name}")
    if isinstance(model, ForSequenceClassification) and model.config.num_labels != 1:
        raise UserError(several_labels("the model", model.config.num_labels))
    size: int = model.config.vocab_size if isinstance(settings, SparseSettings) else model.config.hidden_size
    return size

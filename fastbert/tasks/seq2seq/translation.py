"""Translate texts with a sequence-to-sequence model: the function behind `fastbert translate`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fastbert.errors import UserError
from fastbert.io.log import logger
from fastbert.tasks.examples import Dataset, SequenceExample, cell
from fastbert.tasks.stored import stored_task

if TYPE_CHECKING:
    from pathlib import Path

    from fastbert.tasks.finetuned_model import Trained


@dataclass(frozen=True, kw_only=True)
class TranslationSettings:
    """Settings of translation; the defaults of beams and length penalty are those of Vaswani et al. 2017, section 6.1.

    `beams` hypotheses per text, 1 is greedy; `max_new_tokens` per translation, None: as in training. Raises `UserError`
    for invalid values.
    """

    beams: int = 4
    max_new_tokens: int | None = None
    length_penalty: float = 0.6

    def __post_init__(self) -> None:
        for name in ("beams", "max_new_tokens"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
                raise UserError(f"{name}={value!r} must be a positive integer")


def check_translator(folder: Path, values: dict[str, Any]) -> None:
    """Raise `UserError` unless a folder, with this content of config.json, holds a sequence-to-sequence model."""
    task = stored_task(folder)
    if task not in (None, "seq2seq"):
        raise UserError(f"{folder}: was trained for {task}; name a model that was trained with --task seq2seq")
    if task is None and values.get("model_type") not in ("transformer", "encoder-decoder"):
        raise UserError(f"{folder}: holds no sequence-to-sequence model; train one with finetune --task seq2seq")


def translate(
    trained: Trained,
    texts: Sequence[str],
    settings: TranslationSettings | None = None,
    *,
    batch_tokens: int | None = None,
    progress: Callable[[int, float], None] = lambda rows, finished: None,
) -> list[str]:
    """Return the translation of each text, on one line, in the order of the texts; that of a blank text is empty.

    `trained` is a sequence-to-sequence model from `load_trained`. Texts are sorted by length and batched inside.
    Raises `UserError` for more tokens than the model has positions, and more beams than half of its vocabulary.
    """
    from fastbert.models.seq2seq.generation import GenerationSettings
    from fastbert.tasks.predicting import predict
    from fastbert.tasks.seq2seq.task import SequenceToSequence

    settings = settings or TranslationSettings()
    task, config = trained.task, trained.model.config
    assert isinstance(task, SequenceToSequence)
    room = settings.max_new_tokens or task.settings.max_target_length - 1
    if room > config.max_position_embeddings:
        raise UserError(f"max_new_tokens={room} is more than the model's {config.max_position_embeddings} positions")
    task.generation = GenerationSettings(
        beams=settings.beams,
        max_target_length=room + 1,
        length_penalty=settings.length_penalty,
        length_form="wu",
        early_stopping=False,
    )
    numbers = [number for number, text in enumerate(texts) if text.strip()]
    examples = tuple(
        SequenceExample(id=str(number), location=f"line {number + 1}", source=texts[number]) for number in numbers
    )
    translations = [""] * len(texts)
    if not examples:
        return translations
    _report_long(trained, [example.source for example in examples], numbers)
    dataset = Dataset("the text", examples)
    predictions = predict(task, trained.model, trained.tokenizer, dataset, batch_tokens=batch_tokens, progress=progress)
    for number, prediction in zip(numbers, predictions, strict=True):
        translations[number] = cell(prediction["text"])
    return translations


def _report_long(trained: Trained, sources: list[str], numbers: list[int]) -> None:
    """Log how many texts are truncated."""
    most = trained.task.settings.max_length
    longer = np.flatnonzero(np.diff(trained.tokenizer.encode_ragged(sources, True)[1]) > most)
    if len(longer):
        others = f", and so are {len(longer) - 1:,} more" if len(longer) > 1 else ""
        logger.warning(
            "line %d has more than %d tokens and is truncated%s; --max-length raises the limit",
            numbers[int(longer[0])] + 1,
            most,
            others,
        )

"""The architectures by name. A new one adds a package beside `fastbert.models.bert` and a line here."""

from __future__ import annotations

from fastbert.errors import UserError
from fastbert.models.architecture import Architecture, TransformersLayout
from fastbert.models.bert.architecture import BERT
from fastbert.models.distilbert.architecture import DISTILBERT
from fastbert.models.electra.architecture import ELECTRA
from fastbert.models.roberta.architecture import ROBERTA

ARCHITECTURES: dict[str, Architecture] = {
    architecture.name: architecture for architecture in (BERT, ROBERTA, ELECTRA, DISTILBERT)
}


def architecture(name: str) -> Architecture:
    """Return an architecture by its `model_type`. Raises UserError for one that is not registered."""
    if name not in ARCHITECTURES:
        raise UserError(f"model_type={name!r} is not one of {', '.join(ARCHITECTURES)}")
    return ARCHITECTURES[name]


def layouts() -> tuple[TransformersLayout, ...]:
    """Return the encoders of transformers that fastbert accelerates."""
    return tuple(layout for record in ARCHITECTURES.values() for layout in record.layouts)

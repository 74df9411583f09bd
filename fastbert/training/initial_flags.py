"""The flags of a run's initial model: its weights, new ones or those of a folder, its positions and its norms.

Imports no torch: the command line is generated from this class.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, cast

from fastbert.checkpoints.source import find_source
from fastbert.errors import UserError
from fastbert.flags import MODEL, flag, rare

NEW_WEIGHTS = ("structured", "normal")
"""The values of --init that are not a folder."""
MOST_POSITIONS = 1 << 20
POSITIONS = ("repeat", "interpolate")
PRE_NORM = "roberta-prelayernorm"
"""The architecture that --norm pre stands for, by transformers' name."""
PRE_NORM_BASES = ("bert", "roberta", PRE_NORM)


@dataclass(frozen=True, kw_only=True)
class InitialModelFlags:
    """The initial model, and what is changed of it."""

    GROUP: ClassVar = MODEL

    init: str | None = None
    """Initial weights: a folder of a pre-trained model to continue, of any architecture and with any head; or new ones,
    normal as published, or structured, where the output bias holds word frequencies and heads of the first layer attend
    to neighbouring words (default: structured, unless the run is long)."""
    max_positions: int | None = rare(None)
    """Tokens in the longest sequence that the model has positions for: extends the position table of --init, or sets
    the size of a new one (default: that of --init; 512 for a new model)."""
    extend_positions: Literal["repeat", "interpolate"] | None = rare(None)
    """New positions of --max-positions: repetitions of the table of --init, or the table stretched by linear
    interpolation (default: repeat)."""
    norm: Literal["post", "pre"] | None = rare(None)
    """LayerNorm behind each sub-layer of BERT or RoBERTa as published, or in front of it (Xiong et al. 2020); such a
    model is saved as transformers' RoBERTa-PreLayerNorm (default: post)."""

    @property
    def initial_folder(self) -> str | None:
        """Return the folder of --init, None for new weights."""
        return None if self.init in (None, *NEW_WEIGHTS) else self.init

    def find_initial(self) -> Path:
        """Return the path of --init, as `find_source` does. Raises `UserError`."""
        assert self.initial_folder is not None
        try:
            return find_source(self.initial_folder)
        except UserError as error:
            kinds = " nor ".join(NEW_WEIGHTS)
            raise UserError(f"--init {self.initial_folder}: is neither {kinds}, and no model: {error}") from None

    @property
    def pre_norm(self) -> bool:
        """Return whether --norm pre replaces the norms of a BERT or RoBERTa."""
        return self.norm == "pre" and self.initial_folder is None

    def check_flags(self) -> None:
        """Raise `UserError` for values out of range, and for flags that contradict each other."""
        config = cast(Any, self)
        folder = self.initial_folder
        if self.init == "":
            raise UserError(f"--init '': is empty; give {' or '.join(NEW_WEIGHTS)}, or the folder of a model")
        config.require(
            (
                "max_positions",
                self.max_positions is None or 1 <= self.max_positions <= MOST_POSITIONS,
                f"from 1 to {MOST_POSITIONS:,}",
            ),
            ("extend_positions", self.extend_positions in (None, *POSITIONS), " or ".join(POSITIONS)),
            ("norm", self.norm in (None, "post", "pre"), "post or pre"),
        )
        if self.extend_positions is not None and (folder is None or self.max_positions is None):
            raise UserError(
                "--extend-positions extends the position table of a model: give --init with its folder and"
                " --max-positions, or leave it out"
            )
        if folder is None:
            self._check_norm(config.architecture)
            for name in ("norm", "max_positions"):
                if config.student_layers is not None and getattr(self, name) not in (None, "post"):
                    raise UserError(
                        f"{flag(name)} and --student-layers exclude each other: a student has its teacher's layers and"
                        " positions; leave one out"
                    )
            return
        for name in ("teacher", "student_layers"):
            if getattr(config, name) is not None:
                raise UserError(
                    f"--init {folder} and {flag(name)} exclude each other: a model starts from one of them; leave one"
                    " out"
                )
        for name in ("vocab_size", "vocab_kind", "cased", "lower_case"):
            if getattr(config, name):
                raise UserError(
                    f"{flag(name)} is for a vocabulary that is built, and --init {folder} has its own; leave one out"
                )

    def _check_norm(self, architecture: str | None) -> None:
        """Raise `UserError` for norms that an architecture does not have."""
        if self.norm == "pre" and architecture not in (None, *PRE_NORM_BASES):
            raise UserError(
                f"--norm pre: is for {' and '.join(PRE_NORM_BASES[:2])}, not --architecture {architecture}; leave one"
                " out"
            )
        if self.norm == "post" and architecture == PRE_NORM:
            raise UserError(f"--norm post: --architecture {PRE_NORM} has its norms in front; leave one out")

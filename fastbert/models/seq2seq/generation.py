"""Greedy generation, and beam search with the rules of transformers' `generate`.

Finished sources leave the batch at once, so nothing is computed for them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from fastbert.errors import UserError
from fastbert.ops.native.best_tokens import best_tokens

MOST_PENALTY = 10
"""The largest exponent of a text's length, and the smallest with the other sign."""


@dataclass(frozen=True, kw_only=True)
class GenerationSettings:
    """Settings of generation. `max_target_length` counts tokens including [CLS] and [SEP], as in training.

    `beams`: hypotheses per source; 1 is greedy. The score of a finished hypothesis is the sum of its tokens' log
    probabilities divided by their number to the power of `length_penalty`: above 0 favours long ones. With
    `length_form="wu"` the base of the power is (5 + number) / 6 (Wu et al. 2016, equation 14, as in Vaswani et al. 2017
    with 0.6).
    `early_stopping`: stop a source when it has as many finished hypotheses as beams; else when no open hypothesis
    would score better at its present length. Raises `UserError` for invalid values.
    """

    beams: int = 1
    max_target_length: int = 64
    length_penalty: float = 1.0
    early_stopping: bool = True
    length_form: Literal["power", "wu"] = "power"

    def __post_init__(self) -> None:
        for name, least in (("beams", 1), ("max_target_length", 2)):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise UserError(f"{name}={value!r} must be an integer of at least {least}")
        penalty = self.length_penalty
        if not isinstance(penalty, int | float) or not -MOST_PENALTY <= penalty <= MOST_PENALTY:
            raise UserError(f"length_penalty={penalty!r} must be a number from -{MOST_PENALTY} to {MOST_PENALTY}")
        if self.length_form not in ("power", "wu"):
            raise UserError(f"length_form={self.length_form!r} must be 'power' or 'wu'")

    @property
    def room(self) -> int:
        """The largest number of generated tokens, with the end."""
        return self.max_target_length - 1


@dataclass(frozen=True)
class Generated:
    """The generated targets, one per source: ids without [CLS] and [SEP], scores as in `GenerationSettings`, and
    whether the model ended the target itself."""

    tokens: list[list[int]]
    scores: list[float]
    ended: list[bool]


class SearchSettings(Protocol):
    """The settings that `greedy` and `beam_search` read, as in `GenerationSettings`."""

    @property
    def beams(self) -> int:
        """The number of hypotheses per source."""

    @property
    def room(self) -> int:
        """The largest number of generated tokens, with the end."""

    @property
    def length_penalty(self) -> float:
        """The power of the length by which scores are divided."""

    @property
    def early_stopping(self) -> bool:
        """True if a source ends with as many finished hypotheses as beams."""


class Decoding(Protocol):
    """The state of generation, one row per hypothesis; the rows of a source are adjacent."""

    def first(self) -> Tensor:
        """Return logits (sources, vocab_size) of the first tokens, one row per source."""

    def step(self, tokens: Tensor) -> Tensor:
        """Append `tokens`, int64 (rows,); return logits (rows, vocab_size) of the tokens after them."""

    def select(self, rows: Tensor, sources: Tensor | None, readers: int) -> None:
        """Keep these rows, int64: `readers` rows for each of `sources`, int64, or of all sources (None)."""


def length_divisor(length: Any, settings: SearchSettings) -> Any:
    """Return the divisor of the sum of log probabilities of hypotheses with this number of tokens, or fp32 tensor of
    numbers."""
    wu = isinstance(settings, GenerationSettings) and settings.length_form == "wu"
    return ((5 + length) / 6 if wu else length) ** settings.length_penalty


Choice = Callable[[Tensor, int, Tensor], tuple[Tensor, Tensor]]
"""From logits (rows, vocab_size), a step from 0, and the sources' numbers int64 (rows,) to a token of each, int64
(rows,), and its log probability, fp32 (rows,)."""


def greedy(decoding: Decoding, count: int, end: int, settings: SearchSettings) -> Generated:
    """Generate the most probable token at each step, for `count` sources."""
    return token_by_token(decoding, count, end, settings, lambda logits, step, rows: best_tokens(logits))


def token_by_token(decoding: Decoding, count: int, end: int, settings: SearchSettings, choose: Choice) -> Generated:
    """Generate one text for each of `count` sources; `choose` takes its next token."""
    logits = decoding.first()
    written = torch.full((count, settings.room), end, device=logits.device)
    totals, lengths = torch.zeros(count, device=logits.device), torch.zeros_like(written[:, 0])
    rows = torch.arange(count, device=logits.device)
    for step in range(settings.room):
        tokens, logs = choose(logits, step, rows)
        totals[rows] += logs
        written[rows, step], lengths[rows] = tokens, step + 1
        open_rows = (tokens != end).nonzero().flatten()
        if not len(open_rows) or step + 1 == settings.room:
            break
        if len(open_rows) < len(tokens):
            rows, tokens = rows[open_rows], tokens[open_rows]
            decoding.select(open_rows, open_rows, 1)
        logits = decoding.step(tokens)
    scores = totals / length_divisor(lengths.float(), settings)
    return without_end(written, lengths, scores, end)


def beam_search(decoding: Decoding, count: int, end: int, settings: SearchSettings) -> Generated:
    """Return the best finished hypothesis of each of `count` sources.

    Each step takes the 2 * beams best continuations of a source's hypotheses. Those among the first `beams` that end
    are finished; the best `beams` that do not end are continued.
    """
    logits = decoding.first()
    beams, width = settings.beams, logits.shape[1]
    if 2 * beams > width:
        raise UserError(f"beams={beams} must be at most half of the vocabulary's {width} tokens")
    search = _Search(count, settings, logits.device)
    best = _Best(count, settings.room, logits.device)
    for step in range(settings.room):
        scores, parents, tokens = search.continuations(logits)
        done = search.finish(step, scores, parents, tokens, tokens == end)
        last = step + 1 == settings.room
        closed = torch.ones_like(done) if last else done
        best.take(search, closed)
        if last or bool(done.all()):
            break
        # One host-device sync per step, as above: which sources continue.
        going = (~done).nonzero().flatten()
        rows, tokens = search.go_on(step, scores, parents, tokens, tokens == end, going)
        sources = None if len(going) == len(done) else going
        decoding.select(rows, sources, beams)
        logits = decoding.step(tokens)
    return without_end(best.written, best.lengths, best.scores, end)


class _Search:
    """The open hypotheses, and the best finished ones, of the sources that are not done."""

    def __init__(self, count: int, settings: SearchSettings, device: torch.device) -> None:
        beams, room = settings.beams, settings.room
        self.settings = settings
        self.sources = torch.arange(count, device=device)
        self.totals = torch.zeros(count, 1, device=device)
        self.open = torch.zeros(count, 1, room, dtype=torch.int64, device=device)
        self.finished = torch.zeros(count, beams, room, dtype=torch.int64, device=device)
        self.lengths = torch.zeros(count, beams, dtype=torch.int64, device=device)
        self.scores = torch.full((count, beams), -math.inf, device=device)

    def continuations(self, logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the 2 * beams best continuations per source, best first: sums of log probabilities, the hypotheses
        they continue, and their tokens; (sources, 2 * beams) each."""
        count, hypotheses = self.totals.shape
        wide = logits.float()
        likeliest = wide.topk(2 * self.settings.beams, dim=-1)
        logs = likeliest.values - wide.logsumexp(-1, keepdim=True)
        sums = (logs.view(count, hypotheses, -1) + self.totals[..., None]).flatten(1)
        chosen = sums.topk(2 * self.settings.beams, dim=-1)
        tokens = likeliest.indices.view(count, -1).gather(1, chosen.indices)
        return chosen.values, chosen.indices // likeliest.indices.shape[1], tokens

    def finish(self, step: int, sums: Tensor, parents: Tensor, tokens: Tensor, ends: Tensor) -> Tensor:
        """Keep the best finished hypotheses; return which sources are done, bool (sources,)."""
        beams, length = self.settings.beams, step + 1
        whole = length == self.settings.room
        scores = sums[:, :beams] / length_divisor(length, self.settings)
        if not whole:
            scores = scores.masked_fill(~ends[:, :beams], -math.inf)
        texts = self._continued(step, parents[:, :beams], tokens[:, :beams])
        merged = torch.cat((self.scores, scores), dim=1).topk(beams, dim=1)
        self.scores, chosen = merged.values, merged.indices
        lengths = torch.cat((self.lengths, torch.full_like(tokens[:, :beams], length)), dim=1)
        self.lengths = lengths.gather(1, chosen)
        room = texts.shape[-1]
        self.finished = torch.cat((self.finished, texts), dim=1).gather(1, chosen[..., None].expand(-1, -1, room))
        full = self.scores[:, -1] > -math.inf
        if self.settings.early_stopping:
            return full
        likeliest = sums.masked_fill(ends, -math.inf).amax(1) / length_divisor(length, self.settings)
        return full & (likeliest <= self.scores[:, -1])

    def go_on(
        self, step: int, sums: Tensor, parents: Tensor, tokens: Tensor, ends: Tensor, going: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Continue the sources `going`, int64; return the rows that their hypotheses continue, and their tokens."""
        beams, before = self.settings.beams, self.totals.shape[1]
        chosen = sums.masked_fill(ends, -math.inf).topk(beams, dim=1)
        texts = self._continued(step, parents.gather(1, chosen.indices), tokens.gather(1, chosen.indices))
        rows = torch.arange(len(sums), device=sums.device)[:, None] * before + parents.gather(1, chosen.indices)
        self.totals, self.open = chosen.values[going], texts[going]
        self.sources, self.finished = self.sources[going], self.finished[going]
        self.lengths, self.scores = self.lengths[going], self.scores[going]
        return rows[going].flatten(), self.open[:, :, step].flatten()

    def _continued(self, step: int, parents: Tensor, tokens: Tensor) -> Tensor:
        """Return the hypotheses `parents` with one more token: (sources, hypotheses, room)."""
        texts = self.open.gather(1, parents[..., None].expand(-1, -1, self.open.shape[-1]))
        texts[..., step] = tokens
        return texts


class _Best:
    """The best hypothesis of every source that is done."""

    def __init__(self, count: int, room: int, device: torch.device) -> None:
        self.written = torch.zeros(count, room, dtype=torch.int64, device=device)
        self.lengths = torch.zeros(count, dtype=torch.int64, device=device)
        self.scores = torch.zeros(count, device=device)

    def take(self, search: _Search, closed: Tensor) -> None:
        """Store the best hypotheses of the sources that are `closed`, bool."""
        sources = search.sources[closed]
        self.written[sources] = search.finished[closed, 0]
        self.lengths[sources] = search.lengths[closed, 0]
        self.scores[sources] = search.scores[closed, 0]


def without_end(written: Tensor, lengths: Tensor, scores: Tensor, end: int) -> Generated:
    """Return the targets as lists, without the end token."""
    texts, ended = [], []
    for row, length in zip(written.tolist(), lengths.tolist(), strict=True):
        row = row[:length]
        ended.append(bool(row) and row[-1] == end)
        texts.append(row[:-1] if ended[-1] else row)
    return Generated(texts, scores.tolist(), ended)

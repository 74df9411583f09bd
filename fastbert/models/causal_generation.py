"""Generate text with left-to-right language models: greedy, beams, or sampling from the most probable tokens."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fastbert.errors import UserError
from fastbert.models.causal_decoding import CausalDecoding
from fastbert.models.heads.causal import ForCausalLM
from fastbert.models.packed import Packed
from fastbert.models.padded import refuse_graphs
from fastbert.models.seq2seq.generation import MOST_PENALTY, Decoding, Generated, beam_search, greedy, token_by_token
from fastbert.ops.native.matmul_table import same_in_every_batch
from fastbert.packing import PackedBatch

NO_END = -1  # the id of no token: texts end at `max_new_tokens`
_SORTED_AT_ONCE = 1024  # most probable tokens that usually hold `top_p` of the probability


@dataclass(frozen=True, kw_only=True)
class TextSettings:
    """Settings of the generation of text.

    `beams`, `length_penalty` and `early_stopping` are those of `fastbert.models.seq2seq.generation.GenerationSettings`.
    `temperature` divides the logits, `top_k` keeps the k most probable tokens (Fan et al. 2018), `top_p` the fewest
    with at least this probability together (nucleus sampling, Holtzman et al. 2020); if one of them is set, tokens are
    drawn, as a function of `seed`, the prompt's number and the token's position alone. Raises `UserError` for invalid
    values.
    """

    max_new_tokens: int = 64
    beams: int = 1
    length_penalty: float = 1.0
    early_stopping: bool = True
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("max_new_tokens", "beams", "top_k"):
            value = getattr(self, name)
            if value is None and name == "top_k":
                continue
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise UserError(f"{name}={value!r} must be a positive integer")
        if not isinstance(self.seed, int) or not 0 <= self.seed < 1 << 63:
            raise UserError(f"seed={self.seed!r} must be from 0 to 2^63 - 1")
        for name, low, high in (("temperature", 0.0, math.inf), ("top_p", 0.0, 1.0)):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, int | float) and low < value <= high and value < math.inf):
                bounds = "above 0 and finite" if name == "temperature" else "above 0 and at most 1"
                raise UserError(f"{name}={value!r} must be {bounds}")
        penalty = self.length_penalty
        if not isinstance(penalty, int | float) or not -MOST_PENALTY <= penalty <= MOST_PENALTY:
            raise UserError(f"length_penalty={penalty!r} must be a number from -{MOST_PENALTY} to {MOST_PENALTY}")
        if self.samples and self.beams > 1:
            raise UserError(
                f"beams={self.beams} finds the most probable text, but temperature, top_k and top_p draw one"
            )

    @property
    def samples(self) -> bool:
        """Return whether tokens are drawn."""
        return any(value is not None for value in (self.temperature, self.top_k, self.top_p))

    @property
    def room(self) -> int:
        """The largest number of new tokens, with the end."""
        return self.max_new_tokens


def generate(
    model: ForCausalLM,
    batch: PackedBatch | Tensor | None = None,
    attention_mask: Tensor | None = None,
    *,
    input_ids: Tensor | None = None,
    settings: TextSettings | None = None,
    end: int | None = None,
    numbers: list[int] | None = None,
) -> Generated:
    """Continue each prompt, a row of a `PackedBatch` or of padded int64 ids (B, S), without dropout.

    `end` is the token with which texts end (None: the config's `eos_token_id`; without one, texts have
    `max_new_tokens`). `numbers` are those of the prompts for sampling (None: 0, 1, ...): a prompt's text depends on its
    number, not on its batch. Returns the new tokens, without the end. Raises `UserError` for prompts without tokens,
    and for texts longer than the position table.
    """
    refuse_graphs(f"generation with {type(model).__name__}", "its encoder can be")
    model.refuse_later_tokens()
    prompts = Packed(batch, input_ids, attention_mask, None, None, always_packed=True).batch
    settings = settings or TextSettings()
    end = end_token(model) if end is None else end
    if not len(prompts):
        return Generated([], [], [])
    check_prompts(model, prompts, settings)
    training = model.training
    if training:
        model.train(False)
    try:
        # A prompt's text must not depend on others that leave the batch.
        with torch.no_grad(), same_in_every_batch():
            decoding = CausalDecoding(model, prompts, settings.room)
            if settings.samples:
                rows = list(range(len(prompts))) if numbers is None else numbers
                if len(rows) != len(prompts):
                    raise UserError(f"numbers has {len(rows)} items, but there are {len(prompts)} prompts")
                return sample(decoding, rows, end, settings)
            search = greedy if settings.beams == 1 else beam_search
            return search(decoding, len(prompts), end, settings)
    finally:
        if training:
            model.train()


def end_token(model: ForCausalLM) -> int:
    """Return the id of the token with which the model's texts end, `NO_END` if its config names none."""
    config: Any = model.config
    end = getattr(config, "eos_token_id", None)
    end = config.extra.get("eos_token_id") if end is None else end
    return end if isinstance(end, int) and 0 <= end < config.vocab_size else NO_END


def check_prompts(model: ForCausalLM, prompts: PackedBatch, settings: TextSettings) -> None:
    """Raise `UserError` for prompts without tokens or outside of the model's tables, and for texts that are too long; a
    host-device sync on a GPU."""
    lengths = prompts.cu_seqlens.diff()
    if int(lengths.min()) < 1:
        raise UserError(
            f"prompt {int(lengths.argmin())} has no tokens: begin it with a word, or the model's first token"
        )
    model.base_model.check_ranges(prompts)
    positions = model.config.max_sequence_length
    longest = int(lengths.max())
    if longest + settings.room - 1 > positions:
        fewer = positions + 1 - longest
        cure = f"generate at most {fewer} tokens" if fewer > 0 else f"shorten it to at most {positions} tokens"
        raise UserError(
            f"prompt {int(lengths.argmax())} has {longest} tokens: max_new_tokens={settings.room} makes a text longer"
            f" than the model's {positions} positions; {cure}"
        )


def sample(decoding: Decoding, numbers: list[int], end: int, settings: TextSettings) -> Generated:
    """Draw each token from the filtered distribution of `settings`, for the prompts of these numbers.

    Scores are those of the drawn tokens under the model itself.
    """
    draws = uniform_draws(settings.seed, numbers, settings.room)

    def draw(logits: Tensor, step: int, rows: Tensor) -> tuple[Tensor, Tensor]:
        wide = logits.float()
        tokens = draw_tokens(wide, draws[:, step].to(rows.device)[rows], settings)
        return tokens, wide.gather(1, tokens[:, None])[:, 0] - wide.logsumexp(-1)

    return token_by_token(decoding, len(numbers), end, settings, draw)


def uniform_draws(seed: int, numbers: list[int], room: int) -> Tensor:
    """Return the uniform numbers from 0 to 1 of each prompt's tokens, fp64 (prompts, room)."""
    draws = [np.random.Generator(np.random.Philox(key=[seed, number])).random(room) for number in numbers]
    return torch.from_numpy(np.stack(draws))


def draw_tokens(logits: Tensor, draws: Tensor, settings: TextSettings) -> Tensor:
    """Draw a token, int64 (rows,), from logits fp32 (rows, vocab_size) by the inverse of the distribution function at
    `draws` (rows,)."""
    scaled = logits
    if settings.temperature is not None:
        scaled = (logits - logits.amax(-1, keepdim=True)) / settings.temperature  # at any temperature the best is 0
    if settings.top_k is None and settings.top_p is None:
        return _inverse(scaled.softmax(-1), draws)
    width = scaled.shape[1]
    if settings.top_k is not None:
        values, ids = scaled.topk(min(settings.top_k, width), dim=-1)
        total = values.logsumexp(-1, keepdim=True)  # the probabilities of the rest are removed first
    else:
        values, ids = scaled.topk(min(_SORTED_AT_ONCE, width), dim=-1)
        total = scaled.logsumexp(-1, keepdim=True)
        held = (values - total).exp().double().sum(-1)
        if bool((held < (settings.top_p or 1.0)).any()) and len(values[0]) < width:
            values, ids = scaled.sort(dim=-1, descending=True)
    probabilities = (values - total).exp()
    if settings.top_p is not None:
        before = probabilities.double().cumsum(-1) - probabilities
        probabilities = probabilities.masked_fill(before >= settings.top_p, 0.0)
    return ids.gather(1, _inverse(probabilities, draws)[:, None])[:, 0]


def _inverse(weights: Tensor, draws: Tensor) -> Tensor:
    """Return the index at which the running sum of weights (rows, entries) exceeds a draw's share of the total."""
    sums = weights.double().cumsum(-1)
    indices = torch.searchsorted(sums, (draws * sums[:, -1])[:, None], right=True)[:, 0]
    # A draw of nearly 1 may round up to the total: the last entry that has weight is meant.
    last = weights.shape[1] - 1 - (weights > 0).flip(1).int().argmax(1)
    return torch.minimum(indices, last)

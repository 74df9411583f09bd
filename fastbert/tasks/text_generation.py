"""Continue texts with a left-to-right language model: from strings to strings, in batches of similar length."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from fastbert.checkpoints.source import find_source
from fastbert.errors import UserError
from fastbert.io.text import has_surrogates
from fastbert.models import registry
from fastbert.models.causal_generation import TextSettings, generate
from fastbert.models.heads.causal import ForCausalLM
from fastbert.packing import PackedBatch
from fastbert.tasks.row_template import first_token
from fastbert.tokenizers.fit import check_tokenizer
from fastbert.tokenizers.loading import load_tokenizer
from fastbert.tokenizers.tokenizer import Tokenizer

ROWS = 32  # texts per batch
SAMPLE_BITS = 40  # of a text's number for sampling, below the number of its sample
_WINDOW = 64 * ROWS  # prompts that are sorted by length together


@dataclass(frozen=True)
class Continuation:
    """A generated text."""

    prompt: str
    text: str
    """The new text alone."""
    whole: str
    """The prompt as the model read it, and the new text."""
    tokens: int
    """New tokens, without the end."""
    score: float
    """The mean log probability of the new tokens, in nats; with `length_penalty` as beam search counts it."""
    ended: bool
    """True if the model ended the text itself."""


def load_language_model(source: str | Path, dtype: torch.dtype | None = None) -> tuple[ForCausalLM, Tokenizer]:
    """Load the language model and the tokenizer of a folder, or of a run's folder.

    Raises `UserError` for models that see the whole text, and for a tokenizer that is not the model's.
    """
    folder = find_source(source)
    config = registry.read_config(folder)
    if not config.is_decoder:
        raise UserError(
            f"{source}: a model of {config.model_type} that sees the whole text does not generate; use one trained with"
            " --objective ltr"
        )
    model: ForCausalLM = registry.load_with_head(folder, "ForCausalLM", dtype=dtype)
    missing = [name for name in model.new_weights if not name.startswith(f"{model.base_model_prefix}.")]
    if missing:
        raise UserError(
            f"{source}: holds no language-model head: it lacks {missing[0]}; use the folder of a pre-trained model"
        )
    tokenizer = load_tokenizer(folder)
    check_tokenizer(tokenizer, model.config.vocab_size, str(source))
    return model, tokenizer


def continue_texts(
    model: ForCausalLM,
    tokenizer: Tokenizer,
    prompts: Iterable[str],
    settings: TextSettings | None = None,
    *,
    samples: int = 1,
    progress: Callable[[int], None] | None = None,
) -> Iterator[Continuation]:
    """Yield `samples` continuations of each prompt, in the order of the prompts.

    A continuation depends on its prompt, its number and the seed, not on its batch. `progress` gets the number of
    finished prompts. Raises `UserError` for prompts that are too long, with their number from 1.
    """
    settings = settings or TextSettings()
    if samples < 1 or (samples > 1 and not settings.samples):
        raise UserError(f"samples={samples}: several texts per prompt need a temperature, top_k or top_p to differ")
    source, first = iter(prompts), 0
    while window := list(islice(source, _WINDOW)):
        yield from _continue_window(model, tokenizer, window, first, settings, samples, progress)
        first += len(window)


def _continue_window(
    model: ForCausalLM,
    tokenizer: Tokenizer,
    window: Sequence[str],
    first: int,
    settings: TextSettings,
    samples: int,
    progress: Callable[[int], None] | None,
) -> Iterator[Continuation]:
    rows = [_prompt_ids(model, tokenizer, text, first + i, settings) for i, text in enumerate(window)]
    work = [(index, sample) for index in range(len(rows)) for sample in range(samples)]
    work.sort(key=lambda item: len(rows[item[0]]))
    results: dict[tuple[int, int], Continuation] = {}
    for begin in range(0, len(work), ROWS):
        part = work[begin : begin + ROWS]
        batch = pack_rows([rows[index] for index, _ in part], model.device)
        numbers = [first + index + (sample << SAMPLE_BITS) for index, sample in part]
        generated = generate(model, batch, settings=settings, numbers=numbers)
        for key, tokens, score, ended in zip(part, generated.tokens, generated.scores, generated.ended, strict=True):
            prompt = window[key[0]]
            before = tokenizer.decode(rows[key[0]], skip_special_tokens=True)
            whole = tokenizer.decode([*rows[key[0]], *tokens], skip_special_tokens=True)
            text = whole.removeprefix(before)
            results[key] = Continuation(prompt, text, whole, len(tokens), score, ended)
        if progress is not None:
            progress(first + (begin + len(part)) // samples)
    for index in range(len(rows)):
        for sample in range(samples):
            yield results[index, sample]


def _prompt_ids(model: ForCausalLM, tokenizer: Tokenizer, text: str, number: int, settings: TextSettings) -> list[int]:
    """Return the ids of a prompt behind the special tokens with which texts begin; of a tokenizer without them, an
    empty prompt is the token for the beginning of texts. Raises `UserError` if it is too long."""
    if has_surrogates(text):
        raise UserError(f"prompt {number + 1}: {text!r} is not valid Unicode: give it as UTF-8")
    ids: list[int] = [*tokenizer.prefix_ids, *tokenizer(text, add_special_tokens=False)["input_ids"]]
    ids = ids or [first_token(tokenizer)]
    limit = model.config.max_sequence_length
    if len(ids) + settings.room - 1 > limit:
        room = limit + 1 - len(ids)
        fewer = f"generate at most {room} tokens with --max-new-tokens, not {settings.room}, or shorten it"
        raise UserError(
            f"prompt {number + 1} has {len(ids)} tokens, and the model {limit} positions:"
            f" {fewer if room > 0 else f'shorten it to at most {limit}'}"
        )
    return ids


def pack_rows(rows: Sequence[Sequence[int]], device: Any) -> PackedBatch:
    """Return rows of ids as a batch: segment 0, positions from 0."""
    lengths = torch.tensor([len(row) for row in rows], dtype=torch.int64)
    ends = lengths.cumsum(0)
    total = int(ends[-1]) if len(rows) else 0
    sequences = torch.arange(len(rows)).repeat_interleave(lengths)
    ids = torch.tensor([token for row in rows for token in row], dtype=torch.int64)
    return PackedBatch(
        input_ids=ids,
        token_type_ids=torch.zeros_like(ids),
        position_ids=torch.arange(total) - (ends - lengths)[sequences],
        sequence_ids=sequences,
        cu_seqlens=torch.cat((ends.new_zeros(1), ends)).to(torch.int32),
        max_seqlen=int(lengths.max()) if len(rows) else 0,
    ).to(device)

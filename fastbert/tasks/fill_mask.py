"""Fill in blanks: the tokens that a masked language model predicts for [MASK], or for `<mask>` where the tokenizer
writes masks so."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fastbert.errors import UserError
from fastbert.io.text import has_surrogates
from fastbert.models.finite import check_finite
from fastbert.models.heads.pretraining import MaskedLanguageModel
from fastbert.packing import PackedBatch
from fastbert.tokenizers.fit import check_tokenizer
from fastbert.tokenizers.tokenizer import Tokenizer

MASKS = ("[MASK]", "<mask>")
MOST_LOGITS = 1 << 24
"""Logits that are in memory at a time."""


@dataclass(frozen=True)
class Guess:
    """One candidate for a blank: the token (WordPiece's with "##" if it continues a word, others as in text), its
    probability, the text with it filled in, and its id."""

    token: str
    probability: float
    text: str
    token_id: int


def fill_mask(model: MaskedLanguageModel, tokenizer: Tokenizer, text: str, top_k: int = 5) -> list[list[Guess]]:
    """Return the `top_k` most probable tokens for each mask in `text`, best first; one list per blank.

    A mask is the tokenizer's mask token; in a text without it, [MASK] and <mask> stand for it. Special tokens are left
    out. Raises `UserError` when the text holds no mask, is longer than the model's positions, or `top_k` is out of
    range.
    """
    check_head(model)
    text = with_mask(tokenizer, text)
    check_count(tokenizer, top_k)
    check_tokenizer(tokenizer, model.config.vocab_size)
    if has_surrogates(text):
        raise UserError(f"the text {text!r} is not valid Unicode: give it as UTF-8")
    limit = model.config.max_sequence_length
    batch = tokenizer.pack([text], max_length=None).to(model.device)
    if batch.num_tokens > limit:
        raise UserError(f"the text has {batch.num_tokens} tokens, the model reads {limit}: shorten it")
    positions = (batch.input_ids == tokenizer.mask_token_id).nonzero().flatten()
    if not len(positions):
        raise no_mask(tokenizer, text)
    model.eval()
    with torch.no_grad():
        values, candidates = candidates_of(model, tokenizer, batch, positions, top_k, lambda _: repr(text))
    return guesses(tokenizer, text, batch.input_ids.tolist(), values.tolist(), candidates.tolist())


def check_head(model: MaskedLanguageModel) -> None:
    """Raise `UserError` for a model whose files hold no masked-LM head."""
    if any(name.startswith("cls.predictions") for name in model.new_weights):
        raise UserError(
            "the model's files hold no masked-LM head, so its guesses would be random;"
            " use the folder of a pre-trained model that has one"
        )


def with_mask(tokenizer: Tokenizer, text: str) -> str:
    """Return a text with the tokenizer's mask in place of [MASK] and <mask>, unless it has that already. Raises
    `UserError` for a tokenizer without a mask."""
    if tokenizer.mask_token_id is None:
        raise UserError("the tokenizer has no token for masks: name one as mask_token in its files")
    mask = _mask_of(tokenizer)
    return text if mask in text else functools.reduce(lambda text, other: text.replace(other, mask), MASKS, text)


def check_count(tokenizer: Tokenizer, top_k: int) -> None:
    """Raise `UserError` unless the vocabulary has so many tokens that can be an answer."""
    answers = len(tokenizer) - len(tokenizer.all_special_ids)
    if not 1 <= top_k <= answers:
        raise UserError(f"top_k={top_k} must be between 1 and the vocabulary's {answers} entries that can be an answer")


def no_mask(tokenizer: Tokenizer, text: str) -> UserError:
    """Return the error of a text without a mask."""
    mask = _mask_of(tokenizer)
    return UserError(f"no {mask} in {text!r}: write {mask} where a word is to be filled in")


def candidates_of(
    model: MaskedLanguageModel,
    tokenizer: Tokenizer,
    batch: PackedBatch,
    positions: Tensor,
    top_k: int,
    source: Callable[[int], str],
) -> tuple[Tensor, Tensor]:
    """Return the probabilities, fp32, and the ids, int64, of the best tokens at the masks of a batch, (masks, top_k)
    each; `positions` are their indices. Raises `UserError` for logits that are not finite, naming the `source` of a
    mask."""
    x, _ = model.base_model.encode(batch, token_indices=positions)
    most = max(1, MOST_LOGITS // model.config.vocab_size)
    best = []
    for first in range(0, len(x), most):
        logits = model.cls.predictions(x[first : first + most]).float()
        check_finite(model, logits, lambda row: source(first + row))  # noqa: B023 - called at once
        logits[:, tokenizer.all_special_ids] = float("-inf")
        logits[:, len(tokenizer) :] = float("-inf")  # rows that only pad the table
        best.append(logits.softmax(-1).topk(top_k))
    return torch.cat([each.values for each in best]), torch.cat([each.indices for each in best])


def guesses(
    tokenizer: Tokenizer,
    text: str,
    ids: Sequence[int],
    probabilities: Sequence[Sequence[float]],
    candidates: Sequence[Sequence[int]],
) -> list[list[Guess]]:
    """Return the guesses for the masks of a text, whose tokens are `ids`, from the results of `candidates_of`."""
    mask = _mask_of(tokenizer)
    pieces, special = text.split(mask), set(tokenizer.all_special_ids)
    positions = [index for index, token_id in enumerate(ids) if token_id == tokenizer.mask_token_id]
    takes_space = tokenizer.added_tokens_decoder[tokenizer.mask_token_id].lstrip
    result = []
    for blank, (values, tokens) in enumerate(zip(probabilities, candidates, strict=True)):
        before, after = mask.join(pieces[: blank + 1]), mask.join(pieces[blank + 1 :])
        left = [token_id for token_id in ids[: positions[blank]] if token_id not in special]
        of_blank = []
        for token_id, value in zip(tokens, values, strict=True):
            text_of_token = _text_behind(tokenizer, left, token_id)
            name, word = tokenizer.convert_ids_to_tokens([token_id])[0], text_of_token.strip()
            # A mask that includes the space before it leaves it to the token whether there is one.
            filled = before.rstrip() + text_of_token if takes_space and before.strip() else before + word
            shown = name if name.removeprefix("##") == word else word
            of_blank.append(Guess(shown, value, filled + after, token_id))
        result.append(of_blank)
    return result


def _mask_of(tokenizer: Tokenizer) -> str:
    return str(tokenizer.convert_ids_to_tokens([tokenizer.mask_token_id])[0])


def _text_behind(tokenizer: Tokenizer, left: list[int], token_id: int) -> str:
    """Return a token as text behind other tokens, with the space that separates them, if any."""
    before, whole = tokenizer.decode(left), tokenizer.decode([*left, token_id])
    if left and whole.startswith(before):
        return str(whole[len(before) :])
    return str(tokenizer.decode([token_id]))

"""Fill in blanks: the tokens that a masked language model predicts for [MASK], or for `<mask>` where the tokenizer
writes masks so."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch

from fastbert.errors import UserError
from fastbert.io.text import has_surrogates
from fastbert.models.finite import check_finite
from fastbert.models.heads.pretraining import MaskedLanguageModel
from fastbert.tokenizers.fit import check_tokenizer
from fastbert.tokenizers.tokenizer import Tokenizer

MASKS = ("[MASK]", "<mask>")


@dataclass(frozen=True)
class Guess:
    """One candidate for a blank: the token (WordPiece's with "##" if it continues a word, others as in text), its
    probability, and the text with it filled in."""

    token: str
    probability: float
    text: str


def fill_mask(model: MaskedLanguageModel, tokenizer: Tokenizer, text: str, top_k: int = 5) -> list[list[Guess]]:
    """Return the `top_k` most probable tokens for each mask in `text`, best first; one list per blank.

    A mask is the tokenizer's mask token; in a text without it, [MASK] and <mask> stand for it. Special tokens are left
    out. Raises `UserError` when the text holds no mask, is longer than the model's positions, or `top_k` is out of
    range.
    """
    if any(name.startswith("cls.predictions") for name in model.new_weights):
        raise UserError(
            "the model's files hold no masked-LM head, so its guesses would be random;"
            " use the folder of a pre-trained model that has one"
        )
    if tokenizer.mask_token_id is None:
        raise UserError("the tokenizer has no token for masks: name one as mask_token in its files")
    mask = tokenizer.convert_ids_to_tokens([tokenizer.mask_token_id])[0]
    if mask not in text:
        text = functools.reduce(lambda text, other: text.replace(other, mask), MASKS, text)
    answers = len(tokenizer) - len(tokenizer.all_special_ids)
    if not 1 <= top_k <= answers:
        raise UserError(f"top_k={top_k} must be between 1 and the vocabulary's {answers} entries that can be an answer")
    check_tokenizer(tokenizer, model.config.vocab_size)
    if has_surrogates(text):
        raise UserError(f"the text {text!r} is not valid Unicode: give it as UTF-8")
    limit = model.config.max_sequence_length
    batch = tokenizer.pack([text], max_length=None).to(model.device)
    if batch.num_tokens > limit:
        raise UserError(f"the text has {batch.num_tokens} tokens, the model reads {limit}: shorten it")
    positions = (batch.input_ids == tokenizer.mask_token_id).nonzero().flatten()
    if not len(positions):
        raise UserError(f"no {mask} in {text!r}: write {mask} where a word is to be filled in")
    model.eval()
    with torch.no_grad():
        x, _ = model.base_model.encode(batch, token_indices=positions)
        logits = model.cls.predictions(x).float()
    check_finite(model, logits, lambda _: repr(text))
    logits[:, tokenizer.all_special_ids] = float("-inf")
    logits[:, len(tokenizer) :] = float("-inf")  # rows that only pad the table
    best = logits.softmax(-1).topk(top_k)
    pieces, ids = text.split(mask), batch.input_ids.tolist()
    special = set(tokenizer.all_special_ids)
    takes_space = tokenizer.added_tokens_decoder[tokenizer.mask_token_id].lstrip
    guesses = []
    for blank, (values, candidates) in enumerate(zip(best.values.tolist(), best.indices.tolist())):
        before, after = mask.join(pieces[: blank + 1]), mask.join(pieces[blank + 1 :])
        left = [token_id for token_id in ids[: positions[blank]] if token_id not in special]
        of_blank = []
        for token_id, value in zip(candidates, values):
            text_of_token = _text_behind(tokenizer, left, token_id)
            name, word = tokenizer.convert_ids_to_tokens([token_id])[0], text_of_token.strip()
            # A mask that includes the space before it leaves it to the token whether there is one.
            filled = before.rstrip() + text_of_token if takes_space and before.strip() else before + word
            shown = name if name.removeprefix("##") == word else word
            of_blank.append(Guess(shown, value, filled + after))
        guesses.append(of_blank)
    return guesses


def _text_behind(tokenizer: Tokenizer, left: list[int], token_id: int) -> str:
    """Return a token as text behind other tokens, with the space that separates them, if any."""
    before, whole = tokenizer.decode(left), tokenizer.decode([*left, token_id])
    if left and whole.startswith(before):
        return str(whole[len(before) :])
    return str(tokenizer.decode([token_id]))

"""Fill in blanks: the tokens that a masked language model predicts for [MASK]."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fastbert.errors import UserError
from fastbert.io.text import has_surrogates
from fastbert.models.finite import check_finite
from fastbert.models.heads.pretraining import MaskedLanguageModel
from fastbert.tokenizers.fit import check_tokenizer
from fastbert.tokenizers.tokenizer import Tokenizer


@dataclass(frozen=True)
class Guess:
    """One candidate for a blank: the token, its probability, and the text with it filled in."""

    token: str
    probability: float
    text: str


def fill_mask(model: MaskedLanguageModel, tokenizer: Tokenizer, text: str, top_k: int = 5) -> list[list[Guess]]:
    """Return the `top_k` most probable tokens for each [MASK] in `text`, best first; one list per blank.

    Special tokens are left out. Raises `UserError` when the text holds no [MASK], is longer than the
    model's positions, or `top_k` is out of range.
    """
    if any(name.startswith("cls.predictions") for name in model.new_weights):
        raise UserError(
            "the model's files hold no masked-LM head, so its guesses would be random;"
            " use the folder of a pre-trained model that has one"
        )
    mask = tokenizer.convert_ids_to_tokens([tokenizer.mask_token_id])[0]
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
    pieces = text.split(mask)
    guesses = []
    for blank, (values, ids) in enumerate(zip(best.values.tolist(), best.indices.tolist())):
        before, after = mask.join(pieces[: blank + 1]), mask.join(pieces[blank + 1 :])
        tokens = tokenizer.convert_ids_to_tokens(ids)
        guesses.append(
            [Guess(token, value, f"{before}{token.removeprefix('##')}{after}") for token, value in zip(tokens, values)]
        )
    return guesses

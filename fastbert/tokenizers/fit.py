"""Does a tokenizer belong to a model? As far as their sizes tell."""

from collections.abc import Sized

from fastbert.errors import UserError

# Tables of embeddings are often rounded up, for speed on GPUs: to a multiple of 8, 64 or 128 rows.
PADDING_MULTIPLE, LARGEST_MULTIPLE = 8, 128


def check_tokenizer(tokenizer: Sized, rows: int, model: str = "the model") -> None:
    """Raise UserError for a tokenizer that a model with `rows` token embeddings was not trained with.

    `len(tokenizer)`, added tokens included, must equal the model's rows, or the rows must be padding beyond it: a
    multiple of 8, and no more than the next multiple of 128. `model` names the model in the message.
    """
    entries = len(tokenizer)
    if entries == rows:
        return
    most = -(-entries // LARGEST_MULTIPLE) * LARGEST_MULTIPLE
    if entries < rows <= most and rows % PADDING_MULTIPLE == 0:
        return
    raise UserError(
        f"{model} has a vocabulary of {rows:,}, but the tokenizer has {entries:,} entries; use the tokenizer that the"
        " model was trained with (after adding tokens: model.resize_token_embeddings(len(tokenizer)))"
    )

"""Check that a tokenizer has the size of a model's vocabulary."""

from collections.abc import Sized

from fastbert.errors import UserError

# Embedding tables are often rounded up, for speed on GPUs: to a multiple of 8, 64 or 128 rows. Large tables may have
# more spare rows: 30,720 for 30,522 entries, 50,368 for 50,280, 128,100 for 128,001.
PADDING_MULTIPLE, LARGEST_MULTIPLE = 8, 128
LARGE_TABLE, SPARE_FRACTION = 10_000, 0.01


def check_tokenizer(tokenizer: Sized, rows: int, model: str = "the model") -> None:
    """Raise UserError for a tokenizer whose size does not fit a model with `rows` token embeddings.

    `len(tokenizer)`, added tokens included, must equal the model's rows, or the rows beyond it must be padding: up to a
    multiple of 8 that is no more than the next multiple of 128, or up to 1 % of a table of 10,000 rows or more. `model`
    names the model in the message, which begins with the tokenizer's folder.
    """
    entries = len(tokenizer)
    if entries == rows:
        return
    most = -(-entries // LARGEST_MULTIPLE) * LARGEST_MULTIPLE
    is_rounded = rows <= most and rows % PADDING_MULTIPLE == 0
    is_spare = rows >= LARGE_TABLE and rows - entries <= SPARE_FRACTION * rows
    if entries < rows and (is_rounded or is_spare):
        return
    folder = getattr(tokenizer, "name_or_path", "")
    prefix = "" if not folder or folder in model or model in folder else f"{folder}: "
    raise UserError(
        f"{prefix}{model} has a vocabulary of {rows:,}, but the tokenizer has {entries:,} entries; use the tokenizer of"
        " the model's training (after adding tokens: model.resize_token_embeddings(len(tokenizer)))"
    )

"""The layouts of new tokenizers: byte-level BPE has RoBERTa's, Unigram XLM-RoBERTa's.

Both begin with `<s> <pad> </s> <unk>`, end with `<mask>`, and have rows `<s> A </s>` and `<s> A </s></s> B </s>`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, get_args

from fastbert.errors import UserError
from fastbert.tokenizers.added import AddedToken
from fastbert.tokenizers.byte_level import ByteLevelBPETokenizer
from fastbert.tokenizers.pipeline import SPACE, Pipeline
from fastbert.tokenizers.template import roberta_template
from fastbert.tokenizers.unigram import UnigramTokenizer

Kind = Literal["wordpiece", "bpe", "unigram"]

BEGIN, PAD, END, UNKNOWN, MASK = "<s>", "<pad>", "</s>", "<unk>", "<mask>"
FIRST_TOKENS = (BEGIN, PAD, END, UNKNOWN)
SPECIAL_TOKENS = (*FIRST_TOKENS, MASK)


def lower_cases(kind: Kind, *, cased: bool, lower_case: bool) -> bool:
    """Return whether a new tokenizer lower-cases text and removes accents: WordPiece does unless `cased`, the others
    only with `lower_case`.

    Raises:
        UserError: both are set, or there is no such kind.
    """
    if kind not in get_args(Kind):
        raise UserError(f"kind={kind!r} must be one of {', '.join(get_args(Kind))}")
    if cased and lower_case:
        raise UserError("--cased and --lower-case exclude each other; leave one out")
    return lower_case or (kind == "wordpiece" and not cased)


def new_pipeline(kind: Literal["bpe", "unigram"], lower_case: bool) -> Pipeline:
    """Return the steps of a new tokenizer.

    Byte-level BPE leaves text as it is, Unigram applies NFKC; `lower_case` also removes accents.
    """
    composed = "NFC" if kind == "bpe" else "NFKC"
    normalizer: dict[str, Any] | None = None if kind == "bpe" else {"type": composed}
    if lower_case:
        decomposed = composed.replace("C", "D")
        steps = [{"type": name} for name in (decomposed, "Lowercase", "StripAccents", composed)]
        normalizer = {"type": "Sequence", "normalizers": steps}
    if kind == "bpe":
        byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
        rows = {
            "type": "RobertaProcessing",
            "sep": [END, SPECIAL_TOKENS.index(END)],
            "cls": [BEGIN, SPECIAL_TOKENS.index(BEGIN)],
            "trim_offsets": True,
            "add_prefix_space": False,
        }
        return Pipeline(normalizer, byte_level, rows, dict(byte_level))
    metaspace = {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": "always", "split": True}
    split = {"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, metaspace]}
    rows = roberta_template(BEGIN, END).to_json(SPECIAL_TOKENS.index)
    return Pipeline(normalizer, split, rows, metaspace)


def byte_level_tokenizer(
    pieces: Sequence[str], merges: Sequence[tuple[str, str]], pipeline: Pipeline
) -> ByteLevelBPETokenizer:
    """Return a tokenizer of RoBERTa's layout with learned pieces."""
    return ByteLevelBPETokenizer([*FIRST_TOKENS, *pieces, MASK], merges, pipeline=pipeline, **_special_tokens())


def unigram_tokenizer(pieces: Sequence[str], scores: Sequence[float], pipeline: Pipeline) -> UnigramTokenizer:
    """Return a tokenizer of XLM-RoBERTa's layout with learned pieces and their log probabilities."""
    return UnigramTokenizer(
        [*FIRST_TOKENS, *pieces, MASK],
        [*(0.0 for _ in FIRST_TOKENS), *scores, 0.0],
        unknown_id=SPECIAL_TOKENS.index(UNKNOWN),
        pipeline=pipeline,
        **_special_tokens(),
    )


def _special_tokens() -> dict[str, Any]:
    return {
        "bos_token": BEGIN,
        "eos_token": END,
        "unk_token": UNKNOWN,
        "sep_token": END,
        "pad_token": PAD,
        "cls_token": BEGIN,
        "mask_token": MASK,
        # The blank takes the place of a word with its space.
        "added_tokens": [AddedToken(MASK, lstrip=True, special=True)],
    }

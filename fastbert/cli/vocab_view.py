"""The tables that `fastbert vocab` prints: coverage, and words to add."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastbert.tokenizers.coverage import CoverageReport
from fastbert.tokenizers.extension import ChangedWord, Extension, Proposal
from fastbert.tokenizers.tokenizer import Tokenizer
from fastbert.tokenizers.word_counts import Split
from fastbert.tokenizers.wordpiece import WordPieceTokenizer

if TYPE_CHECKING:
    from fastbert.models.base import PreTrainedModel

_ROWS_SHOWN = 20
_RECORDED = 1000
_MEASURED_ON = {
    "documents": "{documents} held out",
    "sentences": "{sentences} held out from the ends of documents (too few to hold out whole ones)",
    "none": "the text itself, since nothing was held out",
    "all": "{documents}",
}


def coverage_table(report: CoverageReport, unit: str) -> str:
    """Return a report as text; `unit` is that of the held-out part, "all" if the whole text was measured."""
    shares = report.pieces_per_word
    lines = [
        f"on {_measured_on(report, unit)}: {_number(report.words, 'word')}, {_number(report.tokens, 'token')}",
        f"  tokens per word   {report.tokens_per_word:.3f}",
        f"  bytes per token   {report.bytes_per_token:.2f}",
        f"  words that are    1 token {_percent(shares['1'])}, 2 {_percent(shares['2'])}, 3 {_percent(shares['3'])},"
        f" 4 or more {_percent(shares['4+'])}",
    ]
    if report.unknown_token is not None:
        lines.append(
            f"  {report.unknown_token:<16}  {_percent(report.unknown_word_share)} of words,"
            f" {_percent(report.unknown_token_share)} of tokens"
        )
    if report.unknown_characters:
        shown = ", ".join(f"{_visible(char)} {count:,}" for char, count in report.unknown_characters[:8])
        lines.append(f"  without an entry  {shown}")
    lines += [
        f"  entries in use    {report.entries_used:,} of {report.entries:,}",
        "",
        "  the first entries alone   words that are one token   tokens per word   unknown words",
    ]
    for point in report.curve:
        per_word = "-" if point.tokens_per_word is None else f"{point.tokens_per_word:.3f}"
        unknown = "-" if point.unknown_words is None else _percent(point.unknown_words)
        lines.append(f"  {point.entries:>23,}   {_percent(point.whole_words):>24}   {per_word:>15}   {unknown:>13}")
    return "\n".join(lines)


def proposal_table(proposal: Proposal, rows: int, words: int) -> str:
    """Return the ranked candidates as text, without most of those that are not added."""
    head = (
        f"the text: {_number(words, 'word')}, {_number(proposal.tokens, 'token')};"
        f" {_number(len(proposal.candidates), 'frequent word')} split"
    )
    if not proposal.candidates:
        return head
    shown = proposal.candidates[: min(_ROWS_SHOWN, max(rows, 10))]
    pieces = [" ".join(candidate.pieces) for candidate in shown]
    word_width = max(4, *(len(_spelled(candidate.word)) for candidate in shown))
    piece_width = max(10, *map(len, pieces))
    lines = [
        head,
        "",
        f"        {'word':<{word_width}}      count  {'pieces now':<{piece_width}}   saved  cumulative",
    ]
    total = 0
    for rank, (candidate, split) in enumerate(zip(shown, pieces, strict=True), 1):
        total += candidate.saved
        lines.append(
            f"  {rank:>4}  {_spelled(candidate.word):<{word_width}}  {candidate.count:>9,}  {split:<{piece_width}}"
            f"  {candidate.saved:>6,}  {_percent(total / proposal.tokens):>10}"
        )
    if len(proposal.candidates) > len(shown):
        lines.append(f"        ... and {len(proposal.candidates) - len(shown):,} more")
    return "\n".join(lines)


def choice(proposal: Proposal, rows: int, limit: int | str) -> str:
    """Return the number of added words and its reason as text."""
    if not proposal.candidates:
        return "\nno word that is frequent enough splits; a lower --min-frequency or more text may give some"
    saved = proposal.saved(rows) / max(proposal.tokens, 1)
    if limit == "auto":
        why = f"auto: the next {proposal.window} would save less than {proposal.share:.1%} of the tokens".replace(
            "%", " %"
        )
    elif rows < int(limit):
        why = f"all candidates, fewer than --add {int(limit):,}; a lower --min-frequency or more text gives more"
    else:
        why = f"--add; auto would add {proposal.worth:,}"
    return f"\nto add: {_number(rows, 'word')} ({why}), which saves {_percent(saved)} of the tokens"


def effect(before: CoverageReport, after: CoverageReport, changed: Sequence[ChangedWord], split: Split) -> str:
    """Return the effect of the extension on held-out text and on other words as text."""
    one_token = f"{_percent(before.pieces_per_word['1'])} -> {_percent(after.pieces_per_word['1'])}"
    unknown = ""
    if before.unknown_token is not None:
        shares = f"{_percent(before.unknown_word_share)} -> {_percent(after.unknown_word_share)}"
        unknown = f", {before.unknown_token} {shares} of words"
    lines = [
        f"on {_measured_on(before, split.unit)}: {before.tokens_per_word:.3f} -> {after.tokens_per_word:.3f} tokens"
        f" per word, words that are one token {one_token}{unknown}"
    ]
    if changed:
        share = sum(change.count for change in changed) / split.learn.total_words
        saved = sum(change.count * (len(change.before) - len(change.after)) for change in changed)
        example = changed[0]
        lines.append(
            f"{_number(len(changed), 'other word')} ({_percent(share)} of the text) begin with a new entry and split"
            f" differently, into {abs(saved):,} tokens {'fewer' if saved >= 0 else 'more'} in all; for example"
            f" {_spelled(example.word)}: {' '.join(example.before)} -> {' '.join(example.after)}"
        )
    return "\n".join(lines)


def written(out: Path, extension: Extension, model: PreTrainedModel | None) -> str:
    """Return the locations of the new entries as text."""
    replaced = sum(entry.replaced is not None for entry in extension.entries)
    appended = len(extension.entries) - replaced
    lines = [
        f"{out}/{vocabulary_file(extension.tokenizer)}: {extension.tokenizer.vocab_size:,} entries; {replaced:,} words"
        f" in place of [unusedN], {appended:,} at the end"
    ]
    if model is not None:
        lines.append(
            f"{out}/model.safetensors: {type(model).__name__} with {model.config.vocab_size:,} rows, new ones"
            " initialised with the mean of their pieces. Train the model on the domain before use"
        )
    return "\n".join(lines)


def extension_record(proposal: Proposal, extension: Extension, changed: Sequence[ChangedWord]) -> dict[str, Any]:
    """Return the extension for the report: every added entry, the next candidates, and other words that change."""
    added = {entry.word: entry for entry in extension.entries}
    shown = [candidate for candidate in proposal.candidates if candidate.word in added]
    rest = [candidate for candidate in proposal.candidates if candidate.word not in added]
    return {
        "entries_before": extension.base_size,
        "entries_after": extension.tokenizer.vocab_size,
        "auto": {"words": proposal.worth, "window": proposal.window, "least_share_saved": proposal.share},
        "tokens": proposal.tokens,
        "added": [
            {
                "word": candidate.word,
                "id": added[candidate.word].id,
                "replaced": added[candidate.word].replaced,
                "count": candidate.count,
                "pieces": list(candidate.pieces),
                "saved": candidate.saved,
            }
            for candidate in shown
        ],
        "next_candidates": [
            {"word": item.word, "count": item.count, "pieces": list(item.pieces), "saved": item.saved}
            for item in rest[:_RECORDED]
        ],
        "changed_words": [
            {"word": item.word, "count": item.count, "before": list(item.before), "after": list(item.after)}
            for item in changed[:_RECORDED]
        ],
    }


def _measured_on(report: CoverageReport, unit: str) -> str:
    return _MEASURED_ON[unit].format(
        documents=_number(report.documents, "document"), sentences=_number(report.sentences, "sentence")
    )


def _number(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def _percent(share: float) -> str:
    """Format a share with one decimal, and below 1 % with two significant digits."""
    digits = 1 if share == 0 or share >= 0.01 else 1 - math.floor(math.log10(100 * share))
    return f"{100 * share:.{digits}f} %"


def vocabulary_file(tokenizer: Tokenizer) -> str:
    """Return the name of the file that holds a saved tokenizer's entries."""
    return "vocab.txt" if isinstance(tokenizer, WordPieceTokenizer) else "tokenizer.json"


def _spelled(word: str) -> str:
    """Return a word with its space, of byte-level BPE, as tokens have it."""
    return word.replace(" ", "\u0120")


def _visible(char: str) -> str:
    """Return a character, or its code point if it is invisible."""
    return char if char.isprintable() and not char.isspace() else f"U+{ord(char):04X}"

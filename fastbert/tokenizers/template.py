"""The rows of a tokenizer: special tokens around one sequence or two, and the type of each token."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastbert import _C
from fastbert.io.untrusted_input import shown
from fastbert.tokenizers.json_errors import VocabularyError

# A special token, or the number of a sequence (0 or 1), with the type of its tokens.
Item = tuple[str | int, int]


@dataclass(frozen=True)
class RowTemplate:
    """The items of a row with one sequence, and of one with two, in order."""

    single: tuple[Item, ...]
    pair: tuple[Item, ...]

    def items(self, pair: bool) -> tuple[Item, ...]:
        """Return the items of a row with one sequence or with two."""
        return self.pair if pair else self.single

    def special_tokens(self, pair: bool = False) -> list[str]:
        """Return the special tokens of a row, in order."""
        return [item for item, _ in self.items(pair) if isinstance(item, str)]

    def around(self) -> tuple[list[str], list[str]]:
        """Return the special tokens before and behind a single sequence."""
        sequence = next(index for index, (item, _) in enumerate(self.single) if item == 0)
        before, behind = self.single[:sequence], self.single[sequence + 1 :]
        return [str(item) for item, _ in before], [str(item) for item, _ in behind]

    def compiled(self, id_of: Callable[[str], int], add_special_tokens: bool) -> _C.Template:
        """Return the template with ids, with or without its special tokens."""

        def items(of: Iterable[Item]) -> list[tuple[int, int]]:
            return [
                (id_of(item) if isinstance(item, str) else -1 - item, type_id)
                for item, type_id in of
                if add_special_tokens or not isinstance(item, str)
            ]

        return _C.Template(items(self.single), items(self.pair))

    def to_json(self, id_of: Callable[[str], int]) -> dict[str, Any]:
        """Return the template as a post-processor of a tokenizer.json."""

        def entry(item: str | int, type_id: int) -> dict[str, Any]:
            if isinstance(item, str):
                return {"SpecialToken": {"id": item, "type_id": type_id}}
            return {"Sequence": {"id": "AB"[item], "type_id": type_id}}

        names = sorted({*self.special_tokens(), *self.special_tokens(pair=True)})
        return {
            "type": "TemplateProcessing",
            "single": [entry(*item) for item in self.single],
            "pair": [entry(*item) for item in self.pair],
            "special_tokens": {name: {"id": name, "ids": [id_of(name)], "tokens": [name]} for name in names},
        }


def bert_template(cls: str, sep: str) -> RowTemplate:
    """Return `[CLS] A [SEP]` and `[CLS] A [SEP] B [SEP]`, the second sequence and its end of type 1."""
    single: tuple[Item, ...] = ((cls, 0), (0, 0), (sep, 0))
    return RowTemplate(single, (*single, (1, 1), (sep, 1)))


def roberta_template(cls: str, sep: str) -> RowTemplate:
    """Return `<s> A </s>` and `<s> A </s></s> B </s>`, all of type 0."""
    single: tuple[Item, ...] = ((cls, 0), (0, 0), (sep, 0))
    return RowTemplate(single, (*single, (sep, 0), (1, 0), (sep, 0)))


def bare_template() -> RowTemplate:
    """Return rows without special tokens; a second sequence has type 1."""
    return RowTemplate(((0, 0),), ((0, 0), (1, 1)))


@dataclass(frozen=True)
class PostProcessor:
    """A post-processor of a tokenizer.json: the template, the ids of its tokens as stated, and whether the
    white space of tokens is taken out of their offsets; `expects_prefix`: but for the first space of a text."""

    template: RowTemplate
    ids: Mapping[str, int]
    trim_offsets: bool = False
    expects_prefix: bool = False

    @property
    def is_bert(self) -> bool:
        """Return True for BERT's rows without a change of offsets."""
        special = self.template.special_tokens()
        return not self.trim_offsets and len(special) == 2 and self.template == bert_template(*special)

    def to_json(self, id_of: Callable[[str], int]) -> dict[str, Any]:
        """Return the post-processor of a tokenizer.json that means the same."""
        rows = self.template.to_json(id_of)
        if not self.trim_offsets:
            return rows
        trims = {
            "type": "ByteLevel",
            "add_prefix_space": self.expects_prefix,
            "trim_offsets": True,
            "use_regex": True,
        }
        return {"type": "Sequence", "processors": [trims, rows]}


def read_post_processor(processor: Mapping[str, Any] | None, path: Path) -> PostProcessor:
    """Read the post-processor of a tokenizer.json. Raises VocabularyError for one that no encoder uses."""
    if processor is None:
        return PostProcessor(bare_template(), {})
    kind = processor.get("type")
    if kind == "ByteLevel":
        return PostProcessor(bare_template(), {}, *_offset_flags(processor, path))
    if kind in ("BertProcessing", "RobertaProcessing"):
        (cls, cls_id), (sep, sep_id) = (_token_and_id(processor, name, path) for name in ("cls", "sep"))
        ids = {cls: cls_id, sep: sep_id}
        if kind == "BertProcessing":
            return PostProcessor(bert_template(cls, sep), ids)
        return PostProcessor(roberta_template(cls, sep), ids, *_offset_flags(processor, path))
    if kind == "TemplateProcessing":
        return _read_template(processor, path)
    if kind == "Sequence":
        parts = processor.get("processors")
        if isinstance(parts, list) and all(isinstance(part, dict) for part in parts):
            read = [read_post_processor(part, path) for part in parts]
            templates = [part for part in read if part.ids]
            flags = [part for part in read if not part.ids]
            if len(templates) <= 1 and len(flags) <= 1:
                template = templates[0] if templates else PostProcessor(bare_template(), {})
                trims = flags[0] if flags else template
                return PostProcessor(template.template, template.ids, trims.trim_offsets, trims.expects_prefix)
    raise VocabularyError(
        f"{path}: its post_processor ({shown(kind)}) is not supported; supported are BertProcessing, RobertaProcessing,"
        " TemplateProcessing, ByteLevel, and a Sequence of ByteLevel and one of the others"
    )


def _offset_flags(processor: Mapping[str, Any], path: Path) -> tuple[bool, bool]:
    flags = processor.get("trim_offsets", True), processor.get("add_prefix_space", True)
    if not all(isinstance(flag, bool) for flag in flags):
        raise VocabularyError(f"{path}: trim_offsets and add_prefix_space of its post_processor must be true or false")
    return flags


def _token_and_id(processor: Mapping[str, Any], name: str, path: Path) -> tuple[str, int]:
    pair = processor.get(name)
    if not (isinstance(pair, list) and len(pair) == 2 and isinstance(pair[0], str) and type(pair[1]) is int):
        raise VocabularyError(f"{path}: {name}={shown(pair)} of its post_processor must be a token and its id")
    return pair[0], pair[1]


def _read_template(processor: Mapping[str, Any], path: Path) -> PostProcessor:
    ids: dict[str, int] = {}

    def item(entry: Any) -> Item:
        (kind, value), *_ = entry.items()
        type_id = value["type_id"]
        if type(type_id) is not int or not 0 <= type_id < 1 << 16:
            raise TypeError
        if kind == "Sequence":
            return {"A": 0, "B": 1}[value["id"]], type_id
        special = processor["special_tokens"][value["id"]]
        if kind != "SpecialToken" or len(special["ids"]) != 1 or type(special["ids"][0]) is not int:
            raise TypeError
        token = special["tokens"][0]
        if not isinstance(token, str):
            raise TypeError
        ids[token] = special["ids"][0]
        return token, type_id

    try:
        single, pair = (tuple(item(entry) for entry in processor[name]) for name in ("single", "pair"))
    except (KeyError, IndexError, TypeError, ValueError, AttributeError):
        raise VocabularyError(f"{path}: its post_processor's templates cannot be read; restore the file") from None
    sequences = [[item for item, _ in row if not isinstance(item, str)] for row in (single, pair)]
    if sequences != [[0], [0, 1]]:
        raise VocabularyError(
            f"{path}: its post_processor must hold the sequence A once, and A before B for pairs; others are not"
            " supported"
        )
    return PostProcessor(RowTemplate(single, pair), ids)

"""BERT's WordPiece tokenizer over the C++ core, with the results of Hugging Face's `BertTokenizerFast`."""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from fastbert import _C
from fastbert.checkpoints.manifest import TOKENIZER, update_manifest, verify_path
from fastbert.tokenizers import call, decoding, files
from fastbert.tokenizers.added import AddedToken, as_added_tokens
from fastbert.tokenizers.json_files import tokenizer_json
from fastbert.tokenizers.template import PostProcessor, RowTemplate, bert_template, roberta_template
from fastbert.tokenizers.tokenizer import Tokenizer
from fastbert.tokenizers.transformers_interface import bert_tokenizer, check_save_options, fast_tokenizer

ROW_FORMATS = ("bert", "roberta")


class WordPieceTokenizer(Tokenizer):
    """BERT's tokenizer in C++: special tokens, clean-up, Chinese characters, accents, case, WordPiece.

    Ids, offsets and tokens equal those of Hugging Face's `BertTokenizerFast`. Stateless: no call changes the results of
    another, so threads may share an instance. Picklable.

    Args:
        vocab: the tokens in the order of their ids, or the path of a vocab.txt.
        do_lower_case: convert text to lower case.
        strip_accents: remove accents; None means as `do_lower_case`, like the original BERT.
        tokenize_chinese_chars: treat each Chinese character as a word.
        model_max_length: the default length, in tokens, for truncation and padding; None: no limit.
        unk_token, sep_token, pad_token, cls_token, mask_token: the special tokens; they must be in the vocabulary or
            among the added tokens. They are recognised in text exactly as written here, before normalisation.
        bos_token, eos_token: special tokens without effect on rows, which MPNet's have; None: with RoBERTa's rows the
            first and the last token of a row, else there is none.
        row_format: "bert", `[CLS] A [SEP] B [SEP]` with types 0 and 1; or "roberta", `<s> A </s></s> B </s>` with type
            0 (MPNet).
        trim_offsets: leave the white space that added tokens take out of their offsets, as RoBERTa and MPNet do.
        expects_prefix: but for a single space at the start of a text, which counts as added; only with trim_offsets.
        additional_special_tokens: further tokens that are recognised in the same way. Tokens that are not in the
            vocabulary become added tokens.
        split_special_tokens: treat special tokens in text as plain text.
        added_tokens: strings or `AddedToken`s that are recognised as a whole. Tokens in the vocabulary keep their ids;
            the others get the ids after it, in order.
        padding_side, truncation_side: "right" or "left", the default of calls.
        model_input_names: what calls return by default; None: "input_ids", "token_type_ids" and "attention_mask", and
            without types for the row format "roberta".

    Raises:
        UserError: the vocabulary cannot be read, a token is empty or occurs twice, or a special token is missing.
        TypeError: a token is not a string.
        ValueError: a side or `model_max_length` has another value.

    Example:
        >>> import fastbert
        >>> vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "un", "##like", "##ly"]
        >>> tokenizer = fastbert.WordPieceTokenizer(vocabulary)
        >>> tokenizer.tokenize("Unlikely")
        ['un', '##like', '##ly']
        >>> tokenizer("Unlikely", return_offsets_mapping=True)["offset_mapping"]
        [(0, 0), (0, 2), (2, 6), (6, 8), (0, 0)]
        >>> tokenizer(["Unlikely", "un"], padding=True, return_tensors="np")["input_ids"]
        array([[2, 5, 6, 7, 3],
               [2, 5, 3, 0, 0]])
        >>> tokenizer.pack(["Unlikely", "un"]).cu_seqlens
        tensor([0, 5, 8], dtype=torch.int32)
    """

    option_names: ClassVar[tuple[str, ...]] = files.OPTION_NAMES
    vocab_files_names: ClassVar[dict[str, str]] = {
        "vocab_file": files.VOCAB_FILE,
        "tokenizer_file": files.TOKENIZER_FILE,
    }
    _core_options = (
        "do_lower_case",
        "strip_accents",
        "tokenize_chinese_chars",
        "split_special_tokens",
        "trim_offsets",
        "expects_prefix",
    )

    def __init__(
        self,
        vocab: Sequence[str] | str | os.PathLike[str],
        *,
        do_lower_case: bool = True,
        strip_accents: bool | None = None,
        tokenize_chinese_chars: bool = True,
        model_max_length: int | None = 512,
        unk_token: str = "[UNK]",
        sep_token: str = "[SEP]",
        pad_token: str = "[PAD]",
        cls_token: str = "[CLS]",
        mask_token: str = "[MASK]",
        bos_token: str | None = None,
        eos_token: str | None = None,
        row_format: str = "bert",
        trim_offsets: bool = False,
        expects_prefix: bool = False,
        additional_special_tokens: Sequence[str] = (),
        split_special_tokens: bool = False,
        added_tokens: Sequence[str | AddedToken] = (),
        padding_side: str = "right",
        truncation_side: str = "right",
        model_input_names: Sequence[str] | None = None,
    ) -> None:
        if isinstance(vocab, str | os.PathLike):
            source = str(vocab)
            tokens = files.read_vocab(Path(vocab))
        else:
            source = "vocab"
            tokens = list(vocab)
            files.check_tokens(tokens, lambda index: f"vocab[{index}]")
        self.do_lower_case: bool = bool(do_lower_case)
        self.strip_accents: bool | None = None if strip_accents is None else bool(strip_accents)
        self.tokenize_chinese_chars: bool = bool(tokenize_chinese_chars)
        self.split_special_tokens: bool = bool(split_special_tokens)
        self.padding_side: str = call.checked_side(padding_side, "padding_side")
        self.truncation_side: str = call.checked_side(truncation_side, "truncation_side")
        self.model_max_length: int = call.checked_model_max_length(model_max_length)
        self.unk_token: str = unk_token
        self.sep_token: str = sep_token
        self.pad_token: str = pad_token
        self.cls_token: str = cls_token
        self.mask_token: str = mask_token
        if row_format not in ROW_FORMATS:
            raise ValueError(f"row_format={row_format!r} must be one of {', '.join(map(repr, ROW_FORMATS))}")
        self.row_format = row_format
        if row_format == "roberta":  # as released folders have them, and as files are read that do not state them
            bos_token, eos_token = bos_token or cls_token, eos_token or sep_token
        self.bos_token: str | None = bos_token
        self.eos_token: str | None = eos_token
        self.trim_offsets: bool = bool(trim_offsets)
        self.expects_prefix: bool = self.trim_offsets and bool(expects_prefix)
        if model_input_names is None:
            model_input_names = ["input_ids", *["token_type_ids"] * (row_format == "bert"), "attention_mask"]
        self.model_input_names: list[str] = list(model_input_names)
        self.additional_special_tokens: list[str] = list(additional_special_tokens)
        self.added_tokens: list[AddedToken] = as_added_tokens(added_tokens)
        self._tokens = tokens
        self._update(source)

    # Files

    @classmethod
    def from_pretrained(cls, path: str | os.PathLike[str], *, verify: bool = True, **options: Any) -> Self:
        """Read a tokenizer's folder, a vocab.txt or a tokenizer.json; `options` override those of the files.

        Options come from `tokenizer_config.json` and `special_tokens_map.json`, then from `tokenizer.json`, and added
        tokens from these and `added_tokens.json`, as in transformers. Without any of them, a vocabulary with capital
        letters turns lower-casing off, which is logged. Files are compared with the `fastbert_manifest.json` beside
        them, unless `verify` is False. Raises `UserError` for files that are missing, damaged or not a tokenizer's.
        """
        path = Path(path)
        verify_path(path, TOKENIZER, verify=verify)
        if path.is_dir():
            vocab, file_options = files.read_folder(path)
        else:
            read = files.read_tokenizer_file if path.suffix == ".json" else files.read_vocab_file
            vocab, file_options = read(path)
        try:
            tokenizer = cls(vocab, **(file_options | options))
        except files.VocabularyError as error:
            raise files.VocabularyError(f"{path}: {error}") from None
        tokenizer.name_or_path = str(path)
        return tokenizer

    def save_pretrained(self, folder: str | os.PathLike[str], **options: Any) -> tuple[str, ...]:
        """Write `vocab.txt`, `tokenizer_config.json` and `special_tokens_map.json`, as transformers does.

        A `tokenizer.json` is also written if the folder has one, or if `vocab.txt` cannot say all: rows other than
        BERT's, trimmed offsets, tokens that end with white space. The files'
        checksums are entered in `fastbert_manifest.json`. Other options of transformers are ignored.

        Returns:
            The paths of the files.

        Raises:
            UserError: `push_to_hub` or `filename_prefix` is given, or a token holds a line end.
        """
        check_save_options(options)
        options = {name: getattr(self, name) for name in self.option_names}
        if self.model_input_names != Tokenizer.model_input_names:
            options["model_input_names"] = self.model_input_names
        special_tokens: dict[str, Any] = dict(self.special_tokens_map)
        if self.additional_special_tokens:
            special_tokens["additional_special_tokens"] = self.additional_special_tokens
        paths = files.write_folder(
            Path(folder), self._tokens, options, special_tokens, self.added_tokens_decoder, self._post_processor
        )
        manifest = update_manifest(Path(folder), [Path(path).name for path in paths], self.fingerprint)
        return (*paths, str(manifest))

    def _write_vocabulary(self, folder: Path, prefix: str = "") -> list[str]:
        name = f"{prefix}{files.VOCAB_FILE}"
        files.write_vocab(folder / name, self._tokens)
        return [name]

    def to_transformers(self) -> Any:
        """Return an equal `transformers.BertTokenizerFast`, as `Tokenizer.to_transformers`; for the rows of RoBERTa
        and trimmed offsets a `PreTrainedTokenizerFast`."""
        if self._post_processor.is_bert:
            return bert_tokenizer(self)
        options = {name: getattr(self, name) for name in self.option_names}
        content = tokenizer_json(
            self._tokens, options, self.special_tokens_map, self.added_tokens_decoder, self._post_processor
        )
        return fast_tokenizer(self, content)

    # The kind

    @property
    def template(self) -> RowTemplate:
        """Return the rows: `[CLS] A [SEP]` and `[CLS] A [SEP] B [SEP]`, or MPNet's, which are RoBERTa's."""
        build = roberta_template if self.row_format == "roberta" else bert_template
        return build(self.cls_token, self.sep_token)

    @property
    def _post_processor(self) -> PostProcessor:
        template = self.template
        ids = {token: self._ids[token] for token in template.special_tokens()}
        return PostProcessor(template, ids, self.trim_offsets, self.expects_prefix)

    @property
    def is_continuation(self) -> np.ndarray:
        """Return which ids continue a word ("##..."): bool (len(tokenizer),)."""
        continues = [token.startswith("##") for token in self._tokens]
        return np.array(continues + [False] * (len(self) - self.vocab_size), dtype=np.bool_)

    def _build_core(self, split_special_tokens: bool) -> _C.WordPiece:
        return _C.WordPiece(
            self._tokens,
            self._added_of_core(),
            split_special_tokens,
            self.unk_token_id,
            self._normalizer_options(),
            self.trim_offsets,
            self.expects_prefix,
        )

    def _normalize(self, text: str) -> str:
        return _C.normalize(text, self._normalizer_options())

    def _normalizer_options(self) -> _C.NormalizerOptions:
        strip = self.do_lower_case if self.strip_accents is None else self.strip_accents
        return _C.NormalizerOptions(self.do_lower_case, strip, self.tokenize_chinese_chars)

    def _fingerprint_options(self) -> dict[str, Any]:
        return {
            "do_lower_case": self.do_lower_case,
            "strip_accents": self.do_lower_case if self.strip_accents is None else self.strip_accents,
            "tokenize_chinese_chars": self.tokenize_chinese_chars,
            **({"row_format": self.row_format} if self.row_format != "bert" else {}),
        }

    def _join_tokens(self, tokens: Iterable[str]) -> str:
        return decoding.join_tokens(tokens)

    def __repr__(self) -> str:
        return (
            f"WordPieceTokenizer(vocab_size={self.vocab_size}, do_lower_case={self.do_lower_case}, "
            f"strip_accents={self.strip_accents}, tokenize_chinese_chars={self.tokenize_chinese_chars}, "
            f"model_max_length={self.model_max_length})"
        )

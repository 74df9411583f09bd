"""The C++ core: tokenizer, masking collator and CPU kernels. One section per file of csrc/bindings."""

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

# bindings/wordpiece.cpp

UNICODE_FINGERPRINT: str
MAX_WORD_CHARS: int

class NormalizerOptions:
    def __init__(self, lower_case: bool, strip_accents: bool, chinese_chars: bool) -> None: ...

class TruncationStrategy:
    NONE: ClassVar[TruncationStrategy]
    LONGEST_FIRST: ClassVar[TruncationStrategy]
    ONLY_FIRST: ClassVar[TruncationStrategy]
    ONLY_SECOND: ClassVar[TruncationStrategy]

class Template:
    def __init__(self, single: Sequence[tuple[int, int]], pair: Sequence[tuple[int, int]]) -> None: ...

class TruncationOptions:
    def __init__(
        self, strategy: TruncationStrategy, max_length: int, stride: int, left: bool, overflow: bool
    ) -> None: ...

class Column:
    IDS: ClassVar[Column]
    TYPES: ClassVar[Column]
    SPECIAL_MASK: ClassVar[Column]
    ONES: ClassVar[Column]
    BEGINS: ClassVar[Column]
    ENDS: ClassVar[Column]
    WORDS: ClassVar[Column]
    SEQUENCES: ClassVar[Column]
    __members__: ClassVar[dict[str, Column]]
    @property
    def name(self) -> str: ...

class Rows:
    def __len__(self) -> int: ...
    @property
    def longest_main(self) -> int: ...
    @property
    def pairs(self) -> bool: ...
    def offsets(self) -> NDArray[np.int64]: ...
    def samples(self) -> NDArray[np.int64]: ...
    def starts(self, row: int) -> list[int]: ...
    def column(self, column: Column) -> NDArray[np.int32]: ...
    def padded(self, column: Column, width: int, left: bool, filler: int, threads: int) -> NDArray[np.int64]: ...

class AddedToken:
    def __init__(
        self, content: str, id: int, special: bool, lstrip: bool, rstrip: bool, single_word: bool, normalized: bool
    ) -> None: ...

class Tokenizer:
    def encode_ragged(
        self, texts: Sequence[str], limit: int | None, threads: int
    ) -> tuple[NDArray[np.int32], NDArray[np.int64]]: ...
    def encode_aligned_ragged(
        self, texts: Sequence[str], threads: int
    ) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int32], NDArray[np.int32], NDArray[np.int64]]: ...
    def encode_wrapped(
        self, texts: Sequence[str], limit: int | None, before: Sequence[int], behind: Sequence[int], threads: int
    ) -> tuple[NDArray[np.int32], NDArray[np.int64]]: ...
    def encode_rows(
        self,
        texts: Sequence[str],
        pairs: Sequence[str] | None,
        text_bounds: NDArray[np.int64] | None,
        pair_bounds: NDArray[np.int64] | None,
        template: Template,
        truncation: TruncationOptions,
        aligned: bool,
        threads: int,
    ) -> Rows: ...
    def added_strings(self, text: str) -> list[tuple[int, str]]: ...

class WordPiece(Tokenizer):
    def __init__(
        self,
        tokens: Sequence[str],
        added: Sequence[AddedToken],
        split_special: bool,
        unknown_id: int,
        options: NormalizerOptions,
        trim_offsets: bool,
        expects_prefix: bool,
    ) -> None: ...
    def split_words(self, text: str) -> list[str]: ...

class Normalizer:
    """Steps: ("nfc",) and other forms, ("lowercase",), ("strip_accents",), ("strip", left, right), ("prepend", text),
    ("replace", pattern, content), ("replace_runs", [(characters, white_space, least, exactly)], content), ("charsmap",
    bytes)."""

    def __init__(self, steps: Sequence[tuple[Any, ...]]) -> None: ...
    def normalize(self, text: str) -> str: ...
    def is_inert(self, text: str) -> bool: ...

class ByteLevelBpe(Tokenizer):
    def __init__(
        self,
        tokens: Sequence[str],
        merges: NDArray[np.int32],
        added: Sequence[AddedToken],
        split_special: bool,
        normalizer: Normalizer,
        prefix_space: bool,
        trim_offsets: bool,
        expects_prefix: bool,
        whole_words: bool,
    ) -> None: ...

class Unigram(Tokenizer):
    """`pre_tokenizer` steps: ("whitespace_split",), ("metaspace", replacement, scheme, split), ("digits", individual),
    ("punctuation", behavior), ("split", pattern, behavior, invert)."""

    def __init__(
        self,
        tokens: Sequence[str],
        scores: NDArray[np.float64],
        unknown_id: int,
        byte_ids: Sequence[int],
        added: Sequence[AddedToken],
        split_special: bool,
        normalizer: Normalizer,
        pre_tokenizer: Sequence[tuple[Any, ...]],
    ) -> None: ...

def byte_level_alphabet() -> str: ...
def read_decimal(text: str) -> float: ...
def written_decimals(values: NDArray[np.float64]) -> NDArray[np.float64]: ...
def unit_rows(values: int, rows: int, width: int, least: float, result: int) -> None: ...
def json_structure(text: bytes) -> tuple[int, int]:
    """Return the numbers of arrays and objects, and of commas, outside of strings; the text need not be valid."""

def json_row(values: NDArray[np.float32]) -> bytes: ...
def json_rows(values: NDArray[np.float32]) -> bytes: ...
def json_entries(indices: NDArray[np.int32], values: NDArray[np.float32]) -> bytes: ...

class ByteLevelCounter:
    def __init__(self, normalizer: Normalizer, prefix_space: bool) -> None: ...
    def add(self, texts: Sequence[str]) -> None: ...
    def counts(self) -> dict[str, int]: ...

class UnigramCounter:
    """`pre_tokenizer` steps as of `Unigram`."""

    def __init__(self, normalizer: Normalizer, pre_tokenizer: Sequence[tuple[Any, ...]]) -> None: ...
    def add(self, texts: Sequence[str]) -> None: ...
    def counts(self) -> dict[str, int]: ...

class WordCounter:
    def __init__(self, options: NormalizerOptions) -> None: ...
    def add(self, texts: Sequence[str]) -> None: ...
    def counts(self) -> dict[str, int]: ...

def normalize(text: str, options: NormalizerOptions) -> str: ...

# bindings/unicode.cpp

UNICODE_PROPERTIES_FINGERPRINT: str

def split_classes() -> bytes:
    """Return the class of each code point in byte-level BPE: 0 letter, 1 number, 2 space, 3 other."""

def character_flags() -> bytes:
    """Return the flags of each code point: 1 white space, 2 punctuation, 4 numeric, 8 combining mark."""

def grapheme_sizes(text: str) -> list[int]:
    """Return the bytes of each grapheme cluster, exact below 6 bytes."""

def normalize_form(form: str, text: str) -> tuple[str, list[int]]:
    """Return a text in NFC, NFD, NFKC or NFKD, and the source of each of its characters."""

def is_inert(form: str, text: str) -> bool:
    """Return true if normalization certainly changes nothing."""

def lowercase(text: str) -> tuple[str, list[int]]:
    """Return a text in lower case, and the source of each of its characters."""

def strip_accents(text: str) -> tuple[str, list[int]]:
    """Return a text without combining marks, and the source of each of its characters."""

# bindings/collator.cpp

class TokenCorpus:
    """A tokenized corpus over arrays that it keeps alive: per shard tokens (uint16 or uint32), sentence_offsets."""

    def __init__(self, shards: Sequence[tuple[NDArray[Any], NDArray[np.int64]]]) -> None: ...
    @staticmethod
    def planned(shards: Sequence[tuple[int, NDArray[np.int64], NDArray[np.uint8]]]) -> TokenCorpus:
        """Return a corpus that samples can be planned for, but whose tokens are in another place: per shard the number
        of tokens, sentence_offsets, and a bit per token, the lowest first, that tells whether it continues a word."""

    @staticmethod
    def runs(begins: NDArray[np.int64], lengths: NDArray[np.int64], tokens: NDArray[Any]) -> TokenCorpus:
        """Return the part of a corpus that samples can be collated from: runs of consecutive tokens in ascending order,
        one after the other in `tokens` (uint16 or uint32)."""

    @property
    def num_tokens(self) -> int: ...
    @property
    def num_sentences(self) -> int: ...
    def count(self, documents: NDArray[np.int64], vocab_size: int) -> NDArray[np.int64]:
        """Count each id in the documents, which are ranges of sentences, int64 (documents, 2)."""

class VocabularyTable:
    """The vocabulary of a collator; `replacements` are the ids of random tokens."""

    def __init__(
        self,
        *,
        is_continuation: NDArray[np.bool_],
        replacements: NDArray[np.int64],
        cls_id: int,
        sep_id: int,
        mask_id: int,
    ) -> None: ...

class EpochPlan:
    """The samples of an epoch as token ranges, in visiting order."""

    def __init__(
        self,
        corpus: TokenCorpus,
        documents: NDArray[np.int64],
        vocabulary: VocabularyTable,
        *,
        objective: str,
        budget: int,
        short_probability: float,
        seed: int,
        epoch: int,
        validation: bool,
        shuffle_window: int = 0,
    ) -> None: ...
    def __len__(self) -> int: ...
    def ranges(self, indices: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the runs of tokens that samples hold: begins and lengths, int64 (2 samples,), A and B of each."""

    def columns(
        self,
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Return a_begin, a_length, b_begin, b_length (in tokens of the corpus) and label of every sample."""

    def lengths(self) -> NDArray[np.int32]:
        """Return the number of tokens of every sample, special tokens included."""

    def collate(
        self,
        corpus: TokenCorpus,
        indices: NDArray[np.int64],
        vocabulary: VocabularyTable,
        *,
        mask_probability: float,
        exact_count: bool,
        masking: str,
        mask_replacement: tuple[float, float, float] = (0.8, 0.1, 0.1),
        dropout_epoch: int | None = None,
    ) -> dict[str, NDArray[Any]]:
        """Return samples as the fields of a PackedBatch, by name. `masking` is token, whole-word or span;
        `mask_replacement` holds the shares of masked tokens that become [MASK], become a random token, and stay;
        `dropout_epoch` is that of the dropout keys, by default the plan's own."""

def split_ranks(documents: int, seed: int) -> NDArray[np.uint64]: ...
def random_numbers(size: int, *, seed: int, epoch: int, purpose: str, source: int = 0) -> NDArray[np.uint64]:
    """Return independent random numbers of a purpose (revisit or mixture) and a source, uint64 (size,)."""

def find_bad_offset(offsets: NDArray[np.int64], total: int) -> int: ...
def find_bad_token(tokens: NDArray[Any], vocab_size: int) -> int: ...
def philox4x32(counter: Sequence[int], key: Sequence[int]) -> list[int]: ...

# bindings/dropout.cpp

def token_dropout_mask(
    out: NDArray[Any],
    keys: NDArray[np.int64],
    sequence: NDArray[np.int64],
    position: NDArray[np.int64],
    site: int,
    threshold: int,
    keep: int,
) -> None: ...
def attention_dropout_mask(
    out: NDArray[Any], keys: NDArray[np.int64], site: int, threshold: int, keep: int
) -> None: ...

# bindings/attention.cpp

class AttentionArguments:
    """Arguments as addresses: q, k, v with strides of tokens and heads in elements; the bias (0: none) with its rows,
    columns and strides of heads and rows; dropout's keys (0: none), site and threshold; the scale of kept elements."""

    def __init__(
        self,
        q: tuple[int, int, int],
        k: tuple[int, int, int],
        v: tuple[int, int, int],
        bf16: bool,
        heads: int,
        dim: int,
        tokens_q: int,
        tokens_k: int,
        cu_seqlens_q: int,
        cu_seqlens_k: int,
        sequences: int,
        longest_q: int,
        longest_k: int,
        causal: bool,
        scale: float,
        bias: tuple[int, int, int, int, int],
        bias_bf16: bool,
        dropout: tuple[int, int, int],
        keep: float,
    ) -> None: ...
    def set_positions(
        self,
        *,
        group: int,
        window: int | None,
        rotary: tuple[int, int, int],
        distance_bias: tuple[int, int],
        position_keys: tuple[int, int, int],
        position_queries: tuple[int, int, int],
        buckets: tuple[int, int],
    ) -> None:
        """Set heads per head of k and v; the window; the rotary table with its width and the positions; the bias by
        distance and the buckets with their lengths; the tables of relative positions as q. Addresses are 0 for none."""

def attention(arguments: AttentionArguments, out: int, lse: int) -> bool:
    """Return False, with nothing written, if the offsets do not match the tokens."""

def attention_backward(
    arguments: AttentionArguments,
    lse: int,
    grad: tuple[int, int, int],
    gradients: tuple[tuple[int, int, int], tuple[int, int, int], tuple[int, int, int]],
    dbias: int,
    dpositions: tuple[int, int, int] = (0, 0, 0),
) -> bool:
    """Write the gradients of q, k, v, with strides like q; dbias is 0 for none, else zeros, and so are those of the
    bias by distance and of the tables of relative positions, fp32. Return False as above."""

# bindings/gemm.cpp

class PrepackedWeight:
    """A weight (columns, depth), prepacked for CPU matmuls. Matrices are (address, dtype, row stride in elements)."""

    def __init__(
        self,
        weight: tuple[int, str, int],
        columns: int,
        depth: int,
        element: str,
        transposed: bool = False,
        gated: bool = False,
    ) -> None: ...
    @staticmethod
    def empty(columns: int, depth: int, element: str, gated: bool = False) -> PrepackedWeight: ...
    def __bytes__(self) -> bytes: ...
    @property
    def columns(self) -> int: ...
    @property
    def gated_width(self) -> int:
        """Outputs of a gated weight, 0 of another."""
    @property
    def depth(self) -> int: ...
    @property
    def element(self) -> str: ...
    @property
    def scales(self) -> list[float]: ...

def repack(
    packed: PrepackedWeight, transposed: bool, offset: int, weight: tuple[int, str, int], first: int, last: int
) -> None: ...
def matmul(
    x: tuple[int, str, int],
    rows: int,
    weight: PrepackedWeight,
    out: tuple[int, str, int],
    *,
    bias: int = 0,
    activation: str | None = None,
    residual: tuple[int, str, int] | None = None,
    norm: tuple[int, int, float] | None = None,
    row_scales: int = 0,
    blocking: tuple[int, int] = (0, 0),
    pre_activation: tuple[int, str, int] | None = None,
    activation_out: tuple[int, str, int] | None = None,
) -> None: ...
def weight_gradient(
    a: tuple[int, str, int],
    b: tuple[int, str, int],
    tokens: int,
    rows: int,
    columns: int,
    out: tuple[int, str, int],
    sums: int,
    accumulate: bool,
) -> None: ...
def quantize_rows(x: tuple[int, str, int], rows: int, depth: int, integers: int, scales: int) -> None: ...

# bindings/search.cpp

def search_rows(
    *,
    kind: str,
    rows: int,
    scales: int,
    count: int,
    width: int,
    queries: int,
    query_scales: int,
    query_count: int,
    best: int,
    scores: int,
    indices: int,
) -> int | None: ...

# bindings/corpus.cpp

class CharacterProperty:
    SPACE: ClassVar[CharacterProperty]
    LOWER: ClassVar[CharacterProperty]
    UPPER: ClassVar[CharacterProperty]
    ALPHA: ClassVar[CharacterProperty]
    DIGIT: ClassVar[CharacterProperty]
    LETTER: ClassVar[CharacterProperty]
    STOP: ClassVar[CharacterProperty]
    CJK_STOP: ClassVar[CharacterProperty]
    CONTINUING: ClassVar[CharacterProperty]
    CLOSER: ClassVar[CharacterProperty]
    OPENER: ClassVar[CharacterProperty]
    WORD_BREAK: ClassVar[CharacterProperty]
    WORD_END: ClassVar[CharacterProperty]
    CJK: ClassVar[CharacterProperty]
    def __int__(self) -> int: ...

class SentenceRules:
    def __init__(
        self,
        properties: NDArray[np.uint16],
        titles: set[str],
        before_number: set[str],
        ordinary: set[str],
        abbreviations: set[str],
        starters: set[str],
    ) -> None: ...
    def split(self, paragraph: str) -> list[str]: ...

class Repeats:
    def __init__(self, lines: bool, documents: bool) -> None: ...
    @property
    def lines(self) -> int: ...
    @property
    def documents(self) -> int: ...
    @property
    def dropped_lines(self) -> int: ...
    @property
    def dropped_documents(self) -> int: ...
    @property
    def dropped_line_bytes(self) -> int: ...
    @property
    def dropped_document_bytes(self) -> int: ...
    @property
    def memory(self) -> int: ...

class SentenceBatch:
    def __len__(self) -> int: ...
    @property
    def bytes(self) -> int: ...
    @property
    def document_ends(self) -> NDArray[np.int64]: ...
    @property
    def begins_document(self) -> bool: ...
    def strings(self) -> list[str]: ...
    def encode(
        self, tokenizer: Tokenizer, threads: int, separator: str = ""
    ) -> tuple[NDArray[np.int32], NDArray[np.int64]]: ...

class SentenceReader:
    def __init__(
        self,
        rules: SentenceRules,
        layout: str,
        one_document: bool,
        max_paragraph_chars: int,
        max_document_chars: int,
        repeats: Repeats | None,
    ) -> None: ...
    def add(self, lines: bytes) -> None: ...
    def add_document(self, sentences: Sequence[str]) -> None: ...
    def end_document(self) -> None: ...
    def take(self) -> SentenceBatch: ...
    @property
    def complete_bytes(self) -> int: ...
    @property
    def cut_documents(self) -> int: ...

def is_utf8(data: bytes) -> bool: ...
def hash_rows(values: NDArray[Any], offsets: NDArray[np.int64]) -> NDArray[np.uint64]: ...
def hash_bytes(data: bytes, seed: int = 0) -> int: ...

# bindings/cross_entropy.cpp

def cross_entropy(
    logits: tuple[int, str, int],
    rows: int,
    vocab_size: int,
    labels: int,
    ignore_index: int,
    label_smoothing: float,
    z_loss: float,
    gradients: bool,
    losses: int,
    correct: int,
) -> None: ...

# bindings/rowwise.cpp: addresses of memory, 0 where there is none; strides in elements; dtypes "fp32" or "bf16"

# A dropout of rows: keys, how many, sequence ids, whether int64, offsets, whether int64, site, threshold, keep; one of
# scores: keys, site, threshold, keep. A table: ids, their stride, whether int64, embeddings, their stride, rows.

def layer_norm(
    rows: int, width: int, dtype: str, x: int, x_stride: int,
    weight: int, bias: int, vector_dtype: str, eps: float, rms: bool, y: int, mean: int, rstd: int, /,
) -> None: ...  # fmt: skip
def dropout_add_layer_norm(
    rows: int, width: int, dtype: str, x: int, x_stride: int, residual: int, residual_stride: int,
    x_bias: int, weight: int, bias: int, vector_dtype: str, eps: float, rms: bool, dropout: tuple[Any, ...] | None,
    total: int, y: int, mean: int, rstd: int, /,
) -> None: ...  # fmt: skip
def layer_norm_backward(
    rows: int, width: int, dtype: str, grad: int, grad_stride: int, grad_total: int, grad_total_stride: int,
    total: int, total_stride: int, mean: int, rstd: int, weight: int, weight_dtype: str,
    dropout: tuple[Any, ...] | None, dx: int, dresidual: int, bias: bool, x_bias: bool, rms: bool, sums: int, /,
) -> None: ...  # fmt: skip
def bias_gelu(
    rows: int, width: int, dtype: str, x: int, x_stride: int, bias: int, vector_dtype: str, tanh: bool, y: int, /
) -> None: ...
def bias_gelu_backward(
    rows: int, width: int, dtype: str, grad: int, grad_stride: int, x: int, x_stride: int,
    bias: int, bias_dtype: str, tanh: bool, dx: int, y: int, sums: int, /,
) -> None: ...  # fmt: skip
def gated_activation(
    rows: int, width: int, dtype: str, x: int, x_stride: int,
    bias: int, bias_dtype: str, activation: str, y: int, /,
) -> None: ...  # fmt: skip
def gated_activation_backward(
    rows: int, width: int, dtype: str, grad: int, grad_stride: int, x: int, x_stride: int,
    bias: int, bias_dtype: str, activation: str, dx: int, sums: int, /,
) -> None: ...  # fmt: skip
def gelu_layer_norm(
    rows: int, width: int, dtype: str, x: int, x_stride: int,
    x_bias: int, weight: int, bias: int, vector_dtype: str, eps: float, tanh: bool, y: int, mean: int, rstd: int, /,
) -> None: ...  # fmt: skip
def gelu_layer_norm_backward(
    rows: int, width: int, dtype: str, grad: int, grad_stride: int, x: int, x_stride: int, x_bias: int,
    weight: int, vector_dtype: str, tanh: bool, mean: int, rstd: int, dx: int, norm_bias: bool, sums: int, /,
) -> None: ...  # fmt: skip
def embedding_layer_norm(
    tokens: int, width: int, dtype: str, out_dtype: str, tables: Sequence[tuple[Any, ...]],
    weight: int, bias: int, vector_dtype: str, eps: float, dropout: tuple[Any, ...] | None,
    y: int, mean: int, rstd: int, /,
) -> tuple[int, int, int] | None:  # fmt: skip
    """Return (table, token, id) of the first id outside its table, with nothing written."""

def embedding_layer_norm_backward(
    tokens: int, width: int, dtype: str, grad_dtype: str, tables: Sequence[tuple[Any, ...]],
    grad: int, grad_stride: int, mean: int, rstd: int, weight: int, weight_dtype: str,
    dropout: tuple[Any, ...] | None, dsum: int, sums: int, /,
) -> None: ...  # fmt: skip
def embedding_backward(
    tokens: int, width: int, dtype: str, dsum: int, ids: int, ids_stride: int, wide: bool, rows: int, gradient: int, /
) -> None: ...
def softmax(
    sizes: Sequence[int], dtype: str, scores: int, strides: Sequence[int], mask: int, mask_strides: Sequence[int],
    scale: float, dropout: tuple[int, int, int, float] | None, out: int, /,
) -> None: ...  # fmt: skip
def softmax_backward(
    sizes: Sequence[int], dtype: str, scores: int, strides: Sequence[int], mask: int, mask_strides: Sequence[int],
    scale: float, dropout: tuple[int, int, int, float] | None, grad: int, dscores: int, /,
) -> None: ...  # fmt: skip
def dropout(rows: int, width: int, dtype: str, x: int, x_stride: int, dropout: tuple[Any, ...], y: int, /) -> None: ...
def find_bad_id(ids: int, stride: int, wide: bool, count: int, below: int, /) -> int:
    """Return the index of the first id outside 0..below - 1, or their number."""

# bindings/encoder_layer.cpp

def general_layer(
    *,
    x: tuple[int, str, int],
    tokens: int,
    weights: tuple[PrepackedWeight, ...],
    vectors: list[tuple[int, int, str]],
    attention: AttentionArguments,
    eps: tuple[float, float],
    activation: str,
    pre_norm: bool,
    rms: bool,
    rows: tuple[int, int] | None,
    y: int,
    y_dtype: str,
) -> None:
    """Compute a layer that is not BERT's; `vectors` are as in `encoder_layer`, absent ones of 0 elements."""

def encoder_layer(
    *,
    x: int,
    x_dtype: str,
    x_stride: int,
    tokens: int,
    width: int,
    weights: Sequence[PrepackedWeight],
    vectors: Sequence[tuple[int, int, str]],
    cu_seqlens: int,
    sequences: int,
    heads: int,
    eps: float,
    tanh: bool,
    causal: bool,
    rows: tuple[int, int] | None,
    y: int,
    y_dtype: str,
) -> None:
    """Compute a layer. `rows`: address and number of the int64 indices of the output tokens; None for all."""

class EncoderStack:
    """BERT's layers. A layer has four weights, ten vectors (address, elements, dtype), which are copied, and two
    epsilons; `spans` are the addresses and bytes of the weights that were packed."""

    def __init__(
        self,
        *,
        layers: Sequence[tuple[tuple[PrepackedWeight, ...], Sequence[tuple[int, int, str]], tuple[float, float]]],
        heads: int,
        tanh: bool,
        causal: bool,
        spans: Sequence[tuple[int, int]],
    ) -> None: ...
    def is_current(self) -> bool:
        """Return whether samples of the weights, and all vectors, are what they were; their memory must be theirs."""
    @property
    def width(self) -> int: ...
    def run(
        self,
        x: tuple[int, str, int],
        tokens: int,
        *,
        cu_seqlens: int,
        sequences: int,
        rows: tuple[int, int] | None,
        states: int,
        y: int,
        y_dtype: str,
    ) -> None:
        """Compute all layers. `states` has room for two outputs of a layer, one for two layers; `rows` are those of the
        last layer, as in `encoder_layer`."""

# bindings/decoder.cpp

class DecoderStack:
    """The layers of a decoder. A layer has four weights, ten vectors (address, elements, dtype), which are copied, and
    two epsilons."""

    def __init__(
        self,
        *,
        layers: Sequence[tuple[tuple[PrepackedWeight, ...], Sequence[tuple[int, int, str]], tuple[float, float]]],
        heads: int,
        pre_norm: bool,
        tanh: bool,
        final_norm: tuple[tuple[int, int, str], tuple[int, int, str], float] | None = None,
    ) -> None: ...
    @property
    def width(self) -> int: ...
    def step(
        self,
        x: tuple[int, str, int],
        rows: int,
        *,
        keys: Sequence[int],
        values: Sequence[int],
        slots: int,
        slot: int,
        starts: int,
        y: int,
    ) -> None:
        """Compute one token per row; its keys and values are written to `slot` of the caches."""

def best_tokens(logits: tuple[int, str, int], rows: int, vocab_size: int, tokens: int, log_probabilities: int) -> None:
    """Write each row's most probable token and its log probability."""

# bindings/adamw.cpp

def adamw(
    parameters: Sequence[tuple[int, int, int, int, int, int, int, int]],
    settings: Sequence[tuple[float, float, float, float, float]],
    copies: Sequence[tuple[PrepackedWeight, bool, int, int]],
    grad_scale: float,
    zero_grad: bool,
    rates: Sequence[float] = (),
    narrow: Sequence[int] = (),
) -> bool:
    """Run one step; return False, with nothing written, if tensors share memory.

    Parameters are addresses of (weight, gradient, exp_avg, exp_avg_sq, step), rows, columns, index of the settings
    (lr, beta1, beta2, eps, weight_decay); copies are (packed, transposed, parameter index, row of its first row).
    `rates` holds a factor of the learning rate per parameter, and `narrow` the address of a bf16 parameter whose
    gradient is bf16 and whose fp32 master is the weight, 0 for an fp32 parameter.
    """

def adam_sums(
    parameters: Sequence[tuple[int, int, int, int, int, int, int, int]],
    settings: Sequence[tuple[float, float, float, float, float]],
    grad_scale: float,
    rule: str,
    narrow: Sequence[int] = (),
) -> list[tuple[float, float]]:
    """Return two sums per parameter of `adamw`, without writing anything; `rule` is stableadamw or lamb.

    StableAdamW: the sum of g^2 / max(v, eps^2), and 0. LAMB: the squares of the weight and those of the update with
    weight decay, zeros without it.
    """

def sum_of_squares(
    tensors: Sequence[tuple[int, int]], narrow: Sequence[bool] = ()
) -> tuple[float, tuple[int, int] | None]:
    """Sum the squares of tensors, (address, elements) each; also return the first non-finite (tensor, element).

    Tensors are fp32, or bf16 where `narrow` says so.
    """

def repack_all(parts: Sequence[tuple[PrepackedWeight, bool, int, tuple[int, str, int], int]]) -> None:
    """Rewrite copies from parts (packed, transposed, row of the weight's first row, weight, rows), grouped by copy."""

# bindings/runtime.cpp

def allocate_tensor(shape: Sequence[int], bytes: int, code: int, bits: int, /) -> Any:
    """Return a DLPack capsule over `bytes` bytes of the caching allocator, with DLPack's type code and bits."""

def allocator_statistics() -> dict[str, int]: ...
def reset_allocator_peak() -> None: ...
def release_free_pages() -> None: ...
def cpu_features() -> dict[str, bool]: ...
def cpu_capability_features() -> dict[str, bool]: ...
def cpu_capability() -> str: ...
def cpu_capabilities() -> list[str]: ...
def force_cpu_capability(name: str) -> None: ...
def override_cpu_features(names: Sequence[str]) -> None: ...
def parallel_threads() -> int: ...
def barrier_seconds(count: int) -> list[float]: ...
def fingerprint(spans: Sequence[tuple[int, int]]) -> int: ...
def full_fingerprint(spans: Sequence[tuple[int, int]]) -> int: ...
def weights_sum(parameters: Sequence[tuple[int, int, int, int]]) -> int: ...
def crc32c(data: bytes | bytearray | memoryview | NDArray[Any], value: int = 0, /) -> int: ...
def file_crc32c(descriptor: int, offset: int, size: int, /) -> int: ...
def crc32c_combine(first: int, second: int, second_size: int, /) -> int: ...

# bindings/peak.cpp

def cpu_peak(element: str, threads: int, seconds: float) -> float: ...

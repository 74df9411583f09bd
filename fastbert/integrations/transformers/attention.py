"""fastbert as an attention implementation of transformers: `attn_implementation="fastbert"`.

transformers calls two functions: its mask interface once per forward pass, and its attention interface in every layer.
The mask made here is the additive mask of transformers' eager attention, so every attention function can read it. A
note on it records which tokens are real: attention with the note runs packed, over the real tokens alone. Attention
without it, or unsupported by our kernels, falls back to transformers' sdpa.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from fastbert import ops
from fastbert.errors import UserError
from fastbert.io.log import logger
from fastbert.ops.attention.native import MAX_HEAD_DIM
from fastbert.ops.attention.triton import HEAD_DIMS
from fastbert.ops.dispatch import forced, preferred_backend
from fastbert.ops.native import buffers
from fastbert.packing import pad

# Classes of transformers whose queries and keys always come from the same tokens, so that padding among the keys is
# padding among the queries. Elsewhere equal lengths may be chance, as in cross-attention: all queries are computed.
SELF_ATTENTION = frozenset(
    f"{name}Attention"
    for name in (
        "Albert",
        "BertSelf",
        "CamembertSelf",
        "Data2VecTextSelf",
        "DistilBertSelf",
        "ElectraSelf",
        "ErnieSelf",
        "ModernBert",
        "RobertaPreLayerNormSelf",
        "RobertaSelf",
        "XLMRobertaSelf",
        "XLMRobertaXLSelf",
        "XmodSelf",
    )
)
NOTE = "_fastbert_padding"
_logged: set[str] = set()


def register_attention(name: str = "fastbert") -> str:
    """Register fastbert's attention with transformers as `attn_implementation=name`; return the name.

    Afterwards `AutoModel.from_pretrained(folder, attn_implementation="fastbert")` and
    `model.set_attn_implementation("fastbert")` use it: outputs at real tokens are sdpa's up to rounding, forward and
    backward, in training with dropout of its own random numbers. Attention of padding tokens is zero in the encoders of
    `SELF_ATTENTION`. Unsupported calls (4-D masks, sliding windows shorter than the text, caches, position biases,
    other devices and dtypes) fall back to transformers' sdpa and log each reason once; so does traced and compiled
    code. `output_attentions=True` is computed eagerly; soft caps and attention sinks raise `UserError`.

    Registering again has no effect. Raises `UserError` without transformers, and for a name that is already in use.

    Example:
        >>> import fastbert
        >>> from transformers import AutoModel
        >>> name = fastbert.register_attention()
        >>> model = AutoModel.from_pretrained("runs/mine/model", attn_implementation=name)
        >>> model.config._attn_implementation
        'fastbert'
    """
    try:
        from transformers import AttentionInterface, AttentionMaskInterface
    except ImportError as error:
        raise UserError(
            f"register_attention needs transformers 5.10 or later ({error}): `pip install -U transformers`"
        ) from None
    registered = AttentionInterface._global_mapping.get(name, attention_forward)
    if name == "eager" or "|" in name or "/" in name or registered is not attention_forward:
        raise UserError(f"attn_implementation {name!r} is reserved or in use: choose a name such as 'fastbert'")
    AttentionInterface.register(name, attention_forward)
    AttentionMaskInterface.register(name, attention_mask)
    return name


@dataclass(frozen=True)
class Rows:
    """The real tokens of padded rows: `slots` int64 (tokens,), their indices in the flattened rows, None for all;
    `cu_seqlens` int32 (rows + 1,); the longest row."""

    slots: Tensor | None
    cu_seqlens: Tensor
    longest: int

    @classmethod
    def from_mask(cls, mask: Tensor) -> Rows:
        """Make the rows of a bool mask (rows, columns), True at real tokens."""
        lengths = mask.sum(dim=1)
        cu_seqlens = torch.zeros(len(mask) + 1, dtype=torch.int32, device=mask.device)
        cu_seqlens[1:] = lengths.cumsum(0)
        return cls(mask.flatten().nonzero().flatten(), cu_seqlens, int(lengths.max()) if len(mask) else 0)

    @classmethod
    def full(cls, rows: int, columns: int, device: torch.device) -> Rows:
        """Make rows without padding."""
        return cls(None, torch.arange(rows + 1, dtype=torch.int32, device=device) * columns, columns)

    def pack(self, x: Tensor) -> Tensor:
        """Return the real tokens of x (rows, heads, columns, head_dim) as (tokens, heads, head_dim)."""
        flat = x.transpose(1, 2).flatten(0, 1)
        return flat if self.slots is None else flat.index_select(0, self.slots)


@dataclass
class Padding:
    """The note on a mask: the bool mask of real keys (rows, columns), None for all; whether attention is causal. The
    rows are computed once, in the first layer."""

    mask: Tensor | None
    causal: bool
    state: tuple[Any, ...] = ()
    keys: Rows | None = field(default=None)

    def rows(self, shape: tuple[int, int], device: torch.device) -> Rows:
        """Return the rows of the keys, whose padded shape is (rows, columns)."""
        if self.keys is None:
            self.keys = Rows.full(*shape, device) if self.mask is None else Rows.from_mask(self.mask)
        return self.keys


def attention_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int = 0,
    kv_offset: int = 0,
    mask_function: Callable[..., Tensor] | None = None,
    attention_mask: Tensor | None = None,
    local_size: int | None = None,
    **options: Any,
) -> Tensor | None:
    """Return the additive mask (rows, 1, queries, keys) of transformers' eager attention, with a note if it depends on
    nothing but padding and causal order; None if every token attends to every other."""
    from transformers import masking_utils
    from transformers.utils.import_utils import is_tracing

    function = mask_function or masking_utils.causal_mask_function
    causal = function is masking_utils.causal_mask_function
    skips = bool(options.get("allow_is_bidirectional_skip"))
    # A bidirectional window longer than the text masks nothing.
    within = skips and local_size is not None and kv_length < local_size
    both_ways = function is masking_utils.bidirectional_mask_function or within
    real = masking_utils.prepare_padding_mask(attention_mask, kv_length, kv_offset)
    # Traces and transforms cannot read the mask; with a cache, queries and keys are of different tokens.
    traced = is_tracing(real) or buffers.is_transformed()
    known = (causal or both_ways) and not traced and not isinstance(q_offset, Tensor)
    known = known and (real is None or real.shape == (batch_size, kv_length))
    known = known and (both_ways or (q_offset == 0 and kv_offset == 0 and q_length == kv_length))
    if not known or causal:
        mask: Tensor | None = masking_utils.eager_mask(
            batch_size, q_length, kv_length, q_offset, kv_offset, function, attention_mask, local_size=local_size,
            **options,
        )  # fmt: skip
        if not known or mask is None:
            return mask
        real = None if real is None or real.all() else real.bool()
    else:
        real = None if real is None or real.all() else real.bool()
        if real is None and skips:
            return None
        dtype, device = options.get("dtype", torch.float32), options.get("device", "cpu")
        mask = torch.zeros(1, 1, 1, 1, dtype=dtype, device=device)
        if real is not None:
            mask = mask.masked_fill(~real[:, None, None, :], torch.finfo(dtype).min)
        mask = mask.expand(batch_size, 1, q_length, kv_length)
    # Inference mode does not count writes, so only a mask that cannot be written to may have a note.
    if mask.is_inference() and 0 not in mask.stride():
        return mask
    # On the storage, not on the tensor: activation checkpointing passes on tensors that share the storage only.
    setattr(mask.untyped_storage(), NOTE, Padding(real, not both_ways, _state(mask)))
    return mask


def _state(mask: Tensor) -> tuple[Any, ...]:
    """Return what changes when a mask is sliced or written to."""
    version = None if mask.is_inference() else mask._version
    return version, mask.dtype, mask.shape, mask.stride(), mask.storage_offset()


def attention_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    **options: Any,
) -> tuple[Tensor, Tensor | None]:
    """Compute attention for transformers: query (rows, heads, queries, head_dim), key and value (rows, key heads, keys,
    head_dim) -> (rows, queries, heads, head_dim) in the dtype of query, and the probabilities if requested."""
    for name, meaning in (("softcap", "capped scores"), ("s_aux", "attention sinks")):
        if options.get(name) is not None:
            raise UserError(
                f"{type(module).__name__}: fastbert's attention does not compute {meaning} ({name});"
                ' use model.set_attn_implementation("eager")'
            )
    if options.get("output_attentions"):
        return _with_probabilities(module, query, key, value, attention_mask, dropout, scaling, is_causal)
    if torch.compiler.is_compiling() or torch.jit.is_tracing() or buffers.is_transformed():
        return _sdpa(module, query, key, value, attention_mask, dropout, scaling, is_causal, **options)
    padding = _padding(attention_mask)
    causal = padding.causal if padding is not None else _is_causal(module, query, is_causal)
    reason = _unsupported_mask(query, key, attention_mask, padding, causal, options) or _unsupported_tensors(
        query, key, value, dropout
    )
    if reason is not None:
        if reason not in _logged:
            _logged.add(reason)
            logger.warning("attention of %s runs in transformers' sdpa: %s", type(module).__name__, reason)
        return _sdpa(module, query, key, value, attention_mask, dropout, scaling, is_causal, **options)
    (rows, _, queries, _), keys = query.shape, key.shape[2]
    if options.get("cu_seq_lens_q") is not None:
        query_rows, key_rows = _packed_rows(options)
    else:
        key_rows = (padding or Padding(None, False)).rows((rows, keys), query.device)
        same_rows = queries == keys and (key_rows.slots is None or causal or type(module).__name__ in SELF_ATTENTION)
        query_rows = key_rows if same_rows else Rows.full(rows, queries, query.device)
    packed = _attend(query, key, value, query_rows, key_rows, causal=causal, dropout=dropout, scaling=scaling)
    if query_rows.slots is None:
        return packed.unflatten(0, (rows, queries)), None
    return pad(packed, query_rows.slots, (rows, queries)), None


def _attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    query_rows: Rows,
    key_rows: Rows,
    *,
    causal: bool,
    dropout: float,
    scaling: float | None,
) -> Tensor:
    """Return attention of the real tokens, (tokens, heads, head_dim)."""
    q, k, v = query_rows.pack(query), key_rows.pack(key), key_rows.pack(value)
    if q.shape[1] != k.shape[1]:  # several query heads share a key head
        k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
    if preferred_backend("attention", q.device) == "triton":  # its kernels require contiguous heads
        q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
    return ops.attention(
        q, k, v, query_rows.cu_seqlens, key_rows.cu_seqlens, query_rows.longest, key_rows.longest,
        causal=causal, dropout_p=dropout, scale=scaling,
    )  # fmt: skip


def _padding(mask: Tensor | None) -> Padding | None:
    """Return the note on a mask, unless the mask has been sliced or written to since."""
    if mask is None:
        return None
    padding = getattr(mask.untyped_storage(), NOTE, None)
    return padding if isinstance(padding, Padding) and padding.state == _state(mask) else None


def _is_causal(module: nn.Module, query: Tensor, is_causal: bool | None) -> bool:
    """Return whether attention without a mask is causal, by sdpa's rule."""
    return bool(query.shape[2] > 1 and (getattr(module, "is_causal", True) if is_causal is None else is_causal))


def _packed_rows(options: dict[str, Any]) -> tuple[Rows, Rows]:
    """Return the query and key sequences that the caller has packed into one row."""
    return tuple(  # type: ignore[return-value]
        Rows(None, options[f"cu_seq_lens_{side}"].int(), int(options[f"max_length_{side}"])) for side in "qk"
    )


def _unsupported_mask(
    query: Tensor, key: Tensor, mask: Tensor | None, padding: Padding | None, causal: bool, options: dict[str, Any]
) -> str | None:
    """Return why the mask is unsupported, or None. Raises UserError for arguments that contradict each other."""
    if options.get("cu_seq_lens_q") is not None:
        if any(options.get(name) is None for name in ("cu_seq_lens_k", "max_length_q", "max_length_k")):
            raise UserError("cu_seq_lens_q comes with cu_seq_lens_k, max_length_q and max_length_k")
        if padding is not None or len(query) != 1:
            raise UserError("cu_seq_lens_q packs sequences in one row: pass neither padding nor further rows with it")
    if mask is not None and padding is None:
        return "the mask is one of its own (4-D, or with a window, an overlay or a cache)"
    if options.get("position_bias") is not None:
        return "it has a position bias"
    if causal and query.shape[2] != key.shape[2]:
        return "its queries are fewer than its keys (a cache)"
    window = options.get("sliding_window")
    if mask is None and window is not None and window < key.shape[2]:
        raise UserError(
            f"sliding_window={window} of {key.shape[2]} keys came without its mask, and fastbert's attention has no"
            ' windows; use model.set_attn_implementation("eager")'
        )
    return None


def _unsupported_tensors(query: Tensor, key: Tensor, value: Tensor, dropout: float) -> str | None:
    """Return why our kernels do not support such tensors, or None."""
    device, dim = query.device.type, query.shape[-1]
    dtype = query.dtype
    if torch.is_autocast_enabled(device) and dtype != torch.float64:
        dtype = torch.get_autocast_dtype(device)
    if device not in ("cpu", "cuda"):
        return f"the model is on {device}"
    if value.shape != key.shape or key.shape[-1] != dim or query.shape[1] % max(key.shape[1], 1):
        return f"queries, keys, values have heads of {dim}, {key.shape[-1]}, {value.shape[-1]}, or unequal numbers"
    if not query.dtype == key.dtype == value.dtype or len(query) != len(key) or not query.numel():
        return "queries, keys and values are empty, or not of one dtype and as many rows"
    if not 0.0 <= dropout < 1.0:
        return f"dropout={dropout}"
    if forced() == "eager":
        return None
    if device == "cpu" and (dtype not in (torch.float32, torch.bfloat16) or dim > MAX_HEAD_DIM):
        return f"{dtype} with head_dim={dim} on a CPU"
    if device == "cuda" and (dtype not in (torch.float32, torch.bfloat16, torch.float16) or dim not in HEAD_DIMS):
        return f"{dtype} with head_dim={dim} on a GPU"
    return None


def _sdpa(*arguments: Any, **options: Any) -> tuple[Tensor, Tensor | None]:
    """Fall back to transformers' sdpa."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    module, query, key, value, mask, dropout, scaling, is_causal = arguments
    result: tuple[Tensor, None] = sdpa_attention_forward(
        module, query, key, value, mask, dropout=dropout, scaling=scaling, is_causal=is_causal, **options
    )
    return result


def _with_probabilities(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    dropout: float,
    scaling: float | None,
    is_causal: bool | None,
) -> tuple[Tensor, Tensor]:
    """Return attention computed eagerly, and its probabilities (rows, heads, queries, keys)."""
    if query.shape[1] != key.shape[1]:
        key, value = (x.repeat_interleave(query.shape[1] // x.shape[1], dim=1) for x in (key, value))
    scores = query @ key.transpose(2, 3) * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    if mask is not None:
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min) if mask.dtype == torch.bool else scores + mask
    elif _is_causal(module, query, is_causal):
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(later, torch.finfo(scores.dtype).min)
    probabilities = scores.softmax(-1)
    factors = nn.functional.dropout(probabilities, dropout, training=dropout > 0)
    return (factors @ value).transpose(1, 2).contiguous(), probabilities

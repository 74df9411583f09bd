"""fastbert as an attention implementation of transformers: `attn_implementation="fastbert"`.

transformers asks twice: once a forward pass for a mask, in its mask interface, and in every layer for attention itself.
The mask made here is the additive one that transformers' own eager attention reads, so whoever gets it computes the
right thing; what tells it apart is a note on it of which tokens are real. Attention that finds the note runs packed,
over the real tokens alone; attention that does not, or that our kernels do not serve, is transformers' sdpa.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from fastbert import ops
from fastbert.errors import UserError
from fastbert.ops.attention.native import MAX_HEAD_DIM
from fastbert.ops.attention.triton import HEAD_DIMS
from fastbert.ops.dispatch import forced, preferred_backend
from fastbert.ops.native import buffers
from fastbert.packing import pad

logger = logging.getLogger("fastbert")

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
_said: set[str] = set()


def register_attention(name: str = "fastbert") -> str:
    """Make fastbert's attention known to transformers as `attn_implementation=name`; returns the name.

    Afterwards `AutoModel.from_pretrained(folder, attn_implementation="fastbert")` and
    `model.set_attn_implementation("fastbert")` use it: outputs at real tokens are sdpa's up to rounding, forward and
    backward, in training with dropout of its own random numbers. Attention of padding tokens is zero in the encoders of
    `SELF_ATTENTION`. Calls that are not served (4-D masks, sliding windows shorter than the text, caches, position
    biases, other devices and dtypes) go to transformers' sdpa, and the log says so once for each reason; traced and
    compiled code goes there too. `output_attentions=True` is computed eagerly; soft caps and attention sinks are
    refused.

    Registering again is harmless. Raises UserError without transformers, and for a name that is another's.
    """
    try:
        from transformers import AttentionInterface, AttentionMaskInterface
    except ImportError as error:
        raise UserError(
            f"register_attention needs transformers 5.10 or later ({error}): `pip install -U transformers`"
        ) from None
    taken = {key: AttentionInterface._global_mapping[key] for key in AttentionInterface._global_mapping}
    if name == "eager" or "|" in name or "/" in name or taken.get(name, attention_forward) is not attention_forward:
        raise UserError(f"attn_implementation {name!r} is another's in transformers: choose a name such as 'fastbert'")
    AttentionInterface.register(name, attention_forward)
    AttentionMaskInterface.register(name, attention_mask)
    return name


@dataclass(frozen=True)
class Rows:
    """Where the real tokens stand in padded rows: `slots` int64 (tokens,) in the flattened rows, None for all of them;
    `cu_seqlens` int32 (rows + 1,); the longest row."""

    slots: Tensor | None
    cu_seqlens: Tensor
    longest: int

    @classmethod
    def of(cls, kept: Tensor) -> Rows:
        """Of a mask (rows, columns) that is True at real tokens."""
        lengths = kept.sum(dim=1)
        cu_seqlens = torch.zeros(len(kept) + 1, dtype=torch.int32, device=kept.device)
        cu_seqlens[1:] = lengths.cumsum(0)
        return cls(kept.flatten().nonzero().flatten(), cu_seqlens, int(lengths.max()) if len(kept) else 0)

    @classmethod
    def full(cls, rows: int, columns: int, device: torch.device) -> Rows:
        """Rows without padding."""
        return cls(None, torch.arange(rows + 1, dtype=torch.int32, device=device) * columns, columns)

    def pack(self, x: Tensor) -> Tensor:
        """The real tokens of x (rows, heads, columns, head_dim), as (tokens, heads, head_dim)."""
        flat = x.transpose(1, 2).flatten(0, 1)
        return flat if self.slots is None else flat.index_select(0, self.slots)


@dataclass
class Padding:
    """The note on a mask: which keys are real, bool (rows, columns) or None for all, and whether tokens see only what
    is before them. Where they stand is found once, by the first layer that asks."""

    kept: Tensor | None
    causal: bool
    state: tuple[Any, ...] = ()
    keys: Rows | None = field(default=None)

    def rows(self, shape: tuple[int, int], device: torch.device) -> Rows:
        """Where the keys of `shape` (rows, columns) stand."""
        if self.keys is None:
            self.keys = Rows.full(*shape, device) if self.kept is None else Rows.of(self.kept)
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
    """transformers' mask function: the additive mask (rows, 1, queries, keys) of its eager attention, with a note on it
    where nothing but padding, or causal order, decides; None where every token sees every other."""
    from transformers import masking_utils
    from transformers.utils.import_utils import is_tracing

    function = mask_function or masking_utils.causal_mask_function
    causal = function is masking_utils.causal_mask_function
    skips = bool(options.get("allow_is_bidirectional_skip"))
    # A window, other than of causal order, that no text reaches is none.
    within = skips and local_size is not None and kv_length < local_size
    both_ways = function is masking_utils.bidirectional_mask_function or within
    kept = masking_utils.prepare_padding_mask(attention_mask, kv_length, kv_offset)
    # Traces and transforms cannot look at the mask; and with a cache, queries and keys are not of the same tokens.
    traced = is_tracing(kept) or buffers.is_transformed()
    known = (causal or both_ways) and not traced and not isinstance(q_offset, Tensor)
    known = known and (kept is None or kept.shape == (batch_size, kv_length))
    known = known and (both_ways or (q_offset == 0 and kv_offset == 0 and q_length == kv_length))
    if not known or causal:
        mask: Tensor | None = masking_utils.eager_mask(
            batch_size, q_length, kv_length, q_offset, kv_offset, function, attention_mask, local_size=local_size,
            **options,
        )  # fmt: skip
        if not known or mask is None:
            return mask
        kept = None if kept is None or kept.all() else kept.bool()
    else:
        kept = None if kept is None or kept.all() else kept.bool()
        if kept is None and skips:
            return None
        dtype, device = options.get("dtype", torch.float32), options.get("device", "cpu")
        mask = torch.zeros(1, 1, 1, 1, dtype=dtype, device=device)
        if kept is not None:
            mask = mask.masked_fill(~kept[:, None, None, :], torch.finfo(dtype).min)
        mask = mask.expand(batch_size, 1, q_length, kv_length)
    # In inference mode nothing counts writes, so only a mask that cannot be written to may be known by a note.
    if mask.is_inference() and 0 not in mask.stride():
        return mask
    # On the memory, not on the tensor: checkpoints of activations hand on tensors that only share it.
    setattr(mask.untyped_storage(), NOTE, Padding(kept, not both_ways, _state(mask)))
    return mask


def _state(mask: Tensor) -> tuple[Any, ...]:
    """What is another once a mask was cut or written to."""
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
    """transformers' attention function: query (rows, heads, queries, head_dim), key and value (rows, key heads, keys,
    head_dim) -> (rows, queries, heads, head_dim) in the dtype of query, and the probabilities where asked for."""
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
    given = (query, key, value)
    padding = _padding(attention_mask)
    causal = padding.causal if padding is not None else _is_causal(module, query, is_causal)
    reason = _mask_not_served(query, key, attention_mask, padding, causal, options) or _not_served(*given, dropout)
    if reason is not None:
        if reason not in _said:
            _said.add(reason)
            logger.warning("attention of %s runs in transformers' sdpa: %s", type(module).__name__, reason)
        return _sdpa(module, query, key, value, attention_mask, dropout, scaling, is_causal, **options)
    (rows, _, queries, _), keys = query.shape, key.shape[2]
    if options.get("cu_seq_lens_q") is not None:
        of_queries, of_keys = _packed_rows(options)
    else:
        of_keys = (padding or Padding(None, False)).rows((rows, keys), query.device)
        own = queries == keys and (of_keys.slots is None or causal or type(module).__name__ in SELF_ATTENTION)
        of_queries = of_keys if own else Rows.full(rows, queries, query.device)
    packed = _attend(given, of_queries, of_keys, causal=causal, dropout=dropout, scaling=scaling)
    if of_queries.slots is None:
        return packed.unflatten(0, (rows, queries)), None
    return pad(packed, of_queries.slots, (rows, queries)), None


def _attend(
    given: tuple[Tensor, Tensor, Tensor],
    of_queries: Rows,
    of_keys: Rows,
    *,
    causal: bool,
    dropout: float,
    scaling: float | None,
) -> Tensor:
    """Attention of the real tokens, (tokens, heads, head_dim)."""
    q, k, v = of_queries.pack(given[0]), of_keys.pack(given[1]), of_keys.pack(given[2])
    if q.shape[1] != k.shape[1]:  # several query heads share a key head
        k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
    if preferred_backend("attention", q.device) == "triton":  # whose kernels want a token's heads side by side
        q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
    return ops.attention(
        q, k, v, of_queries.cu_seqlens, of_keys.cu_seqlens, of_queries.longest, of_keys.longest,
        causal=causal, dropout_p=dropout, scale=scaling,
    )  # fmt: skip


def _padding(mask: Tensor | None) -> Padding | None:
    """The note on a mask, if it is still of this mask as it is."""
    if mask is None:
        return None
    padding = getattr(mask.untyped_storage(), NOTE, None)
    return padding if isinstance(padding, Padding) and padding.state == _state(mask) else None


def _is_causal(module: nn.Module, query: Tensor, is_causal: bool | None) -> bool:
    """Whether attention without a mask is causal, by sdpa's rule."""
    return bool(query.shape[2] > 1 and (getattr(module, "is_causal", True) if is_causal is None else is_causal))


def _packed_rows(options: dict[str, Any]) -> tuple[Rows, Rows]:
    """The sequences that the caller laid end to end in one row."""
    return tuple(  # type: ignore[return-value]
        Rows(None, options[f"cu_seq_lens_{side}"].int(), int(options[f"max_length_{side}"])) for side in "qk"
    )


def _mask_not_served(
    query: Tensor, key: Tensor, mask: Tensor | None, padding: Padding | None, causal: bool, options: dict[str, Any]
) -> str | None:
    """Why what decides who sees whom is not served, or None."""
    if options.get("cu_seq_lens_q") is not None:
        if any(options.get(name) is None for name in ("cu_seq_lens_k", "max_length_q", "max_length_k")):
            raise UserError("cu_seq_lens_q comes with cu_seq_lens_k, max_length_q and max_length_k")
        if padding is not None or len(query) != 1:
            raise UserError("cu_seq_lens_q tells of sequences in one row: give neither padding nor more rows with it")
    if mask is not None and padding is None:
        return "the mask is one of its own (4-D, or with a window, an overlay or a cache)"
    if options.get("position_bias") is not None:
        return "it has a position bias"
    if causal and query.shape[2] != key.shape[2]:
        return "its queries are fewer than its keys (a cache)"
    window = options.get("sliding_window")
    if mask is None and window is not None and window < key.shape[2]:
        raise UserError(
            f"sliding_window={window} of {key.shape[2]} keys came without a mask of it, and fastbert's attention has no"
            ' windows; use model.set_attn_implementation("eager")'
        )
    return None


def _not_served(query: Tensor, key: Tensor, value: Tensor, dropout: float) -> str | None:
    """Why our kernels do not serve such tensors, or None."""
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
    """Attention as the formula stands, and its probabilities (rows, heads, queries, keys)."""
    if query.shape[1] != key.shape[1]:
        key, value = (x.repeat_interleave(query.shape[1] // x.shape[1], dim=1) for x in (key, value))
    scores = query @ key.transpose(2, 3) * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    if mask is not None:
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min) if mask.dtype == torch.bool else scores + mask
    elif _is_causal(module, query, is_causal):
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(later, torch.finfo(scores.dtype).min)
    probabilities = scores.softmax(-1)
    dropped = nn.functional.dropout(probabilities, dropout, training=dropout > 0)
    return (dropped @ value).transpose(1, 2).contiguous(), probabilities

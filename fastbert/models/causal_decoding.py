"""The state of left-to-right generation: cached keys and values of prompts and generated tokens, and the step to the
next token."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fastbert import ops
from fastbert.models.decoder_stack import DecoderStack, Embed, decoder_stack, embeddings_step, head_step
from fastbert.models.heads.causal import ForCausalLM
from fastbert.models.layers import ModuleLayer, layer_batch
from fastbert.models.norm import Norm, is_plain_norm
from fastbert.models.plain_layers import is_plain_pre_norm
from fastbert.models.pre_norm import PreNormLayer
from fastbert.models.self_attention import SelfAttention
from fastbert.models.seq2seq.decoder import AttentionContext, run_context_layer, run_layers
from fastbert.models.seq2seq.decoding_cache import Writing, WrittenKeys, one_token_each
from fastbert.models.seq2seq.fused_decoding import Step, fused_element, step_layers
from fastbert.ops.encoder_layer.arguments import LayerBatch
from fastbert.ops.encoder_layer.composition import compose_layer
from fastbert.ops.native import matmul, prepacked_weights
from fastbert.ops.norm.op import layer_norm
from fastbert.packing import PackedBatch

if TYPE_CHECKING:
    from fastbert.models.heads.prediction import VocabularyHead


class CausalPrompt:
    """Attention of prompts to the tokens before, whose keys and values are cached."""

    def __init__(self, prompts: PackedBatch, written: WrittenKeys) -> None:
        self.prompts = prompts
        self.written = written

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Return causal attention of all prompt tokens, (tokens, heads, head_dim)."""
        self.written.keep_prefix(layer, k, v, self.prompts)
        cu_seqlens, longest = self.prompts.cu_seqlens, self.prompts.max_seqlen
        return ops.attention(q, k, v, cu_seqlens, cu_seqlens, longest, longest, causal=True)

    def cross_attend(self, layer: int, q: Tensor, attention: SelfAttention) -> Tensor:
        """Refuse: a language model has no cross-attention."""
        raise AssertionError("a language model has no cross-attention")


class CausalDecoding:
    """Generation by a left-to-right language model, one row per hypothesis."""

    def __init__(self, model: ForCausalLM, prompts: PackedBatch, room: int) -> None:
        """`room` is the largest number of new tokens."""
        self.encoder: Any = model.base_model
        self.head: VocabularyHead = model.head
        self.prompts = prompts
        config = model.config
        self.batch: LayerBatch = layer_batch(prompts, 0.0, 0.0, training=False)
        like = self.encoder.embeddings.word_embeddings.weight.new_empty(0, config.num_attention_heads, config.head_dim)
        if torch.is_autocast_enabled(like.device.type):
            like = like.to(torch.get_autocast_dtype(like.device.type))
        layers = list(self.encoder.encoder.layer)
        # The last generated token is never an input.
        self.written: WrittenKeys = WrittenKeys(len(layers), max(room - 1, 1), prompts, len(prompts), like)
        self.prompt_layers: list[Step] = [_context_layer(layer, number) for number, layer in enumerate(layers)]
        # One call for all layers, or one step per layer.
        self.stack: DecoderStack | None = decoder_stack(layers, self.encoder.encoder.LayerNorm, like)
        self.layers: list[Step] = causal_steps(layers, like) if self.stack is None else []
        self.embed: Embed | None = None if self.stack is None else embeddings_step(self.encoder.embeddings)
        self.product: Callable[[Tensor], Tensor] | None = None if self.stack is None else head_step(self.head, like)
        self.positions: Tensor = prompts.position_ids[self._last_tokens()] + 1

    def _last_tokens(self) -> Tensor:
        """Return the index of each prompt's last token, int64 (prompts,)."""
        return self.prompts.cu_seqlens[1:].long() - 1

    def first(self) -> Tensor:
        """Return logits (prompts, vocab_size) of the token after the prompts' last."""
        x = self.encoder.embeddings(self.prompts, None)
        x = run_layers(self.prompt_layers, x, CausalPrompt(self.prompts, self.written), self.batch)
        return self._logits(x.index_select(0, self._last_tokens()))

    def step(self, tokens: Tensor) -> Tensor:
        """Return logits (rows, vocab_size) of the token after `tokens`, int64 (rows,)."""
        positions = self.positions + self.written.written
        self.written.advance()
        if self.embed is None:
            x = self.encoder.embeddings(one_token_each(tokens, positions, 0), None)
        else:
            x = self.embed(tokens, positions)
        if self.stack is None:
            return self._logits(run_layers(self.layers, x, Writing(self.written), self.batch))
        x = self.stack.step(x, self.written)
        logits: Tensor = self.head(x) if self.product is None else self.product(x)
        return logits

    def _logits(self, x: Tensor) -> Tensor:
        norm = self.encoder.encoder.LayerNorm
        logits: Tensor = self.head(x if norm is None else norm(x))
        return logits

    def select(self, rows: Tensor, sources: Tensor | None, readers: int) -> None:
        """Keep these rows, int64, `readers` of each of `sources`, or of all (None)."""
        del readers
        unchanged = sources is None and len(rows) == len(self.positions)
        self.written.select(rows, same_prefixes=unchanged)
        if not unchanged:
            self.positions = self.positions.index_select(0, rows)


class _PreNormContextLayer(ModuleLayer):
    """A pre-LN layer whose attention is that of a context."""

    def __init__(self, layer: PreNormLayer, number: int, batch: LayerBatch, context: AttentionContext) -> None:
        super().__init__(layer.spec, layer.named_parts(), batch, layer.index, is_plain_norm=is_plain_norm)
        self.number, self.context = number, context

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Return the context's self-attention."""
        return self.context.attend(self.number, q, k, v)


def _run_pre_norm(layer: PreNormLayer, number: int, x: Tensor, context: AttentionContext, batch: LayerBatch) -> Tensor:
    return compose_layer(x, _PreNormContextLayer(layer, number, batch, context), batch, layer.index)


def _context_layer(layer: Any, number: int) -> Step:
    """Return a layer's forward with the attention of a context."""
    return partial(_run_pre_norm if isinstance(layer, PreNormLayer) else run_context_layer, layer, number)


def causal_steps(layers: Iterable[Any], like: Tensor) -> list[Step]:
    """Return the steps that compute layers for new tokens of the dtype and device of `like`: fused where the CPU's
    kernels support a layer of plain modules, else composed of single operations."""
    layers = list(layers)
    if not any(isinstance(layer, PreNormLayer) for layer in layers):
        return step_layers(layers, like)
    steps: list[Step] = []
    for number, layer in enumerate(layers):
        element = fused_element(layer, like) if is_plain_pre_norm(layer) else None
        steps.append(_context_layer(layer, number) if element is None else _FusedPreNormLayer(layer, number, element))
    return steps


class _FusedPreNormLayer:
    """A pre-LN layer of plain modules as two norms, four matmuls and attention."""

    def __init__(self, layer: PreNormLayer, number: int, element: str) -> None:
        self.number, self.heads = number, layer.spec.self_attention.heads
        self.activation = layer.spec.feed_forward.activation
        parts: Any = layer.named_parts()
        linears = [parts[name] for name in ("query", "key", "value", "attention_output", "intermediate", "output")]
        self.joined, self.mixed, self.widened, self.narrowed = prepacked_weights.prepacked_group(
            [linear.weight for linear in linears], (3, 1, 1, 1), element
        )
        biases = [linear.bias.detach() for linear in linears]
        self.joined_bias = torch.cat(biases[:3])
        self.mixed_bias, self.widened_bias, self.narrowed_bias = biases[3:]
        self.norms = [_norm(parts[name]) for name in ("attention_norm", "output_norm")]

    def __call__(self, x: Tensor, context: AttentionContext, batch: LayerBatch) -> Tensor:
        """Compute the layer: x (tokens, hidden_size) -> the same shape; nothing is dropped."""
        del batch
        product = matmul.matmul
        joined = product(layer_norm(x, *self.norms[0]), self.joined, self.joined_bias)
        q, k, v = joined.view(len(x), 3, self.heads, -1).unbind(1)
        attended = context.attend(self.number, q, k, v).flatten(1)
        x = product(attended, self.mixed, self.mixed_bias, residual=x)
        inner = product(layer_norm(x, *self.norms[1]), self.widened, self.widened_bias, self.activation)
        return product(inner, self.narrowed, self.narrowed_bias, residual=x)


def _norm(norm: Norm) -> tuple[Tensor, Tensor, float]:
    return norm.weight.detach(), norm.bias.detach(), norm.eps

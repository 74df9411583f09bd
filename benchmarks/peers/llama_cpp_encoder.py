"""llama.cpp's BERT: the weights written as GGUF, sequences packed into batches of its default size."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import gguf
import llama_cpp
import numpy as np
from numpy.typing import NDArray

from fastbert.benchmarks.peers import Arrays
from fastbert.benchmarks.peers.bert_weights import read_bert

TYPES = {
    "fp32": gguf.GGMLQuantizationType.F32,
    "bf16": gguf.GGMLQuantizationType.BF16,
    "int8": gguf.GGMLQuantizationType.Q8_0,
}
# Attention covers all pairs of tokens in a batch, of different sequences too, so larger ones are no faster.
BATCH_TOKENS = 512
NAMES = {
    "embeddings.word_embeddings": "token_embd",
    "embeddings.position_embeddings": "position_embd",
    "embeddings.token_type_embeddings": "token_types",
    "embeddings.LayerNorm": "token_embd_norm",
}
LAYER_NAMES = {
    "attention.self.query": "attn_q",
    "attention.self.key": "attn_k",
    "attention.self.value": "attn_v",
    "attention.output.dense": "attn_output",
    "attention.output.LayerNorm": "attn_output_norm",
    "intermediate.dense": "ffn_up",
    "output.dense": "ffn_down",
    "output.LayerNorm": "layer_output_norm",
}


class Encoder:
    """`llama_encode` without pooling; int8 is Q8_0. It has no pooler, so the pooled output is left out."""

    def __init__(self, folder: Path, *, dtype: str, threads: int, scratch: Path) -> None:
        self.keep_quiet: Any = llama_cpp.llama_log_callback(lambda level, text, data: None)
        llama_cpp.llama_log_set(self.keep_quiet, ctypes.c_void_p(0))
        config, weights = read_bert(folder)
        path = scratch / "model.gguf"
        _write(path, config, weights, TYPES[dtype])
        self.width: Any = config["hidden_size"]
        llama_cpp.llama_backend_init()
        self.model: Any = llama_cpp.llama_model_load_from_file(
            str(path).encode(), llama_cpp.llama_model_default_params()
        )
        if not self.model:
            raise RuntimeError("llama.cpp could not load the GGUF file, of which it logs the reason")
        self.threads = threads
        self.context: Any = None

    def open(self, arrays: Arrays) -> dict[str, Any]:
        ends = np.cumsum(arrays["lengths"])
        self.sequences: list[NDArray[Any]] = np.split(arrays["input_ids"], ends[:-1])
        tokens = max(BATCH_TOKENS, int(arrays["lengths"].max()))
        self.batches: list[range] = _batches([len(ids) for ids in self.sequences], tokens)
        params = llama_cpp.llama_context_default_params()
        # Without causal attention a batch is computed at once.
        params.n_ctx = params.n_batch = params.n_ubatch = tokens
        params.n_seq_max = max(map(len, self.batches))
        params.kv_unified = True
        params.n_threads = params.n_threads_batch = self.threads
        params.embeddings = True
        params.pooling_type = llama_cpp.LLAMA_POOLING_TYPE_NONE
        if self.context is not None:
            llama_cpp.llama_free(self.context)
            llama_cpp.llama_batch_free(self.batch)
        self.context = llama_cpp.llama_init_from_model(self.model, params)
        if not self.context:
            raise RuntimeError(f"llama.cpp could not make a context of {tokens} tokens")
        self.batch: Any = llama_cpp.llama_batch_init(tokens, 0, 1)
        return {"batches": len(self.batches), "batch_tokens": tokens}

    def run(self) -> Any:
        return np.concatenate([self._encode(indices) for indices in self.batches])

    def values(self, result: Any) -> np.ndarray:
        values: np.ndarray = result
        return values

    def _encode(self, indices: range) -> np.ndarray:
        """Return the hidden states of a batch of sequences: fp32 (tokens, width)."""
        batch, row = self.batch, 0
        for sequence, index in enumerate(indices):
            for position, token in enumerate(self.sequences[index].tolist()):
                batch.token[row], batch.pos[row], batch.logits[row] = token, position, 1
                batch.n_seq_id[row], batch.seq_id[row][0] = 1, sequence
                row += 1
        batch.n_tokens = row
        status = llama_cpp.llama_encode(self.context, batch)
        if status:
            raise RuntimeError(f"llama_encode of {row} tokens failed with status {status}")
        pointer = llama_cpp.llama_get_embeddings(self.context)
        return np.ctypeslib.as_array(pointer, (row, self.width)).copy()


def _batches(lengths: list[int], most: int) -> list[range]:
    """Return consecutive sequences of at most `most` tokens in all per batch."""
    batches, first, tokens = [], 0, 0
    for index, length in enumerate(lengths):
        if tokens and tokens + length > most:
            batches.append(range(first, index))
            first, tokens = index, 0
        tokens += length
    return [*batches, range(first, len(lengths))]


def _write(path: Path, config: dict[str, Any], weights: dict[str, np.ndarray], kind: Any) -> None:
    """Write a GGUF file: matrices in `kind`, vectors and small embeddings in fp32, as llama.cpp's converter does."""
    writer = gguf.GGUFWriter(path, "bert")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_layer_norm_eps(config.get("layer_norm_eps", 1e-12))
    writer.add_causal_attention(False)
    writer.add_vocab_size(config["vocab_size"])
    writer.add_token_type_count(config.get("type_vocab_size", 2))
    writer.add_tokenizer_model("no_vocab")  # texts are given as ids
    writer.add_file_type({"F32": 0, "BF16": 32, "Q8_0": 7}[kind.name])
    small = {"position_embd.weight", "token_types.weight"}
    for name, values in _renamed(weights, config["num_hidden_layers"]).items():
        dtype = gguf.GGMLQuantizationType.F32 if values.ndim == 1 or name in small else kind
        writer.add_tensor(name, gguf.quants.quantize(values, dtype), raw_dtype=dtype)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _renamed(weights: dict[str, np.ndarray], layers: int) -> dict[str, np.ndarray]:
    names = dict(NAMES)
    for layer in range(layers):
        names |= {f"encoder.layer.{layer}.{ours}": f"blk.{layer}.{theirs}" for ours, theirs in LAYER_NAMES.items()}
    return {
        f"{theirs}.{part}": weights[f"{ours}.{part}"]
        for ours, theirs in names.items()
        for part in ("weight", "bias")
        if f"{ours}.{part}" in weights
    }

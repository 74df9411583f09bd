"""CTranslate2: BERT in its format, which computes only real tokens outside of attention, in fp32 or int8."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ctranslate2
import numpy as np
from ctranslate2.converters import utils
from ctranslate2.specs import common_spec, transformer_spec

from fastbert.benchmarks.peers import Arrays
from fastbert.benchmarks.peers.bert_weights import read_bert
from fastbert.benchmarks.peers.padded_batches import padded, real_tokens

# The documented type of int8 weights on a CPU: activations are quantised at run time, the rest is computed in fp32.
COMPUTE = {"fp32": "float32", "int8": "int8_float32"}


class Encoder:
    """`ctranslate2.Encoder` with one worker of all threads, as documented for one batch at a time.

    The model is written by its own specification classes: its converter of transformers' models needs a tokenizer,
    which a folder of weights lacks, and an older transformers.
    """

    def __init__(self, folder: Path, *, dtype: str, threads: int, scratch: Path) -> None:
        converted = scratch / "ctranslate2"
        _convert(folder, converted, COMPUTE[dtype])
        self.model: Any = ctranslate2.Encoder(
            str(converted), device="cpu", compute_type=COMPUTE[dtype], inter_threads=1, intra_threads=threads
        )

    def open(self, arrays: Arrays) -> dict[str, Any]:
        self.arrays: dict[str, np.ndarray] = padded(arrays)
        self.ids: Any = ctranslate2.StorageView.from_array(self.arrays["input_ids"].astype(np.int32))
        self.lengths: Any = ctranslate2.StorageView.from_array(arrays["lengths"].astype(np.int32))
        return {"compute_type": self.model.compute_type}

    def run(self) -> Any:
        return self.model.forward_batch(self.ids, self.lengths)

    def values(self, result: Any) -> np.ndarray:
        return real_tokens(np.asarray(result.last_hidden_state), self.arrays["attention_mask"])


def _convert(folder: Path, converted: Path, compute_type: str) -> None:
    """Write the model of a folder in CTranslate2's format, with the weights of its matmuls in int8 for that type."""
    config, weights = read_bert(folder)
    encoder = transformer_spec.TransformerEncoderSpec(
        config["num_hidden_layers"],
        config["num_attention_heads"],
        pre_norm=False,
        activation=common_spec.Activation.GELU,
        layernorm_embedding=True,
        num_source_embeddings=2,
        embeddings_merge=common_spec.EmbeddingsMerge.ADD,
    )
    pooled = "pooler.dense.weight" in weights
    spec = transformer_spec.TransformerEncoderModelSpec(
        encoder, pooling_layer=pooled, pooling_activation=common_spec.Activation.Tanh
    )
    encoder.scale_embeddings = False

    def linear(target: Any, name: str) -> Any:
        target.weight, target.bias = weights[f"{name}.weight"], weights[f"{name}.bias"]
        return target

    def norm(target: Any, name: str) -> None:
        target.gamma, target.beta = weights[f"{name}.weight"], weights[f"{name}.bias"]

    for target, name in zip(encoder.embeddings, ("word", "token_type")):
        target.weight = weights[f"embeddings.{name}_embeddings.weight"]
    encoder.position_encodings.encodings = weights["embeddings.position_embeddings.weight"]
    norm(encoder.layernorm_embedding, "embeddings.LayerNorm")
    for index, layer in enumerate(encoder.layer):
        name = f"encoder.layer.{index}"
        split = [
            linear(common_spec.LinearSpec(), f"{name}.attention.self.{part}") for part in ("query", "key", "value")
        ]
        utils.fuse_linear(layer.self_attention.linear[0], split)
        linear(layer.self_attention.linear[1], f"{name}.attention.output.dense")
        norm(layer.self_attention.layer_norm, f"{name}.attention.output.LayerNorm")
        linear(layer.ffn.linear_0, f"{name}.intermediate.dense")
        linear(layer.ffn.linear_1, f"{name}.output.dense")
        norm(layer.ffn.layer_norm, f"{name}.output.LayerNorm")
    if pooled:
        linear(spec.pooler_dense, "pooler.dense")
    # Texts are given as ids: the tokens only have to be as many.
    spec.register_vocabulary(["[UNK]", *(f"token{index}" for index in range(1, config["vocab_size"]))])
    spec.config.unk_token = "[UNK]"
    spec.config.layer_norm_epsilon = config.get("layer_norm_eps", 1e-12)
    spec.validate()
    spec.optimize(quantization=None if compute_type == "float32" else "int8")
    converted.mkdir(exist_ok=True)
    spec.save(str(converted))

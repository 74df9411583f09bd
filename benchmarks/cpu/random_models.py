"""Models with random weights in published shapes."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastbert.benchmarks.cpu.workloads import SEED

if TYPE_CHECKING:
    from fastbert.config import BertConfig

XLM_ROBERTA_PIECES = 250_002
MODULES = {"Transformer": "", "Pooling": "1_Pooling", "Normalize": "2_Normalize"}


def _roberta() -> BertConfig:
    from fastbert.models.roberta.config import RobertaConfig

    return RobertaConfig.preset("base")


def _xlm_roberta() -> BertConfig:
    from fastbert.models.roberta.config import XLMRobertaConfig

    return XLMRobertaConfig.preset("base", vocab_size=XLM_ROBERTA_PIECES)


SHAPES: dict[str, Callable[[], BertConfig]] = {"roberta-base": _roberta, "xlm-roberta-base": _xlm_roberta}


def random_model(kind: Any, config: BertConfig, seed: int = SEED) -> Any:
    """Return a model in eval mode whose weights spread their inputs as trained ones do, which initial ones do not."""
    import torch

    from fastbert.models.loading import outline

    torch.manual_seed(seed)
    model = outline(kind, config).to_empty(device="cpu").eval()  # without initial weights
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1:
                parameter.fill_(float("LayerNorm.weight" in name))
            elif "embeddings" in name:
                parameter.normal_(0.0, 1.0 if "word" in name else 0.02)
            else:
                parameter.normal_(0.0, 0.8 / parameter.shape[1] ** 0.5)
    return model


def write_embedder(folder: Path, config: BertConfig, tokenizer: Path) -> Path:
    """Write a sentence-transformers folder of the mean of a random encoder's hidden states, divided by its length, with
    a copy of a tokenizer; return it."""
    from fastbert.models import registry
    from fastbert.models.encoder import EncoderModel
    from fastbert.tokenizers.loading import load_tokenizer

    random_model(registry.architecture_of(config).model_class(EncoderModel), config).save_pretrained(folder)
    length = config.max_sequence_length
    load_tokenizer(tokenizer, model_max_length=length).save_pretrained(folder)
    write = partial(_write_json, folder)
    write("sentence_bert_config.json", {"max_seq_length": length, "do_lower_case": False})
    write("1_Pooling/config.json", {"word_embedding_dimension": config.hidden_size, "pooling_mode_mean_tokens": True})
    (folder / "2_Normalize").mkdir()
    home = "sentence_transformers.models"
    modules = [
        {"idx": index, "name": str(index), "path": path, "type": f"{home}.{kind}"}
        for index, (kind, path) in enumerate(MODULES.items())
    ]
    write("modules.json", modules)
    return folder


def _write_json(folder: Path, name: str, content: Any) -> None:
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content), encoding="utf-8")

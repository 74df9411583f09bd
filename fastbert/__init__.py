"""fastbert: pre-train, fine-tune and serve BERT-family encoders, fast, exact and complete.

Names are loaded on first use: importing the package has no side effects, and `fastbert --help` does not wait for torch.
"""

from importlib import import_module as _import_module
from importlib.machinery import PathFinder as _PathFinder
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

if _PathFinder.find_spec("fastbert._C", __path__) is None:
    raise ImportError(
        f"{__path__[0]} is fastbert's source tree, which is not compiled: run `pip install .` in it and start Python in"
        " another folder (or use the `fastbert` command), or run `pip install -e .` to use the tree itself"
    )

if _TYPE_CHECKING:
    from fastbert.cli.functions import finetune, pretrain
    from fastbert.config import BertConfig
    from fastbert.embeddings.embedder import Embedder
    from fastbert.embeddings.folder import load_embedder
    from fastbert.integrations.accelerate import accelerate, restore
    from fastbert.integrations.transformers.attention import register_attention
    from fastbert.models import (
        BertForMaskedLM,
        BertForMultipleChoice,
        BertForNextSentencePrediction,
        BertForPreTraining,
        BertForQuestionAnswering,
        BertForSequenceClassification,
        BertForTokenClassification,
        BertModel,
    )
    from fastbert.models.registry import load
    from fastbert.ops.dispatch import use_backend
    from fastbert.packing import PackedBatch
    from fastbert.reranking.cross_encoder import CrossEncoder
    from fastbert.retrieval.maxsim import maxsim
    from fastbert.retrieval.sparse import SparseEncoder
    from fastbert.retrieval.token_vectors import TokenEncoder
    from fastbert.tasks.classifier import Classifier
    from fastbert.tasks.prediction import predict
    from fastbert.tokenizers import WordPieceTokenizer
    from fastbert.tokenizers.loading import load_tokenizer

    __version__: str

_HOMES = {
    "BertConfig": "fastbert.config",
    "BertForMaskedLM": "fastbert.models",
    "BertForMultipleChoice": "fastbert.models",
    "BertForNextSentencePrediction": "fastbert.models",
    "BertForPreTraining": "fastbert.models",
    "BertForQuestionAnswering": "fastbert.models",
    "BertForSequenceClassification": "fastbert.models",
    "BertForTokenClassification": "fastbert.models",
    "BertModel": "fastbert.models",
    "Classifier": "fastbert.tasks.classifier",
    "CrossEncoder": "fastbert.reranking.cross_encoder",
    "Embedder": "fastbert.embeddings.embedder",
    "PackedBatch": "fastbert.packing",
    "SparseEncoder": "fastbert.retrieval.sparse",
    "TokenEncoder": "fastbert.retrieval.token_vectors",
    "WordPieceTokenizer": "fastbert.tokenizers",
    "accelerate": "fastbert.integrations.accelerate",
    "finetune": "fastbert.cli.functions",
    "load": "fastbert.models.registry",
    "load_embedder": "fastbert.embeddings.folder",
    "load_tokenizer": "fastbert.tokenizers.loading",
    "maxsim": "fastbert.retrieval.maxsim",
    "predict": "fastbert.tasks.prediction",
    "pretrain": "fastbert.cli.functions",
    "register_attention": "fastbert.integrations.transformers.attention",
    "restore": "fastbert.integrations.accelerate",
    "use_backend": "fastbert.ops.dispatch",
}

__all__ = [
    "BertConfig",
    "BertForMaskedLM",
    "BertForMultipleChoice",
    "BertForNextSentencePrediction",
    "BertForPreTraining",
    "BertForQuestionAnswering",
    "BertForSequenceClassification",
    "BertForTokenClassification",
    "BertModel",
    "Classifier",
    "CrossEncoder",
    "Embedder",
    "PackedBatch",
    "SparseEncoder",
    "TokenEncoder",
    "WordPieceTokenizer",
    "accelerate",
    "finetune",
    "load",
    "load_embedder",
    "load_tokenizer",
    "maxsim",
    "predict",
    "pretrain",
    "register_attention",
    "restore",
    "use_backend",
]


def embed_texts(model: _Any, texts: _Any, tokenizer: _Any, **options: _Any) -> _Any:
    """Call `fastbert.embeddings.embed.embed` for `model.embed`, whose module cannot import it."""
    from fastbert.embeddings.embed import embed

    return embed(model, texts, tokenizer, **options)


def rank_texts(model: _Any, query: _Any, texts: _Any, tokenizer: _Any, **options: _Any) -> _Any:
    """Call `fastbert.reranking.rank.rank` for `model.rank`, whose module cannot import it."""
    from fastbert.reranking.rank import rank

    return rank(model, query, texts, tokenizer, **options)


def __getattr__(name: str) -> _Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("fastbert-engine")
    # Models of other architectures than BERT, as `fastbert.RobertaForMaskedLM`.
    home = _HOMES.get(name, "fastbert.models" if name[:1].isupper() else "")
    if not home:
        raise AttributeError(f"module 'fastbert' has no attribute {name!r}")
    value = getattr(_import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])

"""A cross-encoder of a folder: the model, its tokenizer and its settings in one object."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from torch import Tensor

from fastbert.checkpoints.manifest import EMBEDDER, verify_files
from fastbert.checkpoints.source import config_folder, find_source
from fastbert.embeddings.lower_case import load_with_case
from fastbert.embeddings.rows import check_texts
from fastbert.errors import UserError
from fastbert.models import registry
from fastbert.models.heads.sequence import ForSequenceClassification
from fastbert.reranking.rank import Ranked, RankOptions, check_query, check_scorer, rank, score_pairs
from fastbert.reranking.settings import ACTIVATIONS, KEY, SECTION, activation_of, read_settings
from fastbert.tasks.inference import choose_inference

if TYPE_CHECKING:
    from fastbert.tokenizers.tokenizer import Tokenizer


class CrossEncoder:
    """A model that scores pairs of a query and a text together, with the scores of sentence-transformers' class of this
    name.

    Attributes: `model`, a sequence classifier with one label, in eval mode; `tokenizer`; `max_length`, the tokens per
    pair, None for as many as tokenizer and model allow; `prompt`, which precedes each query; `how`, device and dtype in
    words.

    Raises UserError for a model with several labels, without a classifier, or with modules behind it, and
    CheckpointError for damaged files.

    Example:
        >>> import fastbert
        >>> ranker = fastbert.CrossEncoder("runs/ranker/model", device="cpu")
        >>> scores = ranker.predict([("a one", "a short one."), ("a one", "one")])
        >>> scores.shape
        torch.Size([2])
        >>> best = ranker.rank("a one", ["a short one.", "one"], top=1)
        >>> len(best)
        1
    """

    def __init__(
        self,
        source: str | Path,
        *,
        device: Literal["auto", "cpu", "cuda"] = "auto",
        dtype: Literal["auto", "fp32", "bf16", "int8"] = "auto",
    ) -> None:
        """Load a folder of sentence-transformers, a plain Hugging Face folder, or either by its name in the Hub's local
        cache.

        `dtype="auto"` is the faster of fp32 and bf16 on the device; "int8", on CPUs, is faster still and less exact."""
        folder = config_folder(find_source(source))
        verify_files(folder, EMBEDDER)
        settings = read_settings(folder)
        place, weights, words = choose_inference(device, dtype)
        model = registry.load_with_head(source, "ForSequenceClassification", dtype=weights)
        check_scorer(model, source)
        extra = model.config.extra
        activation = activation_of(extra, stored=settings.activation)
        if settings.activation is not None:  # kept where `rank` reads it and `save_pretrained` writes it
            section = extra.get(SECTION)
            extra[SECTION] = {**(section if isinstance(section, dict) else {}), KEY: ACTIVATIONS[activation]}
        tokenizer = load_with_case(folder, settings.lower_case)
        self.model: ForSequenceClassification = model.eval().to(place)
        if dtype == "int8":
            self.model.quantize("int8")
        self.tokenizer: Tokenizer = tokenizer
        self.max_length: int | None = settings.max_length
        self.prompt: str = settings.prompt
        self.how: str = f"{words} on {place}"

    def predict(
        self, pairs: Iterable[tuple[str, str]], *, progress: Callable[[int], None] = lambda pairs: None, **options: Any
    ) -> Tensor:
        """Return the score of each pair of a query and a text, fp32 (pairs,) on the CPU; see `score_pairs`.

        `options` are those of `RankOptions`. Raises UserError for wrong options, an item that is not a pair, and where
        `score_pairs` does.
        """
        both = list(pairs)
        for index, pair in enumerate(both):
            if isinstance(pair, str) or len(pair) != 2:
                raise UserError(f"pairs[{index}] must be a query and a text, not {pair!r}")
        check_texts([query for query, _ in both])
        queries, texts = [self.prompt + query for query, _ in both], [text for _, text in both]
        return score_pairs(self.model, queries, texts, self.tokenizer, RankOptions(**self._defaults(options)), progress)

    def rank(
        self,
        query: str,
        texts: Sequence[str],
        *,
        top: int | None = None,
        progress: Callable[[int], None] = lambda texts: None,
        **options: Any,
    ) -> list[Ranked]:
        """Return texts by their score for a query, best first; texts with equal scores keep their order.

        `top` keeps the best ones only; `options` are those of `RankOptions`. An empty text is scored like any other.
        Raises UserError for a query that is empty or white space, and the errors of `score_pairs`.
        """
        check_query(query)
        options = self._defaults(options)
        return rank(self.model, self.prompt + query, texts, self.tokenizer, top=top, progress=progress, **options)

    def _defaults(self, options: dict[str, Any]) -> dict[str, Any]:
        """Return options with the folder's length where none is chosen."""
        return {**options, "max_length": options.get("max_length") or self.max_length}

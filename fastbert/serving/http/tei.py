"""The routes of text-embeddings-inference, and ours in the same style: fill-mask, token classification, attention.

One file: each route is a request and a function of a few lines, and they share how inputs are read.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import chain
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, StrictBool

from fastbert import _C
from fastbert.errors import UserError
from fastbert.features.attention import attention_probabilities
from fastbert.serving.http.endpoint import Call, Reply
from fastbert.serving.http.errors import NoInput
from fastbert.serving.jobs import TooLong
from fastbert.serving.operations.texts import Text
from fastbert.serving.served_model import ServedModel

TokenId = Annotated[int, Field(strict=True, ge=0, lt=1 << 31)]
# Lists end at their first mistake: to describe each of a million would take the event loop seconds and gigabytes.
Ids = Annotated[list[TokenId], Field(fail_fast=True)]
Strings = Annotated[list[str], Field(fail_fast=True)]
_Item = Annotated[str | Ids, Field(union_mode="left_to_right")]
Input = Annotated[
    str | Strings | Ids | Annotated[list[_Item], Field(fail_fast=True)], Field(union_mode="left_to_right")
]
Texts = Annotated[str | Strings, Field(union_mode="left_to_right")]
Direction = Literal["left", "right", "Left", "Right"]
MOST_CHARACTERS = 200_000
"""Characters of a request for tokens, each of which is an object in the answer."""
MOST_ATTENTION = 256
"""Tokens of a text whose attention is shown."""


class _Request(BaseModel):
    model_config: ClassVar[ConfigDict] = ConfigDict(extra="ignore", protected_namespaces=())

    model: str | None = None
    """Name of the model; by default the first that answers the route."""


class _Truncated(_Request):
    truncate: StrictBool | None = None
    """Truncate longer texts, or refuse them; None: as the server was started (--long)."""
    truncation_direction: Direction = "right"

    @property
    def reading(self) -> dict[str, Any]:
        """The options of `TextReader` and `PairReader`."""
        return {"truncate": self.truncate, "left": self.truncation_direction.lower() == "left"}


class EmbedRequest(_Truncated):
    """Texts, or token ids of the model's own tokenizer."""

    inputs: Input
    normalize: StrictBool = True
    dimensions: Annotated[int, Field(strict=True, ge=1)] | None = None
    """The first numbers of each vector, normalised again if `normalize`."""
    prompt_name: str | None = None


class EmbedTokensRequest(_Truncated):
    """Texts, or token ids of the model's own tokenizer."""

    inputs: Input
    prompt_name: str | None = None


class _SimilarityInputs(BaseModel):
    source_sentence: str
    sentences: Strings


class _SimilarityParameters(BaseModel):
    truncate: StrictBool | None = None
    truncation_direction: Direction = "right"
    prompt_name: str | None = None


class SimilarityRequest(_Request):
    """A text, and those that it is compared with."""

    inputs: _SimilarityInputs
    parameters: _SimilarityParameters | None = None


class PredictRequest(_Truncated):
    """A text, a pair of texts, or a list of lists of one or two texts; for models of other tasks, their examples."""

    inputs: Any
    raw_scores: StrictBool = False


class RerankRequest(_Truncated):
    """A query and the texts to rank."""

    query: str
    texts: Strings
    raw_scores: StrictBool = False
    return_text: StrictBool = False


class FillMaskRequest(_Request):
    """Texts, each with a mask."""

    inputs: Texts
    top_k: Annotated[int, Field(strict=True, ge=1)] = 5


class TagRequest(_Request):
    """Texts."""

    inputs: Texts


class TokenizeRequest(_Request):
    """Texts."""

    inputs: Texts
    add_special_tokens: StrictBool = True
    prompt_name: str | None = None


class DecodeRequest(_Request):
    """Token ids."""

    ids: Annotated[Ids | Annotated[list[Ids], Field(fail_fast=True)], Field(union_mode="left_to_right")]
    skip_special_tokens: StrictBool = True


class AttentionRequest(_Request):
    """A text, a layer (negative ones count from the last) and a head, or None for the mean of all."""

    inputs: str
    layer: Annotated[int, Field(strict=True)] = -1
    head: Annotated[int, Field(strict=True, ge=0)] | None = None


def listed(inputs: str | Sequence[Any], field: str = "inputs") -> list[Text]:
    """Return inputs as a list of texts or lists of ids. Raises `NoInput` for none, with the name of the field."""
    if isinstance(inputs, str):
        return [inputs]
    if not inputs:
        raise NoInput(f"{field} is empty: give at least one text")
    items: list[Any] = list(inputs)
    return [items] if isinstance(items[0], int) else items


async def embed(call: Call, request: EmbedRequest) -> Reply:
    """Return one vector per text."""
    served = call.context.model_for("embed", request.model or call.model)
    inputs = listed(request.inputs)
    call.context.check_count(len(inputs))
    width = check_dimensions(served, request.dimensions)
    job = await call.run(
        served.operations["embed"], inputs, prompt=served.prompt(request.prompt_name), normalize=request.normalize,
        dimensions=width, form="json", **request.reading,
    )  # fmt: skip
    return Reply(job.result)


def check_dimensions(served: ServedModel, dimensions: int | None) -> int | None:
    """Return the dimensions of a request. Raises `UserError` for more than the model has."""
    width = served.operations["embed"].width  # type: ignore[attr-defined]
    if dimensions is not None and dimensions > width:
        raise UserError(f"dimensions={dimensions} is more than the {width} of {served.name}")
    return dimensions


async def embed_all(call: Call, request: EmbedTokensRequest) -> Reply:
    """Return one vector per token of each text."""
    served = call.context.model_for("embed_all", request.model or call.model)
    inputs = listed(request.inputs)
    call.context.check_count(len(inputs))
    prompt = served.prompt(request.prompt_name)
    job = await call.run(
        served.operations["embed_all"], inputs, prompt=prompt, prompt_name=request.prompt_name, **request.reading
    )
    return Reply(job.result)


async def embed_sparse(call: Call, request: EmbedTokensRequest) -> Reply:
    """Return the entries of one sparse vector per text."""
    served = call.context.model_for("embed_sparse", request.model or call.model)
    inputs = listed(request.inputs)
    call.context.check_count(len(inputs))
    job = await call.run(
        served.operations["embed_sparse"], inputs, prompt=served.prompt(request.prompt_name), **request.reading
    )
    return Reply(job.result)


async def similarity(call: Call, request: SimilarityRequest) -> Reply:
    """Return the cosine similarity of a text with each of the others."""
    served = call.context.model_for("embed", request.model or call.model)
    texts = request.inputs.sentences
    if not texts:
        raise NoInput("inputs.sentences is empty: give at least one text")
    call.context.check_count(len(texts), "inputs.sentences")
    parameters = request.parameters or _SimilarityParameters()
    job = await call.run(
        served.operations["embed"], [request.inputs.source_sentence, *texts],
        prompt=served.prompt(parameters.prompt_name), normalize=True, form="similarity",
        truncate=parameters.truncate, left=parameters.truncation_direction.lower() == "left",
    )  # fmt: skip
    return Reply(job.result)


async def predict(call: Call, request: PredictRequest) -> Reply:
    """Return the classes of texts or pairs, best first; or the predictions of a model of another task."""
    served = call.context.model_for("predict", request.model or call.model)
    operation = served.operations["predict"]
    if served.kind in ("tagger", "task"):
        return await _predict_task(call, served, request.inputs)
    pairs, single = _pairs(request.inputs)
    call.context.check_count(len(pairs))
    job = await call.run(operation, pairs, raw_scores=request.raw_scores, top=None, **request.reading)
    return Reply(job.result[0] if single else b"[" + b",".join(job.result) + b"]")


async def _predict_task(call: Call, served: ServedModel, inputs: Any) -> Reply:
    single = isinstance(inputs, str)
    items = [inputs] if single else inputs
    if not isinstance(items, list):
        raise UserError(
            f"inputs must be a text or a list of examples, as fastbert.predict takes them for {served.task_name}"
        )
    if not items:
        raise NoInput("inputs is empty: give at least one example")
    call.context.check_count(len(items))
    job = await call.run(served.operations["predict"], items)
    return Reply(json.dumps(job.result[0] if single else job.result, ensure_ascii=False).encode())


def _pairs(inputs: Any) -> tuple[list[tuple[str, str | None]], bool]:
    """Return texts as pairs with None, pairs, and whether there is a single input.

    As text-embeddings-inference has it, a list of two texts is a pair, and lists of one or two texts are a batch; a
    list of one text or of three and more is a batch too."""
    if isinstance(inputs, str):
        return [(inputs, None)], True
    if isinstance(inputs, list) and not inputs:
        raise NoInput("inputs is empty: give at least one text")
    if isinstance(inputs, list) and all(isinstance(item, str) for item in inputs):
        if len(inputs) == 2:
            return [(inputs[0], inputs[1])], True
        return [(item, None) for item in inputs], False
    if isinstance(inputs, list):
        pairs = []
        for index, item in enumerate(inputs):
            texts = [item] if isinstance(item, str) else item
            if not isinstance(texts, list) or len(texts) not in (1, 2) or not all(isinstance(t, str) for t in texts):
                raise UserError(f"inputs[{index}] must be a text, or a list of one or two texts")
            pairs.append((texts[0], texts[1] if len(texts) == 2 else None))
        return pairs, False
    raise UserError("inputs must be a text, a pair of texts, or a list of lists of one or two texts")


async def rerank(call: Call, request: RerankRequest) -> Reply:
    """Return the texts by their score for a query, best first."""
    order, scores, texts = await ranked(
        call, request.model, request.query, request.texts, raw_scores=request.raw_scores, **request.reading
    )
    entries = []
    for index in order:
        score = float(f"{scores[index]:.9g}")
        entry: dict[str, Any] = {"index": index, "score": score}
        if request.return_text:
            entry["text"] = texts[index]
        entries.append(entry)
    return Reply(json.dumps(entries, ensure_ascii=False).encode())


async def ranked(
    call: Call, model: str | None, query: str, texts: Sequence[str], field: str = "texts", **options: Any
) -> tuple[list[int], np.ndarray, Sequence[str]]:
    """Return the order of texts, best first, their scores, fp32 (texts,), and the texts."""
    served = call.context.model_for("rerank", model or call.model)
    if not texts:
        raise NoInput(f"{field} is empty: give at least one text")
    if not query.strip():
        raise UserError("query is empty: give the words to rank texts by")
    call.context.check_count(len(texts), field)
    query = served.query_prompt + query
    job = await call.run(served.operations["rerank"], [(query, text) for text in texts], field=field, **options)
    order, scores = job.result
    return order.tolist(), scores, texts


async def fill_mask(call: Call, request: FillMaskRequest) -> Reply:
    """Return the candidates for each mask of each text, best first."""
    served = call.context.model_for("fill_mask", request.model or call.model)
    texts = listed(request.inputs)
    call.context.check_count(len(texts))
    job = await call.run(served.operations["fill_mask"], texts, top_k=request.top_k)
    answer = job.result[0] if isinstance(request.inputs, str) else job.result
    return Reply(json.dumps(answer, ensure_ascii=False).encode())


async def token_classification(call: Call, request: TagRequest) -> Reply:
    """Return the entities of each text."""
    served = call.context.model_for("token_classification", request.model or call.model)
    texts = listed(request.inputs)
    call.context.check_count(len(texts))
    job = await call.run(served.operations["token_classification"], texts)
    answer = job.result[0] if isinstance(request.inputs, str) else job.result
    return Reply(json.dumps(answer, ensure_ascii=False).encode())


async def tokenize(call: Call, request: TokenizeRequest) -> Reply:
    """Return the tokens of each text, with their places in characters."""
    served = any_model(call, request.model)
    texts: list[Any] = listed(request.inputs)
    call.context.check_count(len(texts))
    characters = sum(map(len, texts))
    if characters > MOST_CHARACTERS:
        raise TooLong(f"inputs has {characters} characters, and the limit is {MOST_CHARACTERS}: send several requests")
    prompt = served.prompt(request.prompt_name) if request.prompt_name is not None else ""
    answer = await call.context.apart(
        _tokens_json, served, [prompt + text for text in texts], request.add_special_tokens
    )
    return Reply(answer)


async def decode(call: Call, request: DecodeRequest) -> Reply:
    """Return the text of each list of token ids."""
    served = any_model(call, request.model)
    rows: Any = request.ids
    rows = rows if rows and isinstance(rows[0], list) else [rows]
    call.context.check_count(len(rows), "ids")
    if sum(map(len, rows)) > MOST_CHARACTERS:
        raise TooLong(f"ids has more than {MOST_CHARACTERS} ids: send several requests")
    size = len(served.tokenizer)
    for token in chain.from_iterable(rows):
        if token >= size:
            raise UserError(f"ids holds {token}, and the vocabulary of {served.name} has {size} tokens")
    texts = await call.context.apart(
        lambda: [served.tokenizer.decode(row, skip_special_tokens=request.skip_special_tokens) for row in rows]
    )
    return Reply(json.dumps(texts, ensure_ascii=False).encode())


async def attention(call: Call, request: AttentionRequest) -> Reply:
    """Return the tokens of a text, and the probabilities with which each attends to the others."""
    served = any_model(call, request.model)
    tokens = (await call.context.apart(_tokens, served, [request.inputs], True))[0]
    most = min(MOST_ATTENTION, served.max_length)
    if len(tokens) > most:
        raise TooLong(f"inputs has {len(tokens)} tokens, and attention is computed of at most {most}: shorten it")
    config = served.model.config
    heads = config.num_attention_heads
    if request.head is not None and request.head >= heads:
        raise UserError(f"head={request.head} is not one of the {heads} heads: give 0 to {heads - 1}")

    def compute() -> bytes:
        batch = served.tokenizer.pack([request.inputs], max_length=None).to(served.model.device)
        maps = attention_probabilities(served.encoder, batch, request.layer)
        return _C.json_rows((maps.mean(0) if request.head is None else maps[request.head]).numpy().round(5))

    weights = await call.context.apart(compute)
    answer = {
        "tokens": [{name: token[name] for name in ("id", "text", "special")} for token in tokens],
        "layers": config.num_hidden_layers,
        "heads": heads,
        "layer": request.layer % config.num_hidden_layers,
        "head": request.head,
    }
    head = json.dumps(answer, ensure_ascii=False).encode().removesuffix(b"}")
    return Reply(b'%b,"attention":%b}' % (head, weights))


def any_model(call: Call, name: str | None) -> ServedModel:
    """Return the model of a name, else the first one."""
    context = call.context
    first = next(iter(context.models.values()), None) if context.state != "starting" else None
    route = next(iter(first.operations)) if first else "embed"
    name = name or call.model
    if first is None or name is None or name not in context.models:
        return context.model_for(route, name)  # raises for a name that is not served
    return context.models[name]


def _tokens_json(served: ServedModel, texts: Sequence[str], add_special_tokens: bool) -> bytes:
    # Text by text: json.dumps keeps the interpreter for as long as it takes.
    rows = (_tokens(served, [text], add_special_tokens)[0] for text in texts)
    return b"[" + b",".join(json.dumps(row, ensure_ascii=False).encode() for row in rows) + b"]"


def _tokens(served: ServedModel, texts: Sequence[str], add_special_tokens: bool) -> list[list[dict[str, Any]]]:
    tokenizer = served.tokenizer
    encoding = tokenizer(
        list(texts), add_special_tokens=add_special_tokens, return_offsets_mapping=True,
        return_special_tokens_mask=True, verbose=False, threads=1,
    )  # fmt: skip
    answer = []
    for row in range(len(texts)):
        ids = encoding["input_ids"][row]
        offsets, special = encoding["offset_mapping"][row], encoding["special_tokens_mask"][row]
        names = tokenizer.convert_ids_to_tokens(ids)
        answer.append(
            [
                {
                    "id": token_id,
                    "text": name,
                    "special": bool(is_special),
                    "start": None if is_special else begin,
                    "stop": None if is_special else end,
                }
                for token_id, name, is_special, (begin, end) in zip(ids, names, special, offsets, strict=True)
            ]
        )
    return answer

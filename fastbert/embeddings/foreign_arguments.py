"""Options of `Embedder`, and arguments of sentence-transformers that it does not use: idle values pass, others are
refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypedDict

from fastbert.errors import UserError


class LoadArguments(TypedDict, total=False):
    """Arguments with which sentence-transformers loads a model."""

    modules: Any
    cache_folder: str | None
    trust_remote_code: bool
    revision: str | None
    local_files_only: bool
    token: bool | str | None
    use_auth_token: bool | str | None
    model_kwargs: dict[str, Any] | None
    processor_kwargs: dict[str, Any] | None
    tokenizer_kwargs: dict[str, Any] | None
    config_kwargs: dict[str, Any] | None
    model_card_data: Any
    backend: str


class EncodeArguments(TypedDict, total=False):
    """Arguments with which sentence-transformers encodes texts."""

    inputs: Any
    sentences: Any
    output_value: str | None
    precision: str
    device: Any
    pool: Any
    chunk_size: int | None


class EncodeOptions(EncodeArguments, total=False):
    """Options of `Embedder.encode`."""

    prompt_name: str | None
    prompt: str | None
    batch_size: int | None
    batch_tokens: int | None
    show_progress_bar: bool | None
    convert_to_numpy: bool
    normalize_embeddings: bool
    truncate_dim: int | None
    long: Literal["truncate", "windows", "error"]


_NONE_IS_A_VALUE = {"output_value"}  # all outputs of the model
# For each argument the values that change nothing, and what to do instead of setting it.
_ARGUMENTS: dict[str, tuple[tuple[Any, ...], str]] = {
    "modules": ((), "give the folder of a model"),
    "cache_folder": ((), "set HF_HUB_CACHE, or give the folder of the model"),
    "trust_remote_code": ((False,), "a folder's code is never executed; leave it out"),
    "revision": (("main",), "give the folder of the model at that revision"),
    "local_files_only": ((False, True), "nothing is downloaded; leave it out"),
    "token": ((False,), "nothing is downloaded; leave it out"),
    "use_auth_token": ((False,), "nothing is downloaded; leave it out"),
    "model_kwargs": (({},), "choose the precision with dtype='fp32', 'bf16' or 'int8'"),
    "processor_kwargs": (({},), "set max_length, or change tokenizer_config.json in the folder"),
    "tokenizer_kwargs": (({},), "set max_length, or change tokenizer_config.json in the folder"),
    "config_kwargs": (({},), "change config.json in the folder"),
    "model_card_data": ((), "leave it out"),
    "backend": (("torch",), "leave it out; fastbert.ops.use_backend chooses among its own"),
    "output_value": (("sentence_embedding",), "leave it out; fastbert.TokenEncoder returns vectors of tokens"),
    "precision": (("float32",), "quantise the vectors afterwards, or build an int8 index with `fastbert search index`"),
    "device": ((), "choose the device when the model is loaded: Embedder(folder, device='cuda')"),
    "pool": ((), "leave it out: one process uses all cores; for several, run `torchrun ... fastbert embed`"),
    "chunk_size": ((), "leave it out: texts are read in chunks anyway"),
}


TEXTS = ("inputs", "sentences")  # its names of the texts, in new releases and in older ones


def texts_by_name(texts: Any, arguments: EncodeArguments) -> Any:
    """Return the texts, which a caller may have given by a name of sentence-transformers, and remove that name.

    Raises UserError for texts that are given twice.
    """
    for name in TEXTS:
        if name not in arguments:
            continue
        if texts is not None:
            raise UserError(f"{name}= and the first argument both hold texts: leave one out")
        texts = arguments.pop(name)  # type: ignore[misc]
    return texts


def refuse_foreign(function: str, arguments: Mapping[str, Any]) -> None:
    """Raise UserError for an argument of sentence-transformers that is set, and TypeError for an unknown one."""
    for name, value in arguments.items():
        if name not in _ARGUMENTS:
            raise TypeError(f"{function}() got an unexpected keyword argument {name!r}")
        idle, cure = _ARGUMENTS[name]
        idle = idle if name in _NONE_IS_A_VALUE else (*idle, None)
        if not any(type(value) is type(each) and value == each for each in idle):
            shown = repr(value) if isinstance(value, str | bool | int | None) else f"(a {type(value).__name__})"
            raise UserError(f"{function} does not support {name}={shown}: {cure}")

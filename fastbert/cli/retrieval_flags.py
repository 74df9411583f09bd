"""The flags of `fastbert embed` for vectors of tokens and sparse vectors, and what it does with them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from fastbert.cli.counts import counted
from fastbert.errors import UserError
from fastbert.flags import MODEL, flag, rare, require
from fastbert.io.progress import Bars
from fastbert.tasks.text_files import TextFile

if TYPE_CHECKING:
    from pathlib import Path

    from fastbert.distributed.world import World

# The flags that only some kinds of vectors have, and their defaults.
OWN_FLAGS: dict[str, tuple[tuple[str, ...], Any]] = {
    "role": (("tokens", "sparse"), "document"),
    "prefix": (("tokens", "sparse"), None),
    "query_length": (("tokens",), None),
    "attend": (("tokens",), False),
    "top_k": (("sparse",), None),
    "normalize": (("dense", "tokens"), False),
    "pooling": (("dense", "sparse"), None),
    "prompt": (("dense",), None),
    "long": (("dense",), "truncate"),
}
POOLINGS: dict[str, tuple[str, ...]] = {"dense": ("mean", "max", "cls"), "sparse": ("max", "sum")}


@dataclass(frozen=True, kw_only=True)
class _VectorFlags:
    """The kind of vectors."""

    GROUP: ClassVar = MODEL

    vectors: Literal["dense", "tokens", "sparse"] = "dense"
    """dense: one vector per text. tokens: one per token, for MaxSim, from ColBERT's and any other folders. sparse:
    weights of the vocabulary's tokens, from a masked-LM head (SPLADE)."""


@dataclass(frozen=True, kw_only=True)
class _RoleFlags:
    """Queries and documents."""

    GROUP: ClassVar = "With --vectors tokens or sparse"

    role: Literal["query", "document"] = "document"
    """Role of the texts: selects the folder's prompt and length, and whether punctuation gets vectors."""
    prefix: str | None = None
    """Text before each text, or a token such as [unused0] (default: the folder's for the role)."""
    query_length: int | None = None
    """tokens: fill queries with [MASK] up to so many tokens; 0: not at all (default: the folder's)."""
    top_k: int | None = None
    """sparse: keep so many entries per text, those with the largest weights (default: all)."""
    attend: bool = rare(False)
    """tokens: the tokens of a query attend to its masks, even if the folder's model was trained otherwise."""


@dataclass(frozen=True, kw_only=True)
class RetrievalFlags(_RoleFlags, _VectorFlags):
    """The kind of vectors, and the flags of two kinds."""


def check_vectors(config: Any) -> None:
    """Raise `UserError` for flags that the kind of vectors does not have."""
    kind = config.vectors
    for name, (kinds, default) in OWN_FLAGS.items():
        if kind not in kinds and getattr(config, name) != default:
            shown = "" if isinstance(default, bool) else f" {getattr(config, name)}"
            raise UserError(f"{flag(name)}{shown} changes nothing without --vectors {' or '.join(kinds)}; leave it out")
    if config.pooling is not None and config.pooling not in POOLINGS[kind]:
        raise UserError(f"--pooling {config.pooling}: --vectors {kind} has {', '.join(POOLINGS[kind])}")
    if config.query_length and config.role != "query":
        raise UserError(f"--query-length {config.query_length} is for queries; add --role query")


def write_vectors(config: Any, out: Path, world: World, quiet: bool) -> None:
    """Write the vectors of tokens or the sparse vectors of a file to a new one, and print a summary."""
    model, text = require(config, "model"), require(config, "text")
    from fastbert.retrieval.files import RaggedFile, encode_file
    from fastbert.retrieval.sparse import SparseEncoder
    from fastbert.retrieval.token_vectors import TokenEncoder

    options: dict[str, Any] = {name: getattr(config, name) for name in ("role", "prefix", "max_length", "batch_tokens")}
    if config.vectors == "sparse":
        options |= {"pooling": config.pooling, "top_k": config.top_k}
    else:
        options |= {name: getattr(config, name) or None for name in ("normalize", "attend")}
        options["query_length"] = config.query_length
    kind: Any = SparseEncoder if config.vectors == "sparse" else TokenEncoder
    kind.options_type(**options)
    # Check the output before loading the model.
    file = RaggedFile(out, overwrite=config.overwrite) if world.is_main else None
    world.wait("output")
    texts = TextFile(text, config.column)
    encoder = kind(model, device=config.device, dtype=config.dtype)
    with Bars(quiet) as bars:
        shared = "" if world.size == 1 else f" in each of {world.size} processes"
        bars.message(f"{encoder.how}{shared}, {out}")
        update = bars.stage("embedding", texts.total_bytes, "texts")

        def progress(position: int, done: int) -> None:
            update(position, counted(done, "text"), counted=done)

        report = encode_file(encoder, texts, file, progress, world, **options)
    if file is not None:
        print(f"{report}, {file.items:,} {'vectors' if config.vectors == 'tokens' else 'weights'}")

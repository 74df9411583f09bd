"""A toy model's folder in every form that is read, and ways to damage it."""

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from fastbert import BertConfig, BertForPreTraining
from fastbert.checkpoints.convert import Options, convert

CONFIG = BertConfig(
    vocab_size=40,
    hidden_size=8,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=16,
    max_position_embeddings=16,
)


def save(folder: Path, form: str = "safetensors") -> Path:
    """The toy as `safetensors`, `shards`, `zip`, `stream` (the two containers of pytorch_model.bin) or `tensorflow`."""
    model = BertForPreTraining(CONFIG)
    model.init_weights(seed=1)
    if form == "tensorflow":
        model.save_pretrained(folder.with_name(folder.name + "-hf"))
        convert(folder.with_name(folder.name + "-hf"), folder, Options(to="tensorflow"))
        return folder
    model.save_pretrained(folder, max_shard_size=5000 if form == "shards" else None)
    if form in ("zip", "stream"):
        (folder / "model.safetensors").unlink()
        torch.save(model.state_dict(), folder / "pytorch_model.bin", _use_new_zipfile_serialization=form == "zip")
    return folder


def header_of(file: Path) -> tuple[dict[str, Any], bytes]:
    """Header and data of a safetensors file."""
    data = file.read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def write(file: Path, header: Any, data: bytes) -> None:
    """A safetensors file of this header, as JSON unless it is bytes."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(text)) + text + data)


def edited(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    """Damage: another header for the weights in a folder."""

    def damage(folder: Path) -> None:
        header, data = header_of(folder / "model.safetensors")
        changed = change(header)
        write(folder / "model.safetensors", header if changed is None else changed, data)

    return damage


def configured(**values: Any) -> Callable[[Path], None]:
    """Damage: other values in config.json; `...` takes one away."""

    def damage(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text()) | values
        config = {name: value for name, value in config.items() if value is not ...}
        (folder / "config.json").write_text(json.dumps(config))

    return damage


def replaced(name: str, content: bytes | str | Callable[[bytes], bytes]) -> Callable[[Path], None]:
    """Damage: another content for one file."""

    def damage(folder: Path) -> None:
        old = (folder / name).read_bytes() if (folder / name).exists() else b""
        new = content(old) if callable(content) else content
        (folder / name).write_bytes(new.encode() if isinstance(new, str) else new)

    return damage

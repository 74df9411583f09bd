"""Damaged and hostile model folders of every form, by name."""

import json
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

from checkpoints.toy import configured, edited, replaced
from torture.hostile_pickles import PICKLES, Damage

from fastbert.checkpoints.formats.sstable import read_table, varint, write_table

WORDS, WEIGHTS, INDEX = "bert.embeddings.word_embeddings.weight", "model.safetensors", "model.safetensors.index.json"
TABLE, DATA = "bert_model.ckpt.index", "bert_model.ckpt.data-00000-of-00001"


def entry(**values: Any) -> Damage:
    return edited(lambda header: header[WORDS].update(values))


def moved(by: int) -> Damage:
    """The second tensor begins so many bytes later (or earlier)."""

    def change(header: dict[str, Any]) -> None:
        placed = [value["data_offsets"] for name, value in header.items() if name != "__metadata__"]
        second = sorted(placed)[1]
        second[0] += by
        second[1] += by

    return edited(change)


def instead(make: Damage) -> Damage:
    """Something that is no plain file in place of the weights."""

    def damage(folder: Path) -> None:
        (folder / WEIGHTS).unlink()
        make(folder / WEIGHTS)

    return damage


def long_file(folder: Path) -> None:
    """A header of 120 MB, in a file that takes no room."""
    with (folder / WEIGHTS).open("wb") as file:
        file.write(struct.pack("<Q", 120 << 20))
        file.truncate(130 << 20)


SAFETENSORS: dict[str, Damage] = {
    "empty": replaced(WEIGHTS, b""),
    "seven-bytes": replaced(WEIGHTS, b"1234567"),
    "half-of-it": replaced(WEIGHTS, lambda data: data[: len(data) // 2]),
    "last-byte-missing": replaced(WEIGHTS, lambda data: data[:-1]),
    "a-byte-more": replaced(WEIGHTS, lambda data: data + b"\0"),
    "header-over-100-MB": long_file,
    "header-of-2^63": replaced(WEIGHTS, lambda data: struct.pack("<Q", 1 << 63) + data[8:]),
    "header-no-json": edited(lambda header: b"{" * 64),
    "header-no-utf8": edited(lambda header: b'{"\xff": 1}'),
    "header-a-list": edited(lambda header: [header]),
    "header-nested": edited(lambda header: b"[" * 1_000_000),
    "header-nested-objects": edited(lambda header: b'{"a":' * 300_000),
    "key-twice": edited(
        lambda header: (
            b'{"a":'
            + json.dumps(header[WORDS]).encode()
            + b","
            + json.dumps(header)[1:].encode().replace(b"__metadata__", b"a")
        )
    ),
    "digits": edited(lambda header: b'{"a": ' + b"9" * 100_000 + b"}"),
    "overlap": moved(-4),
    "hole": moved(4),
    "out-of-range": entry(data_offsets=[10**9, 10**9 + 1280]),
    "offsets-swapped": entry(data_offsets=[1280, 0]),
    "offsets-negative": entry(data_offsets=[-1280, 0]),
    "offsets-missing": edited(lambda header: header[WORDS].pop("data_offsets") and None),
    "dtype-unknown": entry(dtype="F6_E3M2"),
    "dtype-another": entry(dtype="F16"),
    "dtype-no-string": entry(dtype=["F32"]),
    "dtype-integers": entry(dtype="I32"),
    "shape-negative": entry(shape=[-40, -8]),
    "shape-absurd": entry(shape=[1 << 62, 1 << 62]),
    "shape-absurd-and-empty": entry(shape=[0, 1 << 62]),
    "shape-digits": entry(shape=[10**4000]),
    "shape-true": entry(shape=[True, 320]),
    "shape-floats": entry(shape=[40.0, 8.0]),
    "shape-of-many": entry(shape=[40, 8, *[1] * 10_000]),
    "shape-no-list": entry(shape=320),
    "nothing-but-metadata": replaced(WEIGHTS, struct.pack("<Q", 19) + b'{"__metadata__":{}}'),
    "another-models": edited(lambda header: {name.replace("bert.", "gpt."): value for name, value in header.items()}),
    "encoder-weight-missing": edited(
        lambda header: {name.replace("layer.1.output", "x"): value for name, value in header.items()}
    ),
    "a-weight-twice": edited(
        lambda header: {
            name.replace("layer.1.attention.self.key.bias", "layer.1.attention.output.LayerNorm.beta"): value
            for name, value in header.items()
        }
    ),
    "a-folder": instead(Path.mkdir),
    "a-pipe": instead(os.mkfifo),
    "a-device": instead(lambda path: path.symlink_to("/dev/zero")),
    "a-link-to-itself": instead(lambda path: path.symlink_to(path.name)),
}


def mapped(change: Callable[[dict[str, Any]], Any]) -> Damage:
    """Another weight_map in the index."""

    def damage(folder: Path) -> None:
        index = json.loads((folder / INDEX).read_text())
        changed = change(index["weight_map"])
        index["weight_map"] = index["weight_map"] if changed is None else changed
        (folder / INDEX).write_text(json.dumps(index))

    return damage


def linked_out(folder: Path) -> None:
    """A shard that is a link to a file outside."""
    first = sorted(folder.glob("model-*"))[0]
    outside = folder.with_name(f"{folder.name}-outside")
    first.rename(outside)
    first.symlink_to(outside)


def held_twice(folder: Path) -> None:
    first, second = sorted(folder.glob("model-*"))[:2]
    second.write_bytes(first.read_bytes())


SHARDS: dict[str, Damage] = {
    **{f"named-{name}": mapped(lambda names, path=path: names.update({WORDS: path})) for name, path in {
        "parent": "../model.safetensors", "absolute": "/etc/passwd", "nul": "a\0b", "nothing": "", "here": ".",
        "up": "..", "backslash": "..\\a", "missing": "absent.safetensors", "long": "x" * 100_000, "number": 7,
    }.items()},
    "a-link-out": linked_out,
    "tensor-in-two": held_twice,
    "tensor-promised": mapped(lambda names: names.update({"bert.x": names[WORDS]})),
    "tensor-not-named": mapped(lambda names: names.pop(WORDS) and None),
    "index-empty": mapped(lambda names: {}),
    "index-a-list": mapped(lambda names: list(names)),
    "index-no-json": replaced(INDEX, "{"),
    "index-of-5-MB": replaced(INDEX, lambda data: data + b" " * (5 << 20)),
    "index-of-many": mapped(lambda names: {f"a{i}": f"{i}.safetensors" for i in range(50_000)}),
}  # fmt: skip

CONFIGS: dict[str, Damage] = {
    "hidden_size-10^12": configured(hidden_size=10**12),
    "hidden_size-10^400": configured(hidden_size=10**400),
    "hidden_size--1": configured(hidden_size=-1),
    "hidden_size-text": configured(hidden_size="768"),
    "hidden_size-nested": configured(hidden_size={"a": [1]}),
    "hidden_size-true": configured(hidden_size=True),
    "hidden_size-null": configured(hidden_size=None),
    "hidden_size-missing": configured(hidden_size=...),
    "heads-missing": configured(num_attention_heads=...),
    "layers-10^9": configured(num_hidden_layers=10**9),
    "layers-3": configured(num_hidden_layers=3),
    "vocab_size-10^12": configured(vocab_size=10**12),
    "intermediate_size-10^15": configured(intermediate_size=10**15),
    "positions-10^18": configured(max_position_embeddings=10**18),
    "labels-10^18": configured(num_labels=10**18, id2label=..., label2id=...),
    "labels-2^20": configured(num_labels=1 << 21, id2label=..., label2id=...),
    "eps-nan": configured(layer_norm_eps=float("nan")),
    "eps-inf": replaced("config.json", lambda data: data.replace(b"1e-12", b"1e400")),
    "dropout-nan": configured(hidden_dropout_prob=float("nan")),
    "dropout-true": configured(hidden_dropout_prob=False),
    "pad-true": configured(pad_token_id=True),
    "not-an-object": replaced("config.json", "[1, 2]"),
    "not-json": replaced("config.json", "{'a': 1}"),
    "empty-file": replaced("config.json", ""),
    "ten-megabytes": replaced("config.json", lambda data: data[:1] + b" " * (10 << 20) + data[1:]),
    "nested": replaced("config.json", '{"a":' * 100_000),
    "digits": replaced("config.json", '{"hidden_size": ' + "9" * 10_000 + "}"),
    "utf-16": replaced("config.json", lambda data: data.decode().encode("utf-16")),
    "roberta": configured(model_type="roberta"),
    "model_type-nested": configured(model_type=["bert"]),
    "decoder": configured(add_cross_attention=True),
    "decoder-number": configured(is_decoder=1),
    "quantised": configured(quantization_config={"bits": 4}),
}


def listed(change: Callable[[dict[bytes, bytes]], Any]) -> Damage:
    """Other entries in TensorFlow's index."""

    def damage(folder: Path) -> None:
        table = read_table((folder / TABLE).read_bytes())
        changed = change(table)
        (folder / TABLE).write_bytes(write_table(list((table if changed is None else changed).items())))

    return damage


TF_WORDS = b"bert/embeddings/word_embeddings"


def described(*fields: bytes) -> Damage:
    return listed(lambda table: table.update({TF_WORDS: b"".join(fields)}))


FLOAT, SHAPE = b"\x08\x01", b"\x12\x08\x12\x02\x08\x28\x12\x02\x08\x08"
TENSORFLOW: dict[str, Damage] = {
    "index-empty": replaced(TABLE, b""),
    "index-cut": replaced(TABLE, lambda data: data[:-1]),
    "index-halved": replaced(TABLE, lambda data: data[: len(data) // 2]),
    "index-flipped": replaced(TABLE, lambda data: data[:100] + bytes([data[100] ^ 1]) + data[101:]),
    "index-of-5-MB": replaced(TABLE, lambda data: b"\0" * (5 << 20) + data),
    "header-missing": listed(lambda table: table.pop(b"") and None),
    "data-files-2^40": listed(lambda table: table.update({b"": b"\x08" + varint(1 << 40)})),
    "big-endian": listed(lambda table: table.update({b"": b"\x08\x01\x10\x01"})),
    "keys-out-of-order": listed(lambda table: dict(reversed(list(table.items())))),
    "name-no-utf8": listed(lambda table: table.update({b"\xff": table[TF_WORDS]})),
    "data-missing": lambda folder: (folder / DATA).unlink(),
    "data-cut": replaced(DATA, lambda data: data[: len(data) // 2]),
    "data-flipped": replaced(DATA, lambda data: data[:50] + bytes([data[50] ^ 1]) + data[51:]),
    "dtype-unknown": described(b"\x08\x63", SHAPE),
    "dtype-missing": described(SHAPE),
    "shape-absurd": described(FLOAT, b"\x12\x0c\x12\x0a\x08" + varint(1 << 62)),
    "shape-negative": described(FLOAT, b"\x12\x0d\x12\x0b\x08" + varint((1 << 64) - 1)),
    "shape-unknown": described(FLOAT, b"\x12\x02\x18\x01"),
    "size-another": described(FLOAT, SHAPE, b"\x28\x05"),
    "offset-behind": described(FLOAT, SHAPE, b"\x20" + varint(1 << 50), b"\x28" + varint(1280)),
    "data-file-behind": described(FLOAT, SHAPE, b"\x18\x05", b"\x28" + varint(1280)),
    "number-without-end": described(b"\x08" + b"\xff" * 20),
    "field-without-end": described(FLOAT, b"\x12\x7f\x01"),
    "field-of-unknown-kind": described(b"\x0b"),
    "slices": described(FLOAT, SHAPE, b"\x28" + varint(1280), b"\x3a\x00"),
    "crc-of-another-kind": described(FLOAT, SHAPE, b"\x28" + varint(1280), b"\x32\x01a"),
    "encoder-weight-missing": listed(lambda table: table.pop(TF_WORDS) and None),
}

FORMS: dict[str, tuple[str, dict[str, Damage]]] = {
    "safetensors": ("safetensors", SAFETENSORS),
    "shards": ("shards", SHARDS),
    "config": ("safetensors", CONFIGS),
    "pickle": ("zip", PICKLES),
    "tensorflow": ("tensorflow", TENSORFLOW),
}

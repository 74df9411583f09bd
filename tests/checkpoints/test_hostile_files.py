"""Random damage to every format of weights, also where no manifest tells; tests/torture has named artefacts."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from checkpoints.toy import CONFIG, save

from fastbert import BertForPreTraining
from fastbert.checkpoints.file_tensors import FileTensor
from fastbert.checkpoints.formats.pickle import read_pickle
from fastbert.checkpoints.formats.safetensors import read_safetensors
from fastbert.checkpoints.formats.shards import read_shards
from fastbert.checkpoints.formats.tensorflow import read_bundle
from fastbert.errors import UserError

pytestmark = pytest.mark.usefixtures("unchecked_folders")

MUTATIONS = 200


def damaged(data: bytes, draw: random.Random) -> bytes:
    """A few bits flipped, a part cut out, the end cut off, or a part of it doubled."""
    kind, at = draw.randrange(6), draw.randrange(len(data))
    until = min(len(data), at + draw.choice((1, 7, 64, 1000)))
    if kind == 0:
        return data[:at]
    if kind == 1:
        return data[:at] + data[until:]
    if kind == 2:
        return data[:until] + data[at:]
    changed = bytearray(data)
    for _ in range(draw.choice((1, 1, 3, 20))):
        changed[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    return bytes(changed)


@pytest.mark.filterwarnings("ignore:invalid escape sequence")  # in strings of damaged pickles
@pytest.mark.parametrize(
    ("form", "file", "read", "sums"),
    [
        pytest.param("safetensors", "model.safetensors", read_safetensors, False, id="safetensors"),
        pytest.param("shards", "model.safetensors.index.json", None, False, id="index-of-shards"),
        pytest.param("zip", "pytorch_model.bin", read_pickle, True, id="zip"),
        pytest.param("stream", "pytorch_model.bin", read_pickle, False, id="stream"),
        pytest.param("tensorflow", "bert_model.ckpt.index", None, True, id="tensorflow-index"),
        pytest.param("tensorflow", "bert_model.ckpt.data-00000-of-00001", None, True, id="tensorflow-data"),
    ],
)
def test_random_damage_is_refused_or_harmless(
    form: str, file: str, read: Callable[[Path], dict[str, FileTensor]] | None, sums: bool, tmp_path: Path, seed: int
) -> None:
    """Nothing but UserError; and where a format has checksums, what is read after all is what was written."""
    folder = save(tmp_path / "model", form)
    readers = {"shards": lambda path: read_shards(path, read_safetensors)}
    readers["tensorflow"] = lambda path: read_bundle(folder / "bert_model.ckpt")
    read = read or readers[form]
    path = folder / file
    whole = path.read_bytes()
    expected = {name: stored.read() for name, stored in read(path).items()}
    # Most of what can go wrong is in the first and the last kilobytes.
    draw = random.Random(seed)
    refused = 0
    for _ in range(MUTATIONS):
        path.write_bytes(damaged(whole, draw))
        try:
            actual = {name: stored.read() for name, stored in read(path).items()}
        except UserError:
            refused += 1
            continue
        if sums:
            for name, tensor in actual.items():
                same = [other for other in expected.values() if torch.equal(tensor, other)]
                assert same, name
    assert refused > MUTATIONS // 5


def test_random_damage_to_a_configuration_is_refused_or_harmless(tmp_path: Path, seed: int) -> None:
    folder = save(tmp_path / "model")
    path, draw = folder / "config.json", random.Random(seed)
    whole, refused = path.read_bytes(), 0
    for _ in range(MUTATIONS):
        path.write_bytes(damaged(whole, draw))
        try:
            assert BertForPreTraining.from_pretrained(folder).config.hidden_size == CONFIG.hidden_size
        except UserError:
            refused += 1
    assert refused > MUTATIONS // 5

"""pytorch_model.bin without executing it: the same tensors that torch reads, from both containers, of every dtype."""

import json
from pathlib import Path

import pytest
import torch
from checkpoints.toy import CONFIG, save
from torch import Tensor, nn

from fastbert import BertForPreTraining, BertModel
from fastbert.checkpoints.formats.pickle import read_pickle
from fastbert.errors import CheckpointError, UserError

pytestmark = pytest.mark.usefixtures("unchecked_folders")

DTYPES = [
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.uint16, torch.uint32, torch.uint64),
    *(torch.bool, torch.complex64, torch.complex128),
]
new_and_old = pytest.mark.parametrize("new", [True, False], ids=["zip", "stream"])


def same(actual: Tensor, expected: Tensor) -> bool:
    """Equal in dtype, shape and every bit."""
    bits = [tensor.detach().contiguous().reshape(-1).view(torch.uint8) for tensor in (actual, expected)]
    return actual.dtype == expected.dtype and actual.shape == expected.shape and torch.equal(*bits)


@new_and_old
def test_every_dtype_and_layout_is_read_as_torch_reads_it(new: bool, tmp_path: Path) -> None:
    state: dict[str, Tensor] = {}
    for dtype in DTYPES:
        whole = torch.arange(24).to(dtype).reshape(4, 6)
        state |= {f"{dtype}": whole, f"{dtype} scalar": whole[0, 3], f"{dtype} empty": whole[:0]}
        state |= {f"{dtype} transposed": whole.T, f"{dtype} part": whole[1:3, 2:4], f"{dtype} steps": whole[::2, ::3]}
    state["parameter"] = state["tied"] = nn.Parameter(torch.randn(3))
    file = tmp_path / "pytorch_model.bin"
    torch.save(state, file, _use_new_zipfile_serialization=new)
    result = read_pickle(file)
    assert list(result) == list(state)
    assert [name for name, stored in result.items() if not same(stored.read(), state[name])] == []
    assert result["tied"].location() == result["parameter"].location()


@new_and_old
@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_every_protocol_is_read(new: bool, protocol: int, tmp_path: Path) -> None:
    module = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4))
    file = tmp_path / "pytorch_model.bin"
    torch.save(module.state_dict(), file, pickle_protocol=protocol, _use_new_zipfile_serialization=new)
    result = read_pickle(file)
    assert [name for name, value in module.state_dict().items() if not same(result[name].read(), value)] == []


@pytest.mark.parametrize("name", ["hf-bert-xsmall-dummy", "hf-ner-bert-camphr"])
def test_real_files_are_read_as_torch_reads_them(name: str, data_dir: Path) -> None:
    file = data_dir / "checkpoints" / name / "pytorch_model.bin"
    expected = torch.load(file, weights_only=True)
    actual = read_pickle(file)
    assert actual.keys() == expected.keys()
    assert [key for key, value in expected.items() if not same(actual[key].read(), value)] == []


@pytest.mark.parametrize("form", ["zip", "stream"])
def test_pickles_are_read_only_when_asked(form: str, tmp_path: Path) -> None:
    save(tmp_path / "whole")
    folder = save(tmp_path / form, form)
    with pytest.raises(
        UserError, match=r"only pytorch_model.bin; rewrite it .* `fastbert convert .* --pickles .* pass pickles=True"
    ):
        BertModel.from_pretrained(folder)
    model = BertForPreTraining.from_pretrained(folder, pickles=True)
    assert model.config == CONFIG
    whole = BertForPreTraining.from_pretrained(tmp_path / "whole").state_dict()
    assert [name for name, value in model.state_dict().items() if not torch.equal(value, whole[name])] == []


def test_shards_with_an_index_are_read(tmp_path: Path) -> None:
    expected = BertForPreTraining.from_pretrained(save(tmp_path)).state_dict()
    (tmp_path / "model.safetensors").unlink()
    names = list(expected)
    files = {name: f"pytorch_model-0000{1 + (index % 2)}-of-00002.bin" for index, name in enumerate(names)}
    for file in set(files.values()):
        torch.save({name: expected[name] for name in names if files[name] == file}, tmp_path / file)
    (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": files}))
    with pytest.raises(UserError, match="pass pickles=True"):
        BertModel.from_pretrained(tmp_path)
    actual = BertForPreTraining.from_pretrained(tmp_path, pickles=True).state_dict()
    assert [name for name, value in actual.items() if not torch.equal(value, expected[name])] == []
    (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": files | {names[0]: "../x.bin"}}))
    with pytest.raises(CheckpointError, match="which is not a plain file name"):
        BertModel.from_pretrained(tmp_path, pickles=True)


def test_a_checksum_of_the_zip_is_compared(tmp_path: Path) -> None:
    folder = save(tmp_path / "zip", "zip")
    file = folder / "pytorch_model.bin"
    stored = read_pickle(file)["bert.embeddings.word_embeddings.weight"]
    data = bytearray(file.read_bytes())
    data[stored.offset + 100] ^= 1
    file.write_bytes(data)
    with pytest.raises(CheckpointError, match="wrong checksum"):
        BertModel.from_pretrained(folder, pickles=True)

"""TensorFlow's checkpoints without TensorFlow: checksums, tables, bundles, names; against files that it wrote."""

import random
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from checkpoints.toy import CONFIG, save

from fastbert import _C, BertConfig, BertForPreTraining, BertModel
from fastbert.checkpoints.formats.names import index_file
from fastbert.checkpoints.formats.sstable import TableError, mask, read_table, write_table
from fastbert.checkpoints.formats.tensorflow import data_file, read_bundle, write_bundle
from fastbert.checkpoints.weights import Weights
from fastbert.errors import CheckpointError, UserError
from fastbert.io.checksums import combine_crc32c, crc32c
from fastbert.models.bert.tensorflow import from_tensorflow, is_training_state, rename_weights, to_tensorflow
from fastbert.models.loading import model_shapes, outline

POLYNOMIAL = 0x82F63B78  # Castagnoli's, its bits reversed


def plain_crc(data: bytes) -> int:
    """Bit by bit, as the definition says."""
    state = 0xFFFFFFFF
    for byte in data:
        state ^= byte
        for _ in range(8):
            state = state >> 1 ^ (POLYNOMIAL if state & 1 else 0)
    return state ^ 0xFFFFFFFF


def test_the_crc_is_castagnolis() -> None:
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(bytes(32)) == 0x8A9136AA  # RFC 3720, B.4
    assert crc32c(b"\xff" * 32) == 0x62A8AB43
    assert crc32c(bytes(range(32))) == 0x46DD794E


@pytest.mark.parametrize("level", ["portable", ""], ids=["portable", "highest"])
def test_the_crc_of_any_length_in_any_pieces(level: str, seed: int) -> None:
    draw = random.Random(seed)
    _C.force_cpu_capability(level)
    try:
        for size in (0, 1, 3, 7, 8, 9, 63, 6143, 6144, 6145, 3 * 6144 + 5):
            data = draw.randbytes(size)
            assert crc32c(memoryview(data)) == plain_crc(data), f"{size} bytes"
            cut = draw.randrange(size + 1)
            first, second = crc32c(data[:cut]), crc32c(data[cut:])
            assert crc32c(data[cut:], first) == crc32c(data), f"{size} bytes cut at {cut}"
            assert combine_crc32c(first, second, size - cut) == crc32c(data), f"{size} bytes cut at {cut}"
    finally:
        _C.force_cpu_capability("")
    assert combine_crc32c(1, 2, 1 << 62) != combine_crc32c(1, 2, 1 << 61)


def test_only_contiguous_bytes_have_a_crc() -> None:
    matrix = np.arange(24, dtype=np.int32).reshape(4, 6)
    assert _C.crc32c(matrix) == crc32c(matrix.tobytes())
    with pytest.raises(ValueError, match="contiguous"):
        _C.crc32c(matrix.T)


def test_tables_are_read_as_written(seed: int) -> None:
    draw = random.Random(seed)
    keys = {b"", *(draw.randbytes(draw.randrange(1, 60)) for _ in range(3000))}
    entries = [(key, draw.randbytes(draw.randrange(300))) for key in sorted(keys)]
    assert list(read_table(write_table(entries)).items()) == entries
    assert read_table(write_table([])) == {}


def test_compressed_blocks_are_refused() -> None:
    table = bytearray(write_table([(b"key", b"value")]))
    end = table.index(b"value") + len(b"value") + 8  # one restart, and their number
    assert table[end] == 0
    table[end] = 1
    struct.pack_into("<I", table, end + 1, mask(crc32c(table[: end + 1])))
    with pytest.raises(TableError, match=r"compressed \(method 1\)"):
        read_table(bytes(table))


def test_every_dtype_is_read_as_written(tmp_path: Path) -> None:
    dtypes = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool]
    tensors = {f"a/{dtype}": torch.arange(12).to(dtype).reshape(3, 4) for dtype in dtypes}
    tensors |= {"scalar": torch.tensor(1.5), "empty": torch.zeros(0, 3), "long": torch.randn(700_001)}
    write_bundle(tmp_path / "model.ckpt", tensors)
    found = read_bundle(tmp_path / "model.ckpt")
    assert found.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name].read(), tensor), name
    with pytest.raises(CheckpointError, match="which this format lacks"):
        write_bundle(tmp_path / "other.ckpt", {"a": torch.zeros(2).to(torch.float8_e5m2)})
    assert not list(tmp_path.glob("other*"))


def test_a_file_of_tensorflow_is_written_again_byte_for_byte(data_dir: Path, tmp_path: Path) -> None:
    theirs, ours = data_dir / "checkpoints/tf-toy-keras-bert/bert_model.ckpt", tmp_path / "bert_model.ckpt"
    write_bundle(ours, {name: stored.read() for name, stored in read_bundle(theirs).items()})
    assert index_file(ours).read_bytes() == index_file(theirs).read_bytes()
    assert data_file(ours, 0, 1).read_bytes() == data_file(theirs, 0, 1).read_bytes()


def test_every_name_of_a_full_release_has_its_place(data_dir: Path) -> None:
    prefix = data_dir / "checkpoints/tf-bert-base-index/bert_model.ckpt"
    bundle = read_bundle(prefix)
    weights = rename_weights(Weights(prefix, "tensorflow", bundle))
    width = bundle["bert/pooler/dense/bias"].shape[0]
    layers = sum(name.endswith("query/bias") for name in bundle)
    config = BertConfig(
        hidden_size=width, num_hidden_layers=layers, num_attention_heads=width // 64, intermediate_size=4 * width
    )
    own = model_shapes(outline(BertForPreTraining, config))
    assert {name: stored.shape for name, stored in weights.tensors.items()} == own
    assert {to_tensorflow(name) for name in own} == set(weights.origins.values()) == set(bundle)


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("bert/encoder/layer_11/attention/self/query/kernel", "bert.encoder.layer.11.attention.self.query.weight"),
        ("bert/embeddings/LayerNorm/gamma", "bert.embeddings.LayerNorm.weight"),
        ("bert/embeddings/token_type_embeddings", "bert.embeddings.token_type_embeddings.weight"),
        ("cls/predictions/transform/LayerNorm/beta", "cls.predictions.transform.LayerNorm.bias"),
        ("cls/squad/output_weights", "qa_outputs.weight"),
        ("output_weights", "classifier.weight"),
        ("output_bias", "classifier.bias"),
    ],
)
def test_names_travel_both_ways(theirs: str, ours: str) -> None:
    assert from_tensorflow(theirs) == ours
    assert to_tensorflow(ours) == theirs
    assert from_tensorflow(f"{theirs}/adam_v") is None
    assert is_training_state(f"{theirs}/adam_v")


def test_a_release_is_loaded_as_it_lies(data_dir: Path) -> None:
    folder = data_dir / "checkpoints/tf-toy-keras-bert"
    model = BertForPreTraining.from_pretrained(folder)
    raw = {name: stored.read() for name, stored in read_bundle(folder / "bert_model.ckpt").items()}
    query = model.bert.encoder.layer[1].attention.self.query
    assert torch.equal(query.weight, raw["bert/encoder/layer_1/attention/self/query/kernel"].T)
    assert torch.equal(model.cls.seq_relationship.weight, raw["cls/seq_relationship/output_weights"])
    assert torch.equal(model.cls.predictions.decoder.weight, raw["bert/embeddings/word_embeddings"])
    assert model.new_weights == ()
    by_prefix = BertModel.from_pretrained(folder / "bert_model.ckpt")
    assert torch.equal(by_prefix.pooler.dense.weight, model.bert.pooler.dense.weight)


def test_of_several_checkpoints_the_named_one_is_taken(tmp_path: Path) -> None:
    folder = save(tmp_path / "run", "tensorflow")
    for path in list(folder.glob("bert_model.ckpt.*")):
        path.with_name(path.name.replace("bert_model.ckpt", "model.ckpt-10")).write_bytes(path.read_bytes())
    with pytest.raises(UserError, match="holds 2 TensorFlow checkpoints; name one of them"):
        BertModel.from_pretrained(folder)
    (folder / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-10"\nall_model_checkpoint_paths: "x"\n')
    assert BertModel.from_pretrained(folder).config == CONFIG
    assert BertModel.from_pretrained(folder / "bert_model.ckpt.index").config == CONFIG

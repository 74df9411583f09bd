"""Delta files: the whole model from a base and what changed, bit by bit; nothing from a wrong base or a bad file."""

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints.toy import header_of, write
from embedding import saved
from safetensors.torch import load_file, save_file

from fastbert import BertForSequenceClassification, BertModel, WordPieceTokenizer
from fastbert.checkpoints.delta.files import open_delta, read_delta, restore_delta, write_delta
from fastbert.checkpoints.delta.tensors import fingerprint
from fastbert.errors import UserError

pytestmark = pytest.mark.usefixtures("unchecked_folders")

WEIGHTS = "model.safetensors"


def fine_tuned(
    base: Path, folder: Path, *, frozen: bool = False, dtype: torch.dtype | None = None, **options: Any
) -> Path:
    """A classifier on the base, a few steps of AdamW further."""
    model = BertForSequenceClassification.from_pretrained(base, num_labels=3, dtype=dtype, mapped=False)
    model.bert.requires_grad_(not frozen)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-3, **{"weight_decay": 0.01, **options})
    tokenizer = WordPieceTokenizer.from_pretrained(base)
    batch = tokenizer.pack(["a b c", "b d", "c c c c"])
    for _ in range(5):
        model(batch, labels=torch.tensor([0, 1, 2])).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, seed: int) -> Path:
    """A base and a model that was fine-tuned from it, made once."""
    folder = tmp_path_factory.mktemp("made")
    fine_tuned(saved(folder / "base", seed), folder / "model")
    return folder


@pytest.fixture
def base(made: Path, tmp_path: Path) -> Path:
    return shutil.copytree(made / "base", tmp_path / "base")


@pytest.fixture
def model(made: Path, tmp_path: Path) -> Path:
    return shutil.copytree(made / "model", tmp_path / "model")


def assert_same(actual: dict[str, torch.Tensor], folder: Path) -> None:
    expected = load_file(folder / WEIGHTS)
    assert actual.keys() == expected.keys()
    for name, tensor in actual.items():
        assert tensor.dtype == expected[name].dtype
        native, other = (one.contiguous().view(-1).view(torch.uint8) for one in (tensor, expected[name]))
        assert native.equal(other), name


@pytest.mark.parametrize("decay", [0.0, 0.01])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_whole_model_comes_back_bit_by_bit(base: Path, tmp_path: Path, dtype: torch.dtype, decay: float) -> None:
    own_base = tmp_path / "own"
    BertModel.from_pretrained(base, dtype=dtype).save_pretrained(own_base)
    WordPieceTokenizer.from_pretrained(base).save_pretrained(own_base)
    model = fine_tuned(own_base, tmp_path / "model", weight_decay=decay)
    report = write_delta(model, own_base, tmp_path / "task.delta")
    assert report.bits is None
    assert report.error is None
    assert report.bytes == (tmp_path / "task.delta").stat().st_size
    assert_same(read_delta(tmp_path / "task.delta", own_base), model)
    restore_delta(tmp_path / "task.delta", own_base, tmp_path / "again")
    for name in ("config.json", "vocab.txt", "tokenizer_config.json", WEIGHTS):
        restored, original = ((tmp_path / folder / name).read_bytes() for folder in ("again", "model"))
        assert restored == original or name == WEIGHTS
    assert_same(load_file(tmp_path / "again" / WEIGHTS), model)


def test_equal_models_are_equal_files(base: Path, model: Path, tmp_path: Path) -> None:
    files = [tmp_path / f"{number}.delta" for number in range(6)]
    for file in files:
        write_delta(model, base, file)
    assert len({file.read_bytes() for file in files}) == 1


def test_a_frozen_encoder_costs_its_head_alone(base: Path, tmp_path: Path) -> None:
    model = fine_tuned(base, tmp_path / "model", frozen=True)
    report = write_delta(model, base, tmp_path / "task.delta")
    assert report.tensors == {"same": len(load_file(model / WEIGHTS)) - 2, "whole": 2}
    assert report.files == ["config.json"]
    weights = open_delta(tmp_path / "task.delta").stored
    assert sorted(weights) == ["classifier.bias", "classifier.weight", "file:config.json"]


def test_rows_that_no_text_touched_cost_nothing_without_decay(tmp_path: Path, base: Path) -> None:
    result = load_file(base / WEIGHTS)
    torch.manual_seed(0)
    result["embeddings.word_embeddings.weight"] = torch.randn(40_000, 32)
    config = json.loads((base / "config.json").read_text()) | {"vocab_size": 40_000}
    (base / "config.json").write_text(json.dumps(config))
    save_file(result, base / WEIGHTS, metadata={"format": "pt"})
    model = shutil.copytree(base, tmp_path / "m")
    result["embeddings.word_embeddings.weight"][5:105] += 1e-3
    save_file(result, model / WEIGHTS, metadata={"format": "pt"})
    report = write_delta(model, base, tmp_path / "task.delta")
    assert report.bytes < 100 * 32 * 4 + 15_000
    assert_same(read_delta(tmp_path / "task.delta", base), model)


@pytest.mark.parametrize(("bits", "most"), [(1, 0.7), (2, 0.5), (4, 0.16), (8, 0.05)])
def test_a_rounded_delta_says_how_far_off_it_is(
    base: Path, model: Path, tmp_path: Path, bits: int, most: float
) -> None:
    report = write_delta(model, base, tmp_path / "task.delta", bits=bits)
    assert report.error is not None
    assert report.error.rms < most * report.error.difference_rms
    actual, expected = read_delta(tmp_path / "task.delta", base), load_file(model / WEIGHTS)
    matrices = [name for name in actual if actual[name].dim() > 1 and not name.startswith("classifier")]
    wrong = torch.cat([(actual[name].double() - expected[name].double()).flatten() for name in matrices])
    assert report.error.max == pytest.approx(float(wrong.abs().max()))
    assert report.error.rms == pytest.approx(float(wrong.square().mean().sqrt()))
    assert open_delta(tmp_path / "task.delta").error == report.error
    for name in actual.keys() - set(matrices):
        assert actual[name].equal(expected[name]), name


def test_layout_of_the_base_does_not_matter_but_its_numbers_do(base: Path, model: Path, tmp_path: Path) -> None:
    write_delta(model, base, tmp_path / "task.delta")
    shards = tmp_path / "shards"
    BertModel.from_pretrained(base).save_pretrained(shards, max_shard_size=5000)
    for path in base.iterdir():
        if path.suffix != ".safetensors":
            shutil.copy(path, shards)
    assert len(list(shards.glob("model-*"))) > 3
    assert_same(read_delta(tmp_path / "task.delta", shards), model)
    result = load_file(base / WEIGHTS)
    result["pooler.dense.bias"][3] += 1e-6
    save_file(result, base / WEIGHTS)
    with pytest.raises(UserError, match="belongs to a different base; name the folder"):
        read_delta(tmp_path / "task.delta", base)


def test_the_fingerprint_is_of_names_dtypes_shapes_and_bytes() -> None:
    one = {"a": torch.arange(6.0), "b": torch.zeros(2, 3)}
    others = [
        {"b": one["b"], "c": one["a"]},
        {**one, "a": one["a"].view(2, 3)},
        {**one, "a": one["a"].view(torch.int32)},
        {**one, "b": -one["b"]},
    ]
    assert fingerprint(dict(reversed(one.items()))) == fingerprint(one)
    assert len({fingerprint(other) for other in [one, *others]}) == 5


def test_other_models_of_the_same_base_and_new_shapes(base: Path, tmp_path: Path) -> None:
    """Tensors that the base lacks or has in another shape are kept whole: a longer vocabulary, integers, nothing."""
    result = load_file(base / WEIGHTS)
    tensors = {f"bert.{name}": tensor for name, tensor in result.items()}
    tensors["bert.embeddings.word_embeddings.weight"] = torch.cat(
        (result["embeddings.word_embeddings.weight"], torch.ones(2, 32))
    )
    tensors |= {"steps": torch.tensor(7), "nothing": torch.empty(0, 4), "flags": torch.tensor([True, False])}
    model = shutil.copytree(base, tmp_path / "model")
    save_file(tensors, model / WEIGHTS)
    report = write_delta(model, base, tmp_path / "task.delta", bits=4)
    assert report.tensors == {"same": len(result) - 1, "whole": 4}
    assert_same(read_delta(tmp_path / "task.delta", base), model)


def edited(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    """Another header in the file, with a checksum that is right."""

    def damage(path: Path) -> None:
        whole, data = header_of(path)
        header = json.loads(whole["__metadata__"]["header"])
        changed = change(header)
        text = json.dumps(header if changed is None else changed)
        whole["__metadata__"] |= {"header": text, "sha256": hashlib.sha256(text.encode()).hexdigest()}
        write(path, whole, data)

    return damage


def metadata(**values: str) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        whole, data = header_of(path)
        whole["__metadata__"] |= values
        write(path, whole, data)

    return damage


def part(number: int, **values: Any) -> Callable[[Path], None]:
    return edited(lambda header: header["tensors"][number].update(values))


def carried(**values: Any) -> Callable[[Path], None]:
    return edited(lambda header: header["files"][0].update(values))


def flipped(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-100] ^= 4
    path.write_bytes(data)


HOSTILE: dict[str, tuple[Callable[[Path], Any], str]] = {
    "empty": (lambda path: path.write_bytes(b""), "not a complete safetensors file"),
    "cut": (lambda path: path.write_bytes(path.read_bytes()[:-1]), "not a complete safetensors file"),
    "header-huge": (lambda path: path.write_bytes((1 << 40).to_bytes(8, "little") + bytes(90)), "a header of 1,099"),
    "bytes-changed": (flipped, "damaged"),
    "no-delta": (metadata(format="pt"), "is not a delta file"),
    "newer": (metadata(version="2"), "a delta file of version '2', but 1 is supported; use a newer fastbert"),
    "header-changed": (metadata(header="{}"), "its header has the wrong checksum"),
    "header-empty": (edited(lambda header: {}), "not a delta file written by"),
    "header-a-list": (edited(lambda header: [header]), "not a delta file written by"),
    "bits-of-64": (edited(lambda header: header.update(bits=64)), "bits 64"),
    "base-of-another": (edited(lambda header: header["base"].update(sha256="0" * 64)), "a different base"),
    "model-of-another": (edited(lambda header: header["model"].update(sha256="0" * 64)), "the wrong checksum"),
    "tensor-left-out": (edited(lambda header: header["tensors"].pop() and None), "not those of the header"),
    "tensor-twice": (edited(lambda header: header["tensors"].append(header["tensors"][0])), "not those of the header"),
    "tensor-with-more": (part(0, more=1), "not a delta file written by"),
    "coding-unknown": (part(0, coding="pickle"), "the tensor"),
    "dtype-unknown": (part(0, dtype="object"), "the tensor"),
    "dtype-another": (part(0, dtype="float16"), "does not have the base's shape"),
    "shape-absurd": (part(0, shape=[1 << 62, 1 << 62]), "which is too large for a file"),
    "shape-another": (part(0, shape=[1]), "does not have the base's shape"),
    "base-tensor-missing": (part(0, base="gpt"), "does not have the base's shape"),
    "factor-nan": (part(0, factor="nan"), "the tensor"),
    "factor-no-number": (part(0, factor=[1]), "not a delta file written by"),
    "rounded-without-bits": (part(0, coding="rounded"), "the tensor"),
    "whole-and-absurd": (part(0, coding="whole", base=None, shape=[1 << 35]), "new weights, many more than its base"),
    "file-above": (carried(name="../config.json"), "the file '../config.json'"),
    "file-absolute": (carried(name="/etc/passwd.txt"), "the file"),
    "file-of-weights": (carried(name="model.safetensors.index.json"), "the file"),
    "file-of-code": (carried(name="modeling.py"), "the file"),
    "file-of-another-size": (carried(size=7), "damaged: config.json"),
    "file-absurd": (carried(size=1 << 50), "the file"),
    "file-of-another-content": (carried(sha256="0" * 64), "has changed since"),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files_are_refused_in_one_line_and_leave_nothing(
    name: str, base: Path, model: Path, tmp_path: Path
) -> None:
    damage, words = HOSTILE[name]
    file = tmp_path / "task.delta"
    write_delta(model, base, file)
    damage(file)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(UserError) as caught:
        restore_delta(file, base, tmp_path / "again")
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500
    assert sorted(tmp_path.rglob("*")) == before


def test_a_vocabulary_that_the_base_has_lost_is_named(base: Path, model: Path, tmp_path: Path) -> None:
    write_delta(model, base, tmp_path / "task.delta")
    (base / "vocab.txt").write_text("[PAD]\n")
    with pytest.raises(UserError, match=r"vocab\.txt: has changed since task\.delta was written"):
        restore_delta(tmp_path / "task.delta", base, tmp_path / "again")
    assert not (tmp_path / "again").exists()


def test_wrong_places_are_refused_before_anything_is_read(base: Path, model: Path, tmp_path: Path) -> None:
    file = tmp_path / "task.delta"
    for bits in (0, 9, 2.0, True, "4"):
        with pytest.raises(UserError, match="must be a whole number from 1 to 8"):
            write_delta(model, base, file, bits=bits)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="is a folder; name a file"):
        write_delta(model, base, tmp_path)
    with pytest.raises(UserError, match="its folder is missing"):
        write_delta(model, base, tmp_path / "absent/task.delta")
    write_delta(model, base, file)
    with pytest.raises(UserError, match="exists; give another name"):
        write_delta(model, base, file)
    write_delta(model, base, file, overwrite=True)
    with pytest.raises(UserError, match="is the base"):
        restore_delta(file, base, base)
    with pytest.raises(UserError, match=r"already holds config\.json"):
        restore_delta(file, base, model)
    with pytest.raises(UserError, match="is a file"):
        restore_delta(file, base, file)
    assert restore_delta(file, base, model, overwrite=True)

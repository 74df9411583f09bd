"""Pre-training on shards behind a URL, and on shards that were moved, replaced or damaged since the run began."""

import json
import shutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import fsspec
import pytest
import torch
from garbage import leave_out_old_objects
from open_files import open_below
from pretrain_runs import stop_at, timeless, weights

from fastbert.data.prepare import prepare
from fastbert.errors import UserError
from fastbert.tokenizers.loading import load_tokenizer
from fastbert.training.config import PretrainConfig
from fastbert.training.pretrain import pretrain
from fastbert.training.reporter import Reporter
from fastbert.training.stopping import Stopped


@pytest.fixture
def prepared(config: PretrainConfig) -> PretrainConfig:
    """The run of `config` on token shards that were prepared before, beside its folder."""
    folder = config.out.with_name("shards")
    assert config.tokenizer is not None
    prepare(config.find_corpus(), load_tokenizer(config.tokenizer), folder)
    return replace(config, corpus=(), tokenizer=None, data=(str(folder),), steps=6)


@pytest.fixture
def url(prepared: PretrainConfig) -> Iterator[str]:
    memory = fsspec.filesystem("memory")
    memory.put(prepared.data[0], "/streamed", recursive=True)
    yield "memory://streamed"
    memory.rm("/streamed", recursive=True)


def test_a_streamed_run_equals_one_on_a_local_copy(prepared: PretrainConfig, url: str) -> None:
    folder = prepared.out
    said: list[str] = []
    pretrain(prepared)
    streamed = replace(prepared, data=(url,), out=folder.with_name("streamed"), cache_dir=folder.with_name("cache"))
    with pytest.raises(Stopped):
        pretrain(streamed, stop_at(3))
    assert json.loads((streamed.out / "config.json").read_text())["run"]["data"] == [url]
    pretrain(PretrainConfig(out=streamed.out, resume=True), Reporter(on_message=said.append))
    expected, found = weights(folder), weights(streamed.out)
    assert all(torch.equal(tensor, found[name]) for name, tensor in expected.items())
    assert timeless(streamed.out) == timeless(folder)
    [opened] = [line for line in said if "are streamed" in line]
    assert opened.startswith("memory://streamed: ")
    assert any("requests" in line and "waited" in line for line in said)
    windowed = replace(streamed, out=folder.with_name("windowed"), shuffle_window=0.001)
    leave_out_old_objects()
    pretrain(windowed)
    assert timeless(windowed.out) != timeless(folder)
    assert sys.platform != "linux" or open_below(folder.parent) == []


def test_a_run_is_told_where_its_shards_may_be(prepared: PretrainConfig, corpus: Path, url: str) -> None:
    with pytest.raises(Stopped):
        pretrain(prepared, stop_at(3))
    assert prepared.data is not None
    resumed = PretrainConfig(out=prepared.out, resume=True)
    folder, digest = Path(prepared.data[0]), json.loads((prepared.out / "config.json").read_text())["data"]
    moved = folder.rename(folder.with_name("moved"))
    own = f"SHA-256 of index.json: {digest}"

    def refusal(config: PretrainConfig) -> str:
        with pytest.raises(UserError) as caught:
            pretrain(config)
        assert "\n" not in str(caught.value)
        return str(caught.value)

    gone = refusal(resumed)
    assert gone.startswith(f"--data {folder}: the run's token shards are not there (no such folder: {folder});")
    assert "--resume --data" in gone
    assert own in gone
    folder.mkdir()
    assert "it has no index.json" in refusal(resumed)
    folder.rmdir()
    assert prepared.tokenizer is None
    text = folder.with_name("other.txt")
    text.write_text(corpus.read_text()[: len(corpus.read_text()) // 2])
    tokenizer = load_tokenizer(moved)
    prepare(replace(prepared, corpus=(text,), data=None).find_corpus(), tokenizer, folder)
    other = refusal(resumed)
    assert other.startswith(f"--data {folder}: holds other token shards than the run began with; continue with")
    assert own in other
    assert "or start another run" in other
    tokens = moved / "shard-00000.tokens.bin"
    whole = tokens.read_bytes()
    tokens.write_bytes(bytes([whole[0] ^ 1, *whole[1:]]))
    damaged = refusal(replace(resumed, data=(str(moved),)))
    assert damaged.startswith(f"{tokens} is damaged: ")
    assert damaged.endswith("prepare the shards again")
    tokens.unlink()
    assert "is missing or not a regular file; prepare the shards again" in refusal(replace(resumed, data=(str(moved),)))
    tokens.write_bytes(whole)
    stored = json.loads((prepared.out / "config.json").read_text())["run"]["data"]
    assert stored == [str(folder)], "a place that is refused is not kept"
    cache = folder.with_name("cache")
    pretrain(replace(resumed, data=(url,), cache_dir=cache, steps=4))  # from a folder to a URL
    pretrain(replace(resumed, data=(f"file://{moved}",), steps=6))  # and back
    shutil.rmtree(folder)
    stored = json.loads((prepared.out / "config.json").read_text())["run"]["data"]
    assert stored == [f"file://{moved}"]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"cache_size": -1.0}, "--cache-size -1 must be at least 0 and below 1e9"),
        ({"data_patience": float("nan")}, "--data-patience nan must be"),
        ({"shuffle_window": 0.0}, r"--shuffle-window 0 must be at least 0\.001"),
    ],
)
def test_flags_out_of_range_are_refused(values: dict[str, float], message: str) -> None:
    with pytest.raises(UserError, match=message):
        PretrainConfig(corpus=(Path("text.txt"),), **values)  # type: ignore[arg-type]

"""Damage to every kind of folder that fastbert writes: it is refused, or has no effect on anything that is read."""

from __future__ import annotations

import hashlib
import json
import logging
import random
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from pretrain_runs import timeless, weights
from torture.campaign import Campaign
from torture.scorecard import scored
from torture.stored_folders import CHECKPOINTS, Stored, pretraining_run, write_all

from fastbert.checkpoints.manifest import describe
from fastbert.errors import UserError
from fastbert.training import checkpoint
from fastbert.training.checkpoint import FORMAT_VERSION, MANIFEST, MODEL, OPTIMIZER, STATE
from fastbert.training.checkpoint_writing import write_hashed
from fastbert.training.config import PretrainConfig
from fastbert.training.pretrain import pretrain

PAGE = 4096
KINDS = {
    "flip": 60, "truncation": 16, "zeroed page": 6, "swapped pages": 5, "page of another file": 4, "another file": 4,
    "missing file": 2, "extra file": 3,
}  # fmt: skip
EXTRA = (
    "added_tokens.json",
    "model-00009-of-00009.safetensors",
    "merges.txt",
    "pytorch_model.bin",
    "state.json.partial",
)


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Damaged checkpoints are reported, thousands of times here."""
    logger = logging.getLogger("fastbert")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    yield
    logger.setLevel(before)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Stored]:
    return write_all(tmp_path_factory.mktemp("stored"))


@dataclass
class Damage:
    """Changes files, and puts them back."""

    what: str
    before: dict[Path, bytes | None] = field(default_factory=dict)

    def write(self, path: Path, data: bytes | None) -> None:
        self.before[path] = path.read_bytes() if path.exists() else None
        if data is None:
            path.unlink()
        else:
            path.write_bytes(data)

    def undo(self) -> None:
        for path, data in self.before.items():
            if data is None:
                path.unlink()
            else:
                path.write_bytes(data)


def flipped(data: bytes, bit: int) -> bytes:
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def paged(data: bytes, size: int) -> list[bytes]:
    return [data[begin : begin + size] for begin in range(0, len(data), size)]


def damaged(kind: str, data: bytes, twin: bytes, draw: random.Random) -> bytes | None:
    """Return the data with a damage of a kind, None where it would change nothing."""
    size = PAGE if len(data) > 2 * PAGE else 64  # of a page
    pages = paged(data, size)
    if kind == "truncation":
        lengths = range(0, len(data), PAGE) if len(data) > 16 * PAGE else range(len(data))
        return data[: draw.choice(lengths)] if lengths else None
    if kind == "zeroed page":
        at = draw.randrange(len(pages))
        pages[at] = bytes(len(pages[at]))
    elif kind == "swapped pages":
        first, second = draw.randrange(len(pages)), draw.randrange(len(pages))
        pages[first], pages[second] = pages[second], pages[first]
    elif kind == "page of another file":
        at = draw.randrange(len(pages))
        others = paged(twin, size)
        pages[at] = others[at] if at < len(others) else b""
    elif kind == "another file":
        pages = [twin]
    changed = b"".join(pages)
    return None if changed == data else changed


def draw_damage(stored: Stored, draw: random.Random) -> Damage:
    """Damage a folder; the description repeats it."""
    kind = draw.choices(list(KINDS), list(KINDS.values()))[0]
    name = draw.choice(stored.files)
    path = stored.folder / name
    data = path.read_bytes()
    if kind == "extra file":
        extra = path.with_name(draw.choice(EXTRA))
        if not extra.exists():
            damage = Damage(f"extra {extra.name} beside {name}")
            damage.write(extra, draw.choice((b"", b'{"new": 40}', draw.randbytes(200))))
            return damage
    if kind == "missing file" and name != "results.json":  # without results, trials are trained again
        damage = Damage(f"{name} missing")
        damage.write(path, None)
        return damage
    if kind not in ("flip", "extra file", "missing file"):
        twin = stored.twin / name
        if name.startswith("checkpoints/step") and draw.random() < 0.5:  # of another step of the same run
            older, newer = CHECKPOINTS
            swapped = name.replace(newer, older) if newer in name else name.replace(older, newer)
            twin = stored.folder / swapped
        # A valid file of differences belongs to its base, as this one does.
        other = b"" if stored.name.startswith("delta") and kind == "another file" else _content(twin)
        changed = damaged(kind, data, other, draw)
        if changed is not None and not (kind == "another file" and not other):
            damage = Damage(f"{kind} of {name} ({len(data):,} bytes, {len(changed):,} afterwards)")
            damage.write(path, changed)
            return damage
    bit = draw.randrange(8 * len(data))
    damage = Damage(f"flip of bit {bit} of {name}")
    damage.write(path, flipped(data, bit))
    return damage


def _content(path: Path) -> bytes:
    return path.read_bytes() if path.is_file() else b""


def read(stored: Stored) -> dict[str, Any]:
    """Return what each reader returns or refuses."""
    results: dict[str, Any] = {}
    for name, reader in stored.readers.items():
        try:
            results[name] = reader(stored.folder)
        except UserError as error:
            results[name] = error
    return results


@scored(
    row=8, unit="damages", short=200, full=20_000, chunk=1_000,
    goal="every one is refused with the folder's name, or changes nothing that is read",
)  # fmt: skip
def test_flips_and_truncations(campaign: Campaign, folders: list[Stored]) -> None:
    """Runs, models, differences, adapters, shards and indexes are read as they were written, or refused."""
    whole = {stored.name: read(stored) for stored in folders}

    def attempt(numbers: range) -> dict[str, float]:
        outcomes = Counter[str]()
        for number in numbers:
            stored = folders[number % len(folders)]
            draw = random.Random(f"damage {number}")
            damage = draw_damage(stored, draw)
            begin = time.process_time()
            try:
                results = read(stored)
            except Exception as error:
                raise AssertionError(f"number {number}, {stored.name}, {damage.what}: {error!r}") from error
            finally:
                damage.undo()
            seconds = time.process_time() - begin
            where = f"number {number}, {stored.name}, {damage.what}"
            assert seconds < 10, f"{where}: {seconds:.1f} s of the processor"
            refused = {name for name, result in results.items() if isinstance(result, UserError)}
            for name, result in results.items():
                expected = [whole[stored.name][name]]
                if name == "newest":  # the newest checkpoint that is whole
                    expected = [whole[stored.name][step] for step in reversed(CHECKPOINTS) if step not in refused][:1]
                if isinstance(result, UserError):
                    message = str(result)
                    assert str(stored.folder) in message, f"{where}: {message} does not name the folder"
                    assert "\n" not in message, f"{where}: {message} has several lines"
                else:
                    assert result in expected, f"{where}: {name} was read as something else"
            outcomes["refused" if refused else "without_effect"] += 1
            if "newest" in results and "newest" not in refused and refused:
                outcomes["fell_back"] += max(CHECKPOINTS) in refused
        assert all(read(stored) == whole[stored.name] for stored in folders)
        return {name: float(count) for name, count in outcomes.items()}

    figures = campaign.run(attempt)
    if not campaign.full:
        assert figures["refused"] > 3 * figures["without_effect"], figures


@scored(
    row=8, unit="resumed runs", short=1, full=60, chunk=5,
    goal="each ends with the weights and the metrics of a run that was not damaged",
)  # fmt: skip
def test_damaged_checkpoints_resumed(campaign: Campaign, tmp_path: Path) -> None:
    """A run whose newest checkpoint is damaged goes on from the one before, to the same end."""
    whole = pretraining_run(tmp_path / "whole", 0)
    expected, metrics = weights(whole), timeless(whole)
    shutil.copytree(whole, tmp_path / "stopped")
    shutil.rmtree(tmp_path / "stopped" / "model")

    def attempt(numbers: range) -> dict[str, float]:
        for number in numbers:
            draw = random.Random(f"resumed {number}")
            run = tmp_path / "whole" / "run"
            shutil.rmtree(run)
            shutil.copytree(tmp_path / "stopped", run)
            newest = run / "checkpoints" / max(CHECKPOINTS)
            path = newest / draw.choice(checkpoint.FILES)
            kind = draw.choice(("flip", "truncation", "zeroed page", "missing"))
            data = path.read_bytes()
            if kind == "missing":
                path.unlink()
            else:
                bit = draw.randrange(8 * len(data))
                path.write_bytes(damaged(kind, data, b"", draw) or flipped(data, bit))
            try:
                pretrain(PretrainConfig(out=run, resume=True))
            except UserError as error:
                raise AssertionError(f"number {number}, {kind} of {path.name}: {error}") from error
            resumed = weights(run)
            same = all(torch.equal(tensor, resumed[name]) for name, tensor in expected.items())
            assert same, f"number {number}, {kind} of {path.name}: other weights"
            assert timeless(run) == metrics, f"number {number}, {kind} of {path.name}: other metrics"
        return {}

    campaign.run(attempt)


@scored(row=8, unit="MiB verified", short=16, full=2_048, chunk=256, goal="checksums cost little, as the figures say")
def test_speed_of_checksums(campaign: Campaign, tmp_path: Path) -> None:
    """Files of models are verified with CRC-32C, those of checkpoints each with SHA-256 on a thread: bytes per second
    of one processor, and of a checkpoint as it takes time."""

    def attempt(numbers: range) -> dict[str, float]:
        data = random.Random(numbers.start).randbytes(1 << 20) * len(numbers)
        path, folder = tmp_path / "file", tmp_path / "checkpoint"
        path.write_bytes(data)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        third = len(data) // 3  # a model, and the two moments of its weights
        parts = {MODEL: data[:third], OPTIMIZER: data[third:], STATE: b"{}"}
        hashes = {name: write_hashed(folder / name, [memoryview(part)]) for name, part in parts.items()}
        assert hashes == {name: hashlib.sha256(part).hexdigest() for name, part in parts.items()}
        (folder / MANIFEST).write_text(json.dumps({"format_version": FORMAT_VERSION, "sha256": hashes}))

        def rate(clock: Callable[[], float], verify: Callable[[Path], object], target: Path) -> float:
            begin = clock()
            verify(target)
            return round(len(data) / (clock() - begin) / 1e9, 2)

        figures = {
            "least_crc32c_gigabytes_per_processor_second": rate(time.process_time, describe, path),
            "least_sha256_gigabytes_per_processor_second": rate(time.process_time, checkpoint.digest, path),
            "least_checkpoint_gigabytes_per_second": rate(time.perf_counter, checkpoint.check, folder),
        }
        assert figures["least_crc32c_gigabytes_per_processor_second"] > 0.1
        return figures

    campaign.run(attempt)

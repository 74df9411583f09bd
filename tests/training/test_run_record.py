"""RUN/config.json: sealed, compared with checkpoints, and what its damage costs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from toy_checkpoints import Writer

from fastbert.errors import UserError
from fastbert.io.checksums import is_sealed, sealed
from fastbert.training.device import deterministic_algorithms
from fastbert.training.run_files import (
    FILE,
    check_configuration,
    looks_like_run,
    plain,
    read_record,
    write_record,
)
from fastbert.training.snapshot import snapshot

RUN = {"lr": 3e-3, "seed": 7, "steps": 20, "corpus": ["a.txt"], "threshold": float("inf")}
MODEL = {"num_attention_heads": 2, "layer_norm_eps": 1e-12}
VALUES = {"run": RUN, "model": MODEL, "vocabulary": "12ab", "data": None}
CHANGEABLE = ("steps", "out")


def saved_run(folder: Path) -> Path:
    """A run with a config.json and a checkpoint; returns the first."""
    write_record(folder, VALUES)
    writer = Writer(folder / "checkpoints")
    state = {"step": 3, "configuration": plain({"run": RUN, "model": MODEL})}
    writer.checkpoints.save(snapshot(writer.model, writer.optimizer), state)
    return folder / FILE


def test_every_flipped_bit_is_seen_or_changes_nothing(tmp_path: Path) -> None:
    write_record(tmp_path, VALUES)
    path, expected = tmp_path / FILE, read_record(tmp_path, "run", ())
    original = path.read_bytes()
    seen = 0
    for offset in range(len(original)):
        for bit in range(8):
            damaged = bytearray(original)
            damaged[offset] ^= 1 << bit
            path.write_bytes(damaged)
            try:
                assert read_record(tmp_path, "run", ()) == expected, (offset, bit)
            except UserError:
                seen += 1
    assert seen > 0.97 * 8 * len(original)  # 1e-12 is 1E-12 as well


@pytest.mark.parametrize(
    ("part", "name", "value", "message"),
    [
        ("run", "lr", 0.5, r"has lr=0\.5, but .*step-00000003 was written with lr=0\.003; put lr=0\.003 back"),
        ("run", "seed", 8, "has seed=8, .* was written with seed=7"),
        ("run", "steps", 30, "has steps=30, .* was written with steps=20"),
        ("model", "num_attention_heads", 4, "has num_attention_heads=4, .* with num_attention_heads=2"),
        ("run", "corpus", ["b.txt"], r'has corpus=\["b.txt"\], .* with corpus=\["a.txt"\]'),
    ],
)
def test_what_differs_from_the_checkpoint_is_named(
    part: str, name: str, value: object, message: str, tmp_path: Path
) -> None:
    path = saved_run(tmp_path)
    changed = json.loads(path.read_text())
    changed[part][name] = value
    path.write_text(json.dumps(changed))
    with pytest.raises(UserError, match=message):
        read_record(tmp_path, "run", CHANGEABLE)
    # Sealed again, by whoever knows how: what may not change is compared with the checkpoint.
    del changed["sha256"]
    path.write_text(json.dumps(sealed(changed)))
    saved = read_record(tmp_path, "run", CHANGEABLE)
    assert saved is not None
    checkpoint, state = (
        tmp_path / "checkpoints" / "step-00000003",
        {"configuration": plain({"run": RUN, "model": MODEL})},
    )
    if name == "steps":
        check_configuration(tmp_path, saved, checkpoint, state, CHANGEABLE)
        return
    with pytest.raises(UserError, match=message):
        check_configuration(tmp_path, saved, checkpoint, state, CHANGEABLE)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "not a run's configuration"),
        ("[" * 100_000, "not a run's configuration .*nested too deeply"),
        ('{"model_type": "bert"}', "not a run's configuration"),
        ('{"run": {}, "format_version": 99}', r"written by a newer fastbert \(format 99\); update fastbert"),
        ('{"run": {}, "format_version": 1}', "has format 1, from before the first release"),
        ('{"run": {}, "format_version": 3}', "changed or damaged since it was written; put the run's own back"),
    ],
)
def test_other_files_of_that_name_are_refused(content: str, message: str, tmp_path: Path) -> None:
    (tmp_path / FILE).write_text(content)
    with pytest.raises(UserError, match=message):
        read_record(tmp_path, "run", ())
    assert looks_like_run(tmp_path, "run") == ("format_version" in content)


def test_what_is_sealed_comes_back() -> None:
    values = sealed({"b": 1.5e-7, "a": float("-inf"), "c": (1, 2), "d": {3: "ü"}})
    assert is_sealed(values)
    assert is_sealed(json.loads(json.dumps(values, indent=2)))
    assert not is_sealed({**values, "b": 1.6e-7})


def test_the_mode_of_torch_is_set_where_it_changes_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Setting it, to whatever value, imports torch's compiler, which takes seconds."""
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    with deterministic_algorithms(True):
        assert torch.are_deterministic_algorithms_enabled()
        assert not torch.is_deterministic_algorithms_warn_only_enabled()
        with monkeypatch.context() as patched:
            patched.setattr(torch, "use_deterministic_algorithms", lambda *values, **named: pytest.fail("was called"))
            with deterministic_algorithms(True), deterministic_algorithms(False):
                pass
    after = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    assert after == before

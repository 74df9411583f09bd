"""The table that chooses between native matmuls and PyTorch's."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from fastbert import cpu_capability, ops, use_backend
from fastbert.errors import UserError
from fastbert.ops.native import matmul_table, matmul_tune


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    chosen = tmp_path / "cache" / "products.json"
    monkeypatch.setenv("FASTBERT_PRODUCTS", str(chosen))
    monkeypatch.setattr(cpu_capability, "current", lambda: "avx2")
    matmul_table.clear_cache()
    yield chosen
    matmul_table.clear_cache()


@pytest.mark.parametrize(
    ("rows", "kind"), [(0, "rows<=16"), (16, "rows<=16"), (17, "rows<=64"), (1024, "rows<=1024"), (1025, "rows>1024")]
)
def test_classes_of_rows(rows: int, kind: str) -> None:
    assert matmul_table.row_class(rows) == kind


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("level", cpu_capability.CAPABILITIES)
def test_default_choices(level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_capability, "current", lambda: level)
    for element in ("bf16", "int8", "fp32"):
        native = element == "int8" or level != "portable"
        assert matmul_table.prefers_native(element, 100, 768, 768) == native
        assert matmul_table.prefers_native_layer(element, 100, 768, 3072) == native


def test_what_was_measured_goes_first(path: Path) -> None:
    cpu = matmul_table.cpu_key(cpu_capability.current())
    matmul_table.save(path, cpu, {matmul_table.entry_name("fp32", "rows<=16", 768, 768): "library"})
    matmul_table.save(path, cpu, {matmul_table.entry_name("bf16", "rows>1024", 768, 768): "library"})
    assert not matmul_table.prefers_native("fp32", 10, 768, 768)
    assert matmul_table.prefers_native("fp32", 17, 768, 768)
    assert not matmul_table.prefers_native("bf16", 2000, 768, 768)
    matmul_table.save(path, "another processor", {matmul_table.entry_name("fp32", "rows<=64", 768, 768): "library"})
    assert matmul_table.prefers_native("fp32", 17, 768, 768)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("no json", "is not a table of matmuls"),
        ("[]", "is not a table of matmuls"),
        (json.dumps({"format": 99, "entries": {}}), "has format 99"),
        (json.dumps({"format": 1, "entries": {"cpu": {"fp32 1x1 rows<=16": "theirs"}}}), "'theirs'"),
    ],
)
def test_a_table_that_cannot_be_used(path: Path, text: str, message: str, caplog: pytest.LogCaptureFixture) -> None:
    path.parent.mkdir()
    path.write_text(text)
    with pytest.raises(UserError, match=message):
        matmul_table.load(path)
    assert matmul_table.saved() == {}
    assert message in caplog.text
    matmul_table.save(path, "cpu", {})
    assert matmul_table.load(path) == {"cpu": {}}


def test_tuning_saves_what_it_measured(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matmul_tune, "SECONDS", 0.0)
    monkeypatch.setattr(matmul_tune, "ROWS", (16, 64))
    messages: list[str] = []
    written, trials = matmul_tune.run(lambda done, total, text: messages.append(text), widths=(32,))
    assert written == path
    assert len(trials) == 2 * 4 * 2
    assert all(trial.native > 0 and trial.torch > 0 for trial in trials)
    table = matmul_table.load(path)[matmul_table.cpu_key(cpu_capability.current())]
    assert table["bf16 96x32 rows<=16"] in ("own", "library")
    assert len(table) == len(trials)
    assert messages[-1] == "done"


def test_a_place_that_cannot_be_written_is_found_before_anything_is_measured(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path.parent.write_text("a file, not a folder")
    monkeypatch.setattr(matmul_tune, "measure", lambda *trial: pytest.fail("was measured"))
    with pytest.raises(UserError, match=f"cannot write {path}: "):
        matmul_tune.run(widths=(32,))


@pytest.mark.parametrize("level", ["portable", "avx2"])
def test_compiled_code_follows_the_level(level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matmul_table, "_CAPABILITY_AT_IMPORT", level)
    torch._dynamo.reset()  # code that was compiled for another level

    def chosen(x: torch.Tensor) -> torch.Tensor:
        return x + 1 if matmul_table.prefers_native_layer("fp32", len(x), 32, 64) else x - 1

    compiled = torch.compile(chosen, backend="eager", fullgraph=True)
    assert compiled(torch.zeros(3)).tolist() == [1.0 if level == "avx2" else -1.0] * 3


@pytest.mark.parametrize(
    ("level", "native", "library", "choice"),
    [
        ("avx2", 1.0, 0.98, "own"),
        ("avx2", 1.0, 0.9, "library"),
        ("portable", 0.9, 1.0, "own"),
        ("portable", 1.0, 1.0, "library"),
    ],
)
def test_a_choice_needs_a_margin(
    level: str, native: float, library: float, choice: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu_capability, "current", lambda: level)
    assert matmul_tune.Trial("fp32", 16, 96, 32, native, library).choice == choice


def test_the_forced_backend_names_a_product_that_it_cannot_serve() -> None:
    weight = torch.nn.Parameter(torch.randn(8, 4), requires_grad=False)
    with use_backend("native"):
        with torch.autocast("cpu", torch.float16), pytest.raises(UserError, match="'linear' here: autocast multiplies"):
            ops.linear(torch.randn(3, 4), weight)
        with pytest.raises(UserError, match="'linear' here: torch transforms the call"):
            torch.func.vmap(lambda x: ops.linear(x, weight))(torch.randn(2, 3, 4))


def test_a_table_nested_too_deeply_is_passed_over_once(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path.parent.mkdir()
    path.write_text("[" * 100_000)
    assert [matmul_table.saved(), matmul_table.saved()] == [{}, {}]
    assert caplog.text.count("is not a table of matmuls") == 1


def test_a_folder_is_no_place_for_a_table(path: Path) -> None:
    path.mkdir(parents=True)
    with pytest.raises(UserError, match=f"cannot write {path}: "):
        matmul_tune.run(widths=(32,))

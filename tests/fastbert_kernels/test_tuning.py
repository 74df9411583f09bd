"""The table of configurations: default, saved, damaged, for other kernels, measured."""

import dataclasses
import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import trial_jobs

from fastbert.errors import UserError

pytest.importorskip("triton", reason="needs triton")
from fastbert.kernels import launch
from fastbert.kernels.linear import tuning_cases as linear_cases
from fastbert.kernels.tuning import processes, tables, tune
from fastbert.kernels.tuning.processes import Failure
from fastbert.kernels.tuning.tables import Config, lookup

OTHER = Config(constants={"BLOCK_M": 64, "BLOCK_N": 128}, num_warps=8, num_stages=2)


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "folder" / "tuning.json"
    monkeypatch.setenv("FASTBERT_TUNING", str(file))
    tables.saved.cache_clear()
    yield file
    tables.saved.cache_clear()


@pytest.mark.usefixtures("path")
def test_a_gpu_without_a_table_gets_that_of_its_elders() -> None:
    for gpu, elder in (("sm_89", "sm_86"), ("sm_103", "sm_100"), ("sm_75", "sm_80"), ("gfx950", "gfx942")):
        assert lookup("forward_long", "half-64-masked", gpu) == lookup("forward_long", "half-64-masked", elder)
    # Newer, but with the shared memory of the older ones for desktops.
    assert lookup("forward_long", "half-64-masked", "sm_120") == lookup("forward_long", "half-64-masked", "sm_86")


@pytest.mark.usefixtures("path")
def test_a_bias_has_its_own_entry_or_shares_one() -> None:
    assert lookup("forward_short", "half-64-masked", "sm_90") == lookup("forward_short", "half-64", "sm_90")
    assert lookup("backward_keys", "half-64-masked", "sm_90") != lookup("backward_keys", "half-64", "sm_90")
    # Dropout, too; with both, the entry with dropout holds unless there is one for both.
    assert lookup("forward_long", "half-64-dropout", "sm_90") != lookup("forward_long", "half-64", "sm_90")
    both = lookup("forward_short", "half-64-masked-dropout", "sm_90")
    assert both == lookup("forward_short", "half-64-dropout", "sm_90")
    with pytest.raises(KeyError, match="forward_long for half-512"):
        lookup("forward_long", "half-512", "sm_90")


def test_a_saved_entry_replaces_the_default_on_its_gpu_only(path: Path) -> None:
    before = lookup("forward_long", "half-64", "sm_80")
    tables.save(path, {"sm_90": {"forward_long": {"half-64": OTHER}, "backward_keys": {"half-32": OTHER}}})
    assert lookup("forward_long", "half-64", "sm_90") == OTHER
    assert lookup("forward_long", "half-64", "sm_80") == before
    # Shipped with an entry of its own for dropout or a bias, which the measured one without must not replace.
    assert lookup("forward_long", "half-64-dropout", "sm_90") != OTHER
    assert lookup("backward_keys", "half-32", "sm_90") == OTHER
    assert lookup("backward_keys", "half-32-dropout", "sm_90") == OTHER
    assert lookup("backward_keys", "half-32-masked", "sm_90") != OTHER
    tables.save(path, {"sm_80": {"forward_long": {"half-32": OTHER}}})
    assert lookup("forward_long", "half-64", "sm_90") == OTHER
    assert [file.name for file in path.parent.iterdir()] == ["tuning.json"]


DAMAGE = [
    pytest.param(lambda table: "{", "is not a tuning table", id="no-json"),
    pytest.param(lambda table: json.dumps({"format": 1}), "is not a tuning table", id="no-kernels"),
    pytest.param(lambda table: json.dumps(table | {"format": 2}), "has format 2, this version reads 1", id="newer"),
    pytest.param(lambda table: json.dumps(table | {"kernels": "0"}), "measured with other kernels", id="other-kernels"),
    pytest.param(lambda table: json.dumps(table).replace("128", "100"), "cannot be compiled with", id="odd-size"),
    pytest.param(lambda table: json.dumps(table).replace('"num_stages": 2', '"num_stages": 0'), "range", id="stages"),
    pytest.param(
        lambda table: json.dumps(table).replace('"num_warps": 8', '"num_warps": Infinity'),
        "inf is not an",
        id="infinite",
    ),
    pytest.param(
        lambda table: json.dumps(table).replace('"num_warps": 8', '"num_warps": 6'), "power of two", id="warps"
    ),
    pytest.param(lambda table: json.dumps(table).replace("forward_long", "nope"), "named 'nope'", id="unknown-kernel"),
]


@pytest.mark.parametrize(("damage", "message"), DAMAGE)
def test_a_table_that_cannot_be_used_is_named_and_passed_over(
    damage, message: str, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tables.save(path, {"sm_90": {"forward_long": {"half-64": OTHER}}})
    path.write_text(damage(json.loads(path.read_text())))
    with pytest.raises(UserError, match=message):
        tables.load(path)
    with caplog.at_level(logging.WARNING, logger="fastbert"):
        assert lookup("forward_long", "half-64", "sm_90") == tables.DEFAULTS["sm_90"]["forward_long"]["half-64"]
    assert str(path) in caplog.text
    assert "the default configurations are used" in caplog.text


@pytest.mark.parametrize(
    ("kernel", "change"),
    [
        pytest.param("forward_short", {"constants": {"MAX_SEQLEN": 256}}, id="longer-than-the-short-path"),
        pytest.param("backward_medium", {"constants": {"MAX_MEDIUM": 256, "BLOCK_M": 64}}, id="a-name-missing"),
        pytest.param("forward_heads", {"constants": {"BLOCK_ROWS": 16}}, id="no-head-in-a-program"),
        pytest.param("forward_long", {"constants": {"BLOCK_M": 64, "BLOCK_N": 8}}, id="keys-that-dropout-shares"),
        pytest.param("forward_long", {"constants": {"BLOCK_M": 0, "BLOCK_N": 64}}, id="nothing"),
        pytest.param("forward_long", {"num_warps": 0}, id="no-warp"),
        pytest.param("forward_long", {"num_warps": 64}, id="more-threads-than-a-program-has"),
        pytest.param("forward_long", {"max_registers": -1}, id="registers"),
        pytest.param("softmax_forward", {"constants": {"BLOCK_M": 4, "BLOCK_N": 16}}, id="softmax"),
        pytest.param("forward_longer", {}, id="unknown-kernel"),
        pytest.param("forward_long", {"num_warps": "four"}, id="a-word"),
        pytest.param("forward_long", {"constants": None}, id="null"),
    ],
)
def test_a_configuration_that_no_kernel_can_have_is_refused(path: Path, kernel: str, change: dict) -> None:
    tables.save(path, {"sm_90": {"forward_long": {"half-64": OTHER}}})
    read = json.loads(path.read_text())
    read["entries"]["sm_90"] = {kernel: {"half-64": OTHER.as_json() | change}}
    path.write_text(json.dumps(read))
    with pytest.raises(UserError, match=r"is not a tuning table .*`fastbert doctor --tune` writes a new one"):
        tables.load(path)


def test_all_default_configurations_could_be_saved(path: Path) -> None:
    tables.save(path, tables.DEFAULTS)
    assert tables.load(path) == tables.DEFAULTS


def test_a_home_that_is_not_there_or_may_not_be_entered_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FASTBERT_TUNING", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))

    def refuse(self: Path, **_: object) -> None:
        raise PermissionError(13, "Permission denied", str(self))

    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    for name, replacement in (("stat", refuse), ("home", homeless)):
        monkeypatch.setattr(Path, name, replacement)
        tables.saved.cache_clear()
        assert lookup("forward_long", "half-64", "sm_90") == tables.DEFAULTS["sm_90"]["forward_long"]["half-64"]
    tables.saved.cache_clear()


def in_turn(outcomes: Callable[[Callable, tune.Job], Any]) -> tune.Runner:
    """A runner without processes."""

    def run(function: Callable, jobs: list[tune.Job], **_: Any) -> Iterator[tuple[tune.Job, Any]]:
        for job in jobs:
            yield job, outcomes(function, job)

    return run


def test_tuning_saves_what_was_faster_by_more_than_noise(path: Path) -> None:
    pending = tune.trials("sm_90", (64, 32))
    keys = [trial for trial in pending if trial.kernel == "backward_keys" and trial.shape.startswith("half-64")]
    chosen, spilled = keys[2], keys[1]
    seen, kept = [], []

    def outcome(function: Callable, job: tune.Job) -> Any:
        trial = job.trial
        if function is tune.compile_trial:
            return "spills 32 bytes of registers per thread" if trial == spilled else ""
        assert trial != spilled, "dropped before it is timed"
        if trial.kernel == "forward_long":
            # Nothing beats the default by more than noise.
            return tune.Measured(trial, 1.0 if trial.present else 0.99)
        if trial in keys:
            return tune.Measured(trial, 0.5 if trial == chosen else 1.0)
        return Failure("RuntimeError: CUDA error") if trial.present else tune.Measured(trial, None, "out of resource")

    def measured(result: tune.Measured) -> None:
        kept.append(result)
        if result.trial == chosen:  # already on disk
            assert lookup(chosen.kernel, chosen.shape, "sm_90") == chosen.config

    written, results = tune.tune_for(
        "sm_90", "cpu", lambda *report: seen.append(report), widths=(64, 32), measured=measured, runner=in_turn(outcome)
    )
    assert written == path
    entries = json.loads(path.read_text())["entries"]["sm_90"]
    assert "forward_long" not in entries
    assert entries == {chosen.kernel: {chosen.shape: chosen.config.as_json()}}
    assert results == kept
    assert len(results) == len(pending)
    assert all(trial in [result.trial for result in results] for trial in pending)
    assert [result.error for result in results if result.trial == spilled] == [
        "spills 32 bytes of registers per thread"
    ]
    assert "RuntimeError: CUDA error" in [result.error for result in results]
    # The first half of the way is compiling.
    assert seen[0] == (1, 2 * len(pending), "compiling")
    assert seen[-1] == (2 * len(pending), 2 * len(pending), "done")


def test_what_wins_holds_for_the_trials_after_it(path: Path) -> None:
    """The library's kernels are compared with the fastest of this project's, not with the default ones."""
    chosen = next(
        trial for trial in tune.trials("sm_90", (64,)) if trial.kernel == "forward_long" and not trial.present
    )
    last: list[tuple[Any, Any]] = []

    def outcome(function: Callable, job: tune.Job) -> Any:
        if function is tune.compile_trial:
            return ""
        if job.trial.kernel.startswith("attention_"):
            last.append((job.trial, job.table[chosen.kernel][chosen.shape]))
        return tune.Measured(job.trial, 0.5 if job.trial == chosen else 1.0)

    tune.tune_for("sm_90", "cpu", widths=(64,), runner=in_turn(outcome))
    assert all(config == chosen.config for _, config in last)
    assert {(trial.kernel, trial.shape) for trial, _ in last} == {
        (f"attention_{use}_{length}", "half-64")
        for use in ("inference", "training")
        for length in ("128", "512", "any")
    }
    libraries = [trial.config.constants["LIBRARY"] for trial, _ in last if trial.kernel == "attention_inference_128"]
    assert libraries == [0, 1]
    assert [trial for trial in tune.trials("gfx942") if trial.kernel.startswith("attention_")] == []


def test_a_class_without_a_measurement_of_what_is_in_use_has_no_winner() -> None:
    present, other = tune.trials("sm_90")[:2]
    assert present.present
    assert tune.fastest([tune.Measured(other, 1.0)]) == {}
    hung = tune.Measured(present, None, "no answer within 90 s")
    assert tune.fastest([hung, tune.Measured(other, 1.0)]) == {other.kernel: {other.shape: other.config}}


def test_tuning_needs_a_gpu() -> None:
    with pytest.raises(UserError, match="cannot tune kernels on cpu: it needs a GPU"):
        tune.run(torch.device("cpu"))


def test_each_trial_differs_from_what_is_used_today() -> None:
    trials = tune.trials("sm_90")
    groups = {(trial.kernel, trial.shape) for trial in trials}
    assert len(trials) > 4 * len(groups)
    for kernel, shape in groups:
        group = [trial for trial in trials if (trial.kernel, trial.shape) == (kernel, shape)]
        assert [trial.present for trial in group] == [True, *[False] * (len(group) - 1)]
        assert group[0].config == lookup(kernel, shape, "sm_90")
        assert all(trial.config != group[0].config for trial in group[1:])


def test_a_job_that_dies_raises_or_hangs_costs_only_itself() -> None:
    jobs = ["first", "dies", "raises", "last"]
    outcomes = dict(processes.run_jobs(trial_jobs.answer, jobs, processes=1, seconds=120.0))
    assert list(outcomes) == jobs
    assert outcomes["dies"] == Failure("its process ended with code 7")
    assert outcomes["raises"] == Failure("RuntimeError: CUDA error: an illegal memory access was encountered")
    (hung,) = processes.run_jobs(trial_jobs.answer, ["hangs"], processes=1, seconds=0.5)
    assert hung == ("hangs", Failure("no answer within 0.5 s"))
    ended = [int(outcomes[name].split()[1]) for name in ("first", "last")]
    assert len(set(ended)) == 2, "a new process continued"
    assert not [pid for pid in ended if Path(f"/proc/{pid}").exists()]
    assert list(processes.run_jobs(trial_jobs.answer, ["late"], processes=1, seconds=1.0, deadline=0.0)) == [
        ("late", Failure(processes.OUT_OF_TIME))
    ]


def test_no_configuration_for_amd_limits_registers_as_only_nvidias_compiler_can() -> None:
    for kernel, entries in tables.DEFAULTS["gfx942"].items():
        assert all("maxnreg" not in config.options for config in entries.values()), kernel


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_the_timed_matmuls_follow_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear_cases, "WIDTHS", (64,))
    names = []
    candidates = linear_cases.candidates("sm_80")[0][3]
    for config in (candidates[0], candidates[-1]):
        small = {**config.constants, "BLOCK_M": 32, "BLOCK_N": 128}
        chosen = dataclasses.replace(config, constants=small)
        with tables.overridden("matmul_gelu", "half-256", chosen), launch.observing() as launches:
            assert linear_cases.milliseconds("matmul_gelu", "half-256", 64, torch.device("cpu"), 3, tune.once) == 0.0
        names.append({launch.kernel.__name__ for launch in launches})
    assert names[0] >= {"matmul_gelu", "matmul_gelu_backward"}
    assert names[1] >= {"bias_gelu_forward", "bias_gelu_backward"}
    assert not names[1] & {"matmul_gelu", "matmul_gelu_backward"}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_few_rows_are_tuned_by_a_pass_of_few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear_cases, "WIDTHS", (64,))
    kernel, shape, _, candidates = linear_cases.candidates("sm_90")[-1]
    assert (kernel, shape) == ("matmul_gelu", "half-64-rows16")
    assert lookup("matmul_gelu", "half-1024-rows16", "sm_90") in candidates
    for config in candidates:
        with tables.overridden(kernel, "half-256-rows16", config), launch.observing() as launches:
            assert linear_cases.milliseconds(kernel, shape, 64, torch.device("cpu"), 4096, tune.once) == 0.0
        (seen,) = launches
        assert (seen.kernel.__name__ == "matmul_gelu") == bool(config.constants["FUSED"])
        assert next(value for value in seen.arguments if isinstance(value, torch.Tensor)).shape[0] == 16


def test_a_class_of_few_rows_falls_back_to_that_of_many(path: Path) -> None:
    assert lookup("matmul_gelu", "half-1024-rows16", "interpreter") == lookup("matmul_gelu", "half-1024", "interpreter")
    few = lookup("matmul_gelu", "half-1024-rows16", "sm_90")
    many = lookup("matmul_gelu", "half-1024", "sm_90")
    assert few != many
    with tables.overridden("matmul_gelu", "half-1024", OTHER):
        assert lookup("matmul_gelu", "half-1024-rows16", "sm_90") == OTHER
    measured = dataclasses.replace(many, num_stages=2)
    tables.save(path, {"sm_90": {"matmul_gelu": {"half-1024": measured}}})
    assert lookup("matmul_gelu", "half-1024-rows16", "sm_90") == few
    assert lookup("matmul_gelu", "half-1024", "sm_90") == measured

"""Kernels are compiled ahead of time as a launch would compile them; combinations of flags that are not the default's.

Compiled in processes of their own: this one interprets kernels, and what is interpreted cannot be compiled. What the
default configurations occupy is in a record: `test_kernel_resources.py`.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton", reason="needs triton")
from fastbert.kernels.configs import attention
from fastbert.kernels.configs.defaults import DEFAULTS
from fastbert.kernels.tuning import ahead_of_time
from fastbert.kernels.tuning.ahead_of_time import cases
from fastbert.kernels.tuning.resources import POINTERS, Resources


def compile_for(target: str, file: Path, *flags: str) -> tuple[int, str, list[Resources]]:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [
        sys.executable,
        "-m",
        "fastbert.kernels.tuning.ahead_of_time",
        "--target",
        target,
        "--json",
        str(file),
        *flags,
    ]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert file.exists(), done.stderr
    return done.returncode, done.stdout, [Resources(**row) for row in json.loads(file.read_text())["rows"]]


def run_script(script: str, *arguments: str) -> str:
    """Run a script in a process that can compile kernels; return what it printed."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-P", "-c", script, *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_what_is_compiled_is_what_a_launch_would_compile() -> None:
    script = """
import sys
import torch
from triton.runtime import driver
from triton.runtime.jit import JITFunction
from fastbert.kernels.tuning import ahead_of_time, resources

target, found = "", []

class Driver:
    # What is compiled is remembered by device.
    get_current_device = staticmethod(lambda: sys.argv.index(target))
    get_current_stream = staticmethod(lambda device: 0)
    get_current_target = staticmethod(lambda: resources.gpu_target(target))

def collect(self, key, signature, device, constants, options, attributes, warmup):
    found.append((signature, constants, {place: value for place, value in attributes.items() if value}))

driver.set_active(Driver())
JITFunction._do_compile = collect
for target in sys.argv[1:]:
    found.clear()
    for case in ahead_of_time.cases():
        for launch in ahead_of_time.launches(case, target):
            launch.kernel.run(
                *launch.arguments, grid=launch.grid, warmup=True, **launch.constants, **launch.config.options
            )
            source = resources.source(launch, target)
            ours = source.signature, source.constants, source.attrs
            # A launch that differs in nothing from one before is not compiled again.
            assert ours in found, f"{target} {case} {launch.kernel.__name__}: {ours} is none of {found[-1:]}"
    assert len(found) > 50, target
"""
    run_script(script, "sm_90", "gfx942")


def test_the_key_of_a_kernel_covers_all_that_it_uses() -> None:
    script = """
from dataclasses import replace
from fastbert.kernels import common
from fastbert.kernels.attention import long, tiles
from fastbert.kernels.tuning import ahead_of_time, resource_record

# Named by the module that uses them, and by the one that defines them.
names = {text.split()[0] for text in resource_record.kernel_sources(long.forward_long)}
assert {"fastbert.kernels.attention.long.forward_long", "fastbert.kernels.attention.tiles.load_rows"} <= names, names
assert {"fastbert.kernels.common.dot", "fastbert.kernels.attention.long.LOG2_E"} <= names, names
assert all(name.startswith("fastbert.") for name in names), names
case = ahead_of_time.brief_cases()[0]
launch = ahead_of_time.launches(case, "sm_90")[0]
key = resource_record.key(launch, "sm_90")
assert key == resource_record.key(ahead_of_time.launches(case, "sm_90")[0], "sm_90")
config = replace(launch.config, max_registers=77)
others = [
    resource_record.key(launch, "sm_80"),
    resource_record.key(replace(launch, config=config), "sm_90"),
    resource_record.key(replace(launch, constants=launch.constants | {"DROPOUT": None}), "sm_90"),
]
resource_record.kernel_sources.cache_clear()
launch.kernel.fn.__globals__["LOG2_E"] = 3.0
others.append(resource_record.key(launch, "sm_90"))
assert len({key, *others}) == 5, (key, others)
"""
    run_script(script)


@pytest.mark.slow
def test_every_shipped_configuration_fits_an_mi300(tmp_path: Path) -> None:
    code, text, rows = compile_for("gfx942", tmp_path / "rows.json")
    assert [row for row in rows if row.spills] == [], text
    assert code == 0, text


@pytest.mark.slow
def test_every_combination_fits_an_h100(tmp_path: Path) -> None:
    _, text, rows = compile_for("sm_90", tmp_path / "rows.json", "--full")
    # Two registers too few for matmuls in fp32 without tensor cores over 128 columns.
    known = {("backward_queries", f"fp32 {width} causal dropout") for width in (96, 128)}
    assert {(row.kernel, row.case) for row in rows if not row.fits} <= known, text
    assert all(row.spills <= 8 for row in rows), text


def test_a_kernel_that_does_not_fit_is_marked_and_fails(capsys: pytest.CaptureFixture[str], monkeypatch) -> None:
    row = Resources(
        kernel="forward_long", case="bf16 64", target="gfx942", warps=4, registers=255, spills=8, shared=0,
        programs=1, seconds=1.0,
    )  # fmt: skip
    monkeypatch.setattr(ahead_of_time, "resources", lambda *_, **__: [row])
    assert ahead_of_time.main(["--target", "gfx942"]) == 1
    assert "DOES NOT FIT" in capsys.readouterr().out


def test_all_tables_know_all_classes() -> None:
    for target, table in DEFAULTS.items():
        if target == "interpreter":
            continue
        assert set(table) == set(DEFAULTS["sm_90"]), target
        for kernel, entries in table.items():
            if kernel in attention.TABLES[target]:
                assert {f"{kind}-{width}" for kind in ("half", "tf32", "ieee") for width in (32, 64, 128)} <= set(
                    entries
                )


def test_the_cases_cover_what_the_table_distinguishes() -> None:
    named = {str(case) for case in cases()}
    assert {"bf16 64", "bf16 64 dropout", "bf16 64 causal bias dropout", "tf32 32 causal bias dropout"} <= named
    assert len({str(case) for case in cases(full=True)}) > 100
    assert torch.bfloat16 in POINTERS

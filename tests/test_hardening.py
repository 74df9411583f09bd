"""The extension is hardened as SECURITY.md says, which `readelf` shows; and so is what its compiler is told."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys

import pytest

from fastbert import _C


@pytest.fixture(scope="module")
def headers() -> str:
    """Segments, dynamic section and symbols of the extension."""
    if sys.platform != "linux" or shutil.which("readelf") is None:
        pytest.skip("readelf (binutils) reads ELF files on Linux")
    command = ["readelf", "--wide", "--segments", "--dynamic", "--dyn-syms", _C.__file__]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_what_is_relocated_is_read_only(headers: str) -> None:
    assert "GNU_RELRO" in headers
    assert re.search(r"\(FLAGS\)\s+.*BIND_NOW", headers), (
        "full RELRO needs that all functions are resolved at the start"
    )
    assert "TEXTREL" not in headers


def test_nothing_is_writable_and_executable(headers: str) -> None:
    segments = re.findall(r"^\s+(LOAD|GNU_STACK)\s+(?:0x\w+\s+){5}([R ][W ][E ])", headers, re.MULTILINE)
    assert {name for name, _ in segments} == {"LOAD", "GNU_STACK"}
    assert [segment for segment in segments if {"W", "E"} <= set(segment[1])] == []


def test_no_library_is_searched_in_a_path_of_the_build(headers: str) -> None:
    assert not re.search(r"\((RPATH|RUNPATH)\)", headers)


def test_overruns_are_checked(headers: str) -> None:
    symbols = set(re.findall(r"\bUND (\w+)", headers))
    assert "__stack_chk_fail" in symbols, "arrays on the stack"
    assert any(re.fullmatch(r"__\w+_chk", name) for name in symbols), "buffers whose size is known"
    assert "_ZSt21__glibcxx_assert_failPKciS0_S0_" in symbols, "containers of the standard library in the bindings"


def test_only_the_entry_point_is_exported(headers: str) -> None:
    exported = re.findall(r"(?:FUNC|OBJECT)\s+GLOBAL\s+DEFAULT\s+\d+ (\S+)", headers)
    assert exported == ["PyInit__C"]

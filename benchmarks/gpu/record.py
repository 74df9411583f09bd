"""Keep returned results in the repository: a record per GPU, and the tables and charts of docs/performance-gpu.md."""

from __future__ import annotations

import json
import math
import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fastbert.benchmarks.gpu import page
from fastbert.benchmarks.gpu.charts import draw
from fastbert.benchmarks.harness import records
from fastbert.errors import UserError
from fastbert.io.atomic_write import write_atomic

# Parts of a GPU's name that do not tell it apart.
VENDORS = ("nvidia", "amd", "instinct", "graphics")
# Details that a record does without: they are in the returned files.
LEFT_OUT = ("lines", "trials")


def read(path: Path) -> dict[str, Any]:
    """Read a returned file. Raises UserError if it is not one, or of a dry run."""
    try:
        results = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read {path}: {error}") from error
    if not isinstance(results, dict) or not isinstance(results.get("sections"), dict):
        raise UserError(f"{path} is not a file that benchmarks/gpu.py writes: it has no sections")
    if results.get("dry_run"):
        raise UserError(f"{path} is of a dry run, whose figures mean nothing: give results of a GPU")
    return results


def device_of(name: str) -> str:
    """Return a GPU's name as a file's: "NVIDIA H100 80GB HBM3" is h100-80gb-hbm3."""
    words = re.findall(r"[a-z0-9]+", name.lower())
    return "-".join(word for word in words if word not in VENDORS) or "gpu"


def make_record(files: Sequence[Path]) -> dict[str, Any]:
    """Return the record of returned files: the rows of all, and what else their sections say. Sections of later files
    replace those of earlier ones. Raises UserError without the GPU's name or without rows."""
    returned = [read(path) for path in files]
    sections: dict[str, dict[str, Any]] = {}
    for results in returned:
        sections |= {name: dict(section) for name, section in results["sections"].items()}
    environment = sections.pop("environment", {})
    gpu, driver = environment.get("gpu", {}), environment.get("nvidia_smi", {})
    name = gpu.get("name") or driver.get("name")
    if not name:
        raise UserError(f"{files[0]} does not name its GPU: it ended before it found one")
    rows = [{"section": title, **row} for title, section in sections.items() for row in section.pop("rows", ())]
    if not rows:
        raise UserError(f"{files[0]} has no measurements to keep")
    first = returned[0]
    commit = first.get("commit") or environment.get("commit")
    record = {
        "schema": records.SCHEMA_VERSION,
        "benchmark": "gpu",
        "machine": {
            **environment.get("machine", {}),
            **gpu,
            "name": name,
            "device": device_of(name),
            "driver": driver.get("driver_version", "unknown"),
        },
        "versions": {**first.get("versions", {}), **environment.get("versions", {})},
        "commit": commit,
        **({} if commit else {"note": "measured where the commit was not known"}),
        "settings": {
            "sections": {title: _without_details(section) for title, section in sections.items()},
            "tuning": environment.get("tuning", {}),
            "backends": environment.get("backends", []),
            "seconds": first.get("seconds"),
        },
        "rows": rows,
    }
    return dict(_finite(record))


def _finite(value: Any) -> Any:
    """Return a value with null in place of NaN, the difference of wrong outputs, for which JSON has no number."""
    if isinstance(value, dict):
        return {name: _finite(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _without_details(section: Mapping[str, Any]) -> dict[str, Any]:
    """Return a section without long lists of lines."""
    short = {name: value for name, value in section.items() if name not in LEFT_OUT}
    for name in ("failures", "variants"):
        if name in short:
            short[name] = [{key: value for key, value in each.items() if key not in LEFT_OUT} for each in short[name]]
    return short


def keep(files: Sequence[Path], root: Path) -> tuple[list[str], list[str]]:
    """Write record, charts and page; return what was written, and one line per estimate that needs an explanation."""
    record = make_record(files)
    device = record["machine"]["device"]
    path = root / page.RECORDS / f"{device}.json"
    records.write(path, record)
    written = [str(path.relative_to(root))]
    written += [f"{page.IMAGES}/{name}" for name in _draw(record, root / page.IMAGES, device)]
    written.append(page.PAGE)
    return [f"wrote {name}" for name in written], write_page(root)


def _draw(record: Mapping[str, Any], images: Path, device: str) -> list[str]:
    images.mkdir(parents=True, exist_ok=True)
    for old in images.glob(f"gpu_{device}_*.png"):
        old.unlink()
    with tempfile.TemporaryDirectory(dir=images) as folder:
        title = f"bf16, {record['machine']['name']}, torch {record['versions'].get('torch', '?')}"
        names = draw(page.sections_of(record), Path(folder), False, title)
        for name in names:
            (Path(folder) / name).rename(images / f"gpu_{device}_{name}")
    return [f"gpu_{device}_{name}" for name in names]


def stored(root: Path) -> dict[str, Any]:
    """Return the records of all GPUs, by device."""
    paths = sorted((root / page.RECORDS).glob("*.json"))
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in paths}


def write_page(root: Path) -> list[str]:
    """Write the measured part of the page from all records; return one line per estimate that needs an explanation."""
    path, devices = root / page.PAGE, stored(root)
    text = path.read_text(encoding="utf-8")
    explanations = page.explanations_on(text)
    charts = {device: page.charts_of(root, device) for device in devices}
    write_atomic(path, page.replaced(text, page.render(devices, explanations, charts)))
    return page.unexplained(devices, explanations)

"""Draw the chart at the top of README.md from the records in benchmarks/results, or check that its text is theirs.

    python benchmarks/readme_chart.py
    python benchmarks/readme_chart.py --check

Three panels: inference on a CPU, pre-training on a GPU, the tokenizer; of each contender the fastest configuration. The
text beside the picture in README.md, between `<!-- chart -->` and `<!-- end -->`, is written too.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastbert.benchmarks.harness import records
from fastbert.io.atomic_write import write_atomic
from fastbert.io.figures import BLUE, GREY, figure_file

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
PICTURE = ROOT / "docs" / "images" / "speed.png"
BEGIN, END = "<!-- chart -->\n", "<!-- end -->"
OURS = "fastbert"


@dataclass(frozen=True)
class Panel:
    """One chart: a record's workload, and the contenders beside fastbert under the names that readers know."""

    title: str
    subtitle: str
    record: str
    """Path in benchmarks/results."""
    workload: str
    figure: str
    """Key of a row's figure, more is better."""
    unit: float
    contenders: dict[str, str]
    """Beginning of the contender in the record -> label; of several rows the fastest counts."""


PANELS = (
    Panel(
        "Inference, thousand tokens/s",
        "BERT-base, sentences, two Zen 4 cores",
        "encoder/avx512-bf16.json",
        "wiki-en sentences",
        "tokens_per_second",
        1e3,
        {
            OURS: OURS,
            "ctranslate2": "CTranslate2",
            "onnxruntime": "ONNX Runtime",
            "openvino": "OpenVINO",
            "torch.compile": "torch.compile",
            "transformers": "transformers",
        },
    ),
    Panel(
        "Pre-training, thousand tokens/s",
        "BERT-base, real lengths, one H100",
        "gpu/h100-80gb-hbm3.json",
        "pretraining base 128 real",
        "tokens_per_second",
        1e3,
        {OURS: OURS, "eager compiled": "torch.compile", "eager": "PyTorch"},
    ),
    Panel(
        "WordPiece tokenizer, MB/s",
        "Wikipedia sentences, first pass, Zen 4",
        "tokenizer/avx512-bf16.json",
        "wiki-en sentences, cold",
        "megabytes_per_second",
        1,
        {
            OURS: OURS,
            "nanotoken": "nanotoken",
            "flash_tokenizer": "flash-tokenizer",
            "huggingface": "HF tokenizers",
        },
    ),
)


def read_panel(panel: Panel) -> dict[str, tuple[float, str]]:
    """Return the best figure of each contender by label, in the panel's unit, and the dtype it was measured in."""
    rows: list[dict[str, Any]] = json.loads((ROOT / records.RESULTS / panel.record).read_text())["rows"]
    best: dict[str, tuple[float, str]] = {}
    for row in rows:
        # The longest name that fits, so that "eager" is not "eager compiled".
        fitting = [begin for begin in panel.contenders if row["contender"].startswith(begin)]
        if row["workload"] == panel.workload and fitting and row[panel.figure] is not None:
            label = panel.contenders[max(fitting, key=len)]
            best[label] = max(best.get(label, (0.0, "")), (row[panel.figure] / panel.unit, row["dtype"]))
    missing = set(panel.contenders.values()) - set(best)
    if missing:
        raise SystemExit(f"{panel.record}: {panel.workload!r} has no row of {', '.join(sorted(missing))}")
    return dict(sorted(best.items(), key=lambda item: -item[1][0]))


def times(ratio: float) -> str:
    """Return a ratio as text, with three digits at most."""
    return f"{ratio:.1f}x" if ratio < 20 else f"{ratio:.0f}x"


def describe() -> str:
    """Return the picture and its text in Markdown: the ratios, and the records they come from."""
    ratios = []
    for panel in PANELS:
        speeds = read_panel(panel)
        ours = speeds.pop(OURS)[0]
        others = ", ".join(f"{times(ours / speed)} {label}" for label, (speed, _) in speeds.items())
        ratios.append(f"{panel.title.partition(',')[0]}: {others}")
    sources = ", ".join(f"[{panel.record}](benchmarks/results/{panel.record})" for panel in PANELS)
    return (
        f"![Speed of fastbert as a multiple of the alternatives. {'; '.join(ratios)}]({PICTURE.relative_to(ROOT)})\n\n"
        "<sub>Each contender in its fastest dtype, padded where it needs padding; outputs compared before timing.\n"
        f"Records: {sources}.</sub>\n"
    )


def draw() -> None:
    """Write the picture."""
    most = max(len(panel.contenders) for panel in PANELS)
    with figure_file(PICTURE, 12, 2.9) as figure:
        for axes, panel in zip(figure.subplots(1, len(PANELS)), PANELS, strict=True):
            speeds = read_panel(panel)
            axes.barh(list(speeds), [speed for speed, _ in speeds.values()], height=0.7, color=[BLUE, *[GREY] * most])
            for place, (label, (speed, dtype)) in enumerate(speeds.items()):
                shown = f"{speed:,.0f}" if speed >= 10 else f"{speed:.1f}"
                dtype = f" {dtype}" if panel.figure == "tokens_per_second" else ""
                ratio = f"  {times(speeds[OURS][0] / speed)} slower" if label != OURS else ""
                axes.text(speed, place, f" {shown}{dtype}{ratio}", va="center", fontsize=9)
            axes.set_xlim(0, 1.6 * speeds[OURS][0])
            axes.set_ylim(most - 0.5, -0.5)
            axes.set_title(f"{panel.title}\n", loc="left", fontsize=11, fontweight="bold")
            axes.text(0, 1.03, panel.subtitle, transform=axes.transAxes, fontsize=9)
            axes.spines[["top", "right", "bottom", "left"]].set_visible(False)
            axes.tick_params(axis="y", length=0, labelsize=9)
            axes.set_xticks([])
            axes.get_yticklabels()[0].set_fontweight("bold")


def replace_text(readme: str, text: str) -> str:
    """Return README.md with new text between the chart's markers."""
    head, begin, rest = readme.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"{README} lacks the lines {BEGIN.strip()} and {END} around the chart")
    return head + begin + text + end + tail


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit code: 1 if the text that was checked is not that of the records."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if README.md would change")
    options = parser.parse_args(arguments)
    if not README.is_file():
        parser.error(f"{README} is missing: the chart belongs to a source tree, and this copy is installed")
    current = README.read_text(encoding="utf-8")
    text = replace_text(current, describe())
    if options.check:
        if text != current:
            print(f"{README} differs from the records: run python benchmarks/readme_chart.py", file=sys.stderr)
        return int(text != current)
    draw()
    write_atomic(README, text)
    print(f"wrote {PICTURE} and the text beside it in {README}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""`fastbert plan`: parameters, memory per device, FLOPs, time, communication and disk of a pre-training run."""

from __future__ import annotations

import json
import sys

from fastbert.cli.checks import check_file, check_shards
from fastbert.planning.flags import PlanFlags as Config
from fastbert.planning.plan import make_plan

__all__ = ["Config", "run"]
EXAMPLES = (
    "fastbert plan --model large --tokens 3e11 --gpus 64 --gpu h100 --batch-size 4096",
    "fastbert plan --model mini --device cpu --batch-size 32",
)


def check(config: Config) -> None:
    """Raise `UserError` for what can be found wrong before torch is imported."""
    if config.model.endswith(".json"):
        check_file("--model", config.model)
    if config.data is not None:
        check_shards(config.data, config.stream_options)


def run(config: Config, *, quiet: bool = False) -> int:
    """Print the plan."""
    if config.measures and not quiet and sys.stderr.isatty():
        print("measuring steps of models with few layers ...", file=sys.stderr)
    plan = make_plan(config)
    if config.json:
        print(json.dumps(plan.record(), indent=1))
        return 0
    from fastbert.planning.report import sections

    print("\n\n".join(_table(title, rows) for title, rows in sections(plan)))
    for note in () if quiet else plan.notes:
        print(f"\nnote: {note}")
    return 0


def _table(title: str, rows: list[tuple[str, str, str]]) -> str:
    """Return a section as text: names, right-aligned values, remarks."""
    name_width = max(len(name) for name, _, _ in rows)
    value_width = max(len(value) for _, value, _ in rows)
    lines = [f"  {name:<{name_width}}  {value:>{value_width}}  {remark}".rstrip() for name, value, remark in rows]
    return "\n".join([title, *lines])

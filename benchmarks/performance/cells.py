"""Cells of the page's tables: the rate of a row, and its shares of the limits of the same run."""

from __future__ import annotations

from fastbert.benchmarks.performance import figures
from fastbert.benchmarks.performance.figures import Row
from fastbert.benchmarks.performance.markdown import integer, number, percent


def rate(row: Row) -> str:
    """Return the work per second in the unit that says most."""
    details = row.get("details") or {}
    if "relative_time" in details:
        return f"{details['relative_time']:.2f}x the time of one after the other"
    if "scaling" in details:
        return f"{percent(details['scaling'])} of linear scaling"
    for value, unit in (
        (details.get("requests_per_second"), "requests/s"),
        (details.get("texts_per_second"), "texts/s"),
        (row.get("megabytes_per_second"), "MB/s"),
        (row.get("examples_per_second"), "examples/s"),
        (row.get("tokens_per_second"), "tokens/s"),
    ):
        if value:
            return f"{integer(value)} {unit}"
    return ""


def limit(row: Row, *, brief: bool = False) -> str:
    """Return the shares of the limits that were measured in the same run."""
    details, parts = row.get("details") or {}, []
    peak, copied = figures.share_of_peak(row), figures.share_of_copy(row)
    if peak is not None:
        parts.append(percent(peak) + ("" if brief else f" of {integer(details['peak_gflops'])} GFLOP/s"))
    if copied is not None and not brief:
        parts.append(f"{percent(copied)} of {number(details['copy_gigabytes_per_second'])} GB/s")
    if "share_of_model" in details and not brief:
        parts.append(f"{percent(details['share_of_model'])} of the model")
    if "weight_gigabytes_per_second" in details:
        parts.append(f"reads {number(details['weight_gigabytes_per_second'])} GB/s of weights")
    return "; ".join(parts)

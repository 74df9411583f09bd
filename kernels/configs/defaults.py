"""All shipped configurations, by GPU and kernel; each family of kernels has its own file."""

from __future__ import annotations

from fastbert.kernels.configs import attention, embedding, linear, loss, norm, softmax
from fastbert.kernels.configs.configuration import Table

FAMILIES = (attention, softmax, norm, loss, embedding, linear)
SHIPPED: dict[str, Table] = {
    target: {kernel: entries for family in FAMILIES for kernel, entries in family.TABLES[target].items()}
    for target in attention.TABLES
}
# By kernel: the constants of its configurations, and the values that each may have.
SIZES: dict[str, dict[str, tuple[int, ...]]] = {
    kernel: {name: family.SIZES[name] for name in next(iter(entries.values())).constants}
    for family in FAMILIES
    for kernel, entries in family.TABLES["sm_90"].items()
}

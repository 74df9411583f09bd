"""All shipped configurations, by GPU and kernel; each family of kernels has its own file."""

from __future__ import annotations

from fastbert.kernels import (
    shipped_attention,
    shipped_embedding,
    shipped_linear,
    shipped_loss,
    shipped_norm,
    shipped_softmax,
)
from fastbert.kernels.configuration import Table

FAMILIES = (shipped_attention, shipped_softmax, shipped_norm, shipped_loss, shipped_embedding, shipped_linear)
SHIPPED: dict[str, Table] = {
    target: {kernel: entries for family in FAMILIES for kernel, entries in family.TABLES[target].items()}
    for target in shipped_attention.TABLES
}
# By kernel: the constants of its configurations, and the values that each may have.
SIZES: dict[str, dict[str, tuple[int, ...]]] = {
    kernel: {name: family.SIZES[name] for name in next(iter(entries.values())).constants}
    for family in FAMILIES
    for kernel, entries in family.TABLES["sm_90"].items()
}

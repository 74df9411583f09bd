"""The best rows of a store by one native scan: int8 with scales, fp16 or fp32."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from fastbert import _C, cpu_capability
from fastbert.errors import UserError, require_whole
from fastbert.ops.native import matmul
from fastbert.search.exact import check_finite, check_vectors

KINDS: dict[np.dtype[Any], str] = {
    np.dtype(np.int8): "int8",
    np.dtype(np.float16): "fp16",
    np.dtype(np.float32): "fp32",
}
WIDEST_INT8 = 1 << 16
"""Sums of more products of int8 could be beyond 31 bits."""


def best_rows(queries: Tensor, rows: np.ndarray, k: int, *, scales: np.ndarray | None = None) -> tuple[Tensor, Tensor]:
    """Return the k largest dot products of each query, and the indices of their rows, best first.

    queries fp32 (q, width) on the CPU; rows int8, fp16 or fp32 (n, width), contiguous, which may be memory-mapped;
    `scales` fp32 (n,) of int8 rows. Scores are fp32 (q, min(k, n)), indices int64 of the same shape. For int8 rows
    queries are rounded to int8 with one scale each, and a score is the exact sum of the products of integers, times the
    row's scale, times the query's. For others products and sums are fp32. Equal scores are ordered by index, the
    smaller first. A score has the same bits on every CPU, in every batch and on any number of threads.

    Raises UserError for other shapes and dtypes, and for rows and queries with a NaN or an infinity, by their index.
    """
    require_whole("k", k, 1)
    check_vectors("rows", rows, [*KINDS])
    check_vectors("queries", queries, (torch.float32,), width=rows.shape[1])
    check_finite("queries", queries)
    count, width = rows.shape
    kind = KINDS[rows.dtype]
    if not rows.flags.c_contiguous:
        raise UserError("rows must be contiguous: copy them with numpy.ascontiguousarray")
    queries = queries.detach().cpu().contiguous()
    query_scales, row_scales = None, 0
    if kind == "int8":
        row_scales = _address_of_scales(scales, count)
        if width > WIDEST_INT8:
            raise UserError(f"rows are {width} numbers wide: int8 supports {WIDEST_INT8}; keep them in fp16")
        queries, query_scales = matmul.quantize_rows(queries)
    elif scales is not None:
        raise UserError(f"scales belong to int8 rows, and these are {rows.dtype}: leave them out")
    cpu_capability.apply()
    k = min(k, count)
    scores, indices = torch.empty(len(queries), k), torch.empty(len(queries), k, dtype=torch.int64)
    bad = _C.search_rows(
        kind=kind,
        rows=rows.ctypes.data,
        scales=row_scales,
        count=count,
        width=width,
        queries=queries.data_ptr(),
        query_scales=0 if query_scales is None else query_scales.data_ptr(),
        query_count=len(queries),
        best=k,
        scores=scores.data_ptr(),
        indices=indices.data_ptr(),
    )
    if bad is not None:
        raise UserError(
            f"rows[{bad}] has a score that is not finite: the row holds a NaN or an infinity, or its product with a"
            " query overflows fp32; make the index again"
        )
    return scores, indices


def _address_of_scales(scales: np.ndarray | None, count: int) -> int:
    if scales is None:
        raise UserError("int8 rows need scales, fp32 (rows,): quantize_rows of fastbert.ops.native.matmul returns both")
    if scales.dtype != np.float32 or scales.shape != (count,) or not scales.flags.c_contiguous:
        raise UserError(f"scales are {scales.dtype} {scales.shape}: they must be contiguous float32 ({count},)")
    return int(scales.ctypes.data)

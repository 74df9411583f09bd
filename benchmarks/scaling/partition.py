"""How the native kernels divide a forward pass among threads: the share of the time in which threads work.

This follows `csrc/cpu/gemm/gemm.cpp` (the grid of threads, rows taken dynamically), `csrc/cpu/attention/attention.cpp`
(items taken longest first), `csrc/cpu/encoder_layer` (four matmuls and an attention per layer; few tokens at once, with
barriers; many in groups of sequences, whose layers a thread computes alone) and `csrc/cpu/runtime/parallel.cpp` (a pass
is one region, in which every job begins and ends with a barrier). A test compares the constants with the sources.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from fastbert.config import BertConfig

COLUMNS = 32  # kColumns: outputs per block
STEP = 64  # kStep: bytes to whose multiple the depth is padded
MIN_PANELS = 4  # kMinPanels
MIN_PARALLEL_WORK = 1e6  # kMinParallelWork
LAYER_CHUNK = 1344  # kChunk of encoder_layer.cpp: tokens per chunk of the feed-forward network
MOST_SHORT_TOKENS = 64  # kMostTokens of short_stack.cpp
# Of grouped_stack.cpp: kMostTokens and kLeastTokens of a group, kGroupRows, kMostUneven, kLongest.
MOST_GROUP_TOKENS, LEAST_GROUP_TOKENS, GROUP_ROWS, MOST_UNEVEN, LONGEST_IN_GROUP = 320, 128, 16, 1.1, 384
ATTENTION_CHUNK, ATTENTION_TILES = 384, 96  # kAttentionChunk, kAttentionTiles
MIN_THREAD_COST = 4000  # kMinThreadCost
QUANTIZE_GRAIN = 1 << 15  # kGrain of quantize.cpp
BARRIER_COST = 1.1  # of threads that share rows, in the choice of the grid
ELEMENT_BYTES = {"fp32": 4, "bf16": 2, "int8": 1}


@dataclass(frozen=True)
class Kernel:
    """The properties of a micro-kernel that the division depends on."""

    rows: int
    row_step: int = 1
    memory_rows: int = 16
    chunk_bytes: int = 0
    bf16_chunk_rows: int = 512


KERNELS = {
    "portable": Kernel(4),
    "int8_portable": Kernel(4, memory_rows=4),
    "avx2": Kernel(6),
    "int8_avx2": Kernel(6, row_step=2, memory_rows=6),
    "avx512": Kernel(14),
    "avx512_bf16": Kernel(14),
    "int8_avx512": Kernel(6, row_step=2, memory_rows=6),
    "int8_vnni": Kernel(14, row_step=2, memory_rows=28),
    "amx": Kernel(32, row_step=16, memory_rows=128, chunk_bytes=3 << 18, bf16_chunk_rows=320),
}


def kernel_name(dtype: str, capability: str, features: Mapping[str, bool]) -> str:
    """Return the micro-kernel of a weight's dtype at a CPU capability, by its file in csrc/cpu/gemm."""
    if capability == "portable":
        return "int8_portable" if dtype == "int8" else "portable"
    if capability == "avx2":
        return "int8_avx2" if dtype == "int8" else "avx2"
    if capability == "amx" and dtype != "fp32":
        return "amx"
    if dtype == "int8":
        return "int8_vnni" if features.get("avx512_vnni") else "int8_avx512"
    return "avx512_bf16" if dtype == "bf16" and features.get("avx512_bf16") else "avx512"


class Matmul(NamedTuple):
    """A matmul of a pass: rows x depth to columns."""

    name: str
    rows: int
    depth: int
    columns: int
    norm: bool = False

    @property
    def operations(self) -> float:
        """Return its multiplications and additions."""
        return 2.0 * self.rows * self.depth * self.columns


class Division(NamedTuple):
    """The work of all threads together and of the busiest one, in the same unit, and the barriers inside."""

    total: float
    busiest: float
    barriers: int = 0

    def balance(self, threads: int) -> float:
        """Return the share of the threads' time that is work: 1 if all have as much."""
        return self.total / (threads * self.busiest)


@dataclass(frozen=True, kw_only=True)
class Partition:
    """A forward pass through the layers, divided among threads."""

    balance: float
    """The share of the threads' time that is work, over all operations by their time on one thread."""
    regions: int
    barriers: int
    operations: dict[str, float] = field(default_factory=dict)
    """The balance of each operation."""


def divide(matmul: Matmul, kernel: Kernel, element_bytes: int, threads: int) -> Division:
    """Return how `gemm` divides a matmul."""
    blocks = max(1, _ceil(matmul.columns, COLUMNS))
    steps = _ceil(matmul.rows, kernel.row_step)
    total = float(steps * kernel.row_step * blocks)
    if threads == 1 or matmul.operations / 2 < MIN_PARALLEL_WORK:
        return Division(total, total)
    groups, columns = grid(matmul.rows, blocks, kernel, threads)
    chunk = _chunk_rows(matmul, kernel, element_bytes)
    if columns == 1 and groups > 1 and matmul.rows >= 4 * MIN_PANELS * groups * kernel.rows:
        busy = [0.0] * groups
        for rows in _dynamic_rows(matmul.rows, chunk, groups, kernel.rows):
            heapq.heapreplace(busy, busy[0] + _ceil(rows, kernel.row_step) * kernel.row_step * blocks)
        return Division(total, max(busy))
    bounds = [min(matmul.rows, steps * index // groups * kernel.row_step) for index in range(groups + 1)]
    most_rows = max(_ceil(b - a, kernel.row_step) * kernel.row_step for a, b in itertools.pairwise(bounds))
    most_blocks = max(_parts(blocks, columns))
    longest = min(matmul.rows, _ceil(steps, groups) * kernel.row_step)
    barriers = 2 * _ceil(longest, chunk) if columns > 1 else 0
    return Division(total, float(most_rows * most_blocks), barriers)


def grid(rows: int, blocks: int, kernel: Kernel, threads: int) -> tuple[int, int]:
    """Return the groups with rows of their own, and the threads of each, which have columns of their own."""
    best, least = (1, 1), 0.0
    steps = _ceil(rows, kernel.row_step)
    for groups in range(1, threads + 1):
        columns = min(threads // groups, blocks)
        time = float(_ceil(blocks, columns) * (_ceil(steps, groups) * kernel.row_step + kernel.memory_rows))
        time *= BARRIER_COST if columns > 1 else 1.0
        if groups == 1 or time < least:
            best, least = (groups, columns), time
    return best


def _chunk_rows(matmul: Matmul, kernel: Kernel, element_bytes: int) -> int:
    """Return the rows that a group packs at a time."""
    depth = max(1, _ceil(matmul.depth * element_bytes, STEP) * STEP // element_bytes)
    if kernel.chunk_bytes:
        row_bytes = depth * element_bytes
        sums = _ceil(matmul.columns, COLUMNS) * COLUMNS * 4 if matmul.norm else 0
        rows = min(kernel.chunk_bytes // row_bytes, kernel.chunk_bytes * 5 // 3 // (row_bytes + sums))
        rows = min(max(rows, 64), kernel.bf16_chunk_rows if element_bytes == 2 else 512)
    else:
        rows = min(max((1 << 20) // (depth * 4), 56), 256)
    return _ceil(min(rows, matmul.rows), kernel.rows) * kernel.rows


def _dynamic_rows(rows: int, chunk: int, groups: int, panel: int) -> Iterator[int]:
    """Yield the rows of the steps that threads take one after the other."""
    least, left = min(chunk, MIN_PANELS * panel), rows
    while left:
        taken = min(left, min(max(_ceil(left // (2 * groups), panel) * panel, least), chunk))
        yield taken
        left -= taken


def divide_attention(lengths: Sequence[int], heads: int, threads: int) -> Division:
    """Return how `attention` divides its items, a range of a sequence's queries for one head, in its cost model."""

    def costs(chunk: int) -> list[int]:
        return sorted(
            (
                (min(chunk, length - first) + 16) * (length + 16)
                for length in lengths
                for first in range(0, length, chunk)
            ),
            reverse=True,
        )

    ranges = costs(ATTENTION_CHUNK)
    total = float(heads * sum(ranges))
    if threads > 1 and len(ranges) * heads < 4 * threads:
        ranges = costs(ATTENTION_TILES)
    cost = heads * sum(ranges)
    if len(ranges) * heads == 1 or cost < 2 * MIN_THREAD_COST:
        return Division(total, float(cost))
    busy = [0.0] * threads
    for item in ranges:
        for _ in range(heads):
            heapq.heapreplace(busy, busy[0] + item)
    return Division(total, max(busy))


def divide_pass(config: BertConfig, lengths: Sequence[int], dtype: str, kernel: Kernel, threads: int) -> Partition:
    """Return how the layers of a forward pass are divided among threads."""
    if sum(lengths) <= MOST_SHORT_TOKENS:
        return _divide_short(config, lengths, threads)
    groups = sequence_groups(lengths, kernel, threads)
    if groups is not None:
        return _divide_groups(config, groups, kernel, threads)
    tokens, width, inner = sum(lengths), config.hidden_size, config.intermediate_size
    matmuls = [
        Matmul("projections", tokens, width, 3 * width),
        Matmul("attention output", tokens, width, width, True),
    ]
    for first in range(0, tokens, LAYER_CHUNK):
        rows = min(LAYER_CHUNK, tokens - first)
        matmuls += [Matmul("intermediate", rows, width, inner), Matmul("output", rows, inner, width, True)]
    times: dict[str, list[float]] = {}  # on one thread, and on these threads
    jobs, barriers = 1, 0  # attention
    for matmul in matmuls:
        division = divide(matmul, kernel, ELEMENT_BYTES[dtype], threads)
        _add(times, matmul.name, matmul.operations, division.balance(threads) * threads)
        quantizes = dtype == "int8" and matmul.rows // 2 >= QUANTIZE_GRAIN // matmul.depth + 1
        jobs += 1 + quantizes
        barriers += division.barriers
    attention = divide_attention(lengths, config.num_attention_heads, threads)
    operations = 4.0 * width * sum(length * length for length in lengths)
    _add(times, "attention", operations, attention.balance(threads) * threads)
    barriers = (barriers + 2 * jobs) * config.num_hidden_layers + 1
    return _partition(times, threads, 1, barriers if threads > 1 else 0)


def _divide_short(config: BertConfig, lengths: Sequence[int], threads: int) -> Partition:
    """Return how the stack of few tokens is divided: outputs and heads in one region, with barriers between."""
    tokens, width, heads = sum(lengths), config.hidden_size, config.num_attention_heads
    own = heads // threads * (width // heads)
    has_own_heads = heads % threads == 0 and own % COLUMNS == 0 and width % COLUMNS == 0
    times: dict[str, list[float]] = {}
    for matmul in (
        Matmul("projections", tokens, width, 3 * width),
        Matmul("attention output", tokens, width, width),
        Matmul("intermediate", tokens, width, config.intermediate_size),
        Matmul("output", tokens, config.intermediate_size, width),
    ):
        blocks = _ceil(matmul.columns, COLUMNS)
        even = has_own_heads and matmul.name == "projections"
        _add(times, matmul.name, matmul.operations, threads if even else blocks / max(_parts(blocks, threads)))
    items = [(length + 16) * (length + 16) for _ in range(heads) for length in lengths]
    bounds = [len(items) * index // threads for index in range(threads + 1)]
    busiest = max(sum(items[a:b]) for a, b in itertools.pairwise(bounds))
    operations = 4.0 * width * sum(length * length for length in lengths)
    _add(times, "attention", operations, sum(items) / busiest)
    barriers = (4 if has_own_heads else 5) * config.num_hidden_layers
    return _partition(times, threads, 1, barriers if threads > 1 else 0)


def sequence_groups(lengths: Sequence[int], kernel: Kernel, threads: int) -> list[list[int]] | None:
    """Return the lengths of the sequences whose layers one thread computes at a time; None if threads share every
    operation instead."""
    share = sum(lengths) // threads
    if threads > 1 and share < LEAST_GROUP_TOKENS:
        return None
    most = min(MOST_GROUP_TOKENS, share)
    rows, begins = [0], [0]  # of the sequences before each one
    for end in range(1, len(lengths) + 1):
        tokens, best, begin = 0, None, end
        while begin > 0:
            begin -= 1
            tokens += lengths[begin]
            if max(tokens, end - begin) > most and begin + 1 < end:
                break
            summed = rows[begin] + _ceil(tokens, kernel.row_step) * kernel.row_step + GROUP_ROWS
            if best is None or summed < best[0]:
                best = (summed, begin)
        assert best is not None
        rows.append(best[0])
        begins.append(best[1])
    groups, end = [], len(lengths)
    while end:
        groups.append(list(lengths[begins[end] : end]))
        end = begins[end]
    groups = [group for group in reversed(groups) if sum(group)]
    return groups if max(map(sum, groups)) <= min(MOST_UNEVEN * share, LONGEST_IN_GROUP) else None


def _divide_groups(config: BertConfig, groups: Sequence[Sequence[int]], kernel: Kernel, threads: int) -> Partition:
    """Return how layers of groups are divided: each thread takes the next group of the earliest layer."""
    width = config.hidden_size
    matrices = {
        "projections": 3 * width * width,
        "attention output": width * width,
        "intermediate": width * config.intermediate_size,
        "output": width * config.intermediate_size,
    }
    operations = dict.fromkeys(matrices, 0.0) | {"attention": 0.0}
    costs = []
    for group in groups:
        rows = _ceil(sum(group), kernel.row_step) * kernel.row_step
        attention = 4.0 * width * sum(length * length for length in group)
        for name, elements in matrices.items():
            operations[name] += 2.0 * rows * elements
        operations["attention"] += attention
        costs.append(2.0 * rows * sum(matrices.values()) + attention)
    ready, free = [0.0] * len(groups), [0.0] * threads
    for _ in range(config.num_hidden_layers):
        for index, cost in enumerate(costs):
            begin = max(heapq.heappop(free), ready[index])
            ready[index] = begin + cost
            heapq.heappush(free, ready[index])
    speed_up = config.num_hidden_layers * sum(costs) / max(free)
    times: dict[str, list[float]] = {}
    for name, count in operations.items():
        _add(times, name, count, speed_up)
    return _partition(times, threads, 1, 3 if threads > 1 else 0)


def _add(times: dict[str, list[float]], name: str, operations: float, speed_up: float) -> None:
    one, many = times.get(name, [0.0, 0.0])
    times[name] = [one + operations, many + operations / speed_up]


def _partition(times: Mapping[str, Sequence[float]], threads: int, regions: int, barriers: int) -> Partition:
    one, many = (sum(values) for values in zip(*times.values()))
    return Partition(
        balance=one / (threads * many),
        regions=regions,
        barriers=barriers,
        operations={name: alone / (threads * divided) for name, (alone, divided) in times.items()},
    )


def _ceil(count: int, step: int) -> int:
    return -(-count // step)


def _parts(count: int, parts: int) -> list[int]:
    """Return the sizes of even parts, as the kernels cut them."""
    return [count * (index + 1) // parts - count * index // parts for index in range(parts)]

"""Random sizes, values, layouts and packings for the checks of kernels, all from the number of a case.

Sizes are mostly small and near the edges of vectors and blocks; values include rows of zeros, large means, magnitudes
from denormals to 1e18; layouts include slices of NaN-filled tensors, transposed, negated and expanded views.
"""

from __future__ import annotations

import random

import torch
from fences import fence
from torch import Tensor

from fastbert.ops.dropout.arguments import TokenDropout

EDGES = (1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 32, 33, 37, 61, 63, 64, 65, 97, 127, 128, 129, 255, 256, 257, 511, 512, 513)
# Of a case: most have values around 1, where relative errors are largest beside the floor of the tolerance.
MAGNITUDES = ("normal",) * 12 + ("tiny", "denormal", "large", "huge", "offset", "zero rows", "equal", "mixed")
LAYOUTS = ("plain",) * 5 + ("slice", "slice", "transposed", "negated", "offset")


class Draw:
    """The random numbers of one case."""

    def __init__(self, number: int, purpose: str = "kernels") -> None:
        self.random = random.Random(f"{purpose} {number}")
        self.generator = torch.Generator().manual_seed(self.random.getrandbits(62))
        self.magnitude = self.random.choice(MAGNITUDES)
        self.strange = self.random.random() < 0.4

    def chance(self, p: float) -> bool:
        return self.random.random() < p

    def size(self, most: int, least: int = 0) -> int:
        """Return a size, near an edge more often than not, and small more often than large."""
        bound = most if self.chance(0.1) else min(most, 70)
        edges = [edge for edge in EDGES if least <= edge <= bound]
        return (
            self.random.choice(edges) if edges and self.chance(0.7) else self.random.randint(least, max(least, bound))
        )

    def rows(self, most: int) -> int:
        return 0 if self.chance(0.02) else self.size(most, 1)

    def normal(self, *shape: int, dtype: torch.dtype, scale: float = 1.0) -> Tensor:
        """Return a plain tensor of normal deviates."""
        return self.place((torch.randn(shape, generator=self.generator, dtype=torch.float64) * scale).to(dtype))

    def place(self, x: Tensor) -> Tensor:
        """Return what a call is given for x; `FencedDraw` moves it."""
        return x

    def values(self, *shape: int, dtype: torch.dtype, most: float = 1e18) -> Tensor:
        """Return a tensor of the case's magnitude (of at most `most`) and, at random, of a layout of its own."""
        x = torch.randn(shape, generator=self.generator, dtype=torch.float64)
        if dtype == torch.float16:
            most = min(most, 100.0)
        if self.magnitude == "tiny":
            x *= 10.0 ** -self.random.randint(3, 20)
        elif self.magnitude == "denormal":
            x *= 10.0 ** -self.random.randint(38, 42)
        elif self.magnitude == "large":
            x *= min(most, 10.0 ** self.random.randint(1, 3))
        elif self.magnitude == "huge":
            x *= min(most, 10.0 ** self.random.randint(4, 18))
        elif self.magnitude == "offset":
            x += min(most, 10.0 ** self.random.randint(1, 2))
        elif self.magnitude == "equal" and x.dim() > 1:
            x = x[..., :1].expand(shape).clone()
        elif self.magnitude == "zero rows" and x.dim() > 1 and len(x):
            x[:: self.random.randint(1, 3)] = 0.0
        elif self.magnitude == "mixed":
            x *= 10.0 ** torch.randint(-6, 3, shape[-1:] if shape else (), generator=self.generator).double()
        return self.layout(x.to(dtype))

    def layout(self, x: Tensor) -> Tensor:
        """Return the same values, at random in another layout; what surrounds them is NaN."""
        name = self.random.choice(LAYOUTS) if self.strange else "plain"
        if name == "negated":
            x = torch._neg_view(-x)
        elif name == "transposed" and x.dim() > 1:
            x = x.transpose(0, -1).contiguous().transpose(0, -1)
        elif name == "offset":
            flat = torch.full((x.numel() + 1,), torch.nan, dtype=x.dtype)
            flat[1:] = x.flatten()
            x = flat[1:].view(x.shape)
        elif name == "slice" and x.dim() > 1:
            wider = torch.full((*x.shape[:-1], x.shape[-1] + 5), torch.nan, dtype=x.dtype)
            wider[..., 2:-3] = x
            x = wider[..., 2:-3]
        return self.place(x)

    def lengths(self, most: int, longest: int) -> list[int]:
        """Return the lengths of a packing: none, empty ones, one long among short ones, or all equal."""
        kind, room = self.random.choice(("any", "any", "one long", "equal", "short")), self.size(most, 1)
        if self.chance(0.02):
            return []
        if kind == "equal":
            length = self.size(min(longest, room), 1)
            return [length] * max(1, min(8, room // length))
        lengths = [0, 0] if self.chance(0.15) else []
        if kind == "one long":
            lengths.append(self.size(min(longest, most), 1))
        while room > 0 and len(lengths) < 8:
            lengths.append(min(room, longest, self.random.randint(0, 9) if kind != "any" else self.size(longest)))
            room -= max(1, lengths[-1])
        self.random.shuffle(lengths)
        return lengths

    def keys(self, count: int) -> Tensor:
        return self.place(torch.randint(-(2**62), 2**62, (count,), generator=self.generator))

    def integers(self, high: int, count: int) -> Tensor:
        """Return int64 numbers below `high`."""
        return self.place(torch.randint(high, (count,), generator=self.generator))

    def token_dropout(self, rows: int, p: float = 0.4) -> TokenDropout | None:
        """Return the dropout of the rows of a packing, or None with the chance 1 - `p`."""
        if not self.chance(p):
            return None
        ends = sorted(self.random.randint(0, rows) for _ in range(self.random.randint(0, 3)))
        starts = torch.tensor([0, *ends])
        lengths = torch.tensor([*ends, rows]) - starts
        sequences = torch.arange(len(lengths)).repeat_interleave(lengths)
        offsets = torch.arange(rows) - starts[sequences]
        kind = self.random.choice((torch.int64, torch.int32))
        p = self.random.choice((0.0, 0.1, 0.5, 0.9, 0.999))
        ids = (self.place(sequences.to(kind)), self.place(offsets.to(kind)))
        return TokenDropout(p, self.keys(len(lengths)), *ids, self.random.randint(0, 5000))


class FencedDraw(Draw):
    """Draws what `Draw` does of the same number, and puts each tensor into memory of its own that cannot be written and
    ends, or begins, at a forbidden page."""

    def __init__(self, number: int, purpose: str = "kernels") -> None:
        super().__init__(number, purpose)
        self.sides = random.Random(f"sides {number}")

    def place(self, x: Tensor) -> Tensor:
        return fence(x, behind=self.sides.random() < 0.7)

"""The PTX that drops probabilities, or drops and rounds them, executed instruction by instruction: no GPU is needed."""

import re

import numpy as np
import pytest
import torch

pytest.importorskip("triton", reason="needs triton")
from fastbert.kernels.attention import dropout

LOWER_BITS = {"f16x2": torch.float16, "bf16x2": torch.bfloat16}


def run(text: str, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Execute the instructions of `drop_and_narrow` or `kept` on arrays; return all registers."""
    values = dict(inputs)

    def value(name: str) -> np.ndarray:
        return np.uint32(int(name, 0)) if re.match(r"\d", name) else values[name]

    body = text.strip().removeprefix("{").removesuffix("}").strip()
    for instruction in re.sub(r"mov\.b32 \{(.*?), (.*?)\}, (.*?);", r"unpack \1, \2, \3;", body).split(";"):
        if not instruction.strip():
            continue
        name, _, rest = instruction.strip().partition(" ")
        target, *names = (word.strip() for word in rest.split(","))
        if name == ".reg":
            continue
        if name == "unpack":
            (packed,) = names[1:]
            values[target], values[names[0]] = value(packed) & 0xFFFF, value(packed) >> 16
        elif name.startswith("cvt.rn."):
            # The first operand becomes the upper half.
            upper, lower = (half_bits(value(each), LOWER_BITS[name.split(".")[2]]) for each in names)
            values[target] = upper << 16 | lower
        elif name == "setp.ge.f16x2":
            halves = [[half_numbers(value(each) >> shift) for each in names] for shift in (0, 16)]
            for predicate, (a, b) in zip(target.split("|"), halves, strict=True):
                values[predicate] = a >= b
        elif name == "selp.f32":
            assert names[1] == "0f00000000"
            values[target] = np.where(value(names[2]), value(names[0]), np.float32(0))
        elif name == "and.b32":
            values[target] = value(names[0]) & value(names[1])
        elif name == "add.u32":
            values[target] = value(names[0]) + value(names[1])
        elif name == "lop3.b32":
            a, b, c = map(value, names[:3])
            table, result = int(names[3], 0), np.zeros_like(a)
            for bits in range(8):
                if table >> bits & 1:
                    x, y, z = (each if bits >> shift & 1 else ~each for each, shift in ((a, 2), (b, 1), (c, 0)))
                    result |= x & y & z
            values[target] = result
        else:
            assert name == "prmt.b32", name
            sources = np.stack([value(names[0]) + 0 * values["$4"], value(names[1]) + 0 * values["$4"]])
            result, selectors = np.zeros_like(sources[0]), int(names[2], 0)
            for byte in range(4):
                selector = selectors >> 4 * byte & 15
                selected = sources[(selector & 7) // 4] >> np.uint32(8 * (selector & 3)) & 0xFF
                if selector & 8:
                    selected = (selected >> 7) * 0xFF
                result |= selected << np.uint32(8 * byte)
            values[target] = result
    return values


def half_bits(x: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    return torch.from_numpy(x).to(dtype).view(torch.int16).numpy().astype(np.uint16).astype(np.uint32)


def half_numbers(bits: np.ndarray) -> np.ndarray:
    return (bits & 0xFFFF).astype(np.uint16).view(np.float16)


def every_draw(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draws (256, 4), each byte with every value, as words too, and probabilities."""
    generator = np.random.default_rng(seed)
    draws = np.stack([generator.permutation(256) for _ in range(4)], 1).astype(np.uint32)
    words = (draws << np.array([0, 8, 16, 24], np.uint32)).sum(1, dtype=np.uint32)
    return draws, words, generator.random((256, 4), dtype=np.float32)


def test_draws_below_the_threshold_are_dropped(seed: int) -> None:
    draws, words, p = every_draw(seed)
    for threshold in range(1, 256):
        limit = np.full(256, (threshold + 0x6400) * 0x10001, np.uint32)
        registers = {"$4": words, "$5": limit, **{f"${6 + i}": p[:, i].copy() for i in range(4)}}
        results = run(dropout._KEEP.value, registers)
        for i in range(4):
            expected = np.where(draws[:, i] >= threshold, p[:, i], 0)
            assert np.array_equal(results[f"${i}"], expected), (threshold, i)


@pytest.mark.parametrize(("text", "dtype"), [(dropout._DROP_BF16, torch.bfloat16), (dropout._DROP_FP16, torch.float16)])
def test_draws_below_the_threshold_are_dropped_and_the_others_rounded(text, dtype: torch.dtype, seed: int) -> None:
    draws, words, p = every_draw(seed)
    for threshold in range(1, 256):
        carry = np.full(256, (256 - threshold) * 0x01010101, np.uint32)
        registers = {"$4": words, "$5": carry, **{f"${6 + i}": p[:, i].copy() for i in range(4)}}
        results = run(text.value, registers)
        for i in range(4):
            expected = np.where(draws[:, i] >= threshold, half_bits(p[:, i].copy(), dtype), 0)
            assert np.array_equal(results[f"${i}"], expected), (threshold, i)

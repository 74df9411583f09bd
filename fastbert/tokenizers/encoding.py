"""What a call of the tokenizer returns: model inputs as lists, arrays or tensors."""

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

import numpy as np

from fastbert import _C


class Encoding(Mapping[str, Any]):
    """Model inputs by key or attribute: `input_ids`, `token_type_ids`, `attention_mask`. Unpacks with `**`."""

    def __init__(self, values: dict[str, Any]) -> None:
        self._values = values

    def __getitem__(self, key: str) -> Any:
        return self._values[key]

    def __getattr__(self, name: str) -> Any:
        # Reached before __init__ when an instance is unpickled.
        values = self.__dict__.get("_values", {})
        if name in values:
            return values[name]
        raise AttributeError(f"no {name!r}; there are {', '.join(values)}")

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return repr(self._values)

    def to(self, device: Any) -> "Encoding":
        """The same with every tensor on `device`."""
        return Encoding({key: value.to(device) for key, value in self._values.items()})


def shape_output(
    rows: tuple[np.ndarray, np.ndarray, np.ndarray],
    strategy: str,
    length: int | None,
    pad_token_id: int,
    return_tensors: str | None,
    single: bool,
) -> Encoding:
    """Lists, arrays or tensors from ragged rows."""
    if return_tensors not in (None, "np", "pt"):
        raise ValueError(f"return_tensors={return_tensors!r} must be None, 'np' or 'pt'")
    ids, types, offsets = rows
    sizes = np.diff(offsets)
    longest = int(sizes.max(initial=0))
    if strategy == "longest":
        width = longest
    elif strategy == "max_length":
        width = length or 0
        if return_tensors and longest > width:
            raise ValueError(f"a row has {longest} tokens, over max_length={width}; add truncation=True")
    else:
        width = 0
        if return_tensors and (sizes != longest).any():
            raise ValueError("rows of different lengths make no tensor; add padding=True (and truncation=True)")
    columns = {"input_ids": (ids, pad_token_id), "token_type_ids": (types, 0)}
    columns["attention_mask"] = (np.ones_like(ids), 0)
    if return_tensors is not None:
        width = max(width, longest)
        tensors: dict[str, Any] = {
            name: _C.pad_rows(values, offsets, width, filler) for name, (values, filler) in columns.items()
        }
        if return_tensors == "pt":
            import torch

            tensors = {name: torch.from_numpy(array) for name, array in tensors.items()}
        return Encoding(tensors)
    bounds = offsets.tolist()
    lists: dict[str, Any] = {}
    for name, (values, filler) in columns.items():
        flat = values.tolist()
        lists[name] = [flat[begin:end] + [filler] * (width - (end - begin)) for begin, end in pairwise(bounds)]
    return Encoding({name: value[0] for name, value in lists.items()} if single else lists)

"""The weights of a BERT folder as numpy arrays, for libraries with a file format of their own. Imports only numpy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

DTYPES: dict[str, np.dtype] = {"F32": np.dtype("<f4"), "F16": np.dtype("<f2"), "BF16": np.dtype("<u2")}


def read_bert(folder: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return the config of a folder and the encoder's weights in fp32, by their names in transformers' `BertModel`.

    Raises `NotImplementedError` for a different architecture or activation.
    """
    config: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    kind, activation = config.get("model_type"), config.get("hidden_act", "gelu")
    if kind != "bert" or activation != "gelu":
        raise NotImplementedError(f"this contender reads BERT with GELU, not {kind} with {activation}")
    weights = _read_safetensors(folder / "model.safetensors")
    return config, {name.removeprefix("bert."): values for name, values in weights.items()}


def _read_safetensors(path: Path) -> dict[str, np.ndarray]:
    content = np.memmap(path, np.uint8, mode="r")
    first = 8 + int.from_bytes(content[:8].tobytes(), "little")
    header = json.loads(content[8:first].tobytes())
    header.pop("__metadata__", None)
    # Position ids and other integers are no weights.
    floats = {name: tensor for name, tensor in header.items() if tensor["dtype"] in DTYPES}
    weights = {}
    for name, tensor in floats.items():
        begin, end = tensor["data_offsets"]
        values = content[first + begin : first + end].view(DTYPES[tensor["dtype"]]).reshape(tensor["shape"])
        if tensor["dtype"] == "BF16":
            values = (values.astype(np.uint32) << 16).view(np.float32)
        weights[name] = np.array(values, np.float32)  # a copy: readers may quantise in place
    return weights

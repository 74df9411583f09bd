"""Write a folder for embedders that read ONNX: the tokenizer, and the encoder exported with fused layers, in fp32 or
int8. Runs in fastbert's environment; the embedders may have one of their own."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from sentence_transformers import SentenceTransformer

from fastbert.benchmarks.peers.onnx_folder_names import FOLDER, MODEL
from fastbert.benchmarks.peers.onnxruntime_encoder import Encoder


def write(folder: Path, *, dtype: str, scratch: Path) -> None:
    """Write the folder `FOLDER` in `scratch` with the model `MODEL`; its tokenizer truncates as the model's settings
    say. The folder must have a tokenizer.json."""
    target = scratch / FOLDER
    if (target / MODEL).exists():  # written for another workload
        return
    longest = SentenceTransformer(str(folder), device="cpu").max_seq_length
    Encoder(folder, dtype=dtype, threads=1, scratch=scratch)
    shutil.copytree(folder, target, ignore=shutil.ignore_patterns("*.safetensors", "*.bin", "onnx", "openvino"))
    settings_file = target / "tokenizer_config.json"
    settings = json.loads(settings_file.read_text(encoding="utf-8"))
    settings_file.write_text(json.dumps({**settings, "model_max_length": longest}), encoding="utf-8")
    (target / MODEL).parent.mkdir()
    shutil.move(scratch / f"{'quantized' if dtype == 'int8' else 'fused'}.onnx", target / MODEL)

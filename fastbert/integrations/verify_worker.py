"""The worker process of one side of `fastbert verify`: a model of transformers, original or accelerated.

Requests and responses are lines of JSON; outputs are passed in files of raw numbers.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fastbert.errors import UserError
from fastbert.tokenizers.fit import check_tokenizer

# The class that is loaded for each task.
CLASSES = {
    "base": "AutoModel",
    "fill-mask": "AutoModelForMaskedLM",
    "text-classification": "AutoModelForSequenceClassification",
    "token-classification": "AutoModelForTokenClassification",
}
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class Side:
    """A model with its batches of token ids."""

    def __init__(self, settings: dict[str, Any], texts: list[str]) -> None:
        if settings["threads"]:
            torch.set_num_threads(settings["threads"])
        import transformers

        self.device: torch.device = torch.device(settings["device"])
        transformers.utils.logging.set_verbosity_error()
        self.tokenizer: Any = _loaded(transformers.AutoTokenizer, settings["model"])
        loader = getattr(transformers, CLASSES[settings["task"]])
        self.model: Any = _loaded(loader, settings["model"], dtype=DTYPES[settings["dtype"]]).to(self.device).eval()
        check_tokenizer(self.tokenizer, self.model.get_input_embeddings().num_embeddings, settings["model"])
        if settings["accelerate"]:
            from fastbert.integrations.accelerate import accelerate

            accelerate(self.model)
        self.batches: list[dict[str, Tensor]] = list(
            self._tokenize(texts, settings["batch_size"], settings["max_length"])
        )
        self._reset_peak()

    def _tokenize(self, texts: list[str], size: int, max_length: int) -> Iterator[dict[str, Tensor]]:
        # RoBERTa-like models number positions from padding_idx + 1.
        embeddings = getattr(self.model.base_model, "embeddings", None)
        first = getattr(embeddings, "padding_idx", -1) + 1
        limit = min(max_length, self.model.config.max_position_embeddings - first)
        for start in range(0, len(texts), size):
            batch = self.tokenizer(
                texts[start : start + size], padding=True, truncation=True, max_length=limit, return_tensors="pt"
            )
            yield dict(batch.to(self.device))

    def facts(self) -> dict[str, Any]:
        """Return the facts to compare: class, size, and the tokens of each text without padding."""
        lengths = [batch["attention_mask"].sum(1).tolist() for batch in self.batches]
        return {
            "architecture": type(self.model).__name__,
            "parameters": sum(parameter.numel() for parameter in self.model.parameters()),
            "lengths": lengths,
            "slots": sum(batch["attention_mask"].numel() for batch in self.batches),
        }

    def compute(self, batch: int, file: str) -> dict[str, Any]:
        """Write the outputs of a batch at real tokens, fp32 (rows, width), to a file; return shape and seconds."""
        started = time.perf_counter()
        output = self._run(batch)
        seconds = time.perf_counter() - started
        values = output[self.batches[batch]["attention_mask"].bool()] if output.dim() == 3 else output
        values.float().cpu().numpy().tofile(file)
        return {"shape": list(values.shape), "of_tokens": output.dim() == 3, "seconds": seconds}

    def time(self, batches: list[int]) -> float:
        """Return the seconds that some batches take."""
        started = time.perf_counter()
        for batch in batches:
            self._run(batch)
        return time.perf_counter() - started

    def finish(self) -> dict[str, Any]:
        """Return the peak memory in bytes since the model was loaded, that of the GPU if it runs on one, if known; and
        notes on the parts that were not accelerated."""
        from fastbert.integrations.accelerate import explain

        notes = [line for line in explain(self.model) if not line.endswith("on fastbert's kernels")]
        return {"peak_bytes": self._peak(), "notes": notes}

    @torch.inference_mode()
    def _run(self, batch: int) -> Tensor:
        output = self.model(**self.batches[batch])
        result: Tensor = output["last_hidden_state"] if "last_hidden_state" in output else output["logits"]
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return result

    def _reset_peak(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
            return
        try:
            Path("/proc/self/clear_refs").write_text("5")
        except OSError:
            return

    def _peak(self) -> int | None:
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device)
        status = Path("/proc/self/status")
        peak = re.search(r"^VmHWM:\s+(\d+) kB$", status.read_text(), re.MULTILINE) if status.exists() else None
        return int(peak[1]) << 10 if peak else None


def _loaded(loader: Any, name: str, **options: Any) -> Any:
    try:
        return loader.from_pretrained(name, local_files_only=True, **options)
    except Exception as error:  # noqa: BLE001  # for damaged files the libraries raise KeyError and Exception, too
        kind = "" if isinstance(error, OSError | ValueError) else f"{type(error).__name__}: "
        first = kind + (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise UserError(
            f"{name}: transformers cannot load it ({first}); give a folder with config.json, weights and tokenizer, or"
            " the id of a model that is in the local Hub cache: nothing is downloaded here"
        ) from None


def serve() -> None:
    """Serve requests from standard input until it ends: the first loads the model, the others call its methods."""
    # Output of libraries must not mix with the responses.
    responses = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    logging.basicConfig(level=logging.ERROR)
    import transformers  # noqa: F401  (while the other process does the same)

    side: Any = None
    for line in sys.stdin:
        request = json.loads(line)
        method = request.pop("method")
        try:
            if method == "load":
                side = Side(request["settings"], request["texts"])
                response = {"result": side.facts()}
            else:
                response = {"result": getattr(side, method)(**request)}
        except UserError as error:
            response = {"error": str(error)}
        responses.write(json.dumps(response) + "\n")
        responses.flush()


if __name__ == "__main__":
    serve()

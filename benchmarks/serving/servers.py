"""The servers that are compared: how each is started, which requests it takes, and what its answers are."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from fastbert.benchmarks import peers
from fastbert.benchmarks.harness import process_memory
from fastbert.benchmarks.harness.measure import ContenderFailed

HOST = "127.0.0.1"
READY_SECONDS = 180.0
STOP_SECONDS = 15.0
APP = "fastbert.benchmarks.serving.sentence_transformers_app"
DTYPES = {"fp32": "float32", "bf16": "bfloat16"}


def _inputs(texts: Sequence[str]) -> dict[str, Any]:
    return {"inputs": texts[0] if len(texts) == 1 else list(texts)}


def _openai_input(texts: Sequence[str]) -> dict[str, Any]:
    return {"model": "model", "input": list(texts)}


def _unchanged(folder: Path, threads: int, scratch: Path) -> Path:
    return folder


def _openai_vectors(answer: Any) -> list[list[float]]:
    return [item["embedding"] for item in sorted(answer["data"], key=lambda item: item["index"])]


@dataclass(frozen=True, kw_only=True)
class Contender:
    """A server and its setting."""

    dtype: str
    command: Callable[[Path, int, int, Path | None], list[str]]
    """Return the command for a model's folder, a port, a number of threads, and the folder of infinity's
    environment."""
    needs: tuple[str, ...] = ()
    """Modules that it imports from this environment."""
    route: str = "/embed"
    body: Callable[[Sequence[str]], dict[str, Any]] = _inputs
    """Return the body of a request for texts."""
    vectors: Callable[[Any], list[list[float]]] = list
    """Return the vectors of an answer."""
    environment: Mapping[str, str] = field(default_factory=dict)
    prepare: Callable[[Path, int, Path], Path] = _unchanged
    """Return the folder to serve for a model's folder, a number of threads and a folder for temporary files."""


def _fastbert(dtype: str) -> Contender:
    def command(folder: Path, port: int, threads: int, _: Path | None) -> list[str]:
        words = [str(folder), "--port", str(port), "--dtype", dtype, "--log", "errors"]
        return [sys.executable, "-P", "-m", "fastbert", "serve", *words]

    return Contender(dtype=dtype, command=command, needs=("fastapi", "uvicorn"))


def _sentence_transformers(dtype: str, *flags: str) -> Contender:
    def command(folder: Path, port: int, threads: int, _: Path | None) -> list[str]:
        words = ["--port", str(port), "--threads", str(threads), "--dtype", DTYPES[dtype], *flags]
        return [sys.executable, "-P", "-m", APP, str(folder), *words]

    return Contender(dtype=dtype, command=command, needs=("fastapi", "uvicorn", "sentence_transformers"))


def _infinity(dtype: str, engine: str, *flags: str) -> Contender:
    def command(folder: Path, port: int, threads: int, infinity: Path | None) -> list[str]:
        assert infinity is not None
        words = ["--served-model-name", "model", "--engine", engine, "--device", "cpu", "--port", str(port)]
        # Its cache would answer repeated texts without computing them.
        words += ["--no-vector-disk-cache", "--no-lengths-via-tokenize", "--log-level", "error", *flags]
        return [str(infinity / "bin" / "infinity_emb"), "v2", "--model-id", str(folder), *words]

    return Contender(
        dtype=dtype,
        command=command,
        route="/embeddings",
        body=_openai_input,
        vectors=_openai_vectors,
        environment={"DO_NOT_TRACK": "1", "INFINITY_ANONYMOUS_USAGE_STATS": "0"},
    )


def _infinity_onnx(dtype: str) -> Contender:
    def prepare(folder: Path, threads: int, scratch: Path) -> Path:
        """Copy the model and add its exported encoder with fused layers: int8 is quantised dynamically."""
        from fastbert.benchmarks.peers.onnxruntime_encoder import Encoder

        Encoder(folder, dtype=dtype, threads=threads, scratch=scratch)
        copy = scratch / f"onnx-{dtype}"
        shutil.copytree(folder, copy)
        source, target = ("quantized", "model_quantized") if dtype == "int8" else ("fused", "model")
        (copy / "onnx").mkdir()
        shutil.move(scratch / f"{source}.onnx", copy / "onnx" / f"{target}.onnx")
        return copy

    server = _infinity(dtype, "optimum", "--onnx-disable-optimize", "--pooling-method", "mean")
    return replace(server, prepare=prepare, needs=("onnx", "onnxruntime", "transformers"))


CONTENDERS: dict[str, Contender] = {
    **{f"fastbert {dtype}": _fastbert(dtype) for dtype in ("fp32", "bf16", "int8")},
    "sentence-transformers fp32": _sentence_transformers("fp32"),
    "sentence-transformers fp32, batching": _sentence_transformers("fp32", "--batching"),
    "sentence-transformers bf16, batching": _sentence_transformers("bf16", "--batching"),
    "infinity torch fp32": _infinity("fp32", "torch", "--no-bettertransformer", "--no-compile"),
    "infinity torch fp32, bettertransformer": _infinity("fp32", "torch", "--bettertransformer", "--no-compile"),
    "infinity torch bf16": _infinity(
        "bf16", "torch", "--no-bettertransformer", "--no-compile", "--dtype", DTYPES["bf16"]
    ),
    "infinity onnx fp32": _infinity_onnx("fp32"),
    "infinity onnx int8": _infinity_onnx("int8"),
}


def absent(name: str, infinity: Path | None) -> str | None:
    """Return the reason why a contender cannot run here, or None."""
    from importlib.util import find_spec

    contender = CONTENDERS[name]
    if name.startswith("infinity") and (infinity is None or not (infinity / "bin" / "infinity_emb").exists()):
        return "not installed (--infinity names the folder of an environment with infinity-emb)"
    if name.startswith("fastbert") and find_spec("fastbert.cli.serve") is None:
        return "this fastbert has no command serve"
    missing = next((module for module in contender.needs if find_spec(module) is None), None)
    return f"not installed (no module {missing})" if missing else None


class Server:
    """A contender's process with a model. Raises `ContenderFailed` if it does not become ready."""

    def __init__(
        self,
        name: str,
        folder: Path,
        threads: int,
        scratch: Path,
        *,
        infinity: Path | None = None,
        flags: Sequence[str] = (),
    ) -> None:
        self.name = name
        self.contender: Contender = CONTENDERS[name]
        scratch.mkdir(parents=True, exist_ok=True)
        self.log: Path = scratch / "server.log"
        self.port: int = free_port()
        try:
            folder = self.contender.prepare(folder, threads, scratch)
        except Exception as error:
            raise ContenderFailed(f"preparing it: {type(error).__name__}: {error}") from error
        command = [*self.contender.command(folder, self.port, threads, infinity), *flags]
        variables = {**peers.thread_environment(threads), "HF_HUB_OFFLINE": "1", **self.contender.environment}
        with self.log.open("wb") as output:
            self.process: subprocess.Popen[bytes] = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **variables},
                start_new_session=True,
            )
        try:
            self._wait()
        except BaseException:
            self.close()
            raise

    def _wait(self) -> None:
        until = time.monotonic() + READY_SECONDS
        while time.monotonic() < until:
            if self.process.poll() is not None:
                lines = self.log.read_text(errors="replace").strip().splitlines() or ["no message"]
                raise ContenderFailed(f"its process ended with code {self.process.returncode}: {lines[-1]}")
            try:
                if self.ask("/health", None, timeout=5)[0] == 200:
                    return
            except OSError:
                pass
            time.sleep(0.2)
        raise ContenderFailed(f"not ready within {READY_SECONDS:.0f} s")

    def ask(self, path: str, body: Any, *, timeout: float = 120) -> tuple[int, Any]:
        """Return the status and the JSON value of an answer: to a POST, or to a GET without a body."""
        connection = http.client.HTTPConnection(HOST, self.port, timeout=timeout)
        try:
            if body is None:
                connection.request("GET", path)
            else:
                connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
            answer = connection.getresponse()
            content = answer.read()
            return answer.status, json.loads(content) if content else None
        except (http.client.HTTPException, ValueError) as error:
            raise ContenderFailed(f"{path}: {type(error).__name__}: {error}") from error
        finally:
            connection.close()

    def post(self, path: str, body: Any) -> Any:
        """Return the answer to a POST. Raises `ContenderFailed` for any status but 200."""
        try:
            status, answer = self.ask(path, body)
        except OSError as error:
            raise ContenderFailed(f"{path}: {error}") from error
        if status != 200:
            raise ContenderFailed(f"{path}: status {status}: {str(answer)[:200]}")
        return answer

    def embed(self, texts: Sequence[str], each: int) -> np.ndarray:
        """Return the vectors fp32 (texts, width), with `each` texts per request."""
        vectors: list[list[float]] = []
        for first in range(0, len(texts), each):
            answer = self.post(self.contender.route, self.contender.body(texts[first : first + each]))
            vectors += self.contender.vectors(answer)
        return np.asarray(vectors, np.float32)

    def processor_seconds(self) -> float:
        """Return the CPU seconds that the process has used."""
        try:
            words = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        except OSError as error:
            raise ContenderFailed("its process ended") from error
        return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")

    def resident(self) -> int:
        """Return the resident bytes of the process."""
        return process_memory.resident(self.process.pid) or 0

    def pause(self) -> None:
        """Stop the process, so that it costs nothing while another one is measured."""
        os.killpg(self.process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Continue the process after `pause`."""
        os.killpg(self.process.pid, signal.SIGCONT)

    def ask_to_end(self) -> None:
        """Send the process SIGTERM, without waiting for its end."""
        if self.process.poll() is None:
            self.resume()
            self.process.terminate()

    def close(self) -> None:
        """End the process."""
        try:
            self.ask_to_end()
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(timeout=STOP_SECONDS)
        finally:  # after an interrupt, too
            if self.process.poll() is None:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait()


def free_port() -> int:
    """Return a port that no process listens on."""
    with socket.socket() as listener:
        listener.bind((HOST, 0))
        port: int = listener.getsockname()[1]
        return port

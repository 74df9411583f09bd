"""Forks a process whose threads tokenize, compute and search, and compares what each child gets.

    python -m torture.forking FIRST COUNT

A fork copies one thread and the state in which the others left every lock. The child tokenizes with several threads,
embeds and searches, on the thread that forked and on one that it starts; all of it must have the bytes that the parent
got. The last line holds the figures as JSON.
"""

from __future__ import annotations

import faulthandler
import hashlib
import json
import os
import random
import select
import signal
import sys
import threading
import time
from collections.abc import Callable

import numpy as np
import torch
from embedding import random_texts, small_model, small_tokenizer

from fastbert import _C

LONGEST = 90.0  # seconds of a child, on a busy machine
TEXTS = [text for text in random_texts(0, 60, most=40) if text] * 10
TOKENIZER, MODEL = small_tokenizer(), small_model(0)
QUERIES = 7
VECTORS = np.random.default_rng(0).standard_normal((4000, 32), dtype=np.float32)


def tokenized() -> bytes:
    """Return the bytes of encodings, ragged and padded."""
    arrays = TOKENIZER.encode_ragged(TEXTS, True, threads=3)
    padded = TOKENIZER(TEXTS[:50], padding=True, return_tensors="np", return_offsets_mapping=True)
    return b"".join(np.ascontiguousarray(array).tobytes() for array in (*arrays, *padded.values()))


def computed() -> bytes:
    """Return the bytes of embeddings."""
    return MODEL.embed(TEXTS[:24], TOKENIZER, normalize=True).numpy().tobytes()


def searched() -> bytes:
    """Return the bytes of scores and rows, by the runtime's own threads."""
    scores, rows = np.empty((QUERIES, 5), np.float32), np.empty((QUERIES, 5), np.int64)
    _C.search_rows(
        kind="fp32",
        rows=VECTORS.ctypes.data,
        scales=0,
        count=len(VECTORS),
        width=VECTORS.shape[1],
        queries=VECTORS.ctypes.data,
        query_scales=0,
        query_count=QUERIES,
        best=5,
        scores=scores.ctypes.data,
        indices=rows.ctypes.data,
    )
    return bytes(scores.tobytes() + rows.tobytes())


def everything() -> str:
    """Return the sum of all results."""
    return hashlib.sha256(tokenized() + computed() + searched()).hexdigest()


def child(expected: tuple[str, str]) -> int:
    """Compute on this thread and on another one; return 0 if both agree with the parent."""
    faulthandler.dump_traceback_later(LONGEST - 5)
    native = hashlib.sha256(tokenized() + searched()).hexdigest()
    # libgomp waits for ever for threads that the child lacks where torch's own loops run in parallel, so that torch's
    # DataLoader does this in its workers, too. Ours, above, know better.
    torch.set_num_threads(1)
    results = [everything()]
    thread = threading.Thread(target=lambda: results.append(everything()))
    thread.start()
    thread.join()
    return 0 if (native, results) == (expected[0], [expected[1]] * 2) else 3


def wait(process: int) -> tuple[int, float]:
    """Return the exit status of a child and its seconds; a child that hangs is killed, and its status is a signal."""
    begin, descriptor = time.monotonic(), os.pidfd_open(process)
    try:
        if not select.select([descriptor], [], [], LONGEST)[0]:
            os.kill(process, signal.SIGKILL)
        return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), time.monotonic() - begin
    finally:
        os.close(descriptor)


def main(first: int, count: int) -> None:
    """Fork `count` times while three threads work, at moments that the numbers determine."""
    stop = threading.Event()
    expected = hashlib.sha256(tokenized() + searched()).hexdigest(), everything()
    wrong: list[str] = []

    def work(compute: Callable[[], bytes]) -> None:
        own = compute()
        while not stop.is_set():
            if compute() != own:
                wrong.append(compute.__name__)

    threads = [threading.Thread(target=work, args=(part,)) for part in (tokenized, computed, searched)]
    for thread in threads:
        thread.start()
    longest = 0.0
    try:
        for number in range(first, first + count):
            time.sleep(random.Random(f"forks {number}").random() * 0.02)
            process = os.fork()
            if not process:
                os._exit(child(expected))
            code, seconds = wait(process)
            assert code == 0, f"fork {number}: the child ended with {code} after {seconds:.1f} s"
            assert not wrong, f"fork {number}: other bytes from {wrong[0]} in the parent"
            longest = max(longest, seconds)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    print(json.dumps({"forks": count, "longest_seconds_of_a_child": round(longest, 2)}))


if __name__ == "__main__":
    torch.set_num_threads(2)
    main(int(sys.argv[1]), int(sys.argv[2]))

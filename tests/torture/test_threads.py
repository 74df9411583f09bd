"""Row 5 of the scorecard: threads and forks are safe: the same bytes, no hang, no report of ThreadSanitizer."""

from __future__ import annotations

import functools
import json
import multiprocessing
import os
import pickle
import random
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from embedding import random_texts, small_tokenizer
from fuzz import run
from hostile_texts import hostile_texts
from torture import racing
from torture.campaign import Campaign
from torture.ledger import Figures
from torture.scorecard import scored
from torture.tokenizer_subjects import tokenizers

TESTS = Path(__file__).resolve().parents[1]


@scored(row=5, unit="forks", short=3, full=1000, chunk=20, goal="the bytes of the parent in every child, no hang")
def test_forks_with_running_threads(campaign: Campaign, tmp_path: Path) -> None:
    """A process forked while its threads tokenize, compute and search works, on the thread that forked and on new ones.

    torch's own loops hang in such a child if they run in parallel, since libgomp waits for threads that a fork does not
    copy; as torch's DataLoader does, the child calls `torch.set_num_threads(1)` before it uses torch.
    """

    def fork(numbers: range) -> Figures:
        environment = {**os.environ, "PYTHONPATH": str(TESTS), "OMP_NUM_THREADS": "2"}
        command = [sys.executable, "-P", "-m", "torture.forking", str(numbers.start), str(len(numbers))]
        done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, f"{numbers}: {done.stderr[-2000:]}"
        figures: Figures = json.loads(done.stdout.splitlines()[-1])
        return figures

    campaign.run(fork)


def encode(tokenizer: Any, texts: list[str], number: int) -> list[Any]:
    """Return what several calls give."""
    calls: list[dict[str, Any]] = [{"padding": True}, {"max_length": 9, "truncation": True}, {"return_length": True}]
    arrays = tokenizer.encode_ragged(texts, number % 2 == 0, threads=1 + number % 3)
    return [*(array.tobytes() for array in arrays), tokenizer(texts[:9], **calls[number % 3]).data]


def race_on(tokenizer: Any, count: int, texts: list[list[str]], where: str) -> None:
    """Compare what `count` threads get, which begin at once, with what another tokenizer gives."""
    expected = [encode(tokenizer, part, index) for index, part in enumerate(texts)]
    shared = pickle.loads(pickle.dumps(tokenizer))  # its caches are empty
    wrong: list[int] = []
    start = threading.Barrier(count)

    def work(thread: int) -> None:
        start.wait()
        for index in range(thread, thread + 3):
            part = index % len(texts)
            if encode(shared, texts[part], part) != expected[part]:
                wrong.append(thread)

    threads = [threading.Thread(target=work, args=(thread,)) for thread in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive(), f"{where}: one of {count} threads hangs"
    assert not wrong, f"{where}: threads {wrong} of {count} differ"


@scored(row=5, unit="rounds of 1 to 64 threads", short=3, full=300, chunk=15, goal="the bytes of one thread")
def test_threads_on_one_tokenizer(campaign: Campaign, tmp_path: Path) -> None:
    """Up to 64 threads that share a tokenizer, new to the texts, each get what a tokenizer of their own gives."""
    kinds = tokenizers(tmp_path)

    def race(numbers: range) -> Figures:
        for number in numbers:
            rng = random.Random(f"threads {number}")
            count = 1 << rng.randrange(7)
            texts = [hostile_texts(rng, 40) for _ in range(min(count, 8))]
            race_on(kinds[number % len(kinds)], count, texts, f"round {number}")
        return {}

    campaign.run(race)


LINES = [*random_texts(1, 30, most=20), "", "é\u2028x", "[MASK] a"]


@scored(row=5, unit="data loaders", short=2, full=100, chunk=4, goal="the batches of one process, in order")
def test_workers_of_a_loader(campaign: Campaign) -> None:
    """Workers of a DataLoader, forked or spawned, give the same batches as the process itself."""
    tokenizer = small_tokenizer()
    collate = functools.partial(tokenizer, padding=True, truncation=True, return_tensors="pt")

    def load(numbers: range) -> Figures:
        compared = 0
        for number in numbers:
            method, workers = ("fork", "spawn")[number % 2], 1 + number // 2 % 4
            loader = torch.utils.data.DataLoader(
                LINES,
                batch_size=3 + number % 5,
                num_workers=workers,
                collate_fn=collate,
                multiprocessing_context=multiprocessing.get_context(method),
                timeout=300,
            )
            for index, batch in enumerate(loader):
                size = loader.batch_size or 1
                expected = collate(LINES[size * index : size * (index + 1)])
                assert all(torch.equal(batch[key], expected[key]) for key in expected), (
                    f"loader {number}, batch {index}"
                )
                assert batch.word_ids(0) == expected.word_ids(0), f"loader {number}, batch {index}"
                compared += 1
        return {"batches": compared}

    campaign.run(load)


def require_thread_sanitizer(campaign: Campaign) -> None:
    """Skip the short form, which would compile for minutes, and a system without gcc's ThreadSanitizer."""
    if not campaign.full:
        pytest.skip("compiles for minutes: run with --full")
    if sys.platform != "linux" or shutil.which(run.COMPILER) is None:
        pytest.skip("needs Linux and a compiler with ThreadSanitizer")


@scored(row=5, unit="rounds of the runtime", short=1, full=2000, chunk=100, goal="no report of ThreadSanitizer")
def test_races_of_the_runtime(campaign: Campaign) -> None:
    """Parallel regions, sessions, barriers, the caching allocator, arenas and search have no race.

    OpenMP is one of plain threads, in place of libgomp, whose barriers no sanitizer sees: nothing is suppressed.
    """
    require_thread_sanitizer(campaign)

    def race(numbers: range) -> Figures:
        command = [*run.fixed_addresses(), run.runtime_threads(), str(numbers.start), str(len(numbers))]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, f"rounds {numbers}: {done.stderr[:3000]}"
        return {"reports": float(done.stderr.count("WARNING: ThreadSanitizer"))}

    campaign.run(race)


@scored(row=5, unit="texts on four threads", short=1, full=200, chunk=10, goal="no report of ThreadSanitizer")
def test_races_of_the_tokenizers(campaign: Campaign) -> None:
    """Four callers, each with four threads, on one tokenizer have no race."""
    require_thread_sanitizer(campaign)

    def race(numbers: range) -> Figures:
        program = run.build("threads", "check_texts.cpp", ["-fsanitize=thread"], run.COMPILER)
        done = subprocess.run(
            [*run.fixed_addresses(), program, str(numbers.start), str(len(numbers)), "4"],
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, f"texts {numbers}: {done.stderr[:3000]}"
        return {"reports": float(done.stderr.count("WARNING: ThreadSanitizer"))}

    campaign.run(race)


@scored(row=5, unit="requests to a server", short=1, full=20_000, chunk=500, goal="no report of ThreadSanitizer")
def test_races_of_a_server(campaign: Campaign) -> None:
    """A server whose extension is compiled for ThreadSanitizer, asked by eight threads at a time, has no race.

    The interpreter and torch are not instrumented: their locks are seen, their memory is not. OMP_NUM_THREADS is 1,
    since libgomp's barriers would be invisible. Reports that name no function of the extension are only counted.
    """
    require_thread_sanitizer(campaign)
    campaign.run(racing.ask_instrumented_server)


def test_large_numbers_of_threads_are_only_a_request() -> None:
    """A call may ask for more threads than there are."""
    tokenizer = small_tokenizer()
    one, many = (tokenizer.encode_ragged(LINES * 50, True, threads=count) for count in (1, 64))
    assert all(np.array_equal(a, b) for a, b in zip(one, many, strict=True))

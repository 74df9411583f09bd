"""`fastbert embed` on several processes: the file of one process, or none."""

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from embedding import random_texts, saved
from reranking_models import model_folder
from torch.distributed import HashStore

pytest.importorskip("tyro", reason="the command line needs tyro")

from fastbert import cli
from fastbert.distributed.shares import Share, ended_by_torchrun
from fastbert.distributed.world import PeerFailure, World

# Runs several commands, one after the other, as torchrun would start them.
DRIVER = """
import json, os, sys
from fastbert import cli
from fastbert.embeddings import embed
from fastbert.errors import UserError

def fail(*_):
    raise UserError("the vectors of process 1 are cursed")

for call in json.loads(sys.argv[1]):
    os.environ["MASTER_PORT"] = str(call["port"])
    if call["ends"] == "elsewhere":
        os.chdir("rank-" + os.environ["RANK"])
    elif os.environ["RANK"] == "1" and call["ends"]:
        embed.check_finite = fail if call["ends"] == "error" else lambda *_: os._exit(9)
    print("code", cli.main(call["words"]), flush=True)
"""


def run(processes: int, calls: list[tuple[list[str], str]], folder: Path) -> list[tuple[list[int], list[str]]]:
    """Run commands in several processes; return the exit codes and the errors of each process."""
    sockets = [socket.socket() for _ in calls]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    described = [{"words": words, "ends": ends, "port": port} for (words, ends), port in zip(calls, ports, strict=True)]
    started = [
        subprocess.Popen(
            [sys.executable, "-c", DRIVER, json.dumps(described)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=folder,
            env={
                **os.environ,
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(processes),
                "MASTER_ADDR": "127.0.0.1",
                "OMP_NUM_THREADS": "1",
            },
        )
        for rank in range(processes)
    ]
    try:
        outputs = [process.communicate(timeout=120) for process in started]
    finally:
        for process in started:
            process.kill()
    return [
        (
            [int(line.split()[1]) for line in out.splitlines() if line.startswith("code")],
            [line for line in err.splitlines() if line.startswith("fastbert: error")],
        )
        for out, err in outputs
    ]


def test_several_processes_write_the_file_of_one(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    dense, head = saved(tmp_path / "model", seed), model_folder(tmp_path / "head", "BertForMaskedLM", seed)
    (tmp_path / "many.txt").write_text("".join(f"{text}\n" for text in random_texts(seed, 500, most=12)))
    (tmp_path / "two.txt").write_text("one text\nand another one\n")
    common = ["--device=cpu", "--dtype=fp32", "--quiet"]
    commands = {
        "many.npy": [f"--model={dense}", "--text=many.txt"],
        "many.jsonl": [f"--model={dense}", "--text=many.txt", "--normalize", "--max-length=8", "--long=windows"],
        "two.npy": [f"--model={dense}", "--text=two.txt"],
        "tokens.safetensors": [f"--model={head}", "--text=many.txt", "--vectors=tokens"],
        "sparse.safetensors": [f"--model={head}", "--text=many.txt", "--vectors=sparse", "--top-k=3"],
    }
    (tmp_path / "one").mkdir()
    (tmp_path / "all").mkdir()
    calls = [(["embed", *flags, *common, f"--out=all/{name}"], "") for name, flags in commands.items()]
    calls.append((["embed", f"--model={dense}", "--text=-", *common, "--out=all/stdin.npy"], ""))
    for rank in range(3):  # a folder for each machine, one of which has another text
        (tmp_path / f"rank-{rank}").mkdir()
        (tmp_path / f"rank-{rank}" / "own.txt").write_text("one\ntwo\n" if rank == 1 else "one\n\ntwo\n")
    calls.append((["embed", f"--model={dense}", "--text=own.txt", *common, "--out=own.npy"], "elsewhere"))
    results = run(3, calls, tmp_path)
    assert [codes for codes, _ in results] == [[0, 0, 0, 0, 0, 2, 2]] * 3, results
    monkeypatch.chdir(tmp_path)
    for name, flags in commands.items():
        assert cli.main(["embed", *flags, *common, f"--out=one/{name}"]) == 0
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "all" / name).read_bytes(), name
    assert sorted(path.name for path in (tmp_path / "all").iterdir()) == sorted(commands)
    [refused, differs], *others = [errors for _, errors in results]
    assert "process 1 of 3 has a SHA-256 of --text=" in differs
    assert differs.endswith("give all processes the same files, and devices of one kind")
    assert not list(tmp_path.glob("rank-*/own.npy"))
    assert refused.endswith("standard input cannot be shared by several processes; name a file")
    assert others == [[], []]


@pytest.mark.parametrize(
    ("ends", "message"),
    [
        ("error", "process 1 of 2 has ended: the vectors of process 1 are cursed; nothing was written; repeat the"),
        pytest.param("kill", "another process of the run has ended without a message", marks=pytest.mark.slow),
    ],
)
def test_a_process_that_fails_ends_the_others(tmp_path: Path, seed: int, ends: str, message: str) -> None:
    (tmp_path / "texts.txt").write_text("".join(f"{text}\n" for text in random_texts(seed, 700, most=12)))
    (tmp_path / "out").mkdir()
    words = ["embed", f"--model={saved(tmp_path / 'model', seed)}", "--text=texts.txt", "--out=out/vectors.npy"]
    first, second = run(2, [([*words, "--device=cpu", "--dtype=fp32", "--quiet"], ends)], tmp_path)
    assert first[0] == [2]
    assert message in first[1][0]
    if ends == "error":
        assert second == ([2], ["fastbert: error: the vectors of process 1 are cursed"])
    assert not list((tmp_path / "out").iterdir())


def test_shares_hold_each_piece_once() -> None:
    for size in (1, 2, 3, 7):
        shares = [Share(rank, size) for rank in range(size)]
        assert all(sum(share.has(number) for share in shares) == 1 for number in range(50))
    assert [Share(0, size).chunk_texts(1024) for size in (1, 2, 4, 64)] == [1024, 512, 256, 64]
    assert [Share(0, size).chunk_texts(9) for size in (1, 2)] == [9, 9]


def test_torchrun_ends_a_process_with_the_reason_of_another() -> None:
    before = signal.getsignal(signal.SIGTERM)
    store = HashStore()
    store.set("fastbert/failure", json.dumps({"rank": 1, "reason": "its disk is full"}))
    world = World(0, 2, store=store)
    with (
        pytest.raises(PeerFailure, match=r"^process 1 of 2 has ended: its disk is full; repeat it$"),
        world.watched("repeat it"),
        ended_by_torchrun(world),
    ):
        os.kill(os.getpid(), signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt), world.watched(""), ended_by_torchrun(world):
        raise KeyboardInterrupt
    assert signal.getsignal(signal.SIGTERM) is before
    with ended_by_torchrun(World()):
        assert signal.getsignal(signal.SIGTERM) is before

"""`fastbert embed` on several processes: the file of one process, or none."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from embedding import random_texts, saved
from ranks import Ranks
from reranking_models import model_folder
from torch.distributed import HashStore

pytest.importorskip("tyro", reason="the command line needs tyro")

from fastbert import cli
from fastbert.distributed.shares import Share, ended_by_torchrun
from fastbert.distributed.world import PeerFailure, World

SPOILT = """
from fastbert.embeddings import embed
from fastbert.errors import UserError

def fail(*_):
    raise UserError("the vectors of process 1 are cursed")

embed.check_finite = fail
"""
KILLED = "import os; from fastbert.embeddings import embed; embed.check_finite = lambda *_: os._exit(9)"


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    running = Ranks(tmp_path_factory.mktemp("ranks"))
    yield running
    running.close()


def run(ranks: Ranks, words: list[str], folders: list[Path], before: str = "") -> tuple[list[int], list[list[str]]]:
    """Run a command in a process per folder; return the exit codes and the errors of each process. `before` is what
    process 1 runs first."""
    code = [
        f"import os; os.chdir({str(folder)!r})\n{before if rank == 1 else ''}" for rank, folder in enumerate(folders)
    ]
    ended = ranks.run([words] * len(folders), before=code)
    return ended.codes, [
        [line for line in output.splitlines() if line.startswith("fastbert: error")] for output in ended.outputs
    ]


def test_several_processes_write_the_file_of_one(
    tmp_path: Path, ranks: Ranks, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    for name, flags in commands.items():
        codes, errors = run(ranks, ["embed", *flags, *common, f"--out=all/{name}"], [tmp_path] * 3)
        assert codes == [0, 0, 0], errors
    monkeypatch.chdir(tmp_path)
    for name, flags in commands.items():
        assert cli.main(["embed", *flags, *common, f"--out=one/{name}"]) == 0
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "all" / name).read_bytes(), name
    assert sorted(path.name for path in (tmp_path / "all").iterdir()) == sorted(commands)
    codes, [[refused], *others] = run(
        ranks, ["embed", f"--model={dense}", "--text=-", *common, "--out=all/x.npy"], [tmp_path] * 3
    )
    assert codes == [2, 2, 2]
    assert refused.endswith("standard input cannot be shared by several processes; name a file")
    assert others == [[], []]
    folders = [tmp_path / f"rank-{rank}" for rank in range(3)]
    for rank, folder in enumerate(folders):  # a folder for each machine, one of which has another text
        folder.mkdir()
        (folder / "own.txt").write_text("one\ntwo\n" if rank == 1 else "one\n\ntwo\n")
    codes, [[differs], *others] = run(
        ranks, ["embed", f"--model={dense}", "--text=own.txt", *common, "--out=own.npy"], folders
    )
    assert codes == [2, 2, 2]
    assert "process 1 of 3 has a SHA-256 of --text=" in differs
    assert differs.endswith("give all processes the same files, and devices of one kind")
    assert others == [[], []]
    assert not list(tmp_path.glob("rank-*/own.npy"))


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        pytest.param(
            SPOILT,
            "process 1 of 2 has ended: the vectors of process 1 are cursed; nothing was written; repeat the",
            id="error",
        ),
        pytest.param(
            KILLED, "another process of the run has ended without a message", marks=pytest.mark.slow, id="kill"
        ),
    ],
)
def test_a_process_that_fails_ends_the_others(
    tmp_path: Path, ranks: Ranks, seed: int, fault: str, message: str
) -> None:
    (tmp_path / "texts.txt").write_text("".join(f"{text}\n" for text in random_texts(seed, 700, most=12)))
    (tmp_path / "out").mkdir()
    words = ["embed", f"--model={saved(tmp_path / 'model', seed)}", "--text=texts.txt", "--out=out/vectors.npy"]
    codes, errors = run(ranks, [*words, "--device=cpu", "--dtype=fp32", "--quiet"], [tmp_path] * 2, fault)
    assert codes == [2, 2 if fault == SPOILT else 9]
    assert message in errors[0][0]
    if fault == SPOILT:
        assert errors[1] == ["fastbert: error: the vectors of process 1 are cursed"]
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

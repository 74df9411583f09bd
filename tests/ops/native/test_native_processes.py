"""The CPU kernels in several processes: side by side on the same cores, and in children of fork."""

import subprocess
import sys
import time

FORWARDS = 200

PROGRAM = """
import hashlib, os, signal, sys, threading, time
import torch
from fastbert import BertConfig, BertModel, PackedBatch, use_backend

torch.set_num_threads(2)
torch.manual_seed(int(sys.argv[1]))
model = BertModel(BertConfig.preset("tiny", vocab_size=97)).bfloat16().eval()
ends = torch.tensor([0, 13, 14, 54, 184], dtype=torch.int32)
batch = PackedBatch(input_ids=torch.randint(0, 97, (184,)), cu_seqlens=ends, max_seqlen=130)

@torch.no_grad()
def forward():
    with use_backend("native"):
        return hashlib.sha256(model(batch).last_hidden_state.view(torch.int16).numpy().tobytes()).hexdigest()

expected = forward()
"""
# For each line, prints the hashes of what it computes.
REPEATED = """
signal.alarm(300)
print("ready", flush=True)
for _ in sys.stdin:
    print(*{forward() for _ in range(int(sys.argv[2]))}, flush=True)
"""
# The parent has led threads when it forks; a child that hangs is ended by its alarm.
FORKED = """
def child(kind):
    if kind == "grandchild" and (below := os.fork()):
        return os.waitstatus_to_exitcode(os.waitpid(below, 0)[1])
    signal.alarm(60)  # a child does not inherit it
    if kind == "loader":  # what torch does in the workers of a DataLoader
        torch.set_num_threads(1)
    if kind != "thread":
        return forward() != expected
    found = []
    thread = threading.Thread(target=lambda: found.append(forward()))
    thread.start()
    thread.join()
    return found != [expected]

for kind in sys.argv[2:]:
    process = os.fork()
    if process == 0:
        status = 2
        try:
            status = int(child(kind))
        finally:
            os._exit(status)
    status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    assert status == 0, f"{kind}: the child ended with {status}"
    assert forward() == expected, kind
"""


def start(*seeds: int) -> list[subprocess.Popen]:
    """Processes that are ready to compute."""
    command = [sys.executable, "-P", "-c", PROGRAM + REPEATED]
    processes = [
        subprocess.Popen([*command, str(seed), str(FORWARDS)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for seed in seeds
    ]
    assert [process.stdout.readline() for process in processes] == ["ready\n"] * len(seeds)
    return processes


def results(processes: list[subprocess.Popen]) -> tuple[list[str], float]:
    """Let them compute at once; the hash that each printed, and the seconds until the last was done."""
    began = time.monotonic()
    for process in processes:
        process.stdin.write("\n")
        process.stdin.flush()
    printed = [process.stdout.readline().split() for process in processes]
    assert all(len(words) == 1 for words in printed), "one process computed different bits in its forwards, or ended"
    return [words[0] for words in printed], time.monotonic() - began


def test_two_processes_share_the_cores(seed: int) -> None:
    processes = start(seed, seed + 1)
    one, two = results(processes[:1]), results(processes[1:])
    hashes, seconds = results(processes)
    for process in processes:
        process.communicate()
        assert process.returncode == 0
    assert hashes == one[0] + two[0]
    # A thread that waits for one which has no core spins a while: slower than in turn (three times, where four threads
    # have two cores), but not without bound.
    assert seconds < 5 * (one[1] + two[1]) + 20


def test_children_of_fork_compute(seed: int) -> None:
    kinds = ["plain", "loader", "thread", "grandchild"]
    command = [sys.executable, "-P", "-W", "ignore", "-c", PROGRAM + FORKED, str(seed), *kinds]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr

"""Watchdogs that are pure functions of numbers: loss spikes, waiting for data, disk space, memory."""

import json
import math
import random
import time
from pathlib import Path

import pytest
import torch

from fastbert.errors import CheckpointError
from fastbert.io.sizes import size_text
from fastbert.training.config import PretrainConfig
from fastbert.training.monitors import Monitors
from fastbert.training.watchdogs.data_stalls import DataWatch, stall_message
from fastbert.training.watchdogs.disk_space import MARGIN, DiskSpace, checkpoint_bytes, disk_space, free_bytes
from fastbert.training.watchdogs.host_memory import HostMemory, MemoryLimit, MemoryWatch, advice, read_host_memory
from fastbert.training.watchdogs.spikes import SpikeDetector


def noise(count: int, mean: float = 5.0, seed: int = 0) -> list[float]:
    draw = random.Random(seed)
    return [mean + draw.gauss(0, 0.08) for _ in range(count)]


def test_spikes_are_told_from_noise_falls_and_divergence() -> None:
    detector = SpikeDetector()
    kinds = [detector.judge(loss).kind for loss in noise(2000)]
    assert set(kinds) == {"normal"}, "no false alarm in 2,000 steps of noise"
    spike = detector.judge(7.0)
    assert (spike.kind, spike.is_spike) == ("spike", True)
    assert spike.describe(123).startswith("step 123: the loss 7.000 is ")
    assert detector.judge(5.0).kind == "normal", "the spike is not part of the window"
    assert detector.judge(2.0).kind == "normal", "a loss that falls is none"
    assert [detector.judge(bad).kind for bad in (math.nan, math.inf)] == ["non-finite"] * 2
    kinds = [detector.judge(8.0).kind for _ in range(20)]
    assert kinds == ["spike"] * 19 + ["diverged"]
    assert [detector.judge(loss).kind for loss in noise(50, 8.0)] == ["normal"] * 50, "judged by the new losses"


def test_a_resumed_run_judges_as_one_that_was_not_stopped(tmp_path: Path) -> None:
    """In a later phase too, whose window is not forgotten."""

    def monitors(messages: list[str]) -> Monitors:
        return Monitors(PretrainConfig(), tmp_path, torch.device("cpu"), 1000, messages.append)

    before, after = list[str](), list[str]()
    first, second = monitors(before), monitors(after)
    for step, loss in enumerate(noise(100), start=1):
        first.judge(step, loss, phase=1)
    second.restore(json.loads(json.dumps(first.to_state())))
    for each in (first, second):
        each.judge(101, 9.0, phase=1)
    assert len(before) == 1
    assert after == before
    first.judge(102, 9.0, phase=2)
    assert len(before) == 1


def test_a_falling_curve_and_a_new_phase_are_no_spikes() -> None:
    detector = SpikeDetector()
    draw = random.Random(1)
    curve = [4 + 5 * math.exp(-step / 300) + draw.gauss(0, 0.1) for step in range(3000)]
    assert not [step for step, loss in enumerate(curve) if detector.judge(loss).is_spike]
    detector.reset()  # longer sequences: other losses
    assert not [loss for loss in noise(100, 6.5) if detector.judge(loss).is_spike]
    equal = SpikeDetector()
    assert not [i for i in range(100) if equal.judge(5.0).is_spike]
    assert equal.judge(5.2).kind == "normal", "less than 0.3 nats"
    assert equal.judge(6.0).kind == "spike"


def test_a_resumed_detector_decides_as_an_uninterrupted_one() -> None:
    losses = [*noise(100), 7.0, 7.1, *noise(40, seed=2)]
    whole = SpikeDetector()
    decisions = [whole.judge(loss) for loss in losses]
    first, second = SpikeDetector(), SpikeDetector()
    before = [first.judge(loss) for loss in losses[:101]]
    second.restore(json.loads(json.dumps(first.to_state())))
    assert before + [second.judge(loss) for loss in losses[101:]] == decisions
    for state in ({}, {"losses": ["x"], "in_a_row": 0}, {"losses": 3, "in_a_row": 0}, {"losses": [], "in_a_row": None}):
        with pytest.raises(CheckpointError, match="spike detector"):
            second.restore(state)


def test_waiting_for_data_is_reported_once_with_its_share() -> None:
    said: list[str] = []
    seconds = iter(range(0, 1000, 1))
    watch = DataWatch(said.append, ["--workers 4"], clock=lambda: float(next(seconds)))
    for step in range(1, 60):
        with watch.waiting(step):  # one second by this clock
            pass
        watch.count(1.0)
    assert len(said) == 1
    assert said[0].startswith("data is too slow: 50% of the last 30 s were spent waiting for batches (15 s)")
    assert said[0].endswith("--workers 4 may help")
    assert stall_message(1.0, 99.0) is None
    assert stall_message(0.0, 0.0) is None


def test_a_batch_that_does_not_arrive_is_reported_while_the_run_waits() -> None:
    said: list[str] = []
    watch = DataWatch(said.append, silence=0.02)
    with watch.waiting(7):
        until = time.monotonic() + 5
        while not said and time.monotonic() < until:
            time.sleep(0.005)
    assert said == [
        "step 7 has waited 0 s for its batches: the disk, the network or a worker that reads the data is stalled"
    ]
    with watch.waiting(8):
        time.sleep(0.05)
    assert len(said) == 1
    quick = DataWatch(said.append, silence=60.0)
    with pytest.raises(RuntimeError), quick.waiting(9):
        raise RuntimeError
    assert len(said) == 1


def test_disk_space_counts_the_checkpoints_that_fit(tmp_path: Path) -> None:
    space = DiskSpace(free=10_000 + MARGIN, size=3_000, keep=2, trained_model=1_000)
    assert (space.fit, space.next_fits, space.needed) == (3, True, 9_000 + MARGIN)
    assert space.message_at_start(tmp_path) is None
    less = DiskSpace(free=8_000 + MARGIN, size=3_000, keep=2, trained_model=1_000)
    message = less.message_at_start(Path("runs/mine"))
    assert message is not None
    assert message.startswith("runs/mine: 67.1 MB are free, and the run needs 67.1 MB: 2 checkpoints of 3.0 kB")
    assert "room for 2" in message
    assert "--keep-checkpoints (now 2)" in message
    resumed = DiskSpace(free=3_000 + MARGIN, size=3_000, keep=2, present=2, trained_model=1_000)
    assert resumed.message_at_start(tmp_path) is None, "the two that are there stay, and one more fits"
    full = DiskSpace(free=MARGIN // 2, size=3_000, keep=2, present=2)
    assert (full.fit, full.next_fits) == (0, False)
    assert "does not fit" in str(full.message_before_save(tmp_path))
    assert space.message_before_save(tmp_path) is None


def test_disk_space_is_measured_where_the_run_will_write(tmp_path: Path) -> None:
    missing = tmp_path / "not" / "there"
    assert free_bytes(missing) > 0
    assert checkpoint_bytes(1000) == 12_000
    assert checkpoint_bytes(1000, each=18) == 18_000, "with a moving average and masters"
    last = tmp_path / "step-00000001"
    last.mkdir()
    assert checkpoint_bytes(1000, last) == 12_000, "an empty folder tells nothing"
    (last / "model.safetensors").write_bytes(b"x" * 500)
    space = disk_space(missing, parameters=1000, keep=2, present=5, last=last)
    assert space is not None
    assert (space.size, space.present, space.trained_model) == (500, 2, 4_000)
    assert checkpoint_bytes(1000, tmp_path / "gone") == 12_000


def system(root: Path, *, cgroup: str = "0::/job\n", current: int = 5 << 30, limit: str = str(6 << 30)) -> Path:
    """A file system as Linux shows it to a process in a container."""
    files = {
        "proc/self/status": "Name:\tpython\nVmSize:\t 9000000 kB\nVmRSS:\t 4000000 kB\nThreads:\t2\n",
        "proc/self/cgroup": cgroup,
        "proc/meminfo": "MemTotal:       64000000 kB\nMemAvailable:   32000000 kB\nHugePages_Total: 0\n",
        "sys/fs/cgroup/job/memory.max": limit,
        "sys/fs/cgroup/job/memory.current": str(current),
        "sys/fs/cgroup/job/memory.stat": f"anon {4 << 30}\ninactive_file {1 << 29}\nactive_file {1 << 29}\n",
        "sys/fs/cgroup/memory.max": "max\n",
    }
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_memory_limits_are_read_from_the_system(tmp_path: Path) -> None:
    memory = read_host_memory(system(tmp_path / "v2"))
    assert memory is not None
    assert memory.resident == 4_000_000 * 1024
    by_name = {limit.name: limit for limit in memory.limits}
    assert by_name["the container"] == MemoryLimit("the container", 6 << 30, 4 << 30), "caches of files do not count"
    assert by_name["this machine"].free == 32_000_000 * 1024
    assert memory.tightest == by_name["the container"]
    v1 = system(tmp_path / "v1", cgroup="5:cpu,memory:/job\n3:pids:/x\n")
    for name, value in (("limit_in_bytes", 3 << 30), ("usage_in_bytes", 1 << 30)):
        path = v1 / "sys/fs/cgroup/memory" / f"memory.{name}"  # the path of the host is not there
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"{value}\n")
    memory = read_host_memory(v1)
    assert memory is not None
    assert memory.tightest == MemoryLimit("the container", 3 << 30, 1 << 30)
    unlimited = read_host_memory(system(tmp_path / "max", limit="max\n", cgroup="0::/job\nodd\n::\n"))
    assert unlimited is not None
    assert [limit.name for limit in unlimited.limits if limit.name != "ulimit -v"] == ["this machine"]
    assert read_host_memory(tmp_path / "nothing") is None, "no /proc: macOS"
    broken = system(tmp_path / "odd", limit="many")
    (broken / "proc/self/status").write_bytes(b"VmRSS: \xff kB\nVmRSS\n:::\n")
    assert read_host_memory(broken) is None


def test_memory_that_is_nearly_full_is_told_once_with_numbers_and_cures() -> None:
    memory = HostMemory(
        5 << 30, (MemoryLimit("this machine", 64 << 30, 20 << 30), MemoryLimit("the container", 6 << 30, 5 << 30))
    )
    assert advice(memory, []) is None
    message = advice(memory, ["--micro-batch 16 (now 32)", "--checkpoint-activations"], more=900 << 20)
    assert message == (
        "memory is nearly full: 5.4 GB of 6.4 GB of the container are in use (5.4 GB by this process), 944 MB more will"
        " be needed. The system ends a process that exceeds the limit: use --micro-batch 16 (now 32) or"
        " --checkpoint-activations"
    )
    said: list[str] = []
    watch = MemoryWatch(said.append, ["--micro-batch 1"], read=lambda: memory)
    assert watch.check() is None
    assert watch.check(more=900 << 20)
    assert watch.check(more=900 << 20) is None
    assert len(said) == 1
    assert MemoryWatch(said.append, read=lambda: None).check(more=1 << 50) is None
    assert advice(HostMemory(1, ()), []) is None


def test_sizes_have_up_to_three_digits() -> None:
    sizes = [0, 999, 1000, 99_940, 99_960, 999_400, 999_600, 1_500_000_000, 128e9, 5e18]
    texts = ["0 B", "999 B", "1.0 kB", "99.9 kB", "100 kB", "999 kB", "1.0 MB", "1.5 GB", "128 GB", "5000 PB"]
    assert [size_text(size) for size in sizes] == texts

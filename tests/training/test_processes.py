"""Runs of several processes, as torchrun starts them: the same steps for every number of processes."""

import os
import subprocess
import sys

from fastbert.training.config import PretrainConfig

FLAGS = {
    "model": "tiny", "steps": 6, "batch_size": 12, "micro_batch": 2, "max_length": 32, "dtype": "fp32", "log_every": 1,
    "eval_every": 3, "eval_samples": 8, "checkpoint_every": 2, "mask_prob": 0.2, "seed": 3,
}  # fmt: skip


def torchrun(processes: int, config: PretrainConfig, *flags: str, **options) -> subprocess.Popen:
    words = [f"--{name.replace('_', '-')}={value}" for name, value in FLAGS.items()]
    command = [
        sys.executable, "-m", "torch.distributed.run", "--no-python", f"--nproc-per-node={processes}",
        "--master-port=0", sys.executable, "-m", "fastbert", "pretrain", *words, f"--data={config.data}",
        f"--out={config.out}", *flags,
    ]  # fmt: skip
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment, cwd=config.out.parent,
        **options,
    )  # fmt: skip

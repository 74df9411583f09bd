"""Single-bit damage anywhere in a run: its configuration, vocabulary, checkpoints and finished model."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from fastbert.errors import UserError
from fastbert.models import BertForPreTraining
from fastbert.tokenizers import WordPieceTokenizer
from fastbert.training import checkpoint
from fastbert.training.config import PretrainConfig
from fastbert.training.pretrain import pretrain
from fastbert.training.run_folder import read_run

Content = dict[str, Any]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished pre-training run of four steps with two checkpoints."""
    folder = tmp_path_factory.mktemp("damaged")
    draw = random.Random(5)
    words = ["".join(draw.choices("abcdefghij", k=4)) for _ in range(30)]
    documents = ["\n".join(" ".join(draw.choices(words, k=9)) + "." for _ in range(6)) for _ in range(20)]
    (folder / "corpus.txt").write_text("\n\n".join(documents) + "\n")
    shape = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    (folder / "model.json").write_text(json.dumps({**shape, "vocab_size": 60, "max_position_embeddings": 32}))
    pretrain(
        PretrainConfig(
            corpus=(folder / "corpus.txt",), text_format="lines", model=str(folder / "model.json"), vocab_size=60,
            out=folder / "run", steps=4, batch_size=8, max_length=32, dtype="fp32", device="cpu", eval_samples=8,
            checkpoint_every=2,
        )
    )  # fmt: skip
    return folder / "run"


def content(tensors: dict[str, Tensor]) -> dict[str, bytes]:
    return {name: tensor.detach().contiguous().numpy().tobytes() for name, tensor in tensors.items()}


def read_configuration(run: Path) -> Content:
    return read_run(run).to_dict()


def read_vocabulary(folder: Path) -> Content:
    tokenizer = WordPieceTokenizer.from_pretrained(folder)
    return {"fingerprint": tokenizer.fingerprint, "ids": tokenizer(["abcd efgh A?"])["input_ids"]}


def read_checkpoints(run: Path) -> Content:
    read: Content = {}
    for folder in checkpoint.find(run / "checkpoints"):
        loaded = checkpoint.load(folder)
        read[folder.name] = (content(loaded.model), content(loaded.optimizer), loaded.state)
    return read


def read_model(run: Path) -> Content:
    model = BertForPreTraining.from_pretrained(run / "model")
    return {"weights": content(model.state_dict()), "config": model.config.to_dict(), **read_vocabulary(run / "model")}


CARD = ("README.md", "loss.png")
PARTS: dict[str, tuple[Callable[[Path], Content], Callable[[Path], list[Path]]]] = {
    "configuration": (read_configuration, lambda run: [run / "config.json"]),
    "vocabulary": (lambda run: read_vocabulary(run / "tokenizer"), lambda run: sorted((run / "tokenizer").iterdir())),
    "checkpoints": (read_checkpoints, lambda run: sorted((run / "checkpoints").glob("*/*"))),
    # The model card and its picture are for people.
    "model": (read_model, lambda run: sorted({*(run / "model").iterdir()} - {run / "model" / name for name in CARD})),
}


def test_no_flipped_bit_loads_as_something_else(run: Path, seed: int) -> None:
    flips, draw, outcomes = 1000, random.Random(seed), Counter[str]()
    whole = {part: read(run) for part, (read, _) in PARTS.items()}
    for number in range(flips):
        part = list(PARTS)[number % len(PARTS)]
        read, files = PARTS[part]
        path = draw.choice(files(run))
        data = path.read_bytes()
        bit = draw.randrange(8 * len(data))
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        try:
            result, message = read(run), None
        except UserError as error:
            result, message = whole[part], str(error)
        finally:
            path.write_bytes(data)
        assert result == whole[part], f"bit {bit} of {path.relative_to(run)} changed what was read, in silence"
        assert message is None or str(run) in message
        outcomes["without effect" if message is None else "refused"] += 1
    assert outcomes["refused"] > 0.95 * flips, outcomes  # a space for a newline in JSON has no effect

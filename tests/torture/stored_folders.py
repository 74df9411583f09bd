"""Folders of every kind that fastbert writes and reads, each twice with other numbers, and readers of all they hold."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from family_folders import save_family
from finetune_runs import config as finetune_config
from pretrain_runs import stop_at
from toy_tasks import VOCABULARY, sentiment, toy_folder

from fastbert import BertConfig, BertModel, WordPieceTokenizer
from fastbert.checkpoints import manifest
from fastbert.checkpoints.delta.files import read_delta, restore_delta, write_delta
from fastbert.checkpoints.formats.safetensors import read_safetensors
from fastbert.checkpoints.tokenizer_files import accept_folder
from fastbert.data.prepare import prepare
from fastbert.data.sentence_sample import SentenceSample
from fastbert.data.shards import TokenShards
from fastbert.embeddings.folder import load_embedder
from fastbert.embeddings.settings import Dense, EmbedSettings
from fastbert.finetuning import results
from fastbert.finetuning.adapters import add_lora, check_adapter, save_adapter
from fastbert.finetuning.config import FinetuneConfig
from fastbert.finetuning.run import finetune
from fastbert.finetuning.trial_state import State
from fastbert.models import BertForPreTraining, registry
from fastbert.models.registry import load
from fastbert.search.index import Index
from fastbert.tasks.finetuned_model import load_task, save_task
from fastbert.tasks.registry import make_task
from fastbert.tasks.settings import TaskSettings
from fastbert.tokenizers.loading import load_tokenizer
from fastbert.training import checkpoint
from fastbert.training.config import PretrainConfig
from fastbert.training.pretrain import pretrain
from fastbert.training.run_files import check_configuration, read_record
from fastbert.training.stopping import Stopped

Reader = Callable[[Path], Any]
FOR_PEOPLE = {"README.md", "loss.png", "metrics.jsonl", "latest"}
"""Model cards, pictures and logs; and `latest`, on which no reader depends."""
SMALL = BertConfig(
    vocab_size=len(VOCABULARY), hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
    max_position_embeddings=32,
)  # fmt: skip
CHECKPOINTS = {"step-00000002": "older", "step-00000004": "newer"}


@dataclass(frozen=True)
class Stored:
    """A folder, its twin with other numbers, and its readers by name: together they return all that is in `files`."""

    name: str
    folder: Path
    twin: Path
    readers: dict[str, Reader]
    part: str = "."

    @property
    def files(self) -> list[str]:
        """Return the files that are damaged, relative to the folder."""
        inside = sorted(path for path in (self.folder / self.part).rglob("*") if path.is_file())
        inside = inside or [self.folder / self.part]
        return [str(path.relative_to(self.folder)) for path in inside if path.name not in FOR_PEOPLE]


def content(tensors: dict[str, Any]) -> dict[str, bytes]:
    return {
        name: tensor.detach().contiguous().flatten().view(torch.uint8).numpy().tobytes()
        for name, tensor in tensors.items()
    }


def vocabulary(folder: Path) -> Any:
    tokenizer = load_tokenizer(folder)
    return tokenizer.fingerprint, tokenizer(["a house was bright , they ?"])["input_ids"], tokenizer.model_max_length


def model(folder: Path) -> Any:
    loaded = load(folder)
    return type(loaded).__name__, content(loaded.state_dict()), loaded.config.to_dict()


# Runs


def pretraining_run(folder: Path, seed: int) -> Path:
    """Pre-train four steps with two checkpoints."""
    draw = random.Random(seed)
    words = ["".join(draw.choices("abcdefghij", k=4)) for _ in range(30)]
    documents = ["\n".join(" ".join(draw.choices(words, k=9)) + "." for _ in range(6)) for _ in range(20)]
    folder.mkdir(parents=True)
    (folder / "corpus.txt").write_text("\n\n".join(documents) + "\n")
    shape = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    (folder / "model.json").write_text(json.dumps({**shape, "vocab_size": 60, "max_position_embeddings": 32}))
    pretrain(
        PretrainConfig(
            corpus=(folder / "corpus.txt",), text_format="lines", model=str(folder / "model.json"), vocab_size=60,
            out=folder / "run", steps=4, batch_size=8, max_length=32, dtype="fp32", device="cpu", eval_samples=8,
            checkpoint_every=2, seed=seed,
        )
    )  # fmt: skip
    return folder / "run"


def pretraining_configuration(run: Path) -> Any:
    saved = read_record(run, "run", PretrainConfig.CHANGEABLE)
    check_configuration(run, saved or {}, *checkpoint.last_state(run / "checkpoints"), PretrainConfig.CHANGEABLE)
    return saved


def step(name: str) -> Reader:
    """Read one checkpoint."""

    def read(run: Path) -> Any:
        loaded = checkpoint.load(run / "checkpoints" / name)
        return content(loaded.model), content(loaded.optimizer), loaded.state

    return read


def newest(run: Path) -> Any:
    """Read the checkpoint that a resumed run would go on from."""
    loaded = checkpoint.load_last(run / "checkpoints")
    return loaded and (content(loaded.model), content(loaded.optimizer), loaded.state)


def pretrained_model(run: Path) -> Any:
    loaded = BertForPreTraining.from_pretrained(run / "model")
    return content(loaded.state_dict()), loaded.config.to_dict(), vocabulary(run / "model")


def finetuning_run(folder: Path, seed: int) -> Path:
    """Fine-tune with two seeds, and stop in the second: a result, a model, and checkpoints with the best so far."""
    toy_folder(folder / "model", seed, hidden_size=8, intermediate_size=16, num_hidden_layers=1)
    sentiment(folder / "train.tsv", 48, seed)
    sentiment(folder / "dev.tsv", 16, seed + 1)
    trials = []
    reporter = stop_at(5)
    on_step = reporter.on_step
    reporter.on_trial = lambda number, total, name: trials.append(number)  # type: ignore[method-assign]
    reporter.on_step = lambda record, progress: on_step(record, progress) if len(trials) > 1 else None  # type: ignore[method-assign]
    flags: dict[str, Any] = {"seeds": 2, "epochs": (2.0,), "lr": (1e-3 * (1 + seed),), "max_length": 16}
    with pytest.raises(Stopped):
        finetune(finetune_config(folder, folder / "run", **flags), reporter)
    return folder / "run"


def finetuning_configuration(run: Path) -> Any:
    saved = read_record(run, "finetune", FinetuneConfig.CHANGEABLE)
    check_configuration(run, saved or {}, *checkpoint.last_state(run / "checkpoints"), FinetuneConfig.CHANGEABLE)
    return saved


def finetuning_results(run: Path) -> Any:
    return results.stored(run), results.read(run)


def finetuning_checkpoint(run: Path) -> Any:
    loaded = checkpoint.load_newest(run / "checkpoints", State.reader(run / "checkpoints"))
    return loaded and (content(loaded[0].model), content(loaded[0].optimizer), loaded[0].state)


def finetuned_model(run: Path) -> Any:
    task = load_task(run / "model")
    return model(run / "model"), vocabulary(run / "model"), task.name, task.settings, task.labels


# Models


def embedder(folder: Path, seed: int) -> Path:
    """Save a sentence-transformers folder with every kind of module, and a task beside them."""
    encoder = BertModel(SMALL)
    encoder.init_weights(seed=seed)
    generator = torch.Generator().manual_seed(seed)
    dense = Dense(torch.randn(4, 8, generator=generator), torch.randn(4, generator=generator), "Tanh")
    encoder.embed_settings = EmbedSettings(dense=(dense,), normalize=True, prompts={"query": f"q{seed}: "})
    encoder.save_pretrained(folder)
    WordPieceTokenizer(list(VOCABULARY)).save_pretrained(folder)
    save_task(make_task("classification", TaskSettings(max_length=16 + seed), ["a", "b"]), folder)
    return folder


def embedded(folder: Path) -> Any:
    encoder, tokenizer, settings = load_embedder(folder)
    task = load_task(folder)
    dense = [
        (layer.weight.tolist(), layer.bias.tolist() if layer.bias is not None else None) for layer in settings.dense
    ]
    return (
        content(encoder.state_dict()), encoder.config.to_dict(), tokenizer.fingerprint, settings.pooling,
        settings.normalize, settings.prompts, settings.max_length, dense, task.settings, task.labels,
    )  # fmt: skip


def sharded(folder: Path, seed: int) -> Path:
    encoder = BertModel(SMALL)
    encoder.init_weights(seed=seed)
    encoder.save_pretrained(folder, max_shard_size=2000)
    WordPieceTokenizer(list(VOCABULARY), do_lower_case=not seed).save_pretrained(folder)
    return folder


def family(name: str) -> Callable[[Path, int], Path]:
    """Save a model as transformers does, and accept its files."""

    def write(folder: Path, seed: int) -> Path:
        save_family(name, folder, seed, head="Model")
        if seed:  # another tokenizer
            path = folder / "tokenizer_config.json"
            path.write_text(json.dumps({**json.loads(path.read_text()), "model_max_length": 32}))
        accept_folder(folder)
        return folder

    return write


def sentencepiece(folder: Path, seed: int) -> Path:
    """Write a tokenizer as a model of sentencepiece alone."""
    messages = pytest.importorskip("sentencepiece.sentencepiece_model_pb2", exc_type=ImportError)
    proto = messages.ModelProto()
    for index, piece in enumerate(("<unk>", "<s>", "</s>", "\u2581", *"abdeghilmnorstuwy", "th", "ou", "an")):
        proto.pieces.add(piece=piece, score=-index - seed / 2, type=2 if index == 0 else 1)
    proto.trainer_spec.model_type, proto.normalizer_spec.name = 1, "identity"
    folder.mkdir(parents=True)
    (folder / "spiece.model").write_bytes(proto.SerializeToString())
    accept_folder(folder)
    return folder


def onnx_folder(folder: Path, seed: int) -> Path:
    """Write a folder of an export; the file of the graph is not read by fastbert, but verified."""
    toy_folder(folder, seed, hidden_size=8, intermediate_size=16, num_hidden_layers=1)
    (folder / "model.safetensors").unlink()
    (folder / "model.onnx").write_bytes(random.Random(seed).randbytes(20_000))
    accept_folder(folder)
    return folder


def exported(folder: Path) -> Any:
    manifest.verify_files(folder, manifest.ONNX, manifest.MODEL, manifest.TOKENIZER)
    configuration = registry.read_config(folder).to_dict()
    return (folder / "model.onnx").read_bytes(), configuration, vocabulary(folder)


# Differences and adapters


def deltas(folder: Path, seed: int) -> Path:
    """Write a base and a file of differences from it; the file is what is damaged."""
    toy_folder(folder / "base", 0, hidden_size=8, intermediate_size=16, num_hidden_layers=1)
    toy_folder(folder / "tuned", 0, hidden_size=8, intermediate_size=16, num_hidden_layers=1)
    tuned = BertModel.from_pretrained(folder / "tuned", mapped=False)
    with torch.no_grad():
        for parameter in tuned.parameters():
            parameter.add_(1e-3 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(seed)))
    tuned.save_pretrained(folder / "tuned")
    config = json.loads((folder / "tuned/config.json").read_text()) | {"hidden_dropout_prob": 0.25}
    (folder / "tuned/config.json").write_text(json.dumps(config))
    accept_folder(folder / "tuned")
    write_delta(folder / "tuned", folder / "base", folder / "task.delta", bits=4 if seed else None)
    return folder


def restored(folder: Path) -> Any:
    out = folder.with_name(f"{folder.name}-restored")
    try:
        restore_delta(folder / "task.delta", folder / "base", out)
        files = {path.name: path.read_bytes() for path in out.iterdir() if path.suffix != ".safetensors"}
        return content(read_delta(folder / "task.delta", folder / "base")), files
    finally:
        shutil.rmtree(out, ignore_errors=True)


def adapter(folder: Path, seed: int) -> Path:
    pytest.importorskip("peft", reason="needs peft")
    base = BertModel(SMALL)
    base.init_weights(seed=0)
    adapted = add_lora(base, rank=2 + seed)
    save_adapter(adapted, folder)
    return folder


def adapters(folder: Path) -> Any:
    check_adapter(folder)
    weights = {name: stored.read() for name, stored in read_safetensors(folder / "adapter_model.safetensors").items()}
    adapter_config = json.loads((folder / "adapter_config.json").read_text())
    return content(weights), adapter_config, registry.read_config(folder).to_dict()


# Data


def shards(folder: Path, seed: int) -> Path:
    draw = random.Random(seed)
    documents = [[" ".join(draw.choices(VOCABULARY[5:], k=9)) for _ in range(5)] for _ in range(300)]
    prepare(documents, WordPieceTokenizer(list(VOCABULARY)), folder, shard_tokens=8000, dedup="lines")
    return folder


def tokens(folder: Path) -> Any:
    opened = TokenShards.open(folder)
    arrays = [
        array.tobytes()
        for shard in opened.shards
        for array in (shard.tokens, shard.sentence_offsets, shard.document_offsets)
    ]
    sample = SentenceSample.read(folder)
    assert sample is not None
    sampled = sample.level, sample.hashes.tobytes(), sample.sentences.tobytes()
    named = opened.vocabulary, opened.special_ids, opened.fingerprint, opened.unigrams.tobytes()
    return arrays, named, sampled, vocabulary(folder)


def index(folder: Path, seed: int) -> Path:
    vectors = torch.randn(400, 16, generator=torch.Generator().manual_seed(seed))
    texts = [(f"id{number}", f"text {number * (seed + 1)}") for number in range(400)]
    Index.from_vectors(folder, vectors, texts, store="int8")
    return folder


def hits(folder: Path) -> Any:
    with Index.open(folder) as opened:
        arrays = [array.tobytes() for array in (opened._rows, opened._scales, opened._copy) if array is not None]
        settings = opened.settings
        texts = [opened._texts[number] for number in range(len(opened))]
    known = {key: value for key, value in vars(settings).items() if key != "files"}
    return arrays, known, texts


def write_all(root: Path) -> list[Stored]:
    """Write all folders and their twins."""
    written: list[Stored] = []

    def add(name: str, write: Callable[[Path, int], Path], parts: dict[str, dict[str, Reader]]) -> None:
        folder, twin = write(root / name, 0), write(root / f"{name}-twin", 1)
        for part, readers in parts.items():
            label = name if part == "." else f"{name}-{part}"
            written.append(Stored(label, folder, twin, readers, part))

    add(
        "pretraining", pretraining_run,
        {
            "config.json": {"configuration": pretraining_configuration},
            "tokenizer": {"vocabulary": lambda run: vocabulary(run / "tokenizer")},
            "data": {"tokens": lambda run: tokens(run / "data")},
            "checkpoints": {**{name: step(name) for name in CHECKPOINTS}, "newest": newest},
            "model": {"model": pretrained_model},
        },
    )  # fmt: skip
    add(
        "finetuning", finetuning_run,
        {
            "config.json": {"configuration": finetuning_configuration},
            "results.json": {"results": finetuning_results},
            "tokenizer": {"vocabulary": lambda run: vocabulary(run / "tokenizer")},
            "checkpoints": {"checkpoint": finetuning_checkpoint},
            "model": {"model": finetuned_model},
        },
    )  # fmt: skip
    both: dict[str, Reader] = {"model": model, "vocabulary": vocabulary}
    add("embedder", embedder, {".": {"embedder": embedded}})
    add("sharded", sharded, {".": both})
    add("byte-level-bpe", family("roberta"), {".": both})
    add("unigram", family("xlm-roberta"), {".": both})
    add("sentencepiece", sentencepiece, {".": {"vocabulary": vocabulary}})
    add("onnx", onnx_folder, {".": {"exported": exported}})
    add("delta", deltas, {"task.delta": {"restored": restored}})
    add("adapter", adapter, {".": {"adapters": adapters}})
    add("token-shards", shards, {".": {"tokens": tokens}})
    add("search-index", index, {".": {"hits": hits}})
    return written

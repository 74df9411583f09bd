"""Vocabularies that almost fit: two ids swapped, another order of merges, other scores, casing or added tokens."""

from __future__ import annotations

import json
import random
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from family_folders import save_tokenizer
from torture.campaign import Campaign
from torture.scorecard import scored
from toy_tasks import VOCABULARY

from fastbert import BertModel
from fastbert.checkpoints.convert import Options, convert
from fastbert.checkpoints.manifest import check_fingerprint
from fastbert.checkpoints.tokenizer_files import accept_folder, copy_tokenizer
from fastbert.data.mixing import check_tokenizers
from fastbert.data.prepare import prepare
from fastbert.data.shards import TokenShards
from fastbert.errors import UserError
from fastbert.tokenizers.loading import load_tokenizer
from fastbert.tokenizers.tokenizer import Tokenizer
from fastbert.training.run_files import keep_tokenizer

Change = Callable[[Path, random.Random], str]


def edit(folder: Path, name: str, change: Callable[[Any], Any]) -> None:
    path = folder / name
    content = json.loads(path.read_text())
    changed = change(content)
    path.write_text(json.dumps(content if changed is None else changed))


def swapped(items: list[Any], draw: random.Random) -> str:
    first, second = draw.sample(range(len(items)), 2)
    items[first], items[second] = items[second], items[first]
    return f"{first} and {second}"


def wordpiece_tokens(folder: Path, draw: random.Random) -> str:
    """Swap two lines of vocab.txt."""
    lines = (folder / "vocab.txt").read_text().splitlines()
    what = swapped(lines, draw)
    (folder / "vocab.txt").write_text("\n".join(lines) + "\n")
    return f"lines {what} swapped"


def wordpiece_order(folder: Path, draw: random.Random) -> str:
    """Another vocabulary of the same size and the same special tokens."""
    lines = (folder / "vocab.txt").read_text().splitlines()
    rest = lines[5:]
    while rest == lines[5:]:
        draw.shuffle(rest)
    (folder / "vocab.txt").write_text("\n".join(lines[:5] + rest) + "\n")
    return "another order"


def wordpiece_piece(folder: Path, draw: random.Random) -> str:
    """One other piece."""
    lines = (folder / "vocab.txt").read_text().splitlines()
    at = draw.randrange(5, len(lines))
    lines[at] += draw.choice("xyzéß")
    (folder / "vocab.txt").write_text("\n".join(lines) + "\n")
    return f"another piece {at}"


def option(name: str, *values: Any) -> Change:
    def change(folder: Path, draw: random.Random) -> str:
        value = draw.choice(values)
        edit(folder, "tokenizer_config.json", lambda config: config.update({name: value}))
        return f"{name}={value}"

    return change


def added(folder: Path, draw: random.Random) -> str:
    """Declare a piece of the vocabulary an added token, which is matched before words are split."""
    tokenizer = load_tokenizer(folder, verify=False)
    index = draw.randrange(5, tokenizer.vocab_size)
    token = tokenizer.convert_ids_to_tokens([index])[0]
    flags = {name: draw.random() < 0.5 for name in ("lstrip", "rstrip", "single_word", "normalized", "special")}
    entry = {"content": token, **flags}
    if (folder / "tokenizer.json").exists():
        edit(folder, "tokenizer.json", lambda content: _insert(content["added_tokens"], {"id": index, **entry}))
    else:
        edit(
            folder, "tokenizer_config.json",
            lambda config: config.setdefault("added_tokens_decoder", {}).update({str(index): entry}),
        )  # fmt: skip
    return f"{token!r} added"


def _insert(tokens: list[Any], entry: Any) -> None:
    tokens[:] = sorted([token for token in tokens if token["id"] != entry["id"]] + [entry], key=lambda one: one["id"])


def model_part(change: Callable[[Any, random.Random], str]) -> Change:
    """Change tokenizer.json."""

    def apply(folder: Path, draw: random.Random) -> str:
        content = json.loads((folder / "tokenizer.json").read_text())
        what = change(content, draw)
        (folder / "tokenizer.json").write_text(json.dumps(content, ensure_ascii=False))
        return what

    return apply


def bpe_ids(content: Any, draw: random.Random) -> str:
    vocab = content["model"]["vocab"]
    tokens = [token for token in vocab if not token.startswith("<")]
    first, second = draw.sample(tokens, 2)
    vocab[first], vocab[second] = vocab[second], vocab[first]
    return f"ids of {first!r} and {second!r} swapped"


def bpe_merges(content: Any, draw: random.Random) -> str:
    return f"merges {swapped(content['model']['merges'], draw)} swapped"


def bpe_merge_missing(content: Any, draw: random.Random) -> str:
    at = draw.randrange(len(content["model"]["merges"]))
    del content["model"]["merges"][at]
    return f"merge {at} missing"


def bpe_space(content: Any, draw: random.Random) -> str:
    part = content["pre_tokenizer"]
    part["add_prefix_space"] = not part["add_prefix_space"]
    return "add_prefix_space changed"


def unigram_ids(content: Any, draw: random.Random) -> str:
    vocab = content["model"]["vocab"]
    first, second = draw.sample(range(4, len(vocab) - 1), 2)
    vocab[first][0], vocab[second][0] = vocab[second][0], vocab[first][0]
    return f"pieces {first} and {second} swapped"


def unigram_score(content: Any, draw: random.Random) -> str:
    vocab = content["model"]["vocab"]
    at = draw.randrange(4, len(vocab) - 1)
    vocab[at][1] -= draw.choice((1e-6, 0.5, 3.0))
    return f"score of piece {at} changed"


def unigram_normalizer(content: Any, draw: random.Random) -> str:
    steps = [content["normalizer"]] if content["normalizer"] else []
    steps.append(draw.choice(({"type": "Lowercase"}, {"type": "StripAccents"}, {"type": "NFD"})))
    content["normalizer"] = {"type": "Sequence", "normalizers": steps}
    return f"{steps[-1]['type']} added to the normalizer"


def ends(content: Any, draw: random.Random) -> str:
    """Put other tokens round a text."""
    vocab = content["model"]["vocab"]
    tokens = {token: index for index, (token, _) in enumerate(vocab)} if isinstance(vocab, list) else vocab
    end = draw.choice(list(tokens)[5:-1])
    content["post_processor"] = {"type": "BertProcessing", "sep": [end, tokens[end]], "cls": [end, tokens[end]]}
    return f"{end!r} round texts"


CHANGES: dict[str, list[Change]] = {
    "wordpiece": [
        wordpiece_tokens, wordpiece_tokens, wordpiece_order, wordpiece_piece, option("do_lower_case", False),
        option("strip_accents", False), option("tokenize_chinese_chars", False), added,
        option("mask_token", "the"), option("unk_token", "[MASK]"),
    ],
    "bpe": [*map(model_part, (bpe_ids, bpe_ids, bpe_merges, bpe_merges, bpe_merge_missing, bpe_space, ends)), added],
    "unigram": [*map(model_part, (unigram_ids, unigram_ids, unigram_score, unigram_normalizer, ends)), added],
}  # fmt: skip


@dataclass
class Bound:
    """A model's folder with its tokenizer, a run with it, and shards of it."""

    folder: Path
    tokenizer: Tokenizer
    shards: TokenShards | None


@pytest.fixture(scope="module")
def bound(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Bound]:
    folders = {}
    for kind in CHANGES:
        folder = tmp_path_factory.mktemp("bound") / kind
        save_tokenizer(kind, folder)
        accept_folder(folder)
        tokenizer = load_tokenizer(folder)
        made = prepare([list(VOCABULARY[5:12])], tokenizer, folder.with_name(f"{kind}-shards"))
        folders[kind] = Bound(folder, tokenizer, made)
    return folders


def refusal(call: Callable[[], object]) -> str | None:
    """Return the message of what must be refused; None if it was not."""
    try:
        call()
    except UserError as error:
        message = str(error)
    else:
        return None
    assert "\n" not in message, message
    return message


def attempts(bound: Bound, other: Path) -> dict[str, Callable[[], object]]:
    """Use a changed tokenizer, which has a manifest of its own, wherever a folder's own one belongs."""
    run = other.with_name("run")

    def resume() -> None:
        shutil.copytree(other, run / "tokenizer")
        keep_tokenizer(run, bound.tokenizer.fingerprint, lambda: bound.tokenizer)

    def other_run() -> None:
        keep_tokenizer(run, bound.tokenizer.fingerprint, lambda: load_tokenizer(other))

    def mixed() -> None:
        documents = [list(VOCABULARY[5:12])]
        check_tokenizers([bound.shards, prepare(documents, load_tokenizer(other), other.with_name("shards"))])

    def task() -> None:
        check_fingerprint(bound.folder, load_tokenizer(other).fingerprint, str(other))

    def given() -> None:
        copy_tokenizer(other, bound.folder, other.with_name("out"), len(bound.tokenizer), "hf")

    return {"resume": resume, "other run": other_run, "mixed shards": mixed, "task": task, "--tokenizer": given}


@scored(
    row=19, unit="vocabularies", short=100, full=2_000, chunk=200,
    goal="every one is refused beside the weights, for them, by a run, by shards and by tasks",
)  # fmt: skip
def test_swapped_vocabularies(campaign: Campaign, bound: dict[str, Bound], tmp_path: Path) -> None:
    """A tokenizer that differs in one id, merge, score or option is not used with a model of another one."""

    def attempt(numbers: range) -> dict[str, float]:
        figures = Counter[str]()
        for number in numbers:
            draw = random.Random(f"vocabulary {number}")
            kind = list(CHANGES)[number % len(CHANGES)]
            whole = bound[kind]
            root = tmp_path / "attempt"
            other = root / "other"
            shutil.copytree(whole.folder, other)
            what = f"number {number}, {kind}: {draw.choice(CHANGES[kind])(other, draw)}"
            # The folder as it was moved: its manifest tells.
            message = refusal(lambda folder=other: load_tokenizer(folder))  # type: ignore[misc]
            assert message, f"{what}: loaded beside the weights"
            assert str(other) in message, f"{what}: {message}"
            # A tokenizer that somebody has accepted as it is.
            accept_folder(other)
            try:
                different = load_tokenizer(other).fingerprint
            except UserError:
                figures["no_tokenizer"] += 1  # what remains is refused as such
            else:
                assert different != whole.tokenizer.fingerprint, f"{what}: has the same fingerprint"
            ways = attempts(whole, other)
            way = list(ways)[number // len(CHANGES) % len(ways)]
            assert refusal(ways[way]), f"{what}: used in the way {way!r}"
            figures[way.strip("-").replace(" ", "_")] += 1
            shutil.rmtree(root)
        return {name: float(count) for name, count in figures.items()}

    campaign.run(attempt)


def test_the_command_refuses_another_tokenizer(bound: dict[str, Bound], tmp_path: Path) -> None:
    """`convert --tokenizer`, with weights; and the model's own is accepted."""
    from toy_tasks import toy_folder

    model = toy_folder(tmp_path / "model", hidden_size=8, intermediate_size=16, num_hidden_layers=1)
    other = shutil.copytree(model, tmp_path / "other")
    (other / "model.safetensors").unlink()
    wordpiece_tokens(other, random.Random(0))
    accept_folder(other)
    with pytest.raises(UserError, match=r"--tokenizer .*other: this tokenizer is not the one that the model in"):
        convert(model, tmp_path / "out", Options(tokenizer=other))
    convert(model, tmp_path / "out", Options(tokenizer=model))
    assert BertModel.from_pretrained(tmp_path / "out")

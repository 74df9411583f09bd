"""A pre-trained folder of a few thousand weights, and files of tasks that it learns in seconds."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

from fastbert import BertConfig, BertModel, WordPieceTokenizer

GOOD, BAD = ("bright", "kind", "warm", "calm", "fresh"), ("dull", "cruel", "cold", "harsh", "stale")
PLAIN = ("the", "a", "house", "river", "was", "and", "looked", "quite", "day", "road", "they", "found")
PIECES = ("un", "##ly", "##s", ".", ",", "?", "0", "1", "2")
VOCABULARY = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *PLAIN, *GOOD, *BAD, *PIECES)


def toy_folder(folder: Path, seed: int = 0, **config: object) -> Path:
    """A model's folder as pre-training leaves it."""
    shape = {
        "vocab_size": len(VOCABULARY),
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 64,
        "max_position_embeddings": 64,
        "initializer_range": 0.1,
    }
    model = BertModel(BertConfig(**{**shape, **config}))  # type: ignore[arg-type]
    model.init_weights(seed=seed)
    model.save_pretrained(folder)
    WordPieceTokenizer(list(VOCABULARY), do_lower_case=True).save_pretrained(folder)
    return folder


def sentence(random: Random, good: bool, words: int = 8) -> str:
    """Plain words with one that is good or bad among them."""
    chosen = random.choices(PLAIN, k=words)
    chosen[random.randrange(words)] = random.choice(GOOD if good else BAD)
    return " ".join(chosen)


def sentiment(path: Path, count: int, seed: int = 0, names: tuple[str, str] = ("bad", "good")) -> Path:
    """A file with a label and a sentence a line."""
    random = Random(seed)
    rows = [random.randrange(2) for _ in range(count)]
    lines = ["label\tsentence", *(f"{names[kind]}\t{sentence(random, bool(kind))}" for kind in rows)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def moods(path: Path, count: int, seed: int = 0) -> Path:
    """A file with a score and two sentences a line: 2.4 for each that is good, with a little noise."""
    random = Random(seed)
    lines = ["score\tsentence1\tsentence2"]
    for _ in range(count):
        first, second = random.randrange(2), random.randrange(2)
        score = 2.4 * (first + second) + random.random() / 5
        lines.append(f"{score:.3f}\t{sentence(random, bool(first), 4)}\t{sentence(random, bool(second), 4)}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def feelings(path: Path, count: int, seed: int = 0, separator: str = "|") -> Path:
    """A file with a set of labels and a sentence a line: good and bad words, both or none of them."""
    random = Random(seed)
    lines = ["labels\ttext"]
    for _ in range(count):
        words, labels = random.choices(PLAIN, k=6), []
        for first, (name, kind) in enumerate((("good", GOOD), ("bad", BAD))):
            if random.randrange(2):
                words[3 * first + random.randrange(3)] = random.choice(kind)
                labels.append(name)
        lines.append(f"{separator.join(labels)}\t{' '.join(words)}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def tagged(path: Path, count: int, seed: int = 0) -> Path:
    """A word and its tag a line: good and bad words are entities."""
    random = Random(seed)
    kinds = {**dict.fromkeys(GOOD, "B-GOOD"), **dict.fromkeys(BAD, "B-BAD")}
    blocks = []
    for _ in range(count):
        words = sentence(random, bool(random.randrange(2)), 6).split()
        blocks.append("".join(f"{word}\t{kinds.get(word, 'O')}\n" for word in words))
    path.write_text("\n".join(blocks), encoding="utf-8")
    return path


def questions(path: Path, count: int, seed: int = 0) -> Path:
    """SQuAD's JSON: the answer is the good or bad word of the context."""
    random = Random(seed)
    paragraphs = []
    for number in range(count):
        context = sentence(random, bool(random.randrange(2)), 7)
        answer = next(word for word in context.split() if word in GOOD + BAD)
        span = {"text": answer, "answer_start": context.index(answer)}
        question = {"id": f"q{number}", "question": "they found ?", "answers": [span]}
        paragraphs.append({"context": context, "qas": [question]})
    path.write_text(json.dumps({"version": "1.1", "data": [{"title": "toy", "paragraphs": paragraphs}]}))
    return path


def choices(path: Path, count: int, seed: int = 0) -> Path:
    """JSON lines: of four endings one is good."""
    random = Random(seed)
    lines = []
    for _ in range(count):
        label = random.randrange(4)
        endings = [sentence(random, number == label, 3) for number in range(4)]
        lines.append(json.dumps({"prompt": "the day was", "endings": endings, "label": label}))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def echoes(path: Path, count: int, seed: int = 0) -> Path:
    """A text and its good or bad word, a line each."""
    random = Random(seed)
    lines = ["source\ttarget"]
    for _ in range(count):
        text = sentence(random, bool(random.randrange(2)), 4)
        lines.append(f"{text}\t{next(word for word in text.split() if word in GOOD + BAD)}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path

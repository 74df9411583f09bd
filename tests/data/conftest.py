"""Tokens whose ids say where they come from, so that a test can tell which text a sample holds."""

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

from fastbert.data.prepare import prepare
from fastbert.data.shards import TokenShards

SPECIALS = ("[PAD]", "[unused0]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


class IdTokenizer:
    """Text is numbers: "17 18" are the tokens 17 and 18. Each id of the form 3n + 2 from 8 on continues a word."""

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size
        words = [f"##{i}" if i % 3 == 2 else f"w{i}" for i in range(len(SPECIALS), vocab_size)]
        self.vocabulary = [*SPECIALS, *words]
        self.fingerprint = hashlib.sha256("\n".join(self.vocabulary).encode()).hexdigest()
        self.is_continuation = np.array([token.startswith("##") for token in self.vocabulary])
        self.pad_token_id, self.unk_token_id, self.cls_token_id, self.sep_token_id, self.mask_token_id = 0, 2, 3, 4, 5

    def encode_ragged(self, texts):
        pieces = [np.array(text.split(), np.int32) for text in texts]
        offsets = np.concatenate([[0], np.cumsum([len(piece) for piece in pieces])]).astype(np.int64)
        return np.concatenate([np.zeros(0, np.int32), *pieces]), offsets

    def save_pretrained(self, folder) -> None:
        Path(folder, "vocab.txt").write_text("".join(f"{token}\n" for token in self.vocabulary))
        Path(folder, "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "BertTokenizer"}))


def numbered_documents(sentence_lengths: list[list[int]], first_id: int = 6) -> list[list[str]]:
    """Documents with sentences of these lengths, in which every token of the corpus has its own id."""
    documents, next_id = [], first_id
    for lengths in sentence_lengths:
        document = []
        for length in lengths:
            document.append(" ".join(map(str, range(next_id, next_id + length))))
            next_id += length
        documents.append(document)
    return documents


@pytest.fixture
def make_shards(tmp_path):
    """Token shards in which every token has its own id; token `t` of the corpus has id `t + 6`."""

    def make(sentence_lengths: list[list[int]], **options) -> TokenShards:
        total = sum(map(sum, sentence_lengths))
        folder = tmp_path / f"shards{len(list(tmp_path.iterdir()))}"
        return prepare(numbered_documents(sentence_lengths), IdTokenizer(total + 6), folder, **options)

    return make


@pytest.fixture
def random_lengths():
    """Sentence lengths of documents of a mixed corpus."""

    def draw(seed: int, documents: int = 60, sentences: tuple[int, int] = (1, 60), tokens: tuple[int, int] = (1, 50)):
        random = np.random.default_rng(seed)
        return [
            random.integers(*tokens, size=random.integers(*sentences), endpoint=True).tolist() for _ in range(documents)
        ]

    return draw


@pytest.fixture(scope="session")
def id_tokenizer():
    return IdTokenizer

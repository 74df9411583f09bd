"""Vectors of tokens beside sentence-transformers' MultiVectorEncoder, from every kind of folder."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from embedding import random_texts
from reranking_models import PIECES, POSITIONS, model_folder
from safetensors.torch import load_file, save_file

from fastbert import BertModel, TokenEncoder, WordPieceTokenizer, maxsim
from fastbert.errors import UserError

pytestmark = pytest.mark.usefixtures("unchecked_folders")

LONG = " ".join("abcdefgh" * 12)
WIDTH = 24


def late_interaction(folder: Path, family: str, seed: int, expansion: dict[str, Any] | None = None) -> Any:
    """Save and return a model of sentence-transformers: projection, punctuation skipped, normalised, prompts."""
    pytest.importorskip("sentence_transformers")
    from sentence_transformers import MultiVectorEncoder
    from sentence_transformers.base.modules import Normalize, Transformer
    from sentence_transformers.base.modules.dense import Dense
    from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask

    plain = model_folder(folder / "plain", f"{family}Model", seed)
    torch.manual_seed(seed)
    names = {"module_input_name": "token_embeddings", "module_output_name": "token_embeddings"}
    dense = Dense(64, WIDTH, bias=False, activation_function=torch.nn.Identity(), **names)
    mask, norm = MultiVectorMask(skiplist_words=[",", "."]), Normalize(module_input_name="token_embeddings")
    prompts = {"query": "[unused0] a ", "document": "d "}
    modules = [Transformer(str(plain), query_expansion=expansion, document_length=40), dense, mask, norm]
    model = MultiVectorEncoder(modules=modules, prompts=prompts, device="cpu")
    model.save_pretrained(str(folder))
    return MultiVectorEncoder(str(folder), device="cpu")


def assert_same(ours: TokenEncoder, theirs: Any, seed: int) -> None:
    """Vectors of queries and documents within 1e-5, and their scores."""
    texts = ["", "a, b. c!", LONG, ", .", *random_texts(seed, 12, most=45)]
    expected = {"query": theirs.encode_query(texts), "document": theirs.encode_document(texts)}
    actual = {role: ours.encode(texts, role=role) for role in expected}
    for role, vectors in expected.items():
        assert actual[role].offsets.diff().tolist() == [len(each) for each in vectors], role
        assert len(actual[role].token_ids) == len(actual[role].vectors)
        torch.testing.assert_close(actual[role].vectors, torch.cat(vectors), rtol=0, atol=1e-5, msg=role)
    scores = maxsim(actual["query"], actual["document"])
    torch.testing.assert_close(scores, theirs.similarity(*expected.values()), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(
    ("family", "expansion"),
    [
        pytest.param("Bert", {"strategy": "fixed", "attend": False, "length": 20}, id="masks-read"),
        pytest.param("Bert", {"strategy": "fixed", "attend": True, "length": 20}, id="masks-are-read"),
        pytest.param("Roberta", {"strategy": "min", "attend": False, "length": 9, "token": "z"}, id="at-least"),
        pytest.param("DistilBert", None, id="no-expansion"),
    ],
)
def test_vectors_are_those_of_sentence_transformers(
    tmp_path: Path, family: str, expansion: dict[str, Any] | None, seed: int
) -> None:
    theirs = late_interaction(tmp_path, family, seed, expansion)
    assert_same(TokenEncoder(tmp_path, device="cpu", dtype="fp32"), theirs, seed)


def test_folders_of_pylate(tmp_path: Path, seed: int) -> None:
    """Up to version 3 it lists the projection alone; the rest is in its settings and its code."""
    late_interaction(tmp_path, "Bert", seed)
    modules = json.loads((tmp_path / "modules.json").read_text())[:2]
    modules[1]["type"] = "pylate.models.Dense.Dense"
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    settings = {
        "model_type": "ColBERT", "query_prefix": "[unused3] ", "document_prefix": "[unused4] ", "query_length": 18,
        "document_length": 30, "attend_to_expansion_tokens": False, "prompts": {}, "similarity_fn_name": "MaxSim",
    }  # fmt: skip
    (tmp_path / "config_sentence_transformers.json").write_text(json.dumps(settings))
    (tmp_path / "sentence_bert_config.json").write_text('{"max_seq_length": 60}')
    library = pytest.importorskip("sentence_transformers")
    theirs = library.MultiVectorEncoder(str(tmp_path), device="cpu")
    ours = TokenEncoder(tmp_path, device="cpu", dtype="fp32")
    assert_same(ours, theirs, seed)
    marker = PIECES.index("[unused3]")
    assert ours.encode(["a"], role="query").token_ids[1] == marker


def test_checkpoints_of_stanford(tmp_path: Path, seed: int) -> None:
    """The projection is among the encoder's weights, the settings are in artifact.metadata."""
    library = pytest.importorskip("sentence_transformers")
    model_folder(tmp_path, "BertModel", seed, {"architectures": ["HF_ColBERT"]})
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "architectures": ["HF_ColBERT"]}))
    weights = {f"bert.{name}": tensor for name, tensor in load_file(tmp_path / "model.safetensors").items()}
    weights["linear.weight"] = torch.randn(WIDTH, 64, generator=torch.Generator().manual_seed(seed))
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    metadata = {"query_maxlen": 16, "doc_maxlen": 40, "mask_punctuation": True, "attend_to_mask_tokens": False}
    (tmp_path / "artifact.metadata").write_text(json.dumps(metadata))
    theirs = library.MultiVectorEncoder(str(tmp_path), device="cpu")
    assert_same(TokenEncoder(tmp_path, device="cpu", dtype="fp32"), theirs, seed)


def test_options_of_a_plain_folder(tmp_path: Path, seed: int, caplog: pytest.LogCaptureFixture) -> None:
    """Hidden states of the last layer; prefix, masks and lengths as asked; the same bits in every batch."""
    model_folder(tmp_path, "BertModel", seed)
    encoder = TokenEncoder(tmp_path, device="cpu", dtype="fp32")
    tokenizer, model = WordPieceTokenizer.from_pretrained(tmp_path), BertModel.from_pretrained(tmp_path)
    texts = ["a b c", "", LONG]
    with torch.no_grad():
        expected = model.eval()(tokenizer.pack(texts, max_length=POSITIONS)).last_hidden_state
    whole = encoder.encode(texts)
    torch.testing.assert_close(whole.vectors, expected, rtol=0, atol=1e-5)
    assert "1 of 3 texts were longer than 62 tokens and truncated" in caplog.text
    assert torch.equal(encoder.encode(iter(texts), batch_tokens=1).vectors, whole.vectors)
    assert torch.equal(encoder.encode(texts[1:]).vectors, whole.vectors[5:])
    lengths = encoder.encode(texts, normalize=True).vectors.norm(dim=1)
    torch.testing.assert_close(lengths, torch.ones_like(lengths))
    cls, sep, mask = (PIECES.index(name) for name in ("[CLS]", "[SEP]", "[MASK]"))
    letters = [PIECES.index(letter) for letter in "abc"]
    marked = encoder.encode(["a b c"], prefix="[unused7] b ", role="query", query_length=9, max_length=6)
    ids = [cls, PIECES.index("[unused7]"), letters[1], *letters[:2], sep, mask, mask, mask]
    assert marked.token_ids.tolist() == ids
    plain = encoder.encode(["b a b"], max_length=6)
    assert torch.equal(encoder.encode(["a b"], prefix="b ").vectors, plain.vectors)
    # Masks that no token attends to leave the query's own vectors as they are.
    query = encoder.encode(["a b c"], role="query", query_length=9)
    torch.testing.assert_close(query[0][:5], whole[0], rtol=0, atol=1e-5)
    attended = encoder.encode(["a b c"], role="query", query_length=9, attend=True)
    assert (attended[0][:5] - whole[0]).abs().max() > 1e-2
    assert encoder.encode([]).vectors.shape == (0, 64)


def test_what_is_refused(tmp_path: Path, seed: int) -> None:
    encoder = TokenEncoder(model_folder(tmp_path, "BertModel", seed), dtype="fp32")
    calls: dict[str, Any] = {
        "texts must be a list of strings or another iterable, not str": lambda: encoder.encode("a"),
        r"texts\[1\] must be a string, not int": lambda: encoder.encode(["a", 1]),  # type: ignore[list-item]
        "role='other' must be 'query' or 'document'": lambda: encoder.encode(["a"], role="other"),
        "query_length=9 expands queries: choose role='query'": lambda: encoder.encode(["a"], query_length=9),
        "query_length=65 is more than the 64 positions": lambda: encoder.encode(["a"], role="query", query_length=65),
        "max_length=65 is more than the 64 positions": lambda: encoder.encode(["a"], max_length=65),
        "max_length=3 has no room for a text beside 3": lambda: encoder.encode(["a"], max_length=3, prefix="[unused0]"),
    }
    for message, call in calls.items():
        with pytest.raises(UserError, match=message):
            call()
    modules = [{"path": "", "type": "st.Transformer"}, {"path": "1", "type": "st.Pooling"}]
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(UserError, match="the module 'Pooling' cannot be used here; supported are Transformer, Dense"):
        TokenEncoder(tmp_path)

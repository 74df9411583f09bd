"""Folders that are saved with settings give the same vectors and scores in both libraries, and half of one is never
left."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from accuracy import assert_as_accurate
from family_folders import save_family
from reranking_models import PIECES, cross_encoder, model_folder
from saved_models import EDGES, OUT, PROMPTS, layer, saved, texts_of, tokenizer_of

import fastbert
from fastbert import SparseEncoder, TokenEncoder, load_embedder, maxsim
from fastbert.checkpoints.manifest import read_manifest
from fastbert.embeddings.settings import EmbedSettings
from fastbert.errors import CheckpointError, UserError
from fastbert.models import registry
from fastbert.reranking.settings import CrossEncoderSettings
from fastbert.retrieval.saving import save_with_settings
from fastbert.retrieval.settings import Folder, SparseSettings, TokenSettings, read_token_settings


@pytest.mark.parametrize(
    ("family", "pooling", "logarithms"), [("Bert", "max", 1), ("Roberta", "sum", 2), ("DistilBert", "max", 2)]
)
def test_sparse_vectors(tmp_path: Path, family: str, pooling: str, logarithms: int, seed: int) -> None:
    library = pytest.importorskip("sentence_transformers")
    folder = Folder(max_length=30, prompts=PROMPTS, lower_case=pooling == "sum")
    settings = SparseSettings(folder=folder, pooling=pooling, logarithms=logarithms)
    path = saved(tmp_path, f"{family}ForMaskedLM", seed, settings, cased=pooling == "sum", before=pooling == "sum")
    ours, theirs = SparseEncoder(path, device="cpu", dtype="fp32"), library.SparseEncoder(str(path), device="cpu")
    assert (ours.settings.pooling, ours.settings.logarithms) == (pooling, logarithms)
    assert theirs.get_embedding_dimension() == len(PIECES)
    assert theirs.max_seq_length == 30
    texts = texts_of(seed)
    rounded = {"query": theirs.encode_query(texts).to_dense(), "document": theirs.encode_document(texts).to_dense()}
    theirs.double()
    exact = {"query": theirs.encode_query(texts).to_dense(), "document": theirs.encode_document(texts).to_dense()}
    for role, expected in exact.items():
        assert_as_accurate(ours.encode(texts, role=role).to_torch().to_dense(), rounded[role], expected, role)
    assert not torch.equal(*exact.values())


EXPANSIONS = {
    "Bert": {"strategy": "fixed", "attend": False, "length": 20},
    "Roberta": {"strategy": "min", "attend": True, "length": 9, "token": "z"},
    "DistilBert": None,
}


@pytest.mark.parametrize(
    ("family", "is_marked"), [("Bert", True), ("Bert", False), ("Roberta", False), ("DistilBert", True)]
)
def test_token_vectors(tmp_path: Path, family: str, is_marked: bool, seed: int) -> None:
    library = pytest.importorskip("sentence_transformers")
    markers = {"query": "[unused0] ", "document": "[unused1] "} if is_marked else {}
    prompts = {role: markers.get(role, "") + text for role, text in PROMPTS.items()}
    expansion = EXPANSIONS[family]
    settings = TokenSettings(
        folder=Folder(max_length=50, prompts=prompts, lower_case=is_marked),
        dense=(layer(seed),) if is_marked else (layer(seed), layer(seed, OUT, 5)),
        normalize=family != "DistilBert" or is_marked,
        markers=markers,
        lengths={"document": 40} if expansion else {"document": 40, "query": 12},
        expansion=expansion,
        skiplist={"document": (",", ".")} if is_marked else {"query": (",",), "document": (",",)},
    )
    path = saved(tmp_path, f"{family}Model", seed, settings, cased=is_marked, before=is_marked)
    ours, theirs = TokenEncoder(path, device="cpu", dtype="fp32"), library.MultiVectorEncoder(str(path), device="cpu")
    assert_same_tokens(ours, theirs, seed)
    if is_marked:
        marker = PIECES.index("[unused0]")
        assert ours.encode(["a"], role="query").token_ids[1] == marker
    # What was read is written again as it was.
    save_with_settings(ours.model, ours.settings, tmp_path / "again")
    for name in ("modules.json", "config_sentence_transformers.json", "sentence_bert_config.json"):
        assert (tmp_path / "again" / name).read_text() == (path / name).read_text()


def assert_same_tokens(ours: TokenEncoder, theirs: Any, seed: int) -> None:
    texts = texts_of(seed)
    expected = {"query": theirs.encode_query(texts), "document": theirs.encode_document(texts)}
    actual = {role: ours.encode(texts, role=role) for role in expected}
    for role, vectors in expected.items():
        assert actual[role].offsets.diff().tolist() == [len(each) for each in vectors], role
        torch.testing.assert_close(actual[role].vectors, torch.cat(vectors), rtol=0, atol=5e-6, msg=role)
    scores = maxsim(actual["query"], actual["document"])
    torch.testing.assert_close(scores, theirs.similarity(*expected.values()), rtol=1e-5, atol=1e-4)


def test_token_settings_of_an_encoder_are_saved_with_it(tmp_path: Path, seed: int) -> None:
    """`embed_settings` takes them, and an embedder's are replaced by those that are given."""
    library = pytest.importorskip("sentence_transformers")
    model = registry.load_encoder(model_folder(tmp_path / "plain", "BertModel", seed))
    model.embed_settings = TokenSettings(dense=(layer(seed),), normalize=True)
    model.save_pretrained(tmp_path / "tokens")
    tokenizer_of().save_pretrained(tmp_path / "tokens")
    theirs = library.MultiVectorEncoder(str(tmp_path / "tokens"), device="cpu")
    assert_same_tokens(TokenEncoder(tmp_path / "tokens", device="cpu", dtype="fp32"), theirs, seed)
    before = model.embed_settings
    save_with_settings(model, EmbedSettings(pooling="max"), tmp_path / "texts")
    assert model.embed_settings is before
    assert not (tmp_path / "texts/2_MultiVectorMask").exists()
    with pytest.raises(UserError, match="the module Dense cannot be used here"):
        load_embedder(tmp_path / "tokens")


def test_tokenizers_of_other_kinds(tmp_path: Path, seed: int) -> None:
    """Byte-level BPE with rows of RoBERTa, lower-cased by the settings."""
    library = pytest.importorskip("sentence_transformers")
    folder = Folder(max_length=40, lower_case=True, prompts={"query": "Find: ", "document": ""})
    texts = ["", "The Film was good .", "a GREAT film " * 30]
    plain = save_family("roberta", tmp_path / "plain", seed)
    tokenizer = fastbert.load_tokenizer(plain)
    encoder = registry.load_encoder(plain)
    settings = TokenSettings(folder=folder, dense=(layer(seed, 32),), normalize=True, skiplist={"document": (".",)})
    save_with_settings(encoder, settings, tmp_path / "tokens")
    tokenizer.save_pretrained(tmp_path / "tokens")
    theirs = library.MultiVectorEncoder(str(tmp_path / "tokens"), device="cpu").encode_query(texts)
    ours = TokenEncoder(tmp_path / "tokens", device="cpu", dtype="fp32").encode(texts, role="query")
    torch.testing.assert_close(ours.vectors, torch.cat(theirs), rtol=0, atol=5e-6)
    save_with_settings(fastbert.load(plain), SparseSettings(folder=folder), tmp_path / "sparse")
    tokenizer.save_pretrained(tmp_path / "sparse")
    expected = library.SparseEncoder(str(tmp_path / "sparse"), device="cpu").encode_query(texts).to_dense()
    sparse = SparseEncoder(tmp_path / "sparse", device="cpu", dtype="fp32").encode(texts, role="query")
    torch.testing.assert_close(sparse.to_torch().to_dense(), expected, rtol=1e-5, atol=5e-6)


SETTINGS: dict[str, tuple[str, Any]] = {
    "1_Pooling": ("BertModel", EmbedSettings()),
    "1_SpladePooling": ("BertForMaskedLM", SparseSettings()),
    "1_MultiVectorMask": ("BertModel", TokenSettings()),
}


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("kind", ["link", "file", "folder"])
def test_what_is_in_the_way_is_refused_before_anything_is_written(
    tmp_path: Path, name: str, kind: str, seed: int
) -> None:
    """A link or a file instead of a module's folder, and a folder instead of a file."""
    (family, settings), folder = SETTINGS[name], tmp_path / "out"
    model = fastbert.load(model_folder(tmp_path / "plain", family, seed))
    folder.mkdir()
    if kind == "link":
        (folder / name).symlink_to(tmp_path / "plain")
    elif kind == "file":
        (folder / name).write_text("mine")
    else:
        (folder / name / "config.json").mkdir(parents=True)
    before = sorted(folder.rglob("*"))
    words = "is a folder or a broken link" if kind == "folder" else f"{name}: is a link or a file"
    with pytest.raises(UserError, match=words):
        save_with_settings(model, settings, folder)
    assert sorted(folder.rglob("*")) == before
    if family == "BertModel":
        model.embed_settings = settings
        with pytest.raises(UserError, match=words):
            model.save_pretrained(folder)
        assert sorted(folder.rglob("*")) == before


def test_a_folder_in_the_place_of_a_file_is_refused(tmp_path: Path, seed: int) -> None:
    model = fastbert.load(cross_encoder(tmp_path / "plain", "Bert", seed))
    (tmp_path / "out/modules.json").mkdir(parents=True)
    with pytest.raises(UserError, match=r"modules\.json: is a folder"):
        save_with_settings(model, CrossEncoderSettings(), tmp_path / "out")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["modules.json"]


def test_models_of_a_different_kind_are_refused(tmp_path: Path, seed: int) -> None:
    encoder = fastbert.load(model_folder(tmp_path / "encoder", "BertModel", seed))
    masked = fastbert.load(model_folder(tmp_path / "masked", "BertForMaskedLM", seed))
    classes = fastbert.load(cross_encoder(tmp_path / "classes", "Bert", seed, num_labels=3))
    wide = TokenSettings(dense=(layer(seed, 32),))
    cases: list[tuple[Any, Any, str]] = [
        (encoder, SparseSettings(), "the model is a BertModel, and SparseSettings are those of a ForMaskedLM"),
        (encoder, CrossEncoderSettings(), "CrossEncoderSettings are those of a ForSequenceClassification"),
        (masked, EmbedSettings(), "EmbedSettings are those of an encoder without a head"),
        (masked, TokenSettings(), "TokenSettings are those of an encoder without a head"),
        (classes, CrossEncoderSettings(), "has 3 labels"),
        (encoder, wide, "Dense 0 takes 32 numbers, but gets 64"),
    ]
    for model, settings, words in cases:
        with pytest.raises(UserError, match=words):
            save_with_settings(model, settings, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (SparseSettings(pooling="mean"), "pooling='mean' must be 'max' or 'sum'"),
        (SparseSettings(logarithms=3), "logarithms=3 1 or 2"),
        (SparseSettings(folder=Folder(max_length=2)), "max_length=2 must be a whole number, at least 3"),
        (SparseSettings(folder=Folder(prompts={"query": 3})), "must be texts by name"),  # type: ignore[dict-item]
        (TokenSettings(lengths={"document": 1}), r"lengths\['document'\]=1 must be a whole number"),
        (TokenSettings(lengths={"passage": 9}), "lengths are those of a query or a document, not of 'passage'"),
        (TokenSettings(markers={"query": "[Q] "}), "must be the beginning of the prompt"),
        (TokenSettings(skiplist={"query": (",",), "document": (".",)}), "that skip different tokens"),
        (TokenSettings(expansion={"length": 9, "attends": True}), "the unknown key 'attends'"),
        (TokenSettings(expansion={"length": "9"}), r"expansion\['length'\]='9' must be a whole number"),
        (TokenSettings(expansion={"length": 9, "strategy": "max"}), "'max' must be 'fixed' or 'min'"),
        (TokenSettings(expansion={"length": 9, "attend": 1}), "attend must be True or False"),
        (TokenSettings(expansion={"length": 9}, lengths={"query": 8}), r"lengths\['query'\]=8 is less than"),
        (CrossEncoderSettings(activation="torch.nn.modules.activation.Tanh"), "Tanh' is not supported"),
    ],
)
def test_settings_that_cannot_be_stored(settings: Any, words: str) -> None:
    with pytest.raises(UserError, match=words):
        settings.check_width(64, "settings")


def test_a_write_that_fails_leaves_the_old_model(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """An embedder's folder stays whole, and is replaced whole."""
    plain = model_folder(tmp_path / "plain", "BertForMaskedLM", seed)
    folder = tmp_path / "out"
    tokenizer_of().save_pretrained(folder)
    save_with_settings(registry.load_encoder(plain), EmbedSettings(pooling="max"), folder)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    model, settings = fastbert.load(plain), SparseSettings()

    def full(path: Path, *_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("fastbert.checkpoints.pipeline_files.write_json_atomic", full)
        with pytest.raises(CheckpointError, match="the files of sentence-transformers could not be written"):
            save_with_settings(model, settings, folder)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    assert load_embedder(folder)[2].pooling == "max"
    save_with_settings(model, settings, folder)
    manifest = read_manifest(folder)
    assert manifest is not None
    assert {"modules.json", "1_SpladePooling/config.json", "vocab.txt"} <= manifest.files.keys()
    assert len(SparseEncoder(folder, device="cpu", dtype="fp32").encode(["a b"])) == 1


def test_settings_of_stanford_become_those_of_sentence_transformers(tmp_path: Path, seed: int) -> None:
    """The projection among an encoder's weights, and markers, become a module and prompts."""
    library = pytest.importorskip("sentence_transformers")
    from safetensors.torch import load_file, save_file

    folder = model_folder(tmp_path / "stanford", "BertModel", seed)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "architectures": ["HF_ColBERT"]}))
    weights = {f"bert.{name}": tensor for name, tensor in load_file(folder / "model.safetensors").items()}
    save_file({**weights, "linear.weight": layer(seed).weight}, folder / "model.safetensors", {"format": "pt"})
    (folder / "fastbert_manifest.json").unlink()
    (folder / "artifact.metadata").write_text(json.dumps({"query_maxlen": 16, "doc_maxlen": 40}))
    old = TokenEncoder(folder, device="cpu", dtype="fp32")
    save_with_settings(old.model, old.settings, tmp_path / "new")
    old.tokenizer.save_pretrained(tmp_path / "new")
    new = TokenEncoder(tmp_path / "new", device="cpu", dtype="fp32")
    for role in ("query", "document"):
        assert torch.equal(new.encode(EDGES, role=role).vectors, old.encode(EDGES, role=role).vectors)
    assert_same_tokens(new, library.MultiVectorEncoder(str(tmp_path / "new"), device="cpu"), seed)
    assert dict(read_token_settings(tmp_path / "new").lengths) == {"document": 40}

"""Every command on a small model of every family, with the family's kind of tokenizer, against transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import toy_tasks
from family_folders import SHAPES, corpus, every_family, save_family, save_tokenizer

pytest.importorskip("tyro", reason="the command line needs tyro")
transformers = pytest.importorskip("transformers")

import fastbert  # noqa: E402
from fastbert import cli  # noqa: E402
from fastbert.data.continuations import continued  # noqa: E402
from fastbert.data.shards import TokenShards  # noqa: E402
from fastbert.models import registry  # noqa: E402
from fastbert.scoring.scorer import load_scorer, score_with  # noqa: E402
from fastbert.tasks.fill_mask import fill_mask  # noqa: E402
from fastbert.tokenizers.loading import load_tokenizer  # noqa: E402

WITHOUT_SEGMENTS = ("distilbert", "roberta-wordpiece")  # with a tokenizer that returns token types
TEXTS = ["the House was bright .", "they found a cold river and a day quite warm", "unkind", "a"]


def run(*flags: object) -> None:
    assert cli.main([*map(str, flags), "--quiet"]) == 0


def masked_texts(tokenizer: Any) -> list[str]:
    mask = tokenizer.mask_token
    return [f"the house was {mask} .", f"{mask} found a {mask} river", f"un{mask}ly"]


@every_family
def test_blanks_and_scores(family: str, tmp_path: Path, seed: int, capsys: pytest.CaptureFixture[str]) -> None:
    folder = save_family(family, tmp_path / "model", seed)
    reference = transformers.AutoModelForMaskedLM.from_pretrained(folder).eval()
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    if family in WITHOUT_SEGMENTS:
        theirs.model_input_names = ["input_ids", "attention_mask"]
    pipeline = transformers.pipeline("fill-mask", model=reference, tokenizer=theirs, top_k=20)
    model, tokenizer = registry.load_with_head(folder, "ForMaskedLM"), load_tokenizer(folder)
    for text in masked_texts(theirs):
        expected = pipeline(text)
        expected = expected if isinstance(expected[0], list) else [expected]
        for guesses, others in zip(fill_mask(model, tokenizer, text, top_k=5), expected, strict=True):
            others = [other for other in others if other["token"] not in theirs.all_special_ids][:5]
            words = [other["token_str"].strip() for other in others]
            assert [guess.token.removeprefix("##") for guess in guesses] == [word.removeprefix("##") for word in words]
            # Theirs are shares of all tokens, special ones too.
            shares = np.array([other["score"] for other in others])
            np.testing.assert_allclose(
                np.array([guess.probability for guess in guesses]) / guesses[0].probability,
                shares / shares[0], rtol=1e-3, atol=1e-5,
            )  # fmt: skip
            assert all("house" in guess.text or "river" in guess.text or "ly" in guess.text for guess in guesses)
    capsys.readouterr()
    run("fill-mask", "The [MASK] was warm.", "--model", folder, "--top-k", 2)
    assert capsys.readouterr().out.count("%") == 2, "[MASK] stands for the mask of any tokenizer"

    # Pseudo-log-likelihoods, token by token.
    scores = score_with(load_scorer(folder), TEXTS)
    for number, text in enumerate(TEXTS):
        row = theirs(text, return_tensors="pt", return_special_tokens_mask=True)
        ids, positions = row["input_ids"], (row["special_tokens_mask"][0] == 0).nonzero().flatten().tolist()
        copies = ids.repeat(len(positions), 1)
        rows = torch.arange(len(positions))
        copies[rows, positions] = theirs.mask_token_id
        with torch.no_grad():
            logits = reference(input_ids=copies).logits[rows, positions].double().log_softmax(-1)
        values = logits[rows, ids[0, positions]].numpy()
        actual = scores.tokens[scores.offsets[number] : scores.offsets[number + 1]]
        np.testing.assert_allclose(actual, values, atol=1e-4)
    (tmp_path / "held-out.txt").write_text("\n".join(TEXTS) + "\n")
    run("evaluate", "--task", "pseudo-perplexity", "--model", folder, "--text", tmp_path / "held-out.txt")
    assert "pseudo-perplexity" in capsys.readouterr().out


@every_family
def test_embeddings_and_features(family: str, tmp_path: Path, seed: int) -> None:
    sentence_transformers = pytest.importorskip("sentence_transformers")
    folder = save_family(family, tmp_path / "model", seed, "Model")
    parts = pytest.importorskip("sentence_transformers.models")
    transformer = parts.Transformer(str(folder), max_seq_length=12)
    if family in WITHOUT_SEGMENTS:
        transformer.tokenizer.model_input_names = ["input_ids", "attention_mask"]
    modules = [transformer, parts.Pooling(32, pooling_mode="mean"), parts.Dense(32, 16), parts.Normalize()]
    prompts = {"query": "the day ", "passage": "a "}
    theirs = sentence_transformers.SentenceTransformer(modules=modules, prompts=prompts, device="cpu")
    theirs.save(str(tmp_path / "embedder"))
    if family in ("roberta", "xlm-roberta"):  # lower-cased outside of the tokenizer
        config = tmp_path / "embedder" / "sentence_bert_config.json"
        config.write_text(json.dumps(json.loads(config.read_text()) | {"do_lower_case": True, "max_seq_length": 12}))
        cased, theirs = theirs, sentence_transformers.SentenceTransformer(str(tmp_path / "embedder"), device="cpu")
        assert np.abs(cased.encode(TEXTS[:1]) - theirs.encode(TEXTS[:1])).max() > 0.01
    text = tmp_path / "texts.txt"
    text.write_text("\n".join(TEXTS) + "\n")
    machine = ("--device", "cpu", "--dtype", "fp32")
    flags = ("--model", tmp_path / "embedder", "--text", text, "--prompt", "query", *machine)
    run("embed", *flags, "--out", tmp_path / "v.npy")
    expected = theirs.encode(TEXTS, prompt_name="query")
    np.testing.assert_allclose(np.load(tmp_path / "v.npy"), expected, atol=2e-5)

    encoder = transformers.AutoModel.from_pretrained(folder).eval()
    tokenizer = _tokenizer_of_words(folder)
    for per in ("token", "word"):
        out = tmp_path / f"{per}.npz"
        run("features", "--model", folder, "--text", text, "--out", out, "--per", per, "--layers", "1", *machine)
        features = np.load(out)
        for number, line in enumerate(TEXTS):
            whole = transformers.AutoTokenizer.from_pretrained(folder) if per == "token" else tokenizer
            words = line if per == "token" else line.split()
            row = whole(words, is_split_into_words=per == "word", return_tensors="pt")
            numbers = row.word_ids()
            with torch.no_grad():
                inputs = {"input_ids": row["input_ids"], "attention_mask": row["attention_mask"]}
                states = encoder(**inputs, output_hidden_states=True).hidden_states[1][0]
            chosen = [
                index
                for index, word in enumerate(numbers)
                if word is not None and (per == "token" or numbers[index - 1] != word)
            ]
            part = features["features"][features["offsets"][number] : features["offsets"][number + 1]]
            np.testing.assert_allclose(part, states[chosen].numpy(), atol=2e-5)


@every_family
def test_fine_tuned_models(family: str, tmp_path: Path, seed: int) -> None:
    folder = save_family(family, tmp_path / "pretrained", seed, "Model")
    files = {
        "regression": toy_tasks.moods(tmp_path / "pairs.tsv", 12),
        "tagging": toy_tasks.tagged(tmp_path / "tags.conll", 8),
        "span": toy_tasks.questions(tmp_path / "squad.json", 8),
        "choice": toy_tasks.choices(tmp_path / "choices.jsonl", 6),
    }
    model_type = json.loads((folder / "config.json").read_text())["model_type"]
    predictions: dict[str, list[dict[str, Any]]] = {}
    for task, file in files.items():
        flags = ("--task", task, "--model", folder, "--train", file, "--eval", file, "--out", tmp_path / task)
        extra = ("--stride", 4) if task == "span" else ()
        how = ("--epochs", 1, "--batch-size", 4, "--lr", 1e-3, "--device", "cpu", "--dtype", "fp32")
        run("finetune", *flags, *extra, *how, "--max-length", 64)
        out = tmp_path / f"{task}.jsonl"
        run("predict", "--model", tmp_path / task, "--text", file, "--out", out, "--device", "cpu", "--dtype", "fp32")
        predictions[task] = [json.loads(line) for line in out.read_text().splitlines()]
        run("evaluate", "--task", task, "--gold", file, "--predictions", out)
        assert type(fastbert.load(tmp_path / task / "model")).architecture.name == model_type
    loaded = {task: _reference(tmp_path / task / "model") for task in files}
    _check_regression(*loaded["regression"], files["regression"], predictions["regression"])
    _check_tags(*loaded["tagging"], predictions["tagging"])
    _check_answers(*loaded["span"], files["span"], predictions["span"])
    _check_choices(*loaded["choice"], files["choice"], predictions["choice"])


def _reference(folder: Path) -> tuple[Any, Any]:
    name = json.loads((folder / "config.json").read_text())["architectures"][0]
    model = getattr(transformers, name).from_pretrained(folder).eval()
    return model, transformers.AutoTokenizer.from_pretrained(folder)


def _tokenizer_of_words(folder: str | Path) -> Any:
    """transformers' tokenizer with a space before the first word, too, which only the class of the family can add."""
    byte_level = (
        json.loads((Path(folder) / "config.json").read_text())["model_type"] == "roberta"
        and (Path(folder) / "merges.txt").is_file()
    )
    kind = transformers.RobertaTokenizer if byte_level else transformers.AutoTokenizer
    return kind.from_pretrained(folder, add_prefix_space=True)


def _outputs(model: Any, tokenizer: Any, *texts: Any, **options: Any) -> tuple[Any, Any]:
    """The outputs for a batch of one, of all that the tokenizer returns by default, and its encoding."""
    row = tokenizer(*texts, return_tensors="pt", **options)
    with torch.no_grad():
        return model(**{name: row[name] for name in tokenizer.model_input_names}), row


def _check_regression(model: Any, tokenizer: Any, file: Path, predictions: list[dict[str, Any]]) -> None:
    for line, prediction in zip(file.read_text().splitlines()[1:], predictions, strict=True):
        _, *pair = line.split("\t")
        output, _ = _outputs(model, tokenizer, *pair, truncation=True, max_length=64)
        assert prediction["score"] == pytest.approx(output.logits.item(), abs=2e-4)


def _check_tags(model: Any, tokenizer: Any, predictions: list[dict[str, Any]]) -> None:
    tokenizer = _tokenizer_of_words(model.config.name_or_path)
    for prediction in predictions:
        output, row = _outputs(model, tokenizer, prediction["words"], is_split_into_words=True)
        numbers = row.word_ids()
        shares, best = output.logits[0].softmax(-1).max(-1)
        first = [i for i, word in enumerate(numbers) if word is not None and numbers[i - 1] != word]
        np.testing.assert_allclose(prediction["probability"], shares[first], atol=2e-4)
        assert prediction["tags"] == [model.config.id2label[label] for label in best[first].tolist()]


def _check_answers(model: Any, tokenizer: Any, file: Path, predictions: list[dict[str, Any]]) -> None:
    paragraphs = json.loads(file.read_text())["data"][0]["paragraphs"]
    for paragraph, prediction in zip(paragraphs, predictions, strict=True):
        question, context = paragraph["qas"][0]["question"], paragraph["context"]
        output, row = _outputs(model, tokenizer, question, context, return_offsets_mapping=True)
        inside = [i for i, sequence in enumerate(row.sequence_ids()) if sequence == 1]
        start, end = output.start_logits[0], output.end_logits[0]
        best = max((start[i].item() + end[j].item(), i, j) for i in inside for j in inside if i <= j < i + 30)
        begin, stop = row["offset_mapping"][0][best[1]][0].item(), row["offset_mapping"][0][best[2]][1].item()
        assert prediction["n_best"][0]["score"] == pytest.approx(best[0], abs=2e-4)
        assert prediction["text"] == context[begin:stop].strip()
        assert prediction["text"] == context[prediction["start"] : prediction["end"]]


def _check_choices(model: Any, tokenizer: Any, file: Path, predictions: list[dict[str, Any]]) -> None:
    for line, prediction in zip(file.read_text().splitlines(), predictions, strict=True):
        record = json.loads(line)
        count = len(record["endings"])
        row = tokenizer([record["prompt"]] * count, record["endings"], return_tensors="pt", padding=True)
        with torch.no_grad():
            logits = model(**{name: row[name][None] for name in tokenizer.model_input_names}).logits[0]
        np.testing.assert_allclose(prediction["probabilities"], logits.softmax(-1), atol=2e-4)


@every_family
def test_files(family: str, tmp_path: Path, seed: int, capsys: pytest.CaptureFixture[str]) -> None:
    folder = save_family(family, tmp_path / "model", seed)
    out = tmp_path / "converted"
    run("convert", folder, "--out", out)
    texts = ["The house was bright.", "", "  un kind "]
    original, converted = (transformers.AutoTokenizer.from_pretrained(path) for path in (folder, out))
    assert original(texts)["input_ids"] == converted(texts)["input_ids"]
    model = transformers.AutoModelForMaskedLM.from_pretrained(out)
    for name, tensor in transformers.AutoModelForMaskedLM.from_pretrained(folder).state_dict().items():
        assert torch.equal(tensor, model.state_dict()[name]), name
    # The manifest lists the tokenizer's files, and a changed one is refused.
    listed = json.loads((out / "fastbert_manifest.json").read_text())
    assert listed["tokenizer"] == load_tokenizer(out).fingerprint
    vocabulary = next(name for name in ("vocab.txt", "tokenizer.json") if (out / name).is_file())
    assert {vocabulary, "tokenizer_config.json", "config.json", "model.safetensors"} <= listed["files"].keys()
    (out / vocabulary).write_text((out / vocabulary).read_text() + "\n")
    capsys.readouterr()
    assert cli.main(["fill-mask", "a [MASK]", "--model", str(out)]) == 2
    assert f"{vocabulary} has" in capsys.readouterr().err

    (tmp_path / "corpus.txt").write_text("\n".join(corpus()[:20]) + "\n")
    run("prepare", "--corpus", tmp_path / "corpus.txt", "--tokenizer", folder, "--out", tmp_path / "shards")
    shards = TokenShards.open(tmp_path / "shards")
    assert shards.fingerprint == load_tokenizer(folder).fingerprint == load_tokenizer(tmp_path / "shards").fingerprint
    assert list(shards.vocabulary) == original.convert_ids_to_tokens(range(len(original)))
    # Byte-level BPE keeps the space between two sentences of a document with the second one.
    space = " " if "bpe" in SHAPES[family] else ""
    texts = [text if number == 0 else space + text for number, text in enumerate(corpus()[:20])]
    expected = original(texts, add_special_tokens=False)["input_ids"]
    assert [shards.sentence(number).tolist() for number in range(20)] == expected
    row = original(["house", "houses", "unlys"], is_split_into_words=True, add_special_tokens=False)
    if "bpe" not in SHAPES[family]:  # which has no spaces in front of words without add_prefix_space
        begins = [index == 0 or row.word_ids()[index - 1] != word for index, word in enumerate(row.word_ids())]
        assert [not continued(shards.vocabulary)[token] for token in row["input_ids"]] == begins


def test_a_decoder_with_byte_level_bpe(tmp_path: Path, seed: int, capsys: pytest.CaptureFixture[str]) -> None:
    """GPT-2 has no special tokens around texts: an empty prompt begins with that of the end of texts."""
    folder = tmp_path / "gpt2"
    folder.mkdir()
    size = save_tokenizer("gpt2", folder)
    torch.manual_seed(seed)
    shape = {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 64, "initializer_range": 0.4}
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    end = tokenizer.eos_token_id
    config = transformers.GPT2Config(vocab_size=size, bos_token_id=end, eos_token_id=end, **shape)
    model = transformers.GPT2LMHeadModel(config).eval()
    model.save_pretrained(folder)
    out = tmp_path / "texts.jsonl"
    prompts = ["the house was", "unkind", ""]
    (tmp_path / "prompts.txt").write_text("\n".join(prompts) + "\n")
    flags = ("--model", folder, "--prompts", tmp_path / "prompts.txt", "--out", out, "--max-new-tokens", 8)
    run("generate", *flags, "--device", "cpu", "--dtype", "fp32")
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    for prompt, line in zip(prompts, lines, strict=True):
        ids = tokenizer(prompt or tokenizer.bos_token, return_tensors="pt")["input_ids"]
        output = model.generate(ids, max_new_tokens=8, do_sample=False, pad_token_id=end)
        new = tokenizer.decode(output[0, ids.shape[1] :], skip_special_tokens=True)
        assert line["text"] == new
    (tmp_path / "corpus.txt").write_text("\n".join(corpus()[:40]) + "\n")
    run("prepare", "--corpus", tmp_path / "corpus.txt", "--tokenizer", folder, "--out", tmp_path / "shards")
    flags = ("--model", folder / "config.json", "--data", tmp_path / "shards", "--out", tmp_path / "run", "--steps", 2)
    run("pretrain", *flags, "--batch-size", 8, "--max-length", 32, "--device", "cpu", "--dtype", "fp32")
    assert fastbert.load(tmp_path / "run").config.pad_token_id == end
    scores = score_with(load_scorer(folder), ["the house", "a"])
    ids = torch.tensor([[end, *tokenizer("the house")["input_ids"]]])
    with torch.no_grad():
        values = model(ids).logits[0, :-1].double().log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0]
    np.testing.assert_allclose(scores.tokens[: scores.offsets[1]], values.numpy(), atol=1e-4)

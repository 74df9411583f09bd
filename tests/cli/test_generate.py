"""`fastbert generate` from flags to texts."""

import json
from pathlib import Path

import pytest
import torch

pytest.importorskip("tyro", reason="the command line needs tyro")

import fastbert
from fastbert import BertConfig, WordPieceTokenizer, cli
from fastbert.errors import UserError
from fastbert.models.causal_generation import TextSettings
from fastbert.models.gpt2.config import GPT2Config
from fastbert.scoring.scorer import load_with_trained_head
from fastbert.tasks.text_generation import continue_texts, load_language_model

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghij", *(f"##{letter}" for letter in "abcdefghij"), "."]
SHAPE = {"vocab_size": len(WORDS), "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
         "intermediate_size": 64, "max_position_embeddings": 24}  # fmt: skip


@pytest.fixture
def model(tmp_path: Path, seed: int) -> Path:
    folder = tmp_path / "gpt"
    torch.manual_seed(seed)
    language_model = fastbert.GPT2LMHeadModel(GPT2Config(**SHAPE, bos_token_id=2, eos_token_id=3))
    with torch.no_grad():
        for parameter in language_model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0.0, 0.3)
    language_model.save_pretrained(folder)
    WordPieceTokenizer(WORDS).save_pretrained(folder)
    return folder


def generate(*flags: object) -> int:
    return cli.main(["generate", *map(str, flags), "--dtype", "fp32", "--device", "cpu", "--quiet"])


def test_files_hold_what_the_library_gives(tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prompts = ["a b c", "", "d", "ab cd . e"] * 12
    (tmp_path / "p.txt").write_text("\n".join(prompts) + "\n")
    out = tmp_path / "texts.jsonl"
    flags = ("--model", model, "--max-new-tokens", 9)
    assert (
        generate(*flags, "--prompts", tmp_path / "p.txt", "--out", out, "--top-k", 5, "--samples", 2, "--seed", 3) == 0
    )
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    language_model, tokenizer = load_language_model(model, torch.float32)
    settings = TextSettings(max_new_tokens=9, top_k=5, seed=3)
    expected = list(continue_texts(language_model, tokenizer, prompts, settings, samples=2))
    assert [line["prompt"] for line in lines] == [prompt for prompt in prompts for _ in range(2)]
    assert [line["text"] for line in lines] == [result.text for result in expected]
    assert len({line["text"] for line in lines}) > 40
    assert all(line["tokens"] <= 9 and line["score"] < 0 for line in lines)
    # A text does not depend on the other prompts.
    alone = list(continue_texts(language_model, tokenizer, prompts[:1], settings, samples=2))
    assert alone == expected[:2]
    assert generate(*flags, "--prompts", tmp_path / "p.txt", "--out", out) == 2
    assert "exists" in capsys.readouterr().err


def test_texts_are_printed_with_their_prompts(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # Prompts are printed as they were given, words that the vocabulary lacks included.
    assert generate("--model", model, "--prompt", "a b", "c d .", "A 1990", "--max-new-tokens", 4, "--beams", 2) == 0
    first, second, third = capsys.readouterr().out.splitlines()
    assert first.startswith("a b")
    assert second.startswith("c d .")
    assert third.startswith("A 1990")


def test_a_model_that_reads_left_to_right_fills_no_blanks(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["fill-mask", "--model", str(model), "a [MASK] b"]) == 2
    assert f"--model {model}: reads left to right, and sees nothing behind a masked token" in capsys.readouterr().err
    with pytest.raises(UserError, match="reads left to right"):
        load_with_trained_head(model, "ForMaskedLM", torch.float32)


def test_a_sample_depends_on_its_number_alone(model: Path, tmp_path: Path) -> None:
    flags = ("--model", model, "--max-new-tokens", 6, "--temperature", 3, "--prompt", "a", "b")
    assert generate(*flags, "--out", tmp_path / "one.jsonl") == 0
    assert generate(*flags, "--samples", 2, "--out", tmp_path / "two.jsonl") == 0
    one, two = (
        [json.loads(line)["text"] for line in (tmp_path / name).read_text().splitlines()]
        for name in ("one.jsonl", "two.jsonl")
    )
    assert two[::2] == one
    assert two[1::2] != one


def test_mistakes_are_one_line(tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bert = tmp_path / "bert"
    fastbert.BertForMaskedLM(BertConfig(**SHAPE)).save_pretrained(bert)
    WordPieceTokenizer(WORDS).save_pretrained(bert)
    headless = tmp_path / "headless"
    fastbert.BertModel(BertConfig(**SHAPE, is_decoder=True)).save_pretrained(headless)
    WordPieceTokenizer(WORDS).save_pretrained(headless)
    for flags, message in (
        (("--model", model, "--prompt", "a", "--max-new-tokens", 24), "the model 24 positions: generate at most 23"),
        (("--model", model), "--prompt is missing: the beginning of a text"),
        (("--model", model, "--prompt", "a", "--prompts", "x.txt"), "give either --prompt or --prompts"),
        (("--model", model, "--prompts", "nothing.txt"), "--prompts nothing.txt"),
        (("--model", model, "--prompt", "a", "--samples", 2), "need a temperature"),
        (("--model", model, "--prompt", "a", "--top-p", 2), "--top-p 2.0 must be above 0 and at most 1"),
        (("--model", bert, "--prompt", "a"), "sees the whole text does not generate"),
        (("--model", headless, "--prompt", "a"), "holds no language-model head"),
        (("--model", model, "--prompt", "a", "--out", "texts.txt"), "must end in .jsonl"),
        (("--model", tmp_path / "nowhere", "--prompt", "a"), "no such folder"),
    ):  # fmt: skip
        assert generate(*flags) == 2, message
        error = capsys.readouterr().err
        assert message in error
        assert len(error.splitlines()) == 1

"""The parts of training: schedule, weight decay, configuration, metrics, fill-mask and the text of the demo."""

import copy
import itertools
import json
from dataclasses import asdict, replace
from pathlib import Path

import cpu_kernels
import pytest
import torch

from fastbert import use_backend
from fastbert.config import BertConfig
from fastbert.data.python_text import python_documents
from fastbert.errors import UserError
from fastbert.models import BertForMaskedLM, BertForPreTraining
from fastbert.ops import dispatch
from fastbert.tasks.fill_mask import fill_mask
from fastbert.tokenizers import WordPieceTokenizer
from fastbert.training.config import Budget, PretrainConfig
from fastbert.training.demo import free_folder
from fastbert.training.metrics import Metrics, read_metrics
from fastbert.training.optimizer import adamw
from fastbert.training.plot import plot_runs
from fastbert.training.schedules import learning_rate_factor


def test_schedule_rises_to_its_peak_and_falls_to_zero() -> None:
    factors = [learning_rate_factor((step + 0.5) / 100, 0.1) for step in range(100)]
    assert factors[0] == pytest.approx(0.05)
    assert max(factors) == pytest.approx(factors[10], abs=1e-9)
    assert all(a < b for a, b in itertools.pairwise(factors[:10]))
    assert all(a > b for a, b in itertools.pairwise(factors[10:]))
    assert 0 < factors[-1] < 0.01
    assert learning_rate_factor(0.0, 0.0) == 1.0


def test_budget_ends_with_whichever_comes_first() -> None:
    assert Budget(steps=10).progress(5, 1e9) == 0.5
    assert Budget(steps=None, seconds=10.0).progress(10**9, 5.0) == 0.5
    assert Budget(steps=10, seconds=10.0).progress(5, 9.0) == 0.9
    assert Budget(steps=10, seconds=10.0).progress(20, 1.0) == 1.0


def test_weight_decay_spares_biases_and_layer_norms() -> None:
    model = BertForPreTraining(BertConfig.preset("tiny", vocab_size=100))
    optimizer = adamw(model, lr=1e-4, weight_decay=0.01)
    decayed, spared = ({id(p) for p in group["params"]} for group in optimizer.param_groups)
    for name, parameter in model.named_parameters():
        bare = name.endswith("bias") or "LayerNorm" in name
        assert (id(parameter) in spared) == bare, name
        assert (id(parameter) in decayed) != bare, name
    assert optimizer.defaults["betas"] == (0.9, 0.999)
    assert optimizer.defaults["eps"] == 1e-6


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"mask_prob": 0.0}, "--mask-prob 0.0 must be above 0"),
        ({"mask_replacement": (80.0, 10.0, 20.0)}, "--mask-replacement 80 10 20 must be three percentages"),
        ({"mask_replacement": (110.0, -10.0, 0.0)}, "--mask-replacement 110 -10 0 must be three percentages"),
        ({"batch_size": 0}, "--batch-size 0 must be at least 1"),
        ({"warmup": 1.0}, "--warmup 1.0 must be from 0 to below 1"),
        ({"max_length": 4}, "--max-length 4 must be at least 5"),
        ({"model": "huge"}, "--model 'huge' is neither a size"),
        ({"resume": True, "overwrite": True}, "exclude each other"),
        ({"batch_size": 256, "micro_batch": 512}, "--micro-batch 512 is larger than --batch-size 256"),
        ({"corpus": (Path("a"),), "data": Path("b")}, "either --corpus or --data"),
        ({"hours": 0.0}, "--hours 0.0 must be above 0"),
    ],
)
def test_flags_out_of_range_are_named(values: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        PretrainConfig(**values)


def test_configuration_survives_json() -> None:
    config = PretrainConfig(corpus=("a.txt", "b"), model="mini", hours=2.0, tokenizer=Path("v"))
    assert PretrainConfig.from_dict(config.to_dict()) == config
    other = replace(config, mask_replacement=(0.0, 25.0, 75.0))
    assert PretrainConfig.from_dict(json.loads(json.dumps(other.to_dict()))) == other
    assert (config.replacement_shares, other.replacement_shares) == ((0.8, 0.1, 0.1), (0.0, 0.25, 0.75))
    with pytest.raises(UserError, match="holds tempo, unknown here"):
        PretrainConfig.from_dict({**config.to_dict(), "tempo": 1})


def record(step: int, split: str = "train") -> Metrics:
    return Metrics(
        step=step, split=split, loss=3.0 / step, mlm_loss=2.0 / step, nsp_loss=None, mlm_accuracy=0.1,
        nsp_accuracy=None, tokens=step * 10, tokens_per_second=5.0, learning_rate=1e-4, seconds=float(step),
    )  # fmt: skip


def test_metrics_survive_a_cut_last_line_but_not_a_damaged_one(tmp_path: Path) -> None:
    from fastbert.training.metrics import MetricsLog

    path = tmp_path / "metrics.jsonl"
    log = MetricsLog(path, None)
    for step in (1, 2, 3):
        log.append(asdict(record(step)))
    with path.open("a") as file:
        file.write('{"step": 4, "spl')
    assert [line.step for line in read_metrics(path)] == [1, 2, 3]
    MetricsLog(path, lambda line: line["step"] <= 2)
    assert read_metrics(path) == [record(1), record(2)]
    kept = path.read_text()
    path.write_text("nonsense\n" + kept)
    with pytest.raises(UserError, match="line 1 is not a metrics record"):
        read_metrics(path)
    for step in ("1e999", "NaN", '"x"', "[]"):
        path.write_text(f'{kept}{{"step": {step}}}\n')
        MetricsLog(path, lambda line: int(line["step"]) <= 2)
        assert path.read_text() == kept


def test_runs_are_plotted_together(tmp_path: Path) -> None:
    from fastbert.training.metrics import MetricsLog

    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        log = MetricsLog(tmp_path / name / "metrics.jsonl", None)
        for step in (1, 2, 3):
            log.append(asdict(record(step)))
        log.append(asdict(record(3, "validation")))
    for ending in ("png", "svg"):
        out = plot_runs([tmp_path / "a", tmp_path / "b"], tmp_path / f"both.{ending}", unigram=2.5, x_axis="tokens")
        assert out.stat().st_size > 1000
    with pytest.raises(UserError, match="no metrics to plot"):
        plot_runs([tmp_path / "c"], tmp_path / "c.png")
    with pytest.raises(UserError, match="end the name in"):
        plot_runs([tmp_path / "a"], tmp_path / "both.doc")
    with pytest.raises(UserError, match="is not a file name"):
        plot_runs([tmp_path / "a"], Path())


@pytest.fixture
def blanks() -> tuple[BertForMaskedLM, WordPieceTokenizer]:
    words = ["the", "cat", "sat", "##s", "mat", "."]
    tokenizer = WordPieceTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words])
    torch.manual_seed(0)
    config = BertConfig.preset("tiny", vocab_size=tokenizer.vocab_size, max_position_embeddings=16)
    return BertForMaskedLM(config), tokenizer


def test_fill_mask_gives_probabilities_of_ordinary_tokens(blanks) -> None:
    model, tokenizer = blanks
    result = fill_mask(model, tokenizer, "the [MASK] sat . [MASK]", top_k=6)
    assert len(result) == 2
    for guesses in result:
        assert [guess.token for guess in guesses] == [t for t in (g.token for g in guesses) if not t.startswith("[")]
        assert sum(guess.probability for guess in guesses) == pytest.approx(1.0, abs=1e-5)
        assert guesses == sorted(guesses, key=lambda guess: -guess.probability)
    best = result[0][0]
    assert best.text == f"the {best.token.removeprefix('##')} sat . [MASK]"


@pytest.mark.parametrize(
    ("text", "top_k", "message"),
    [
        ("no blank", 5, r"no \[MASK\] in 'no blank'"),
        ("[MASK] " * 40, 5, "has 42 tokens, the model reads 16"),
        ("[MASK]", 0, "top_k=0 must be between 1"),
        ("[MASK]", 7, "top_k=7 must be between 1 and the vocabulary's 6 entries that can be an answer"),
        ("\udcff [MASK]", 1, "is not valid Unicode"),
    ],
)
def test_fill_mask_refuses(blanks, text: str, top_k: int, message: str) -> None:
    with pytest.raises(UserError, match=message):
        fill_mask(*blanks, text, top_k)


def test_fill_mask_with_a_vocabulary_of_another_size(blanks) -> None:
    model, tokenizer = blanks
    padded = copy.deepcopy(model)
    padded.resize_token_embeddings(16)
    result = fill_mask(padded, tokenizer, "the [MASK] sat", top_k=6)
    assert sum(guess.probability for guess in result[0]) == pytest.approx(1.0, abs=1e-5)
    tokens = list(tokenizer.vocab)
    for other in (tokens[:-1], [*tokens, "more"]):
        with pytest.raises(UserError, match=f"a vocabulary of 11, but the tokenizer has {len(other)} entries"):
            fill_mask(model, WordPieceTokenizer(other), "the [MASK] sat", top_k=5)


def test_fill_mask_refuses_a_head_that_was_never_trained(blanks, tmp_path: Path) -> None:
    model, tokenizer = blanks
    model.bert.save_pretrained(tmp_path)
    bare = BertForMaskedLM.from_pretrained(tmp_path)
    assert "cls.predictions.bias" in bare.new_weights
    with pytest.raises(UserError, match="hold no masked-LM head"):
        fill_mask(bare, tokenizer, "the [MASK] sat")


def test_the_text_that_comes_with_python_is_prose_and_the_same_each_time() -> None:
    first = list(itertools.islice(python_documents(), 40))
    again = list(itertools.islice(python_documents(), 40))
    assert first == again
    assert sum(len(sentence) for document in python_documents(300_000) for sentence in document) <= 300_000
    sentences = [sentence for document in first for sentence in document]
    assert all("\n" not in sentence and ">>>" not in sentence for sentence in sentences)
    assert sum(" the " in sentence for sentence in sentences) > 0.3 * len(sentences)


def test_demo_takes_a_folder_of_its_own(tmp_path: Path) -> None:
    assert free_folder(tmp_path / "demo") == tmp_path / "demo"
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo-2").mkdir()
    assert free_folder(tmp_path / "demo") == tmp_path / "demo-3"


@pytest.mark.parametrize(
    ("kernel", "inference", "training"),
    [
        ("amx", "bf16", "bf16"),
        ("avx512-bf16", "bf16", "bf16"),
        ("avx512", "fp32", "bf16"),
        ("avx2", "fp32", "fp32"),
        ("portable", "fp32", "fp32"),
    ],
)
def test_the_fastest_dtype_of_a_cpu(kernel: str, inference: str, training: str) -> None:
    names, cpu = {torch.bfloat16: "bf16", torch.float32: "fp32"}, torch.device("cpu")
    with cpu_kernels.running(kernel):
        assert names[dispatch.fastest_dtype(cpu)[0]] == inference
        assert names[dispatch.fastest_dtype(cpu, training=True)[0]] == training
        if kernel == "avx512":
            with use_backend("eager"):  # torch's library would convert each operand
                assert dispatch.fastest_dtype(cpu, training=True)[0] == torch.float32

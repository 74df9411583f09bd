"""Compare released tokenizers with the `tokenizers` library on a large number of hostile texts, for the record.

    python tests/parity_record.py --texts 1000000 --out record.json --data DATA/tokenizers [--families gpt2 ...]

Each family's row holds the number of texts, of differences and of seconds, as in `benchmarks/results/tokenizer-checks`.
Ids, offsets and words are compared, with and without positions. Without differences the exit code is 0.
"""

import argparse
import importlib.metadata
import json
import lzma
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from hostile_texts import hostile_texts
from tokenizer_parity import FAMILIES, differences, read_both

BATCH = 1_000


def compare(file: Path, seed: str, texts: int, seconds: float) -> tuple[int, list[tuple[str, str]]]:
    """Compare up to some number of texts, or for some time; return their number and those that differ."""
    ours, reference = read_both(file)
    rng, end = random.Random(seed), time.monotonic() + seconds
    done, found = 0, []
    while done < texts and time.monotonic() < end:
        batch = hostile_texts(rng, BATCH)
        found += differences(ours, reference, batch)
        done += len(batch)
    return done, found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the folder of tokenizers, one folder each")
    parser.add_argument("--families", nargs="+", choices=FAMILIES, default=list(FAMILIES))
    parser.add_argument("--texts", type=int, default=1_000_000, help="texts per family")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop a family after this time")
    parser.add_argument("--seed", type=int, default=2026)
    parser.add_argument("--out", type=Path, help="the rows as JSON")
    arguments = parser.parse_args()
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=Path(__file__).parent
    )
    rows, differing = [], 0
    for family in arguments.families:
        begin = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "tokenizer.json"
            file.write_bytes(lzma.decompress((arguments.data / f"{FAMILIES[family]}.xz").read_bytes()))
            texts, found = compare(file, f"{arguments.seed} {family}", arguments.texts, arguments.seconds)
        rows.append(
            {
                "workload": f"hostile texts against tokenizers: {family}",
                "command": f"python tests/parity_record.py --seed {arguments.seed} --families {family} --texts {texts}",
                "texts": texts,
                "differences": len(found),
                "seconds": round(time.monotonic() - begin),
                "commit": commit.stdout.strip(),
                "versions": {"tokenizers": importlib.metadata.version("tokenizers")},
            }
        )
        differing += len(found)
        print(json.dumps(rows[-1]), *(ascii(pair) for pair in found[:3]), sep="\n", flush=True)
        if arguments.out:
            arguments.out.write_text(json.dumps(rows, indent=1) + "\n")
    return int(differing > 0)


if __name__ == "__main__":
    sys.exit(main())

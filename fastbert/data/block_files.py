"""The files of token shards that streaming needs: what the planning of samples reads, and checksums of blocks.

`fastbert.data.prepare` writes them beside the tokens of each shard:

    shard-00000.continuations.bin    a bit per token, the lowest first: it continues a word; samples are cut between
                                     words, so that they can be planned without the tokens
    shard-00000.checksums.bin        uint32 per block of `BLOCK_BYTES` of the tokens' file: its CRC-32C

The index lists both among the shard's files, with the size of a block, and the tokenizer's files. Readers of local
shards ignore all of these.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastbert.data.shards import HashedFile, shard_files
from fastbert.io.checksums import crc32c

BLOCK_BYTES = 1 << 16
"""Small, because a sample, of a few hundred bytes, is read from a block of its own; the checksums are a sixteenth of a
thousandth of the tokens."""
CHECKSUM_DTYPE = np.dtype("<u4")
_SLAB = 1 << 22  # tokens in memory; a multiple of the tokens of a block and of 8


def block_file_names(number: int) -> dict[str, str]:
    """Return the names of these files of a shard."""
    return {kind: f"shard-{number:05d}.{kind}.bin" for kind in ("continuations", "checksums")}


def num_blocks(tokens: int, itemsize: int) -> int:
    """Return the number of blocks of a file of tokens; the last one may be shorter."""
    return -(-tokens * itemsize // BLOCK_BYTES)


def write_block_files(
    folder: Path, number: int, dtype: np.dtype[Any], flags: NDArray[np.bool_]
) -> dict[str, dict[str, Any]]:
    """Write these files of a shard from its tokens; return their entries for the index.

    `flags` bool (vocab_size,) tells which ids continue a word.
    """
    files = {kind: HashedFile(folder / name) for kind, name in block_file_names(number).items()}
    with (folder / shard_files(number)["tokens"]).open("rb") as tokens:  # a map of them would count as memory
        while len(slab := np.fromfile(tokens, dtype, _SLAB)):
            files["continuations"].write(np.packbits(flags[slab], bitorder="little"))
            content = slab.data.cast("B")
            sums = [crc32c(content[i : i + BLOCK_BYTES]) for i in range(0, len(content), BLOCK_BYTES)]
            files["checksums"].write(np.array(sums, CHECKSUM_DTYPE))
    return {kind: file.close() for kind, file in files.items()}

"""`python -m fastbert` is the `fastbert` command, and so is this file when it is run by its path."""

import sys
from pathlib import Path

if not __package__:
    # Run by its path, Python searches this folder first, where `tokenizers` and others hide packages of these names.
    sys.path[:] = [entry for entry in sys.path if Path(entry).resolve() != Path(__file__).resolve().parent]

from fastbert.cli import main

sys.exit(main())

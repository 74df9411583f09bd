"""Candidates for the masks of texts, from a masked-LM head."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch

from fastbert.errors import UserError
from fastbert.packing import PackedBatch
from fastbert.serving.jobs import Job, Operation, TooLong
from fastbert.serving.operations.texts import TextReader
from fastbert.serving.served_model import ServedModel
from fastbert.tasks.fill_mask import candidates_of, check_count, guesses, no_mask, with_mask

MOST_CANDIDATES = 100
MOST_MASKS = 64
"""Masks per text."""
MOST_ANSWERS = 20_000
"""Candidates per request, each of which is an object with its own copy of the text."""


class FillMask(Operation):
    """Candidates for each mask of each text. Options: `top_k`."""

    name: ClassVar[str] = "fill_mask"

    def __init__(self, served: ServedModel) -> None:
        super().__init__(served)
        self.reader: TextReader = TextReader(served.tokenizer, served.max_length)
        tokenizer = served.tokenizer
        self._candidates = min(MOST_CANDIDATES, len(tokenizer) - len(tokenizer.all_special_ids))

    def tokenize(self, jobs: Sequence[Job]) -> None:
        tokenizer = self.served.tokenizer
        for job in jobs:
            if job.options["top_k"] > MOST_CANDIDATES:
                job.error = UserError(f"top_k={job.options['top_k']} must be at most {MOST_CANDIDATES}")
                continue
            check_count(tokenizer, job.options["top_k"])
            job.inputs = [with_mask(tokenizer, text) for text in job.inputs]
            self.reader.read([job])
            if job.rows is None:
                continue
            is_mask = job.rows.input_ids == tokenizer.mask_token_id
            answers = int(is_mask.sum()) * job.options["top_k"]
            if answers > MOST_ANSWERS:
                job.error = TooLong(
                    f"inputs has masks for {answers} candidates, and the limit is {MOST_ANSWERS}: ask for a smaller"
                    " top_k, or send several requests"
                )
                continue
            for index, text in enumerate(job.inputs):
                masks = int(is_mask[job.rows.offsets[index] : job.rows.offsets[index + 1]].sum())
                if not masks:
                    job.error = no_mask(tokenizer, text if len(text) <= 60 else f"{text[:57]}...")
                elif masks > MOST_MASKS:
                    job.error = UserError(f"inputs[{index}] has {masks} masks, and the limit is {MOST_MASKS}: split it")

    def compute(self, batch: PackedBatch) -> Sequence[Any]:
        """Return probabilities and ids of the best tokens at the masks of each row, (masks, candidates) each."""
        is_mask = batch.input_ids == self.served.tokenizer.mask_token_id
        positions = is_mask.nonzero().flatten()
        row = batch.sequence_ids[positions].tolist()
        best = candidates_of(
            self.model, self.served.tokenizer, batch, positions, self._candidates, lambda mask: f"row {row[mask]}"
        )
        counts = torch.bincount(batch.sequence_ids[positions], minlength=len(batch)).tolist()
        return list(zip(best[0].cpu().split(counts), best[1].cpu().split(counts), strict=True))

    def finish(self, job: Job) -> list[list[list[dict[str, Any]]]]:
        """Return the candidates of each mask of each text: `score`, `token`, `token_str` and `sequence`."""
        top_k, rows = job.options["top_k"], job.rows
        assert rows is not None
        answers = []
        for index, (text, (values, tokens)) in enumerate(zip(job.inputs, job.outputs, strict=True)):
            ids = rows.input_ids[rows.offsets[index] : rows.offsets[index + 1]].tolist()
            blanks = guesses(self.served.tokenizer, text, ids, values[:, :top_k].tolist(), tokens[:, :top_k].tolist())
            answers.append(
                [
                    [
                        {
                            "score": float(f"{guess.probability:.9g}"),
                            "token": guess.token_id,
                            "token_str": guess.token,
                            "sequence": guess.text,
                        }
                        for guess in blank
                    ]
                    for blank in blanks
                ]
            )
        return answers

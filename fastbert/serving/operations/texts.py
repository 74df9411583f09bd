"""Texts or token ids as rows with special tokens, truncated before they are computed: the inputs of most operations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fastbert.errors import UserError
from fastbert.serving.jobs import Job, TooLong
from fastbert.tasks.row_template import RowTemplate
from fastbert.tasks.rows import Rows, bounds
from fastbert.tokenizers.tokenizer import Tokenizer

Text = str | list[int]
MOST_NUMBERS = 1 << 24
"""Numbers of an answer with a vector per token: 32 texts of 512 tokens, of 1,024 numbers each; 200 MB of JSON."""


class TextReader:
    """Tokenize the inputs of jobs in one call. Their options `truncate` (bool), `left` (bool: truncation removes the
    beginning) and `prompt` (str) count, and for errors `field` (str: the inputs' name in the request)."""

    def __init__(self, tokenizer: Tokenizer, max_length: int) -> None:
        self.tokenizer = tokenizer
        self.max_length = max_length
        self.template: RowTemplate = RowTemplate.of(tokenizer)
        self._vocabulary = len(tokenizer)

    def read(self, jobs: Sequence[Job]) -> None:
        """Set the rows of jobs. Raises `TooLong` and `UserError` for one job; for several, each error is its own."""
        texts: list[str] = []
        for job in jobs:
            prompt = job.options.get("prompt") or ""
            texts += [prompt + text if prompt else text for text in job.inputs if isinstance(text, str)]
        whole = any(job.options.get("left") for job in jobs)
        # One token more than is kept identifies longer texts.
        most = None if whole else self.max_length + 1
        ids, offsets = self.tokenizer.encode_ragged(texts, True, max_length=most, threads=1)
        position = 0
        for job in jobs:
            count = sum(isinstance(text, str) for text in job.inputs)
            own = offsets[position : position + count + 1]
            position += count
            try:
                job.set_rows(self._rows(job, ids, own))
            except UserError as error:
                job.error = error

    def _rows(self, job: Job, ids: np.ndarray, offsets: np.ndarray) -> Rows:
        is_plain = len(offsets) == len(job.inputs) + 1
        if is_plain and (np.diff(offsets) <= self.max_length).all():
            flat = ids[offsets[0] : offsets[-1]]
            return _of(flat, offsets - offsets[0])
        rows, texts = [], iter(range(len(offsets) - 1))
        for index, text in enumerate(job.inputs):
            if isinstance(text, str):
                number = next(texts)
                row = ids[offsets[number] : offsets[number + 1]]
            else:
                row = self._of_ids(text, index, len(job.inputs), field_of(job))
            rows.append(self._fitted(row, job, index))
        return _of(np.concatenate(rows), bounds(np.array([len(row) for row in rows])))

    def _of_ids(self, ids: Sequence[int], index: int, count: int, field: str) -> np.ndarray:
        """Return token ids as a row: as they are if they have the special tokens of a row, else between these."""
        name = field if count == 1 else f"{field}[{index}]"
        wrong = next((token for token in ids if not 0 <= token < self._vocabulary), None)
        if wrong is not None:
            raise UserError(
                f"{name} holds the token id {wrong}, and the model's vocabulary has {self._vocabulary}: give ids of its"
                " own tokenizer (POST /tokenize), or the text"
            )
        row, template = np.array(ids, dtype=np.int32), self.template
        before, behind = len(template.before), len(template.behind)
        has_special = (
            len(row) >= before + behind
            and (row[:before] == template.before).all()
            and (row[len(row) - behind :] == template.behind).all()
        )
        if has_special and len(row):
            return row
        return np.concatenate((template.before, row, template.behind)).astype(np.int32)

    def _fitted(self, row: np.ndarray, job: Job, index: int) -> np.ndarray:
        """Return a row, truncated if the job allows it."""
        most = self.max_length
        if not len(row):
            raise UserError(f"{field_of(job)}[{index}] has no tokens, and this tokenizer adds none: leave it out")
        if len(row) <= most:
            return row
        if not job.options.get("truncate"):
            raise too_long(index, most, field_of(job))
        job.truncated += 1
        before, behind = len(self.template.before), len(self.template.behind)
        row = row.copy()
        if job.options.get("left"):
            row = np.concatenate((row[:before], row[len(row) - (most - before) :]))
        row = row[:most]
        row[most - behind :] = self.template.behind
        return row


class PairReader:
    """Tokenize pairs of texts, or single ones, in one call; the longer text of a pair is truncated first."""

    def __init__(self, tokenizer: Tokenizer, max_length: int) -> None:
        self.tokenizer = tokenizer
        self.max_length = max_length

    def read(self, jobs: Sequence[Job]) -> None:
        """Set the rows of jobs whose inputs are (text, pair) or (text, None)."""
        groups: dict[tuple[bool, bool], list[Job]] = {}
        for job in jobs:
            kinds = {second is not None for _, second in job.inputs}
            if len(kinds) > 1:
                self._read_mixed(job)
            else:
                groups.setdefault((kinds.pop(), bool(job.options.get("left"))), []).append(job)
        for (is_pair, left), group in groups.items():
            inputs = [item for job in group for item in job.inputs]
            rows = self._rows(inputs, is_pair, left)
            position = 0
            for job in group:
                end = position + len(job.inputs)
                self._set(job, rows, position, end)
                position = end

    def _read_mixed(self, job: Job) -> None:
        """Set the rows of a job with single texts and pairs."""
        left = bool(job.options.get("left"))
        each = [self._rows([item], item[1] is not None, left) for item in job.inputs]
        rows = Rows(
            input_ids=np.concatenate([rows.input_ids for rows in each]),
            token_type_ids=np.concatenate([rows.token_type_ids for rows in each]),
            offsets=bounds(np.array([rows.offsets[-1] for rows in each])),
            examples=np.arange(len(each)),
        )
        self._set(job, rows, 0, len(each))

    def _rows(self, inputs: Sequence[tuple[str, str | None]], is_pair: bool, left: bool) -> Rows:
        """Return rows of at most one token more than the model reads, which identifies longer ones."""
        most = self.max_length + 1
        firsts = [first for first, _ in inputs]
        seconds: Any = [second for _, second in inputs] if is_pair else None
        if left:
            encoding = self.tokenizer(
                firsts, seconds, truncation=True, max_length=most, truncation_side="left",
                return_token_type_ids=True, verbose=False, threads=1,
            )  # fmt: skip
            ids, types = encoding["input_ids"], encoding["token_type_ids"]
            return Rows(
                input_ids=np.concatenate([np.array(row, dtype=np.int32) for row in ids]),
                token_type_ids=np.concatenate([np.array(row, dtype=np.int32) for row in types]),
                offsets=bounds(np.array([len(row) for row in ids])),
                examples=np.arange(len(ids)),
            )
        batch = self.tokenizer.pack(firsts, seconds, max_length=most)
        return Rows(
            input_ids=batch.input_ids.numpy().astype(np.int32),
            token_type_ids=batch.token_type_ids.numpy().astype(np.int32),
            offsets=batch.cu_seqlens.numpy().astype(np.int64),
            examples=np.arange(len(inputs)),
        )

    def _set(self, job: Job, rows: Rows, first: int, end: int) -> None:
        """Set a job's rows, those from `first` to `end`; truncate the long ones if the job allows it."""
        lengths = rows.lengths[first:end]
        long = np.flatnonzero(lengths > self.max_length)
        if len(long) and not job.options.get("truncate"):
            job.error = too_long(int(long[0]), self.max_length, field_of(job))
            return
        job.truncated = len(long)
        ids, types = [], []
        shorter = self._shorter(job, long.tolist()) if len(long) else {}
        for index in range(first, end):
            tokens = slice(rows.offsets[index], rows.offsets[index + 1])
            row = shorter.get(index - first)
            ids.append(rows.input_ids[tokens] if row is None else row.input_ids)
            types.append(rows.token_type_ids[tokens] if row is None else row.token_type_ids)
        job.set_rows(
            Rows(
                input_ids=np.concatenate(ids),
                token_type_ids=np.concatenate(types),
                offsets=bounds(np.array([len(row) for row in ids])),
                examples=np.arange(end - first),
            )
        )

    def _shorter(self, job: Job, indices: Sequence[int]) -> dict[int, Rows]:
        """Return the rows of a job's inputs, truncated to what the model reads."""
        reader = PairReader(self.tokenizer, self.max_length - 1)
        left = bool(job.options.get("left"))
        return {index: reader._rows([job.inputs[index]], job.inputs[index][1] is not None, left) for index in indices}


def field_of(job: Job) -> str:
    """Return the name of a job's inputs in its request."""
    return str(job.options.get("field", "inputs"))


def check_numbers(job: Job, width: int) -> None:
    """Set the error of a job whose answer, a vector of `width` numbers per token, is too large."""
    if job.error is None and job.tokens * width > MOST_NUMBERS:
        job.error = TooLong(
            f"{field_of(job)} has {job.tokens} tokens, and the limit is {MOST_NUMBERS // width} where each has a"
            " vector: send several requests"
        )


def too_long(index: int, most: int, field: str = "inputs") -> TooLong:
    """Return the error of an input that has more tokens than the model reads."""
    cure = "" if field == "input" else ', or ask for "truncate": true'  # OpenAI's requests cannot
    return TooLong(f"{field}[{index}] has more than {most} tokens, which is what the model reads: shorten it{cure}")


def _of(ids: np.ndarray, offsets: np.ndarray) -> Rows:
    return Rows(input_ids=ids, token_type_ids=np.zeros_like(ids), offsets=offsets, examples=np.arange(len(offsets) - 1))

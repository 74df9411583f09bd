"""InfoNCE: each anchor's positive among all candidates of the batch, with false negatives left out."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import torch
from torch import Tensor
from torch.nn import functional as F

from fastbert.errors import UserError
from fastbert.losses import similarities
from fastbert.losses.checks import Shapes, check_values, divisor, in_working_precision, require_number
from fastbert.losses.similarities import Similarity


def info_nce(
    anchors: Tensor,
    candidates: Tensor,
    positives: Tensor | None = None,
    *,
    temperature: float = 0.05,
    similarity: Similarity = "cosine",
    symmetric: bool = False,
    excluded: Tensor | None = None,
    items: float | None = None,
) -> Tensor:
    """Compute the cross-entropy of each anchor's positive among all candidates: an fp32 scalar.

    mean over i of -log(exp(s(i, p_i) / T) / sum over j of exp(s(i, j) / T)), the InfoNCE of van den Oord et al. 2018
    with the negatives of the batch (Henderson et al. 2017); sentence-transformers' MultipleNegativesRankingLoss.

    `anchors` (n, d) and `candidates` (m, d) of any floating dtype; hard negatives are candidates that are nobody's
    positive. `positives` int64 (n,): the row of each anchor's positive among the candidates; default: 0, 1, 2, ...
    `excluded` bool (n, m): candidates that do not count for an anchor, as `duplicate_mask` finds them; an anchor's own
    positive always counts.

    `symmetric` averages this with the reverse direction: each of the n positives, its anchor among all anchors.
    `excluded` then holds in both directions, and anchors that share a positive are no negatives of it. All anchors must
    be in the call; of anchors that are spread over ranks, the reverse direction is the `info_nce` of the rank's own
    positives among all ranks' anchors.

    `items`: divisor of the sum over anchors instead of n, for a batch that is computed in parts. With one candidate
    the loss and its gradient are 0. Raises UserError for wrong shapes, options and indices.

    Example:
        >>> import torch
        >>> from fastbert import losses
        >>> queries, documents = torch.eye(3, 8), torch.eye(5, 8)  # two hard negatives behind the positives
        >>> round(losses.info_nce(queries, documents, temperature=1.0).item(), 3)
        0.905
        >>> losses.info_nce(torch.randn(3, 8, requires_grad=True), documents, symmetric=True).requires_grad
        True
    """
    shapes = Shapes()
    shapes.check("anchors", anchors, "n d")
    shapes.check("candidates", candidates, "m d")
    scores = similarities.similarity(anchors, candidates, similarity)
    return info_nce_from_scores(
        scores, positives, temperature=temperature, symmetric=symmetric, excluded=excluded, items=items
    )


def info_nce_from_scores(
    scores: Tensor,
    positives: Tensor | None = None,
    *,
    temperature: float = 1.0,
    symmetric: bool = False,
    excluded: Tensor | None = None,
    items: float | None = None,
) -> Tensor:
    """Compute the `info_nce` of a matrix of scores, such as MaxSim's or a cross-encoder's: an fp32 scalar.

    `scores` (n, m) of any floating dtype: of each anchor with each candidate. `positives` int64 (n,), `excluded` bool
    (n, m), `symmetric` and `items` follow `info_nce`; the scores are divided by `temperature`, which is 1 by default,
    as sums over tokens are large. Raises UserError for wrong shapes, options and indices.

    Example:
        >>> import torch
        >>> from fastbert import losses
        >>> scores = torch.tensor([[2.0, 0.0], [0.0, 2.0]])
        >>> round(losses.info_nce_from_scores(scores).item(), 3)
        0.127
    """
    shapes = Shapes()
    shapes.check("scores", scores, "n m")
    require_number("temperature", temperature, above=0)
    rows = _rows_of_positives(scores.shape, positives, scores.device, shapes)
    count = divisor(items, len(rows))
    (scores,) = in_working_precision(scores)
    logits = scores / temperature
    if excluded is not None:
        shapes.check("excluded", excluded, "n m", "bool")
        excluded = excluded.scatter(1, rows[:, None], False)
        logits = logits.masked_fill(excluded, float("-inf"))
    total = F.cross_entropy(logits, rows, reduction="sum")
    if symmetric:
        reverse = (scores / temperature).index_select(1, rows).T
        shared = rows[:, None] == rows
        if excluded is not None:
            shared = shared | excluded.index_select(1, rows).T
        reverse = reverse.masked_fill(shared.fill_diagonal_(False), float("-inf"))
        index = torch.arange(len(rows), device=rows.device)
        total = (total + F.cross_entropy(reverse, index, reduction="sum")) / 2
    return total / count


def duplicate_mask(
    anchor_keys: Tensor,
    candidate_keys: Tensor,
    positives: Tensor | None = None,
    *,
    anchor_text_keys: Tensor | None = None,
) -> tuple[Tensor, int]:
    """Find the false negatives of a batch: a mask bool (n, m) for `info_nce`, and the number of pairs in it.

    A candidate is a false negative of an anchor, unless it is its positive, if

    1. it has the key of the anchor's positive, or of the positive of an anchor with the same key; or
    2. it has the key of the anchor's own text.

    `anchor_keys` int64 (n,): equal for equal anchors, such as the ids of queries or the hashes of `text_keys`.
    `candidate_keys` int64 (m,): equal for equal candidates. `anchor_text_keys` int64 (n,): the anchors' keys among
    those of candidates, for the second rule; None, the default, if candidates have other keys, such as ids of their
    own. If both are hashes of texts, give `anchor_keys` again. `positives` int64 (n,): as in `info_nce`. With
    candidates of other ranks, give all ranks' anchors and use the mask's own rows: the anchors of other ranks have
    positives too.

    Memory is (n, m) bytes and at most as much for the table of keys. Raises UserError for wrong shapes and indices.

    Example:
        >>> import torch
        >>> from fastbert import losses
        >>> questions = losses.text_keys(["who?", "where?", "who?"])
        >>> answers = losses.text_keys(["me", "here", "you"])
        >>> mask, pairs = losses.duplicate_mask(questions, answers)
        >>> pairs, mask.int().tolist()
        (2, [[0, 0, 1], [0, 0, 0], [1, 0, 0]])
    """
    shapes = Shapes()
    shapes.check("anchor_keys", anchor_keys, "n", "integer")
    shapes.check("candidate_keys", candidate_keys, "m", "integer")
    size = torch.Size((len(anchor_keys), len(candidate_keys)))
    rows = _rows_of_positives(size, positives, candidate_keys.device, shapes)
    anchor_values, anchor_groups = anchor_keys.unique(return_inverse=True)
    candidate_values, candidate_groups = candidate_keys.unique(return_inverse=True)
    matches = torch.zeros(len(anchor_values), len(candidate_values), dtype=torch.bool, device=rows.device)
    matches[anchor_groups, candidate_groups[rows]] = True
    mask = matches[anchor_groups][:, candidate_groups]
    if anchor_text_keys is not None:
        shapes.check("anchor_text_keys", anchor_text_keys, "n", "integer")
        mask |= anchor_text_keys[:, None] == candidate_keys
    mask = mask.scatter(1, rows[:, None], False)
    return mask, int(mask.sum())


def text_keys(texts: Iterable[str]) -> Tensor:
    """Hash texts to int64 (texts,): equal texts have equal keys, in every process and on every machine.

    Different texts share a key with a probability of 2^-64 per pair (BLAKE2b). Raises UserError for an item that is not
    a text.

    Example:
        >>> from fastbert import losses
        >>> keys = losses.text_keys(["one", "two", "one"])
        >>> keys.shape, bool(keys[0] == keys[2]), bool(keys[0] == keys[1])
        (torch.Size([3]), True, False)
    """
    keys: list[int] = []
    for index, text in enumerate(texts):
        if not isinstance(text, str):
            raise UserError(f"texts[{index}] is of type {type(text).__name__}; give strings")
        digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
        keys.append(int.from_bytes(digest, "little", signed=True))
    return torch.tensor(keys, dtype=torch.int64)


def _rows_of_positives(size: torch.Size, positives: Tensor | None, device: torch.device, shapes: Shapes) -> Tensor:
    anchors, candidates = size
    if positives is None:
        if candidates < anchors:
            raise UserError(
                f"{candidates} candidates for {anchors} anchors: give `positives`, the candidate of each anchor"
            )
        return torch.arange(anchors, device=device)
    shapes.check("positives", positives, "n", "integer")
    check_values("positives", positives, 0, candidates - 1)
    return positives.long()

"""Scale the scores of pairs to 0..1, the range of a cosine or a sigmoid."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from fastbert.errors import UserError
from fastbert.io.log import logger
from fastbert.tasks.readers.text_groups import TextGroups

Range = tuple[float, float]
STS = (0.0, 5.0)
"""The scores of STS-B and the other semantic similarity tasks of SemEval."""


def find_score_range(files: Iterable[TextGroups]) -> Range | None:
    """Return the range of the scores of several files together: None if all are in -1..1, (0, 5) if all are in 0..5.

    Give files that share a scale together: one of them may hold small scores only. Raises UserError, with file and
    line, for a score in neither range.
    """
    scores = [(label, where) for groups in files for label, where in _scores(groups)]
    outside = [score for score in scores if not -1 <= score[0] <= 1]
    if not outside:
        return None
    # With scores above 1, negative ones are in neither range.
    for label, where in scores:
        if not STS[0] <= label <= STS[1]:
            raise UserError(
                f"{where}: the score {label:g} is neither between -1 and 1 nor, as all of the file, between 0 and 5;"
                " give the range as --score-range LOW HIGH"
            )
    return STS


def scaled_scores(groups: TextGroups, range: Sequence[float] | None = None) -> tuple[float, ...]:
    """Return the score of each group, in the order of the groups.

    With a `range` (low, high), scores are `(score - low) / (high - low)`, in 0..1. Without one, scores in -1..1 are
    returned as they are, and scores in 0..5 divided by 5, which is logged. The file is judged by itself: correlations,
    by which models are chosen, do not depend on the scale, and files of several sources may have different ones. Raises
    UserError, with file and line, for other scores, for one outside `range`, and for a group without a score.
    """
    if range is None:
        chosen = find_score_range([groups])
        if chosen is None:
            return tuple(label for label, _ in _scores(groups))
        logger.warning("%s: scores are between 0 and 5 and divided by 5; --score-range sets another range", groups.path)
    else:
        chosen = check_score_range(range)
    low, high = chosen
    scaled = []
    for label, where in _scores(groups):
        if not low <= label <= high:
            raise UserError(
                f"{where}: the score {label:g} is outside --score-range {low:g} {high:g}; correct the score or"
                " the range"
            )
        scaled.append((label - low) / (high - low))
    return tuple(scaled)


def check_score_range(range: Sequence[float]) -> Range:
    """Return the range that `--score-range` gives. Raises UserError unless it is two finite numbers, the lower one
    first."""
    if len(range) != 2 or not -1e300 < range[0] < range[1] < 1e300:
        shown = " ".join(f"{value:g}" for value in range)
        raise UserError(f"--score-range {shown} must be two finite numbers, the lower one first")
    return float(range[0]), float(range[1])


def _scores(groups: TextGroups) -> Iterator[tuple[float, str]]:
    """Yield the score of each group, and where it stands."""
    for i, group in enumerate(groups):
        if group.labels is None or len(group.labels) != 1:
            raise UserError(f"{groups.where(i)}: has no score; the file must hold two texts and their score per row")
        yield group.labels[0], groups.where(i)

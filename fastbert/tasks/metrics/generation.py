"""Metrics of written text: ROUGE by rouge-score, BLEU by sacreBLEU; in percent."""

from __future__ import annotations

from collections.abc import Sequence

from fastbert.tasks.metrics.library import library

ROUGES = ("rouge1", "rouge2", "rougeL")


def generation_scores(references: Sequence[str], written: Sequence[str]) -> dict[str, float]:
    """`rougeL`, `rouge1`, `rouge2` (the mean F-measures over the examples, with Porter's stemmer, as summarisation
    reports them) and `bleu` (of the corpus, sacreBLEU's defaults: tokenizer 13a, mixed case), in percent.

    ROUGE knows the letters a to z and digits only: of other scripts it sees nothing.
    """
    if len(references) != len(written) or not references:
        raise ValueError(f"{len(written)} texts for {len(references)} references; there must be one for each")
    scorer = library("rouge_score.rouge_scorer").RougeScorer(list(ROUGES), use_stemmer=True)
    sums = dict.fromkeys(ROUGES, 0.0)
    for reference, text in zip(references, written):
        for name, score in scorer.score(reference, text).items():
            sums[name] += score.fmeasure
    means = {name: 100 * total / len(references) for name, total in sums.items()}
    bleu = library("sacrebleu").corpus_bleu(list(written), [list(references)]).score
    return {"rougeL": means["rougeL"], "rouge1": means["rouge1"], "rouge2": means["rouge2"], "bleu": float(bleu)}

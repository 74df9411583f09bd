"""Metrics of generated text: ROUGE by rouge-score, BLEU and chrF by sacreBLEU, exact match; in percent."""

from __future__ import annotations

from collections.abc import Sequence

from fastbert.tasks.metrics.library import library

ROUGES = ("rouge1", "rouge2", "rougeL")


def generation_scores(references: Sequence[str], generated: Sequence[str]) -> dict[str, float]:
    """Compute `rougeL`, `rouge1`, `rouge2` (mean F-measures over the examples, with Porter's stemmer, as usual for
    summarisation), `bleu` and `chrf` (of the corpus, sacreBLEU's defaults: tokenizer 13a, mixed case; character
    6-grams), and `exact_match`, the share of texts that equal their reference but for white space; in percent.

    ROUGE reads only the letters a to z and digits; it ignores other scripts.
    """
    if len(references) != len(generated) or not references:
        raise ValueError(f"{len(generated)} texts for {len(references)} references; there must be one for each")
    scorer = library("rouge_score.rouge_scorer").RougeScorer(list(ROUGES), use_stemmer=True)
    sums = dict.fromkeys(ROUGES, 0.0)
    for reference, text in zip(references, generated):
        for name, score in scorer.score(reference, text).items():
            sums[name] += score.fmeasure
    means = {name: 100 * total / len(references) for name, total in sums.items()}
    sacrebleu = library("sacrebleu")
    bleu = sacrebleu.corpus_bleu(list(generated), [list(references)]).score
    chrf = sacrebleu.corpus_chrf(list(generated), [list(references)]).score
    same = sum(reference.split() == text.split() for reference, text in zip(references, generated))
    return {
        **{name: means[name] for name in ("rougeL", "rouge1", "rouge2")},
        "bleu": float(bleu),
        "chrf": float(chrf),
        "exact_match": 100 * same / len(references),
    }

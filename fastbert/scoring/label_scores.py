"""Log-probabilities of labels from hidden states, without the logits of all rows at once."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fastbert.models.heads.prediction import VocabularyHead

LOGITS = 1 << 23
"""Logits per matmul with the vocabulary, 32 MB of fp32."""


def label_scores(head: VocabularyHead, x: Tensor, rows: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return the natural logarithm of the probability of each label, float64 (labels,).

    `x` (contexts, hidden_size) are hidden states; label i, int64, is predicted at the context `rows[i]`, int64 in
    ascending order, so several labels share the logits of one. Softmax is fp32.
    """
    chunk = max(1, LOGITS // head.decoder.out_features)
    scores = np.empty(len(labels), np.float64)
    for first in range(0, len(x), chunk):
        logits = head(x[first : first + chunk]).float()
        begin, end = np.searchsorted(rows, (first, first + chunk))
        row_indices = torch.from_numpy(rows[begin:end] - first).to(x.device)
        label_indices = torch.from_numpy(labels[begin:end].astype(np.int64)).to(x.device)
        selected = logits[row_indices, label_indices] - logits.logsumexp(-1)[row_indices]
        scores[begin:end] = selected.cpu().numpy()
    return scores

"""The losses of embedders, rerankers, sparse and late-interaction models, as functions of tensors.

They take representations or scores, never models, so they work in anyone's loop: with packed or padded encoders,
cached gradients, and negatives gathered from other ranks. Whatever the dtype of the inputs, and under autocast too,
they compute in fp32 and return an fp32 scalar; float64 inputs stay float64, for gradient checks. A mean over examples
has `items`, the divisor that replaces their number: the losses of parts of a batch with the whole batch's `items` sum
to its loss. An empty part has the loss 0. docs/losses.md says when to use which.
"""

from fastbert.losses.in_batch import duplicate_mask, info_nce, info_nce_from_scores, text_keys
from fastbert.losses.late_interaction import maxsim_pairs, maxsim_scores
from fastbert.losses.lists import binary_cross_entropy, lambda_rank, list_cross_entropy
from fastbert.losses.margins import contrastive, online_contrastive, triplet
from fastbert.losses.pairs import angle, cosent, cosine_regression
from fastbert.losses.similarities import pairwise_similarity, similarity
from fastbert.losses.sparse import flops, l1, splade
from fastbert.losses.teachers import kl_distillation, margin_mse
from fastbert.losses.widths import matryoshka

__all__ = [
    "angle",
    "binary_cross_entropy",
    "contrastive",
    "cosent",
    "cosine_regression",
    "duplicate_mask",
    "flops",
    "info_nce",
    "info_nce_from_scores",
    "kl_distillation",
    "l1",
    "lambda_rank",
    "list_cross_entropy",
    "margin_mse",
    "matryoshka",
    "maxsim_pairs",
    "maxsim_scores",
    "online_contrastive",
    "pairwise_similarity",
    "similarity",
    "splade",
    "text_keys",
    "triplet",
]

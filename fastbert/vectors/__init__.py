"""Static word vectors: train skip-gram, CBOW and GloVe, read and write their files, find neighbours and analogies."""

from fastbert.vectors.word_vectors import Neighbour, UnknownWordError, WordVectors

__all__ = ["Neighbour", "UnknownWordError", "WordVectors"]

"""Texts for retrieval: vectors of their tokens with MaxSim, and sparse vectors over the vocabulary."""

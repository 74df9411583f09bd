"""Multilabel: a set of classes per text or pair of texts."""

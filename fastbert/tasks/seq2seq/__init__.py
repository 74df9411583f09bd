"""Sequence to sequence: a text written for each text."""

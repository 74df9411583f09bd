"""Runs of several processes, started by torchrun: who they are, what they agree on, and how one ends the others."""

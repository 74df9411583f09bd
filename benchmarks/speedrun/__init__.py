"""The speed run: the best masked language model within minutes on a fixed machine class, as README.md defines it."""

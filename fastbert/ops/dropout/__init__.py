"""Dropout with replayable masks."""

"""Servers under load: `fastbert serve` and its alternatives, and the generator of the load."""

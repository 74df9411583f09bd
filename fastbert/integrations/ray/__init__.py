"""Embed sharded parquet files on a Ray cluster: restartable, each row exactly once."""

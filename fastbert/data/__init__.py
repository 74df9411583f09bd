"""Data: corpus readers, token shards, and pre-training samples over the collator in C++."""

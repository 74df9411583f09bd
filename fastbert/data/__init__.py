"""Read corpora, write and map token shards, and create pre-training samples over the C++ collator."""

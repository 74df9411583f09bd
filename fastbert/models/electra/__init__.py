"""ELECTRA's encoder."""

"""RoBERTa and the models of its layout."""

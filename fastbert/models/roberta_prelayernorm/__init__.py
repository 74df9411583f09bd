"""Pre-LN BERT: the layout that transformers calls RoBERTa-PreLayerNorm."""

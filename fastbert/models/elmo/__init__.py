"""ELMo (Peters et al. 2018): a bidirectional LSTM language model over the characters of words."""

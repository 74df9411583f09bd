"""Task heads over the BERT encoder, one module per kind of input that a head reads."""

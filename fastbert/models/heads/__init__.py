"""Task heads over any encoder, one module per kind of input that a head reads.

An architecture's record makes its models of them: `BertForMaskedLM` of `ForMaskedLM`.
"""

"""fastbert: pre-train, fine-tune and serve BERT-family encoders, fast, exact and complete.

Names are loaded on first use, so that importing the package has no side effects and `fastbert --help` does not wait for
torch.
"""

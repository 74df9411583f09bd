"""BERT's WordPiece tokenizer, and how its vocabulary is built.

from fastbert.tokenizers import WordPieceTokenizer
"""

from fastbert.tokenizers.training import train_vocabulary
from fastbert.tokenizers.wordpiece import Encoding, WordPieceTokenizer

__all__ = ["Encoding", "WordPieceTokenizer", "train_vocabulary"]

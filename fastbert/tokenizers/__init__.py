"""Tokenize text with BERT's WordPiece tokenizer, and build, extend and measure vocabularies."""

from fastbert.tokenizers.added import AddedToken
from fastbert.tokenizers.encoding import Encoding
from fastbert.tokenizers.training import train_vocabulary
from fastbert.tokenizers.wordpiece import WordPieceTokenizer

__all__ = ["AddedToken", "Encoding", "WordPieceTokenizer", "train_vocabulary"]

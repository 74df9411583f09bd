"""Tokenize text with BERT's WordPiece tokenizer, and build, extend and measure vocabularies."""

from fastbert.tokenizers.added import AddedToken
from fastbert.tokenizers.byte_level import ByteLevelBPETokenizer
from fastbert.tokenizers.encoding import Encoding
from fastbert.tokenizers.training import train_vocabulary
from fastbert.tokenizers.unigram import UnigramTokenizer
from fastbert.tokenizers.wordpiece import WordPieceTokenizer

__all__ = [
    "AddedToken",
    "ByteLevelBPETokenizer",
    "Encoding",
    "UnigramTokenizer",
    "WordPieceTokenizer",
    "train_vocabulary",
]

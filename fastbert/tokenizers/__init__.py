"""Tokenize text with WordPiece, byte-level BPE or Unigram, and build, extend and measure vocabularies."""

from fastbert.tokenizers.added import AddedToken
from fastbert.tokenizers.byte_level import ByteLevelBPETokenizer
from fastbert.tokenizers.encoding import Encoding
from fastbert.tokenizers.piece_training import train_tokenizer
from fastbert.tokenizers.training import train_vocabulary
from fastbert.tokenizers.unigram import UnigramTokenizer
from fastbert.tokenizers.wordpiece import WordPieceTokenizer

__all__ = [
    "AddedToken",
    "ByteLevelBPETokenizer",
    "Encoding",
    "UnigramTokenizer",
    "WordPieceTokenizer",
    "train_tokenizer",
    "train_vocabulary",
]

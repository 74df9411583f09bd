"""Tokenizer folders of a few tokens, with any JSON files in them."""

import json

VOCAB = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "hello", "##s", "é", "\u2028", "中国"]


def write(folder, vocab=VOCAB, **files):
    """A folder with vocab.txt (unless None) and the named JSON files."""
    if vocab is not None:
        (folder / "vocab.txt").write_bytes("".join(f"{token}\n" for token in vocab).encode())
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


def tokenizer_json(**normalizer):
    normalizer = {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True} | normalizer
    model = {"type": "WordPiece", "unk_token": "[UNK]", "vocab": {token: index for index, token in enumerate(VOCAB)}}
    return {"normalizer": normalizer, "model": model, "added_tokens": []}


def added(content, index, **flags):
    plain = {"lstrip": False, "rstrip": False, "single_word": False, "normalized": False, "special": True}
    return {"content": content, "id": index, **plain, **flags}

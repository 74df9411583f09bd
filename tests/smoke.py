"""Try an installed fastbert, without pytest, compiler, network or source tree: `python tests/smoke.py`.

Tokenize, embed in fp32 and int8 and compare with PyTorch's own operations, train a step, save, load, and run commands.
Continuous integration runs this on each wheel.
"""

import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

import torch

import fastbert
from fastbert import BertConfig, BertForPreTraining, BertModel, WordPieceTokenizer

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "quiet", "hotel", "near", "the", "river", "##s", "."]
TEXTS = ["A quiet hotel near the river.", "The rivers."]


def command(*words: str) -> str:
    """Run a command of the installed package."""
    executable = Path(sysconfig.get_path("scripts")) / "fastbert"
    done = subprocess.run([executable, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0, f"fastbert {' '.join(words)} ended with {done.returncode}:\n{done.stdout}"
    return done.stdout


def main() -> None:
    assert Path(fastbert.__file__).is_relative_to(sysconfig.get_path("purelib")), fastbert.__file__
    config = BertConfig(
        vocab_size=len(WORDS), hidden_size=64, num_hidden_layers=2, num_attention_heads=2, intermediate_size=128
    )
    tokenizer = WordPieceTokenizer(WORDS)
    assert tokenizer(TEXTS[1])["input_ids"] == [2, 9, 10, 11, 12, 3]
    torch.manual_seed(0)
    model = BertForPreTraining(config)
    batch = tokenizer(TEXTS, padding=True, return_tensors="pt")
    loss = model(**batch, labels=batch["input_ids"]).loss
    loss.backward()
    assert loss.isfinite()
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        encoder = BertModel.from_pretrained(folder).eval()
        vectors = encoder.embed(TEXTS, tokenizer)
        with fastbert.use_backend("eager"):
            expected = encoder.embed(TEXTS, tokenizer)
        torch.testing.assert_close(vectors, expected, rtol=1e-4, atol=1e-4)
        encoder.quantize("int8")
        similarity = torch.cosine_similarity(encoder.embed(TEXTS, tokenizer), expected)
        assert similarity.min() > 0.99, similarity
        assert "hotel" in command("fill-mask", "--model", folder, "A [MASK] hotel.")
    assert command("--version").strip().endswith(fastbert.__version__)
    print(command("doctor"))
    versions = f"fastbert {fastbert.__version__}, Python {sys.version.split()[0]}, torch {torch.__version__}"
    print(f"{versions}: all checks passed")


if __name__ == "__main__":
    main()

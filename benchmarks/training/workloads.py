"""The steps that the training benchmark measures: batches, the model they train, and their useful work."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np

from fastbert.benchmarks.cpu import families
from fastbert.benchmarks.cpu.families import FAMILIES
from fastbert.benchmarks.cpu.workloads import FIRST_ID, SEED, Workload, encoder_operations, unread_operations
from fastbert.config import BertConfig
from fastbert.errors import UserError
from fastbert.io.untrusted_input import require_regular_file
from fastbert.training.demo import BATCH_SIZE, MAX_LENGTH, SHAPE

MASKED = 0.15
CLS, SEP, MASK = 101, 102, 103  # in the released vocabularies
LABELS = 2
LONGEST = 128
PRETRAINING, MASKED_LM, CLASSIFICATION = "ForPreTraining", "ForMaskedLM", "ForSequenceClassification"
# Lengths exp(mean + deviation z), clipped at both ends: of Wikipedia's sentences, and of SST-2's training phrases, with
# the released uncased vocabulary and both special tokens. Padded to the longest of 32, 43 % and 34 % are real.
WIKI_LENGTHS = (3.31, 0.46, 5, LONGEST)
SST2_LENGTHS = (2.36, 0.68, 3, 66)
WIKI_BATCHES, FINETUNE_BATCHES = 4, 8
FINETUNED = BertConfig(
    hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536, num_labels=LABELS
)
DEMO_FULL = 0.86  # of the demonstration's sequences
LEARNED_VOCABULARY = 8000
LEARNED_FROM = 40_000  # sentences


@dataclass(frozen=True, kw_only=True)
class TrainingWorkload(Workload):
    """Batches on which a model is trained in rotation; `tokens` and `operations` are the mean per step."""

    config: BertConfig
    head: str = PRETRAINING
    """The model's head: `PRETRAINING` (masked LM and next-sentence prediction), `MASKED_LM` or `CLASSIFICATION`."""
    batches: int = 1
    checkpoint: Path | None = None
    """The weights to start from; None: random ones."""


def pretraining(
    name: str, description: str, config: BertConfig, batches: Sequence[Sequence[np.ndarray]], mask: int = MASK
) -> TrainingWorkload:
    """Return masked LM and next-sentence prediction on token ids, int64 (length,); `mask` is [MASK]'s id."""
    rng = np.random.default_rng(SEED)
    arrays = {}
    for number, sequences in enumerate(batches):
        ids = np.concatenate(sequences)
        masked = np.sort(rng.permutation(len(ids))[: max(1, round(MASKED * len(ids)))])
        labels = ids[masked]
        ids = ids.copy()
        ids[masked] = min(mask, config.vocab_size - 1)
        arrays |= {
            f"{number}.input_ids": ids,
            f"{number}.lengths": np.array([len(ids) for ids in sequences], np.int64),
            f"{number}.masked_positions": masked,
            f"{number}.labels": labels,
            f"{number}.next_sentence_label": rng.integers(0, 2, len(sequences)),
            f"{number}.dropout_key": rng.integers(0, 1 << 62, len(sequences)),
        }
    return _workload(name, description, config, arrays, len(batches))


def masked_lm(
    name: str, description: str, config: BertConfig, batches: Sequence[Sequence[np.ndarray]]
) -> TrainingWorkload:
    """Return masked LM alone, of any architecture, on the batches of `pretraining`."""
    workload = pretraining(name, description, config, batches)
    arrays = {key: values for key, values in workload.arrays.items() if not key.endswith(".next_sentence_label")}
    work = sum(
        masked_lm_operations(config, arrays[f"{number}.lengths"].tolist(), len(arrays[f"{number}.labels"]))
        for number in range(len(batches))
    )
    return replace(workload, head=MASKED_LM, arrays=arrays, operations=work / len(batches))


def classification(
    name: str, description: str, config: BertConfig, batches: Sequence[Sequence[np.ndarray]], checkpoint: Path | None
) -> TrainingWorkload:
    """Return sequence classification on sequences of token ids, int64 (length,)."""
    rng = np.random.default_rng(SEED)
    arrays = {}
    for number, sequences in enumerate(batches):
        arrays |= {
            f"{number}.input_ids": np.concatenate(sequences),
            f"{number}.lengths": np.array([len(ids) for ids in sequences], np.int64),
            # A quarter: with equal numbers of both classes a new head's gradients cancel, and rounding dominates.
            f"{number}.classes": (np.arange(len(sequences)) % 4 == 3).astype(np.int64),
            f"{number}.dropout_key": rng.integers(0, 1 << 62, len(sequences)),
        }
    workload = _workload(name, description, config, arrays, len(batches))
    return replace(workload, head=CLASSIFICATION, checkpoint=checkpoint)


def _workload(
    name: str, description: str, config: BertConfig, arrays: dict[str, np.ndarray], batches: int
) -> TrainingWorkload:
    lengths = [arrays[f"{number}.lengths"] for number in range(batches)]
    tokens = sum(int(batch_lengths.sum()) for batch_lengths in lengths)
    positions = sum(len(batch_lengths) * int(batch_lengths.max()) for batch_lengths in lengths)
    masked = [len(arrays.get(f"{number}.labels", ())) for number in range(batches)]
    work = sum(step_operations(config, batch_lengths.tolist(), count) for batch_lengths, count in zip(lengths, masked))
    several = f", mean of {batches} batches" if batches > 1 else ""
    return TrainingWorkload(
        name=name,
        tokens=round(tokens / batches),
        operations=work / batches,
        arrays=arrays,
        note=f"{description}, {tokens / batches:,.0f} real tokens per step, {tokens / positions:.0%} full{several}",
        config=config,
        batches=batches,
    )


def step_operations(config: BertConfig, lengths: Sequence[int], masked: int) -> float:
    """Count the useful operations of a step's matmuls and attention: the forward pass, and twice as much for the
    gradients of both factors. Recomputation is not counted, nor are unused outputs: in the last layer, after attention,
    all but first tokens and masked positions.

    `masked` positions have the vocabulary's logits; a classifier has its labels, next-sentence prediction two.
    """
    width, tokens = config.hidden_size, sum(lengths)
    unread = tokens - min(tokens, len(lengths) + masked)
    head = masked * 2 * (width * width + width * config.vocab_size) + len(lengths) * 2 * width * LABELS
    return 3.0 * (encoder_operations(config, lengths) - unread * unread_operations(config) + head)


def masked_lm_operations(config: BertConfig, lengths: Sequence[int], masked: int) -> float:
    """Count the useful operations of a step of masked LM alone as `step_operations` does, of any architecture; those
    with relative positions are not counted."""
    from fastbert.models.heads.prediction import prediction_spec
    from fastbert.models.registry import architecture_of

    spec = (architecture_of(config).prediction or prediction_spec)(config)
    transform = 0 if spec.norm is None else config.hidden_size * spec.width
    head = masked * 2 * (transform + spec.width * config.vocab_size)
    unread = sum(lengths) - masked
    return 3.0 * (families.operations(config, lengths) - unread * families.unread_operations(config) + head)


# Where lengths and tokens come from


def lognormal_batches(
    shape: tuple[float, float, int, int], batches: int, sequences: int, vocab_size: int, pad_token_id: int = 0
) -> list[list[np.ndarray]]:
    """Return random tokens in sequences of lognormal lengths: mean and deviation of the logarithm, minimum, maximum."""
    mean, deviation, least, most = shape
    lengths = np.random.default_rng(SEED).lognormal(mean, deviation, batches * sequences)
    lengths = np.clip(np.rint(lengths), least, most).astype(np.int64)
    return random_batches(lengths, sequences, vocab_size, pad_token_id)


def random_batches(
    lengths: np.ndarray, sequences: int, vocab_size: int, pad_token_id: int = 0
) -> list[list[np.ndarray]]:
    """Return random tokens between [CLS] and [SEP] in sequences of these lengths; the last batch may be smaller.

    None is padding, whose embedding has no gradient in transformers, and which has no position of its own in MPNet.
    """
    rng = np.random.default_rng(SEED)
    first_id = FIRST_ID if vocab_size > 2 * FIRST_ID else 0
    sequences_made = []
    for length in lengths:
        ids = rng.integers(first_id, vocab_size, int(length), dtype=np.int64)
        ids[ids == pad_token_id] = (pad_token_id + 1) % vocab_size
        ids[0], ids[-1] = min(CLS, vocab_size - 1), min(SEP, vocab_size - 1)
        sequences_made.append(ids)
    return [sequences_made[first : first + sequences] for first in range(0, len(sequences_made), sequences)]


class TextBatches:
    """Sentences drawn from a whole text, one per sequence: `batches`, and a description of text and vocabulary."""

    def __init__(self, text: Path, vocab: Path | None, batches: int, sequences: int) -> None:
        from fastbert.data.corpus import Corpus
        from fastbert.tokenizers import WordPieceTokenizer, train_vocabulary

        documents = Corpus.find(text, text_format="lines").documents()
        sentences = [sentence for document in documents for sentence in document]
        needed = batches * sequences
        if len(sentences) < needed:
            raise UserError(f"--text {text}: holds {len(sentences)} sentences, one per line, but {needed} are needed")
        order = np.random.default_rng(SEED).permutation(len(sentences))
        if vocab is None:
            learned = train_vocabulary([sentences[index] for index in order[:LEARNED_FROM]], LEARNED_VOCABULARY)
            tokenizer, origin = WordPieceTokenizer(learned), "a vocabulary learned from it"
        else:
            tokenizer, origin = WordPieceTokenizer.from_pretrained(vocab), vocab.name
        ids, offsets = tokenizer.encode_ragged([sentences[index] for index in order[:needed]], True, max_length=LONGEST)
        encoded = [ids[start:end].astype(np.int64) for start, end in pairwise(offsets)]
        self.batches: list[list[np.ndarray]] = [
            encoded[first : first + sequences] for first in range(0, needed, sequences)
        ]
        self.vocab_size: int = tokenizer.vocab_size
        self.mask: int = int(tokenizer.mask_token_id)
        self.what: str = f"sentences of {text.name}, {origin}"


def read_lengths(path: Path, most: int) -> np.ndarray:
    """Return a file's lengths, one per line, in tokens including special ones."""
    try:
        require_regular_file(path)
        lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    except FileNotFoundError:
        raise UserError(f"--lengths {path}: no such file; give one with one length per line") from None
    except (UnicodeDecodeError, IsADirectoryError):
        raise UserError(f"--lengths {path}: not a text file; give one with one length per line") from None
    lengths = []
    for number, line in enumerate(lines, 1):
        if not line:
            continue
        if not line.isascii() or not line.isdigit() or not 2 <= int(line) <= most:
            raise UserError(f"--lengths {path}, line {number}: {line[:20]!r} is not a length from 2 to {most}")
        lengths.append(int(line))
    if not lengths:
        raise UserError(f"--lengths {path}: holds no length; give one per line")
    return np.array(lengths, np.int64)


def rehearsal(head: str, config: BertConfig | None = None) -> TrainingWorkload:
    """Return a negligible step with a head, after which a process has loaded everything that a step needs.

    The model is of the architecture of `config`, None: BERT; the batches are the same for all.
    """
    config = replace(
        BertConfig(num_labels=LABELS) if config is None else config, vocab_size=99, hidden_size=64,
        num_hidden_layers=1, num_attention_heads=1, intermediate_size=64, pad_token_id=1,
    )  # fmt: skip
    batches = random_batches(np.array([5, 9]), 2, config.vocab_size, config.pad_token_id)
    if head == CLASSIFICATION:
        return classification("rehearsal", "toy", config, batches, None)
    return (masked_lm if head == MASKED_LM else pretraining)("rehearsal", "toy", config, batches)


# The workloads by name


@dataclass(frozen=True, kw_only=True)
class Sources:
    """The model, lengths and text of the workloads; None: the defaults described above. A family, one of `FAMILIES`,
    has workloads of its own."""

    quick: bool = False
    family: str | None = None
    model: str | None = None
    text: Path | None = None
    vocab: Path | None = None
    checkpoint: Path | None = None
    lengths: Path | None = None


def builders(sources: Sources) -> dict[str, Callable[[], TrainingWorkload]]:
    """Return the workloads by name, each as a function that builds it."""
    if sources.family is not None:
        return _family_builders(sources.family, sources.quick)
    sequences, length = (4, 32) if sources.quick else (32, LONGEST)
    sizes = [sources.model] if sources.model else ["tiny"] if sources.quick else ["base", "mini"]

    def full(size: str, name: str) -> TrainingWorkload:
        config = BertConfig.preset(size)
        batches = random_batches(np.full(sequences, length), sequences, config.vocab_size)
        return pretraining(name, f"BERT-{size}", config, batches)

    by_name: dict[str, Callable[[], TrainingWorkload]] = {}
    for size in sizes:
        name = f"{size} {sequences}x{length}"
        by_name[name] = lambda size=size, name=name: full(size, name)
    by_name["demo"] = lambda: _demonstration(sources.quick)
    by_name["wiki-en"] = lambda: _sentences(sources, sizes[0], sequences)
    by_name["finetune"] = lambda: _finetune(sources, sequences)
    return by_name


def _family_builders(name: str, quick: bool) -> dict[str, Callable[[], TrainingWorkload]]:
    """Return masked LM in a family's released shape; `quick`: two layers, an eighth of the sequences."""
    config = FAMILIES[name].config(quick)
    label = f"{name}, 2 layers" if quick else name

    def lognormal() -> TrainingWorkload:
        sequences, count = (4, 2) if quick else (32, WIKI_BATCHES)
        batches = lognormal_batches(WIKI_LENGTHS, count, sequences, config.vocab_size, config.pad_token_id)
        return masked_lm("lognormal", f"{label}, lengths like Wikipedia's sentences", config, batches)

    def full() -> TrainingWorkload:
        sequences = 1 if quick else 8
        batches = random_batches(np.full(sequences, LONGEST), sequences, config.vocab_size, config.pad_token_id)
        return masked_lm("full-128", label, config, batches)

    return {"lognormal": lognormal, "full-128": full}


def _demonstration(quick: bool) -> TrainingWorkload:
    """Return the model of `fastbert demo`, with sequences that fill its length as its text does."""
    sequences, length = (4, 16) if quick else (BATCH_SIZE, round(DEMO_FULL * MAX_LENGTH))
    batches = random_batches(np.full(sequences, length), sequences, SHAPE.vocab_size)
    return pretraining("demo", "the demonstration's model", SHAPE, batches)


def _sentences(sources: Sources, size: str, sequences: int) -> TrainingWorkload:
    config, count = BertConfig.preset(size), 2 if sources.quick else WIKI_BATCHES
    if sources.text is None:
        batches = lognormal_batches(WIKI_LENGTHS, count, sequences, config.vocab_size)
        return pretraining("wiki-en", f"BERT-{size}, lengths like Wikipedia's sentences", config, batches)
    source = TextBatches(sources.text, sources.vocab, count, sequences)
    config = replace(config, vocab_size=max(config.vocab_size, source.vocab_size))
    return pretraining("wiki-en", f"BERT-{size}, {source.what}", config, source.batches, source.mask)


def _finetune(sources: Sources, sequences: int) -> TrainingWorkload:
    config, label = FINETUNED, "6 x 384 classifier"
    if sources.checkpoint is not None:
        loaded = BertConfig.from_pretrained(sources.checkpoint)
        config, label = replace(loaded, num_labels=LABELS), f"classifier from {sources.checkpoint.name}"
    elif sources.quick:
        config = BertConfig.preset("tiny", num_labels=LABELS)
        label = "tiny classifier"
    count = 2 if sources.quick else FINETUNE_BATCHES
    if sources.lengths is None:
        batches = lognormal_batches(SST2_LENGTHS, count, sequences, config.vocab_size)
        label += ", lengths like SST-2's"
    else:
        lengths = read_lengths(sources.lengths, config.max_position_embeddings)
        drawn_lengths = np.random.default_rng(SEED).choice(lengths, count * sequences)
        batches = random_batches(drawn_lengths, sequences, config.vocab_size)
        label += f", lengths of {sources.lengths.name}"
    return classification("finetune", label, config, batches, sources.checkpoint)

"""Adapt an embedder to the text of a domain, in stages that a later start skips or continues.

RUN/text holds the corpus in two parts, RUN/sentences.jsonl the pairs of contrastive training, RUN/pretrain the run of
continued pre-training, RUN/continued its encoder with the settings of the embedder, RUN/embedder the run of contrastive
training, RUN/model the result. Each appears whole; RUN/results.json has the scores of the finished stages.
"""

from __future__ import annotations

import math
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from fastbert.adaptation import evaluation
from fastbert.adaptation.config import AdaptConfig
from fastbert.adaptation.corpus_split import CorpusSplit, read_split, split_corpus
from fastbert.adaptation.passages import following_pairs, sample_pairs, write_pairs
from fastbert.adaptation.results import ADAPTED, BEFORE, FILE, PRETRAINED, Results
from fastbert.checkpoints.atomic_folder import atomic_folder
from fastbert.checkpoints.pipeline_files import PROMPTS
from fastbert.checkpoints.source import find_source
from fastbert.data.pretraining import unigram_cross_entropy
from fastbert.data.shards import TokenShards
from fastbert.distributed.environment import is_launched
from fastbert.embeddings.folder import read_settings
from fastbert.embeddings.settings import EmbedSettings
from fastbert.errors import UserError
from fastbert.finetuning.config import FinetuneConfig
from fastbert.finetuning.run import finetune
from fastbert.flags import check_required, flag
from fastbert.io.locations import LocationText, is_remote, local_path
from fastbert.models import registry
from fastbert.tasks.retrieval.embedding import leave_pooler_out
from fastbert.tokenizers.loading import load_tokenizer
from fastbert.training.config import PretrainConfig
from fastbert.training.defaults import continued_learning_rate
from fastbert.training.pretrain import pretrain
from fastbert.training.reporter import Reporter
from fastbert.training.run_files import (
    can_be_replaced,
    check_spared,
    locked_run,
    looks_like_run,
    read_record,
    remove_run,
    save_tokenizer,
    write_record,
)

KEY = "adapt"
"""The key of the flags in config.json."""
TEXT, PRETRAIN, CONTINUED, SENTENCES = "text", "pretrain", "continued", "sentences.jsonl"
EMBEDDER, MODEL, HELD_OUT_SHARDS = "embedder", "model", "held-out"
NAMES = ("config.json", TEXT, HELD_OUT_SHARDS, PRETRAIN, CONTINUED, SENTENCES, EMBEDDER, MODEL, FILE)
VALIDATION = 0.02
"""Fraction of the training documents that the learning curve of pre-training is measured on."""
CHECKPOINT_STEPS = 500
"""Steps between checkpoints of contrastive training."""
LR = 0.5
"""Factor of `fastbert pretrain --init`'s learning rate: a lower one preserves more of an embedder."""
DROPOUT = 0.1
"""Dropout of contrastive training for a model whose config has none."""
FEW_QUERIES = 100
"""Queries below which retrieval scores are reported to be coarse."""
QUERIES, SCORED_SENTENCES = 1_000, 4_000
"""The most queries, and about the most sentences, of the held-out text that are scored."""


@dataclass(frozen=True)
class AdaptResult:
    """The folder of a run, the embedder in it, and the scores of its stages."""

    folder: Path
    model: Path
    results: Results


def adapt(config: AdaptConfig, reporter: Reporter | None = None) -> AdaptResult:
    """Adapt a model as `config` says, or continue the run in `config.out` when `config.resume` is set.

    With `resume` the same call can be repeated until it returns: stages that are done are skipped, and one that was
    interrupted continues. Raises `UserError` (one line: value, place, cure) for input that cannot be trained on, and
    `Stopped` after SIGINT or SIGTERM during one of the trainings, when a checkpoint has been written.
    """
    if is_launched():
        raise UserError(
            "adapt runs in one process; run `fastbert pretrain --init` and `fastbert finetune --task embedding` with"
            " torchrun instead"
        )
    reporter = reporter or Reporter()
    with locked_run(config.out):
        config = _opened(config)
        return _Adaptation(config, reporter).run()


def _opened(config: AdaptConfig) -> AdaptConfig:
    """Open the run's folder; return the configuration: with --resume the stored one."""
    out = config.out
    holds_run = any((out / name).exists() for name in NAMES)
    if config.resume:
        saved = read_record(out, KEY, AdaptConfig.CHANGEABLE)
        if saved is not None:
            try:
                return config.resumed_from(AdaptConfig.from_dict(saved[KEY]))
            except TypeError as error:
                raise UserError(f"{out / 'config.json'}: not a run's configuration ({error})") from None
        if holds_run:
            raise UserError(f"--out {out}: holds no run to resume, but files with the names of a run's; choose another")
        try:
            check_required(replace(config, resume=False))
        except UserError as error:
            raise UserError(f"--out {out}: holds no run to resume, and {error}") from None
    check_required(config)
    replaceable = config.overwrite or can_be_replaced(out, KEY, AdaptConfig.CHANGEABLE, NAMES[1:])
    if holds_run and not replaceable:
        raise UserError(f"--out {out}: already holds a run; continue it with --resume or replace it with --overwrite")
    assert config.model is not None
    inputs = [("--corpus", local_path(path)) for path in config.corpus if not is_remote(path)]
    source = find_source(config.model)
    if not source.is_dir():
        raise UserError(f"--model {config.model}: is not a folder; convert it with `fastbert convert`")
    inputs.append(("--model", source))
    config.find_corpus()
    encoder, settings, _ = read_settings(source)
    if settings.similarity not in (None, "cosine", "dot"):
        raise UserError(
            f"--model {config.model}: compares vectors by {settings.similarity} distance, and contrastive training by"
            f" cosine or dot product; name one of them as similarity_fn_name in its {PROMPTS}"
        )
    bert = registry.read_config(encoder)
    if config.max_length > bert.max_sequence_length:
        raise UserError(
            f"--max-length {config.max_length} is more than the {bert.max_sequence_length} positions of"
            f" {config.model}; lower it"
        )
    if config.pretrain_steps != 0:
        registry.refuse_decoder(bert, config.model)
    if holds_run:
        if not looks_like_run(out, KEY):  # so that --overwrite empties no other folder
            raise UserError(f"{out}: holds no adaptation of fastbert; choose another --out")
        check_spared(out, NAMES, inputs)
        remove_run(out, NAMES)
    write_record(out, {KEY: replace(config, resume=False, overwrite=False).to_dict()})
    return config


class _Adaptation:
    """The stages of a run, in order."""

    def __init__(self, config: AdaptConfig, reporter: Reporter) -> None:
        assert config.model is not None
        self.config, self.reporter, self.out = config, reporter, config.out
        self.results = Results.read(self.out)
        self.machine: dict[str, Any] = {
            name: getattr(config, name)
            for name in ("device", "dtype", "checkpoint_activations", "deterministic", "log_every", "seed")
        }
        self.continues = config.pretrain_steps != 0

    def run(self) -> AdaptResult:
        """Run the unfinished stages."""
        if not self.results.finished:
            self.results.held_out = {**asdict(self.text.held_out), "queries": len(self.queries)}
            self._write_pairs()
            self._score(BEFORE, self.source, self.encoder if self.continues else None)
            start = self._continued() if self.continues else self.source
            embedder = self._embedder(start)
            self._score(ADAPTED, embedder, None)
            self._publish(embedder)
            self.results.finished = True
            self.results.write(self.out)
        else:
            self.reporter.on_message(f"{self.out}: the run is finished")
        return AdaptResult(self.out, self.out / MODEL, self.results)

    @cached_property
    def source(self) -> Path:
        """The folder of --model."""
        assert self.config.model is not None
        return find_source(self.config.model)

    @cached_property
    def settings(self) -> EmbedSettings:
        """The embedding settings of --model."""
        return read_settings(self.source)[1]

    @cached_property
    def encoder(self) -> Path:
        """The folder of the encoder of --model."""
        return read_settings(self.source)[0]

    @cached_property
    def text(self) -> CorpusSplit:
        """The two parts of the corpus, written on the first start."""
        folder = self.out / TEXT
        split = read_split(folder)
        if split is None:
            corpus = self.config.find_corpus()
            report = self.reporter.on_stage("reading the corpus", 2 * corpus.total_bytes)
            split = split_corpus(corpus, folder, self.config.held_out, report)
        train, held_out = split.train, split.held_out
        self.reporter.on_message(
            f"{train.documents:,} documents of {train.sentences:,} sentences to train on; held out"
            f" {held_out.documents:,} of {held_out.sentences:,}"
        )
        return split

    @cached_property
    def queries(self) -> list[tuple[str, str]]:
        """Passages of the held-out text, each with the next one."""
        pairs = following_pairs(self.text.held_out_documents(), QUERIES)
        if not pairs:
            self.reporter.on_message("no held-out document has two passages: retrieval is not scored")
        elif len(pairs) < FEW_QUERIES:
            self.reporter.on_message(
                f"retrieval is scored with {len(pairs)} queries only; a larger --held-out has more"
            )
        return pairs

    @cached_property
    def held_out_shards(self) -> Path:
        """Token shards of the held-out text; of a long one, every n-th document."""
        documents = list(self.text.held_out_documents())
        stride = -(-sum(map(len, documents)) // SCORED_SENTENCES)
        scored = [document[:SCORED_SENTENCES] for document in documents[::stride]]
        return evaluation.held_out_shards(scored, self.encoder, self.out / HELD_OUT_SHARDS).folder

    def _score(self, stage: str, embedder: Path, masked: Path | None) -> None:
        """Score a stage's embedder and masked LM on the held-out text, unless results.json has its scores."""
        results, config = self.results, self.config
        if masked is not None and stage not in results.masked_lm:
            report = self.reporter.on_stage(f"masked LM {stage}", 1.0, "")
            scores = evaluation.masked_loss(
                masked, self.held_out_shards, device=config.device, max_length=config.max_length, progress=report
            )
            if not math.isfinite(scores.loss):
                cure = (
                    "start again with --overwrite and a lower --pretrain-lr"
                    if stage != BEFORE
                    else "name a different one"
                )
                raise UserError(f"{masked}: the model's masked-LM loss on held-out text is not finite; {cure}")
            results.masked_lm[stage] = asdict(scores)
            results.write(self.out)
        if self.queries and stage not in results.retrieval:
            report = self.reporter.on_stage(f"retrieval {stage}", 1.0, "")
            results.retrieval[stage] = evaluation.retrieval(
                embedder,
                self.queries,
                device=config.device,
                dtype=config.dtype,
                max_length=config.max_length,
                progress=report,
            )
            results.write(self.out)

    def _continued(self) -> Path:
        """Continue the pre-training of the encoder; return the folder of an embedder with it."""
        config, folder = self.config, self.out / CONTINUED
        default_lr = LR * continued_learning_rate(registry.read_config(self.encoder).hidden_size)
        with _named_flags(
            lr="pretrain-lr", steps="pretrain-steps", epochs="pretrain-epochs", batch_size="pretrain-batch-size"
        ):
            result = pretrain(
                PretrainConfig(
                    corpus=(LocationText(str(self.text.train_file)),),
                    text_format="lines",
                    init=str(self.encoder),
                    objective="mlm",
                    max_length=config.max_length,
                    validation_fraction=VALIDATION,
                    steps=config.pretrain_steps,
                    epochs=config.pretrain_epochs,
                    hours=config.hours,
                    batch_size=config.pretrain_batch_size,
                    lr=config.pretrain_lr or default_lr,
                    out=self.out / PRETRAIN,
                    resume=True,
                    **self.machine,
                ),
                self.reporter,
            )
        if not (folder / "config.json").exists():
            model = registry.load_encoder(result.model, dtype=torch.float32)
            leave_pooler_out(model)
            model.embed_settings = self.settings
            with atomic_folder(folder) as partial:
                model.save_pretrained(partial)
                save_tokenizer(load_tokenizer(result.model), partial, segments=model.config.type_vocab_size > 1)
        if self.results.word_frequencies is None:
            train_counts = TokenShards.open(self.out / PRETRAIN / "data").unigrams
            held_out_counts = TokenShards.open(self.held_out_shards).unigrams
            self.results.word_frequencies = unigram_cross_entropy(train_counts, held_out_counts)
        self._score(PRETRAINED, folder, result.model)
        return folder

    def _write_pairs(self) -> None:
        """Sample the pairs to train on and write them."""
        config, path = self.config, self.out / SENTENCES
        if path.exists():
            return
        pairs = sample_pairs(self.text.train_documents(), config.sentences, config.pairs, config.seed)
        if len(pairs) < config.batch_size:
            noun = "passages with a neighbour" if config.pairs == "neighbours" else "different passages"
            raise UserError(
                f"--corpus {' '.join(map(str, config.corpus))}: has {len(pairs):,} {noun}, fewer than --batch-size"
                f" {config.batch_size}; add text, or lower --batch-size"
            )
        write_pairs(path, pairs)
        self.reporter.on_message(f"{len(pairs):,} pairs of passages ({config.pairs})")

    def _embedder(self, start: Path) -> Path:
        """Train on the pairs; return the folder of the embedder."""
        config = self.config
        dropout = config.dropout
        if dropout is None and config.pairs != "neighbours":
            model = registry.read_config(read_settings(start)[0])
            dropout = None if model.hidden_dropout_prob else DROPOUT
        with _named_flags(lr="contrastive-lr", steps="contrastive-steps"):
            result = finetune(
                FinetuneConfig(
                    task="embedding",
                    model=str(start),
                    train=self.out / SENTENCES,
                    steps=config.contrastive_steps,
                    epochs=() if config.contrastive_steps is not None else (1.0,),
                    batch_size=(config.batch_size,),
                    lr=() if config.contrastive_lr is None else (config.contrastive_lr,),
                    max_length=config.max_length,
                    dropout=dropout,
                    checkpoint_every=CHECKPOINT_STEPS,
                    out=self.out / EMBEDDER,
                    resume=True,
                    **self.machine,
                ),
                self.reporter,
            )
        return result.model

    def _publish(self, embedder: Path) -> None:
        """Copy the embedder to RUN/model."""
        with atomic_folder(self.out / MODEL) as partial:
            shutil.copytree(embedder, partial, dirs_exist_ok=True)


@contextmanager
def _named_flags(**names: str) -> Iterator[None]:
    """Replace the flags of a training in the message of a `UserError` by those of the adaptation, and leave out the
    cures by flags that it has not."""
    try:
        yield
    except UserError as error:
        message = re.sub(r",? or (?:a longer|with) --(?:warmup|on-nan)(?: skip)?", "", str(error))
        for name, flag_here in names.items():
            message = re.sub(rf"\ban (?={flag(name)}\b)", "a ", message)
            message = re.sub(rf"(?<![\w-]){flag(name)}(?![\w-])", f"--{flag_here}", message)
        raise type(error)(message) from None

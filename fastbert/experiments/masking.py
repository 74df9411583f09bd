"""Mask rates and replacement rules of masked LM (Devlin et al. 2019, appendix C.2, Table 8)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from fastbert.experiments.registry import Experiment
from fastbert.experiments.sets import chosen
from fastbert.experiments.summary import Row, Score
from fastbert.experiments.systems import encoder_features, tag_features
from fastbert.experiments.workspace import Workspace

SETS = ("SNLI", "UNER")


@dataclass(frozen=True)
class Rule:
    """A mask rate in percent, and the percent of masked tokens that become [MASK], stay, and become a random token, in
    the order of the paper's table."""

    rate: int = 15
    mask: int = 80
    same: int = 10
    random: int = 10

    @property
    def name(self) -> str:
        """Return the row's name, which says what differs from the paper's recipe."""
        if self == Rule():
            return "15 % masked: 80 % [MASK], 10 % same, 10 % random"
        if self.rate != Rule.rate:
            return f"{self.rate} % masked"
        shares = ((self.mask, "[MASK]"), (self.same, "same"), (self.random, "random"))
        return ", ".join(f"{share} % {what}" for share, what in shares if share)

    @property
    def key(self) -> str:
        """Return the name of the run."""
        return f"rate-{self.rate}-mask-{self.mask}-same-{self.same}-random-{self.random}"


RULES = (
    Rule(),
    *(Rule(rate=rate) for rate in (10, 20, 30, 40)),
    Rule(mask=100, same=0, random=0),
    Rule(mask=80, same=0, random=20),
    Rule(mask=80, same=20, random=0),
    Rule(mask=0, same=20, random=80),
    Rule(mask=0, same=0, random=100),
)


def rows(workspace: Workspace) -> Iterator[Row]:
    """Pre-train with each rule; fine-tune, and train a tagger on frozen features."""
    sets = chosen(workspace, SETS, ("classification", "tagging"))
    for rule in RULES if workspace.scale.name != "smoke" else RULES[:1] + RULES[4:]:
        shares = (float(rule.mask), float(rule.random), float(rule.same))
        flags: dict[str, Any] = {"mask_prob": rule.rate / 100, "mask_replacement": shares} if rule != Rule() else {}
        pretrained = workspace.pretrain(rule.key, objective="mlm+nsp", **flags)
        scores: dict[str, Score] = {}
        for task in sets:
            scores[task.name] = workspace.finetune(rule.key, pretrained.model, task)
            if task.task == "tagging":
                features = partial(encoder_features, pretrained.model)
                scores[f"{task.name}, features"] = tag_features(workspace, rule.key, task, features)
        yield Row(name=rule.name, scores=scores, numbers=pretrained.numbers())


EXPERIMENT = Experiment(
    title="Mask rates and replacement rules",
    paper=(
        "Percent of masked tokens that become [MASK], stay, and become random: MNLI accuracy, F1 on CoNLL-2003 by"
        " fine-tuning and with frozen features. 80, 10, 10: 84.2, 95.4, 94.9; 100, 0, 0: 84.3, 94.9, 94.0; 80, 0, 20:"
        " 84.1, 95.2, 94.6; 80, 20, 0: 84.4, 95.2, 94.7; 0, 20, 80: 83.7, 94.8, 94.6; 0, 0, 100: 83.6, 94.9, 94.6. The"
        " paper has one mask rate, 15 %; Wettig et al. (2023) find 40 % better for large models."
    ),
    limits=(
        "The loss of each row is that of its own rule, also in validation, and cannot be compared between rows. The"
        " paper's differences are within one point: here most of them are smaller than the spread over seeds."
    ),
    rows=rows,
)

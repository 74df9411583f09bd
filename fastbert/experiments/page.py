"""The page of results: committed summaries as tables and charts, with what the paper reported and what a small scale
shows."""

from __future__ import annotations

from pathlib import Path

from fastbert.errors import UserError
from fastbert.experiments.names import EXPERIMENTS
from fastbert.experiments.registry import find_experiment
from fastbert.experiments.summary import Summary, comparison_table, markdown_table
from fastbert.io.atomic_write import write_atomic

INTRODUCTION = """# Results

What BERT is measured against, measured here: every system on the same text, tokenizer, steps and task sets, by
`fastbert experiment`. This page is generated from the summaries in `docs/results/` by `python docs/results/build.py`;
each number comes from one of them. Scores are percentages, the mean over the seeds of fine-tuning ± their standard
deviation, after the last step of each run: none is chosen by its score. The p-values are those of paired t-tests over
these seeds. They say whether a difference is larger than the noise of fine-tuning; one pre-training run per row, at
most 2,000 evaluation examples and the number of comparisons are not in them.

**What small scale can and cannot show.** The models here have a twentieth of the parameters of BERT-base, and have
read a 260th of its text, on two CPU cores. Differences that come from the form of a model (context on one side or
both, frozen or trained) show at this size; differences that need much text, such as those between objectives on
inference tasks, may not, and scores are far below the paper's. The paper's numbers stand beside ours so that directions
can be compared, not levels.
"""


def write_page(folder: Path, out: Path, pictures: Path) -> list[Summary]:
    """Write the page of the summaries in `folder` (*.json) to `out`, and their charts to `pictures`; return them in the
    order of the page. Raises `UserError` for a folder without summaries."""
    summaries = read_summaries(folder)
    if not summaries:
        raise UserError(f"{folder}: holds no summaries of experiments (*.json)")
    for file, summary in summaries.items():
        find_experiment(summary.experiment).picture(summary, pictures / f"{file.stem}.png")
    write_atomic(out, page_text(summaries, out.parent, pictures))
    return list(summaries.values())


def read_summaries(folder: Path) -> dict[Path, Summary]:
    """Return the summaries of a folder by their files, in the order of the experiments' names."""
    files = {file: Summary.read(file) for file in sorted(folder.glob("*.json"))}
    order = {name: number for number, name in enumerate(EXPERIMENTS)}
    return dict(sorted(files.items(), key=lambda item: (order.get(item[1].experiment, len(order)), item[0].name)))


def page_text(summaries: dict[Path, Summary], home: Path, pictures: Path) -> str:
    """Return the page, whose links begin at the folder `home`."""
    sections = [INTRODUCTION]
    for file, summary in summaries.items():
        sections.append(_section(file, summary, home, pictures))
    return "\n".join(sections)


def _section(file: Path, summary: Summary, home: Path, pictures: Path) -> str:
    picture = (pictures / f"{file.stem}.png").relative_to(home)
    lines = [f"## {summary.title} ({summary.scale})", "", markdown_table(summary), ""]
    comparisons = comparison_table(summary)
    if comparisons:
        lines += [comparisons, ""]
    if summary.columns():
        names = ", ".join(summary.columns())
        spread = any(len(score.values) > 1 for row in summary.rows for score in row.scores.values())
        content = f"{names}, with standard deviations" if spread else names
        lines += [f"![{summary.title}: scores, {content}]({picture.as_posix()})", ""]
    elif summary.details:
        lines += [f"![{summary.title}]({picture.as_posix()})", ""]
    tables = find_experiment(summary.experiment).tables(summary)
    if tables:
        lines += [tables, ""]
    if summary.paper:
        lines += [f"*The paper:* {summary.paper}", ""]
    if summary.limits:
        lines += [f"*This scale:* {summary.limits}", ""]
    lines += [_origin(file, summary, home), ""]
    return "\n".join(lines)


def _origin(file: Path, summary: Summary, home: Path) -> str:
    """Return the sentence that says where a section's numbers come from."""
    settings, machine = summary.settings, summary.machine
    sets = summary.data.get("sets", {})
    stand_ins = [
        f"{name} for {item['stands_for']}"
        for name, item in sets.items()
        if item.get("stands_for") and name in summary.columns()
    ]
    steps = f"{settings.get('steps', 0):,} steps of {settings.get('batch_size')} sequences"
    facts = [
        f"{settings.get('layers')} layers, {settings.get('hidden_size')} wide, vocabulary of"
        f" {settings.get('vocab_size', 0):,}; {steps} of up to {settings.get('max_length')} tokens",
        *(
            [
                f"fine-tuning: {settings.get('finetune_steps'):,} steps of {settings.get('finetune_batch')}, at most"
                f" {settings.get('train_examples'):,} examples, {summary.seeds} seeds"
            ]
            if find_experiment(summary.experiment).finetunes
            else []
        ),
        f"{summary.seconds / 60:,.0f} minutes of training on {machine.get('cpu', 'an unknown processor')}"
        f" ({machine.get('cpu_capability', '')}, {machine.get('cores', 0):g} cores)",
    ]
    facts += [
        f"{name}: {item['note']}" for name, item in sets.items() if item.get("note") and name in summary.columns()
    ]
    if stand_ins:
        facts.append(f"sets that stand in for the paper's: {', '.join(stand_ins)}")
    command = f"`{summary.command}`; " if summary.command else ""
    return f"*Run:* {command}{'; '.join(facts)}. Summary: [{file.name}]({file.relative_to(home).as_posix()})."

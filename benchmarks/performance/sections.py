"""The page as Markdown: a summary, a section per benchmark, and the records with their machines and versions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from fastbert.benchmarks.harness import quietness, records
from fastbert.benchmarks.performance import figures
from fastbert.benchmarks.performance.cells import limit, rate
from fastbert.benchmarks.performance.figures import ACCELERATED, CLASSES, DTYPES, Comparison, Record, Records, Row
from fastbert.benchmarks.performance.generic import generic_tables
from fastbert.benchmarks.performance.goals import GOALS, MET, MISSED, UNMEASURED, Goal, judge
from fastbert.benchmarks.performance.markdown import number, table

BUSY_MARK = "‡"
MS = "ms (p20-p80)"
LINKS = "../benchmarks/results"
INTRODUCTION = """# Performance on processors, measured

This page is generated from the [records](../benchmarks/results/README.md) by `python benchmarks/performance_page.py`;
do not edit it. [Performance on a CPU](performance-cpu.md) explains what limits the figures,
[Benchmarks](benchmarks.md) how they are measured, and [Performance on a GPU](performance-gpu.md) has those of GPUs.
`fastbert bench record` makes the records of your processor.

- Processors are classed by their widest feature: {classes}.
  AMD's Zen 5, `zen5`, has the instructions of Zen 4, `avx512-bf16`, and twice its arithmetic.
  A class without a record is *unmeasured*; *no peer* means that fastbert alone was measured.
- Times are medians, with the 20th to 80th percentile in brackets. Machines differ in cores and clock, so compare within
  a row, never between classes.
- A ratio is the time of a peer relative to fastbert's: above 1 fastbert is faster. The best peer is the fastest one
  whose outputs agree; *same dtype* compares with the fastest one in that dtype.
- {met} and {missed} beside a ratio say whether fastbert is at least as fast; beside a figure of the goals, whether the
  goal is met.
- *of the limit*: the share of the matmul peak, or for single short texts of a copy's bandwidth, at which the weights
  were read; both measured in the same run. Above 100 %, the clock was slower while the peak was measured. *of the
  model*: the time of [a model](benchmarks.md#encoders-on-a-cpu) that adds matmuls, attention and the bytes to move,
  relative to the measured time.
"""


class Section(NamedTuple):
    """A benchmark's place on the page."""

    benchmark: str
    title: str
    text: str


# In the order of the page; other benchmarks follow by name: those with times, then those without.
SECTIONS = (
    Section("encoder", "Encoder", "BERT-base: hidden states of a batch, all cores."),
    Section("matmuls", "Matmuls of an encoder", "x W^T + b in the shapes of BERT-base, weights cold in cache."),
    Section(
        "encoder-growth", "Encoder: growth", "BERT-base unless a size is named; 8x128 is 8 sequences of 128 tokens."
    ),
    Section("accelerate", "Accelerated transformers", "BERT-base in one line of code: `fastbert.accelerate`."),
    Section("migration", "Beside the libraries of the migration guides", "BERT-base and MiniLM, in one run."),
    Section("encoder-mpnet-base", "Encoder: MPNet", "The released shape of mpnet-base."),
    Section("encoder-modernbert-base", "Encoder: ModernBERT", "The released shape of modernbert-base."),
    Section(
        "encoder-deberta-v3-base", "Encoder: DeBERTa-v3", "The released shape of deberta-v3-base; 1x8 is 1 x 8 tokens."
    ),
    Section("embed", "Embeddings, from text to vector", "MiniLM on sentences of Wikipedia."),
    Section("embed-xlm-roberta-base", "Embeddings in the shape of XLM-R", "Sentences of Wikipedia, random weights."),
    Section("embed-ray", "Embeddings by Ray", "MiniLM, two workers with one thread each beside one process with two."),
    Section("rerank", "Ranking", "A cross-encoder of MiniLM-L6's shape, one query with 100 texts."),
    Section("scaling", "Threads and shared cores", "BERT-base on one thread to all, and in two processes at once."),
    Section("serving", "Servers", "Milliseconds per request at saturation; servers and clients share the cores."),
    Section("search", "Search", "Exact search of vectors; fastbert's default stores int8 and rescores in fp16."),
    Section("loading", "Loading", "BERT-base from a file in the page cache, in a new process."),
    Section("training", "Training", "A step: forward pass, backward pass, clipping and AdamW."),
    Section("training-mpnet-base", "Training: MPNet", "Masked LM in the released shape."),
    Section("training-modernbert-base", "Training: ModernBERT", "Masked LM in the released shape."),
    Section("training-deberta-v3-base", "Training: DeBERTa-v3", "Masked LM in the released shape."),
    Section("embedding-training", "Training of embedders", "MiniLM, contrastive loss."),
    Section("elmo", "Training of ELMo", "Beside plain PyTorch."),
    Section("optimizers", "Optimizers", "One step of each, with the parameters of BERT-base."),
    Section("packing", "Packing", "Pre-training steps on packed batches beside padded ones."),
    Section("prepare", "Preparation of corpora", "From text to token shards; one worker beside all cores."),
    Section("generation", "Generation", "Greedy text of GPT-2: 256 tokens after 16."),
    Section("scoring", "Scoring by masked LM", "Pseudo-log-likelihoods of BLiMP's sentences."),
    Section("tokenizer", "WordPiece tokenizers", "One thread unless the workload says otherwise."),
    Section("tokenizer-threads", "WordPiece tokenizers by threads", ""),
    Section("tokenizer-hostile", "WordPiece tokenizers on hostile texts", ""),
    Section("tokenizers", "BPE and Unigram tokenizers", "One thread."),
)
# The rows of the summary: a benchmark, and the beginning of the names of its workloads.
HEADLINES = (
    ("encoder", ""), ("embed", ""), ("rerank", ""), ("serving", "single"), ("serving", "batch64"), ("training", ""),
    ("generation", ""), ("tokenizer", "wiki-en sentences, cold"), ("tokenizer", "wiki-en sentences, warm"),
    ("tokenizers", "gpt2: wiki-en sentences, cold"), ("tokenizers", "xlm-roberta-base: wiki-en sentences, cold"),
    ("loading", "load"), ("search", "1,000,000"),
)  # fmt: skip
MOST_TABLES = 8  # one table has all workloads of a benchmark with more, or of a family


def render(everything: Records, goals: Sequence[Goal] = GOALS) -> str:
    """Return the page."""
    timed = {name: by_class for name, by_class in everything.items() if any(map(_has_times, by_class.values()))}
    order = [section for section in SECTIONS if section.benchmark in timed]
    named = {section.benchmark for section in SECTIONS}
    order += [Section(name, _title(name), "") for name in timed if name not in named]
    lines = [
        INTRODUCTION.format(classes=", ".join(f"`{name}`" for name in CLASSES), met=MET, missed=MISSED),
        *_summary(everything, goals),
    ]
    for section in order:
        lines += _section(section, everything[section.benchmark], everything, goals)
    lines += ["## Other measurements", "", "Scores, memory and checks, which are no times beside a peer's.", ""]
    for name, by_class in everything.items():
        if name not in timed:
            lines += [f"### {_title(name)}", "", *_sources(name, by_class), *generic_tables(by_class)]
    lines += _appendix(everything)
    return "\n".join(lines).rstrip() + "\n"


def _title(benchmark: str) -> str:
    words = benchmark.replace("-", " ")
    return words[:1].upper() + words[1:]


def _has_times(record: Record) -> bool:
    return any(map(figures.is_timed, record["rows"]))


# The summary


def _summary(everything: Records, goals: Sequence[Goal]) -> list[str]:
    rows = []
    for benchmark, begin in HEADLINES:
        by_class = everything.get(benchmark, {})
        for workload in [name for name in figures.workloads(by_class) if name.startswith(begin)]:
            rows.append([benchmark, workload, *(_headline(benchmark, by_class, workload, name) for name in CLASSES)])
    lines = ["## Summary", "", "fastbert's fastest dtype beside the fastest peer in any dtype:", ""]
    lines += table(["benchmark", "workload", *CLASSES], rows)
    lines += ["### Goals", "", "An empty cell: the goal is not for that class.", ""]
    cells = [
        [goal.what, goal.target, *(str(judge(goal, everything, name) or "") for name in CLASSES)] for goal in goals
    ]
    marks = [cell.rpartition(" ")[2] for row in cells for cell in row[2:] if cell]
    return [
        *lines,
        *table(["goal", "bound", *CLASSES], cells),
        f"Verdicts: {marks.count(MET)} {MET}, {marks.count(MISSED)} {MISSED}, {marks.count(UNMEASURED)} {UNMEASURED}.",
        "",
    ]


def _headline(benchmark: str, by_class: Mapping[str, Record], workload: str, machine_class: str) -> str:
    record = by_class.get(machine_class)
    best = None if record is None else figures.leading(figures.compare(benchmark, record, workload))
    if best is None:
        return UNMEASURED
    if best.best is None:
        return "no peer"
    return _ratio(best.row, best.best, judged=True)


# A section


def _section(section: Section, by_class: Mapping[str, Record], everything: Records, goals: Sequence[Goal]) -> list[str]:
    lines = [f"## {section.title}", "", *([section.text, ""] if section.text else [])]
    lines += _sources(section.benchmark, by_class)
    names = figures.workloads(by_class)
    if len(names) > MOST_TABLES or "-" in section.benchmark:
        lines += _all_workloads(section.benchmark, by_class, names)
        lines += _judgements([goal for goal in goals if goal.benchmark == section.benchmark], everything)
    else:
        for name in names:
            lines += _workload(section.benchmark, by_class, name)
            matching = [goal for goal in goals if (goal.benchmark, goal.workload) == (section.benchmark, name)]
            lines += _judgements(matching, everything)
    if any(row.get("contender", "").startswith(ACCELERATED) for record in by_class.values() for row in record["rows"]):
        lines += [
            "### `fastbert.accelerate`",
            "",
            "Models of transformers with fastbert's kernels, padded inputs and outputs, beside transformers alone:",
            "",
            *_all_workloads(section.benchmark, by_class, names, accelerated=True, notes=False),
        ]
    return lines + _notes(section.benchmark, by_class)


def _sources(benchmark: str, by_class: Mapping[str, Record]) -> list[str]:
    """Return the links to the records, and the classes without one."""
    links = [f"[{name}]({LINKS}/{benchmark}/{name}.json)" for name in by_class]
    missing = [name for name in CLASSES if name not in by_class]
    end = f"; {UNMEASURED}: {', '.join(missing)}" if missing else ""
    return [f"Records: {', '.join(links)}{end}.", ""]


def _workload(benchmark: str, by_class: Mapping[str, Record], workload: str) -> list[str]:
    """Return one table: fastbert's rows of every class, each beside the best peers."""
    compared = {name: figures.compare(benchmark, record, workload) for name, record in by_class.items()}
    measured = [(name, comparison) for name, found in compared.items() for comparison in found]
    columns = [
        "class",
        "contender",
        MS,
        "rate",
        "of the limit",
        f"best peer in this dtype, {MS}",
        "ratio",
        f"best peer, {MS}",
        "ratio",
    ]
    rows = []
    for name, found in compared.items():
        for index, comparison in enumerate(found):
            head = f"**{name}**{_busy(by_class[name])}" if index == 0 else ""
            rows.append([head, *_cells(comparison, leading=comparison is figures.leading(found))])
    missing = [name for name in CLASSES if not compared.get(name)]
    if missing:
        rows.append([f"**{', '.join(missing)}**", UNMEASURED, *[""] * (len(columns) - 2)])
    if not any(comparison.same for _, comparison in measured if comparison.row["dtype"] in DTYPES):
        columns, rows = columns[:5] + columns[7:], [row[:5] + row[7:] for row in rows]
    what = next((row["details"]["workload"] for record in by_class.values() for row in record["rows"]
                 if row["workload"] == workload and "workload" in (row.get("details") or {})), "")  # fmt: skip
    return [f"### {workload}", "", *([f"{what}.", ""] if what else []), *table(columns, rows, drop_empty=True)]


def _cells(comparison: Comparison, *, leading: bool) -> list[str]:
    row, same, best = comparison
    wrong = "" if figures.agrees(row) else f" ({row['outputs']})"
    return [
        f"{row['contender']}{wrong}",
        _time(row),
        rate(row),
        limit(row),
        _peer(same),
        _ratio(row, same, judged=True),
        "the same" if best is same and best is not None else _peer(best),
        _ratio(row, best, judged=leading),
    ]


def _all_workloads(
    benchmark: str, by_class: Mapping[str, Record], names: Sequence[str], *, accelerated: bool = False,
    notes: bool = True,
) -> list[str]:  # fmt: skip
    """Return one table of all workloads, with a column per class: the figure, the limit, and the ratio to the best
    peer."""
    cells: dict[tuple[str, str], dict[str, str]] = {}
    for name, record in by_class.items():
        for workload in names:
            compared = figures.compare(benchmark, record, workload, accelerated=accelerated)
            for comparison in compared:
                row = comparison.row
                peer = comparison.same or comparison.best
                parts = [rate(row) if row.get("megabytes_per_second") else _time(row), limit(row, brief=True)]
                if peer is not None:
                    parts.append(f"{_ratio(row, peer, judged=True)} {peer['contender']}")
                wrong = "" if figures.agrees(row) else f"; {row['outputs']}"
                text = ", ".join(filter(None, parts)) + wrong
                cells.setdefault((workload, row["contender"]), {})[name] = text
    order = sorted(cells, key=lambda key: names.index(key[0]))
    columns = [name for name in by_class if any(name in row for row in cells.values())]
    rows, before = [], ""
    for workload, contender in order:
        found = [cells[workload, contender].get(name, UNMEASURED) for name in columns]
        rows.append([workload if workload != before else "", contender, *found])
        before = workload
    heads = [f"{name}{_busy(by_class[name])}" for name in columns]
    text = [
        f"Each cell: {MS} or MB/s, the share of the matmul peak, and the ratio to the best peer, in the same dtype",
        "where there is one.",
        "",
    ]
    return [*(text if notes else []), *table(["workload", "contender", *heads], rows)]


def _judgements(goals: Sequence[Goal], everything: Records) -> list[str]:
    """Return a line per goal with its verdicts by class."""
    lines = []
    for goal in goals:
        verdicts = {name: judge(goal, everything, name) for name in goal.classes}
        words = [f"{name} {verdict}" for name, verdict in verdicts.items() if verdict and verdict.mark != UNMEASURED]
        missing = [name for name, verdict in verdicts.items() if verdict and verdict.mark == UNMEASURED]
        words += [f"{UNMEASURED}: {', '.join(missing)}"] if missing else []
        lines.append(f"- Goal: {goal.what} {goal.target}: {'; '.join(words)}")
    return [*lines, ""] if lines else []


def _notes(benchmark: str, by_class: Mapping[str, Record]) -> list[str]:
    """Return what must be known of the rows: goals of the benchmark itself, outputs that differ, contenders that were
    not measured, and a load."""
    lines = []
    for name, record in by_class.items():
        for row in record["rows"]:
            details = row.get("details") or {}
            if "meets_goal" in details:
                mark = MET if details["meets_goal"] else MISSED
                lines.append(f"- {mark} {name}, {row['workload']}, {row['contender']}: {details.get('note', '')}")
    differing: dict[tuple[str, str], dict[str, list[str]]] = {}
    reasons: dict[tuple[str, str], dict[str, list[str]]] = {}
    for name, record in by_class.items():
        for row in filter(figures.is_timed_or_absent, record["rows"]):
            workload, contender, outputs = row["workload"], row["contender"], row["outputs"]
            if outputs == figures.NOT_MEASURED:
                reason = (row.get("details") or {}).get("reason", "no reason recorded")
                reasons.setdefault((name, reason), {}).setdefault(contender, []).append(workload)
            elif not figures.agrees(row):
                own = figures.leading(figures.compare(benchmark, record, workload))
                faster = own is not None and row["median_ms"] < own.row["median_ms"]
                where = f'"{workload}"' + (f" ({number(row['median_ms'])} ms, faster)" if faster else "")
                differing.setdefault((name, contender), {}).setdefault(outputs, []).append(where)
    for (name, contender), found in differing.items():
        words = "; ".join(f"{outputs}: {', '.join(where)}" for outputs, where in found.items())
        lines.append(f"- Outputs differ, {name}, {contender}: {words}")
    count = len(figures.workloads(by_class))
    for (name, reason), contenders in reasons.items():
        words = [
            contender if len(where) == count else f"{contender} ({'; '.join(where)})"
            for contender, where in contenders.items()
        ]
        lines.append(f"- Not measured, {name}: {'; '.join(words)}: {reason}")
    for name, record in by_class.items():
        load = (record.get("settings") or {}).get(records.BUSY)
        if load:
            lines.append(f"- {BUSY_MARK} {name}: {quietness.describe_setting(load)}, so the ratios are disturbed")
    return [*lines, ""] if lines else []


# Cells


def _time(row: Row) -> str:
    return f"{number(row['median_ms'])} ({number(row['p20'])}-{number(row['p80'])})"


def _peer(row: Row | None) -> str:
    return "" if row is None else f"{row['contender']}, {_time(row)}"


def _ratio(row: Row, peer: Row | None, *, judged: bool) -> str:
    value = figures.ratio(row, peer)
    if value is None:
        return ""
    text = f"{value:,.1f}x" if value >= 9.95 else f"{value:.2f}x"
    return f"{text} {MET if round(value, 2) >= 1 else MISSED}" if judged else text


def _busy(record: Record) -> str:
    return f" {BUSY_MARK}" if (record.get("settings") or {}).get(records.BUSY) else ""


# The records


def _appendix(everything: Records) -> list[str]:
    lines = ["## Records", "", "The processor, commit and versions of every record.", ""]
    rows = []
    for benchmark, by_class in everything.items():
        for name, record in by_class.items():
            link = f"[{benchmark}]({LINKS}/{benchmark}/{name}.json)"
            note = str(record.get("note", ""))
            rows.append([link, name, _processor(record), _commits(record), _versions(record["versions"]), note])
    return [*lines, *table(["record", "class", "processor", "commit", "versions", "note"], rows)]


def _processor(record: Record) -> str:
    machine: Mapping[str, Any] = record["machine"]
    cores = machine.get("usable_cores")
    return str(machine["cpu"]) + (f", {cores:g} usable" if cores else "")


def _commits(record: Record) -> str:
    commits: Iterable[Any] = dict.fromkeys([record["commit"], *(row.get("commit") for row in record["rows"])])
    return ", ".join(str(commit) for commit in commits if commit) or "unknown"


def _versions(versions: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions.items() if name != "fastbert-engine")

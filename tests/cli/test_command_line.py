"""The `fastbert` command: help, wrong input in one line, exit codes. tests/test_package.py runs the console script."""

import contextlib
import dataclasses
import functools
import io
import logging
import re
import shlex
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Annotated, Literal

import pytest

tyro = pytest.importorskip("tyro", reason="the command line needs tyro")

from fastbert import cli  # noqa: E402
from fastbert.cli.flag_table import flags_of  # noqa: E402
from fastbert.cli.flags import parse  # noqa: E402
from fastbert.errors import UserError  # noqa: E402
from fastbert.flags import check_required  # noqa: E402
from fastbert.io.log import logger  # noqa: E402


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """Do
    something."""

    words: Annotated[tuple[str, ...], tyro.conf.Positional] = ()
    """Words."""
    corpus: tuple[Path, ...] = ()
    """Files."""
    steps: int | None = None
    """Steps to take."""
    max_length: int = 128
    """Tokens per sequence."""
    kind: Literal["soft", "hard"] = "soft"
    """Which kind."""
    form: Literal["round", "square"] | None = None
    """Which form."""
    overwrite: bool = False
    """Replace."""

    def __post_init__(self) -> None:
        if self.max_length < 3:
            raise UserError(f"--max-length {self.max_length} must be at least 3")


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Config, bool]]:
    """A command `try` that records what it was run with, and fails as its first word says."""
    seen: list[tuple[Config, bool]] = []

    def run(config: Config, *, quiet: bool = False) -> int:
        seen.append((config, quiet))
        if config.words[:1] == ("missing-file",):
            Path("/nonexistent/file").read_text()
        if config.words[:1] == ("interrupt",):
            raise KeyboardInterrupt
        if config.words[:1] == ("wrong",):
            raise UserError("line 3 of corpus.txt is empty")
        if config.words[:1] == ("bug",):
            raise KeyError("bug")
        return 7 if config.words[:1] == ("seven",) else 0

    module = ModuleType("fastbert.cli.attempt")
    module.Config, module.run = Config, run  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "fastbert.cli.attempt", module)
    monkeypatch.setitem(cli.COMMANDS, "try", ("attempt", "do something"))
    return seen


def test_flags_reach_the_configuration(calls: list[tuple[Config, bool]]) -> None:
    words = [
        "try",
        "a",
        "b",
        "--corpus",
        "x.txt",
        "y",
        "--steps",
        "3",
        "--max-length=9",
        "--kind",
        "hard",
        "--overwrite",
    ]
    assert cli.main(words) == 0
    expected = Config(
        words=("a", "b"), corpus=(Path("x.txt"), Path("y")), steps=3, max_length=9, kind="hard", overwrite=True
    )
    assert calls == [(expected, False)]
    assert type(calls[0][0]) is Config


def test_a_repeated_flag_keeps_all_of_several_values(calls: list[tuple[Config, bool]]) -> None:
    words = "try a --corpus x --steps 3 --corpus=y z --max-length 9 --corpus w --steps 4"
    assert cli.main(words.split()) == 0
    corpus = tuple(map(Path, ("x", "y", "z", "w")))
    assert calls == [(Config(words=("a",), corpus=corpus, steps=4, max_length=9), False)]


@pytest.mark.parametrize("words", [["--quiet", "try"], ["try", "--quiet"], ["-q", "try"], ["try", "-q"]])
def test_quiet_is_understood_anywhere(words: list[str], calls: list[tuple[Config, bool]]) -> None:
    assert cli.main(words) == 0
    assert calls == [(Config(), True)]


def test_a_commands_exit_code_is_the_programs(calls: list[tuple[Config, bool]]) -> None:
    assert cli.main(["try", "seven"]) == 7


@pytest.mark.parametrize(
    ("words", "message"),
    [
        pytest.param("tri", "unknown command 'tri'; did you mean `fastbert try`?", id="command-with-a-slip"),
        pytest.param("xyzzy", "unknown command 'xyzzy'; `fastbert --help` lists the commands", id="command"),
        pytest.param("try --step 3", "unknown flag --step; did you mean --steps?", id="flag-with-a-slip"),
        pytest.param(
            "try --qqq x --zzz", "unknown flag --qqq, --zzz; `fastbert try --help` shows the flags", id="flags"
        ),
        pytest.param("try --steps x", "--steps 'x': must be a whole number;", id="optional-number"),
        pytest.param("try --max-length x", "--max-length 'x': must be a whole number;", id="number"),
        pytest.param("try --kind odd", "--kind odd: choose one of soft, hard;", id="choice"),
        pytest.param(
            "finetune --task nope",
            "--task nope: choose one of classification, multilabel, regression, tagging, span, choice, seq2seq,",
            id="optional-choice",
        ),
        pytest.param("try --kind", "--kind: a value is missing;", id="no-value"),
        pytest.param("try --corpus --steps 3", "--corpus: a value is missing;", id="no-values"),
        pytest.param("try --form None", "--form None: choose one of round, square;", id="none-is-no-choice"),
        pytest.param("try --stpes 3", "unknown flag --stpes; did you mean --steps?", id="swapped-letters"),
        pytest.param("try --max-steps 3", "unknown flag --max-steps; did you mean --steps?", id="alias"),
        pytest.param(
            "try --max_seq_length 3", "unknown flag --max-seq-length; did you mean --max-length?", id="alias_"
        ),
        pytest.param("try --top-p 3", "unknown flag --top-p, which `fastbert generate` has", id="of-another-command"),
        pytest.param(
            "serve --model x", "unknown flag --model; give MODELS without a flag: `fastbert serve MODELS`", id="named"
        ),
        pytest.param("doctor --model x", "unknown flag --model; `fastbert doctor --help`", id="of-many-commands"),
        pytest.param("finetune --learning-rate 1", "unknown flag --learning-rate; did you mean --lr?", id="lr"),
        pytest.param("finetune --num-epochs=1", "unknown flag --num-epochs; did you mean --epochs?", id="num-epochs"),
        pytest.param("finetune --output x", "unknown flag --output; did you mean --out?", id="output"),
        pytest.param("finetune --train-file x", "unknown flag --train-file; did you mean --train?", id="train-file"),
        pytest.param("try -q -v", "--quiet and --verbose exclude each other;", id="quiet-and-verbose"),
        pytest.param("--completion nosh", "--completion nosh: choose one of bash, zsh, fish", id="shell"),
        pytest.param("try --max-length 2", "--max-length 2 must be at least 3", id="value-out-of-range"),
        pytest.param("try wrong", "line 3 of corpus.txt is empty", id="user-error"),
        pytest.param("try missing-file", "/nonexistent/file: No such file or directory", id="file"),
    ],
)
def test_wrong_input_is_one_line_and_exit_code_2(
    words: str, message: str, calls: list[tuple[Config, bool]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(words.split()) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith(f"fastbert: error: {message}")
    assert printed.err.count("\n") == 1
    assert "─" not in printed.err
    assert "--------" not in printed.err


@pytest.mark.parametrize(
    ("words", "flag"),
    [
        pytest.param(["try", "--corpus", "a", ""], "--corpus", id="last-of-several"),
        pytest.param(["try", "--corpus="], "--corpus", id="after-an-equals-sign"),
        pytest.param(["vocab", "--corpus", ".", "--out", ""], "--out", id="vocab"),
        pytest.param(["convert", ".", "--out", ""], "--out", id="convert"),
    ],
)
def test_an_empty_path_is_not_the_current_folder(
    words: list[str], flag: str, calls: list[tuple[Config, bool]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(words) == 2
    message = f"{flag} '': is empty; name a file or a folder (. is the current one)"
    assert capsys.readouterr().err == f"fastbert: error: {message}\n"
    assert not calls


def test_an_empty_argument_behind_the_value_of_a_path_is_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["fill-mask", "--model", "absent", ""]) == 2
    assert "is empty" not in capsys.readouterr().err
    assert cli.main(["doctor", ""]) == 2
    assert capsys.readouterr().err.startswith("fastbert: error: unexpected argument '';")
    assert cli.main(["bench", "nope"]) == 2
    assert capsys.readouterr().err.startswith("fastbert: error: bench 'nope': is not a workload; choose one of tok")
    assert cli.main(["finetune", "--task", ""]) == 2
    assert capsys.readouterr().err.startswith("fastbert: error: --task '': choose one of classification, ")


@pytest.mark.parametrize("words", ["try wrong --debug", "--debug try missing-file", "--debug try --max-length 2"])
def test_debug_shows_the_traceback(words: str, calls: list[tuple[Config, bool]]) -> None:
    with pytest.raises((UserError, OSError)):
        cli.main(words.split())


def test_a_bug_keeps_its_traceback(calls: list[tuple[Config, bool]]) -> None:
    with pytest.raises(KeyError):
        cli.main(["try", "bug"])


def test_an_interrupt_is_exit_code_130(calls: list[tuple[Config, bool]], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["try", "interrupt"]) == 130
    assert capsys.readouterr().err == "fastbert: interrupted\n"


@pytest.mark.parametrize("words", [["try", "--help"], ["help", "try"], ["try", "-h"]])
def test_help_shows_defaults_and_nothing_of_none(
    words: list[str], calls: list[tuple[Config, bool]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(words) == 0
    printed = capsys.readouterr().out
    assert "Do something." in printed
    assert "(default: 128)" in printed
    assert "--steps N " in printed
    assert "--corpus PATH ..." in printed
    assert "--form {round,square}" in printed
    assert "--no-overwrite" not in printed
    assert "--quiet" in printed
    assert "--debug" in printed
    assert "None" not in printed
    assert not calls


@pytest.mark.parametrize("words", [[], ["--help"], ["-h"], ["help"], ["--quiet"]])
def test_without_a_command_the_commands_are_listed(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(words) == 0
    printed = capsys.readouterr().out
    assert [name for name in cli.COMMANDS if f"\n  {name} " not in printed] == []


def test_without_tyro_one_line_names_the_cure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "tyro", None)
    assert cli.main(["demo"]) == 2
    assert capsys.readouterr().err == "fastbert: error: the command line needs the package tyro: `pip install tyro`\n"


@pytest.mark.parametrize("flag", ["--threads", "--rounds"])
def test_a_zero_is_not_taken_for_a_flag_left_out(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "encoder", flag, "0"]) != 0
    assert f"{flag} 0 must be" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "level"), [("try", logging.NOTSET), ("try -v", logging.INFO), ("--verbose try --verbose", logging.DEBUG)]
)
def test_verbose_logs_more(words: str, level: int, calls: list[tuple[Config, bool]]) -> None:
    try:
        assert cli.main(words.split()) == 0
        assert logger.level == level
        assert calls == [(Config(), False)]
    finally:
        logger.setLevel(logging.NOTSET)


@pytest.mark.parametrize("words", ["--version", "-V", "finetune --version", "finetune --task span --version"])
def test_the_version_is_shown_anywhere(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(words.split()) == 0
    assert capsys.readouterr().out.startswith("fastbert 0.")


MODULES = {name: import_module(f"fastbert.cli.{entry[0]}") for name, entry in cli.COMMANDS.items()}
# `bench` and `search` have sub-commands with flags of their own.
PLAIN = [name for name, module in MODULES.items() if not hasattr(module, "SUBCOMMANDS")]


def help_of(command: str, words: list[str], capsys: pytest.CaptureFixture[str]) -> list[str]:
    assert cli.main([command, *words]) == 0
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("columns", [80, 200])
@pytest.mark.parametrize("command", PLAIN)
def test_help_has_groups_and_examples_and_fits(
    command: str, columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    short, whole = help_of(command, ["--help"], capsys), help_of(command, ["--help-all"], capsys)
    listed = flags_of(MODULES[command].Config)
    for lines in (short, whole):
        assert max(map(len, lines)) <= min(columns, 100)
        assert not any("None" in line for line in lines)
        text = "\n".join(lines)
        assert text.index(f"\n{listed[0].group}:\n") < text.index("Examples:")
        required = [flag for flag in listed if flag.required]
        assert " ".join(text.split()).count("(required") == len(required)
    for flag in listed:
        assert flag.text, f"{flag.name} has no docstring"
        rows = [line for line in whole if re.match(rf"  {re.escape(flag.name)}( |$)", line)]
        assert len(rows) == 1, flag.name
        assert (rows[0] in short) == (not flag.rare), flag.name


def test_help_on_a_terminal_of_ten_columns(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "10")
    assert help_of("finetune", ["--help-all"], capsys)


def test_the_help_of_finetune_is_short(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A flag that few people need is declared as `rare`, which only --help-all shows."""
    monkeypatch.setenv("COLUMNS", "80")
    lines = help_of("finetune", ["--help"], capsys)
    assert len(lines) <= 72
    titles = [line for line in lines if line.endswith(":") and not line.startswith(" ")]
    assert titles == ["Data:", "Model:", "Training:", "Output:", "Machine:", "Examples:"]


@pytest.mark.parametrize("task", ["multilabel", "seq2seq", "span", "tagging"])
def test_the_help_shows_the_flags_of_the_named_task(task: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert f"With --task {task}:" not in help_of("finetune", ["--help"], capsys)
    shown = help_of("finetune", ["--task", task, "--help"], capsys)
    assert [line for line in shown if line.startswith("With --task")] == [f"With --task {task}:"]


@pytest.mark.parametrize("command", PLAIN)
def test_examples_are_two_or_three_calls_that_parse(command: str) -> None:
    examples = MODULES[command].EXAMPLES
    assert len(examples) in (2, 3)
    for example in examples:
        words = shlex.split(example.rpartition("| ")[2])
        assert words[:2] == ["fastbert", command]
        check_required(parse(MODULES[command].Config, command, words[2:]))


@pytest.mark.parametrize("command", [name for name in PLAIN if name not in ("demo", "doctor")])
def test_without_arguments_the_shortest_call_is_shown(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([command]) == 2
    usage, *more, example, hint = capsys.readouterr().err.splitlines()
    assert usage.startswith(f"usage: fastbert {command} ")
    assert [line for line in more if not line.startswith(f"       fastbert {command} ")] == []
    assert f"fastbert {command} " in example
    assert hint == f"`fastbert {command} --help` shows the flags"


def test_the_usage_of_evaluate_shows_what_takes_the_place_of_what() -> None:
    from fastbert.cli.help import usages

    assert usages(MODULES["evaluate"].Config, "evaluate") == [
        "fastbert evaluate --gold GOLD --predictions PATH --task TASK [FLAGS]",
        "fastbert evaluate --glue PATH [FLAGS]",
        "fastbert evaluate --task TASK --data PATH [FLAGS]",
        "fastbert evaluate --task TASK --text TEXT [FLAGS]",
        "fastbert evaluate --task TASK --corpus PATH ... [FLAGS]",
        "fastbert evaluate --task TASK --qrels PATH [FLAGS]",
        "fastbert evaluate --qrels PATH --run PATH [FLAGS]",
        "fastbert evaluate --gold GOLD --model MODEL [FLAGS]",
    ]


@functools.cache
def completion(shell: str) -> str:
    """Return a shell's completion script."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        assert cli.main(["--completion", shell]) == 0
    return printed.getvalue()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_completion_script_knows_commands_flags_and_choices(shell: str) -> None:
    script = completion(shell)
    assert [word for word in (*PLAIN, "--early-stopping", "slanted-triangular", "--quiet") if word not in script] == []
    assert "'None'" not in script


def test_bash_completes(tmp_path: Path) -> None:
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("bash is not installed")
    script = tmp_path / "fastbert.bash"
    script.write_text(completion("bash"))
    code = (
        f"source {script}; function=$(complete -p fastbert | sed 's/.*-F \\([^ ]*\\).*/\\1/');"
        'COMP_WORDS=(fastbert finetune --schedule ""); COMP_CWORD=3; COMP_LINE="fastbert finetune --schedule ";'
        'COMP_POINT=${#COMP_LINE}; $function fastbert "" --schedule; echo "${COMPREPLY[@]}"'
    )
    done = subprocess.run([bash, "--norc", "-c", code], capture_output=True, text=True)
    schedules = ["linear", "cosine", "wsd", "constant", "slanted-triangular", "inverse-sqrt"]
    assert done.stdout.split() == schedules, done.stderr

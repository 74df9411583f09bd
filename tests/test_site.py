"""The documentation site: its structure, every link and anchor, every kind of code block, and the built pages.

Most of it is checked without Sphinx; one test builds the site, if Sphinx is installed.
"""

import importlib
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from fastbert.cli import COMMANDS

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "benchmarks").rglob("*.md")), *sorted(DOCS.rglob("*.md"))]
# The languages of code blocks. "python" runs in test_documents.py, "py" in the tests of notebooks, the rest is parsed;
# so is "py" on pages that show the code of other libraries.
LANGUAGES = {"python", "py", "sh", "console", "json", "toml", "yaml", "dockerfile", "text", "mermaid", ""}
PARSED_FOLDERS = ("tour", "notebooks", "migration")
CLUSTERS = ("ray", "pyspark")  # a block that imports one of these is only parsed
# The first words of lines in shell blocks, beside fastbert.
PROGRAMS = {"pip", "python", "python3", "pytest", "ruff", "mypy", "pre-commit", "torchrun", "jupyter", "tensorboard"}
PROGRAMS |= {"cd", "curl", "docker", "echo", "export", "git", "hf", "node", "npm", "source", "systemctl", "time"}
PROGRAMS |= {"ct2-transformers-converter", "infinity_emb", "text-embeddings-router"}  # of other libraries
SHELL = {"until", "do", "done", "for", "if", "then", "fi", "while", "break", "sleep"}

pytestmark = pytest.mark.skipif(not (DOCS / "website").is_dir(), reason="needs the source tree")


@pytest.fixture(scope="module")
def website() -> Iterator[Any]:
    """The modules of docs/website, by name."""
    sys.path.insert(0, str(DOCS))

    class Website:
        def __getattr__(self, name: str) -> ModuleType:
            return importlib.import_module(f"website.{name}")

    yield Website()
    sys.path.remove(str(DOCS))
    for name in [name for name in sys.modules if name.partition(".")[0] == "website"]:
        del sys.modules[name]


@pytest.fixture(scope="module")
def reference(website: Any) -> Any:
    return website.build.reference()


@pytest.fixture(scope="module")
def staged(website: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("site")
    return website.staging.stage(folder, website.build.generated())


def test_every_link_of_a_page_leads_to_a_file_and_an_anchor_that_exist(website: Any) -> None:
    anchors = {page: set(website.slugs.anchors_of(page.read_text())) for page in PAGES}
    wrong = []
    for page in PAGES:
        for target in website.staging.links(page.read_text()):
            name, _, anchor = target.partition("#")
            if re.match(r"\w+:", name):
                if not re.fullmatch(r"(https://[\w.-]+\.[a-z]+(/[^\s<>\"]*)?|mailto:\S+@\S+)", target):
                    wrong.append(f"{page.relative_to(ROOT)}: {target} is no https address")
                continue
            file = (page.parent / name).resolve() if name else page
            file = file / "README.md" if file.is_dir() and anchor else file
            if not file.exists():
                wrong.append(f"{page.relative_to(ROOT)}: {target} does not exist")
            elif anchor and anchor not in anchors.get(file, set()):
                wrong.append(f"{page.relative_to(ROOT)}: {target} has no such heading")
    assert not wrong, "\n".join(wrong)


def test_anchors_are_those_of_github(website: Any) -> None:
    text = "# A `b_c` (d): e-f\n\n## The [link](x.md#y) & more\n\n```sh\n# no heading\n```\n\n## The link & more\n"
    assert website.slugs.anchors_of(text) == ["a-b_c-d-e-f", "the-link--more", "the-link--more-1"]


def test_every_code_block_has_a_language_that_something_checks(website: Any) -> None:
    wrong = []
    for page in PAGES:
        for block in website.examples.blocks_of(page):
            place = f"{page.relative_to(ROOT)}:{block.line}"
            if block.language not in LANGUAGES:
                wrong.append(f"{place}: {block.language!r} is not among {sorted(LANGUAGES)}")
            elif block.language == "py" and page.parent.name not in PARSED_FOLDERS and not on_cluster(block.text):
                wrong.append(f"{place}: blocks outside notebooks are ```python, which the tests run")
            elif problem := problem_of(block.language, block.text):
                wrong.append(f"{place}: {problem}")
    assert not wrong, "\n".join(wrong)


def on_cluster(text: str) -> bool:
    """Return whether a block imports a package that needs a cluster."""
    return re.search(rf"^(?:import|from) (?:{'|'.join(CLUSTERS)})\b", text, re.MULTILINE) is not None


def problem_of(language: str, text: str) -> str | None:
    """Return what is wrong with a block of data."""
    try:
        if language == "json":
            json.loads(text)
        elif language == "toml":
            importlib.import_module("tomllib").loads(text)
        elif language == "yaml":
            pytest.importorskip("yaml").safe_load(text)
        elif language in ("py", "python"):
            compile(text, "block", "exec")
    except (ValueError, SyntaxError) as error:
        return f"{language}: {error}"
    return None


def test_shell_blocks_are_valid_and_call_known_programs_and_files(website: Any) -> None:
    blocks = [block for page in PAGES for block in website.examples.blocks_of(page) if block.language == "sh"]
    script = "\n".join(f"check_{number}() {{\n{block.text}\n}}" for number, block in enumerate(blocks))
    checked = subprocess.run(["bash", "-n"], input=script, text=True, capture_output=True, check=False)
    assert not checked.stderr, checked.stderr
    wrong = []
    for block in blocks:
        for line in block.text.replace("\\\n", " ").splitlines():
            for words in commands(line):
                program = words[0].rpartition("/")[2]
                if program not in PROGRAMS | SHELL | {"fastbert"}:
                    wrong.append(f"{block.page.relative_to(ROOT)}:{block.line}: {program!r} is not a known program")
                files = [word.partition("::")[0] for word in words[1:] if re.match(r"(docs|tests|benchmarks)/", word)]
                if program in ("python", "pytest", "node"):
                    wrong += [f"{block.page}: {file} does not exist" for file in files if missing(file)]
    assert not wrong, "\n".join(wrong)


def missing(file: str) -> bool:
    """Return whether a file of the project that a command reads is not there; results are written."""
    return not (ROOT / file).exists() and "/results/" not in file


def commands(line: str) -> Iterator[list[str]]:
    """Yield the words of each command of a line, without redirections and assignments before it."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=";|&")
    lexer.whitespace_split = True
    words: list[str] = []
    for word in [*lexer, ";"]:
        if word and not word.strip(";|&"):
            if words:
                yield words
            words = []
        elif words or not re.match(r"\w+=|\[|[{}]|\$\?", word):
            words.append(word)


def test_every_page_of_the_site_stands_in_a_toctree_and_every_entry_exists(website: Any, staged: Any) -> None:
    listed = {"index.md"}
    for place, text in staged.pages.items():
        for block in website.llms.ENTRIES.findall(text):
            entries = [line for line in block.splitlines() if line and not line.startswith(":")]
            for entry in entries:
                pattern = (Path(place).parent / f"{entry}.md").as_posix()
                pages = {page for page in staged.pages if fnmatch(page, pattern)}
                assert pages, f"{place}: {entry} does not exist"
                listed |= pages
    assert set(staged.pages) - listed == set()
    diagrams = [name for name in staged.files if name.startswith("images/diagrams/")]
    drawn = [path.name for path in (DOCS / "images" / "diagrams").iterdir()]
    assert len(diagrams) == len(drawn), "run docs/website/diagrams.mjs"


def test_the_reference_has_every_public_name_and_an_example_of_each(reference: Any, staged: Any) -> None:
    import fastbert
    from fastbert import losses, ops, tokenizers

    names = {id(name.value) for name in reference.names}
    for package in (fastbert, losses, ops, tokenizers):
        missing = [name for name in package.__all__ if id(getattr(package, name)) not in names]
        assert missing == [], package.__name__
    assert reference.without_example() == [], "write one in docs/examples.md"
    pages = "".join(text for place, text in staged.pages.items() if place.startswith("api/"))
    for name in reference.names:
        assert re.search(rf"^``````{{py:\w+}} {re.escape(name.qualified)}\(", pages, re.MULTILINE), name.qualified
    assert not re.search(r"<[\w.]+ object at|0x[0-9a-f]{6}", pages)


def test_every_command_has_a_page_with_all_of_its_flags(website: Any, staged: Any) -> None:
    from fastbert.cli.flag_table import flags_of

    for name in COMMANDS:
        page = staged.pages[f"commands/{name}.md"]
        for command in website.commands.commands_of(name):
            assert f"fastbert {command.words}" in page
            assert command.examples, command.words
            for flag in flags_of(command.config):
                assert f"```{{option}} {flag.name}" in page, f"{command.words} {flag.name}"
                assert flag.text.rstrip(".") in page.replace("\\", ""), f"{command.words} {flag.name}"


def test_docstrings_become_markdown(website: Any) -> None:
    text = "Do x.\n\n*args are kept.\n\nArgs:\n    path: where\n        it is.\n    **options: a_b_c.\n\nReturns 1."
    assert website.docstrings.markdown(text).split("\n") == [
        "Do x.",
        "",
        r"\*args are kept.",
        "",
        "",
        "**Arguments**",
        "",
        "- `path`: where",
        "    it is.",
        r"- `**options`: a\_b\_c.",
        "",
        "Returns 1.",
    ]


def test_examples_in_docstrings_are_code(website: Any) -> None:
    text = "Do x.\n\nExample:\n    y = f(a_b * c)\n\n```python\nz = a_b\n```"
    assert website.docstrings.markdown(text).split("\n") == [
        *("Do x.", "", "", "**Example**:", "", "```python", "y = f(a_b * c)", "```", "", "```python", "z = a_b", "```")
    ]


def test_links_out_of_the_documentation_are_changed_outside_code_alone(website: Any, tmp_path: Path) -> None:
    staged = website.staging.Staged(tmp_path)
    assert website.staging.place_of(DOCS / "search.md") == "vector-search.md"
    page = DOCS / "tour" / "x.md"
    text = (
        "[a](../../CHANGELOG.md#b) `[c](../d.md)`\n\n```text\n[e](../f.md)\n```\n[g](../search.md) [h](../../LICENSE)\n"
    )
    changed = website.staging.relinked(page, "tour/x.md", staged, text)
    assert changed == text.replace("../../CHANGELOG.md", "../changelog.md").replace(
        "../search.md", "../vector-search.md"
    ).replace("../../LICENSE", "../files/LICENSE")
    assert staged.files == {"files/LICENSE"}


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::PendingDeprecationWarning")
def test_the_site_builds_without_warnings_broken_links_or_foreign_resources(
    website: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for package in ("sphinx", "furo", "myst_parser", "sphinx_copybutton"):
        pytest.importorskip(package, reason="the site needs the packages of the extra [docs]")
    code = website.build.main(["--out", str(tmp_path), "--jobs", "1"])
    assert code == 0, capsys.readouterr().err
    html = tmp_path / "html"
    assert (html / "searchindex.js").is_file()
    lines = (html / "llms.txt").read_text().splitlines()
    assert lines[0] == "# fastbert"
    assert lines[2].startswith("> ")
    linked = re.findall(r"^- \[[^\]]+\]\(([^)]+)\)", "\n".join(lines), re.MULTILINE)
    assert len(linked) > 100
    assert [name for name in linked if not (html / name).is_file()] == []


def test_mistakes_of_a_built_page_are_found(website: Any, tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(
        '<h1 id="x"></h1><a href="#x"></a><a href="#y"></a><a href="b.html"></a><a href="https://a.org"></a>'
        '<script src="https://cdn.org/a.js"></script><img src="data:image/png;base64,">'
    )
    assert website.crawl.mistakes(tmp_path) == [
        "a.html: loads https://cdn.org/a.js",
        "a.html: #y has no such anchor",
        "a.html: b.html does not exist",
    ]


def test_elements_are_read_as_browsers_read_them(website: Any, tmp_path: Path) -> None:
    """Quotes of both kinds or none, a > in an attribute, and code and comments that look like elements."""
    file = tmp_path / "a.html"
    file.write_text(
        '<!-- <a href="no.html"> --><P ID=x title="a > b" hidden>a < b</P><a href=\'b.html?c&amp;d\'>1</a>'
        '<script src="c.js">\'<img src=no.png>\'</script><svg><use href="#no"/></svg><img\nsrc=d.png alt=\'"\'>'
        "<style>a::before { content: '<i id=no>' }</style><link rel=icon href=e.svg><link rel=next href=f.html>"
    )
    page = website.crawl.read(file)
    assert page.anchors == {"x"}
    assert page.links == ["b.html?c&d", "f.html"]
    assert page.loads == ["c.js", "d.png", "e.svg"]

"""The pages of `docs/` are true: their programs run, their commands parse, and what they say is missing is missing."""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import click
import pytest

import sealbus
from consumers.cli import main as shell
from tests.documents import (
    DOCS,
    PAGES,
    README,
    TUTORIAL,
    blocks,
    commands,
    misuse,
    name_of,
    new_project,
    paste,
    program,
    project_files,
    prose,
    write_files,
    written,
)

every_page = pytest.mark.parametrize("page", [*PAGES, README], ids=name_of)


@every_page
def test_every_python_block_is_python(page: Path) -> None:
    for block in blocks(page, "python"):
        code = block.text.replace(": ...\n", ":\n    ...\n") if block.is_fragment else block.text
        compile(code, page.name, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


@pytest.mark.medium
@pytest.mark.parametrize("page", [page for page in PAGES if program(page)], ids=name_of)
def test_a_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_files(page, tmp_path)
    monkeypatch.chdir(tmp_path)
    module = ModuleType(f"page_{page.stem.replace('-', '_')}")
    sys.modules[module.__name__] = module
    try:
        exec(compile(program(page), page.name, "exec"), module.__dict__)  # noqa: S102 - the page itself
        tests = [function for name, function in vars(module).items() if name.startswith("test_")]
        assert tests, "a page without a test shows nothing"
        for function in tests:
            result = function()
            if inspect.isawaitable(result):
                asyncio.run(result)
    finally:
        del sys.modules[module.__name__]


@pytest.mark.medium
@pytest.mark.timeout(120)
def test_the_tutorial_passes_its_own_tests_part_by_part(tmp_path: Path) -> None:
    project = new_project(tmp_path)
    assert len(TUTORIAL) == 4
    for page in TUTORIAL:
        files = project_files(page)
        assert "tests/test_agent.py" in files
        for path, text in files.items():
            (project / path).write_text(text, "utf-8")
        done = paste("pytest -q tests/test_agent.py", project)
        assert done.returncode == 0, page.name + done.stdout


FORBIDDEN = (
    *("seal", "sealed", "gate", "group", "partition", "offset", "ttl", "performative", "risk", "inbox", "policy"),
    *("idempotency key", "conversation"),
)


@pytest.mark.parametrize("page", TUTORIAL[:3], ids=name_of)
def test_the_first_three_parts_need_six_concepts_and_no_more(page: Path) -> None:
    text = re.sub(r"`[^`]*`|\]\([^)]*\)", "", prose(page)).lower()
    assert [word for word in FORBIDDEN if re.search(rf"\b{word}s?\b", text)] == []


@every_page
def test_a_page_has_at_most_900_words(page: Path) -> None:
    assert len([word for word in prose(page).split() if re.search(r"\w", word)]) <= 900


EXAMPLES = [
    *((name_of(page), block.text) for page in (*PAGES, README) for block in blocks(page, "python")),
]


def test_every_type_of_a_page_says_whether_it_asks_or_informs() -> None:
    silent = [
        f"{name}: {ast.unparse(call)}"
        for name, code in EXAMPLES
        if "@payload" in code
        for call in ast.walk(ast.parse(code))
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Name)
        and call.func.id == "payload"
        and not any(keyword.arg == "performative" for keyword in call.keywords)
    ]
    assert len(EXAMPLES) > len(PAGES)
    assert silent == []


def test_every_page_is_listed() -> None:
    index = (DOCS / "index.md").read_text("utf-8")
    listed = {page for page in PAGES if f"({page.relative_to(DOCS).as_posix()})" in index}
    assert set(PAGES) - listed == {DOCS / "index.md"}


@every_page
def test_every_command_of_a_page_parses(page: Path) -> None:
    wrong = [(line, found) for line, pasted in commands(page) if (found := misuse(shell, line, complete=pasted))]
    assert wrong == []


def test_a_wrong_command_is_seen() -> None:
    for line in (
        "sealbus digest",
        "sealbus dlq purge",
        "sealbus tail desk.question --jwks keys",
        "sealbus trace a b",
        "sealbus show",
        "sealbus check --fail-on sometimes",
        "sealbus dlq",
    ):
        assert misuse(shell, line, complete=True), line
    assert misuse(shell, "sealbus dlq", complete=False) is None


def _options() -> set[str]:
    """Return every option of every command."""

    def walk(command: click.Command) -> set[str]:
        found = {name for param in command.params for name in (*param.opts, *param.secondary_opts)}
        if isinstance(command, click.Group):
            context = click.Context(command)
            for name in command.list_commands(context):
                inner = command.get_command(context, name)
                assert inner is not None
                found |= {name} | walk(inner)
        return found

    return walk(shell)


def _parameters(function: Callable[..., object]) -> set[str]:
    return set(inspect.signature(function).parameters)


def _schemes() -> set[str]:
    from bus import transports

    return set(transports._ADAPTERS)


ABSENT: dict[str, Callable[[], bool]] = {
    "beat": lambda: not {"schedule", "cron", "--schedule", "--cron"} & _options(),
    "taskiq-faststream": lambda: not {"schedule", "cron", "--schedule", "--cron"} & _options(),
    "rate_limit": lambda: not {"rate", "rate_limit", "limit"} & _parameters(sealbus.App.on),
    "a rate limit": lambda: not {"rate", "rate_limit", "limit"} & _parameters(sealbus.App.on),
    "worker_max_tasks_per_child": lambda: not {"--max-tasks", "--max-messages"} & _options(),
    "pattern=": lambda: not {"pattern", "filter", "topics"} & _parameters(sealbus.App.on),
    "batch=True": lambda: not {"batch", "batch_size"} & _parameters(sealbus.App.on),
    "headers=": lambda: "headers" not in sealbus.Outgoing.__struct_fields__,
    "RabbitMQ": lambda: not {"amqp", "nats", "redis", "rabbitmq"} & _schemes(),
}
"""What a page says is missing -> whether it is."""

_CLAIM = re.compile(r"^\|([^|]*)\| no counterpart", re.MULTILINE)
_STALE = re.compile(
    r"\b(not there|not yet|is not yet|in later steps|in a later (?:step|version)|will come|come[s]? later|planned|"
    r"coming soon|for now|at the moment|does not exist yet|not implemented|not supported yet)\b",
    re.IGNORECASE,
)


@every_page
def test_what_a_page_calls_missing_is_missing(page: Path) -> None:
    for subject in _CLAIM.findall(written(page)):
        known = [name for name in ABSENT if name in subject]
        assert known, f"say in ABSENT how it is known that there is no counterpart of {subject.strip()}"
        assert all(ABSENT[name]() for name in known), subject


@every_page
def test_no_page_promises_what_is_not_there(page: Path) -> None:
    assert _STALE.findall(prose(page)) == []


def test_the_readme_denies_nothing_that_the_command_line_has() -> None:
    text = README.read_text("utf-8")
    section = text[text.index("## What it is not") :].partition("\n## ")[0]
    denied = [line.partition(":")[0].lower() for line in re.findall(r"^- Not (.*)$", section, re.MULTILINE)]
    assert denied
    verbs = set(shell.list_commands(click.Context(shell)))
    assert {verb for verb in verbs for line in denied if re.search(rf"\b{verb}\b", line)} == set()


_UNPLAIN = re.compile(
    r"\b(?:is|are|was) no (?!longer|more|one\b)[a-z]+|\b(?:anew|mend(?:s|ed|ing)?|bur(?:y|ies|ied)|told|tells|says?)\b|"
    r"\b(?:believed|unproven|proven|nobody|anybody|somebody|meanwhile|for ever|strangers?|by itself)\b|"
    r"\b(?:lies|stands|lie|stand) (?:in|at|there|beside|behind|under)\b|\b(?:put|set)s? (?:them |it )?(?:aside|away)\b|"
    r"(?:^|[.:;] )(?:Whoever|Who|What|Whose) [a-z ]{3,60}?(?:is|are|may|can|has|says|dies|holds|comes)\b",
    re.MULTILINE,
)


@every_page
def test_a_page_has_plain_words(page: Path) -> None:
    assert _UNPLAIN.findall(prose(page)) == []


def _anchors(page: Path) -> set[str]:
    text = re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.DOTALL)
    return {
        re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-")
        for title in re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    }


@every_page
def test_every_link_to_a_heading_finds_it(page: Path) -> None:
    links = re.findall(r"\]\(([^):#\s]*)#([^)\s]+)\)", written(page))
    targets = [((page.parent / path).resolve() if path else page, anchor) for path, anchor in links]
    assert [anchor for target, anchor in targets if target.suffix == ".md" and anchor not in _anchors(target)] == []


DIAGRAMS = {
    README,
    DOCS / "tutorial/1-first-agent.md",
    DOCS / "how-to/long-work.md",
    DOCS / "how-to/deploy.md",
    DOCS / "explanation/delivery.md",
    DOCS / "explanation/trust.md",
}


def test_every_diagram_is_there_in_words_too() -> None:
    assert {page for page in (*PAGES, README) if blocks(page, "mermaid")} == DIAGRAMS
    for page in DIAGRAMS:
        assert re.search(r"```mermaid\n.*?```\n\n\*In words: ", page.read_text("utf-8"), re.DOTALL), page

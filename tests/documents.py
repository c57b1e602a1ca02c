"""The pages for people, their blocks of code, and the commands that they name.

A block below `<!-- fragment -->` is a part of a larger program; it is compiled and not run. One below
`<!-- runs with: EXTRA -->` is a program of its own, which `tests/consumers/adapters` runs in an environment with that
extra. A block whose first line is `# PATH`, or one below `<!-- file: PATH -->`, is that file of a project. All other
Python blocks of a page are one program.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import click

from deploy.site import MARK

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
TUTORIAL = sorted((DOCS / "tutorial").glob("*.md"))
README = ROOT / "README.md"

_BLOCK = re.compile(r"(?:<!-- (fragment|file: [\w./-]+|runs with: [\w-]+) -->\n)?```(\w*)\n(.*?)```", re.DOTALL)
_PATH = re.compile(r"# ([\w./-]+\.(?:py|toml))\n")
_PLACEHOLDER = re.compile(r"[A-Z][A-Z_/|:-]*|\.\.\.|.*(?:\.\.\.|\$).*")


class Block(NamedTuple):
    """One block of code of a page."""

    language: str
    text: str
    mark: str

    @property
    def is_fragment(self) -> bool:
        return self.mark == "fragment" or self.mark.startswith("runs with: ")

    @property
    def path(self) -> str | None:
        """The file of a project that the block is, relative to the project's folder."""
        if self.mark.startswith("file: "):
            return self.mark.removeprefix("file: ")
        found = _PATH.match(self.text)
        return found[1] if found else None


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def written(page: Path) -> str:
    """Return what people have written of *page*: all of it, or its introduction where the rest is generated."""
    return page.read_text("utf-8").partition(MARK)[0]


def prose(page: Path) -> str:
    """Return what is written of *page* without its blocks of code."""
    return _BLOCK.sub("", written(page))


def blocks(page: Path, *languages: str) -> list[Block]:
    found = [Block(language, text, mark) for mark, language, text in _BLOCK.findall(written(page))]
    return [block for block in found if block.language in languages]


def program(page: Path) -> str:
    """Return the Python blocks of *page* as one program, without fragments and the tutorial's files."""
    parts = [block for block in blocks(page, "python") if not block.is_fragment]
    return "\n\n".join(block.text for block in parts if page not in TUTORIAL and page != README)


def project_files(page: Path) -> Mapping[str, str]:
    """Return the files that *page* shows: path -> text."""
    return {
        block.path: block.text
        for block in blocks(page, "python", "toml", "json")
        if block.path and not block.is_fragment
    }


def write_files(page: Path, folder: Path) -> None:
    """Write what the programs of *page* read: its blocks below `<!-- file: PATH -->`."""
    for block in blocks(page, "json", "toml"):
        if block.path and block.mark:
            target = folder / block.path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(block.text, "utf-8")


def new_project(folder: Path) -> Path:
    """Return the folder of a project `desk` below *folder*, as `sealbus new desk` makes it, with sources in `src/`."""
    project = folder / "desk"
    made = subprocess.run(
        [sys.executable, "-m", "sealbus", "new", "desk"],
        cwd=folder,
        env=environment(project),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert made.returncode == 0, made.stderr
    return project


def environment(project: Path) -> dict[str, str]:
    """Return an environment in which *project* and sealbus can be imported, and `sealbus` is a command."""
    commands = project.parent / "bin"
    if not (shim := commands / "sealbus").exists():
        commands.mkdir(exist_ok=True)
        shim.write_text(f'#!/bin/sh\nexec {sys.executable} -m sealbus "$@"\n', "utf-8")
        shim.chmod(0o755)
    return {
        # The test runner names the columns of its own terminal.
        **{name: value for name, value in os.environ.items() if name != "COLUMNS"},
        "PATH": f"{commands}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": f"{ROOT}:{project / 'src'}",
        "PYTEST_ADDOPTS": "-p consumers.app.pytest_plugin -p no:cacheprovider",
    }


def paste(line: str, project: Path, typed: str = "") -> subprocess.CompletedProcess[str]:
    """Run the command *line* in the folder of *project*; *typed* is what a person answers."""
    return subprocess.run(
        ["bash", "-c", line],
        cwd=project,
        env=environment(project),
        input=typed,
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )


def until(reached: Callable[[], object], limit_s: float = 180) -> None:
    """Wait until *reached* returns something true."""
    ends = time.monotonic() + limit_s
    while not reached():
        assert time.monotonic() < ends, "nothing came"
        time.sleep(0.2)


def pasted_lines(text: str) -> list[str]:
    """Return the lines to paste in *text*, without comments."""
    return [re.sub(r"\s{2,}#.*", "", line) for line in re.findall(r"^\$ (.*)$", text, re.MULTILINE)]


def commands(page: Path) -> Iterator[tuple[str, bool]]:
    """Yield each `sealbus ...` that *page* names, and whether it is a line to paste."""
    text = written(page)
    for line in pasted_lines(text):
        for part in re.split(r"\s(?:\||&&|>>?)\s", line):
            words = part.split()
            while words and re.fullmatch(r"[A-Z_]+=\S*", words[0]):
                words.pop(0)
            if words[:1] == ["sealbus"]:
                yield " ".join(words), True
    for code in re.findall(r"(?<!`)`(sealbus [^`]+)`", _BLOCK.sub("", text)):
        for part in re.split(r"\s(?:\||&&|>>?)\s", code):
            if part.startswith("sealbus "):
                yield part, False


def misuse(shell: click.Group, line: str, *, complete: bool) -> str | None:
    """Return what is wrong with the command *line*; with *complete*, missing arguments are wrong, too."""
    words = shlex.split(line.replace("|", " ").replace("[", "").replace("]", ""))[1:]
    command: click.Command = shell
    path = "sealbus"
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        if _PLACEHOLDER.fullmatch(words[0]):
            return None
        inner = command.get_command(click.Context(command), words[0])
        if inner is None:
            return f"{path} has no {words[0]!r}"
        path, command = f"{path} {words.pop(0)}", inner
    if isinstance(command, click.Group) and complete and words != ["--help"]:
        return f"{path} is only a part of a command"
    return _wrong_words(command, path, words, complete=complete)


def _wrong_words(command: click.Command, path: str, words: list[str], *, complete: bool) -> str | None:
    # As the shell itself does: a command keeps the help option that it was first asked for.
    context = click.Context(command, info_name=path, resilient_parsing=True, help_option_names=["-h", "--help"])
    try:
        values, rest, _ = command.make_parser(context).parse_args(words if complete else [*words, "X"])
    except click.UsageError as error:
        return f"{path}: {error.format_message()}"
    if rest and complete and not isinstance(command, click.Group):
        return f"{path}: too many arguments: {rest}"
    for param in command.params:
        value = values.get(param.name or "")
        is_given = isinstance(value, str | tuple | list) and bool(value)
        if isinstance(param, click.Argument) and complete and param.required and "--help" not in words and not is_given:
            return f"{path}: {param.name} is missing"
        is_free = not isinstance(value, str) or bool(_PLACEHOLDER.fullmatch(value))
        if isinstance(param.type, click.Choice) and not is_free and value not in param.type.choices:
            return f"{path}: {param.name} is none of {', '.join(map(str, param.type.choices))}"
    return None

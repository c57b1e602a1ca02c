"""`sealbus new NAME`: write a project with an agent, tests, settings, schemas and keys.

`consumers.cli.scaffold.project` owns its files. Existing files are never overwritten.
"""

from __future__ import annotations

import importlib.util
import json
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Final

import click

from bus.clock import SystemClock
from bus.telemetry.terminal import printable
from consumers.cli.io.parameter_types import OneOf
from consumers.cli.scaffold.names import name_fault, project_name
from consumers.cli.scaffold.project import EXTRAS, FRAMEWORKS, TEMPLATES, Choice, project_files
from consumers.cli.shell import Command

__all__ = ["new"]

_KEYS: Final = ".sealbus/keys"
_LAST_SIGNED_MS: Final = 60_000


@click.command(cls=Command)
@click.argument("directory", metavar="NAME", type=click.Path(path_type=Path))
@click.option(
    "--template",
    type=OneOf(TEMPLATES),
    help="agent: one agent. team: two. llm: a model with tools. web: a FastAPI service.  [default: agent]",
)
@click.option(
    "--with",
    "extras",
    metavar="EXTRA",
    type=OneOf(EXTRAS),
    multiple=True,
    help=f"{', '.join(EXTRAS)}; repeatable. A framework ({', '.join(FRAMEWORKS)}) implies llm, llm implies keys.",
)
def new(directory: Path, template: str | None, extras: tuple[str, ...]) -> int:
    """Create a project: an agent, its tests, settings and a README. Its tests pass at once.

    NAME is the name of package and distribution, and may be a path: `work/desk` is the project desk in the folder work.
    Files that exist are never overwritten.

    \b
    Examples:
      sealbus new desk
      sealbus new desk --with openai
      sealbus new work/desk --template team --with postgres --with kafka
    """
    name = directory.resolve().name
    if (fault := name_fault(name)) is not None:
        raise click.UsageError(f"{printable(name)!r} cannot be the name of a project: {fault}")
    if len(frameworks := [extra for extra in FRAMEWORKS if extra in extras]) > 1:
        raise click.UsageError(f"an assistant has one framework: choose {' or '.join(frameworks)}")
    choice = Choice(
        project_name(name),
        template or "agent",
        frozenset(extras),
        _source_of_sealbus(),
        can_sign=importlib.util.find_spec("cryptography") is not None,
    )
    files = project_files(choice)
    _check_target(directory, files)
    try:
        _write(directory, files)
    except OSError as error:
        raise click.UsageError(f"{printable(str(directory))} cannot be written: {error.strerror or error}") from error
    schemas = _export_types(directory, choice)
    if "keys-made" in choice.features:
        _make_keys(directory / _KEYS, choice.key_owners)
    click.echo(f"{printable(str(directory))}/")
    for path in sorted([*files, *schemas, *([f"{_KEYS}/"] if "keys-made" in choice.features else [])]):
        click.echo(f"  {path}")
    click.echo("\nNext:")
    for line in _next_lines(directory, choice):
        click.echo(f"  {line}")
    return 0


def _next_lines(directory: Path, choice: Choice) -> Iterator[str]:
    if directory.resolve() != Path.cwd():
        yield f"cd {shlex.quote(printable(str(directory)))}"
    yield "pip install -U pip && pip install -e . --group dev    # or: uv sync && . .venv/bin/activate"
    if "keys-later" in choice.features:
        yield f"sealbus key new {' '.join(choice.key_owners)}"
    yield "pytest"
    if "servers" in choice.features:
        yield "docker compose up -d --wait    # then as README.md shows"
    else:
        yield "sealbus dev                    # prints what to type in a second terminal"


def _check_target(directory: Path, files: Iterable[str]) -> None:
    """Raise click.UsageError if *directory* has files that are not those of a version control or an environment."""
    if not directory.exists():
        return
    shown = printable(str(directory))
    if not directory.is_dir():
        raise click.UsageError(f"{shown} is a file: name a folder that is new or empty")
    present = [path for path in (*files, "schemas", _KEYS) if (directory / path).exists()]
    present += sorted(entry.name for entry in directory.iterdir() if not entry.name.startswith("."))
    if present:
        raise click.UsageError(f"{shown} has {printable(present[0])}: name a folder that is new or empty")


def _write(directory: Path, files: Mapping[str, str]) -> None:
    for path, text in files.items():
        target = directory / path
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("x", encoding="utf-8") as file:
            file.write(text)


def _source_of_sealbus() -> str:
    """Return where uv gets the sealbus that runs, as a TOML table; empty if it came from the package index."""
    try:
        text = metadata.distribution("sealbus").read_text("direct_url.json")
    except metadata.PackageNotFoundError:
        return ""
    origin = json.loads(text) if text else {}
    url, git = str(origin.get("url", "")), origin.get("vcs_info", {})
    if git.get("vcs") == "git":
        return f"{{ git = {json.dumps(url)}, rev = {json.dumps(git.get('commit_id', ''))} }}"
    if url.startswith("file://"):
        from urllib.parse import urlsplit
        from urllib.request import url2pathname

        editable = ", editable = true" if origin.get("dir_info", {}).get("editable") else ""
        return f"{{ path = {json.dumps(url2pathname(urlsplit(url).path))}{editable} }}"
    return f"{{ url = {json.dumps(url)} }}" if url else ""


def _export_types(directory: Path, choice: Choice) -> list[str]:
    """Write `schemas/` as `sealbus type export` does; return its files."""
    from bus.payloads.payload_types import payload_type
    from bus.schemas.json_schema import schema_of
    from bus.schemas.schema_folder import SchemaFolder
    from bus.schemas.versions import SchemaVersion

    schemas, written = SchemaFolder(directory / "schemas"), []
    with _imported(directory / "src" / choice.name.package / "messages.py") as messages:
        for cls in [found for found in vars(messages).values() if isinstance(found, type)]:
            kind = payload_type(cls)
            schemas.publish(kind.name, SchemaVersion.of(kind.version), schema_of(kind))
            written.append(f"schemas/{kind.name}/{kind.version}.json")
    return written


@contextmanager
def _imported(file: Path) -> Iterator[ModuleType]:
    """Import *file* under a name that nothing else has, without leaving bytecode in the new project."""
    name = "_sealbus_new_messages"
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None  # noqa: S101 - it is a .py file
    assert spec.loader is not None  # noqa: S101
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    before, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        spec.loader.exec_module(module)
        yield module
    finally:
        sys.dont_write_bytecode = before
        del sys.modules[name]


def _make_keys(folder: Path, agents: Iterable[str]) -> None:
    """Make a key for each of *agents*."""
    from bus.trust.keys.key_folder import KeyFolder

    store, since_ms = KeyFolder(folder), SystemClock().now_ms() - _LAST_SIGNED_MS
    for agent in agents:
        store.add(agent, principals=[agent], types=(), not_before_ms=since_ms)

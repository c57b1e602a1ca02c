"""`sealbus new NAME`: write a project with an agent, tests, settings, schemas and keys.

`consumers.scaffold.project` owns its files. Existing files are never overwritten.
"""

from __future__ import annotations

import importlib.util
import shlex
from collections.abc import Iterator
from pathlib import Path

import click

from bus.telemetry.terminal import printable
from consumers.cli.io.parameter_types import OneOf
from consumers.cli.shell import Command
from consumers.scaffold.folder import KEYS_OF_A_PROJECT, check_target, export_types, make_keys, source_of_sealbus, write
from consumers.scaffold.names import name_fault, project_name
from consumers.scaffold.project import EXTRAS, FRAMEWORKS, TEMPLATES, Choice, project_files

__all__ = ["new"]


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
        source_of_sealbus(),
        can_sign=importlib.util.find_spec("cryptography") is not None,
    )
    files = project_files(choice)
    try:
        check_target(directory, files)
        write(directory, files)
    except OSError as error:
        raise click.UsageError(f"{printable(str(directory))} cannot be written: {error.strerror or error}") from error
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    schemas = export_types(directory, choice)
    if "keys-made" in choice.features:
        make_keys(directory, choice.key_owners)
    click.echo(f"{printable(str(directory))}/")
    for path in sorted([*files, *schemas, *([f"{KEYS_OF_A_PROJECT}/"] if "keys-made" in choice.features else [])]):
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

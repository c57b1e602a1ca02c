"""`sealbus new DIR`: write an agent, its test, settings, README and Makefile.

Owns choosing the files of a variant and filling in names. A variant's files in `templates/` replace those of `plain`.
Existing files are never overwritten.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Final

import click

from bus.telemetry.terminal import printable
from consumers.cli.shell import Command

__all__ = ["new", "project_files"]

_VARIANTS: Final = ("plain", "fastapi", "postgres", "kafka")
_ENDING: Final = ".tmpl"
_DOT: Final = "dot-"


def project_files(name: str, variant: str) -> Mapping[str, str]:
    """Return the files of a project called *name*: path -> text."""
    folder = resources.files(__package__) / "templates"
    found = _texts(folder / "plain")
    if variant != "plain":
        found |= _texts(folder / variant)
    return {path: text.replace("{{name}}", name) for path, text in sorted(found.items())}


@click.command(cls=Command)
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@click.option(
    "--with",
    "variant",
    type=click.Choice(_VARIANTS),
    default="plain",
    show_default=True,
    help="fastapi: a web service that publishes. postgres: effects that happen once. kafka: settings for a cluster.",
)
def new(directory: Path, variant: str) -> int:
    """Write a new project into DIR: an agent, its test, settings, a README and a Makefile.

    Its tests pass at once: `cd DIR && pytest`. DIR must be new or empty.

    \b
    Examples:
      sealbus new orders
      sealbus new orders --with fastapi
    """
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise click.UsageError(f"{printable(str(directory))} is not empty: name a directory that is new or empty")
    name = re.sub(r"[^a-z0-9]+", "-", directory.resolve().name.lower()).strip("-") or "agent"
    files = project_files(name if name[0].isalpha() else f"agent-{name}", variant)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for path, text in files.items():
            (directory / path).write_text(text, "utf-8")
    except OSError as error:
        raise click.UsageError(f"{printable(str(directory))} can't be written: {error.strerror or error}") from error
    shown = printable(str(directory))
    click.echo(f"{shown}/")
    for path in files:
        click.echo(f"  {path}")
    click.echo(
        f"\nNext:\n  cd {shown}\n  pytest          # its tests pass\n  make worker     # run the agent; see README.md"
    )
    return 0


def _texts(folder: Traversable) -> dict[str, str]:
    """Return the templates in *folder*: file name in the project -> text."""
    return {
        file.name.removesuffix(_ENDING).replace(_DOT, "."): file.read_text("utf-8")
        for file in folder.iterdir()
        if file.name.endswith(_ENDING)
    }

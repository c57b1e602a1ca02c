"""`sealbus config [NAME]...`: the effective settings. `bus.settings.loading` loads, checks and masks them."""

from __future__ import annotations

import click
import msgspec

from bus.nearest import nearest
from bus.settings import loading
from consumers.cli.io.known_names import complete_settings
from consumers.cli.io.output import Listing, VerbResult
from consumers.cli.session import CommandSession, verb
from consumers.cli.shell import Command

__all__ = ["config"]


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """One setting; *value* of a secret is masked."""

    name: str
    value: str
    origin: str


@click.command(cls=Command)
@click.argument("names", metavar="[NAME]...", nargs=-1, shell_complete=complete_settings)
@verb(Setting)
def config(session: CommandSession, *, names: tuple[str, ...]) -> VerbResult:
    """Show every setting and where it comes from, or those called NAME (worker, worker.concurrency).

    The first source that sets a value wins: an option, the variable SEALBUS_SECTION__NAME, SEALBUS_SECTION__NAME_FILE
    (a file that holds the value), the TOML file, the default. The file is that of --config, else of SEALBUS_CONFIG,
    else sealbus.toml in the current folder or the nearest one above, up to .git or pyproject.toml. Relative paths in it
    are relative to it.

    \b
    Examples:
      sealbus config
      sealbus config worker retry.attempts
      SEALBUS_WORKER__CONCURRENCY=8 sealbus config worker -o json
    """
    known = {*loading.SETTING_NAMES, *(name.partition(".")[0] for name in loading.SETTING_NAMES)}
    for name in names:
        if name not in known:
            raise click.BadParameter(f"no setting {name!r}{nearest(name, known)}", param_hint="NAME")
    rows = [
        Setting(name=name, value=str(value), origin=origin)
        for name, value, origin in loading.describe(session.load())
        if not names or name in names or name.partition(".")[0] in names
    ]
    return Listing(rows, {"SETTING": "name", "VALUE": "value", "ORIGIN": "origin"})

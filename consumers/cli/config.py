"""`sealbus config show|check`: the effective settings.

Owns displaying them; `bus.settings.loading` loads, checks and masks them.
"""

from __future__ import annotations

import click

from bus.nearest import nearest
from bus.settings import loading
from consumers.cli.io.known_names import complete_settings
from consumers.cli.io.printing import print_json, print_table
from consumers.cli.session import CommandSession, with_session
from consumers.cli.shell import VerbGroup

__all__ = ["config"]


@click.group(cls=VerbGroup)
def config() -> None:
    """Show and check settings.

    The first that says something wins: a flag, the variable SEALBUS_SECTION__NAME, SEALBUS_SECTION__NAME_FILE (a file
    that holds the value), the TOML file, the default. The file is that of --config, else of SEALBUS_CONFIG, else
    sealbus.toml in the current folder or the nearest one above, up to .git or pyproject.toml. Relative paths in it are
    relative to it.

    \b
    Examples:
      sealbus config show --origin
      SEALBUS_WORKER__CONCURRENCY=8 sealbus config check
    """


@config.command()
@click.argument("names", metavar="[NAME]...", nargs=-1, shell_complete=complete_settings)
@click.option("--origin", is_flag=True, help="Also where each value comes from.")
@with_session
def show(session: CommandSession, names: tuple[str, ...], origin: bool) -> int:
    """Show every setting in force, or those called NAME (worker, worker.concurrency); secrets are masked.

    \b
    Examples:
      sealbus config show
      sealbus config show worker retry.attempts --origin
      sealbus config show --origin --output json
    """
    _check_names(names)
    described = [
        entry
        for entry in loading.describe(session.load())
        if not names or entry[0] in names or entry[0].partition(".")[0] in names
    ]
    if session.as_json:
        for name, value, source in described:
            print_json({"name": name, "value": value, **({"origin": source} if origin else {})})
    elif origin:
        print_table(("SETTING", "VALUE", "ORIGIN"), described)
    else:
        print_table(("SETTING", "VALUE"), [entry[:2] for entry in described])
    return 0


def _check_names(names: tuple[str, ...]) -> None:
    known = {*loading.SETTING_NAMES, *(name.partition(".")[0] for name in loading.SETTING_NAMES)}
    for name in names:
        if name not in known:
            raise click.BadParameter(f"there is no setting {name!r}{nearest(name, known)}", param_hint="NAME")


@config.command()
@with_session
def check(session: CommandSession) -> int:
    """Check the settings; exit code 78 and a sentence when one is wrong.

    \b
    Examples:
      sealbus config check --config production.toml
    """
    count = len(loading.describe(session.load()))
    click.echo(f"{count} settings are all right", err=True)
    return 0

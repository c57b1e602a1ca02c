"""`sealbus config show|check`: the effective settings.

Owns displaying them; `bus.settings.loading` loads, checks and masks them.
"""

from __future__ import annotations

import click

from bus.settings import loading
from consumers.cli.io.printing import print_json, print_table
from consumers.cli.session import CommandSession, with_session
from consumers.cli.shell import VerbGroup

__all__ = ["config"]


@click.group(cls=VerbGroup)
def config() -> None:
    """Show and check settings.

    The first that says something wins: a flag, the variable SEALBUS_SECTION__NAME, SEALBUS_SECTION__NAME_FILE (a file
    that holds the value), the TOML file (--config or SEALBUS_CONFIG), the default.

    \b
    Examples:
      sealbus config show --origin
      SEALBUS_WORKER__CONCURRENCY=8 sealbus config check
    """


@config.command()
@click.option("--origin", is_flag=True, help="Also where each value comes from.")
@with_session
def show(session: CommandSession, origin: bool) -> int:
    """Show every setting in force; secrets are masked.

    \b
    Examples:
      sealbus config show
      sealbus config show --origin --output json
    """
    described = loading.describe(session.load())
    if session.as_json:
        for name, value, source in described:
            print_json({"name": name, "value": value, **({"origin": source} if origin else {})})
    elif origin:
        print_table(("SETTING", "VALUE", "ORIGIN"), described)
    else:
        print_table(("SETTING", "VALUE"), [entry[:2] for entry in described])
    return 0


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

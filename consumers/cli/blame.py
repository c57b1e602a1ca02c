"""`sealbus blame MESSAGE_ID`: which of the messages that led to this one does not hold.

Owns the options and the output; `consumers.operations.lineage` reads and judges.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from bus.clock import SystemClock
from bus.payloads.payload_types import Registry, RiskClass, raised_risk
from bus.protocol.identifiers import is_message_id
from bus.telemetry.terminal import printable
from consumers.cli.exit_codes import FAILED
from consumers.cli.interrupts import execute
from consumers.cli.io.printing import print_json, print_table
from consumers.cli.io.progress import Progress
from consumers.cli.session import (
    CommandSession,
    app_option,
    jwks_option,
    keys_to_believe,
    registry_of,
    whole_log_option,
    with_session,
)
from consumers.operations.lineage.ancestry import Ancestry, Hop, judge_ancestry
from consumers.operations.lineage.log_search import find_lineage
from consumers.operations.survey.look_up import looked_in_words, moment_of

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["blame", "risk_in"]


@click.command()
@click.argument("message_id", metavar="MESSAGE_ID")
@jwks_option
@whole_log_option
@app_option
@with_session
def blame(
    session: CommandSession, *, message_id: str, jwks: Path | None, whole_log: bool, targets: tuple[str, ...]
) -> int:
    """Find the first invalid message among the causes of a message.

    Each cause is checked from the first one on: its bytes, hashes and seal, its proof chain, its own cause, and with
    keys its signature. A valid message that replaced another one is detected from the messages it caused. Causes that
    retention has deleted are shown as not kept. An agent is named only after the whole log was read.

    \b
    Examples:
      sealbus blame 019b7a3c-4c00-7000-8000-000000000004
      sealbus blame 019b7a3c-4c00-7000-8000-000000000004 --jwks keys/ --output json
      sealbus blame 019b7a3c-4c00-7000-8000-000000000004 --app agents:app

    \b
    Exit codes: 0 every stored cause is valid, 1 one is not, 2 there is no such message.
    """
    if not is_message_id(message_id):
        raise click.BadParameter("is not 1 to 128 visible ASCII characters", param_hint="MESSAGE_ID")
    apps = session.apps(targets)
    settings = session.settings(apps, jwks=jwks)
    registry, verifier = registry_of(apps), keys_to_believe(settings, SystemClock())
    namespace = settings.bus.namespace

    async def body(_: object) -> int:
        with Progress(None, unit="records", alone=True) as progress:
            async with session.open(settings) as transport:
                moment_ms = await moment_of(settings, message_id)
                for whole in (whole_log, True):
                    lineage = await find_lineage(
                        transport,
                        namespace,
                        message_id,
                        moment_ms=moment_ms,
                        whole=whole,
                        on_progress=lambda read: progress.show(0, read),
                    )
                    found = judge_ancestry(
                        lineage, message_id, namespace=namespace, risk_of=risk_in(registry), verifier=verifier
                    )
                    if lineage.looked.is_whole or found is None or found.blamed is None:
                        break
        looked = looked_in_words(lineage.looked, message_id)
        if found is None:
            raise click.BadParameter(
                f"there is no message {message_id} in namespace {namespace}, and no message names it as a "
                f"cause: {looked}",
                param_hint="MESSAGE_ID",
            )
        if not lineage.looked.is_whole:
            click.echo(f"hint: {looked}", err=True)
        if session.as_json:
            print_json(_as_json(message_id, found, has_keys=verifier is not None))
        else:
            _print(found, has_keys=verifier is not None)
        return 0 if found.blamed is None else FAILED

    return execute(body)


def risk_in(registry: Registry) -> Callable[[str], RiskClass]:
    """Return a function for the risk of a type; a type that *registry* does not know has medium risk."""

    return lambda name: raised_risk(registry.get(name), ())


def _print(found: Ancestry, *, has_keys: bool) -> None:
    if found.unknown is None or found.unknown:
        count = "of an unknown number of hops" if found.unknown is None else f"of {_counted(found.unknown)}"
        click.echo(f"{count} before the first one here are unknown")
    print_table(
        ("HOP", "VERDICT", "MESSAGE", "TYPE", "SENDER", "KEY", "PLACE"),
        [
            (
                "-" if hop.number is None else hop.number,
                hop.kind or hop.state,
                hop.message_id or "-",
                hop.message_type or "-",
                hop.sender or "-",
                hop.kid or "-",
                hop.place or "-",
            )
            for hop in found.hops
        ],
    )
    for hop in found.hops:
        for note in hop.notes:
            click.echo(f"note: {_name(hop)}: {printable(note)}")
    blamed = found.blamed
    if blamed is None:
        holding_count = sum(hop.state == "holds" for hop in found.hops)
        click.echo(f"holds: {_counted(holding_count)} of {len(found.hops)} kept, and each follows from the one before")
        return
    click.echo(f"{_name(blamed)} does not hold: {blamed.kind}: {printable(blamed.detail)}")
    if blamed.differs:
        click.echo(f"  differs in: {', '.join(blamed.differs)}")
    click.echo(f"  sender: {printable(blamed.sender) or 'unknown'}; signed by: {_signer(blamed, has_keys=has_keys)}")


def _counted(count: int) -> str:
    return f"{count} hop" if count == 1 else f"{count} hops"


def _name(hop: Hop) -> str:
    number = "the hop" if hop.number is None else f"hop {hop.number}"
    return f"{number} {printable(hop.message_id)}" if hop.message_id else number


def _signer(hop: Hop, *, has_keys: bool) -> str:
    if not hop.kid:
        return "nobody"
    return f"{printable(hop.kid)}, it says" + ("" if has_keys else " (no keys were given to check it)")


def _as_json(message_id: str, found: Ancestry, *, has_keys: bool) -> dict[str, object]:
    blamed = found.blamed
    return {
        "message_id": message_id,
        "holds": blamed is None,
        "signatures_checked": has_keys,
        "unknown_before": found.unknown,
        "blamed": None if blamed is None else msgspec.structs.asdict(blamed),
        "hops": [msgspec.structs.asdict(hop) for hop in found.hops],
    }

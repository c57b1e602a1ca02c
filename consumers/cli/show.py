"""`sealbus show ID|LOCATION`: one message: its content, what became of it and why, and how far it is trusted.

`consumers.operations.survey` looks it up and explains it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click
import msgspec

from bus.clock import SystemClock
from bus.errors import BusError, ContractError
from bus.protocol import sealing
from bus.protocol.identifiers import is_message_id
from bus.settings.schema import Settings
from bus.telemetry.terminal import printable
from bus.topics.topic_reader import resolve_topic
from bus.transports.base import Transport
from bus.transports.read_all import read_record
from bus.trust.opening import keyless, open_trust
from consumers.cli.exit_codes import FAILED
from consumers.cli.io.output import Detail, VerbResult
from consumers.cli.io.parameter_types import OneOf
from consumers.cli.io.progress import Progress
from consumers.cli.session import (
    CommandSession,
    app_option,
    trusted_keys_option,
    verb,
    whole_log_option,
)
from consumers.cli.shell import Command
from consumers.deadletters.diagnosis import examine
from consumers.deadletters.letters import read_dead_letter
from consumers.deadletters.locations import parse_location
from consumers.operations.audit.queries import described, facts_of
from consumers.operations.survey.explanation import explain_message
from consumers.operations.survey.look_up import LookUp, look_up, looked_in_words
from consumers.operations.survey.message_view import ShownMessage, audit_lines, message_lines
from consumers.operations.survey.trust_view import TrustViewer, distinct_copies

__all__ = ["show"]

_PARTS: Final = ("message", "outcome", "trust")


@click.command(cls=Command)
@click.argument("which", metavar="ID|LOCATION")
@click.option("--part", type=OneOf(_PARTS), help="Only this part; trust: exit code 1 if the message is invalid.")
@trusted_keys_option
@click.option(
    "--policy",
    "policy_file",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="The policy with the trust levels of senders.  [default: policy.file]",
)
@whole_log_option
@app_option
@verb(ShownMessage)
async def show(
    session: CommandSession,
    *,
    which: str,
    part: str | None,
    jwks: Path | None,
    policy_file: Path | None,
    whole_log: bool,
    targets: tuple[str, ...],
) -> VerbResult:
    """Show one message: content, what became of it and why, and how far it is trusted.

    ID is a message id, LOCATION is TOPIC/PARTITION/OFFSET. The outcome names the check that refused it, the values
    expected and found, and the command that fixes it. Trust is the level of the message, what lowered it, and the key
    that signed it; without trusted keys the sender is not verified.

    \b
    Examples:
      sealbus show 019b7a3c-4c00-7000-8000-000000000004
      sealbus show agents.desk.question/0/17 --part outcome
      sealbus show 019b7a3c-4c00-7000-8000-000000000004 --part trust --trusted-keys keys/ -o json

    \b
    Exit codes: 0 shown, 1 no such message, or with --part trust an invalid one.
    """
    apps = session.apps(targets)
    settings = session.settings(apps, jwks=jwks, policy=policy_file)
    parts = _PARTS if part is None else (part,)
    async with session.open(settings) as transport:
        message_id = await _id_of(transport, settings, which) if "/" in which else which
        found = await _look_up(session, transport, settings, message_id, whole=whole_log)
        registry = await session.types_in(transport, settings, apps)
    own = [copy for copy in found.search.copies if copy.message_id == message_id]
    if not own:
        rows = tuple({**described(each), **facts_of(each)} for each in found.audited)
        shown = ShownMessage(message_id=message_id, locations=(), audit=rows)
        where = looked_in_words(found.search.looked, message_id)
        return Detail(
            shown, audit_lines(rows), notes=[f"the log no longer has it ({where}); this is what the audit has"]
        )
    outcome, views = None, None
    if "outcome" in parts:
        letters = [read_dead_letter(copy.record) for copy in own if copy.kind == "dlq"]
        judged = [
            (
                each,
                found.states.get(each.place),
                examine(
                    each,
                    registry,
                    namespace=settings.bus.namespace,
                    max_message_bytes=settings.publish.max_message_bytes,
                ),
            )
            for each in letters
        ]
        outcome = explain_message(message_id, found.search.copies, judged, groups=found.known_groups, until=found.until)
    if "trust" in parts:
        clock = SystemClock()
        reader = keyless(settings)
        viewer = TrustViewer(reader, registry, open_trust(reader, "", clock=clock), clock)
        views = tuple(viewer.view(copy) for copy in distinct_copies(own))
    message = next((copy.message for copy in own if copy.message is not None), None)
    shown = ShownMessage(
        message_id=message_id,
        locations=tuple(copy.place for copy in own),
        envelope=None if message is None or "message" not in parts else msgspec.json.decode(message.value),
        outcome=outcome,
        trust=views,
    )
    faults = {copy.place: copy.fault.text for copy in own if copy.fault is not None}
    invalid = part == "trust" and not all(view.valid for view in views or ())
    return Detail(shown, message_lines(shown, found, faults), code=FAILED if invalid else 0)


async def _id_of(transport: Transport, settings: Settings, location: str) -> str:
    """Return the id of the message at *location*. Raises BusError."""
    name, partition, offset = parse_location(location)
    topic = await resolve_topic(transport, settings.bus.namespace, name)
    record = await read_record(transport, topic, partition, offset)
    if record is None:
        raise BusError(f"no record at {topic}/{partition}/{offset}")
    try:
        return sealing.parse(record.value).message_id
    except ContractError as error:
        raise BusError(f"the record at {location} is not a message: {error}") from error


async def _look_up(
    session: CommandSession, transport: Transport, settings: Settings, message_id: str, *, whole: bool
) -> LookUp:
    if not is_message_id(message_id):
        raise click.BadParameter("is not 1 to 128 visible ASCII characters", param_hint="ID|LOCATION")
    with Progress(None, unit="records", alone=True) as progress:
        found = await look_up(
            transport,
            settings,
            message_id,
            whole=whole,
            with_caused=True,
            on_progress=lambda read: progress.show(0, read),
        )
    if found.audit_error:
        session.note(f"hint: {printable(found.audit_error)}; this is what the log has")
    if found.groups_error:
        session.note(f"hint: the outcome in each group was not looked at: {printable(found.groups_error)}")
    if not found.audited and not any(copy.message_id == message_id for copy in found.search.copies):
        raise BusError(
            f"no message {message_id} in namespace {settings.bus.namespace}: "
            + looked_in_words(found.search.looked, message_id)
        )
    return found

"""`sealbus verify MESSAGE_ID`, and `sealbus verify --file FILE`: check signatures and hashes.

Of a message in the log the causes are checked, too. Files are checked without a bus. `consumers.operations.lineage` and
`bus.gates.verdicts` judge.
"""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

import click
import msgspec

from bus.clock import Clock, ManualClock, SystemClock
from bus.errors import BusError
from bus.gates.verdicts import DEAD, FileChecks
from bus.payloads.payload_types import Registry, RiskClass
from bus.protocol.identifiers import is_message_id
from consumers.cli.exit_codes import FAILED
from consumers.cli.io.output import Detail, VerbResult
from consumers.cli.io.parameter_types import MESSAGE_TYPE, MOMENT, TEXT_ID, OneOf
from consumers.cli.io.printing import print_json
from consumers.cli.io.progress import Progress
from consumers.cli.session import (
    CommandSession,
    app_option,
    gathered,
    proof_of,
    risk_in,
    trusted_keys,
    trusted_keys_option,
    verb,
    whole_log_option,
)
from consumers.cli.shell import Command
from consumers.operations.lineage.ancestry import judge_ancestry
from consumers.operations.lineage.cause_lines import VerifiedCauses, cause_lines
from consumers.operations.lineage.file_values import VerifiedRecord, file_values, judge_value, value_row, value_sentence
from consumers.operations.lineage.log_search import find_lineage
from consumers.operations.survey.look_up import looked_in_words, moment_of

__all__ = ["verify"]


class _VerifyOptions(msgspec.Struct, frozen=True, kw_only=True):
    message_id: str | None
    files: tuple[BinaryIO, ...]
    lines: bool
    targets: tuple[str, ...]
    risk: RiskClass | None
    jwks: Path | None
    now: int | None
    recipient: str | None
    message_type: str | None
    key: str | None
    whole_log: bool


@click.command(cls=Command)
@click.argument("message_id", required=False, metavar="[MESSAGE_ID]")
@click.option(
    "--file", "files", multiple=True, type=click.File("rb", lazy=True), help="A file instead; - is standard input."
)
@click.option("--lines", is_flag=True, help="Each line of a file is one message; blank lines are skipped.")
@trusted_keys_option
@app_option
@whole_log_option
@click.option(
    "--risk", type=OneOf(["low", "medium", "high"]), help="With --file: the proof needed.  [default: the type's]"
)
@click.option("--now", type=MOMENT, help="With --file: judge lifetimes and keys as of this time.")
@click.option("--recipient", type=TEXT_ID, help="With --file: skip messages that are addressed to another agent.")
@click.option("--type", "message_type", type=MESSAGE_TYPE, help="With --file: refuse messages of other types.")
@click.option("--key", help="With --file: refuse messages whose record key is another.")
@verb(VerifiedCauses, VerifiedRecord)
@gathered(_VerifyOptions)
async def verify(session: CommandSession, options: _VerifyOptions) -> VerbResult | int:
    """Check signatures and hashes: of a message in the log and all its causes, or of messages in files.

    Of a message in the log each cause is checked, from the first one on: its bytes, hashes, proof chain, its own cause,
    and with trusted keys its signature. The first invalid message is named. A valid message that replaced another one
    is detected from the messages it caused. An agent is named only after the whole log was read.

    A file has one record value, byte for byte, or with --lines one per line. Size, form, hashes, proof chain and
    lifetime are checked without a bus; --trusted-keys adds every signature, --app the schema, --namespace, --type and
    --key the destination.

    \b
    Examples:
      sealbus verify 019b7a3c-4c00-7000-8000-000000000004
      sealbus verify --file message.json --trusted-keys keys/jwks.json
      sealbus verify --lines --file messages.ndjson --now 2026-01-31T12:00:00Z
      sealbus dlq show desk.question/0/3 -o raw | sealbus verify --file - --risk high

    \b
    Exit codes: 0 every message is valid, 1 at least one is not, or there is no such message.
    """
    if (options.message_id is None) == (not options.files):
        raise click.UsageError("give the id of a message in the log, or --file FILE")
    if options.message_id is None:
        return _verify_files(session, options)
    if not is_message_id(options.message_id):
        raise click.BadParameter("is not 1 to 128 visible ASCII characters", param_hint="MESSAGE_ID")
    apps = session.apps(options.targets)
    settings = session.settings(apps, jwks=options.jwks)
    verifier = trusted_keys(settings, SystemClock())
    message_id, namespace = options.message_id, settings.bus.namespace
    with Progress(None, unit="records", alone=True) as progress:
        async with session.open(settings) as transport:
            moment_ms = await moment_of(settings, message_id)
            risk_of = risk_in(await session.types_in(transport, settings, apps))
            for whole in (options.whole_log, True):
                lineage = await find_lineage(
                    transport,
                    namespace,
                    message_id,
                    moment_ms=moment_ms,
                    whole=whole,
                    on_progress=lambda read: progress.show(0, read),
                )
                found = judge_ancestry(lineage, message_id, namespace=namespace, risk_of=risk_of, verifier=verifier)
                if lineage.looked.is_whole or found is None or found.blamed is None:
                    break
    looked = looked_in_words(lineage.looked, message_id)
    if found is None:
        raise BusError(
            f"no message {message_id} in namespace {namespace}, and no message names it as a cause: {looked}"
        )
    if not lineage.looked.is_whole:
        session.note(f"hint: {looked}")
    verdict = VerifiedCauses(
        message_id=message_id,
        valid=found.blamed is None,
        signatures_checked=verifier is not None,
        unknown_before=found.unknown,
        first_invalid=found.blamed,
        causes=tuple(found.hops),
    )
    lines = cause_lines(found, has_keys=verifier is not None)
    return Detail(verdict, lines, code=0 if verdict.valid else FAILED)


def _verify_files(session: CommandSession, options: _VerifyOptions) -> int:
    settings = session.settings(jwks=options.jwks)
    apps = session.apps(options.targets)
    types = session.types(apps)
    # One clock for lifetimes and for keys: an archive is judged as it would have been then.
    clock: Clock = SystemClock() if options.now is None else ManualClock(options.now)
    verifier, admit = proof_of(settings, clock)
    checks = FileChecks(
        max_message_bytes=settings.publish.max_message_bytes,
        max_ttl_ms=round(settings.publish.max_ttl_s * 1000),
        risk=options.risk,
        registry=types if apps else Registry(),
        schemas=types if apps else None,
        recipient=options.recipient,
        namespace=session.namespace,
        message_type=options.message_type,
        key=options.key.encode() if options.key is not None else None,
        now_ms=clock.now_ms,
        append_ms=options.now,
        verifier=verifier,
        admit=admit,
    )
    failed = False
    for stream in options.files:
        for value in file_values(stream, checks.max_message_bytes, lines=options.lines):
            verdict = judge_value(value, checks)
            failed = failed or verdict.verdict == DEAD
            if session.as_json:
                print_json(value_row(value, verdict))
            else:
                click.echo(value_sentence(value, verdict, many=options.lines or len(options.files) > 1))
    return FAILED if failed else 0

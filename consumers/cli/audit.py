"""`sealbus audit run|verify|query|export|erase`: what passed over the bus, recorded and proven.

Owns the verbs and their output. `consumers.operations.audit` reads, writes and judges.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from typing import Final

import click
import msgspec

from bus import gates
from bus.clock import SystemClock
from bus.errors import ConfigurationError, ContractError
from bus.protocol import sealing
from bus.protocol.signatures import Verifier
from bus.settings.schema import Settings
from bus.telemetry.logs import get_logger
from bus.telemetry.metrics import Metrics
from bus.telemetry.terminal import printable
from bus.topics.names import own_topic
from bus.transports.base import Transport
from bus.transports.read_all import read_partition, scan_topic
from bus.trust.opening import open_trust
from bus.vocabulary.bus import AuditCheckpoint
from consumers.cli.exit_codes import FAILED
from consumers.cli.interrupts import execute
from consumers.cli.io.printing import print_json, print_table
from consumers.cli.io.progress import Progress
from consumers.cli.session import CommandSession, app_option, keys_to_believe, registry_of, with_session
from consumers.cli.shell import VerbGroup
from consumers.deadletters.journal import Journal, prepare_journal
from consumers.operations.audit.anchor import check_anchor, read_anchor
from consumers.operations.audit.databases import audit_url
from consumers.operations.audit.metrics import AuditMetrics
from consumers.operations.audit.queries import QUERIES, answer_question, described
from consumers.operations.audit.reading import opened_audit
from consumers.operations.audit.store import AuditHead, AuditStore, Erasure
from consumers.operations.audit.trail import AuditTrail, TrailSettings
from consumers.operations.audit.verification import ChainFault, ChainReport, compare_with_log, verify_chain
from consumers.worker.metrics_server import MetricsServer
from producers.connection import make_publisher
from producers.publisher import Publisher

__all__ = ["audit"]

_AGENT: Final = "audit@sealbus"
_SQLITE: Final = "sqlite:///"
_MAX_ROWS: Final = 100_000
_log = get_logger("audit")


@click.group(cls=VerbGroup)
def audit() -> None:
    """Record the messages of the bus, prove that the record is unchanged, and answer questions about it.

    `audit run` is a separate process. It reads every partition of the namespace without a group, and writes a row for
    each record into a database (setting audit.url). The rows form a hash chain. If audit@sealbus
    has a key, signed checkpoints of the chain are written to the log.

    \b
    Examples:
      sealbus audit run
      sealbus audit run --once && sealbus audit verify
      sealbus audit query decisions order-1842
      sealbus audit erase --sender alice@acme --why "request of 3 May"
    """


@audit.command()
@click.option("--once", is_flag=True, help="Read to the present end of the log, then stop.")
@app_option
@click.option("--metrics-port", type=click.IntRange(0, 65_535), help="Serve metrics on this port; 0 picks a free one.")
@click.option("--metrics-host", default="127.0.0.1", show_default=True, help="The address to serve metrics on.")
@with_session
def run(
    session: CommandSession, *, once: bool, targets: tuple[str, ...], metrics_port: int | None, metrics_host: str
) -> int:
    """Record all present and new records of the log, until Ctrl-C. Two processes share the partitions.

    With --app the messages of its types are checked against their schemas, too. Keys come from trust.keys. With a key
    of audit@sealbus in trust.key_file, signed checkpoints are written to the log.

    \b
    Examples:
      sealbus audit run
      sealbus audit run --once --app agents:app
      sealbus audit run --metrics-port 9108
    """
    apps = session.apps(targets)
    settings, clock = session.settings(apps), SystemClock()
    session.announce()
    metrics = AuditMetrics()
    if settings.audit.anchor:
        check_anchor(settings.audit.anchor)

    async def body(_: object) -> int:
        async with session.open(settings) as transport, opened_audit(settings, create=True) as store:
            trail = AuditTrail(
                transport,
                store,
                TrailSettings(
                    namespace=settings.bus.namespace,
                    holder=f"{socket.gethostname()}-{os.getpid()}-{os.urandom(4).hex()}",
                    max_message_bytes=settings.publish.max_message_bytes,
                    checkpoint_s=settings.audit.checkpoint_s,
                    anchor=settings.audit.anchor,
                    keep_s=settings.audit.keep_s,
                    keep_sensitive_s=settings.audit.keep_sensitive_s,
                ),
                registry=registry_of(apps),
                verifier=keys_to_believe(settings, clock),
                publisher=_publisher(transport, settings),
                clock=clock,
                metrics=metrics,
            )
            await prepare_journal(transport, settings)
            click.echo(f"recording {settings.bus.namespace} from {settings.bus.url} into {_shown(settings)}", err=True)
            with (
                MetricsServer(metrics.registry, metrics_host, metrics_port),
                Progress(None, unit="rows", alone=True) as progress,
            ):
                await trail.run(until_caught_up=once, on_progress=lambda rows, _: progress.show(0, rows))
            click.echo(f"{trail.rows:,} rows written", err=True)
        return 0

    return execute(body)


@audit.command()
@click.option("--against-log", is_flag=True, help="Compare rows with the records that the log still has, too.")
@with_session
def verify(session: CommandSession, *, against_log: bool) -> int:
    """Check the chain of every partition: no row was changed, removed, inserted, moved or cut off.

    Checkpoints in the log prove the rows up to the last one. Later rows can be checked against the database only, and
    the output shows how many they are. Erased content is counted, and does not break the chain. Checkpoints in the file
    audit.anchor count, too.

    \b
    Examples:
      sealbus audit verify
      sealbus audit verify --against-log
      sealbus audit verify --output json

    \b
    Exit codes: 0 all rows are valid, 1 some are not.
    """
    settings = session.settings()

    async def body(_: object) -> int:
        async with opened_audit(settings, create=False) as store:
            checkpoints = await _checkpoints(session, settings)
            heads = await store.heads()
            reports = [
                await verify_chain(store.rows(*location), head, checkpoints.get(f"{location[0]}/{location[1]}", {}))
                for location, head in sorted(heads.items())
            ]
            if against_log:
                reports = await _compared(session, settings, store, reports, heads)
        if session.as_json:
            for report in reports:
                print_json(msgspec.to_builtins(report))
        else:
            _print_reports(reports, has_checkpoints=bool(checkpoints))
        return FAILED if any(report.faults for report in reports) else 0

    return execute(body)


@audit.command()
@click.argument("name", metavar="NAME", type=click.Choice(list(QUERIES)))
@click.argument("conversation", metavar="CONVERSATION")
@app_option
@with_session
def query(session: CommandSession, *, name: str, conversation: str, targets: tuple[str, ...]) -> int:
    """Answer a question about a conversation.

    \b
    inputs     what was it begun with?          context    which context was used?
    tools      which tools were called?         outputs    what came out?
    decisions  what was decided?                policy     what did policy and gates refuse?
    approvals  who was asked, who agreed?       effects    what was changed outside?
    who, why, authority, open, costs            who took part, on what it rests, by whose right, what is left, spent

    \b
    Examples:
      sealbus audit query decisions order-1842
      sealbus audit query effects order-1842 --output json
    """
    apps = session.apps(targets)
    settings = session.settings(apps)

    async def body(_: object) -> int:
        async with opened_audit(settings, create=False) as store:
            rows = await store.conversation(conversation, max_rows=_MAX_ROWS)
        if not rows:
            raise click.BadParameter(f"the audit has no conversation {printable(conversation)}")
        on_progress = answer_question(name, rows, registry_of(apps))
        if session.as_json:
            for each in on_progress:
                print_json(each)
            return 0
        click.echo(f"{QUERIES[name].text}  {len(on_progress)} of {len(rows)} rows answer", err=True)
        plain = {"at", "place", "type", "kind", "verdict", "reason", "message_id", "from", "to", "conversation"}
        plain |= {"cause", "task", "state", "erased"}
        for each in on_progress:
            click.echo(
                printable(f"{each['at']}  {each['type']}  {each.get('from', '(erased)')} -> {each.get('to') or 'all'}")
                + (f"  {each['state'] or each['verdict']}" + (f" {each['reason']}" if each["reason"] else ""))
            )
            for key, value in each.items():
                if key not in plain:
                    click.echo(f"    {key}: {printable(msgspec.json.encode(value).decode())[:2_000]}")
        return 0

    return execute(body)


@audit.command()
@click.option("--conversation", metavar="ID", help="Only this conversation.")
@click.option("--limit", type=click.IntRange(1, 10_000_000), default=_MAX_ROWS, show_default=True, help="At most.")
@with_session
def export(session: CommandSession, *, conversation: str | None, limit: int) -> int:
    """Write rows as one JSON object per line, the oldest first; --limit keeps the newest.

    \b
    Examples:
      sealbus audit export > audit.ndjson
      sealbus audit export --conversation order-1842
    """
    settings = session.settings()

    async def body(_: object) -> int:
        async with opened_audit(settings, create=False) as store:
            found = (
                await store.all(since_ms=0, max_rows=limit)
                if conversation is None
                else await store.conversation(conversation, max_rows=limit)
            )
        for each in found:
            facts = {} if each.content is None else msgspec.json.decode(each.content.facts)
            print_json({**described(each), "facts": facts, "hash": each.row.hash})
        return 0

    return execute(body)


@audit.command()
@click.option("--sender", default="", metavar="AGENT", help="Messages from or to this agent or person.")
@click.option("--conversation", default="", metavar="ID", help="Messages of this conversation.")
@click.option("--message", "message_id", default="", metavar="ID", help="This message and its copies.")
@click.option("--containing", default="", metavar="TEXT", help="Rows whose facts or payload contain this text.")
@click.option("--why", metavar="TEXT", required=True, help="Why, for the journal.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@with_session
def erase(
    session: CommandSession, *, sender: str, conversation: str, message_id: str, containing: str, why: str, yes: bool
) -> int:
    """Erase content: names, ids, facts and payloads, with the random keys that could confirm a guess. Rows and chain
    stay.

    With several options, only rows that match all of them are erased. The output lists other copies of the data: the
    log until its retention ends, inboxes, and processes.

    \b
    Examples:
      sealbus audit erase --sender alice@acme --why "request of 3 May"
      sealbus audit erase --containing alice@example.org --why "request of 3 May" --yes
    """
    what = Erasure(sender=sender, conversation=conversation, message_id=message_id, containing=containing)
    if what == Erasure():
        raise click.UsageError("select the content to erase: --sender, --conversation, --message or --containing")
    settings = session.settings()
    session.announce()

    async def body(_: object) -> int:
        async with session.open(settings) as transport, opened_audit(settings, create=False) as store:
            if not yes:
                click.confirm("Erase this content permanently?", abort=True, err=True)
            await prepare_journal(transport, settings)
            journal = Journal(transport, settings, SystemClock(), verb="audit", why=why)
            # The reason is a text of the operator's; what is erased is not named in the journal again.
            count = await store.erase(what, who=journal.by, why=why)
            await journal.note("erased", rows=count, why=why)
            click.echo(f"erased the content of {count:,} rows; the chain is still valid: `sealbus audit verify`")
            click.echo("the same data may still be in:", err=True)
            for topic, spec in sorted((await transport.admin.topics()).items()):
                if topic.startswith(f"{settings.bus.namespace}."):
                    until = "for ever" if spec.retention_ms is None else f"{spec.retention_ms / 86_400_000:.3g} d"
                    click.echo(f"  topic {topic}: kept {until}", err=True)
            click.echo("  inbox, outbox and processes of each group: until their rows are purged", err=True)
        return 0

    return execute(body)


def _shown(settings: Settings) -> str:
    from bus.databases.postgres import database_of

    url = audit_url(settings)
    return url if url.startswith(_SQLITE) else database_of(url)


def _publisher(transport: Transport, settings: Settings) -> Publisher | None:
    """Return the publisher of checkpoints; None without a key to sign them."""
    try:
        trust = open_trust(settings, _AGENT, clock=SystemClock())
    except ConfigurationError as error:
        trust = None
        reason = str(error)
    else:
        reason = f"trust.key_file has no key of {_AGENT}"
    if trust is None or trust.signer is None:
        _log.warning(
            "audit.no_checkpoints",
            detail=f"without a signature nothing outside of the database proves its rows: {reason}; make a key with "
            f"`sealbus keys new {_AGENT}`",
        )
        return None
    return make_publisher(
        transport,
        settings,
        _AGENT,
        clock=SystemClock(),
        metrics=Metrics(),
        signer=trust.signer,
        verifier=trust.verifier,
        policy=trust.policy,
    )


async def _compared(
    session: CommandSession,
    settings: Settings,
    store: AuditStore,
    reports: list[ChainReport],
    heads: Mapping[tuple[str, int], AuditHead],
) -> list[ChainReport]:
    """Return *reports* with what differs from the log."""
    found = []
    async with session.open(settings) as transport:
        topics = await transport.admin.topics()
        for report in reports:
            location = (report.topic, report.partition)
            faults: list[ChainFault] = []
            if report.topic in topics:
                records = read_partition(transport, *location)
                faults = await compare_with_log(store.rows(*location), records, heads[location])
            found.append(msgspec.structs.replace(report, faults=(*report.faults, *faults)))
    return found


async def _checkpoints(
    session: CommandSession, settings: Settings
) -> Mapping[str, Mapping[int, Sequence[AuditCheckpoint]]]:
    """Return the checkpoints of the anchor and the signed ones in the log, by partition and number of rows."""
    verifier = keys_to_believe(settings, SystemClock())
    found: dict[str, dict[int, list[AuditCheckpoint]]] = {}

    def add(checkpoint: AuditCheckpoint) -> None:
        found.setdefault(checkpoint.partition, {}).setdefault(checkpoint.rows, []).append(checkpoint)

    if settings.audit.anchor:
        for anchored in read_anchor(settings.audit.anchor):
            add(anchored)
    topic = own_topic(settings.bus.namespace, "_audit")
    async with session.open(settings) as transport:
        if topic not in await transport.admin.topics():
            return found
        async for record in scan_topic(transport, topic):
            checkpoint = _checkpoint(record.value or b"", verifier)
            if checkpoint is not None:
                add(checkpoint)
    return found


def _checkpoint(value: bytes, verifier: Verifier | None) -> AuditCheckpoint | None:
    """Return the checkpoint in *value*; None if it is another entry, or its writer is not verified."""
    if b'"audit.checkpoint"' not in value:
        return None
    try:
        message = sealing.parse(value)
        if message.message_type != "audit.checkpoint" or message.metadata.sender.id != _AGENT:
            return None
        gates.prove(message, "high", verifier)
        return msgspec.json.decode(message.data, type=AuditCheckpoint)
    except (ContractError, msgspec.DecodeError):
        return None


def _print_reports(reports: list[ChainReport], *, has_checkpoints: bool) -> None:
    rows = [
        (
            report.topic,
            report.partition,
            report.rows,
            report.erased,
            report.lost,
            "-" if report.proven_through is None else report.proven_through,
            "holds" if not report.faults else f"{len(report.faults)} faults",
        )
        for report in reports
    ]
    print_table(("TOPIC", "PARTITION", "ROWS", "ERASED", "LOST", "PROVEN TO", "CHAIN"), rows)
    for report in reports:
        for fault in report.faults:
            location = f"{printable(fault.topic)}/{fault.partition}/{fault.offset}"
            click.echo(f"{location}: {fault.kind.replace('_', ' ')}: {printable(fault.text)}")
    if not has_checkpoints:
        click.echo(
            "no signed checkpoint is in the log: the chain rests on the database alone "
            "(`sealbus keys new audit@sealbus`)",
            err=True,
        )

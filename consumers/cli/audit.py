"""`sealbus audit query|verify|export|erase`: the permanent record. `sealbus serve audit` writes it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import click
import msgspec

from bus.clock import SystemClock
from bus.errors import BusError
from bus.telemetry.terminal import printable
from consumers.cli.exit_codes import FAILED
from consumers.cli.io.output import Listing, VerbResult
from consumers.cli.io.parameter_types import PAST
from consumers.cli.io.printing import print_json
from consumers.cli.session import (
    CommandSession,
    app_option,
    changing,
    trusted_keys,
    verb,
)
from consumers.cli.shell import VerbGroup
from consumers.deadletters.journal import Journal, prepare_journal
from consumers.operations.audit.checkpoints import compared_with_log, read_checkpoints
from consumers.operations.audit.costs import COST_DIMENSIONS, CostDimension, CostSum, CostSums
from consumers.operations.audit.queries import QUERIES, answer_question, described
from consumers.operations.audit.reading import opened_audit
from consumers.operations.audit.store import AuditHead, Erasure
from consumers.operations.audit.verification import ChainReport, verify_chain

__all__ = ["audit"]

_MAX_ROWS: Final = 100_000
_MAX_SHOWN: Final = 2_000
_HEADLINE: Final = frozenset(
    {"at", "place", "type", "kind", "verdict", "reason", "message_id", "from", "to", "conversation", "cause", "task"}
    | {"state", "erased"}
)


@click.group(cls=VerbGroup)
def audit() -> None:
    """Query, prove and erase the permanent record of the messages.

    `sealbus serve audit` is a process that writes it: a row for each record of the namespace, into a database (setting
    audit.url). The rows form a hash chain. If audit@sealbus has a key, signed checkpoints of the chain are written to
    the log.

    \b
    Examples:
      sealbus serve audit --once && sealbus audit verify
      sealbus audit query decisions order-1842
      sealbus audit erase --sender alice@acme --why "request of 3 May"
    """


@audit.command()
@click.argument("name", metavar="QUESTION", type=click.Choice(list(QUERIES)))
@click.argument("conversation", metavar="[CONVERSATION]", required=False)
@click.option(
    "--by",
    type=click.Choice(COST_DIMENSIONS),
    default="agent",
    show_default=True,
    help="Without CONVERSATION: group the costs. A person is the sender of a conversation's first message.",
)
@click.option(
    "--days",
    type=click.IntRange(1, 3_650),
    default=14,
    show_default=True,
    help="Without CONVERSATION: sum up the last N days (UTC), today included.",
)
@app_option
@verb(CostSum)
async def query(
    session: CommandSession,
    *,
    name: str,
    conversation: str | None,
    by: CostDimension,
    days: int,
    targets: tuple[str, ...],
) -> VerbResult | int:
    """Answer a question about a conversation. The question costs can also be asked about all of them.

    \b
    inputs     what was it begun with?          context    which context was used?
    tools      which tools were called?         outputs    what came out?
    decisions  what was decided?                policy     what did policy and checks refuse?
    approvals  who was asked, who agreed?       effects    what was changed outside?
    who, why, authority, open, costs            who took part, its causes, by whose right, what is left, spent

    \b
    Examples:
      sealbus audit query decisions order-1842
      sealbus audit query effects order-1842 -o json
      sealbus audit query costs --by model --days 30
    """
    if conversation is None and name != "costs":
        raise click.UsageError(f"name the conversation: sealbus audit query {name} CONVERSATION")
    apps = session.apps(targets)
    settings = session.settings(apps)
    if conversation is None:
        async with opened_audit(settings, create=False) as store:
            return _costs(await store.costs(by, now_ms=SystemClock().now_ms(), days=days))
    async with opened_audit(settings, create=False) as store:
        rows = await store.conversation(conversation, max_rows=_MAX_ROWS)
    if not rows:
        raise BusError(f"the audit has no conversation {conversation}")
    answers = answer_question(name, rows, session.types(apps))
    if session.as_json:
        for each in answers:
            print_json(each)
        return 0
    session.note(f"{QUERIES[name].text}  {len(answers)} of {len(rows)} rows answer")
    for line in (line for each in answers for line in _answer_lines(each)):
        click.echo(line)
    return 0


def _costs(sums: CostSums) -> VerbResult:
    notes = [f"{sums.since_day} to {sums.until_day}, as agents have reported it"]
    if not sums.is_whole:
        notes.append(
            f"{sums.indexed_rows:,} of {sums.recorded_rows:,} recorded messages are summed up; "
            "`sealbus serve audit` adds the others"
        )
    parts = [] if sums.rest is None else [(f"{sums.rest_count:,} others", sums.rest)]
    return Listing(
        sums.rows,
        {
            sums.by.upper(): lambda each: each.name or "(not known)",
            "CALLS": "calls",
            "TOKENS IN": "tokens_in",
            "TOKENS OUT": "tokens_out",
            "COST": lambda each: f"{each.cost:,.4f}",
        },
        below=[
            f"{name}: {each.calls:,} calls, {each.tokens_in:,} tokens in, {each.tokens_out:,} out, "
            f"cost {each.cost:,.4f}"
            for name, each in (*parts, ("total", sums.total))
            if sums.rows
        ],
        empty="no message has reported tokens or costs",
        notes=notes,
    )


def _answer_lines(each: dict[str, Any]) -> Iterator[str]:
    end = f"  {each['state'] or each['verdict']}" + (f" {each['reason']}" if each["reason"] else "")
    yield printable(f"{each['at']}  {each['type']}  {each.get('from', '(erased)')} -> {each.get('to') or 'all'}{end}")
    for key, value in each.items():
        if key not in _HEADLINE:
            yield f"    {key}: {printable(msgspec.json.encode(value).decode())[:_MAX_SHOWN]}"


@audit.command()
@click.option("--against-log", is_flag=True, help="Also compare rows with the records that the log still has.")
@verb(ChainReport)
async def verify(session: CommandSession, *, against_log: bool) -> VerbResult:
    """Check the chain of every partition: no row was changed, removed, inserted, moved or cut off.

    Checkpoints in the log and in the file audit.anchor prove the rows up to the last one. Later rows can be checked
    against the database only; PROVEN TO shows where they begin. Erased content is counted, and does not break the
    chain.

    \b
    Examples:
      sealbus audit verify
      sealbus audit verify --against-log -o json

    \b
    Exit codes: 0 all rows are valid, 1 some are not.
    """
    settings = session.settings()
    async with opened_audit(settings, create=False) as store, session.open(settings) as transport:
        checkpoints = await read_checkpoints(transport, settings, trusted_keys(settings, SystemClock()))
        heads = await store.heads()

        async def report(location: tuple[str, int], head: AuditHead) -> ChainReport:
            async def later() -> AuditHead:
                return (await store.heads())[location]

            known = checkpoints.get(f"{location[0]}/{location[1]}", {})
            return await verify_chain(store.rows(*location), head, known, later)

        reports = [await report(location, head) for location, head in sorted(heads.items())]
        if against_log:
            reports = await compared_with_log(transport, store, reports, heads)
    unproven = (
        "no signed checkpoint is in the log, so only the database proves its rows: audit@sealbus needs a key "
        "(`sealbus key new audit@sealbus`), and a policy needs a rule that lets it publish audit.checkpoint"
    )
    return Listing(
        reports,
        {
            "TOPIC": "topic",
            "PARTITION": "partition",
            "ROWS": "rows",
            "ERASED": "erased",
            "LOST": "lost",
            "PROVEN TO": "proven_through",
            "CHAIN": lambda report: f"{len(report.faults)} faults" if report.faults else "valid",
        },
        below=[
            f"{printable(fault.topic)}/{fault.partition}/{fault.offset}: {fault.kind.replace('_', ' ')}: "
            f"{printable(fault.text)}"
            for report in reports
            for fault in report.faults
        ],
        empty="the audit has no rows",
        notes=[] if checkpoints else [unproven],
        code=FAILED if any(report.faults for report in reports) else 0,
    )


@audit.command()
@click.option("--conversation", metavar="ID", help="Only this conversation.")
@click.option("--since", "since_ms", type=PAST, help="Only rows since then: 2h, 3d, 2026-01-31.")
@click.option("--limit", type=click.IntRange(1, 10_000_000), default=_MAX_ROWS, show_default=True, help="The newest N.")
@verb()
async def export(session: CommandSession, *, conversation: str | None, since_ms: int | None, limit: int) -> int:
    """Write rows as one JSON object per line, the oldest first; --limit keeps the newest.

    \b
    Examples:
      sealbus audit export > audit.ndjson
      sealbus audit export --conversation order-1842
    """
    settings = session.settings()
    async with opened_audit(settings, create=False) as store:
        found = (
            await store.all(since_ms=since_ms or 0, max_rows=limit)
            if conversation is None
            else await store.conversation(conversation, max_rows=limit)
        )
    for each in found:
        if since_ms is None or each.row.appended_ms >= since_ms:
            facts = {} if each.content is None else msgspec.json.decode(each.content.facts)
            print_json({**described(each), "facts": facts, "hash": each.row.hash})
    return 0


@audit.command()
@click.option("--sender", default="", metavar="AGENT", help="Messages from or to this agent or person.")
@click.option("--conversation", default="", metavar="ID", help="Messages of this conversation.")
@click.option("--message", "message_id", default="", metavar="ID", help="This message and its copies.")
@click.option("--containing", default="", metavar="TEXT", help="Listing whose facts or payload contain this text.")
@changing
@verb()
async def erase(
    session: CommandSession,
    *,
    sender: str,
    conversation: str,
    message_id: str,
    containing: str,
    why: str,
    dry_run: bool,
    yes: bool,
) -> int:
    """Erase content: names, ids, facts and payloads, with the random keys that could confirm a guess.

    Listing and chain stay. With several options, only rows that match all of them are erased. The output lists other
    copies of the data: the log until its retention ends, inboxes, and workflows.

    \b
    Examples:
      sealbus audit erase --sender alice@acme --why "request of 3 May"
      sealbus audit erase --containing alice@example.org --why "request of 3 May" --yes
    """
    what = Erasure(sender=sender, conversation=conversation, message_id=message_id, containing=containing)
    if what == Erasure():
        raise click.UsageError("select the content to erase: --sender, --conversation, --message or --containing")
    if not why:
        raise click.UsageError("give --why TEXT, for the operations journal")
    settings = session.settings()
    session.announce()
    async with opened_audit(settings, create=False) as store, session.open(settings) as transport:
        if dry_run:
            session.note("nothing was erased; how many rows match was not looked at")
            return 0
        session.confirm("Erase this content permanently?", yes=yes)
        await prepare_journal(transport, settings)
        journal = Journal(transport, settings, SystemClock(), verb="audit", why=why)
        # The reason is a text of the operator's; what is erased is not named in the journal again.
        count = await store.erase(what, who=journal.by, why=why)
        await journal.note("erased", rows=count, why=why)
        click.echo(f"erased the content of {count:,} rows; the chain is still valid: `sealbus audit verify`")
        session.note("the same data may still be in:")
        for topic, spec in sorted((await transport.admin.topics()).items()):
            if topic.startswith(f"{settings.bus.namespace}."):
                until = "without end" if spec.retention_ms is None else f"{spec.retention_ms / 86_400_000:.3g} d"
                session.note(f"  topic {topic}: kept {until}")
        session.note("  inbox, outbox and workflows of each group: until their rows are deleted")
    return 0

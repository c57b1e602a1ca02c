"""`sealbus workflow start|list|show|cancel`: work that outlives a message, of a Saga class or of a workflow file.

Rows are read and changed by `consumers.processes.sagas.store`, workflow files by `consumers.agents.workflows`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, get_args

import click
import msgspec

from bus.clock import SystemClock
from bus.errors import BusError, ContractError
from bus.protocol.timestamps import format_ms
from bus.redaction import cut
from bus.telemetry.terminal import printable
from bus.telemetry.terminal_json import details
from bus.vocabulary.bus import WorkflowStart
from consumers.agents.workflows.advance import progress_of
from consumers.agents.workflows.check import check_workflow
from consumers.agents.workflows.definition import parse_workflow, read_workflow
from consumers.agents.workflows.diagram import mermaid_of_workflow
from consumers.agents.workflows.engine import ENGINE, WorkflowRun
from consumers.agents.workflows.workflow_rows import (
    WaitRow,
    WorkflowDetails,
    WorkflowRow,
    run_of,
    wait_row,
    workflow_details,
    workflow_row,
)
from consumers.cli.ask import TaskView, name_and_value, new_task_id
from consumers.cli.exit_codes import FAILED, LATER
from consumers.cli.io.output import Detail, Listing, VerbResult
from consumers.cli.io.parameter_types import DURATION_TYPE
from consumers.cli.io.printing import print_table
from consumers.cli.session import CommandSession, changing, key_options, limit_option, verb
from consumers.cli.shell import VerbGroup
from consumers.deadletters.journal import Journal, prepare_journal
from consumers.processes.approvals.state import APPROVAL_SAGA
from consumers.processes.sagas.ending import end_process, process_with_id
from consumers.processes.sagas.opening import opened_store
from consumers.processes.sagas.process import ProcessOutcome, ending_of

__all__ = ["workflow"]

_ID_DIGITS: Final = 12
_OVERDUE_MS: Final = 60_000
_MAX_REASON: Final = 60
_TABLES: Final = frozenset({"waits", "nodes", "history"})
_MAX_SEARCHED: Final = 100_000


@click.group(cls=VerbGroup)
def workflow() -> None:
    """Start, show and cancel work that outlives a message: Saga classes and workflow files.

    The rows are in the inbox's database: run this with the settings of the workers. Workflow files are run by
    workflow@sealbus: `sealbus serve workflows`.

    \b
    Examples:
      sealbus workflow start research.json --set query="vector databases"
      sealbus workflow list --overdue
      sealbus workflow show 3f9a1c
      sealbus workflow cancel 3f9a1c --why "ordered twice"
    """


@workflow.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@key_options
@click.option("--set", "provided", multiple=True, metavar="NAME=VALUE", help="A variable, as JSON or text; repeatable.")
@click.option(
    "--timeout",
    "timeout_s",
    type=DURATION_TYPE,
    default=3600.0,
    show_default="1h",
    help="How long the workflow may take; then it is cancelled.",
)
@click.option("--no-wait", is_flag=True, help="Print the task id, and do not wait for the end.")
@verb()
async def start(
    session: CommandSession,
    *,
    file: Path,
    agent: str | None,
    key_file: Path | None,
    provided: tuple[str, ...],
    timeout_s: float,
    no_wait: bool,
) -> int:
    """Start a workflow file, and follow it to its end.

    Progress goes to standard error, the result to standard output. It runs with your rights, not with the engine's.
    `sealbus check` finds mistakes in workflow files.

    \b
    Examples:
      sealbus workflow start research.json --set query="vector databases"
      sealbus workflow start research.json --no-wait
    """
    definition = read_workflow(file)
    faults = [finding for finding in check_workflow(definition) if finding.severity == "error"]
    if faults:
        raise ContractError(f"{faults[0].text}; {faults[0].cure}", faults[0].pointer, "semantic_violation")
    variables = dict(_variable(each) for each in provided)
    if unknown := sorted(set(variables) - set(definition.variables)):
        known = ", ".join(sorted(definition.variables)) or "none"
        raise click.BadParameter(f"the workflow has no variable {unknown[0]!r}; it has {known}", param_hint="--set")
    settings = session.settings_for(key_file)
    acting = session.acting_agent(settings, agent)
    session.announce()
    begin = WorkflowStart(definition=msgspec.to_builtins(definition), variables=variables)
    async with session.acting(settings, acting, create=True) as bus:
        number = new_task_id()
        task = await bus.submit(begin, to=ENGINE, task_id=number, idempotency_key=number, ttl_s=timeout_s)
        if no_wait:
            click.echo(task.id)
            return 0
        session.note(f"to follow it in another shell: sealbus ask --resume {task.id}")
        code = await TaskView(session, bus, settings).follow(task)
        if code == LATER:
            await task.cancel()
            session.note("the timeout is over: the workflow is cancelled")
        return code


@workflow.command("list")
@click.option("--group", metavar="GROUP", help="Only those of this group.")
@click.option("--name", metavar="NAME", help="Only those of this Saga; `workflow` are all workflow files.")
@click.option(
    "--state",
    type=click.Choice(["open", *get_args(ProcessOutcome)]),
    help="Only those in this state.  [default: open]",
)
@click.option("--all", "everything", is_flag=True, help="Also those that have ended.")
@click.option("--waits", is_flag=True, help="List what they wait for, the next due first.")
@click.option("--overdue", is_flag=True, help="List only what has been due for a minute or more.")
@limit_option
@verb(WorkflowRow, WaitRow)
async def list_(
    session: CommandSession,
    *,
    group: str | None,
    name: str | None,
    state: str | None,
    everything: bool,
    waits: bool,
    overdue: bool,
    limit: int,
) -> VerbResult:
    """List workflows, those that changed last first.

    An overdue one means that no worker of its group runs, that its mailbox lags, or that its step fails: see `sealbus
    group show` and `sealbus dlq list`.

    \b
    Examples:
      sealbus workflow list
      sealbus workflow list --overdue
      sealbus workflow list --name Buying --state failed -o json
    """
    settings = session.settings()
    async with opened_store(settings, group) as store:
        if waits or overdue:
            waiting = await store.waits(overdue_ms=_OVERDUE_MS if overdue else None, max_rows=limit)
            where = f" in group {printable(group)}" if group else ""
            return Listing(
                [wait_row(wait, process, now_ms) for wait, process, now_ms in waiting if name in (None, process.saga)],
                {
                    "ID": lambda row: row.id[:_ID_DIGITS],
                    "NAME": "name",
                    "KEY": "key",
                    "GROUP": "group",
                    "WAITS FOR": "wait",
                    "FROM": lambda row: row.answer_of or "time",
                    "DUE": "due_at",
                    "OVERDUE": lambda row: f"{row.overdue_s:.0f} s" if row.overdue_s else "-",
                },
                empty=f"nothing is {'overdue' if overdue else 'waited for'}{where}",
            )
        # How each has ended is within its state, where the database does not look.
        ended = state not in (None, "open")
        found = await store.processes(
            saga=name,
            status="finished" if ended else None if everything else "open",
            max_rows=_MAX_SEARCHED if ended else limit + 1,
        )
    if ended:
        found = [each for each in found if (ending := ending_of(each)) is not None and ending.outcome == state]
    more = [f"more than {limit}: --limit"] if len(found) > limit else []
    return Listing(
        [workflow_row(each) for each in found[:limit]],
        {
            "ID": lambda row: row.id[:_ID_DIGITS],
            "NAME": "name",
            "KEY": "key",
            "GROUP": "group",
            "STATE": lambda row: f"{row.state}: {cut(row.reason, _MAX_REASON)}" if row.reason else row.state,
            "AT": "at",
            "SENDER": "sender",
            "STEPS": "steps",
            "CHANGED": "changed_at",
        },
        empty="no workflow matches" if group or name or ended else "no workflow is open; --all shows ended ones",
        notes=more,
    )


@workflow.command()
@click.argument("which", metavar="ID")
@verb(WorkflowDetails, forms=("mermaid",))
async def show(session: CommandSession, *, which: str) -> VerbResult | int:
    """Show one workflow: its state, who started it, and what it waits for. ID may be its first digits.

    \b
    Examples:
      sealbus workflow show 3f9a1c
      sealbus workflow show 3f9a1c -o mermaid
    """
    settings = session.settings()
    async with opened_store(settings, None) as store:
        found = await process_with_id(store, which)
        waiting = await store.waits_of(found.id)
        held = await store.holds_of(found.id)
    run = run_of(found)
    if session.form == "mermaid":
        if run is None:
            raise BusError("only a workflow file that has not ended has a diagram")
        definition = parse_workflow(run.definition)
        click.echo(mermaid_of_workflow(definition, progress_of(definition, run.run)))
        return 0
    shown = workflow_details(found, waiting, len(held), SystemClock().now_ms())
    if session.as_json:
        return Detail(shown, ())
    about = {name: value for name, value in msgspec.structs.asdict(shown).items() if name not in _TABLES}
    about["data"] = msgspec.json.encode(about["data"]).decode()
    for line in details({name.replace("_", " "): value for name, value in about.items()}):
        click.echo(line)
    if shown.nodes:
        print_table(("NODE", "STATE"), shown.nodes.items())
    if shown.history:
        parts = [
            (
                format_ms(each.start_ms),
                "" if each.end_ms is None else format_ms(each.end_ms),
                each.kind,
                each.name,
                each.outcome or "under way",
                each.agent,
            )
            for each in shown.history
        ]
        print_table(("BEGUN", "ENDED", "PART", "NAME", "OUTCOME", "AGENT"), parts)
    if shown.waits:
        rows = [(each.wait, each.answer_of or "time", each.due_at) for each in shown.waits]
        print_table(("WAITS FOR", "FROM", "DUE"), rows)
    return 0


@workflow.command()
@click.argument("which", metavar="ID")
@click.option("--force", is_flag=True, help="End its row here and now: no worker knows its Saga class any more.")
@changing
@verb(WorkflowRow)
async def cancel(
    session: CommandSession, *, which: str, force: bool, why: str, dry_run: bool, yes: bool
) -> VerbResult | int:
    """Cancel a workflow: a worker of its group runs its @on_cancel method, and notifies the requester.

    A running worker of the group does this within two seconds. Requests of the workflow are cancelled, too, and later
    messages for it are refused. The operations journal records the cancellation. To end an approval use `sealbus
    approval reject`, which notifies its requester. With --force no method runs and no agent is notified.

    \b
    Examples:
      sealbus workflow cancel 3f9a1c --why "ordered twice"
      sealbus workflow cancel 3f9a1c --why "its class is gone" --force
    """
    if not why:
        raise click.UsageError("give --why TEXT, for the operations journal and for the requester")
    settings = session.settings()
    session.announce()
    async with opened_store(settings, None) as store:
        found = await process_with_id(store, which)
        shown, short = workflow_row(found), found.id.hex()[:_ID_DIGITS]
        if found.saga == APPROVAL_SAGA:
            raise BusError("this is an approval: `sealbus approval reject` decides about it")
        if found.status == "finished" or dry_run:
            ended = "it has ended already" if found.status == "finished" else f"{short} would be cancelled"
            return Listing([shown], {"ID": "id", "NAME": "name", "KEY": "key", "STATE": "state"}, notes=[ended])
        waiting = await store.waits_of(found.id)
        session.confirm(f"Cancel {printable(shown.name)} {printable(found.key)} with {len(waiting)} waits?", yes=yes)
        if not force and not await store.ask_to_cancel(found, why):
            session.note("that is requested already: a worker of its group cancels it")
            return 0
        keep_ms, now_ms = round(settings.publish.max_ttl_s * 1000), SystemClock().now_ms()
        keeps = WorkflowRun.keeps if run_of(found) is not None else ()
        if force and not await end_process(store, found, why, keep_ms=keep_ms, now_ms=now_ms, keeps=keeps):
            session.note("It changed while you decided; nothing was done, run it again.")
            return FAILED
    async with session.open(settings) as transport:
        await prepare_journal(transport, settings)
        journal = Journal(transport, settings, SystemClock(), verb="processes", why=why)
        facts: dict[str, Any] = {"saga": found.saga, "key": found.key, "group": found.group, "steps": found.version}
        await journal.note("cancelled", process=found.id.hex(), why=why, **facts)
    session.note(f"{short} is cancelled" if force else f"a worker of {printable(found.group)} cancels {short}")
    requested = [wait.addressee or "any agent" for wait in waiting if wait.seal is not None]
    if requested and force:
        names = ", ".join(map(printable, requested))
        session.note(f"These requests cannot be recalled and may still run: {names}")
    return 0


def _variable(text: str) -> tuple[str, Any]:
    name, value = name_and_value(text, "--set", "NAME=VALUE")
    try:
        return name, msgspec.json.decode(value)
    except msgspec.DecodeError:
        return name, value

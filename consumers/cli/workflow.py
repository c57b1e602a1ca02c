"""`sealbus workflow check|run|serve|list|show|cancel|schema`: work among agents from a JSON file.

Owns the verbs and their output. The language is `consumers.agents.workflows`; runs are processes of the saga
`workflow`.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import click
import msgspec

from bus.errors import ContractError
from bus.protocol.timestamps import format_ms
from bus.telemetry.terminal import printable
from bus.vocabulary.bus import WorkflowStart
from consumers.agents.workflows.advance import progress_of
from consumers.agents.workflows.check import check_workflow
from consumers.agents.workflows.definition import parse_workflow, schema_of_definition
from consumers.agents.workflows.diagram import mermaid_of_workflow
from consumers.agents.workflows.engine import ENGINE, RunState, workflow_engine
from consumers.cli.ask import name_and_value, new_task_id, watch_task
from consumers.cli.exit_codes import FAILED, LATER
from consumers.cli.interrupts import execute
from consumers.cli.io.parameter_types import DURATION_TYPE
from consumers.cli.io.printing import print_json, print_table
from consumers.cli.io.workflow_file import read_workflow
from consumers.cli.processes import cancel as cancel_process
from consumers.cli.processes import chosen_process, ended_members, opened_store, process_text
from consumers.cli.session import CommandSession, app_option, key_options, with_session
from consumers.cli.shell import VerbGroup
from consumers.processes.sagas.process import Memory, Process

__all__ = ["workflow"]

_SAGA = "workflow"
_file = click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))


@click.group(cls=VerbGroup)
def workflow() -> None:
    """Run work among agents from a JSON file: nodes that send a message, wait, retry, and end.

    The engine is an agent, workflow@sealbus: `sealbus workflow serve` runs it, several of it share the work. A run
    survives its engine: it goes on where it was.

    \b
    Examples:
      sealbus workflow check research.json
      sealbus workflow serve
      sealbus workflow run research.json --set query="vector databases"
      sealbus workflow list
    """


@workflow.command()
@_file
@click.option("--mermaid", is_flag=True, help="Print the workflow as a Mermaid diagram.")
@with_session
def check(session: CommandSession, *, file: Path, mermaid: bool) -> int:
    """Find mistakes in a workflow before it runs; each has its location and a fix.

    \b
    Examples:
      sealbus workflow check research.json
      sealbus workflow check research.json --mermaid > research.mmd
    """
    definition = read_workflow(file)
    if mermaid:
        click.echo(mermaid_of_workflow(definition))
        return 0
    findings = check_workflow(definition)
    if session.as_json:
        for finding in findings:
            print_json(msgspec.to_builtins(finding))
    elif findings:
        rows = [(finding.severity, finding.pointer, finding.text, finding.cure) for finding in findings]
        print_table(("SEVERITY", "PLACE", "WHAT", "CURE"), rows)
    wrong = sum(finding.severity == "error" for finding in findings)
    click.echo(f"{printable(definition.name)}: {len(definition.nodes)} nodes, {wrong or 'no'} errors", err=True)
    return FAILED if wrong else 0


@workflow.command()
@with_session
def schema(session: CommandSession) -> int:
    """Print the JSON Schema of a workflow, for editors.

    \b
    Examples:
      sealbus workflow schema > workflow.schema.json
    """
    if session.as_json:
        print_json(schema_of_definition())
    else:
        click.echo(msgspec.json.format(msgspec.json.encode(schema_of_definition()), indent=2).decode())
    return 0


@workflow.command()
@_file
@key_options
@click.option("--set", "provided", multiple=True, metavar="NAME=VALUE", help="A variable, as JSON or text; repeatable.")
@click.option(
    "--wait",
    type=DURATION_TYPE,
    default=3600.0,
    show_default="1h",
    help="How long the run may take; then it is cancelled.",
)
@click.option("--no-wait", is_flag=True, help="Print the handle, and do not wait for the end.")
@with_session
def run(
    session: CommandSession,
    *,
    file: Path,
    agent: str | None,
    key_file: Path | None,
    provided: tuple[str, ...],
    wait: float,
    no_wait: bool,
) -> int:
    """Start a workflow, and follow it to its end.

    Progress goes to standard error, the result to standard output. It runs with your rights, not with the engine's.

    \b
    Examples:
      sealbus workflow run research.json --set query="vector databases"
      sealbus workflow run research.json --no-wait
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
    start = WorkflowStart(definition=msgspec.to_builtins(definition), variables=variables)

    async def body(_: object) -> int:
        async with session.acting(settings, acting, create=True) as bus:
            number = new_task_id()
            task = await bus.submit(start, to=ENGINE, task_id=number, idempotency_key=number, ttl_s=wait)
            notice = f"run {task.message_id}; to follow it elsewhere: sealbus ask --task {task.id}"
            code = await watch_task(session, task, None if no_wait else notice)
            if code == LATER and not no_wait:
                await task.cancel()
                click.echo("its time is over: the run is cancelled", err=True)
            return code

    return execute(body)


@workflow.command()
@app_option
@with_session
def serve(session: CommandSession, *, targets: tuple[str, ...]) -> int:
    """Run the workflow engine until Ctrl-C; with --app, workflows may send the types of that app too.

    \b
    Examples:
      sealbus workflow serve
      sealbus workflow serve --app agents:app
    """
    from consumers.worker.process import run_process

    apps = session.apps(targets)
    types = list({kind.name: kind.cls for app in reversed(apps) for kind in app.registry}.values())
    settings = session.settings()
    session.announce()
    return asyncio.run(run_process([workflow_engine(types=types).declaration], settings))


@workflow.command(name="list")
@click.option("--all", "everything", is_flag=True, help="Also those that have ended.")
@click.option("--limit", type=click.IntRange(1, 100_000), default=100, show_default=True, help="At most so many.")
@with_session
def list_runs(session: CommandSession, *, everything: bool, limit: int) -> int:
    """List runs of workflows, where they are, and how each has ended.

    \b
    Examples:
      sealbus workflow list --output json
    """
    settings = session.settings()

    async def body(_: object) -> int:
        async with opened_store(settings, None) as store:
            found = await store.processes(saga=_SAGA, status=None if everything else "open", max_rows=limit)
        if session.as_json:
            for each in found:
                print_json({**_row(each), **ended_members(each)})
        elif found:
            rows = [tuple((_row(each) | {"status": process_text(each)}).values()) for each in found]
            print_table(("ID", "WORKFLOW", "AT", "STEPS", "STATUS", "CHANGED"), rows)
        else:
            click.echo("no workflow runs", err=True)
        return 0

    return execute(body)


@workflow.command()
@click.argument("run_id", metavar="ID")
@click.option("--mermaid", is_flag=True, help="Print the workflow as a Mermaid diagram, with where it is.")
@with_session
def show(session: CommandSession, *, run_id: str, mermaid: bool) -> int:
    """Show one run: its state, the answers so far, and the nodes it waits for.

    \b
    Examples:
      sealbus workflow show 3f9a1c
      sealbus workflow show 3f9a1c --mermaid
    """
    settings = session.settings()

    async def body(_: object) -> int:
        async with opened_store(settings, None) as store:
            found = await chosen_process(store, run_id)
            waiting = await store.waits_of(found.id)
        state = _state_of(found)
        if state is None:
            click.echo("the run has ended, and its state is gone", err=True)
            return 0
        definition = parse_workflow(state.definition)
        progress = progress_of(definition, state.run)
        if mermaid:
            click.echo(mermaid_of_workflow(definition, progress))
        elif session.as_json:
            waits = [{"name": wait.name, "of": wait.addressee, "due_at": format_ms(wait.due_ms)} for wait in waiting]
            print_json(
                {
                    **_row(found),
                    **ended_members(found),
                    "sha256": state.sha256,
                    "run": msgspec.to_builtins(state.run),
                    "waits": waits,
                }
            )
        else:
            rows = [(node.id, type(node).__name__.lower(), progress.get(node.id, "-")) for node in definition.nodes]
            print_table(("NODE", "KIND", "STATE"), rows)
            for wait in waiting:
                click.echo(
                    f"waits for {printable(wait.name)} of {printable(wait.addressee or 'time')} until "
                    f"{format_ms(wait.due_ms)}"
                )
        return 0

    return execute(body)


workflow.add_command(cancel_process, "cancel")


def _row(process: Process) -> dict[str, Any]:
    state = _state_of(process)
    return {
        "id": process.id.hex()[:12],
        "workflow": "-" if state is None else str(state.definition.get("name", "-")),
        "at": "-" if state is None else state.run.at,
        "steps": process.version,
        "status": process.status,
        "changed_at": format_ms(process.changed_ms),
    }


def _state_of(process: Process) -> RunState | None:
    if not process.state:
        return None
    memory = msgspec.json.decode(process.state, type=Memory)
    return msgspec.convert(memory.data, RunState)


def _variable(text: str) -> tuple[str, Any]:
    name, value = name_and_value(text, "--set", "NAME=VALUE")
    try:
        return name, msgspec.json.decode(value)
    except msgspec.DecodeError:
        return name, value

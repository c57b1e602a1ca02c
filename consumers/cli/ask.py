"""`sealbus ask AGENT TEXT`: give an agent a task in words, watch it, and print what comes of it."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any, Final

import click
import msgspec

from bus.clock import SystemClock
from bus.protocol.identifiers import uuid7
from bus.telemetry.terminal import printable
from bus.vocabulary.task import TaskRequest, TaskResult
from consumers.cli.exit_codes import FAILED, LATER
from consumers.cli.io.parameter_types import DURATION_TYPE
from consumers.cli.io.printing import print_json
from consumers.cli.session import CommandSession, gathered, key_options, verb
from consumers.cli.shell import Command
from producers.requests.submitted import SubmittedTask, TaskEvent

__all__ = ["ask", "name_and_value", "new_task_id", "watch_task"]

_TIMEOUT_S: Final = 120.0


class TaskEnd(msgspec.Struct, frozen=True, kw_only=True):
    """The last message about a task."""

    message_id: str
    type: str
    data: Any


class _AskOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of the command."""

    receiver: str | None
    text: str | None
    agent: str | None
    key_file: Path | None
    timeout: float
    no_wait: bool
    handle: str | None
    inputs: tuple[str, ...]


@click.command(cls=Command)
@click.argument("receiver", metavar="AGENT", required=False)
@click.argument("text", metavar="TEXT", required=False)
@key_options
@click.option(
    "--timeout", type=DURATION_TYPE, default=_TIMEOUT_S, show_default="2m", help="How long the task may take."
)
@click.option("--no-wait", is_flag=True, help="Print the handle, and do not wait for the answer.")
@click.option("--resume", "handle", metavar="HANDLE", help="Follow a task that was asked before.")
@click.option("--input", "inputs", multiple=True, metavar="NAME=TEXT", help="Input of the work; repeatable.")
@verb(TaskEnd)
@gathered(_AskOptions)
async def ask(session: CommandSession, options: _AskOptions) -> int:
    """Give AGENT a task in words: task.request out, progress lines, task.result back.

    Progress goes to standard error, the result to standard output. With the handle another shell follows the task,
    also a day later: the answer stays in the log.

    \b
    Examples:
      sealbus ask researcher@svc "compare vector databases" --timeout 2m
      sealbus ask researcher@svc "compare vector databases" --timeout 1d --no-wait
      sealbus ask --resume eyJ0Ijoi...

    \b
    Exit codes: 0 completed, 1 failed, 75 no answer within the timeout.
    """
    if options.handle is None and (options.receiver is None or options.text is None):
        raise click.UsageError("give AGENT and TEXT, or --resume HANDLE")
    if options.handle is not None and options.receiver is not None:
        raise click.UsageError("one at a time: AGENT and TEXT, or --resume HANDLE")
    inputs_given = dict(name_and_value(each, "--input", "NAME=TEXT") for each in options.inputs)
    settings = session.settings_for(options.key_file)
    acting = session.acting_agent(settings, options.agent)
    session.announce()

    async with session.acting(settings, acting, create=options.handle is None) as bus:
        if options.handle is not None:
            task = bus.task(options.handle)
        else:
            request, number = TaskRequest(goal=options.text or "", inputs=inputs_given), new_task_id()
            to = options.receiver or ""
            task = await bus.submit(request, to=to, task_id=number, idempotency_key=number, ttl_s=options.timeout)
        notice = f"task {task.message_id}; to follow it in another shell: sealbus ask --resume {task.id}"
        return await watch_task(session, task, None if options.no_wait else notice)


def new_task_id() -> str:
    """Return the id of a task that a person begins."""
    return uuid7(SystemClock().now_ms(), os.urandom(10))


async def watch_task(session: CommandSession, task: SubmittedTask[Any], notice: str | None) -> int:
    """Print *notice* and the events of *task* until it ends; with None print only the handle. Return the exit code."""
    if notice is None:
        click.echo(task.id)
        return 0
    session.note(notice)
    async for event in task.events():
        if event.is_last:
            return _end(session, event)
        session.note(f"... {_progress(event)}")
        await asyncio.sleep(0)
    session.note("no answer within the timeout")
    return LATER


def _progress(event: TaskEvent) -> str:
    data = msgspec.json.decode(event.message.data)
    notice = data.get("message") or data.get("understood_goal") or "; ".join(data.get("questions", ()))
    state = data.get("new_status") or event.message.message_type
    return printable(f"{event.message.metadata.sender.id or '?'}: {state} {notice or ''}".rstrip())


def _end(session: CommandSession, event: TaskEvent) -> int:
    data, message = msgspec.json.decode(event.message.data), event.message
    if session.as_json:
        print_json(TaskEnd(message_id=message.message_id, type=message.message_type, data=data))
    elif isinstance(event.payload, TaskResult):
        click.echo(printable(event.payload.summary or msgspec.json.encode(event.payload.output or {}).decode()))
    else:
        text = data.get("error_message") or data.get("explanation") or msgspec.json.encode(data).decode()
        click.echo(printable(f"{message.message_type}: {text}"), err=not isinstance(event.payload, TaskResult))
    return 0 if data.get("status") == "completed" else FAILED


def name_and_value(text: str, option: str, form: str) -> tuple[str, str]:
    """Split *text* of the *option* at its first `=`. Raises BadParameter where it is not of that *form*."""
    name, separator, value = text.partition("=")
    if not separator or not name:
        raise click.BadParameter(f"{text!r} is not of the form {form}", param_hint=option)
    return name, value

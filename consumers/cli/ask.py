"""`sealbus ask AGENT TEXT`: give an agent a task in words, watch it, and print what comes of it.

With `--chat` each line of standard input is a task, and all are one conversation.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
import msgspec

from bus.clock import SystemClock
from bus.errors import BusError, ConfigurationError, ContractError
from bus.payloads.payload_types import payload_type
from bus.protocol.identifiers import uuid7
from bus.protocol.timestamps import parse_ms
from bus.redaction import cut, masked
from bus.telemetry.terminal import printable
from bus.trust.policy.globs import compile_globs
from bus.vocabulary.bus import WorkflowStart
from bus.vocabulary.task import StatusUpdate, TaskAccepted, TaskArtifact, TaskClarification, TaskRequest, TaskResult
from consumers.cli.exit_codes import FAILED, LATER
from consumers.cli.io.parameter_types import DURATION_TYPE
from consumers.cli.io.printing import print_json
from consumers.cli.io.stdin_lines import StdinLines
from consumers.cli.session import CommandSession, gathered, key_options, verb
from consumers.cli.shell import Command
from consumers.processes.approvals.approval_rows import SHORT_DIGITS
from consumers.processes.approvals.open_requests import action_of, request_of, within_of
from consumers.processes.approvals.people import people_with_keys
from producers.outcomes import PublishRejected
from producers.requests.progress import TaskEvent
from producers.requests.submitted import SubmittedTask

if TYPE_CHECKING:
    from bus.settings.schema import Settings
    from producers.connection import Bus

__all__ = ["TaskView", "ask", "name_and_value", "new_task_id"]

_TIMEOUT_S: Final = 120.0
_LIVES_S: Final = 86_400.0
_MAX_LINE: Final = 500
_PROMPT: Final = "you> "
_RESUMED: Final = (payload_type(TaskRequest), payload_type(WorkflowStart))
"""What is asked from a shell."""


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
    task_id: str | None
    inputs: tuple[str, ...]
    answers: tuple[str, ...]
    chat: bool


@click.command(cls=Command)
@click.argument("receiver", metavar="AGENT", required=False)
@click.argument("text", metavar="TEXT", required=False)
@key_options
@click.option(
    "--timeout", type=DURATION_TYPE, default=_TIMEOUT_S, show_default="2m", help="How long to wait for the answer."
)
@click.option("--no-wait", is_flag=True, help="Print the task id, and do not wait for the answer.")
@click.option("--resume", "task_id", metavar="TASK_ID", help="Follow a task that was asked before.")
@click.option("--input", "inputs", multiple=True, metavar="NAME=TEXT", help="Input of the work; repeatable.")
@click.option(
    "--answer",
    "answers",
    multiple=True,
    metavar="TEXT",
    help="With --resume: answer what the agent asks, one for each question in their order.",
)
@click.option("--chat", is_flag=True, help="One conversation: each line of standard input is a task.")
@verb(TaskEnd)
@gathered(_AskOptions)
async def ask(session: CommandSession, options: _AskOptions) -> int:
    """Give AGENT a task in words: task.request out, progress lines, task.result back.

    Progress goes to standard error, the result to standard output. Where the agent waits for a person, what it would do
    and the command to decide are shown. Where it asks you something, so are its questions and the command to answer;
    with --chat on a terminal the next lines are the answers. With the task id another shell follows the task,
    also a day later: it lives for a day, or for the timeout where that is longer, and its answer stays in the log.

    \b
    Examples:
      sealbus ask researcher@svc "compare vector databases" --timeout 2m
      sealbus ask researcher@svc "compare vector databases" --timeout 1d --no-wait
      sealbus ask researcher@svc --chat
      sealbus ask --resume 0198b1c2-7f3a-7c11-9d52-4e1f0a6b8c3d
      sealbus ask --resume 0198b1c2-7f3a-7c11-9d52-4e1f0a6b8c3d --answer dev

    \b
    Exit codes: 0 completed, 1 failed, 75 no answer within the timeout.
    """
    _check(options)
    inputs_given = dict(name_and_value(each, "--input", "NAME=TEXT") for each in options.inputs)
    settings = session.settings_for(options.key_file)
    acting = session.acting_agent(settings, options.agent)
    session.announce()

    async with session.acting(settings, acting, create=options.task_id is None) as bus:
        view = TaskView(session, bus, settings, options.timeout)

        async def give(goal: str, **given: Any) -> SubmittedTask[Any]:
            request, number = TaskRequest(goal=goal, inputs=inputs_given), new_task_id()
            to = options.receiver or ""
            lives_s = min(max(options.timeout, _LIVES_S), settings.publish.max_ttl_s)
            return await bus.submit(request, to=to, task_id=number, idempotency_key=number, ttl_s=lives_s, **given)

        if options.chat:
            return await _chat(view, give, options.text)
        if options.task_id is not None:
            task = bus.requests.reopen(options.task_id, _RESUMED)
            if options.answers:
                await view.answer(task, options.answers)
        else:
            task = await give(options.text or "")
        if options.no_wait:
            click.echo(task.id)
            return 0
        session.note(f"to follow it in another shell: sealbus ask --resume {printable(task.id)}")
        return await view.follow(task)


def _check(options: _AskOptions) -> None:
    if options.task_id is not None and (options.receiver is not None or options.chat):
        raise click.UsageError("one at a time: AGENT and TEXT, or --resume TASK_ID")
    if options.answers and options.task_id is None:
        raise click.UsageError("--answer goes with --resume TASK_ID")
    if options.chat and options.no_wait:
        raise click.UsageError("--chat waits for each answer: leave --no-wait out")
    if options.task_id is None and (options.receiver is None or (options.text is None and not options.chat)):
        raise click.UsageError("give AGENT and TEXT, AGENT and --chat, or --resume TASK_ID")


async def _chat(view: TaskView, give: Callable[..., Awaitable[SubmittedTask[Any]]], first: str | None) -> int:
    """Give a task for *first* and for each line, in one conversation; return the worst exit code of a turn."""
    session, lines, code = view.session, StdinLines(), 0
    conversation = new_task_id()
    is_typed = sys.stdin.isatty()
    if is_typed:
        view.lines = lines
    session.note(f"conversation {conversation}{'; Ctrl-D ends it' if is_typed else ''}")
    goal = first
    while True:
        if goal is None:
            if is_typed:
                click.echo(_PROMPT, nl=False, err=True)
            goal = await lines.next()
        if goal is None:
            if is_typed:
                click.echo(err=True)
            return code
        if goal.strip():
            try:
                task = await give(goal, conversation_id=conversation)
                ended = await view.follow(task)
                if ended == LATER:
                    session.note(f"to follow it in another shell: sealbus ask --resume {task.id}")
                code = ended or code
            except PublishRejected as error:
                # What cannot be sent is no end of the conversation.
                session.note(f"not sent: {printable(str(error))}")
                code = FAILED
        goal = None


def new_task_id() -> str:
    """Return the id of a task that a person begins."""
    return uuid7(SystemClock().now_ms(), os.urandom(10))


class TaskView:
    """Shows tasks that *bus* has submitted, each for at most *timeout_s* seconds; None: as long as it lives."""

    def __init__(self, session: CommandSession, bus: Bus, settings: Settings, timeout_s: float | None = None) -> None:
        self.session = session
        self._bus = bus
        self._settings = settings
        self._timeout_s = timeout_s
        self._answered: set[str] = set()
        self.lines: StdinLines | None = None
        """The lines that a person types, where questions are answered at once; None: elsewhere."""

    async def answer(self, task: SubmittedTask[Any], answers: Sequence[str]) -> None:
        """Answer what the agent of *task* asks. Raises BusError."""
        if (question := await task.question()) is not None:
            self._answered.add(question.message.message_id)
        await task.answer(answers, question=question)

    async def follow(self, task: SubmittedTask[Any]) -> int:
        """Print the events of *task* until it ends. Return the exit code."""
        was_heard = False
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._timeout_s):
                async for event in task.events():
                    if event.is_last:
                        return _end(self.session, event)
                    was_heard = True
                    await self._show(event, task)
                    await asyncio.sleep(0)
        hint = "" if was_heard else "; no agent has begun it: `sealbus agent list` shows which are at work"
        self.session.note(f"no answer within the timeout{hint}")
        return LATER

    async def _show(self, event: TaskEvent, task: SubmittedTask[Any]) -> None:
        self.session.note(f"... {_progress(event)}")
        match event.payload:
            case StatusUpdate(approval_id=str(approval)):
                for line in await self._waiting_for(approval):
                    self.session.note(f"    {line}")
            case TaskClarification() if event.message.routing.reply_to is not None:
                await self._asked(event, task)

    async def _asked(self, event: TaskEvent, task: SubmittedTask[Any]) -> None:
        """Show how to answer the question *event*, or take the answers that are typed."""
        is_open = (parse_ms(event.message.routing.expires_at) or 0) > SystemClock().now_ms()
        if event.message.message_id in self._answered or not is_open:
            return
        questions, options = event.payload.questions, event.payload.options
        if options:
            self.session.note(f"    options: {printable(cut(', '.join(options), _MAX_LINE))}")
        if self.lines is None:
            words = " ".join(["--answer TEXT"] * len(questions))
            self.session.note(f"    answer: sealbus ask --resume {shlex.quote(printable(task.id))} {words}")
            return
        answers = []
        for question in questions:
            click.echo(f"{printable(cut(question, _MAX_LINE))} ", nl=False, err=True)
            if (line := await self.lines.next()) is None:
                return
            answers.append(line)
        with contextlib.suppress(ContractError):
            # Its time may be over by now.
            await task.answer(answers, question=event)

    async def _waiting_for(self, approval: str) -> list[str]:
        """Return what waits and how to decide, as the request in the log says it and not the agent."""
        try:
            found = await request_of(self._bus.transport, self._settings, approval)
        except BusError:
            found = None
        if found is None or found.request.approval_id != approval:
            return ["no such approval is in the log yet: sealbus approval list"]
        within = within_of(action_of(found.message))
        what = (
            f"{within.get('tool')} {msgspec.json.encode(masked(within.get('arguments', {}))).decode()}"
            if within
            else found.request.action.description
        )
        people = self._people(found.request.approvers)
        person = f" --as {shlex.quote(people[0])}" if len(people) == 1 else ""
        return [
            # Who reports it may have heard of it from another agent.
            f"{found.message.metadata.sender.id or '?'} wants to: {printable(cut(what, _MAX_LINE))}",
            f"decide: sealbus approval approve {found.digits[:SHORT_DIGITS]}{person}",
        ]

    def _people(self, approvers: Sequence[str]) -> list[str]:
        """Return the people with keys here who may decide, as far as *approvers* names them."""
        try:
            known, named = people_with_keys(self._settings), compile_globs(approvers)
        except ConfigurationError:
            return []
        return [each for each in known if not approvers or named.match(each)]


def _progress(event: TaskEvent) -> str:
    """Return the line about *event*, with its texts, which no terminal and no shell may obey."""
    sender = event.message.metadata.sender.id or "?"
    match event.payload:
        case StatusUpdate(new_status=status, progress_pct=pct, message=text):
            parts = [status, "" if pct is None else f"{pct} %", text]
        case TaskAccepted(understood_goal=goal):
            parts = ["accepted:", goal]
        case TaskClarification(questions=questions):
            parts = ["asks:", *questions]
        case TaskArtifact(artifact_id=artifact, name=name, index=index):
            parts = ["part", str(index), "of", name or artifact]
        case _:
            parts = [event.message.message_type, event.message.data.decode("utf-8", "replace")]
    return printable(cut(" ".join([f"{sender}:", *filter(None, parts)]), _MAX_LINE))


def _end(session: CommandSession, event: TaskEvent) -> int:
    data, message = msgspec.json.decode(event.message.data), event.message
    if session.as_json:
        print_json(TaskEnd(message_id=message.message_id, type=message.message_type, data=data))
    elif isinstance(event.payload, TaskResult):
        click.echo(_shown(event.payload.summary or msgspec.json.encode(event.payload.output or {}).decode()))
    else:
        code = f" ({data['error_code']})" if data.get("error_code") else ""
        text = data.get("error_message") or data.get("explanation") or msgspec.json.encode(data).decode()
        click.echo(printable(f"{message.message_type}{code}: {text}"), err=True)
        if cause := message.metadata.causation_id or message.metadata.correlation_id:
            session.note(f"why, and what to do: sealbus show {shlex.quote(printable(cause))}")
    return 0 if data.get("status") == "completed" else FAILED


def _shown(answer: str) -> str:
    """Return *answer* with its lines. On a terminal all but the first are indented: none looks like one of ours."""
    text = printable(answer, keep="\n\t")
    return text.replace("\n", "\n  ") if sys.stdout.isatty() else text


def name_and_value(text: str, option: str, form: str) -> tuple[str, str]:
    """Split *text* of the *option* at its first `=`. Raises BadParameter where it is not of that *form*."""
    name, separator, value = text.partition("=")
    if not separator or not name:
        raise click.BadParameter(f"{text!r} is not of the form {form}", param_hint=option)
    return name, value

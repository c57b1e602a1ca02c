"""Approvals: what waits for a decision, exactly what will run, what the run had read, and deciding."""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, TypeAlias
from urllib.parse import quote

import msgspec
from litestar import Response, get, post
from litestar.response import Redirect

from bus.artifacts.store import artifact_store
from bus.errors import BusError
from bus.protocol.identifiers import uuid7_ms
from bus.protocol.sealing import Message
from bus.protocol.timestamps import parse_ms
from bus.topics.names import group_of_agent
from bus.vocabulary.parts import Ref
from consumers.operations.console.model import Console, NotRead
from consumers.operations.console.pages.frame import (
    DataLine,
    PageRequest,
    console_of,
    data_lines,
    page_of,
    parameter,
    posted_form,
    problem,
)
from consumers.operations.console.pages.trust import trust_views
from consumers.operations.console.sequence import StateMark
from consumers.operations.lineage.log_search import find_lineage
from consumers.operations.lineage.run_steps import StepResult, step_results
from consumers.operations.survey.look_up import trace_up
from consumers.operations.survey.trust_view import TrustView
from consumers.processes.approvals.approval_rows import SHORT_DIGITS, end_of_approval
from consumers.processes.approvals.deciding import DecisionVerb, decision_about, seal_decision
from consumers.processes.approvals.open_requests import (
    OpenRequest,
    action_of,
    agrees,
    held_message,
    open_requests,
    within_of,
)
from producers.connection import connect

__all__ = ["APPROVALS_ROUTES", "approvals_of"]

_MAX_CLOSED: Final = 50
_MAX_READ: Final = 40
_LIST: Final = ("/approvals", "All approvals")
_APPROVED: Final = frozenset({"approved", "consumed"})
_FROM_OUTSIDE: Final = "untrusted_content"

DiffKind: TypeAlias = Literal["del", "ins", "i"]


class AskedApproval(NamedTuple):
    """One open approval in a list. Its texts are untrusted."""

    found: OpenRequest
    id: str
    title: str
    agent: str
    asked_ms: int
    until_ms: int
    left: float
    """The rest of its time, in percent."""
    risk: str


class ReadStep(NamedTuple):
    """One message that the run rests on, from the first one on."""

    message_type: str
    sender: str
    level: str
    """How far it is trusted; empty: it does not verify, or keys cannot be read."""
    problem: str
    message_id: str
    is_outside: bool


class Read(NamedTuple):
    """What a run rests on, as far as it is stored."""

    steps: list[ReadStep]
    left_out: int
    """Trusted ones of many that are not shown."""
    is_whole: bool
    """False: causes before the first one are not stored."""
    results: Sequence[StepResult] | NotRead
    """What its own steps have returned so far."""


class _Box(NamedTuple):
    """One approval as it is decided."""

    found: OpenRequest
    id: str
    tool: str
    """The step that would be called; empty where the whole message would be handled."""
    arguments: list[DataLine]
    is_large: bool
    """Whether the arguments are in the artifact store."""
    lines: list[DataLine]
    invisible: int
    agrees: bool
    difference: list[tuple[DiffKind, str]]
    """Its packet against the last one of its type that was approved; empty: there is none."""
    last_by: str


async def approvals_of(console: Console, *, closed: bool = False) -> list[OpenRequest]:
    """Return the open approvals, those that end first before others; with *closed* also those that have ended."""
    found = await open_requests(
        console.transport,
        console.settings.bus.namespace,
        verifier=console.verifier(),
        clock=console.clock,
        closed=closed,
    )
    return sorted(found, key=lambda each: each.message.routing.expires_at)


def _asked(found: OpenRequest, now_ms: int) -> AskedApproval:
    action = found.request.action
    begin_ms = parse_ms(found.message.metadata.timestamp) or now_ms
    until_ms = parse_ms(found.message.routing.expires_at) or now_ms
    return AskedApproval(
        found=found,
        id=found.digits[:SHORT_DIGITS],
        title=_title(found),
        agent=action.sender or found.message.metadata.sender.id or "?",
        asked_ms=begin_ms,
        until_ms=until_ms,
        left=100 * max(0, until_ms - now_ms) / max(1, until_ms - begin_ms),
        risk=found.request.risk_assessment.risk_level,
    )


def _title(found: OpenRequest) -> str:
    """Return what would run, in words of the bus: never the requester's, where the packet is of a held message."""
    action = found.request.action
    if tool := (action.within or {}).get("tool"):
        return f"Call {tool}"
    # The handler's declaration, filled from the packet.
    return action.description if action.message_type else f"{action.type}, asked for by an agent"


@get("/approvals")
async def approvals_page(request: PageRequest) -> Response[str]:
    """Show what waits for a decision, and what was decided."""
    console = console_of(request)
    now_ms = console.clock.now_ms()
    everything = await approvals_of(console, closed=True)
    opened = [_asked(each, now_ms) for each in everything if each.is_open]
    ended = sorted(
        (each for each in everything if not each.is_open),
        key=lambda each: each.message.metadata.timestamp,
        reverse=True,
    )
    return page_of(
        request,
        "approvals.html",
        found=opened,
        ended=[(_asked(each, now_ms), _ended(each)) for each in ended[:_MAX_CLOSED]],
        ended_count=len(ended),
        person=console.person,
    )


@get("/approvals/show")
async def approval(request: PageRequest) -> Response[str]:
    """Show the action packet as it will run, and how to decide."""
    identity = parameter(request, "id")
    console = console_of(request)
    everything = await approvals_of(console, closed=True)
    opened = [each for each in everything if each.is_open]
    matching = [each for each in everything if identity and each.digits.startswith(identity)]
    found = next((each for each in matching if each.is_open), matching[-1] if matching else None)
    if found is None:
        return problem(request, f"no approval begins with {identity}", "it is older than the log", link=_LIST)
    pending = await held_message(console.transport, console.settings.bus.namespace, found)
    # A run may ask for several at once: they are decided on one page.
    others = [each for each in opened if each is not found and each.request.seal == found.request.seal is not None]
    now_ms = console.clock.now_ms()
    return page_of(
        request,
        "approval.html",
        asked=_asked(found, now_ms),
        ended=None if found.is_open else _ended(found),
        boxes=[_box(each, pending, _last_approved(each, everything)) for each in (found, *others)],
        pending=pending,
        read=await _read_by(console, pending),
        person=console.person,
        id=found.digits[:SHORT_DIGITS],
    )


def _ended(found: OpenRequest) -> StateMark:
    """Return how a request has ended, in a word."""
    closing = found.closing
    is_approved = closing is not None and closing.state in _APPROVED
    is_decided = closing is not None and bool(closing.decided_by)
    return StateMark("ok" if is_approved else "dead" if is_decided else "off", end_of_approval(found))


def _last_approved(found: OpenRequest, everything: Sequence[OpenRequest]) -> OpenRequest | None:
    """Return the newest request for the same type and the same agent that was approved."""
    action = found.request.action
    same = [
        each
        for each in everything
        if each.closing is not None
        and each.closing.state in _APPROVED
        and each.request.action.message_type == action.message_type
        and each.request.action.sender == action.sender
        and (each.request.action.within or {}).get("tool") == (action.within or {}).get("tool")
    ]
    return max(same, key=lambda each: each.message.metadata.timestamp, default=None)


async def _read_by(console: Console, pending: Message | None) -> Read | None:
    """Return the messages that the held one rests on, the first one first; None where that was not looked at.

    These are its causes, and the answers that a run on the way had got before it sent the next one.
    """
    if pending is None:
        return None
    async with console.looked:
        traced = await trace_up(console.transport, console.settings, pending.metadata.conversation_id)
    by_id = {copy.message_id: copy.message for copy in reversed(traced.search.copies) if copy.message is not None}
    line = _line_of_causes(pending.message_id, by_id)
    if len(line) == 1 and pending.metadata.causation_id:
        # Its causes are in other conversations.
        async with console.looked:
            lineage = await find_lineage(
                console.transport,
                console.settings.bus.namespace,
                pending.message_id,
                moment_ms=uuid7_ms(pending.message_id),
            )
        by_id |= {copy.message_id: copy.message for copy in reversed(lineage.copies) if copy.message is not None}
        line = _line_of_causes(pending.message_id, by_id)
        copies = [*traced.search.copies, *lineage.copies]
    else:
        copies = list(traced.search.copies)
    read = list[str]()
    for cause, effect in itertools.pairwise(line):
        read += [cause, *_answers_before(by_id[effect], cause, by_id)]
    read += line[-1:]
    views = await trust_views(console, read, copies)
    steps = [_step(by_id[each], views.get(each)) for each in read]
    first = by_id[line[0]].metadata.causation_id if line else None
    shown = _shown(steps)
    return Read(shown, len(steps) - len(shown), is_whole=not first, results=await _results_of(console, pending))


async def _results_of(console: Console, pending: Message) -> Sequence[StepResult] | NotRead:
    """Return what the steps of the run that waits with *pending* have returned so far."""
    groups = [] if console.survey is None else [group.name for group in console.survey.groups]
    if pending.metadata.recipient is not None and pending.metadata.recipient.id:
        groups.insert(0, group_of_agent(pending.metadata.recipient.id))
    namespace = console.settings.bus.namespace
    return await console.of_processes(lambda store: step_results(store.inbox, pending, namespace, groups))


def _shown(steps: Sequence[ReadStep]) -> list[ReadStep]:
    """Return *steps*; of many the last ones, and all that a person must see."""
    cut = len(steps) - _MAX_READ
    return [step for at, step in enumerate(steps) if at >= cut or step.is_outside or step.problem]


def _line_of_causes(identity: str, by_id: Mapping[str, Message]) -> list[str]:
    """Return the ids from the first known cause of a message to itself."""
    line = list[str]()
    while identity in by_id and identity not in line:
        line.append(identity)
        identity = by_id[identity].metadata.causation_id or ""
    return line[::-1]


def _answers_before(effect: Message, cause: str, by_id: Mapping[str, Message]) -> list[str]:
    """Return the answers that the run which sent *effect* had got for what it asked, in the order of time."""
    agent, when = effect.metadata.sender.id, effect.metadata.timestamp
    asked = {
        each.message_id
        for each in by_id.values()
        if each.metadata.causation_id == cause and each.metadata.sender.id == agent
    }
    answers = [
        each
        for each in by_id.values()
        if each.metadata.causation_id in asked
        and each.metadata.recipient is not None
        and each.metadata.recipient.id == agent
        and each.metadata.timestamp <= when
    ]
    return [each.message_id for each in sorted(answers, key=lambda each: each.metadata.timestamp)]


def _step(message: Message, view: TrustView | None) -> ReadStep:
    security = message.metadata.security
    level = view.level if view is not None and view.valid else ""
    claims = bool(security is not None and security.contains_untrusted_content)
    return ReadStep(
        message_type=message.message_type,
        sender=message.metadata.sender.id or "?",
        level=level,
        problem="" if view is None or view.valid else f"{view.reason}: {view.detail}",
        message_id=message.message_id,
        is_outside=claims or level == _FROM_OUTSIDE,
    )


@get("/approvals/arguments")
async def approval_arguments(request: PageRequest) -> Response[str]:
    """Show the arguments of a step that are too large for its request, from the artifact store."""
    identity, console = parameter(request, "id"), console_of(request)
    opened = await approvals_of(console)
    found = next((each for each in opened if identity and each.digits.startswith(identity)), None)
    named = {} if found is None else within_of(action_of(found.message)).get("arguments", {}).get("artifact")
    if not isinstance(named, dict):
        return problem(request, f"no open approval {identity} has arguments in the artifact store", code=404)
    try:
        data = await artifact_store(console.settings).open(msgspec.convert(named, Ref))
        value = msgspec.json.decode(data)
    except (BusError, OSError, msgspec.MsgspecError) as error:
        return problem(request, f"the arguments cannot be shown: {error}", "reject it, or look at artifacts.url")
    return page_of(request, "arguments.html", lines=data_lines(value), invisible=_invisible(value), id=identity)


def _box(found: OpenRequest, pending: Message | None, last: OpenRequest | None) -> _Box:
    action = action_of(found.message)
    within = within_of(action)
    return _Box(
        found=found,
        id=found.digits[:SHORT_DIGITS],
        tool=str(within.get("tool", "")),
        arguments=data_lines(within.get("arguments", {})),
        is_large="artifact" in within.get("arguments", {}),
        lines=data_lines(action),
        invisible=_invisible(action),
        agrees=pending is not None and agrees(found.message, pending),
        difference=[] if last is None else _difference(_subject(action_of(last.message)), _subject(action)),
        last_by="" if last is None or last.closing is None else ", ".join(last.closing.decided_by),
    )


def _subject(action: dict[str, Any]) -> Any:
    """Return the part of a packet that differs between two actions of one type."""
    within = within_of(action)
    return within.get("arguments", {}) if within else action.get("data", {})


def _difference(before: Any, now: Any) -> list[tuple[DiffKind, str]]:
    """Return the lines of *now* against those of *before*: gone, new, or the same."""
    old, new = ([line.text for line in data_lines(each)] for each in (before, now))
    kinds: dict[str, DiffKind] = {"-": "del", "+": "ins", " ": "i"}
    return [(kinds[line[0]], line[2:]) for line in difflib.ndiff(old, new) if line[0] in kinds]


def _invisible(action: Any) -> int:
    """Return the number of invisible characters in *action*, which are shown as escapes."""
    return sum(not char.isprintable() for char in msgspec.json.encode(action).decode())


@get("/approvals/decide")
async def after_decision(request: PageRequest) -> Redirect:  # noqa: ARG001 - the form of a route
    """Lead a browser that loads the answer of a decision again to the list."""
    return Redirect("/approvals", status_code=303)


@post("/approvals/decide")
async def decide_approval(request: PageRequest) -> Response[Any]:
    """Decide as the person whose key this console has."""
    console = console_of(request)
    fields, refused = await posted_form(request, "approve")
    if refused is not None:
        return refused
    if not console.person or console.person_settings is None:
        return problem(request, "this console has no person's key", "use the command on the page", code=403)
    id_ = fields.get("id", "")
    matching = [each for each in await approvals_of(console, closed=True) if id_ and each.digits.startswith(id_)]
    found = next((each for each in matching if each.is_open), None)
    back = (f"/approvals/show?id={quote(id_, safe='')}", "Back to the approval")
    if found is None:
        how = f"it was {_ended(matching[-1]).word}" if matching else "it is older than the log"
        return problem(request, "that approval is not open any more", how, code=410, link=back if matching else _LIST)
    pending = await held_message(console.transport, console.settings.bus.namespace, found)
    verb: DecisionVerb = "approve" if fields.get("act") == "approve" else "reject"
    reason = fields.get("reason", "").strip()
    members: dict[str, Any] = {} if verb == "approve" else {"reason": reason}
    if verb == "approve":
        if pending is None or not agrees(found.message, pending):
            return problem(request, "the packet differs from the waiting message", "reject it", code=409, link=back)
        if not found.is_named_by("".join(fields.get("digits", "").split()).lower()):
            return problem(
                request, "those are not the first 8 digits of its hash", "read it again", code=409, link=back
            )
    elif not reason:
        return problem(request, "a rejection needs a reason", "the requester reads it", code=400, link=back)
    async with connect(settings=console.person_settings, agent=console.person) as bus:
        if not bus.publisher.sealer.signs:
            return problem(request, "the person's key cannot be used: a decision is signed", code=403)
        decision = decision_about(found.message, verb, by=console.person, **members)
        await bus.publisher.send(seal_decision(bus.publisher.sealer, decision, found.message))
    return Redirect("/approvals", status_code=303)


APPROVALS_ROUTES = (approvals_page, approval, approval_arguments, after_decision, decide_approval)

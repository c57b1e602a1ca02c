"""Pages of the console: the content of each one, from the model, the log and the audit.

Owns the routes and the choice of facts. Templates escape; untrusted text never becomes markup, a link or part of a
path.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from typing import Any, Final, NamedTuple

import msgspec
from litestar import MediaType, Request, Response, get, post
from litestar.response import Redirect, ServerSentEvent

from bus.artifacts.store import artifact_store
from bus.errors import BusError, ConfigurationError, TopicMissingError
from bus.protocol.identifiers import is_message_id
from bus.protocol.sealing import Message
from bus.protocol.timestamps import format_ms
from bus.redaction import cut, masked, masked_member, redacted
from bus.topics.names import message_topic, read_topic
from bus.transports.base import Record
from bus.vocabulary.parts import Ref
from consumers.deadletters.causes import cause_of
from consumers.deadletters.diagnosis import examine
from consumers.deadletters.letter_state import state_of
from consumers.deadletters.letters import read_dead_letter
from consumers.deadletters.selection import Selection
from consumers.operations.audit.queries import QUERIES, answer_question
from consumers.operations.console.access import BrowserSession, BrowserSessions
from consumers.operations.console.graph import graph_of
from consumers.operations.console.model import Console
from consumers.operations.console.rendering import render
from consumers.operations.lineage.log_search import stored_copy
from consumers.operations.lineage.proofs import risk_in
from consumers.operations.survey.explanation import explain_message
from consumers.operations.survey.letter_watch import CauseCount, LetterWatch, WantedLetters
from consumers.operations.survey.look_up import look_up, looked_in_words, timeline_of_traced, trace_up
from consumers.operations.survey.verdicts import of_group
from consumers.processes.approvals.deciding import DecisionVerb, decision_about, seal_decision
from consumers.processes.approvals.open_requests import (
    OpenRequest,
    action_of,
    agrees,
    held_message,
    open_requests,
    within_of,
)
from consumers.processes.sagas.opening import opened_store
from consumers.processes.sagas.process import ending_of
from producers.connection import connect

__all__ = ["COOKIE", "ROUTES"]

COOKIE: Final = "sealbus-console"
_PAGE: Final = 50
_MAX_ROWS: Final = 500
_NEWEST: Final = 40
_TAILED: Final = 20
_MAX_DIGITS: Final = 15
_FILTERS: Final = {"cause": "", "type": "", "reason": "", "sender": "", "state": "open"}
_EVENT_S: Final = 10.0
_ID_DIGITS: Final = 12

_Request = Request[Any, Any, Any]


def _console(request: _Request) -> Console:
    found: Console = request.app.state.console
    return found


def _sessions(request: _Request) -> BrowserSessions:
    found: BrowserSessions = request.app.state.sessions
    return found


def _session(request: _Request) -> BrowserSession | None:
    return _sessions(request).find(request.cookies.get(COOKIE), _console(request).clock.monotonic_s())


def _page(request: _Request, name: str, *, code: int = 200, **facts: Any) -> Response[str]:
    console = _console(request)
    about = {
        "path": request.url.path,
        "session": _session(request),
        "namespace": console.settings.bus.namespace,
        "survey": console.survey,
        "faults": sum(each.state == "fault" for each in console.checks),
        "version": console.version,
    }
    return Response(render(name, **about, **facts), media_type=MediaType.HTML, status_code=code)


def _problem(request: _Request, text: str, cure: str = "", *, code: int = 404) -> Response[str]:
    return _page(request, "problem.html", text=text, cure=cure, code=code)


def _parameter(request: _Request, name: str, default: str = "") -> str:
    """Return the parameter *name* of the address."""
    found: str = request.query_params.get(name, default)
    return found


def _number(text: str) -> int:
    return int(text) if _is_number(text) else 1


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS


async def _form(request: _Request, scope: str) -> tuple[dict[str, str], Response[Any] | None]:
    """Return the fields that were posted, and the answer where they must not act."""
    fields = {name: str(value) for name, value in (await request.form()).items()}
    session = _session(request)
    if session is None:
        back = request.headers.get("referer", "").partition("//")[2].partition("/")[2]
        return fields, Redirect(f"/login?next=/{back}" if back else "/login", status_code=303)
    if scope not in session.scopes:
        return fields, _problem(request, f"the token of {session.name} has no scope {scope}", code=403)
    if fields.get("csrf") != session.csrf:
        return fields, _problem(request, "this form is of an earlier session", "load the page again", code=403)
    return fields, None


@get("/")
async def overview(request: _Request) -> Response[str]:
    """Show the current problems, most urgent first."""
    console = _console(request)
    return _page(
        request,
        "overview.html",
        checks=console.checks,
        places=_PLACES,
        hints=sum(each.state == "hint" for each in console.checks),
        hint_areas=list(dict.fromkeys(each.area for each in console.checks if each.state == "hint")),
        looked=format_ms(console.looked_ms) if console.looked_ms else "",
        unseen=sum(each.state == "unknown" for each in console.checks),
    )


_PLACES: Final = {
    "letters": "/letters",
    "groups": "/groups",
    "agents": "/agents",
    "processes": "/processes",
    "approvals": "/approvals",
}


@get("/login")
async def login_page(request: _Request) -> Response[str]:
    """Ask for a token."""
    back = _parameter(request, "next", "/")
    return _page(request, "login.html", next=_local(back), failed=False)


@post("/login")
async def login(request: _Request) -> Response[Any]:
    """Begin a session for the holder of a token."""
    fields = {name: str(value) for name, value in (await request.form()).items()}
    identity = _sessions(request).begin(fields.get("token", ""), _console(request).clock.monotonic_s())
    if identity is None:
        await asyncio.sleep(1.0)
        return _page(request, "login.html", next=_local(fields.get("next", "/")), failed=True, code=403)
    answer_ = Redirect(_local(fields.get("next", "/")), status_code=303)
    is_tls = bool(request.app.state.is_tls)
    answer_.set_cookie(COOKIE, identity, httponly=True, samesite="strict", secure=is_tls, path="/")
    return answer_


@post("/logout")
async def logout(request: _Request) -> Response[Any]:
    """End the session."""
    _, refused = await _form(request, "read")
    if refused is not None:
        return refused
    _sessions(request).end(request.cookies.get(COOKIE))
    return Redirect("/", status_code=303)


def _local(path: str) -> str:
    """Return *path* where it is one of the console's own."""
    return path if path.startswith("/") and not path.startswith(("//", "/\\")) and "\n" not in path else "/"


@get("/letters")
async def letters(request: _Request) -> Response[str]:
    """Show dead letters by cause, and a page of them."""
    page = _number(_parameter(request, "page", "1"))
    filters = {name: request.query_params.get(name, default) for name, default in _FILTERS.items()}
    wanted = WantedLetters(
        cause=filters["cause"],
        message_type=filters["type"],
        reason=filters["reason"],
        sender=filters["sender"],
        state=filters["state"],
    )
    watch = await _console(request).letters()
    found = None if watch is None else await watch.page(wanted, page, _PAGE)
    return _page(request, "letters.html", found=found, filters=filters, when=format_ms)


@get("/letters/show")
async def letter(request: _Request) -> Response[str]:
    """Show one dead letter: its reason, the field, its history and its content."""
    location = _parameter(request, "place")
    console = _console(request)
    record = await _record_at(console, location)
    if record is None:
        return _problem(request, f"no dead letter at {location}", "retention may have taken it")
    found = read_dead_letter(record)
    known = await console.letter_state(found.place)
    finding = examine(
        found,
        await console.registry(),
        namespace=console.settings.bus.namespace,
        max_message_bytes=console.settings.publish.max_message_bytes,
    )
    data = None if found.message is None else msgspec.json.decode(found.message.data)
    copy = stored_copy(record, "dlq")
    described = explain_message(copy.message_id, [copy], [(found, known, finding)])
    watch = await console.letters()
    listed = None if watch is None else watch.letter_at(found.place)
    return _page(
        request,
        "letter.html",
        letter=found,
        state=state_of(found, known),
        error=redacted(found.error),
        cause=cause_of(found).name if listed is None else listed.cause_name,
        steps=() if known is None else known.steps,
        finding=finding,
        described=described,
        lines=_lines(masked(data), found.pointer.removeprefix("/data")),
        headers=[(cut(name, 1_000), masked_member(name, _text_of_bytes(value))) for name, value in record.headers],
    )


async def _record_at(console: Console, location: str) -> Record | None:
    topic, *rest = location.rsplit("/", 2)
    name = read_topic(topic)
    if name is None or name.kind != "dlq" or len(rest) != 2 or not all(_is_number(part) for part in rest):  # noqa: PLR2004
        return None
    try:
        found = await console.transport.read(
            topic, int(rest[0]), int(rest[1]), max_records=1, max_bytes=16 << 20, wait_s=0.5
        )
    except BusError:
        return None
    return found[0] if found and found[0].offset == int(rest[1]) else None


class _Line(msgspec.Struct, frozen=True):
    """A line of a payload; *is_meant*: the field that was refused."""

    text: str
    is_meant: bool


def _text_of_bytes(value: bytes) -> str:
    return value.decode("utf-8", "backslashreplace")


def _lines(value: Any, pointer: str, here: str = "", indent: int = 0, name: str = "") -> list[_Line]:
    """Return *value* as lines of JSON, in which the one at *pointer* is marked."""
    margin, label = "  " * indent, f"{_text(name)}: " if name else ""
    is_meant = bool(pointer) and here == pointer
    if isinstance(value, dict | list) and value:
        members = value.items() if isinstance(value, dict) else enumerate(value)
        opens, closes = "{}" if isinstance(value, dict) else "[]"
        lines = [_Line(f"{margin}{label}{opens}", is_meant)]
        for key, each in members:
            at = f"{here}/{str(key).replace('~', '~0').replace('/', '~1')}"
            lines += _lines(each, pointer, at, indent + 1, str(key) if isinstance(value, dict) else "")
        missing = pointer.rpartition("/")
        if pointer and missing[0] == here and isinstance(value, dict) and missing[2] not in value:
            lines.append(_Line(f"{margin}  {_text(missing[2])}: (missing)", True))
        return [*lines, _Line(f"{margin}{closes}", False)]
    return [_Line(f"{margin}{label}{_text(value)}", is_meant)]


def _text(value: Any) -> str:
    return msgspec.json.encode(value).decode()


@get("/letters/redrive")
async def redrive_page(request: _Request) -> Response[str]:
    """Show the letters that a redrive would send, and ask for the reason."""
    cause = _parameter(request, "cause")
    location = _parameter(request, "place")
    console = _console(request)
    watch = await console.letters()
    causes = [] if watch is None else await _meant(watch, cause, location)
    if not causes:
        return _problem(request, "no open dead letter matches", "they may have been sent back already", code=410)
    groups = {each.cause.group for each in causes}
    workers = {group.name: group.members for group in (console.survey.groups if console.survey is not None else ())}
    return _page(
        request,
        "redrive.html",
        letters=sum(each.count for each in causes),
        cause=causes[0].cause,
        sender=causes[0].sender,
        cause_name=cause,
        place=location,
        groups=[(group, workers.get(group, 0)) for group in sorted(groups) if group],
    )


async def _meant(watch: LetterWatch, cause: str, location: str) -> Sequence[CauseCount]:
    """Return the causes of the open letters of *cause* or at *location*, with how many are meant."""
    if not location:
        return (await watch.page(WantedLetters(cause=cause), 1, _PAGE)).causes if cause else ()
    found = watch.letter_at(location)
    if found is None or found.state != "open" or cause not in ("", found.cause_name):
        return ()
    return (CauseCount(cause=found.cause, name=found.cause_name, sender=found.sender, count=1),)


@post("/letters/redrive")
async def start_redrive(request: _Request) -> Response[Any]:
    """Start a redrive, or count its letters."""
    fields, refused = await _form(request, "redrive")
    if refused is not None:
        return refused
    cause, location, why = fields.get("cause", ""), fields.get("place", ""), fields.get("why", "").strip()[:_MAX_ROWS]
    is_dry = fields.get("act") == "count"
    if not cause and not location:
        return _problem(request, "no dead letters are selected", code=400)
    if not why and not is_dry:
        return _problem(request, "a redrive needs a reason", "enter what was fixed", code=400)
    watch = await _console(request).letters()
    selection = Selection(
        cause=cause or None,
        # What the page has shown is meant, as it was told apart there.
        causes=watch.causes if watch is not None and watch.is_whole else None,
        places=frozenset([location] if location else []),
        states=frozenset({"open"}),
    )
    session = _session(request)
    who = session.name if session is not None else ""
    run = _console(request).start_redrive(selection, who=who, why=why, is_dry=is_dry)
    return Redirect(f"/runs/{run.number}", status_code=303)


@get("/runs/{number:int}")
async def run_page(request: _Request) -> Response[str]:
    """Show how far a redrive is."""
    number = int(request.path_params["number"])
    run = _console(request).runs.get(number)
    if run is None:
        return _problem(request, f"no redrive {number} since this console started")
    counts = sorted((run.plan.counts if run.plan is not None else {}).items(), key=lambda item: -item[1])
    return _page(request, "run.html", run=run, counts=counts)


@get("/conversations")
async def conversations(request: _Request) -> Response[str]:
    """Show a conversation: its messages in the order of time, and the graph of causes; or which there are."""
    identity = _parameter(request, "id")
    console = _console(request)
    if not identity:
        return _page(request, "conversations.html", recent=await _recent(console), id="", timeline=None, graph=None)
    async with console.looked:
        found = await trace_up(console.transport, console.settings, identity)
    copies = found.search.copies
    timeline = timeline_of_traced(
        found,
        max_records=_MAX_ROWS,
        namespace=console.settings.bus.namespace,
        risk_of=risk_in(await console.registry()),
        verifier=console.verifier(),
    )
    if not timeline.events:
        looked = looked_in_words(found.search.looked, identity)
        return _problem(request, f"no conversation {identity}", f"each of its messages has its id; {looked}")
    return _page(
        request,
        "conversations.html",
        recent=(),
        id=identity,
        timeline=timeline,
        graph=graph_of(timeline),
        is_cut=len(copies) > _MAX_ROWS,
    )


async def _recent(console: Console) -> list[dict[str, Any]]:
    """Return the conversations of the newest messages of each type."""
    found: dict[str, dict[str, Any]] = {}
    for topic in sorted(await console.transport.admin.topics()):
        name = read_topic(topic)
        if name is None or name.namespace != console.settings.bus.namespace or name.kind not in ("message", "reply"):
            continue
        for record in await _newest(console, topic):
            copy = stored_copy(record, name.kind)
            if copy.message is None:
                continue
            seen = found.setdefault(copy.conversation_id, {"newest_ms": 0, "messages": 0, "types": set()})
            seen["newest_ms"] = max(seen["newest_ms"], record.timestamp_ms)
            seen["messages"] += 1
            seen["types"].add(copy.message.message_type)
    rows = [{"id": key, **value, "at": format_ms(value["newest_ms"])} for key, value in found.items()]
    return sorted(rows, key=lambda row: -row["newest_ms"])[:_PAGE]


async def _newest(console: Console, topic: str) -> list[Record]:
    records: list[Record] = []
    try:
        for partition, retained in (await console.transport.admin.ranges(topic)).items():
            start = max(retained.start, retained.end - _NEWEST)
            if retained.end > start:
                records += await console.transport.read(
                    topic, partition, start, max_records=_NEWEST, max_bytes=4 << 20, wait_s=0.5
                )
    except TopicMissingError:
        return []
    return records


@get("/messages")
async def message(request: _Request) -> Response[str]:
    """Show one message: where it lies, what became of it, its envelope and its payload."""
    identity = _parameter(request, "id")
    console, namespace = _console(request), _console(request).settings.bus.namespace
    if not is_message_id(identity):
        return _problem(request, "this is not a message id", "it is the message_id in the metadata", code=400)
    async with console.looked:
        found = await look_up(console.transport, console.settings, identity)
    copies, states = found.search.copies, found.states
    own = [copy for copy in copies if copy.message_id == identity]
    if not own:
        return _problem(request, f"no message {identity}", looked_in_words(found.search.looked, identity))
    dead = [read_dead_letter(copy.record) for copy in own if copy.kind == "dlq"]
    limit, registry = console.settings.publish.max_message_bytes, await console.registry()
    judged = [
        (each, states.get(each.place), examine(each, registry, namespace=namespace, max_message_bytes=limit))
        for each in dead
    ]
    sealed = next((copy.message for copy in own if copy.message is not None), None)
    facts = {} if sealed is None else msgspec.to_builtins(sealed.metadata) | msgspec.to_builtins(sealed.routing)
    return _page(
        request,
        "message.html",
        id=identity,
        places=[copy.place for copy in own],
        described=explain_message(identity, copies, judged, groups=found.known_groups, until=found.until),
        facts={key: masked(value) for key, value in facts.items() if value is not None},
        lines=[] if sealed is None else _lines(masked(msgspec.json.decode(sealed.data)), ""),
        conversation="" if sealed is None else sealed.metadata.conversation_id,
    )


@get("/groups")
async def groups_page(request: _Request) -> Response[str]:
    """Show the groups, their lag, and what holds them up."""
    survey = _console(request).survey
    judged = [(group, list(of_group(group, survey.taken_ms))) for group in survey.groups] if survey is not None else []
    return _page(request, "groups.html", groups=judged)


@get("/agents")
async def agents_page(request: _Request) -> Response[str]:
    """Show which agents are there."""
    survey = _console(request).survey
    found = sorted(() if survey is None else survey.agents, key=lambda each: (each.is_healthy, each.agent_id))
    return _page(request, "agents.html", agents=found[:_MAX_ROWS], total=len(found))


@get("/processes")
async def processes_page(request: _Request) -> Response[str]:
    """Show processes and their waits; one of them with its state."""
    saga = _parameter(request, "saga")
    status = request.query_params.get("status", "open")
    identity = _parameter(request, "id")
    console = _console(request)
    try:
        async with opened_store(console.settings, None) as store:
            found = (
                await store.begins(identity)
                if identity
                else await store.processes(saga=saga or None, status=status or None, max_rows=_MAX_ROWS)
            )
            overdue = {wait.id for wait, *_ in await store.waits(overdue_ms=60_000)}
            waits = {each.id: await store.waits_of(each.id) for each in found[:_PAGE]}
    except ConfigurationError as error:
        return _page(request, "processes.html", error=str(error), rows=(), saga=saga, status=status, one=None)
    rows = [(each, each.id.hex()[:_ID_DIGITS], waits.get(each.id, ()), ending_of(each)) for each in found]
    one = None
    if identity and len(found) == 1:
        try:
            one = _lines(masked(msgspec.json.decode(found[0].state or b"{}")), "")
        except msgspec.DecodeError:
            one = []
    return _page(
        request,
        "processes.html",
        error="",
        rows=rows,
        overdue=overdue,
        saga=saga,
        status=status,
        one=one,
        when=format_ms,
    )


async def _approvals(console: Console) -> list[OpenRequest]:
    found = await open_requests(
        console.transport, console.settings.bus.namespace, verifier=console.verifier(), clock=console.clock
    )
    return sorted(found, key=lambda each: each.message.routing.expires_at)


@get("/approvals")
async def approvals_page(request: _Request) -> Response[str]:
    """Show what waits for a decision."""
    return _page(request, "approvals.html", found=await _approvals(_console(request)))


@get("/approvals/show")
async def approval(request: _Request) -> Response[str]:
    """Show the action packet as it will run, and how to decide."""
    identity = _parameter(request, "id")
    console = _console(request)
    opened = await _approvals(console)
    found = next((each for each in opened if identity and each.digits.startswith(identity)), None)
    if found is None:
        return _problem(request, f"no open approval begins with {identity}", "it is decided, or its time is over")
    pending = await held_message(console.transport, console.settings.bus.namespace, found)
    # A run may ask for several at once: they are decided on one page.
    others = [each for each in opened if each is not found and each.request.seal == found.request.seal is not None]
    return _page(
        request,
        "approval.html",
        boxes=[_box(each, pending) for each in (found, *others)],
        pending=pending,
        person=console.person,
        id=found.digits[:_ID_DIGITS],
    )


@get("/approvals/arguments")
async def approval_arguments(request: _Request) -> Response[str]:
    """Show the arguments of a step that are too large for its request, from the artifact store."""
    identity, console = _parameter(request, "id"), _console(request)
    opened = await _approvals(console)
    found = next((each for each in opened if identity and each.digits.startswith(identity)), None)
    named = {} if found is None else within_of(action_of(found.message)).get("arguments", {}).get("artifact")
    if not isinstance(named, dict):
        return _problem(request, f"no open approval {identity} has arguments in the artifact store", code=404)
    try:
        data = await artifact_store(console.settings).open(msgspec.convert(named, Ref))
        value = msgspec.json.decode(data)
    except (BusError, OSError, msgspec.MsgspecError) as error:
        return _problem(request, f"the arguments cannot be shown: {error}", "reject it, or look at artifacts.url")
    return _page(request, "arguments.html", lines=_lines(value, ""), invisible=_invisible(value), id=identity)


class _Box(NamedTuple):
    """One approval as it is decided."""

    found: OpenRequest
    id: str
    tool: str
    """The step that would be called; empty where the whole message would be handled."""
    arguments: list[_Line]
    is_large: bool
    """Whether the arguments are in the artifact store."""
    lines: list[_Line]
    invisible: int
    agrees: bool


def _box(found: OpenRequest, pending: Message | None) -> _Box:
    action = action_of(found.message)
    within = within_of(action)
    return _Box(
        found=found,
        id=found.digits[:_ID_DIGITS],
        tool=str(within.get("tool", "")),
        arguments=_lines(within.get("arguments", {}), ""),
        is_large="artifact" in within.get("arguments", {}),
        lines=_lines(action, ""),
        invisible=_invisible(action),
        agrees=pending is not None and agrees(found.message, pending),
    )


def _invisible(action: Any) -> int:
    """Return the number of invisible characters in *action*, which are shown as escapes."""
    return sum(not char.isprintable() for char in msgspec.json.encode(action).decode())


@post("/approvals/decide")
async def decide_approval(request: _Request) -> Response[Any]:
    """Decide as the person whose key this console has."""
    console = _console(request)
    fields, refused = await _form(request, "approve")
    if refused is not None:
        return refused
    if not console.person or console.person_settings is None:
        return _problem(request, "this console has no person's key", "use the command on the page", code=403)
    id_ = fields.get("id", "")
    found = next((each for each in await _approvals(console) if id_ and each.digits.startswith(id_)), None)
    if found is None:
        return _problem(request, "that approval is not open any more", code=410)
    pending = await held_message(console.transport, console.settings.bus.namespace, found)
    verb: DecisionVerb = "approve" if fields.get("act") == "approve" else "reject"
    reason = fields.get("reason", "").strip()
    members: dict[str, Any] = {} if verb == "approve" else {"reason": reason}
    if verb == "approve":
        if pending is None or not agrees(found.message, pending):
            return _problem(request, "the packet differs from the waiting message", "reject it", code=409)
        if not found.is_named_by(fields.get("digits", "").strip().lower()):
            return _problem(request, "those are not the first 8 digits of its hash", "read it again", code=409)
    elif not reason:
        return _problem(request, "a rejection needs a reason", "the requester reads it", code=400)
    async with connect(settings=console.person_settings, agent=console.person) as bus:
        if not bus.publisher.sealer.signs:
            return _problem(request, "the person's key cannot be used: a decision is signed", code=403)
        decision = decision_about(found.message, verb, by=console.person, **members)
        await bus.publisher.send(seal_decision(bus.publisher.sealer, decision, found.message))
    return Redirect("/approvals", status_code=303)


@get("/audit")
async def audit_page(request: _Request) -> Response[str]:
    """Answer the audit's questions about a conversation."""
    conversation = _parameter(request, "conversation")
    question = _parameter(request, "question", "decisions")
    console = _console(request)
    rows: list[dict[str, Any]] = []
    heads: list[tuple[Any, ...]] = []
    async with console.audit() as store:
        has_audit = store is not None
        if store is not None:
            heads = [
                (f"{topic}/{partition}", head.rows, head.next_offset, head.hash[:_ID_DIGITS])
                for (topic, partition), head in sorted((await store.heads()).items())
            ]
            if conversation and question in QUERIES:
                found = await store.conversation(conversation, max_rows=_MAX_ROWS)
                registry = await console.registry()
                rows = [masked(each) for each in answer_question(question, found, registry)]
    columns = list(dict.fromkeys(name for row in rows for name in row))
    return _page(
        request,
        "audit.html",
        has_audit=has_audit,
        conversation=conversation,
        question=question,
        queries={name: query.text for name, query in QUERIES.items()},
        rows=rows,
        columns=columns,
        heads=heads,
        text=lambda value: value if isinstance(value, str) else _text(value),
    )


@get("/costs")
async def costs(request: _Request) -> Response[str]:
    """Show tokens and costs by sender in the last day, as agents have reported them."""
    console = _console(request)
    sums: dict[str, Counter[str]] = {}
    async with console.audit() as store:
        has_audit = store is not None
        found = [] if store is None else await store.all(since_ms=console.clock.now_ms() - 86_400_000, max_rows=100_000)
    for each in found:
        if each.content is None or each.row.kind not in ("message", "reply", "mail"):
            continue
        facts = msgspec.json.decode(each.content.facts or "{}")
        names = ("tokens", "input_tokens", "output_tokens", "total_tokens", "cost", "cost_usd")
        spent = {name: facts[name] for name in names if isinstance(facts.get(name), int | float)}
        if spent:
            sums.setdefault(each.content.sender, Counter()).update(messages=1, **spent)
    rows = sorted(sums.items(), key=lambda item: -item[1]["cost_usd"] - item[1]["cost"])
    columns = sorted({name for _, row in rows for name in row})
    return _page(request, "costs.html", has_audit=has_audit, rows=rows[:_MAX_ROWS], names=columns)


@get("/tail")
async def tail_page(request: _Request) -> Response[str]:
    """Show records as they are appended, with secrets masked."""
    kind = _parameter(request, "type")
    console = _console(request)
    namespace = console.settings.bus.namespace
    named = [read_topic(topic) for topic in sorted(await console.transport.admin.topics())]
    types = sorted(
        {n.message_type for n in named if n is not None and n.kind == "message" and n.namespace == namespace}
    )
    return _page(request, "tail.html", types=types, type=kind if kind in types else "")


@get("/tail/events")
async def tail_events(request: _Request) -> ServerSentEvent:
    """Send each record of a type as one line of JSON."""
    kind = _parameter(request, "type")
    console = _console(request)
    topic = message_topic(console.settings.bus.namespace, kind)

    async def lines() -> AsyncGenerator[str]:
        ranges = await console.transport.admin.ranges(topic)
        offsets = {partition: max(retained.start, retained.end - _TAILED) for partition, retained in ranges.items()}
        while not console.is_stopping:
            came = False
            for partition, offset in list(offsets.items()):
                records = await console.transport.read(
                    topic, partition, offset, max_records=200, max_bytes=4 << 20, wait_s=0.0
                )
                for record in records:
                    offsets[partition], came = record.offset + 1, True
                    yield _text(_tail_line(record))
            if not came:
                await asyncio.sleep(0.5)

    return ServerSentEvent(lines(), event_type="record")


def _tail_line(record: Record) -> dict[str, Any]:
    copy = stored_copy(record, "message")
    described = {"at": format_ms(record.timestamp_ms), "place": f"{record.partition}/{record.offset}"}
    if copy.message is None:
        return {**described, "text": f"{len(record.value or b'')} bytes that are not a message"}
    data = _text(masked(msgspec.json.decode(copy.message.data)))
    sender = copy.message.metadata.sender.id or ""
    return {**described, "id": copy.message_id, "sender": sender, "conversation": copy.conversation_id, "text": data}


@get("/events")
async def events(request: _Request) -> ServerSentEvent:
    """Send an event when there is something new to show."""
    console = _console(request)

    async def versions() -> AsyncGenerator[str]:
        while not console.is_stopping:
            yield _text({"version": console.version})
            await console.changed(_EVENT_S)

    return ServerSentEvent(versions(), event_type="changed")


@get("/healthz/live", media_type=MediaType.TEXT)
async def live(request: _Request) -> str:
    """Answer that the console runs."""
    return f"ok {_console(request).version}"


ROUTES: Final = (
    overview, login_page, login, logout, letters, letter, redrive_page, start_redrive, run_page, conversations, message,
    groups_page, agents_page, processes_page, approvals_page, approval,
    approval_arguments, decide_approval, audit_page, costs, tail_page,
    tail_events, events, live,
)  # fmt: skip

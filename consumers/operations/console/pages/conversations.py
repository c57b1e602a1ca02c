"""Conversations: a list with a search, one conversation as lanes over time, and one message beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlencode

import msgspec
from litestar import Response, get

from bus.errors import BusError, TopicMissingError
from bus.protocol.identifiers import is_message_id
from bus.protocol.sealing import Message
from bus.redaction import masked
from bus.topics.names import read_topic
from bus.topics.namespace_groups import NamespaceGroups
from bus.transports.base import Record
from consumers.deadletters.diagnosis import examine
from consumers.deadletters.letter_state import state_of
from consumers.deadletters.letters import read_dead_letter
from consumers.operations.audit.conversations import ConversationFilter, ConversationPage, ConversationRow
from consumers.operations.audit.spending import tells_of_spending
from consumers.operations.audit.store import AuditStore
from consumers.operations.console.model import Console, NotRead
from consumers.operations.console.pages.approvals import approvals_of
from consumers.operations.console.pages.frame import (
    PAGE_ROWS,
    PageRequest,
    console_of,
    data_lines,
    digits_of,
    page_of,
    parameter,
    problem,
)
from consumers.operations.console.pages.trust import trust_views
from consumers.operations.console.sequence import SequenceRow, StateMark, gist_of, sequence_of
from consumers.operations.console.words import duration
from consumers.operations.lineage.log_search import StoredCopy, stored_copy
from consumers.operations.lineage.proofs import risk_in
from consumers.operations.lineage.timeline import Timeline, TimelineEvent, tree_lines
from consumers.operations.survey.explanation import explain_message
from consumers.operations.survey.group_state import GroupState
from consumers.operations.survey.group_verdicts import GroupVerdict, group_verdicts
from consumers.operations.survey.look_up import look_up, looked_in_words, timeline_of_traced, trace_up
from consumers.operations.survey.trust_view import TrustView
from consumers.operations.survey.verdicts import of_hold_up
from consumers.processes.approvals.approval_rows import SHORT_DIGITS

__all__ = ["CONVERSATIONS_ROUTES", "Talk", "has_conversation", "newest_conversations", "newest_of_agent"]

_MAX_ROWS: Final = 500
_MAX_SHOWN: Final = 200
_NEWEST: Final = 40
_FEW: Final = 5
_MAX_JUDGED: Final = 30
_VIEWS: Final = ("sequence", "causes", "text")
_SINCE_MS: Final = {"": 0, "hour": 3_600_000, "day": 86_400_000, "week": 7 * 86_400_000}
_STATES: Final = (
    ("", "All"),
    ("work", "At work"),
    ("open", "No answer seen"),
    ("held", "Held"),
    ("asked", "Asked back"),
    ("dead", "Dead"),
    ("failed", "Failed"),
    ("answered", "Ended"),
)
_MARKS: Final = {
    "open": StateMark("off", "no answer seen"),
    "held": StateMark("held", "waits for a person"),
    "asked": StateMark("held", "waits for an answer"),
    "dead": StateMark("dead", "has a dead letter"),
    "failed": StateMark("dead", "failed"),
    "answered": StateMark("ok", "answered"),
}


_TECHNICAL: Final = frozenset(
    {"agent.heartbeat", "agent.announcement", "agent.discover", "agent.goodbye", "agent.handshake"}
)


class Talk(msgspec.Struct, frozen=True, kw_only=True):
    """One conversation in a list. Its texts are untrusted."""

    id: str
    about: str
    first_type: str
    opener: str
    parties: tuple[str, ...]
    party_count: int
    messages: int
    first_ms: int
    last_ms: int
    mark: StateMark | None
    """None: nobody has looked at what became of it."""
    tokens: float = 0.0
    cost: float = 0.0


@get("/conversations")
async def conversations(request: PageRequest) -> Response[str]:
    """Show a conversation, or the newest ones that match a search."""
    identity = parameter(request, "id")
    return await _one(request, identity) if identity else await _list(request)


async def _list(request: PageRequest) -> Response[str]:
    console = console_of(request)
    filters = {name: parameter(request, name) for name in ("q", "agent", "type", "state", "since")}
    before = parameter(request, "before").partition(" ")
    wanted, now_ms = filters["q"].strip(), console.clock.now_ms()
    since = _SINCE_MS.get(filters["since"], 0)
    is_id = bool(wanted) and all(char in "0123456789abcdef-" for char in wanted.lower()) and len(wanted) >= 4  # noqa: PLR2004
    note, talks, following = "", list[Talk](), ""
    at_ms, at_work = digits_of(before[0]), _at_work(console)
    wanted_talks = ConversationFilter(
        id_prefix=wanted.lower() if is_id else "",
        words="" if is_id else wanted,
        agent=filters["agent"],
        message_type=filters["type"],
        ids=tuple(at_work)[:PAGE_ROWS] if filters["state"] == "work" else None,
        state=filters["state"] if filters["state"] in _MARKS else "",
        since_ms=now_ms - since if since else None,
        without_ticks=not (filters["type"] or wanted),
    )
    place = None if at_ms is None or not before[2] else (at_ms, before[2])
    page = await console.of_audit(lambda store: store.conversations(wanted_talks, before=place, limit=PAGE_ROWS))
    if isinstance(page, ConversationPage):
        talks = [_working(_talk(row), at_work, now_ms) for row in page.rows]
        if filters["state"] == "work":
            talks.sort(key=lambda talk: at_work.get(talk.id, 0))
        if page.indexed_rows < page.recorded_rows:
            note = f"The audit has looked at {page.indexed_rows:,} of {page.recorded_rows:,} records for this list."
        if page.next is not None:
            kept = {name: value for name, value in filters.items() if value}
            following = "/conversations?" + urlencode(kept | {"before": f"{page.next[0]} {page.next[1]}"})
    else:
        talks = [_working(talk, at_work, now_ms) for talk in _matching(await _in_log(console), filters)]
        note = "This list shows only the newest records of each topic, and searches only in them. "
        if page is None:
            note = f"{note}No audit records messages: set audit.url and run sealbus serve audit"
        else:
            note = f"{note}The audit cannot be read: {page.why}"
    return page_of(
        request,
        "conversations.html",
        talks=talks,
        filters=filters,
        states=_STATES,
        note=note,
        has_audit=isinstance(page, ConversationPage),
        following=following,
        agents=[] if console.survey is None else [agent.agent_id for agent in console.survey.agents[:100]],
    )


def _talk(row: ConversationRow) -> Talk:
    return Talk(
        id=row.id,
        about=row.about,
        first_type=row.first_type,
        opener=row.opener,
        parties=tuple(each for each in row.parties if each != row.opener),
        party_count=row.party_count,
        messages=row.messages,
        first_ms=row.first_ms,
        last_ms=row.last_ms,
        mark=_MARKS.get(row.state),
        tokens=row.tokens_in + row.tokens_out,
        cost=row.cost,
    )


def _at_work(console: Console) -> dict[str, int]:
    """Return the conversations that handlers work for, by the last heartbeats, and since when: the longest first."""
    agents = () if console.survey is None else console.survey.agents
    found = dict[str, int]()
    for task in sorted((task for agent in agents for task in agent.doing), key=lambda task: task.since_ms):
        found.setdefault(task.conversation_id, task.since_ms)
    return found


def _working(talk: Talk, at_work: Mapping[str, int], now_ms: int) -> Talk:
    """Return *talk*, or that a handler works for it: nothing has ended in it then."""
    since_ms = at_work.get(talk.id)
    if since_ms is None or (talk.mark is not None and talk.mark.kind not in ("off", "ok")):
        return talk
    return msgspec.structs.replace(
        talk, mark=StateMark("busy", f"at work for {duration(max(1.0, (now_ms - since_ms) / 1000))}")
    )


def _matching(talks: Sequence[Talk], filters: dict[str, str]) -> list[Talk]:
    words = filters["q"].lower().split()

    def has(talk: Talk) -> bool:
        text = f"{talk.id} {talk.about} {talk.first_type} {talk.opener} {' '.join(talk.parties)}".lower()
        return (
            all(word in text for word in words)
            and filters["agent"] in ("", talk.opener, *talk.parties)
            and filters["type"] in ("", talk.first_type)
        )

    return [talk for talk in talks if has(talk)][:PAGE_ROWS]


async def newest_conversations(console: Console) -> list[Talk] | NotRead | None:
    """Return the conversations with the newest messages; None without an audit: to read all topics takes too long."""

    async def read(store: AuditStore) -> list[Talk]:
        page = await store.conversations(ConversationFilter(without_ticks=True), limit=_FEW)
        return [_talk(row) for row in page.rows]

    return await console.of_audit(read)


async def has_conversation(console: Console, identity: str) -> bool:
    """Return whether the audit has a conversation of just that id, as far as it can be read."""
    found = await console.of_audit(lambda store: store.conversation(identity, max_rows=1))
    return bool(found) and not isinstance(found, NotRead)


async def newest_of_agent(console: Console, agent: str) -> list[Talk] | NotRead | None:
    """Return the newest conversations with *agent*; None without an audit."""

    async def read(store: AuditStore) -> list[Talk]:
        found = await store.conversations(ConversationFilter(agent=agent), limit=2 * _FEW)
        return [_talk(row) for row in found.rows]

    return await console.of_audit(read)


async def _in_log(console: Console) -> list[Talk]:
    """Return the conversations of the newest messages of each type, the newest first."""
    found: dict[str, list[tuple[int, Message]]] = {}
    for topic in sorted(await console.transport.admin.topics()):
        name = read_topic(topic)
        if name is None or name.namespace != console.settings.bus.namespace or name.kind not in ("message", "reply"):
            continue
        if name.message_type in _TECHNICAL:
            continue
        for record in await _newest(console, topic):
            copy = stored_copy(record, name.kind)
            if copy.message is not None:
                found.setdefault(copy.conversation_id, []).append((record.timestamp_ms, copy.message))
    talks = [_talk_of(key, sorted(rows, key=lambda row: row[0])) for key, rows in found.items()]
    return sorted(talks, key=lambda talk: -talk.last_ms)


def _talk_of(identity: str, rows: Sequence[tuple[int, Message]]) -> Talk:
    """Return the conversation of *rows*: moments and messages, in the order of time."""
    first = rows[0][1]
    opener = first.metadata.sender.id or ""
    agents = [agent for _, each in rows for agent in (each.metadata.sender, each.metadata.recipient) if agent]
    parties = dict.fromkeys(agent.id for agent in agents if agent.id)
    return Talk(
        id=identity,
        about=gist_of(masked(msgspec.json.decode(first.data))),
        first_type=first.message_type,
        opener=opener,
        parties=tuple(name for name in parties if name != opener),
        party_count=len(parties),
        messages=len(rows),
        first_ms=rows[0][0],
        last_ms=rows[-1][0],
        mark=None,
    )


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


async def _one(request: PageRequest, identity: str) -> Response[str]:
    console = console_of(request)
    async with console.looked:
        found = await trace_up(console.transport, console.settings, identity)
    copies = found.search.copies
    timeline = timeline_of_traced(
        found,
        max_messages=_MAX_ROWS,
        namespace=console.settings.bus.namespace,
        risk_of=risk_in(await console.registry()),
        verifier=console.verifier(),
    )
    if not timeline.events:
        looked = looked_in_words(found.search.looked, identity)
        return problem(request, f"no conversation {identity}", f"each of its messages has its id; {looked}")
    # Of a long conversation most messages are not shown: what they hold is not read.
    shown_ids = {event.message_id for event in timeline.events}
    messages = {
        copy.message_id: copy.message for copy in copies if copy.message is not None and copy.message_id in shown_ids
    }
    data = {identity: masked(msgspec.json.decode(each.data)) for identity, each in messages.items()}
    offers = {identity for identity, each in messages.items() if not tells_of_spending(each.metadata.performative)}
    waits = await _waits(console, timeline, copies)
    drawn = sequence_of(
        timeline,
        data,
        console.clock.now_ms(),
        open_dead=await _open_dead(console, copies),
        waits=waits,
        offers=offers,
    )
    view = parameter(request, "view", "sequence")
    rows = drawn.rows
    only = parameter(request, "only")
    if only == "trouble":
        rows = tuple(row for row in rows if row.marks)
    number = digits_of(parameter(request, "n"))
    wanted = None if number is None else next((row for row in drawn.rows if row.event.number == number), None)
    selected = wanted or _worst(rows)
    pane = None if selected is None else await _pane(console, timeline, selected, copies)
    until = digits_of(parameter(request, "until"))
    if not until and wanted is not None:
        until = _page_end(rows, wanted)
    shown = [row for row in rows if not until or row.event.number <= until][-_MAX_SHOWN:]
    return page_of(
        request,
        "conversation.html",
        id=found.conversation_id,
        about=next((row.gist for row in drawn.rows if row.gist), "") or timeline.events[0].message_type,
        drawn=drawn,
        rows=shown,
        row_count=len(rows),
        older=shown[0].event.number - 1 if shown and shown[0] is not rows[0] else 0,
        has_newer=bool(shown) and shown[-1] is not rows[-1],
        message_count=len(drawn.rows) + timeline.left_out,
        left_out=timeline.left_out,
        has_older_records=found.is_cut,
        only=only,
        view=view if view in _VIEWS else "sequence",
        waits=list(dict.fromkeys(waits.values()))[:_FEW],
        tree=list(tree_lines(timeline)) if view == "causes" else [],
        selected=selected,
        not_shown=number if number is not None and wanted is None else None,
        pane=pane,
        approval=None if drawn.held is None else await _approval_of(console, drawn.held),
    )


async def _open_dead(console: Console, copies: Sequence[StoredCopy]) -> set[str]:
    """Return the ids of the messages of which a dead letter is open."""
    found = set()
    for copy in copies:
        if copy.kind == "dlq":
            letter = read_dead_letter(copy.record)
            if state_of(letter, await console.letter_state(letter.place)) == "open":
                found.add(copy.message_id)
    return found


async def _waits(console: Console, timeline: Timeline, copies: Sequence[StoredCopy]) -> dict[str, str]:
    """Return by id why messages are not settled yet, of the newest without an effect; from commits and hold-ups."""
    causes = {event.cause for event in timeline.events}
    last = [event for event in timeline.events if event.number not in causes][-_MAX_JUDGED:]
    try:
        infos = await NamespaceGroups(console.transport.admin, console.settings.bus.namespace).infos()
    except BusError:
        return {}
    groups = {} if console.survey is None else {group.name: group for group in console.survey.groups}
    found: dict[str, str] = {}
    for event in last:
        for verdict in group_verdicts(event.message_id, copies, infos, states={}):
            if verdict.state == "waits":
                found[event.message_id] = _wait_words(verdict, groups.get(verdict.group), console.clock.now_ms())
    return found


def _wait_words(verdict: GroupVerdict, group: GroupState | None, now_ms: int) -> str:
    """Return in a sentence why a message waits in a group."""
    if group is not None and (group.is_silent or not group.members):
        has = "is silent" if group.is_silent else "has no worker"
        return f"{verdict.group} {has}: the message waits in {verdict.place}"
    topic, partition = verdict.place.rsplit("/", 2)[:2]
    for each in () if group is None else group.hold_ups:
        if (each.topic, str(each.partition)) == (topic, partition):
            judged = of_hold_up(verdict.group, each, now_ms)
            if judged is not None:
                return judged.text
    where = f"behind {verdict.behind:,} records" if verdict.behind else "next"
    return f"{verdict.group} has not settled it: it waits {where} in {verdict.place}"


async def _approval_of(console: Console, held: TimelineEvent) -> str | None:
    """Return the id of the open approval that *held* asks for; None where it is open no more."""
    for each in await approvals_of(console):
        if each.message.message_id == held.message_id:
            return each.digits[:SHORT_DIGITS]
    return None


def _worst(rows: Sequence[SequenceRow]) -> SequenceRow | None:
    """Return the row that a reader looks at first: what is held, else what died, else the newest."""
    worst = next((row for row in rows if any(mark.kind == "dead" for mark in row.marks)), None)
    held = next((row for row in rows if any(mark.kind == "held" for mark in row.marks)), None)
    return held or worst or (rows[-1] if rows else None)


def _page_end(rows: Sequence[SequenceRow], selected: SequenceRow) -> int:
    """Return the number of the last row on the page that has *selected*; 0 where that is the newest page."""
    behind = next((at for at, row in enumerate(reversed(rows)) if row is selected), 0)
    last = len(rows) - 1 - behind // _MAX_SHOWN * _MAX_SHOWN
    return rows[last].event.number if last < len(rows) - 1 else 0


class _Pane(msgspec.Struct, frozen=True, kw_only=True):
    """One message beside its conversation."""

    lines: Sequence[Any]
    sentence: str
    letter: str
    """The place of its dead letter; empty without one."""
    steps: Sequence[tuple[str, str, str, str, int]]
    """Kind, tone, text, detail and moment of what became of it."""
    causes: Sequence[tuple[TimelineEvent, TrustView | None]]
    """Its causes, from the first message on."""
    trust: TrustView | None


async def _pane(console: Console, timeline: Timeline, row: SequenceRow, copies: Sequence[StoredCopy]) -> _Pane:
    event = row.event
    own = [copy for copy in copies if copy.message_id == event.message_id]
    first = next((copy for copy in own if copy.kind not in ("retry", "dlq", "redrive")), own[0] if own else None)
    dead = [copy for copy in own if copy.kind == "dlq"]
    pointer = sentence = ""
    if dead:
        letter = read_dead_letter(dead[-1].record)
        limit = console.settings.publish.max_message_bytes
        finding = examine(
            letter, await console.registry(), namespace=console.settings.bus.namespace, max_message_bytes=limit
        )
        pointer = letter.pointer
        known = await console.letter_state(letter.place)
        sentence = explain_message(event.message_id, own, [(letter, known, finding)]).text
    by_number = {each.number: each for each in timeline.events}
    causes, number = list[TimelineEvent](), event.cause
    while number in by_number and len(causes) < _MAX_SHOWN and by_number[number] not in causes:
        causes.append(by_number[number])
        number = by_number[number].cause
    views = await trust_views(console, [event.message_id, *(each.message_id for each in causes)], copies)
    trust = views.get(event.message_id)
    steps = [_step(copy, trust) for copy in sorted(own, key=lambda copy: copy.record.timestamp_ms)]
    lines = []
    if first is not None and first.message is not None:
        lines = data_lines(masked(msgspec.json.decode(first.message.data)), pointer.removeprefix("/data"))
    return _Pane(
        lines=lines,
        sentence=sentence,
        letter=dead[-1].place if dead else "",
        steps=steps,
        causes=[(each, views.get(each.message_id)) for each in reversed(causes)],
        trust=trust,
    )


def _step(copy: StoredCopy, trust: TrustView | None) -> tuple[str, str, str, str, int]:
    at_ms = copy.record.timestamp_ms
    if copy.kind == "dlq":
        letter = read_dead_letter(copy.record)
        return ("fault", "bad", f"died in {letter.group or '?'}", letter.reason, at_ms)
    if copy.kind == "retry":
        return ("retry", "warn", "put off, to be tried again", copy.place, at_ms)
    if copy.kind == "redrive":
        return ("retry", "warn", "sent back", copy.place, at_ms)
    signed = "not signed" if trust is None or trust.signed_by is None else f"signed with key {trust.signed_by}"
    return ("ok", "good", f"sent, {signed}", copy.place, at_ms)


@get("/messages")
async def message(request: PageRequest) -> Response[str]:
    """Show one message: where it is stored, what became of it, its envelope and its payload."""
    identity = parameter(request, "id")
    console, namespace = console_of(request), console_of(request).settings.bus.namespace
    if not is_message_id(identity):
        return problem(request, "this is not a message id", "it is the message_id in the metadata", code=400)
    async with console.looked:
        found = await look_up(console.transport, console.settings, identity)
    copies, states = found.search.copies, found.states
    own = [copy for copy in copies if copy.message_id == identity]
    if not own:
        if any(copy.conversation_id == identity for copy in copies) or await _is_conversation(console, identity):
            return await _one(request, identity)
        return problem(request, f"no message {identity}", looked_in_words(found.search.looked, identity))
    dead = [read_dead_letter(copy.record) for copy in own if copy.kind == "dlq"]
    limit, registry = console.settings.publish.max_message_bytes, await console.registry()
    judged = [
        (each, states.get(each.place), examine(each, registry, namespace=namespace, max_message_bytes=limit))
        for each in dead
    ]
    sealed = next((copy.message for copy in own if copy.message is not None), None)
    facts = {} if sealed is None else msgspec.to_builtins(sealed.metadata) | msgspec.to_builtins(sealed.routing)
    views = await trust_views(console, [identity], own)
    trust = views.get(identity)
    return page_of(
        request,
        "message.html",
        id=identity,
        sealed=sealed,
        places=[copy.place for copy in own],
        steps=[_step(copy, trust) for copy in sorted(own, key=lambda copy: copy.record.timestamp_ms)],
        trust=trust,
        described=explain_message(identity, copies, judged, groups=found.known_groups, until=found.until),
        facts={key: masked(value) for key, value in facts.items() if value is not None},
        lines=[] if sealed is None else data_lines(masked(msgspec.json.decode(sealed.data)), ""),
        conversation="" if sealed is None else sealed.metadata.conversation_id,
    )


async def _is_conversation(console: Console, identity: str) -> bool:
    try:
        async with console.looked:
            return bool((await trace_up(console.transport, console.settings, identity)).search.copies)
    except BusError:
        return False


CONVERSATIONS_ROUTES = (conversations, message)

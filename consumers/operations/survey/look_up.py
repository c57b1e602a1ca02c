"""LookUp: everything that is known of one message: its records, what each group made of it, and what the audit has.

Owns the order of the questions: the audit's index where there is one, else the time in the id. Reading and judging are
`consumers.operations.lineage`'s and `group_verdicts`'s.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

import msgspec

from bus.clock import SystemClock
from bus.errors import BusError, ConfigurationError, NotPermittedError
from bus.payloads.payload_types import RiskClass
from bus.protocol.identifiers import uuid7_ms
from bus.protocol.signatures import Verifier
from bus.protocol.timestamps import format_ms
from bus.settings.schema import Settings
from bus.topics.namespace_groups import NamespaceGroups
from bus.transports.base import Transport
from bus.trust.opening import believed_keys
from consumers.deadletters.letter_state import LetterState, load_states
from consumers.operations.audit.reading import read_audit
from consumers.operations.audit.store import AuditRecord, AuditStore
from consumers.operations.audit.timeline import with_audit
from consumers.operations.lineage.log_reach import FAR_MS, Looked
from consumers.operations.lineage.log_search import KnownPlaces, Search, find_conversation, find_message
from consumers.operations.lineage.timeline import Timeline, timeline_of
from consumers.operations.survey.group_verdicts import GroupVerdict, group_verdicts
from consumers.processes.approvals.held_runs import HeldRun, held_runs

__all__ = ["LookUp", "Traced", "look_up", "looked_in_words", "moment_of", "timeline_of_traced", "trace_up"]

_AUDIT_S: Final = 3.0
"""An audit that does not answer for so long is done without."""
_MAX_ROWS: Final = 10_000


class LookUp(msgspec.Struct, frozen=True, kw_only=True):
    """The known facts about one message."""

    search: Search
    groups: tuple[GroupVerdict, ...] = ()
    groups_error: str = ""
    """Why the outcomes in the groups are unknown."""
    states: dict[str, LetterState] = {}
    audited: Sequence[AuditRecord] = ()
    """Its rows in the audit."""
    audit_error: str = ""
    """Why the audit was not asked, though there is one."""

    @property
    def known_groups(self) -> tuple[GroupVerdict, ...] | None:
        """The outcome in each group; None if that is unknown."""
        return None if self.groups_error else self.groups

    @property
    def until(self) -> str:
        """Up to when dead letters were read; empty: all of them."""
        until_ms = self.search.letters_until_ms
        return "" if until_ms >= FAR_MS else _shown(until_ms) if until_ms > 0 else "the audit's newest row"


class Traced(msgspec.Struct, frozen=True, kw_only=True):
    """The known facts about one conversation."""

    conversation_id: str
    search: Search
    audited: Sequence[AuditRecord] = ()
    audit_error: str = ""

    @property
    def is_cut(self) -> bool:
        """Whether the audit may have older rows of it."""
        return len(self.audited) >= _MAX_ROWS


async def look_up(
    transport: Transport,
    settings: Settings,
    message_id: str,
    *,
    whole: bool = False,
    with_caused: bool = True,
    on_progress: Callable[[int], object] = int,
) -> LookUp:
    """Look up *message_id* in log and audit; *whole*: read the whole log. Raises BusError.

    *with_caused*: search its effects, too.
    """
    namespace = settings.bus.namespace

    async def query(store: AuditStore) -> tuple[Sequence[AuditRecord], Sequence[AuditRecord]]:
        rows = await store.message(message_id)
        named = next((row.content for row in rows if row.content is not None), None)
        if named is None or not named.conversation_id:
            return rows, rows
        around = await store.conversation(named.conversation_id, max_rows=_MAX_ROWS)
        return rows, [*rows, *(row for row in around if row.content and row.content.causation_id == message_id)]

    audited = await _audited(settings, query)
    search = await find_message(
        transport,
        namespace,
        message_id,
        known=audited.known,
        whole=whole,
        with_caused=with_caused,
        on_progress=on_progress,
    )
    own = [copy for copy in search.copies if copy.message_id == message_id]
    dead = frozenset(copy.place for copy in own if copy.kind == "dlq")
    states = await load_states(transport, namespace, lambda place, _: place in dead) if dead else {}
    groups, error = tuple[GroupVerdict, ...](), ""
    if own:
        try:
            infos = await NamespaceGroups(transport.admin, namespace).infos()
            groups = group_verdicts(message_id, search.copies, infos, states=states)
            if any(each.state == "done" for each in groups):
                # What an inbox holds for an approval is settled in the log, and not done.
                held = await _held(transport, settings, message_id, min(copy.record.timestamp_ms for copy in own))
                groups = group_verdicts(message_id, search.copies, infos, states=states, held=held)
        except (NotPermittedError, ConfigurationError) as refused:
            groups, error = (), str(refused)
    return LookUp(
        search=search,
        groups=groups,
        groups_error=error,
        states=states,
        audited=audited.rows,
        audit_error=audited.error,
    )


async def _held(transport: Transport, settings: Settings, message_id: str, since_ms: int) -> Mapping[str, HeldRun]:
    """Return by group the approval for which the message waits. Raises BusError, ConfigurationError."""
    clock = SystemClock()
    keys = believed_keys(settings, clock)
    return await held_runs(transport, settings.bus.namespace, message_id, since_ms=since_ms, verifier=keys, clock=clock)


async def trace_up(
    transport: Transport,
    settings: Settings,
    identity: str,
    *,
    whole: bool = False,
    on_progress: Callable[[int], object] = int,
) -> Traced:
    """Look up the conversation *identity*, or that of a message with this id, in log and audit."""
    namespace = settings.bus.namespace

    async def query(store: AuditStore) -> tuple[Sequence[AuditRecord], Sequence[AuditRecord]]:
        rows = await store.conversation(identity, max_rows=_MAX_ROWS)
        if not rows:
            named = [row.content for row in await store.message(identity) if row.content is not None]
            if named and named[0].conversation_id:
                rows = await store.conversation(named[0].conversation_id, max_rows=_MAX_ROWS)
        return rows, rows

    audited = await _audited(settings, query)
    conversation = next((row.content.conversation_id for row in audited.rows if row.content is not None), identity)
    search = await find_conversation(
        transport, namespace, conversation, known=audited.known, whole=whole, on_progress=on_progress
    )
    if not search.copies and not audited.rows:
        found = await find_message(
            transport, namespace, identity, known=audited.known, whole=whole, on_progress=on_progress
        )
        own = next((copy for copy in found.copies if copy.message_id == identity and copy.conversation_id), None)
        if own is not None:
            conversation = own.conversation_id
            search = await find_conversation(transport, namespace, conversation, whole=whole, on_progress=on_progress)
    return Traced(conversation_id=conversation, search=search, audited=audited.rows, audit_error=audited.error)


def timeline_of_traced(
    traced: Traced,
    *,
    namespace: str,
    risk_of: Callable[[str], RiskClass],
    verifier: Verifier | None,
    max_messages: int | None = None,
) -> Timeline:
    """Return the timeline of *traced* from the log, and from the audit what the log has no more.

    Whoever shows a conversation takes it from here, so that all show the same marks. Of more than *max_messages* it has
    the first, the newest and those that died, of the log alone.
    """
    timeline = timeline_of(
        traced.search.copies, namespace=namespace, risk_of=risk_of, verifier=verifier, max_messages=max_messages
    )
    return timeline if timeline.left_out else with_audit(timeline, traced.audited)


async def moment_of(settings: Settings, message_id: str) -> int | None:
    """Return about when a message was appended: by its id, else by the audit; None if unknown."""
    moment_ms = uuid7_ms(message_id)
    if moment_ms is not None:
        return moment_ms

    async def query(store: AuditStore) -> tuple[Sequence[AuditRecord], Sequence[AuditRecord]]:
        rows = await store.message(message_id)
        return rows, rows

    rows = (await _audited(settings, query)).rows
    return rows[0].row.appended_ms if rows else None


class _Audited(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of the audit: rows, and where to read in the log."""

    rows: Sequence[AuditRecord] = ()
    known: KnownPlaces | None = None
    error: str = ""


async def _audited(
    settings: Settings,
    ask: Callable[[AuditStore], Awaitable[tuple[Sequence[AuditRecord], Sequence[AuditRecord]]]],
) -> _Audited:
    """Return what *ask* finds: rows, and those besides whose records are to be read."""
    try:
        async with asyncio.timeout(_AUDIT_S), read_audit(settings) as store:
            if store is None:
                return _Audited()
            rows, wider = await ask(store)
            heads = await store.heads()
    except TimeoutError:
        return _Audited(error=f"the audit did not answer in {_AUDIT_S:g} s")
    except BusError as error:
        return _Audited(error=str(error))
    locations = sorted({(each.row.topic, each.row.partition, each.row.offset) for each in wider})
    indexed = {location: head.next_offset for location, head in heads.items()}
    return _Audited(rows=rows, known=KnownPlaces(records=locations, indexed=indexed))


def looked_in_words(looked: Looked, identity: str) -> str:
    """Return how far a search has looked, for people."""
    if looked.is_index_asked:
        return (
            f"the audit has none, and the {looked.records:,} records that came after its newest rows were looked at; "
            "--whole-log reads all"
        )
    if looked.is_whole:
        return f"the whole log was looked at, {looked.records:,} records; retention may have taken it"
    moment_ms = uuid7_ms(identity)
    made = "" if moment_ms is None else f" (the id was made at {_shown(moment_ms)})"
    since = "its beginning" if looked.since_ms <= 0 else _shown(looked.since_ms)
    until = "its end" if looked.until_ms >= FAR_MS else _shown(looked.until_ms)
    return f"the log was looked at from {since} to {until}, {looked.records:,} records{made}; --whole-log reads all"


def _shown(ms: int) -> str:
    # An id may say any time.
    try:
        return format_ms(ms)
    except OverflowError:
        return "no time of a calendar"

"""Processes: sagas, workflows and tasks as runs, and one run with its waits, its history and its state."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from litestar import Response, get

from bus.errors import BusError, ConfigurationError
from bus.redaction import masked
from consumers.operations.console.pages.frame import (
    DataLine,
    PageRequest,
    console_of,
    data_lines,
    page_of,
    parameter,
    problem,
)
from consumers.operations.console.pictures import TimeBar
from consumers.operations.console.sequence import StateMark
from consumers.operations.console.words import duration
from consumers.processes.sagas.history import ProcessHistory, ProcessPart, history_in
from consumers.processes.sagas.opening import opened_store
from consumers.processes.sagas.process import (
    Ending,
    Process,
    ProcessPlace,
    Wait,
    ending_of,
    failure_of,
    place_after,
    place_in,
)
from consumers.processes.sagas.store import ProcessStore

__all__ = ["PROCESSES_ROUTES"]

_MAX_ROWS: Final = 200
_MAX_TURNS: Final = 25
"""How an ended process has ended is within its state: so many pages are looked through for those that failed."""
_MAX_OVERDUE: Final = 1_000
_OVERDUE_MS: Final = 60_000
_ID_DIGITS: Final = 12
_BAD: Final = frozenset({"refused", "died", "silent"})
"""Outcomes of a wait that went wrong."""
_STATES: Final = (
    ("", "All"),
    ("open", "Open"),
    ("overdue", "Overdue"),
    ("failed", "Failed"),
    ("finished", "Ended"),
)
_STORED: Final = {"open": "open", "failed": "finished", "finished": "finished"}


class RunView(msgspec.Struct, frozen=True, kw_only=True):
    """One run in a list. Its key and its waits are untrusted."""

    process: Process
    id: str
    mark: StateMark
    at: str
    """Where it is: what it waits for, or why it ended."""
    waits: tuple[Wait, ...]
    ending: Ending | None


def _view(process: Process, waits: tuple[Wait, ...], now_ms: int) -> RunView:
    ending = ending_of(process)
    return RunView(
        process=process,
        id=process.id.hex()[:_ID_DIGITS],
        mark=_mark(process, waits, ending, now_ms),
        at=_at(waits, ending),
        waits=waits,
        ending=ending,
    )


def _mark(process: Process, waits: tuple[Wait, ...], ending: Ending | None, now_ms: int) -> StateMark:
    if ending is not None:
        return StateMark(
            "ok" if ending.outcome == "completed" else "off" if ending.outcome == "cancelled" else "dead",
            ending.outcome.replace("_", " "),
        )
    if process.status == "finished":
        return StateMark("ok", "finished")
    if any(wait.due_ms < now_ms - _OVERDUE_MS for wait in waits):
        return StateMark("dead", "overdue")
    if process.saga == "approval" or any(wait.name.startswith("approval") for wait in waits):
        return StateMark("held", "waits for a person")
    return StateMark("busy", "waits" if waits else "at work")


def _at(waits: tuple[Wait, ...], ending: Ending | None) -> str:
    if ending is not None:
        return f"{ending.where}: {ending.reason}".strip(": ")
    return ", ".join(f"{wait.name} of {wait.addressee}" if wait.addressee else wait.name for wait in waits[:3])


@get("/processes")
async def processes_page(request: PageRequest) -> Response[str]:
    """Show processes and their waits; one of them with its state."""
    saga, status, identity = (
        parameter(request, "saga"),
        request.query_params.get("status", ""),
        parameter(request, "id"),
    )
    console = console_of(request)
    now_ms, failure = console.clock.now_ms(), ""
    try:
        async with opened_store(console.settings, None) as store:
            if identity:
                found = await store.named(identity)
                if len(found) != 1:
                    return problem(request, f"no single process is {identity}", "see the list of processes")
                waits = tuple(await store.waits_of(found[0].id))
                return _run_page(request, _view(found[0], waits, now_ms), now_ms)
            found, older = await _listed(store, saga, status, place_in(parameter(request, "before")))
            waits_of = await store.waits_of_each([each.id for each in found if each.status == "open"])
            counts = await store.open_by_saga()
    except (ConfigurationError, BusError) as error:
        found, older, waits_of, counts, failure = [], None, {}, {}, str(error)
    return page_of(
        request,
        "processes.html",
        error=failure,
        views=[_view(each, tuple(waits_of.get(each.id, ())), now_ms) for each in found],
        saga=saga,
        status=status,
        states=_STATES,
        counts=counts,
        older="" if older is None else older.text,
        looked_at=_MAX_ROWS * _MAX_TURNS,
    )


async def _listed(
    store: ProcessStore, saga: str, status: str, before: ProcessPlace | None
) -> tuple[list[Process], ProcessPlace | None]:
    """Return a page of processes, and where the next one begins; None where there is none."""
    if status == "overdue":
        late = await store.waits(overdue_ms=_OVERDUE_MS, max_rows=_MAX_OVERDUE)
        found = {process.id: process for _, process, _ in late if saga in ("", process.saga)}
        return [*found.values()][:_MAX_ROWS], None
    rows, place = list[Process](), before
    for _ in range(_MAX_TURNS if status == "failed" else 1):
        page = await store.processes(saga=saga or None, status=_STORED.get(status), before=place, max_rows=_MAX_ROWS)
        place = place_after(page, _MAX_ROWS)
        rows += page if status != "failed" else [each for each in page if failure_of(each) is not None]
        if place is None or len(rows) >= _MAX_ROWS:
            break
    return rows, place


def _run_page(request: PageRequest, view: RunView, now_ms: int) -> Response[str]:
    try:
        state: Any = msgspec.json.decode(view.process.state or b"{}")
    except msgspec.DecodeError:
        state = None
    lines: list[DataLine] = [] if state is None else data_lines(masked(state))
    history = history_in(view.process.state)
    return page_of(
        request,
        "run.html",
        view=view,
        lines=lines,
        opener=_opener(view.process),
        bars=_bars(history, now_ms),
        history=[_line(part, now_ms) for part in sorted(history.parts, key=lambda part: part.start_ms)],
        forgotten=history.forgotten,
    )


def _bars(history: ProcessHistory, now_ms: int) -> list[tuple[str, list[TimeBar], str]]:
    """Return what each step or wait did over time: its name, its bars, and that in words."""
    if not history.parts:
        return []
    begin_ms = min(part.start_ms for part in history.parts)
    end_ms = max(begin_ms + 1, *(part.end_ms or now_ms for part in history.parts))
    rows: dict[str, list[ProcessPart]] = {}
    for part in history.parts:
        rows.setdefault(part.name.partition(".")[0], []).append(part)

    def bar(part: ProcessPart) -> TimeBar:
        kind = "ill" if part.outcome in _BAD else "idle" if part.end_ms is None else "fine"
        x = 100 * (part.start_ms - begin_ms) / (end_ms - begin_ms)
        return TimeBar(kind, x, 100 * ((part.end_ms or now_ms) - part.start_ms) / (end_ms - begin_ms))

    return [
        (name, [bar(part) for part in parts], ", ".join(part.outcome or "under way" for part in parts))
        for name, parts in rows.items()
    ]


def _line(part: ProcessPart, now_ms: int) -> tuple[str, str, str, str, int]:
    """Return icon, tone, text, detail and moment of a step or wait."""
    icon = "fault" if part.outcome in _BAD else "held" if part.end_ms is None else "ok"
    tone = {"fault": "bad", "held": "", "ok": "good"}[icon]
    what = {"step": "", "request": f"asked {part.agent or 'somebody'}, ", "timer": "waited, "}.get(part.kind, "")
    took = duration(((part.end_ms or now_ms) - part.start_ms) / 1000)
    ended = f"{part.outcome or 'done'} after {took}" if part.end_ms is not None else f"under way for {took}"
    return icon, tone, part.name, "" if part.kind == "step" and not part.outcome else what + ended, part.start_ms


def _opener(process: Process) -> dict[str, str]:
    """Return the ids that the opener of a process names; empty ones where it names none, as a schedule's."""
    try:
        envelope = msgspec.json.decode(process.opener)
    except msgspec.DecodeError:
        envelope = None
    metadata = envelope.get("metadata") if isinstance(envelope, dict) else None
    named = metadata if isinstance(metadata, dict) else {}
    return {name: str(named.get(name) or "") for name in ("message_id", "conversation_id", "message_type")}


PROCESSES_ROUTES = (processes_page,)

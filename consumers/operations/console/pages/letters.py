"""Dead letters: by cause, one cause over time, one letter, and sending them back."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import msgspec
from litestar import Response, get, post
from litestar.response import Redirect

from bus.errors import OffsetOutOfRangeError, TopicMissingError
from bus.protocol.reasons import DECIDED_BY_BYTES, FORGED
from bus.redaction import cut, masked, masked_member, redacted
from bus.topics.names import read_topic
from bus.transports.base import Record
from consumers.deadletters.causes import cause_of
from consumers.deadletters.diagnosis import Diagnosis, examine
from consumers.deadletters.letter_state import state_of
from consumers.deadletters.letters import DeadLetter, read_dead_letter
from consumers.deadletters.selection import Selection
from consumers.operations.console.model import Console
from consumers.operations.console.pages.frame import (
    PAGE_ROWS,
    PageRequest,
    console_of,
    data_lines,
    digits_of,
    json_text,
    page_of,
    parameter,
    posted_form,
    problem,
    session_of,
)
from consumers.operations.lineage.log_search import stored_copy
from consumers.operations.survey.explanation import explain_message
from consumers.operations.survey.letter_watch import CauseCount, LetterPage, LetterWatch, WantedLetters

__all__ = ["LETTERS_ROUTES"]

_FILTERS: Final = {"cause": "", "type": "", "reason": "", "sender": "", "state": "open"}
_KNOWN_STATES: Final = frozenset({"open", "redriven", "parked", "dismissed", ""})
_STATES: Final = (
    ("open", "Open"),
    ("redriven", "Sent back"),
    ("parked", "Parked"),
    ("dismissed", "Dismissed"),
    ("", "All"),
)
_MAX_WHY: Final = 500
_BARS: Final = 45
_EXAMPLES: Final = 5
_MAX_VALUE: Final = 200
_MAX_DEATHS: Final = 5_000


@get("/letters")
async def letters(request: PageRequest) -> Response[str]:
    """Show dead letters by cause, and a page of them."""
    console = console_of(request)
    filters = {name: parameter(request, name, default) for name, default in _FILTERS.items()}
    if filters["state"] not in _KNOWN_STATES:
        filters["state"] = ""
    watch = await console.letters()
    found = None if watch is None else await watch.page(_wanted(filters), _number(request), PAGE_ROWS)
    now_ms = console.clock.now_ms()
    names = () if found is None else [each.name for each in found.causes]
    return page_of(
        request,
        "letters.html",
        found=found,
        filters=filters,
        states=_STATES,
        decided_by_bytes=DECIDED_BY_BYTES,
        lines={name: console.samples.hour(f"cause {name}", now_ms) for name in names},
        oldest_ms=None if console.survey is None else console.survey.letters.oldest_ms,
    )


def _wanted(filters: dict[str, str]) -> WantedLetters:
    return WantedLetters(
        cause=filters["cause"],
        message_type=filters["type"],
        reason=filters["reason"],
        sender=filters["sender"],
        state=filters["state"],
    )


def _number(request: PageRequest) -> int:
    return digits_of(parameter(request, "page", "1")) or 1


@get("/letters/cause")
async def cause_page(request: PageRequest) -> Response[str]:
    """Show one cause: when its letters died, what would have passed, and the way to mend it."""
    name, console = parameter(request, "name"), console_of(request)
    watch = await console.letters()
    if watch is None:
        return problem(request, "dead letters are not read yet", "load the page again in some seconds", code=503)
    found = await watch.page(WantedLetters(cause=name, state="open"), _number(request), PAGE_ROWS)
    is_open = bool(found.causes)
    if not is_open:
        found = await watch.page(WantedLetters(cause=name, state=""), _number(request), PAGE_ROWS)
    if not name or not found.causes:
        return problem(request, f"no dead letter has the cause {name}", "they may have been deleted by retention")
    one = found.causes[0]
    tried = await _tried(console, found, one.cause.pointer)
    described = None
    if tried.first is not None:
        letter, finding = tried.first
        copy = stored_copy(letter.record, "dlq")
        known = await console.letter_state(letter.place)
        described = explain_message(copy.message_id, [copy], [(letter, known, finding)])
    times = await _deaths(watch, name)
    now_ms = console.clock.now_ms()
    return page_of(
        request,
        "cause.html",
        one=one,
        name=name,
        is_open=is_open,
        can_pass=one.cause.reason not in DECIDED_BY_BYTES,
        found=found,
        finding=None if tried.first is None else tried.first[1],
        described=described,
        bars=_bars(times, now_ms),
        first_ms=min(times, default=now_ms),
        is_cut=len(times) >= _MAX_DEATHS,
        tried=tried,
        workers={group.name: group.members for group in (console.survey.groups if console.survey else ())},
    )


async def _deaths(watch: LetterWatch, name: str) -> list[int]:
    """Return when the letters of a cause died, of the newest 5,000."""
    times: list[int] = []
    for page in range(1, _MAX_DEATHS // 500 + 1):
        found = await watch.page(WantedLetters(cause=name, state=""), page, 500)
        times += [each.failed_ms for each in found.letters]
        if page >= found.pages:
            break
    return times


def _bars(times: Sequence[int], now_ms: int) -> list[float]:
    """Return how many of *times* are in each part of the time from the first until *now_ms*. Pure."""
    begin_ms = min(times, default=now_ms)
    width = max(1.0, (now_ms - begin_ms) / _BARS)
    bars = [0.0] * _BARS
    for each in times:
        bars[min(_BARS - 1, max(0, int((each - begin_ms) / width)))] += 1
    return bars


class _Tried(NamedTuple):
    """What the first letters of a page have, and whether the checks would let them pass today."""

    values: dict[str, str]
    """By place, the value of the refused field."""
    looked: int
    passing: int
    first: tuple[DeadLetter, Diagnosis] | None
    """The newest of them that could be read."""


async def _tried(console: Console, found: LetterPage, pointer: str) -> _Tried:
    """Look at the first letters of a page with the types that are known now; handlers are not asked."""
    values, looked, passing = dict[str, str](), 0, 0
    first: tuple[DeadLetter, Diagnosis] | None = None
    registry, limit = await console.registry(), console.settings.publish.max_message_bytes
    chosen = found.letters[:_EXAMPLES]
    records = await asyncio.gather(*(_record_at(console, each.place) for each in chosen))
    for each, record in zip(chosen, records, strict=True):
        letter = None if record is None else read_dead_letter(record)
        if letter is None:
            continue
        verdict = examine(letter, registry, namespace=console.settings.bus.namespace, max_message_bytes=limit)
        first = first or (letter, verdict)
        if letter.message is None:
            continue
        looked, passing = looked + 1, passing + (not verdict.reason)
        if pointer.startswith("/data"):
            values[each.place] = _value_at(masked(msgspec.json.decode(letter.message.data)), pointer)
    return _Tried(values, looked, passing, first)


def _value_at(data: Any, pointer: str) -> str:
    """Return the JSON at *pointer*, which begins with /data, in *data*, cut."""
    for part in pointer.split("/")[2:]:
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(data, dict) and name in data:
            data = data[name]
        elif isinstance(data, list) and name.isascii() and name.isdigit() and int(name) < len(data):
            data = data[int(name)]
        else:
            return "(missing)"
    return cut(json_text(data), _MAX_VALUE)


@get("/letters/show")
async def letter(request: PageRequest) -> Response[str]:
    """Show one dead letter: its reason, the field, its history and its content."""
    location = parameter(request, "place")
    console = console_of(request)
    record = await _record_at(console, location)
    if record is None:
        return problem(request, f"no dead letter at {location}", "retention may have taken it")
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
    cause = cause_of(found).name if listed is None else listed.cause_name
    others = 0
    if watch is not None:
        others = (await watch.page(WantedLetters(cause=cause, state=""), 1, 1)).total - 1
    return page_of(
        request,
        "letter.html",
        letter=found,
        message_id=copy.message_id,
        state_now=state_of(found, known),
        can_pass=found.reason not in DECIDED_BY_BYTES,
        error=redacted(found.error),
        cause=cause,
        others=max(0, others),
        steps=() if known is None else known.steps,
        finding=finding,
        described=described,
        lines=data_lines(masked(data), found.pointer.removeprefix("/data")),
        sealed_ms=None if found.message is None else found.record.timestamp_ms,
        headers=[(cut(name, 1_000), masked_member(name, _text_of_bytes(value))) for name, value in record.headers],
    )


async def _record_at(console: Console, location: str) -> Record | None:
    topic, *rest = location.rsplit("/", 2)
    name = read_topic(topic)
    numbers = [digits_of(part) for part in rest]
    if name is None or name.kind != "dlq" or len(numbers) != 2 or numbers[0] is None or numbers[1] is None:  # noqa: PLR2004
        return None
    try:
        found = await console.transport.read(
            topic, numbers[0], numbers[1], max_records=1, max_bytes=16 << 20, wait_s=0.5
        )
    except (TopicMissingError, OffsetOutOfRangeError):
        return None
    return found[0] if found and found[0].offset == numbers[1] else None


def _text_of_bytes(value: bytes) -> str:
    return value.decode("utf-8", "backslashreplace")


@get("/letters/redrive")
async def redrive_page(request: PageRequest) -> Response[str]:
    """Show the letters that a redrive would send, and ask for the reason."""
    cause = parameter(request, "cause")
    location = parameter(request, "place")
    console = console_of(request)
    watch = await console.letters()
    causes = [] if watch is None else await _meant(watch, cause, location)
    if not causes:
        return problem(request, "no open dead letter matches", "they may have been sent back already", code=410)
    if causes[0].cause.reason in DECIDED_BY_BYTES:
        return _unchangeable(request, causes[0].cause.reason, cause, location)
    groups = {each.cause.group for each in causes}
    workers = {group.name: group.members for group in (console.survey.groups if console.survey is not None else ())}
    return page_of(
        request,
        "redrive.html",
        letters=sum(each.count for each in causes),
        cause=causes[0].cause,
        is_forged=causes[0].cause.reason in FORGED,
        sender=causes[0].sender,
        cause_name=cause,
        place=location,
        # A dry run keeps it.
        why=parameter(request, "why")[:_MAX_WHY],
        groups=[(group, workers.get(group, 0)) for group in sorted(groups) if group],
    )


def _unchangeable(request: PageRequest, reason: str, cause: str, location: str) -> Response[str]:
    """Return the page that no redrive changes what died of *reason*; a redrive leaves it out as well."""
    which = location or f"--cause {cause}"
    text = f"a redrive cannot change {reason}: the same bytes would be refused again"
    return problem(request, text, f'find their sender, then: sealbus dlq dismiss {which} --why "..."', code=409)


async def _meant(watch: LetterWatch, cause: str, location: str) -> Sequence[CauseCount]:
    """Return the causes of the open letters of *cause* or at *location*, with how many are meant."""
    if not location:
        return (await watch.page(WantedLetters(cause=cause), 1, PAGE_ROWS)).causes if cause else ()
    found = watch.letter_at(location)
    if found is None or found.state != "open" or cause not in ("", found.cause_name):
        return ()
    return (CauseCount(cause=found.cause, name=found.cause_name, sender=found.sender, count=1),)


@post("/letters/redrive")
async def start_redrive(request: PageRequest) -> Response[Any]:
    """Start a redrive, or count its letters."""
    fields, refused = await posted_form(request, "redrive")
    if refused is not None:
        return refused
    cause, location, why = fields.get("cause", ""), fields.get("place", ""), fields.get("why", "").strip()[:_MAX_WHY]
    is_dry = fields.get("act") == "count"
    if not cause and not location:
        return problem(request, "no dead letters are selected", code=400)
    if not why and not is_dry:
        return problem(request, "a redrive needs a reason", "enter what was fixed", code=400)
    watch = await console_of(request).letters()
    selection = Selection(
        cause=cause or None,
        # What the page has shown is meant, as it was told apart there.
        causes=watch.causes if watch is not None and watch.is_whole else None,
        places=frozenset([location] if location else []),
        states=frozenset({"open"}),
    )
    session = session_of(request)
    who = session.name if session is not None else ""
    run = console_of(request).start_redrive(selection, who=who, why=why, is_dry=is_dry)
    return Redirect(f"/runs/{run.number}", status_code=303)


@get("/runs/{number:int}")
async def run_page(request: PageRequest) -> Response[str]:
    """Show how far a redrive is."""
    number = int(request.path_params["number"])
    run = console_of(request).runs.get(number)
    if run is None:
        return problem(request, f"no redrive {number} since this console started")
    counts = sorted((run.plan.counts if run.plan is not None else {}).items(), key=lambda item: -item[1])
    console = console_of(request)
    workers = {group.name: group.members for group in (console.survey.groups if console.survey is not None else ())}
    return page_of(
        request,
        "redrive_run.html",
        run=run,
        counts=counts,
        before=max(
            (each.number for each in console.runs.values() if each.number < number and not each.is_ended), default=0
        ),
        idle=sorted(group for group in run.groups if group and not workers.get(group, 0)),
    )


LETTERS_ROUTES = (letters, cause_page, letter, redrive_page, start_redrive, run_page)

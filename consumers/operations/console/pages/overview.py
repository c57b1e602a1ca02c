"""Overview: what is wrong, since when and what to do; the last hour in figures; what works now and what changed."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import quote

import msgspec
from litestar import Response, get
from litestar.response import Redirect

from bus.protocol.identifiers import is_message_id, is_text_id, uuid7_ms
from consumers.operations.console.model import Console, NotRead
from consumers.operations.console.pages.approvals import approvals_of
from consumers.operations.console.pages.conversations import has_conversation, newest_conversations
from consumers.operations.console.pages.costs import spent_today
from consumers.operations.console.pages.frame import PageRequest, console_of, page_of, parameter
from consumers.operations.console.words import age, clock_time, count, duration, money, short_count
from consumers.operations.survey.letter_watch import OpenLetters
from consumers.operations.survey.results import CheckResult
from consumers.operations.survey.survey import Survey
from consumers.operations.survey.verdicts import DECIDED
from consumers.processes.sagas.process import Process

__all__ = ["OVERVIEW_ROUTES", "Figure", "ShownFault", "letters_figure"]

_PLACES: Final = {
    "letters": ("/letters", "Mend the dead letters"),
    "groups": ("/groups", "Look at the group"),
    "agents": ("/agents", "Look at the agents"),
    "processes": ("/processes", "Look at the processes"),
    "approvals": ("/approvals", "Look at the approvals"),
    "inbox": ("/groups", "Look at the groups"),
    "audit": ("/audit", "Look at the audit"),
    "costs": ("/costs", "Look at the costs"),
}
_LISTS: Final = {"--overdue": "overdue", "--state failed": "failed"}
_LETTER_PLACE: Final = re.compile(r"[A-Za-z0-9._-]+\.dlq/[0-9]{1,9}/[0-9]{1,18}")
_APPROVAL: Final = re.compile(r"(?:sha256:)?([0-9a-f]{8,64})")
_CAUSES: Final = 3
_CHANGES: Final = 8


class ShownFault(msgspec.Struct, frozen=True, kw_only=True):
    """One check that is no success. Texts of agents in it are untrusted."""

    check: CheckResult
    since_ms: int | None
    link: str
    button: str


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """One figure of the overview, with its line of the last hour."""

    label: str
    value: str
    unit: str
    note: str
    link: str
    values: Sequence[float]
    description: str
    """Tells the content of the line."""
    tone: str = ""
    least: float = 1.0


@get("/")
async def overview(request: PageRequest) -> Response[str]:
    """Show the current problems, most urgent first."""
    console = console_of(request)
    # Of one look: another may come while the page is made.
    survey, checks, now_ms = console.survey, console.checks, console.clock.now_ms()
    troubles = [
        ShownFault(
            check=check,
            since_ms=console.changes.since_ms(check),
            link=link,
            button=word,
        )
        for check in checks
        if check.state in ("fault", "hint")
        for link, word in (_place_of(check),)
    ]
    talks = await newest_conversations(console)
    fine = [check for check in checks if check.state in ("ok", "unknown")]
    since = [each.since_ms for each in troubles if each.check.state == "fault" and each.since_ms is not None]
    causes = (
        [
            each
            for each in zip(survey.letters.causes, survey.letters.names, survey.letters.senders, strict=False)
            if each[0][0].reason != DECIDED
        ]
        if survey
        else []
    )
    return page_of(
        request,
        "overview.html",
        checks=checks,
        troubles=troubles,
        faults=sum(each.check.state == "fault" for each in troubles),
        fine=fine,
        unseen=sum(check.state == "unknown" for check in fine),
        first_ms=min(since, default=None),
        causes=causes[:_CAUSES],
        figures=[] if survey is None else await _figures(request, survey, now_ms),
        begun_ms=console.samples.begun_ms,
        talks=None if isinstance(talks, NotRead) else talks,
        talks_unread=talks.why if isinstance(talks, NotRead) else "",
        changes=list(console.changes.latest)[:_CHANGES],
    )


def _place_of(check: CheckResult) -> tuple[str, str]:
    """Return the page where *check* is mended, and the word on the way there; empty where there is none."""
    link, word = _PLACES.get(check.area, ("", ""))
    # The cure names the list of the command line; the page has the same ones.
    status = next((status for option, status in _LISTS.items() if option in check.cure), "")
    return (f"{link}?status={status}", word) if status and check.area == "processes" else (link, word)


async def _figures(request: PageRequest, survey: Survey, now_ms: int) -> list[Figure]:
    console = console_of(request)
    samples = console.samples
    settled = samples.hour("settled", now_ms)
    rate = next((value for value in reversed(settled) if not math.isnan(value)), None)
    oldest_s = max((group.oldest_s or 0.0 for group in survey.groups), default=0.0)
    since_ms = samples.since_ms("oldest_s", now_ms, above=60.0)
    figures = [
        Figure(
            label="Settled a second",
            value="–" if rate is None else short_count(rate),
            unit="",
            note=_usual(settled),
            link="/groups",
            values=settled,
            description=_told(settled, "a second"),
        ),
        Figure(
            label="Oldest that waits",
            value=duration(oldest_s).rpartition(" ")[0] or "0",
            unit=duration(oldest_s).rpartition(" ")[2] if oldest_s else "s",
            note=f"over a minute since {clock_time(since_ms)}"
            if since_ms is not None
            else f"records that wait: {count(sum(group.lag for group in survey.groups))}",
            link="/groups",
            values=samples.hour("oldest_s", now_ms),
            description=_told(samples.hour("oldest_s", now_ms), "seconds"),
            tone="bad" if oldest_s > 60 else "",  # noqa: PLR2004 - a minute, as in the note
            least=60.0,
        ),
        letters_figure(survey.letters, samples.ago("letters", now_ms, 600.0), samples.hour("letters", now_ms)),
    ]
    work = survey.work
    if not (work.unseen or work.error):
        oldest_ms = work.oldest_approval_ms
        figures.append(
            Figure(
                label="Approvals",
                value=count(work.approvals),
                unit="",
                note="" if oldest_ms is None else f"the first asked {age(oldest_ms, now_ms)}",
                link="/approvals",
                values=samples.hour("approvals", now_ms),
                description=_told(samples.hour("approvals", now_ms), "approvals"),
                least=4.0,
            )
        )
    spent = await spent_today(console)
    if spent is not None:
        figures.append(
            Figure(
                label="Spent today",
                value=money(spent.cost),
                unit=f"of {money(spent.budget)}" if spent.budget else "",
                note=f"{short_count(spent.tokens)} tokens, as agents report",
                link="/costs",
                values=(),
                description="",
                tone="bad" if 0 < spent.budget < spent.cost else "",
            )
        )
    return figures


def letters_figure(letters: OpenLetters, before: float | None, hour: Sequence[float]) -> Figure:
    """Return the figure of the open *letters*; *before*: their number ten minutes ago, None where it is not known."""
    more = 0 if before is None else letters.count - int(before)
    note = "" if before is None else f"{more:+,} in 10 min" if more else "no change in 10 min"
    return Figure(
        label="Dead letters, open",
        value=count(letters.count),
        unit="",
        note=note if letters.is_whole else "so far, more are being read",
        link="/letters",
        values=hour,
        description=_told(hour, "dead ones"),
        tone="bad" if any(reason != DECIDED for _, reason, _ in letters.by_type) else "",
    )


def _usual(values: Sequence[float]) -> str:
    known = sorted(value for value in values if not math.isnan(value))
    if len(known) < 20:  # noqa: PLR2004 - a minute of looks
        return ""
    return f"usual now: {short_count(known[len(known) // 10])} to {short_count(known[len(known) * 9 // 10])}"


def _told(values: Sequence[float], unit: str) -> str:
    known = [value for value in values if not math.isnan(value)]
    if not known:
        return "no line yet"
    span = f"between {short_count(min(known))} and {short_count(max(known))} {unit}"
    return f"{span} in the last hour, now {short_count(known[-1])}"


@get("/search")
async def search(request: PageRequest) -> Redirect:
    """Lead to what the words of the search name, by its id; else to the conversations that have them."""
    console, wanted = console_of(request), parameter(request, "q").strip()
    survey = console.survey
    if survey is not None and any(agent.agent_id == wanted for agent in survey.agents):
        return Redirect(f"/agents/show?id={quote(wanted, safe='')}", status_code=303)
    if survey is not None and any(group.name == wanted for group in survey.groups):
        return Redirect(f"/groups?name={quote(wanted, safe='')}", status_code=303)
    if survey is not None and wanted in survey.letters.names:
        return Redirect(f"/letters/cause?name={quote(wanted, safe='')}", status_code=303)
    if _LETTER_PLACE.fullmatch(wanted):
        return Redirect(f"/letters/show?place={quote(wanted, safe='')}", status_code=303)
    if (digits := _APPROVAL.fullmatch(wanted.lower())) is not None:
        found = [each.digits for each in await approvals_of(console) if each.digits.startswith(digits[1])]
        if len(found) == 1:
            return Redirect(f"/approvals/show?id={found[0]}", status_code=303)
    if (process := await _process_named(console, wanted)) is not None:
        return Redirect(f"/processes?id={process.id.hex()}", status_code=303)
    if is_message_id(wanted) and uuid7_ms(wanted) is not None:
        return Redirect(f"/messages?id={quote(wanted, safe='')}", status_code=303)
    if is_text_id(wanted) and await has_conversation(console, wanted):
        return Redirect(f"/conversations?id={quote(wanted, safe='')}", status_code=303)
    return Redirect(f"/conversations?q={quote(wanted, safe='')}", status_code=303)


async def _process_named(console: Console, wanted: str) -> Process | None:
    """Return the process or task of that id; None where there is none, or no inbox that can be asked."""
    if not wanted or not is_text_id(wanted):
        return None
    found = await console.of_processes(lambda store: store.named(wanted))
    return found[0] if isinstance(found, list) and len(found) == 1 else None


OVERVIEW_ROUTES: Any = (overview, search)

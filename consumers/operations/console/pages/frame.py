"""Frame: what all pages share: the model and session of a request, the answer around a template, JSON as lines."""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import msgspec
from litestar import MediaType, Request, Response
from litestar.response import Redirect

from bus.protocol.timestamps import format_ms
from consumers.operations.console.access import BrowserSession, BrowserSessions
from consumers.operations.console.model import Console
from consumers.operations.console.rendering import render

__all__ = [
    "COOKIE",
    "PAGE_ROWS",
    "DataLine",
    "PageRequest",
    "console_of",
    "data_lines",
    "posted_form",
    "json_text",
    "page_of",
    "parameter",
    "problem",
    "session_of",
    "sessions_of",
    "digits_of",
]

COOKIE: Final = "sealbus-console"
PAGE_ROWS: Final = 50
"""Rows of one page of a list."""
_MAX_DIGITS: Final = 15
_MAX_PARAMETER: Final = 400
_FEW_BEHIND: Final = 2
_STALE_MS: Final = 60_000
"""A page of which the last look is older says so."""

PageRequest: TypeAlias = Request[Any, Any, Any]


def console_of(request: PageRequest) -> Console:
    """Return the model that *request* is about."""
    found: Console = request.app.state.console
    return found


def sessions_of(request: PageRequest) -> BrowserSessions:
    """Return the sessions of all browsers."""
    found: BrowserSessions = request.app.state.sessions
    return found


def session_of(request: PageRequest) -> BrowserSession | None:
    """Return the session of *request*; None without one."""
    return sessions_of(request).find(request.cookies.get(COOKIE), console_of(request).clock.monotonic_s())


def page_of(request: PageRequest, template: str, /, *, code: int = 200, **facts: Any) -> Response[str]:
    """Return the page *template* with *facts* and what the frame shows."""
    console = console_of(request)
    now_ms = console.clock.now_ms()
    about = {
        "path": request.url.path,
        "session": session_of(request),
        "namespace": console.settings.bus.namespace,
        "log_kind": _log_kind(console.settings.bus.url),
        "survey": console.survey,
        "faults": sum(each.state == "fault" for each in console.checks),
        "now_ms": now_ms,
        "looked_ms": console.looked_ms,
        "is_stale": bool(console.looked_ms) and now_ms - console.looked_ms > _STALE_MS,
        "survey_ms": (survey_ms := _old_survey_ms(console)),
        "as_of": "" if survey_ms is None else f"At {format_ms(survey_ms)[11:19]} UTC: ",
        "audit_note": _audit_note(console),
    }
    return Response(render(template, **(about | facts)), media_type=MediaType.HTML, status_code=code)


def problem(
    request: PageRequest, text: str, cure: str = "", *, code: int = 404, link: tuple[str, str] | None = None
) -> Response[str]:
    """Return the page that there is nothing here, and why; *link* is an address of the console and its words."""
    return page_of(request, "problem.html", text=text, cure=cure, link=link, code=code)


def parameter(request: PageRequest, name: str, default: str = "") -> str:
    """Return the parameter *name* of the address, cut."""
    found: str = request.query_params.get(name, default)
    return found[:_MAX_PARAMETER].replace("\0", "")


def digits_of(text: str) -> int | None:
    """Return the number that *text* is; None for anything but up to 15 digits."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS else None


async def posted_form(request: PageRequest, scope: str) -> tuple[dict[str, str], Response[Any] | None]:
    """Return the fields that were posted, and the answer where they must not act."""
    fields = {name: str(value) for name, value in (await request.form()).items()}
    session = session_of(request)
    if session is None:
        back = request.headers.get("referer", "").partition("//")[2].partition("/")[2]
        return fields, Redirect(f"/login?next=/{back}" if back else "/login", status_code=303)
    if scope not in session.scopes:
        return fields, problem(request, f"the token of {session.name} has no scope {scope}", code=403)
    if fields.get("csrf") != session.csrf:
        return fields, problem(request, "this form is of an earlier session", "load the page again", code=403)
    return fields, None


class DataLine(msgspec.Struct, frozen=True):
    """A line of a payload; *is_meant*: the field that was refused."""

    text: str
    is_meant: bool


def data_lines(value: Any, pointer: str = "", here: str = "", indent: int = 0, name: str = "") -> list[DataLine]:
    """Return *value* as lines of JSON, in which the one at *pointer* is marked."""
    margin, label = "  " * indent, f"{json_text(name)}: " if name else ""
    is_meant = bool(pointer) and here == pointer
    if isinstance(value, dict | list) and value:
        members = value.items() if isinstance(value, dict) else enumerate(value)
        opens, closes = "{}" if isinstance(value, dict) else "[]"
        lines = [DataLine(f"{margin}{label}{opens}", is_meant)]
        for key, each in members:
            at = f"{here}/{str(key).replace('~', '~0').replace('/', '~1')}"
            lines += data_lines(each, pointer, at, indent + 1, str(key) if isinstance(value, dict) else "")
        missing = pointer.rpartition("/")
        if pointer and missing[0] == here and isinstance(value, dict) and missing[2] not in value:
            lines.append(DataLine(f"{margin}  {json_text(missing[2])}: (missing)", True))
        return [*lines, DataLine(f"{margin}{closes}", False)]
    return [DataLine(f"{margin}{label}{json_text(value)}", is_meant)]


def json_text(value: Any) -> str:
    """Return *value* as JSON."""
    return msgspec.json.encode(value).decode()


def _old_survey_ms(console: Console) -> int | None:
    """Return of when the facts of the pages are, where the last look could not read the log; else None."""
    survey = console.survey
    return survey.taken_ms if survey is not None and survey.taken_ms < console.looked_ms else None


def _audit_note(console: Console) -> str:
    """Return how far the audit is behind the log; empty where it has all, or was not looked at."""
    audit = None if console.survey is None else console.survey.audit
    if audit is None:
        return ""
    if audit.error:
        return f"The audit cannot be read: {audit.error}"
    if audit.is_empty or audit.behind > _FEW_BEHIND:
        return f"The audit has not recorded the newest {audit.behind:,} records: they are missing here."
    return ""


def _log_kind(url: str) -> str:
    return {"kafka": "Kafka", "sqlite": "SQLite", "memory": "in memory"}.get(
        url.partition(":")[0], url.partition(":")[0]
    )

"""The HTTP door: tasks, their events, artifacts, agents and types, as routes with an OpenAPI document."""

from __future__ import annotations

from typing import Annotated, Any, Final
from urllib.parse import quote

import msgspec
from litestar import Request, Response, get, post
from litestar.params import FromPath, FromQuery, HeaderParameter
from litestar.response.base import ASGIResponse

from bus.redaction import cut
from consumers.gateway.credentials import Credential
from consumers.gateway.event_stream import EventStream
from consumers.gateway.gateway import Gateway, TaskAnswers, TaskOrder
from consumers.gateway.strict_body import strict_body
from consumers.processes.tasks.snapshot import TaskSnapshot, TaskState, cursor_fits
from consumers.web.refusal import HttpRefusal

__all__ = ["KEY", "NONE_MATCH", "PREFER", "TASK_ROUTES", "Asked", "generation_of", "preferred_wait_s", "cursor_in"]

Asked = Request[Any, Any, Any]

KEY = Annotated[str | None, HeaderParameter(name="Idempotency-Key", description="Under one key it is one task.")]
PREFER = Annotated[str | None, HeaderParameter(name="Prefer", description="`wait=N`: answer once the task has ended.")]
_ANSWER_KEY = Annotated[
    str | None, HeaderParameter(name="Idempotency-Key", description="Under one key it is one answer.")
]
_MATCH = Annotated[
    str | None, HeaderParameter(name="If-Match", description="The cursor that the task must still have.")
]
NONE_MATCH = Annotated[str | None, HeaderParameter(name="If-None-Match", description="The cursor that is known.")]
_LAST = Annotated[str | None, HeaderParameter(name="Last-Event-ID", description="The cursor that was seen last.")]
_REPLAYED: Final = "idempotent-replayed"
_RESET: Final = "x-sealbus-reset"
"""The cursor does not fit the task: what its client has seen is lost, as after a restored backup."""


class Nothing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of a request that needs none."""


class TaskPage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Some tasks of the credential, those changed last first."""

    tasks: list[TaskSnapshot]
    before: str | None = None
    """`?before=` of the next page; absent on the last one."""


def _gateway(request: Asked) -> Gateway:
    found: Gateway = request.app.state.gateway
    return found


def _credential(request: Asked) -> Credential:
    found: Credential = request.scope["state"]["credential"]
    return found


def _answer(snapshot: TaskSnapshot, status: int, **headers: str) -> Response[TaskSnapshot]:
    return Response(
        snapshot,
        status_code=status,
        headers={"etag": f'"{snapshot.cursor}"', "cache-control": "no-store", **headers},
    )


def _location(snapshot: TaskSnapshot) -> str:
    return f"/tasks/{quote(snapshot.id, safe='')}"


def preferred_wait_s(prefer: str | None) -> float:
    """Return N of `Prefer: wait=N`; 0 without it. Pure."""
    for part in (prefer or "").split(","):
        name, _, value = part.strip().partition("=")
        if name.strip().lower() == "wait" and value.strip().isdecimal() and len(value.strip()) < 7:  # noqa: PLR2004
            return float(value)
    return 0.0


def generation_of(cursor: str) -> int | None:
    """Return the generation of a *cursor*, or of a bare number; None for other texts. Pure."""
    number = cursor.strip().strip('"').partition("-")[0]
    return int(number) if number.isdecimal() and len(number) < 16 else None  # noqa: PLR2004


def cursor_in(tag: str | None) -> str | None:
    """Return the cursor in an entity tag. Pure."""
    return None if tag is None else tag.strip().removeprefix("W/").strip('"')


@post(
    "/tasks",
    status_code=202,
    summary="Ask an agent for work",
    description="202: the task. 200: it ended within `Prefer: wait=N`, or its key had opened it before.",
)
async def open_task(request: Asked, key: KEY = None, prefer: PREFER = None) -> Response[TaskSnapshot]:
    gateway, credential = _gateway(request), _credential(request)
    opened = await gateway.open(credential, strict_body(await request.body(), TaskOrder), key=key)
    snapshot = opened.snapshot
    if (wait_s := preferred_wait_s(prefer)) > 0 and not snapshot.is_over:
        snapshot = await gateway.wait(credential, snapshot.id, after=snapshot.generation, wait_s=wait_s, until_end=True)
    headers = {"location": _location(snapshot)}
    if opened.is_repeat:
        headers[_REPLAYED] = "true"
    return _answer(snapshot, 200 if opened.is_repeat or snapshot.is_over else 202, **headers)


@get("/tasks", summary="Your tasks, those changed last first")
async def list_tasks(
    request: Asked,
    status: FromQuery[TaskState | None] = None,
    before: FromQuery[str | None] = None,
) -> TaskPage:
    found, earlier = await _gateway(request).listed(_credential(request), status=status, before=before)
    return TaskPage(tasks=list(found), before=earlier)


@get(
    "/tasks/{task_id:str}",
    summary="A task",
    description=(
        "With `wait=N` it waits for a state newer than `after`, a cursor or a generation. One that does not fit the "
        "task is answered at once, with `X-Sealbus-Reset: true`. 304: it is still the one of If-None-Match."
    ),
)
async def get_task(
    request: Asked,
    task_id: FromPath[str],
    after: FromQuery[str | None] = None,
    wait: FromQuery[float] = 0,
    known: NONE_MATCH = None,
) -> Response[TaskSnapshot | None]:
    gateway, credential = _gateway(request), _credential(request)
    cursor = cursor_in(known if after is None else after)
    seen = None if cursor is None else generation_of(cursor)
    if after is not None and seen is None:
        raise HttpRefusal("INVALID_MESSAGE", "a cursor, or a generation", pointer="/after")
    if wait > 0:
        cursor = None if seen is None else cursor
        snapshot = await gateway.wait(credential, task_id, after=seen or 0, wait_s=wait, cursor=cursor)
    else:
        snapshot = await gateway.find(credential, task_id)
    if known is not None and cursor_in(known) == snapshot.cursor:
        return Response(None, status_code=304, headers={"etag": f'"{snapshot.cursor}"'})
    is_lost = cursor is not None and seen is not None and not cursor_fits(cursor, snapshot)
    return _answer(snapshot, 200, **({_RESET: "true"} if is_lost else {}))  # type: ignore[return-value]


@get(
    "/tasks/{task_id:str}/events",
    summary="The states of a task, as server-sent events",
    description=(
        "Each event `task` is the newest snapshot; `reset` stands before it where the cursor does not fit. The stream "
        "ends with the task; afterwards it is 204."
    ),
    media_type="text/event-stream",
)
async def task_events(
    request: Asked, task_id: FromPath[str], after: FromQuery[str | None] = None, last: _LAST = None
) -> ASGIResponse:
    gateway, credential = _gateway(request), _credential(request)
    process = await gateway.process_of(credential, task_id)
    return EventStream(gateway, credential, task_id, process, last if last is not None else after)


@get(
    "/tasks/{task_id:str}/artifacts/{artifact:path}",
    summary="An artifact of a task",
    media_type="application/octet-stream",
)
async def get_artifact(request: Asked, task_id: FromPath[str], artifact: FromPath[str]) -> Response[bytes]:
    entry, content = await _gateway(request).artifact(_credential(request), task_id, artifact.removeprefix("/"))
    name = quote(cut(entry.id, 100), safe="")
    return Response(
        content,
        media_type="application/octet-stream",
        headers={
            "content-disposition": f"attachment; filename*=UTF-8''{name}",
            "x-content-type-options": "nosniff",
            "cache-control": "no-store",
            "x-sealbus-media-type": quote(entry.media_type or "", safe="/+.-") if entry.media_type else "",
        },
    )


@post(
    "/tasks/{task_id:str}/input",
    status_code=202,
    summary="Answer what a task asks",
    description="202: the task. 200: it has this answer already.",
)
async def give_input(
    request: Asked, task_id: FromPath[str], key: _ANSWER_KEY = None, match: _MATCH = None
) -> Response[TaskSnapshot]:
    said = strict_body(await request.body(), TaskAnswers)
    done = await _gateway(request).answer(_credential(request), task_id, said, key=key, if_match=cursor_in(match))
    if done.is_repeat:
        return _answer(done.snapshot, 200, **{_REPLAYED: "true"})
    return _answer(done.snapshot, 202)


@post("/tasks/{task_id:str}/cancel", status_code=202, summary="Cancel a task")
async def cancel_task(request: Asked, task_id: FromPath[str], match: _MATCH = None) -> Response[TaskSnapshot]:
    if body := await request.body():
        strict_body(body, Nothing)
    snapshot = await _gateway(request).cancel(_credential(request), task_id, if_match=cursor_in(match))
    return _answer(snapshot, 202)


TASK_ROUTES: Final = (
    open_task,
    list_tasks,
    get_task,
    task_events,
    get_artifact,
    give_input,
    cancel_task,
)

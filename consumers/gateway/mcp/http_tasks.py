"""HttpTasks: a gateway elsewhere as a TaskClient, over its HTTP door. It imports the extra `mcp`."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeVar
from urllib.parse import quote, urlsplit

import httpx2
import msgspec

from bus.errors import ConfigurationError
from bus.redaction import cut
from consumers.gateway.gateway import AgentLine, TaskAnswers, TaskOrder, not_found
from consumers.processes.tasks.service import OpenedTask
from consumers.processes.tasks.snapshot import RESULT, TaskSnapshot
from consumers.web.listening import is_loopback
from consumers.web.refusal import HttpRefusal

__all__ = ["HttpTasks", "read_token"]

_T = TypeVar("_T")
_CONNECT_S: Final = 5.0
_ANSWER_S: Final = 15.0
_TRIES: Final = 3
_PAUSE_S: Final = 1.0
_MAX_KEYS: Final = 1_000
_MAX_TOKEN: Final = 4_096


class _Agents(msgspec.Struct):
    agents: list[AgentLine]


class _Refused(msgspec.Struct):
    code: str
    message: str
    status: str = "error"
    pointer: str = ""
    id: str | None = None


def read_token(path: Path) -> str:
    """Return the token in a file. Raises ConfigurationError."""
    try:
        with path.open("rb") as file:
            token = file.read(_MAX_TOKEN).strip()
    except OSError as error:
        raise ConfigurationError(f"the token cannot be read from {path}: {error.strerror}") from None
    if not token.isascii() or not token.decode("ascii", "replace").isprintable() or not token or b" " in token:
        raise ConfigurationError(f"{path} must hold one token and nothing else: `sealbus door add` prints it")
    return token.decode("ascii")


class HttpTasks:
    """The tasks of a token at the gateway of *url*; a context."""

    def __init__(self, url: str, token_file: Path) -> None:
        self._url = url.rstrip("/")
        self._token_file = token_file
        self._opened: OrderedDict[str, str] = OrderedDict()
        """The ids of the tasks that were opened here, by their keys."""
        host = urlsplit(url).hostname or ""
        self._http = httpx2.AsyncClient(
            base_url=self._url,
            follow_redirects=False,
            # The token goes to the gateway only: never through a proxy on the way to this machine.
            trust_env=not is_loopback(host),
        )

    async def __aenter__(self) -> Self:
        """Begin."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the connections."""
        await self._http.aclose()

    async def agents(self, query: str | None) -> Sequence[AgentLine]:
        """Return the agents that may be asked."""
        params = {} if query is None else {"query": query}
        return _decoded(await self._ask("GET", "/agents", params=params), _Agents).agents

    async def open(self, order: TaskOrder, key: str) -> OpenedTask:
        """Open the task of *key*, or return it."""
        said = {name: value for name, value in msgspec.structs.asdict(order).items() if value is not None}
        answer = await self._ask("POST", "/tasks", body=said, headers={"idempotency-key": key})
        snapshot = _decoded(answer, TaskSnapshot)
        self._opened[key] = snapshot.id
        if len(self._opened) > _MAX_KEYS:
            self._opened.popitem(last=False)
        return OpenedTask(snapshot, is_repeat=answer.headers.get("idempotent-replayed") == "true")

    async def opened_under(self, key: str) -> TaskSnapshot | None:
        """Return the task of *key*, if it was opened here."""
        task_id = self._opened.get(key)
        return None if task_id is None else await self.find(task_id)

    async def find(self, task_id: str) -> TaskSnapshot:
        """Return a task."""
        return _decoded(await self._ask("GET", _path(task_id)), TaskSnapshot)

    async def wait(self, task_id: str, *, after: int, wait_s: float) -> TaskSnapshot:
        """Return a task once its generation is above *after*, or as it is after *wait_s*."""
        params = {"after": str(after), "wait": f"{wait_s:.3f}"}
        return _decoded(await self._ask("GET", _path(task_id), params=params, wait_s=wait_s), TaskSnapshot)

    async def answer(self, task_id: str, said: TaskAnswers, *, if_match: str | None = None) -> TaskSnapshot:
        """Answer what a task asks."""
        headers = {} if if_match is None else {"if-match": f'"{if_match}"'}
        body = msgspec.structs.asdict(said)
        return _decoded(await self._ask("POST", f"{_path(task_id)}/input", body=body, headers=headers), TaskSnapshot)

    async def cancel(self, task_id: str) -> TaskSnapshot:
        """Cancel a task."""
        return _decoded(await self._ask("POST", f"{_path(task_id)}/cancel"), TaskSnapshot)

    async def large_result(self, task_id: str) -> bytes:
        """Return the result of a task that is too large for its snapshot."""
        answer = await self._ask("GET", f"{_path(task_id)}/artifacts/{RESULT}")
        return answer.content

    async def _ask(
        self,
        method: str,
        path: str,
        *,
        body: Mapping[str, Any] | None = None,
        params: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        wait_s: float = 0,
    ) -> httpx2.Response:
        """Return the gateway's answer. Raises HttpRefusal."""
        try:
            # Read each time: a token that was replaced counts at once.
            token = read_token(self._token_file)
        except ConfigurationError as error:
            raise HttpRefusal("AUTHENTICATION_FAILED", str(error)) from None
        given = {"authorization": f"Bearer {token}", "accept": "application/json", **(headers or {})}
        content = None if body is None else msgspec.json.encode(body)
        if content is not None:
            given["content-type"] = "application/json"
        timeout = httpx2.Timeout(_ANSWER_S + wait_s, connect=_CONNECT_S)
        for left in reversed(range(_TRIES)):
            try:
                answer = await self._http.request(
                    method, path, content=content, params=params, headers=given, timeout=timeout
                )
            except (httpx2.HTTPError, OSError) as error:
                raise HttpRefusal(
                    "SERVICE_UNAVAILABLE", f"no answer from the gateway at {self._url}: {type(error).__name__}"
                ) from None
            if answer.status_code < 300:  # noqa: PLR2004 - a success
                break
            refusal = _refusal_in(answer)
            # One call of a tool is several requests: a short burst too many is not the model's fault.
            if not left or refusal.code != "RATE_LIMIT" or not 0 < (refusal.retry_after_s or 0) <= _PAUSE_S:
                raise refusal
            await asyncio.sleep(_PAUSE_S)
        return answer


def _path(task_id: str) -> str:
    if not task_id or len(task_id) > 256 or not task_id.strip("."):  # noqa: PLR2004
        raise not_found()
    return f"/tasks/{quote(task_id, safe='')}"


def _decoded(answer: httpx2.Response, kind: type[_T]) -> _T:
    try:
        return msgspec.json.decode(answer.content, type=kind)
    except (msgspec.DecodeError, msgspec.ValidationError):
        raise HttpRefusal("INTERNAL_ERROR", "the answer is not of a sealbus gateway of this version") from None


def _refusal_in(answer: httpx2.Response) -> HttpRefusal:
    """Return the refusal that the gateway has answered with."""
    try:
        said = msgspec.json.decode(answer.content, type=_Refused)
    except (msgspec.DecodeError, msgspec.ValidationError):
        return HttpRefusal("INTERNAL_ERROR", f"the gateway has answered {answer.status_code}, in no form of its own")
    after = answer.headers.get("retry-after", "")
    return HttpRefusal(
        cut(said.code, 64),
        said.message,
        pointer=said.pointer,
        status=answer.status_code,
        retry_after_s=float(after) if after.isdecimal() and len(after) < 6 else None,  # noqa: PLR2004
        more=None if said.status == "error" else {"status": said.status, "id": said.id},
    )

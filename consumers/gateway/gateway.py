"""Gateway: what every door does for a credential: open a task, look at it, wait for it, answer and cancel it.

Owns what is judged between the guard and the log: recipient, type, content, ceiling. HTTP, WebSocket and MCP are only
forms of these calls.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Awaitable, Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, Any, Final, Protocol, TypeVar

import msgspec
from msgspec import Meta

from bus.artifacts.store import artifact_store, has_artifacts
from bus.clock import Clock
from bus.errors import BusError, ContractError, text_of
from bus.payloads.payload_types import PayloadType, Registry, payload_type
from bus.protocol import canonical
from bus.protocol.envelope import Agent, Security
from bus.protocol.identifiers import is_text_id, uuid7
from bus.protocol.sealing import Message
from bus.settings.schema import Settings
from bus.telemetry.logs import get_logger
from bus.topics.names import mailbox_topic, message_topic
from bus.trust.labels import least_trusted
from bus.vocabulary.parts import Ref
from bus.vocabulary.task import TaskCancel, TaskClarified
from consumers.gateway.agents import GATEWAY_GROUP, AgentSealers
from consumers.gateway.credentials import Credential, Credentials
from consumers.gateway.metrics import GatewayMetrics
from consumers.gateway.quotas import Quotas
from consumers.processes.sagas.process import NewerCode, Process, place_after, place_in
from consumers.processes.tasks.following import Following, TaskFollower
from consumers.processes.tasks.rows import TooManyOpen
from consumers.processes.tasks.service import (
    AppendUnconfirmed,
    NewTask,
    OpenedTask,
    TaskGone,
    TaskMoved,
    TaskService,
)
from consumers.processes.tasks.snapshot import (
    TASK_SAGA,
    ArtifactEntry,
    TaskSnapshot,
    content_hash_of,
    cursor_fits,
    unpack_task,
)
from consumers.web.refusal import HttpRefusal, of_contract
from producers.directory.presence import AgentEntry
from producers.outcomes import PublishRejected
from producers.sealing.options import Outgoing
from producers.sealing.seal_request import SealRequest
from producers.sealing.sealed_record import sealed_as

__all__ = ["Gateway", "KEY_AT", "TaskAnswers", "TaskOrder", "check_key"]

_T = TypeVar("_T")
_DIRECTORY_S: Final = 2.0
_TASK_LIFE_S: Final = 86_400.0
_MAX_KEY: Final = 256
KEY_AT: Final = "/headers/idempotency-key"
_KEY_DIGITS: Final = 40
_MAX_CONVERSATION: Final = 512
_PAGE: Final = 100
_NO_NAMES: Final[Mapping[str, str]] = MappingProxyType({})

_log = get_logger("gateway")


class TaskOrder(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is asked of whom: a *goal* with its *inputs*, or a message of another type with its *data*."""

    to: Annotated[str, Meta(min_length=1, max_length=256)]
    """The agent that is asked, by id."""
    goal: Annotated[str, Meta(min_length=1)] | None = None
    """What shall be true afterwards."""
    inputs: dict[str, Any] | None = None
    """What the work starts from."""
    message_type: str | None = None
    """The type of the request, instead of task.request."""
    data: dict[str, Any] | None = None
    """The data of that type."""
    ttl_s: Annotated[float, Meta(ge=1)] | None = None
    """Seconds after which the task has failed. By default a day."""
    conversation_id: Annotated[str, Meta(min_length=1, max_length=_MAX_CONVERSATION)] | None = None
    """Any text: tasks with the same one belong together."""


class TaskAnswers(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The answers to the questions of a task, in their order."""

    answers: Annotated[list[Annotated[str, Meta(min_length=1)]], Meta(min_length=1, max_length=64)]
    inputs: dict[str, Any] = {}
    """Merged over the inputs of the task."""


class AgentLine(msgspec.Struct, frozen=True, kw_only=True):
    """An agent that may be asked, as the directory knows it. What it says of itself is not to be trusted."""

    id: str
    health: str
    accepts: tuple[str, ...] = ()
    """Message types and versions."""
    capabilities: tuple[str, ...] = ()


class AgentSource(Protocol):
    """What knows the agents of the namespace."""

    async def find(self) -> Sequence[AgentEntry]:
        """Return the agents that are there."""

    async def get(self, agent_id: str) -> AgentEntry | None:
        """Return what is known of *agent_id*; None where it is unknown."""


class CredentialSource(Protocol):
    """Where credentials come from."""

    fault: str | None

    def current(self) -> Credentials:
        """Return the credentials of now."""


class Gateway:
    """The calls of one gateway process."""

    def __init__(
        self,
        settings: Settings,
        source: CredentialSource,
        sealers: AgentSealers,
        *,
        types: Registry,
        clock: Clock,
        metrics: GatewayMetrics | None = None,
    ) -> None:
        self.settings = settings
        self.source = source
        self.types = types
        self.quotas = Quotas(clock, max_streams=settings.gateway.streams)
        self.sealers = sealers
        self.clock = clock
        self.metrics = metrics or GatewayMetrics()
        self.metrics.streams.set_function(lambda: self.quotas.streams)
        self.metrics.credentials_fault.set_function(lambda: self.source.fault is not None)
        self._namespace = settings.bus.namespace
        self._tasks: TaskService | None = None
        self._follower: TaskFollower | None = None
        self.owners: set[str] = set()
        """Credentials that have opened a task here."""
        self.directory: AgentSource | None = None
        """Who is there; None: not looked at."""

    # Parts that come with the worker.

    def attach(self, tasks: TaskService, follower: TaskFollower) -> None:
        """Use *tasks* from now on; before that nothing is answered."""
        self._tasks, self._follower = tasks, follower

    @property
    def tasks(self) -> TaskService:
        """The service of the tasks. Raises HttpRefusal (503) before the worker has started."""
        if self._tasks is None:
            raise HttpRefusal("SERVICE_UNAVAILABLE", "the gateway is starting", retry_after_s=1)
        return self._tasks

    @property
    def follower(self) -> TaskFollower:
        """What tells of tasks. Raises HttpRefusal (503) before the worker has started."""
        if self._follower is None:
            raise HttpRefusal("SERVICE_UNAVAILABLE", "the gateway is starting", retry_after_s=1)
        return self._follower

    def told(self, process: Process) -> None:
        """Tell those who follow *process*, which was written here."""
        if process.status != "open":
            self.metrics.task(unpack_task(process).shown.status)
        if self._follower is not None:
            self._follower.tell(process)

    # Credentials, as the guard asks.

    def credential_of(self, token: str, path: str) -> Credential | None:
        """Return whose *token* it is, where that one may use the door of *path*."""
        found = self.source.current().of_token(token, self.clock.now_ms())
        if found is None:
            return None
        # `sealbus serve mcp` is the same door from outside: it reaches tasks and agents by HTTP.
        is_mcp = "mcp" in found.doors and path.startswith(_MCP_PATHS)
        return found if is_mcp or door_of(path) in found.doors else None

    def still(self, credential: Credential) -> Credential | None:
        """Return the present form of *credential*; None where it was removed, or the token it came with has ended."""
        found = self.source.current().by_name.get(credential.name)
        if found is None or found.agent != credential.agent:
            return None
        now_s, shown = self.clock.now_ms() / 1000, {each.sha256 for each in credential.tokens}
        good = tuple(
            each
            for each in found.tokens
            if each.sha256 in shown and (each.not_after is None or each.not_after.timestamp() > now_s)
        )
        return msgspec.structs.replace(found, tokens=good) if good else None

    def is_open(self, method: str, path: str) -> bool:
        """Return whether *path* needs no token."""
        return method in ("GET", "HEAD") and path in _OPEN

    def check_rate(self, credential: Credential) -> None:
        """Count a request. Raises HttpRefusal."""
        self.quotas.check_rate(credential)

    # Tasks.

    async def open(self, credential: Credential, order: TaskOrder, *, key: str | None = None) -> OpenedTask:
        """Open the task that *order* asks for; under a *key* it is the same task each time. Raises HttpRefusal."""
        check_key(key)
        kind, data, payload = self._content(order)
        self.check_addressee(credential, order.to, kind.name)
        task_id = self.task_id_of(credential, key)
        return await self.open_sealed(
            credential,
            task_id,
            self._draft(credential, order, payload, task_id),
            content_hash_of(order.to, kind.name, data),
            key_at=KEY_AT,
        )

    async def open_sealed(
        self,
        credential: Credential,
        task_id: str,
        draft: Outgoing,
        content_hash: str,
        *,
        data: bytes | None = None,
        dialect: str = "",
        names: Mapping[str, str] = _NO_NAMES,
        key_at: str = "",
    ) -> OpenedTask:
        """Open a task whose request is *draft*; *key_at* points to its key. Raises HttpRefusal."""
        new = NewTask(
            task_id=task_id,
            credential=credential.owner,
            agent=credential.agent,
            to=draft.to if isinstance(draft.to, str) else (draft.to.id or "") if draft.to is not None else "",
            draft=draft,
            content_hash=content_hash,
            max_open=credential.open_tasks,
            data=data,
            dialect=dialect,
            names=names,
            key_at=key_at,
        )
        timeout_s = self.settings.publish.timeout_s
        try:
            await self._check_taken(new)
            opened = await self.tasks.open(new, timeout_s=timeout_s)
        except TooManyOpen as error:
            raise HttpRefusal("RATE_LIMIT", str(error), retry_after_s=5) from None
        except AppendUnconfirmed as error:
            self.metrics.task("opened")
            raise unconfirmed(error, "repeating under the same key is safe") from None
        except ContractError as error:
            raise of_contract(error) from None
        except BusError as error:
            raise self.refusal_of(error, "nothing was opened") from None
        finally:
            self.owners.add(credential.owner)
        self.metrics.task("repeated" if opened.is_repeat else "opened")
        return opened

    async def _check_taken(self, new: NewTask) -> None:
        """Raise HttpRefusal where the agent that is asked is up and takes no messages of that type. Raises BusError.

        Without a directory, or a card there, the task is opened: its agent may come later.
        """
        entry = None
        if self.directory is not None:
            try:
                async with asyncio.timeout(_DIRECTORY_S):
                    entry = await self.directory.get(new.to)
            except (TimeoutError, BusError) as error:
                _log.warning("gateway.directory_away", error=text_of(error))
        name = payload_type(new.draft.payload).name
        if entry is None or (taken := types_if_refused(entry, name)) is None:
            return
        # What its key has opened before stays the same task, whatever its agent takes by now.
        if await self.tasks.find(new.credential, new.task_id) is None:
            raise HttpRefusal("unknown_type", f"{new.to} takes no {name}; it takes {taken}", pointer="/message_type")

    def refusal_of(self, error: BusError, so: str = "nothing was sent") -> HttpRefusal:
        """Return the answer where the log or the store does not take a message; *so*: what that means."""
        return _rejected(error) if isinstance(error, PublishRejected) else _away(error, so)

    async def publish(self, credential: Credential, draft: Outgoing, data: bytes) -> None:
        """Publish *draft*, whose canonical data is *data*, in the name of *credential*.

        Raises PublishRejected, PublishUnknown, BusError.
        """
        sealed = self.sealers.of(credential.agent).seal(draft, SealRequest(data=data))
        await self.tasks.publisher.send(sealed, timeout_s=self.settings.publish.timeout_s)

    async def publish_sealed(self, credential: Credential, message: Message) -> bool:
        """Publish the sealed *message* unchanged; False: it was published before. Raises HttpRefusal, BusError."""
        if message.metadata.namespace != self._namespace:
            raise HttpRefusal("wrong_audience", "it is sealed for another namespace", pointer="/metadata/namespace")
        try:
            self.sealers.judge(message, self.types, self.clock.now_ms())
        except ContractError as error:
            raise of_contract(error) from None
        rows, key = self.tasks.rows, f"sealed:{message.message_id}"
        if await self.has_sent(credential, key, message.verification.content_hash):
            return False
        sealed = sealed_as(message, message_topic(self._namespace, message.message_type))
        await self.tasks.publisher.send(sealed, timeout_s=self.settings.publish.timeout_s)
        until_ms = round(self.clock.now_ms() + self.settings.tasks.keep_s * 1000)
        return await rows.remember(credential.owner, key, message.verification.content_hash, until_ms)

    async def has_sent(self, credential: Credential, key: str, content: str) -> bool:
        """Return whether *credential* has sent what has the hash *content* under *key*.

        Raises HttpRefusal where it was something else, BusError.
        """
        seen = await self.tasks.rows.seen(credential.owner, key)
        if seen not in (None, content):
            raise HttpRefusal("idempotency_conflict", "the key was used for other content: use another one")
        return seen is not None

    def task_id_of(self, credential: Credential, key: str | None) -> str:
        """Return the id of the task that *key* names; a new one without a key."""
        if key is None:
            return uuid7(self.clock.now_ms(), os.urandom(10))
        named = canonical.encode([self._namespace, credential.name, key])
        return f"t-{hashlib.sha256(named).hexdigest()[:_KEY_DIGITS]}"

    def conversation_of(self, credential: Credential, text: str) -> str:
        """Return the conversation that *credential* calls *text*: no client can name another's."""
        named = canonical.encode([self._namespace, credential.name, text])
        digits = hashlib.sha256(named).hexdigest()
        # The form of a UUID of version 8, which is whatever its maker says.
        variant = "89ab"[int(digits[16], 16) % 4]
        return f"{digits[:8]}-{digits[8:12]}-8{digits[13:16]}-{variant}{digits[17:20]}-{digits[20:32]}"

    def check_addressee(self, credential: Credential, to: str, message_type: str) -> None:
        """Raise HttpRefusal where *credential* may not send messages of *message_type* to *to*."""
        if not is_text_id(to) or "*" in to:
            raise HttpRefusal("INVALID_MESSAGE", "an agent id, such as researcher@svc", pointer="/to", status=400)
        if not credential.may_ask(to):
            raise HttpRefusal("FORBIDDEN", f"{credential.name} may not ask {to}", pointer="/to")
        if not credential.may_send(message_type):
            raise HttpRefusal("FORBIDDEN", f"{credential.name} may not send {message_type}", pointer="/message_type")

    def security_of(self, credential: Credential, claim: str | None = None) -> Security:
        """Return the level at which a message of *credential* is sealed: its ceiling, or a lower *claim*."""
        levels = (credential.trust_at_most,) if claim is None else (credential.trust_at_most, claim)
        return Security(trust_level=least_trusted(levels))

    def _draft(self, credential: Credential, order: TaskOrder, payload: Any, task_id: str) -> Outgoing:
        longest_s = self.settings.publish.max_ttl_s
        ttl_s = min(_TASK_LIFE_S, longest_s) if order.ttl_s is None else order.ttl_s
        if not 1 <= ttl_s <= longest_s:
            raise HttpRefusal("INVALID_MESSAGE", f"1 to {longest_s:g} seconds", pointer="/ttl_s")
        conversation = order.conversation_id
        if conversation is not None and not 0 < len(conversation) <= _MAX_CONVERSATION:
            raise HttpRefusal("INVALID_MESSAGE", f"1 to {_MAX_CONVERSATION} characters", pointer="/conversation_id")
        return Outgoing(
            payload,
            to=Agent(id=order.to),
            task_id=task_id,
            idempotency_key=task_id,
            reply_to=mailbox_topic(self._namespace, GATEWAY_GROUP),
            ttl_s=ttl_s,
            conversation_id=None if conversation is None else self.conversation_of(credential, conversation),
            security=self.security_of(credential),
        )

    def _content(self, order: TaskOrder) -> tuple[PayloadType, dict[str, Any], Any]:
        """Return type, data and payload of what *order* asks. Raises HttpRefusal with the pointer of the fault."""
        if order.message_type is None:
            if order.data is not None:
                raise HttpRefusal("INVALID_MESSAGE", "data goes with message_type", pointer="/data")
            if order.goal is None:
                raise HttpRefusal(
                    "INVALID_MESSAGE", "the task is missing: goal, or message_type with data", pointer="/goal"
                )
            data: dict[str, Any] = {"goal": order.goal}
            if order.inputs:
                data["inputs"] = order.inputs
            return (kind := self.kind_of("task.request")), data, self.payload_of(kind, data, prefix="")
        if order.goal is not None or order.inputs is not None:
            raise HttpRefusal(
                "INVALID_MESSAGE", "goal and inputs are of task.request; put them into data", pointer="/goal"
            )
        kind = self.kind_of(order.message_type)
        data = order.data or {}
        return kind, data, self.payload_of(kind, data, prefix="/data")

    def kind_of(self, message_type: str) -> PayloadType:
        """Return the type of that name. Raises HttpRefusal where no agent here has described it."""
        kind = self.types.get(message_type)
        if kind is None:
            raise HttpRefusal(
                "unknown_type",
                f"no message type {message_type!r:.80} is known here: GET /types",
                pointer="/message_type",
            )
        return kind

    def payload_of(self, kind: PayloadType, data: dict[str, Any], *, prefix: str) -> Any:
        """Return *data* as the payload of *kind*. Raises HttpRefusal with the pointer of the fault."""
        try:
            return kind.decode(canonical.encode(data))
        except ContractError as error:
            shown = error.pointer.removeprefix("/data")
            raise HttpRefusal("schema_violation", error.text, pointer=f"{prefix}{shown}") from None

    async def find(self, credential: Credential, task_id: str) -> TaskSnapshot:
        """Return a task. Raises HttpRefusal (404): unknown, or another credential's."""
        return unpack_task(await self.process_of(credential, task_id)).shown

    async def process_of(self, credential: Credential, task_id: str) -> Process:
        """Return the row of a task. Raises HttpRefusal."""
        try:
            process = await self.tasks.store.find(self.tasks.id_of(credential.owner, task_id))
        except BusError as error:
            raise _away(error) from None
        if process is None:
            raise not_found()
        return process

    def follow(self, credential: Credential, task_id: str) -> Following:
        """Return a follower of a task; use it as a context."""
        return self.follower.of(self.tasks.id_of(credential.owner, task_id))

    async def wait(
        self,
        credential: Credential,
        task_id: str,
        *,
        after: int,
        wait_s: float,
        cursor: str | None = None,
        until_end: bool = False,
    ) -> TaskSnapshot:
        """Return a task once its generation is above *after*, or it has ended; or as it is after *wait_s*.

        At once where *cursor* does not fit it: nothing newer than a state that is lost would come.
        """
        with self.quotas.stream(credential), self.follow(credential, task_id) as following:
            process = await self.process_of(credential, task_id)
            following.tell(process)
            end_s = self.clock.monotonic_s() + min(wait_s, self.settings.gateway.wait_s)
            while True:
                shown = unpack_task(process).shown
                if cursor is not None and not cursor_fits(cursor, shown):
                    return shown
                if shown.is_over or (shown.generation > after and not until_end):
                    return shown
                if until_end and shown.status == "input_required" and shown.generation > after:
                    return shown
                left_s = end_s - self.clock.monotonic_s()
                if left_s <= 0 or (newer := await following.newer(process.version, left_s)) is None:
                    return shown
                process = newer

    async def answer(
        self,
        credential: Credential,
        task_id: str,
        said: TaskAnswers,
        *,
        key: str | None = None,
        if_match: str | None = None,
    ) -> OpenedTask:
        """Answer what a task asks; the same answer again, or under its *key*, changes nothing. Raises HttpRefusal."""
        check_key(key)
        try:
            canonical.encode(said.inputs)
            clarified = self.payload_of(
                self.kind_of("task.clarified"), {"answers": said.answers, "inputs": said.inputs}, prefix=""
            )
        except ContractError as error:
            raise of_contract(error, prefix="/inputs") from None
        assert isinstance(clarified, TaskClarified)  # noqa: S101 - of that type
        return await self._acted(
            self.tasks.answer(
                credential.owner,
                task_id,
                clarified,
                key=key,
                if_match=if_match,
                timeout_s=self.settings.publish.timeout_s,
            )
        )

    async def cancel(self, credential: Credential, task_id: str, *, if_match: str | None = None) -> TaskSnapshot:
        """Ask the agent of a task to end it. Raises HttpRefusal."""
        return await self._acted(
            self.tasks.cancel(
                credential.owner,
                task_id,
                TaskCancel(reason_code="NOT_NEEDED", grace_s=5),
                if_match=if_match,
                timeout_s=self.settings.publish.timeout_s,
            )
        )

    async def _acted(self, acting: Awaitable[_T]) -> _T:
        try:
            done = await acting
        except TaskGone:
            raise not_found() from None
        except TaskMoved as error:
            raise HttpRefusal(
                "INVALID_TRANSITION",
                error.text,
                status=412 if error.is_stale else 409,
                more={"task": error.snapshot},
            ) from None
        except AppendUnconfirmed as error:
            raise unconfirmed(error) from None
        except ContractError as error:
            raise of_contract(error) from None
        except PublishRejected as error:
            raise _rejected(error) from None
        except BusError as error:
            raise _away(error) from None
        return done

    async def listed(
        self, credential: Credential, *, status: str | None, before: str | None
    ) -> tuple[Sequence[TaskSnapshot], str | None]:
        """Return a page of the tasks of *credential*, those changed last first, and where the next page begins.

        Raises HttpRefusal.
        """
        place = None if before is None else place_in(before)
        if before is not None and place is None:
            raise HttpRefusal("INVALID_MESSAGE", "the `before` of a page", pointer="/before", status=400)
        stored = "finished" if status in ("completed", "failed", "rejected", "cancelled") else "open"
        try:
            rows = await self.tasks.store.processes(
                saga=TASK_SAGA,
                owner=credential.owner,
                status=None if status is None else stored,
                before=place,
                max_rows=_PAGE,
            )
        except BusError as error:
            raise _away(error) from None
        found = []
        for row in rows:
            try:
                shown = unpack_task(row).shown
            except NewerCode:
                continue
            if status is None or shown.status == status:
                found.append(shown)
        following = place_after(rows, _PAGE)
        return found, None if following is None else following.text

    async def agents(self, credential: Credential, query: str | None = None) -> list[AgentLine]:
        """Return the agents that *credential* may ask; with *query* those whose id, types or capabilities have it."""
        if self.directory is None:
            raise HttpRefusal("SERVICE_UNAVAILABLE", "the directory of agents is not looked at", retry_after_s=5)
        try:
            known = await self.directory.find()
        except BusError as error:
            raise _away(error) from None
        found = []
        for entry in known:
            if entry.health == "gone" or not credential.may_ask(entry.agent_id):
                continue
            accepts = tuple(sorted({each for ranges in entry.accepts for each in ranges}))
            card = AgentLine(
                id=entry.agent_id, health=entry.health, accepts=accepts, capabilities=tuple(entry.capabilities)
            )
            words = (card.id, *card.accepts, *card.capabilities)
            if query is None or any(query.lower() in each.lower() for each in words):
                found.append(card)
        return sorted(found, key=lambda each: (each.health != "healthy", each.id))

    async def artifact(self, credential: Credential, task_id: str, artifact: str) -> tuple[ArtifactEntry, bytes]:
        """Return an artifact of a task with its bytes. Raises HttpRefusal."""
        process = await self.process_of(credential, task_id)
        entry = next((each for each in unpack_task(process).shown.artifacts if each.id == artifact), None)
        if entry is None:
            raise not_found("this task has no such artifact")
        if isinstance(entry.ref, str):
            return entry, await self._referred(entry, entry.ref)
        try:
            parts = await self.tasks.rows.artifact(process.id, artifact)
        except BusError as error:
            raise _away(error) from None
        return entry, b"".join(parts)

    async def _referred(self, entry: ArtifactEntry, uri: str) -> bytes:
        """Return the content of an entry that lies in the artifact store of the namespace, with its hash checked."""
        if not (uri.startswith(_OWN_ARTIFACTS) and isinstance(entry.sha256, str) and has_artifacts(self.settings)):
            raise not_found("its content lies elsewhere: see `ref`")
        try:
            return await artifact_store(self.settings).open(Ref(uri=uri, sha256=f"sha256:{entry.sha256}"))
        except (BusError, ContractError, OSError) as error:
            raise not_found(f"its content is not there: {type(error).__name__}") from None


_OWN_ARTIFACTS: Final = "artifact://"
_OPEN: Final = frozenset({"/healthz/live", "/healthz/ready", "/openapi.json"})
_MCP_PATHS: Final = ("/tasks", "/agents")
_DOORS: Final = (("/mcp", "mcp"), ("/hooks/", "hook"), ("/a2a/", "a2a"))


def types_if_refused(entry: AgentEntry, message_type: str) -> str | None:
    """Return what the agent of *entry* takes, where none of its instances takes *message_type*; else None. Pure.

    An instance without a card, or whose card names nothing, may take anything.
    """
    if not entry.accepts or not all(entry.accepts):
        return None
    taken = sorted({each for ranges in entry.accepts for each in ranges})
    if any(each.partition("@")[0] == message_type for each in taken):
        return None
    return ", ".join(taken)


def check_key(key: str | None) -> None:
    """Raise HttpRefusal where *key* of a header is no idempotency key."""
    if key is not None and not (0 < len(key) <= _MAX_KEY and key.isprintable()):
        text = f"an idempotency key is 1 to {_MAX_KEY} printable characters"
        raise HttpRefusal("INVALID_MESSAGE", text, pointer=KEY_AT)


def door_of(path: str) -> str:
    """Return the door to which *path* belongs. Pure."""
    return next((door for beginning, door in _DOORS if path.startswith(beginning)), "http")


def not_found(text: str = "this credential has no task of that id") -> HttpRefusal:
    """Return the refusal of what this credential does not have."""
    return HttpRefusal("NOT_FOUND", text)


def unconfirmed(error: AppendUnconfirmed, then: str = "it is sent again, and to ask again is safe") -> HttpRefusal:
    """Return the answer where a step is stored, and the log has not acknowledged its message; *then*: what follows."""
    return HttpRefusal(
        "SERVICE_UNAVAILABLE",
        f"{error}: {then}",
        retry_after_s=5,
        more={"status": "unknown", "id": error.snapshot.id},
    )


def _rejected(error: PublishRejected) -> HttpRefusal:
    cause = error.__cause__
    if isinstance(cause, ContractError):
        return of_contract(cause)
    _log.warning("gateway.not_sent", error=str(error))
    return HttpRefusal("SERVICE_UNAVAILABLE", "nothing was sent: the log does not take it now", retry_after_s=5)


def _away(error: BusError, so: str = "ask again") -> HttpRefusal:
    _log.warning("gateway.away", error=str(error))
    return HttpRefusal("SERVICE_UNAVAILABLE", f"the store or the log is away: {so}", retry_after_s=5)

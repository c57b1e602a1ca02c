"""Ingest: messages in foreign formats, judged as a credential's and put on the bus (dialects.md, *Ingress*).

Owns what becomes of a foreign message: whose it may be, how fresh, which of its claims are dropped, its ids. Ids that a
client chooses are its own: on the bus they are hashed with its name, so none is another's; answers have them back.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from bus.clock import Clock
from bus.dialects import DIALECT_ALIASES, DIALECTS, NONE, Defaults, open_dialect
from bus.dialects.conversion import CANONICAL
from bus.dialects.foreign import Foreign
from bus.dialects.sealing import with_kept_time
from bus.dialects.strict_json import read_object
from bus.errors import BusError, ContractError, DialectError
from bus.payloads.directives import DIRECTIVE
from bus.protocol import canonical, sealing
from bus.protocol.envelope import DATA_DEPTH, Agent
from bus.protocol.sealing import Message
from bus.retry import Retry
from bus.topics.names import mailbox_topic
from consumers.gateway.agents import GATEWAY_GROUP
from consumers.gateway.credentials import Credential
from consumers.gateway.dialect_form import FORMS, dialect_of
from consumers.gateway.gateway import KEY_AT, Gateway, check_key
from consumers.processes.tasks.snapshot import TaskRow, TaskSnapshot, content_hash_of, unpack_task
from consumers.web.refusal import HttpRefusal, of_contract
from producers.outcomes import PublishRejected, PublishUnknown
from producers.sealing.options import Outgoing

__all__ = ["Ingest", "IngestAnswer", "Ingested", "foreign_answer"]

_AHEAD_MS: Final = 120_000
_PLAIN_AHEAD_MS: Final = 60_000
_PLAIN_OLD_MS: Final = 300_000
_PROVABLE: Final = ("auth", "signature", "agent_signature", "token", "jwt")
"""Claims that only who has the key can judge."""
_ENVELOPES: Final = ("metadata", "security", "verification")
"""Members in which formats have such claims, besides the message itself."""


class Ingested(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a foreign message."""

    message_id: str
    """The foreign one."""
    snapshot: TaskSnapshot | None = None
    """Of the task that it has opened."""
    row: TaskRow | None = None
    is_repeat: bool = False
    is_awaited: bool = False
    """Whether its sender waits for the answer."""
    dialect: str = ""
    names: Mapping[str, str] = {}
    """Our ids -> the client's."""


class IngestAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a foreign message, with its HTTP status."""

    status: int
    body: dict[str, Any]


class Ingest:
    """The foreign messages that *gateway* takes."""

    def __init__(self, gateway: Gateway, clock: Clock) -> None:
        self._gateway = gateway
        self._clock = clock

    async def take(
        self, credential: Credential, body: bytes, *, key: str | None = None, dialect: str | None = None
    ) -> Ingested:
        """Judge the message in *body*, and put it on the bus. Raises HttpRefusal.

        *key* is that of the header: it counts where the message has none of its own.
        """
        check_key(key)
        try:
            value = read_object(body)
            known = self._dialect(value, dialect)
            if known == CANONICAL:
                return await self._sealed(credential, body, key)
            codec = open_dialect(known, types=self._gateway.types)
            foreign = codec.decode(body, defaults=_defaults(credential))
        except DialectError as error:
            raise _undecoded(error) from None
        except ContractError as error:
            raise of_contract(error) from None
        self._check_claims(credential, foreign, known)
        _check_proofs(value, foreign.claims.proofs)
        return await self._put(credential, foreign, known, key)

    def _dialect(self, value: Mapping[str, Any], named: str | None) -> str:
        if named is not None:
            found = DIALECT_ALIASES.get(named, named)
            if found not in (*DIALECTS, CANONICAL):
                raise HttpRefusal(
                    "INVALID_MESSAGE",
                    f"no dialect {named!r:.40}; there are {', '.join((*DIALECTS, CANONICAL))}",
                    pointer="/query/dialect",
                )
            return found
        told = dialect_of(value)
        if told is None:
            forms = "; ".join(f"{name}: {form}" for name, form in FORMS.items())
            raise HttpRefusal(
                "INVALID_MESSAGE", f"it has the form of no dialect. {forms}", more={"found": "", "expected": forms}
            )
        return told

    def _check_claims(self, credential: Credential, foreign: Foreign, dialect: str) -> None:
        claims, now_ms = foreign.claims, self._clock.now_ms()
        if claims.sender is not None and claims.sender.id != credential.agent:
            raise HttpRefusal(
                "sender_mismatch",
                f"this token speaks for {credential.agent}, and the sender of the message is {claims.sender.id!r:.100}",
                pointer="/sender",
                status=403,
            )
        if claims.namespace is not None and claims.namespace != self._gateway.settings.bus.namespace:
            raise HttpRefusal("wrong_audience", "it is for another namespace or tenant")
        sent_ms = claims.sent_at_ms
        if sent_ms is not None:
            is_plain = dialect == "plain-ids"
            if sent_ms > now_ms + (_PLAIN_AHEAD_MS if is_plain else _AHEAD_MS):
                raise HttpRefusal("clock_skew", "it was sent in the future", pointer="/timestamp")
            if is_plain and sent_ms < now_ms - _PLAIN_OLD_MS:
                raise HttpRefusal("expired", "it is more than five minutes old", pointer="/timestamp")
        expires_ms = foreign.options.expires_at_ms
        if expires_ms is not None and expires_ms <= now_ms:
            raise HttpRefusal("expired", "its lifetime is over", pointer="/timestamp")

    async def _put(self, credential: Credential, foreign: Foreign, dialect: str, header: str | None) -> Ingested:
        gateway, options = self._gateway, foreign.options
        kind = gateway.kind_of(foreign.type)
        theirs = options.message_id or ""
        key = _key_of(options.idempotency_key or "", header) or theirs or None
        names: dict[str, str] = {}
        message_id = self._own_id(credential, "message", options.message_id, names)
        conversation = self._own_id(credential, "conversation", options.conversation_id, names)
        task_id = gateway.task_id_of(credential, None if key is None else f"ingest:{foreign.type}:{key}")
        if options.task_id is not None:
            names[task_id] = options.task_id
        to = options.to
        if to is not None and to.id is not None:
            gateway.check_addressee(credential, to.id, kind.name)
        elif not credential.may_send(kind.name) or "**" not in credential.to:
            raise HttpRefusal(
                "FORBIDDEN", f"{credential.name} may send {kind.name} to named agents only", pointer="/recipient"
            )
        data = with_kept_time(foreign.data, foreign.claims.sent_at_ms, self._clock.now_ms())
        try:
            encoded = canonical.encode(data, depth=DATA_DEPTH)
        except ContractError as error:
            raise of_contract(error, prefix="/data") from None
        payload = gateway.payload_of(kind, data, prefix="")
        now_ms = self._clock.now_ms()
        ttl_s = None if options.expires_at_ms is None else max(1.0, (options.expires_at_ms - now_ms) / 1000)
        spoken = options.performative or kind.terms.spoken(payload)
        opens = to is not None and to.id is not None and (kind.name == "task.request" or spoken in DIRECTIVE)
        draft = Outgoing(
            payload,
            to=None if to is None else Agent(id=to.id, role=to.role),
            message_id=message_id,
            conversation_id=conversation,
            task_id=task_id if opens or options.task_id is not None else None,
            idempotency_key=task_id,
            reply_to=mailbox_topic(gateway.settings.bus.namespace, GATEWAY_GROUP) if opens else None,
            ttl_s=None if ttl_s is None else min(ttl_s, gateway.settings.publish.max_ttl_s),
            priority=options.priority,
            retry=None
            if options.retry is None
            else Retry(attempts=options.retry.max_attempts, backoff=options.retry.backoff),
            performative=options.performative,
            intent=options.intent,
            critical_fields=options.critical_fields,
            traceparent=options.traceparent,
            security=gateway.security_of(credential, foreign.claims.trust_level),
        )
        said = Ingested(
            message_id=theirs or message_id or "", dialect=dialect, names=names, is_awaited=options.is_awaited
        )
        # The time of a repeat differs, and what it says does not.
        content = content_hash_of(to.id if to is not None and to.id else "", kind.name, foreign.data)
        if not opens:
            return await self._publish(credential, draft, encoded, content, said)
        opened = await gateway.open_sealed(
            credential, task_id, draft, content, data=encoded, dialect=dialect, names=names
        )
        return msgspec.structs.replace(said, snapshot=opened.snapshot, is_repeat=opened.is_repeat)

    async def _publish(
        self, credential: Credential, draft: Outgoing, encoded: bytes, content: str, said: Ingested
    ) -> Ingested:
        """Publish a message that opens no task; a repeat under its key is not sent again."""
        key = draft.idempotency_key or ""
        try:
            if await self._gateway.has_sent(credential, key, content):
                return msgspec.structs.replace(said, is_repeat=True)
            await self._gateway.publish(credential, draft, encoded)
            await self._gateway.tasks.rows.remember(
                credential.owner, key, content, self._clock.now_ms() + round(self._gateway.settings.tasks.keep_s * 1000)
            )
        except PublishUnknown:
            raise HttpRefusal(
                "SERVICE_UNAVAILABLE",
                "the log has not acknowledged it: repeating it under the same key is safe",
                retry_after_s=5,
                more={"status": "unknown", "id": said.message_id},
            ) from None
        except (PublishRejected, BusError) as error:
            raise self._gateway.refusal_of(error) from None
        return said

    async def _sealed(self, credential: Credential, body: bytes, header: str | None) -> Ingested:
        """Take sealed bytes: every check that a receiver makes, and their sender is the credential's agent."""
        try:
            message = sealing.parse(body.strip())
            sealing.check_integrity(message)
        except ContractError as error:
            raise of_contract(error) from None
        if message.metadata.sender.id != credential.agent:
            raise HttpRefusal(
                "sender_mismatch",
                f"this token speaks for {credential.agent}, and another agent has sealed this",
                pointer="/metadata/sender/id",
                status=403,
            )
        _key_of(message.routing.idempotency_key or message.message_id, header)
        recipient = message.metadata.recipient
        if recipient is None or recipient.id is None:
            raise HttpRefusal("FORBIDDEN", "sealed messages have a named recipient", pointer="/metadata/recipient")
        self._gateway.check_addressee(credential, recipient.id, message.message_type)
        try:
            is_new = await self._gateway.publish_sealed(credential, message)
        except (PublishRejected, BusError) as error:
            raise self._gateway.refusal_of(error) from None
        return Ingested(message_id=message.message_id, is_repeat=not is_new, dialect=CANONICAL)

    def _own_id(self, credential: Credential, what: str, text: str | None, names: dict[str, str]) -> str | None:
        if text is None:
            return None
        own = self._gateway.conversation_of(credential, f"{what}:{text}")
        names[own] = text
        return own

    async def answered(self, credential: Credential, said: Ingested, wait_s: float) -> IngestAnswer:
        """Return what is answered to *said*, after at most *wait_s*, or as long as its sender waits.

        202 while it is on its way; 200 with its answer, and for a repeat.
        """
        shown = said.snapshot
        wait_s = wait_s or (self._gateway.settings.gateway.wait_s if said.is_awaited else 0.0)
        if shown is not None and wait_s and not shown.is_over:
            shown = await self._gateway.wait(
                credential, shown.id, after=shown.generation, wait_s=wait_s, until_end=True
            )
        reply = None if shown is None else await self.reply_of(credential, shown)
        body: dict[str, Any] = {"status": "duplicate" if said.is_repeat else "ok"}
        if said.is_repeat or reply is None:
            body["message_id"] = said.message_id
        if reply is not None:
            body["reply"] = reply
        elif shown is not None:
            body["task_id"] = shown.id
        return IngestAnswer(status=200 if said.is_repeat or reply is not None else 202, body=body)

    async def reply_of(self, credential: Credential, snapshot: TaskSnapshot) -> dict[str, Any] | None:
        """Return the answer of a task in the format of its request, once it has ended; None before."""
        if not snapshot.is_over:
            return None
        row = unpack_task(await self._gateway.process_of(credential, snapshot.id))
        return foreign_answer(row, self._gateway.types)


def foreign_answer(row: TaskRow, types: Any) -> dict[str, Any] | None:
    """Return the answer of *row* in the dialect of its request; None where there is none that can be said so."""
    if not row.answer:
        return None
    message: Message = sealing.parse(row.answer)
    try:
        written = open_dialect(row.dialect, types=types).encode(message)
    except ContractError:
        return {"status": row.shown.status, "result": None if row.shown.result is msgspec.UNSET else row.shown.result}
    found: dict[str, Any] = _renamed(written, row.names)
    return found


def _renamed(value: Any, names: Mapping[str, str]) -> Any:
    if isinstance(value, str):
        return names.get(value, value)
    if isinstance(value, dict):
        return {key: _renamed(each, names) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_renamed(each, names) for each in value]
    return value


def _check_proofs(value: Mapping[str, Any], proofs: Mapping[str, Any]) -> None:
    """Raise HttpRefusal where a message claims a proof, also in a member that its format does not know."""
    places = [("", {**value, **{name: proofs[name] for name in _PROVABLE if name in proofs}})]
    places += [(f"/{name}", value[name]) for name in _ENVELOPES if isinstance(value.get(name), Mapping)]
    for place, members in places:
        for name in _PROVABLE:
            if members.get(name) is not None:
                raise HttpRefusal(
                    "key_unknown",
                    f"its {name} cannot be checked here: leave it out; the token of the request names its agent",
                    pointer=f"{place}/{name}",
                )


def _defaults(credential: Credential) -> Defaults:
    return msgspec.structs.replace(NONE, sender=Agent(id=credential.agent))


def _key_of(own: str, header: str | None) -> str | None:
    """Return the key of a message: its *own* one, else that of the *header*. Raises HttpRefusal where they differ."""
    if own and header not in (None, own):
        text = "the message has a key of its own: leave the header out, or send the same"
        raise HttpRefusal("INVALID_MESSAGE", text, pointer=KEY_AT)
    return own or header


def _undecoded(error: DialectError) -> HttpRefusal:
    return HttpRefusal(
        "oversized" if error.reason == "oversized" else "INVALID_MESSAGE",
        str(error.text),
        pointer=error.pointer,
        more={"found": str(error.found)[:200], "expected": str(error.expected)[:200]},
    )

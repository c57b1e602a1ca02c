"""Forged, moved and stripped signatures and chains: none reaches a handler, and no honest message is refused for it.

A grammar makes valid signed messages of every risk, first ones and caused ones with one to three links. Each class of
forgery changes one of them; what is unchanged is sent beside it. Keys are real ones in a JWKS file.
"""

from __future__ import annotations

import base64
import json
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bus.protocol import canonical, sealing
from bus.protocol.base64url import to_base64url
from bus.protocol.envelope import Addressee, Link, Metadata, Routing, Statement
from bus.protocol.identifiers import uuid7
from bus.protocol.proof_chain import encode_statement
from bus.protocol.signatures import signing_input
from bus.protocol.timestamps import format_ms
from bus.settings.loading import load
from bus.transports.base import NewRecord
from bus.trust.keys.private_keys import PrivateKey, new_shared_secret, public_jwk
from consumers.app.testing import TestBus
from sealbus import App, Context, Message, payload
from sealbus.envelope import Agent
from sealbus.trust import Security
from tests.keyrings import key_of

READER = "reader@svc"
HONEST = ("planner@svc", "worker@svc", "writer@svc", "user@people")
STRANGER = "stranger@svc"
HOUR_MS, DAY_MS = 3_600_000, 86_400_000
L = 2**252 + 27742317777372353535851937790883648493


@payload("forge.low", risk="low")
class Low(msgspec.Struct):
    text: str


@payload("forge.medium")
class Medium(msgspec.Struct):
    text: str


@payload("forge.high", risk="high")
class High(msgspec.Struct):
    text: str


RISKS = ("low", "medium", "high")


def jwks(now_ms: int, **more: dict[str, Any]) -> bytes:
    """The keys of everybody; those of some have faults, as their names say."""
    members: dict[str, dict[str, Any]] = {
        "revoked@svc": {"revoked_at": format_ms(now_ms)},
        "ended@svc": {"not_after": format_ms(now_ms - HOUR_MS)},
        "young@svc": {"not_before": format_ms(now_ms + HOUR_MS)},
        "narrow@svc": {"types": ["other.*"]},
        "elsewhere@svc": {"namespaces": ["elsewhere"]},
        "nobody@svc": {"principals": []},
        "mallory@svc": {},
        **{name: {} for name in HONEST},
        **more,
    }
    keys = [public_jwk(key_of(name), **{"principals": [name], **told}) for name, told in members.items()]
    return json.dumps({"keys": keys}).encode()


class Plan(msgspec.Struct, frozen=True):
    """What a message is sealed from, before or after somebody has changed it."""

    data: bytes
    metadata: Metadata
    routing: Routing
    parents: tuple[str, ...]
    chain: tuple[Link, ...]
    other: Message
    """Another good message of the same sender."""

    @property
    def sender(self) -> str:
        return self.metadata.sender.id or ""

    def seal(self, key: PrivateKey | None = None) -> Message:
        """Seal and sign it, by its sender unless another *key* is given."""
        return sealing.seal(
            self.data,
            self.metadata,
            self.routing,
            parents=self.parents,
            proof_chain=self.chain,
            signer=key or key_of(self.sender),
        )

    def but(self, **changes: Any) -> Plan:
        return msgspec.structs.replace(self, **changes)

    def saying(self, **changes: Any) -> Plan:
        return self.but(metadata=msgspec.structs.replace(self.metadata, **changes))


class Grammar:
    """Makes valid messages."""

    def __init__(self, seed: int, now_ms: int) -> None:
        self.random = random.Random(seed)
        self.now_ms = now_ms

    def plan(
        self,
        risk: str | None = None,
        links: int | None = None,
        *,
        sender: str | None = None,
        link_sender: str | None = None,
        namespace: str = "agents",
    ) -> Plan:
        """A message with *links* links of the *risk*; one link is of *link_sender*, which may have a bad key."""
        draw = self.random
        risk = risk or draw.choice(RISKS)
        links = draw.randint(0, 3) if links is None else links
        senders = [draw.choice(HONEST) for _ in range(links)] + [sender or draw.choice(HONEST)]
        if link_sender is not None:
            senders[draw.randrange(links)] = link_sender
        cause: Message | None = None
        for index, name in enumerate(senders[:-1]):
            follower = senders[index + 1]
            to = draw.choice([None, None, Agent(id=follower), Agent(role="any")])
            if follower == name:
                # A sender may go on after its own message, whoever that was for.
                to = draw.choice([to, Agent(id="somebody@else")])
            step = self._one(f"forge.{draw.choice(RISKS[1:])}", name, cause, links - index, to=to, namespace=namespace)
            cause = step.seal()
        to = draw.choice([None, None, Agent(id=READER), Agent(id=READER, role="other")])
        made = self._one(f"forge.{risk}", senders[-1], cause, 0, to=to, namespace=namespace)
        if risk == "low" and draw.random() < 0.5:
            made = made.but(chain=())
        return made

    def _one(
        self, message_type: str, sender: str, cause: Message | None, age: int, *, to: Agent | None, namespace: str
    ) -> Plan:
        draw, at_ms = self.random, self.now_ms - age * draw_age(self.random)
        message_id = uuid7(at_ms, draw.randbytes(10))
        text = draw.choice(["", "plain", "ünï ✓", 'quotes " and \\', "x" * draw.randint(0, 300)])
        metadata = Metadata(
            protocol="sealbus/1",
            namespace=namespace,
            message_id=message_id,
            message_type=message_type,
            schema_version="1.0.0",
            timestamp=format_ms(at_ms),
            sender=Agent(id=sender, role=draw.choice([None, "admin"])),
            recipient=to,
            conversation_id=message_id if cause is None else cause.metadata.conversation_id,
            hops=0 if cause is None else cause.metadata.hops + 1,
            causation_id=None if cause is None else cause.message_id,
            task_id=draw.choice([None, "task-1"]),
            security=draw.choice([None, Security(trust_level="user_request", policy_tags=("a",))]),
        )
        routing = Routing(expires_at=format_ms(self.now_ms + HOUR_MS), priority=draw.choice([None, 3]))
        plan = Plan(
            canonical.encode({"text": text}),
            metadata,
            routing,
            () if cause is None else (cause.seal,),
            () if cause is None else cause.chain_for_children(),
            None,
        )
        first = {"causation_id": None, "hops": 0, "message_id": uuid7(at_ms, draw.randbytes(10))}
        other = plan.but(parents=(), chain=()).saying(**first)
        return plan.but(other=other.seal(key_of(sender)))


def draw_age(draw: random.Random) -> int:
    return draw.choice([10, 1000, 60_000])


def record_of(
    message: Message,
    *,
    value: bytes | None = None,
    topic: str = "",
    key: bytes | None = None,
    headers: tuple[tuple[str, bytes], ...] = (),
) -> NewRecord:
    """The record that an attacker appends."""
    named = topic or f"agents.{message.message_type}"
    return NewRecord(named, message.key if key is None else key, value or message.value, headers)


def edited(message: Message, **verification: Any) -> NewRecord:
    """*message* with other members in `verification`; None takes one away."""
    tree: Any = canonical.parse_canonical(message.value)
    tree["verification"] = {
        name: value for name, value in (tree["verification"] | verification).items() if value is not None
    }
    return record_of(message, value=canonical.encode(tree))


def jws(header: object, payload: bytes, make: Callable[[bytes], bytes]) -> str:
    """A signature with any header."""
    text = header if isinstance(header, bytes) else json.dumps(header, separators=(",", ":"), sort_keys=True).encode()
    head = to_base64url(text)
    return f"{head}..{to_base64url(make(signing_input(head, payload)))}"


def header_of(key: PrivateKey, **members: Any) -> dict[str, Any]:
    return {"alg": "Ed25519", "b64": False, "crit": ["b64"], "kid": key.kid} | members


def signature_of(message: Message) -> str:
    assert message.verification.signature is not None
    return message.verification.signature


Forge = Callable[[Grammar, Plan], NewRecord]


class Forgery(msgspec.Struct, frozen=True):
    """One class: what is changed, and the reason that it dies with; None: it is skipped."""

    name: str
    reason: str | None
    make: Forge
    risks: tuple[str, ...]
    links: tuple[int, ...]
    chained: bool


FORGERIES: dict[str, Forgery] = {}


def forgery(
    reason: str | None, *, risks: tuple[str, ...] = RISKS, links: tuple[int, ...] = (0, 1, 2, 3), chained: bool = False
) -> Callable[[Forge], Forge]:
    """Add the decorated function, of the grammar and a good plan, to the classes."""

    def add(make: Forge) -> Forge:
        name = make.__name__.replace("_", " ").strip()
        FORGERIES[name] = Forgery(name, reason, make, risks, links, chained or min(links) > 0)
        return make

    return add


# The signature is another one.


@forgery("signature_missing", risks=("medium", "high"))
def stripped(_: Grammar, plan: Plan) -> NewRecord:
    return edited(plan.seal(), signature=None)


@forgery("proof_invalid", risks=("low",), links=(1, 2, 3))
def stripped_from_a_message_of_low_risk_with_a_chain(_: Grammar, plan: Plan) -> NewRecord:
    return edited(plan.seal(), signature=None)


@forgery("key_unknown")
def unknown_kid(_: Grammar, plan: Plan) -> NewRecord:
    return record_of(plan.seal(key_of(STRANGER)))


@forgery("signature_invalid")
def kid_of_another_agent(_: Grammar, plan: Plan) -> NewRecord:
    payload = encode_statement(plan.seal().statement)
    return edited(plan.seal(), signature=jws(header_of(key_of("mallory@svc")), payload, key_of(plan.sender).sign))


@forgery("signature_invalid")
def own_bytes_under_the_kid_of_the_sender(_: Grammar, plan: Plan) -> NewRecord:
    payload = encode_statement(plan.seal().statement)
    return edited(plan.seal(), signature=jws(header_of(key_of(plan.sender)), payload, key_of("mallory@svc").sign))


@forgery("sender_mismatch")
def key_of_another_agent(_: Grammar, plan: Plan) -> NewRecord:
    return record_of(plan.seal(key_of("mallory@svc")))


@forgery("signature_invalid")
def alg_none(_: Grammar, plan: Plan) -> NewRecord:
    header = header_of(key_of(plan.sender), alg="none")
    return edited(plan.seal(), signature=jws(header, b"", lambda _: b"\0"))


@forgery("signature_invalid")
def alg_none_and_no_bytes(_: Grammar, plan: Plan) -> NewRecord:
    header = header_of(key_of(plan.sender), alg="none")
    return edited(plan.seal(), signature=jws(header, b"", lambda _: b""))


@forgery("signature_invalid")
def alg_none_under_an_unknown_kid(_: Grammar, plan: Plan) -> NewRecord:
    header = header_of(key_of(STRANGER), alg="none")
    return edited(plan.seal(), signature=jws(header, b"", lambda _: b"\0"))


@forgery("signature_invalid")
def alg_eddsa(_: Grammar, plan: Plan) -> NewRecord:
    key, payload = key_of(plan.sender), encode_statement(plan.seal().statement)
    return edited(plan.seal(), signature=jws(header_of(key, alg="EdDSA"), payload, key.sign))


@forgery("signature_invalid")
def public_key_as_the_secret_of_hs256(_: Grammar, plan: Plan) -> NewRecord:
    key = key_of(plan.sender)
    return record_of(plan.seal(new_shared_secret(key.public, key.kid)))


def _with_header(plan: Plan, key: PrivateKey, header: object) -> NewRecord:
    payload = encode_statement(plan.seal().statement)
    return edited(plan.seal(), signature=jws(header, payload, key.sign))


@forgery("signature_invalid")
def embedded_key(_: Grammar, plan: Plan) -> NewRecord:
    key = key_of(STRANGER)
    return _with_header(plan, key, header_of(key, jwk=public_jwk(key)))


@forgery("signature_invalid")
def embedded_key_under_the_kid_of_the_sender(_: Grammar, plan: Plan) -> NewRecord:
    key = key_of(STRANGER)
    return _with_header(plan, key, header_of(key_of(plan.sender), jwk=public_jwk(key)))


@forgery("signature_invalid")
def address_of_a_key(_: Grammar, plan: Plan) -> NewRecord:
    key = key_of(STRANGER)
    return _with_header(plan, key, header_of(key, jku="https://evil.test/keys"))


@forgery("signature_invalid")
def header_of_other_libraries(_: Grammar, plan: Plan) -> NewRecord:
    key = key_of(plan.sender)
    return _with_header(plan, key, {"alg": "Ed25519", "kid": key.kid})


@forgery("signature_invalid")
def header_with_a_type(_: Grammar, plan: Plan) -> NewRecord:
    key = key_of(plan.sender)
    return _with_header(plan, key, header_of(key, typ="JWT"))


@forgery("signature_invalid")
def header_with_white_space(_: Grammar, plan: Plan) -> NewRecord:
    key = key_of(plan.sender)
    return _with_header(plan, key, json.dumps(header_of(key), sort_keys=True).encode())


@forgery("signature_invalid")
def header_with_a_member_twice(_: Grammar, plan: Plan) -> NewRecord:
    key = key_of(plan.sender)
    text = json.dumps(header_of(key), separators=(",", ":"), sort_keys=True)
    return _with_header(plan, key, ('{"alg":"none",' + text[1:]).encode())


@forgery("signature_invalid")
def header_that_names_b64_true(_: Grammar, plan: Plan) -> NewRecord:
    key = key_of(plan.sender)
    return _with_header(plan, key, header_of(key, b64=True))


@forgery("signature_invalid")
def header_with_another_critical_member(_: Grammar, plan: Plan) -> NewRecord:
    key = key_of(plan.sender)
    return _with_header(plan, key, header_of(key, crit=["b64", "exp"], exp=1))


@forgery("signature_invalid")
def header_without_kid(_: Grammar, plan: Plan) -> NewRecord:
    key = key_of(plan.sender)
    header = {name: value for name, value in header_of(key).items() if name != "kid"}
    return _with_header(plan, key, header)


def _spelt(plan: Plan, spell: Callable[[str], str]) -> NewRecord:
    message = plan.seal()
    spelling = spell(signature_of(message))
    assert spelling != signature_of(message)
    return edited(message, signature=spelling)


@forgery("signature_invalid")
def base64_with_padding(_: Grammar, plan: Plan) -> NewRecord:
    return _spelt(plan, lambda text: text + "==")


@forgery("signature_invalid")
def base64_of_the_other_alphabet(_: Grammar, plan: Plan) -> NewRecord:
    def spell(text: str) -> str:
        head, _, tail = text.partition("..")
        other = base64.b64encode(base64.urlsafe_b64decode(tail + "==")).rstrip(b"=").decode()
        return f"{head}..{other if other != tail else '+' + tail[1:]}"

    return _spelt(plan, spell)


@forgery("signature_invalid")
def base64_with_spare_bits(grammar: Grammar, plan: Plan) -> NewRecord:
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    # Ends in A, Q, g or w: the next letters decode to the same bytes.
    return _spelt(plan, lambda text: text[:-1] + letters[letters.index(text[-1]) + grammar.random.randint(1, 15)])


@forgery("signature_invalid")
def base64_with_white_space(grammar: Grammar, plan: Plan) -> NewRecord:
    place, space = grammar.random.randint(0, 80), grammar.random.choice(" \n\t")
    return _spelt(plan, lambda text: text[:place] + space + text[place:])


@forgery("signature_invalid")
def base64_in_a_look_alike(_: Grammar, plan: Plan) -> NewRecord:
    return _spelt(plan, lambda text: text[:-1] + "Ａ")


@forgery("signature_invalid")
def attached_payload(_: Grammar, plan: Plan) -> NewRecord:
    payload = to_base64url(encode_statement(plan.seal().statement))
    return _spelt(plan, lambda text: text.replace("..", f".{payload}."))


@forgery("signature_invalid")
def three_dots(_: Grammar, plan: Plan) -> NewRecord:
    return _spelt(plan, lambda text: text.replace("..", "..."))


@forgery("signature_invalid")
def longer_than_any_signature(_: Grammar, plan: Plan) -> NewRecord:
    return _spelt(plan, lambda text: text + "A" * 1024)


def _with_bytes(plan: Plan, change: Callable[[bytes], bytes]) -> NewRecord:
    def spell(text: str) -> str:
        head, _, tail = text.partition("..")
        return f"{head}..{to_base64url(change(base64.urlsafe_b64decode(tail + '==')))}"

    return _spelt(plan, spell)


@forgery("signature_invalid")
def one_bit(grammar: Grammar, plan: Plan) -> NewRecord:
    bit = grammar.random.randrange(512)
    return _with_bytes(plan, lambda raw: (int.from_bytes(raw, "big") ^ 1 << bit).to_bytes(64, "big"))


@forgery("signature_invalid")
def cut_short(grammar: Grammar, plan: Plan) -> NewRecord:
    return _with_bytes(plan, lambda raw: raw[: grammar.random.randint(1, 63)])


@forgery("signature_invalid")
def made_longer(grammar: Grammar, plan: Plan) -> NewRecord:
    return _with_bytes(plan, lambda raw: raw + bytes(grammar.random.randint(1, 64)))


@forgery("signature_invalid")
def s_plus_the_order_of_the_group(_: Grammar, plan: Plan) -> NewRecord:
    return _with_bytes(plan, lambda raw: raw[:32] + (int.from_bytes(raw[32:], "little") + L).to_bytes(32, "little"))


@forgery("signature_invalid")
def r_of_small_order(_: Grammar, plan: Plan) -> NewRecord:
    return _with_bytes(plan, lambda raw: b"\1" + bytes(31) + raw[32:])


@forgery("signature_invalid")
def nothing_but_zeros(_: Grammar, plan: Plan) -> NewRecord:
    return _with_bytes(plan, lambda _: bytes(64))


@forgery("signature_invalid")
def moved_from_another_message_of_the_same_sender(_: Grammar, plan: Plan) -> NewRecord:
    return edited(plan.seal(), signature=signature_of(plan.other))


@forgery("signature_invalid")
def signed_seal_instead_of_the_statement(_: Grammar, plan: Plan) -> NewRecord:
    message, key = plan.seal(), key_of(plan.sender)
    return edited(message, signature=jws(header_of(key), message.seal.encode(), key.sign))


@forgery("signature_invalid")
def signed_data_instead_of_the_statement(_: Grammar, plan: Plan) -> NewRecord:
    key = key_of(plan.sender)
    return edited(plan.seal(), signature=jws(header_of(key), plan.data, key.sign))


@forgery("signature_invalid")
def signed_as_if_b64_were_true(_: Grammar, plan: Plan) -> NewRecord:
    message, key = plan.seal(), key_of(plan.sender)
    payload = to_base64url(encode_statement(message.statement)).encode()
    return edited(message, signature=jws(header_of(key), payload, key.sign))


# The key is no good, though its signature is.


@forgery("key_revoked")
def after_revocation(grammar: Grammar, plan: Plan) -> NewRecord:
    return record_of(plan.saying(sender=Agent(id="revoked@svc")).seal())


@forgery("key_revoked")
def back_dated_before_the_revocation(grammar: Grammar, plan: Plan) -> NewRecord:
    then = format_ms(grammar.now_ms - HOUR_MS)
    return record_of(plan.saying(sender=Agent(id="revoked@svc"), timestamp=then).seal())


@forgery("key_expired")
def after_the_end_of_the_key(_: Grammar, plan: Plan) -> NewRecord:
    return record_of(plan.saying(sender=Agent(id="ended@svc")).seal())


@forgery("key_expired")
def before_the_beginning_of_the_key(_: Grammar, plan: Plan) -> NewRecord:
    return record_of(plan.saying(sender=Agent(id="young@svc")).seal())


@forgery("sender_mismatch")
def key_of_another_namespace(_: Grammar, plan: Plan) -> NewRecord:
    return record_of(plan.saying(sender=Agent(id="elsewhere@svc")).seal())


@forgery("sender_mismatch")
def key_that_speaks_for_nobody(_: Grammar, plan: Plan) -> NewRecord:
    return record_of(plan.saying(sender=Agent(id="nobody@svc")).seal())


@forgery("unauthorized")
def key_beyond_its_types(grammar: Grammar, plan: Plan) -> NewRecord:
    kind, links = plan.metadata.message_type.removeprefix("forge."), len(plan.chain)
    return record_of(grammar.plan(kind, links, sender="narrow@svc").seal())


# Something else of the message is another.


def _rewritten(message: Message, layer: str, **changes: Any) -> bytes:
    tree: Any = canonical.parse_canonical(message.value)
    tree[layer] |= changes
    return canonical.encode(tree)


@forgery("hash_mismatch")
def other_data(_: Grammar, plan: Plan) -> NewRecord:
    message = plan.seal()
    return record_of(message, value=_rewritten(message, "data", text="forged"))


@forgery("seal_mismatch")
def other_data_with_their_hash(_: Grammar, plan: Plan) -> NewRecord:
    tree: Any = canonical.parse_canonical(plan.seal().value)
    tree["data"] = {"text": "forged"}
    tree["verification"]["content_hash"] = canonical.digest(canonical.encode(tree["data"]))
    return record_of(plan.seal(), value=canonical.encode(tree))


@forgery("signature_invalid")
def other_data_sealed_anew(_: Grammar, plan: Plan) -> NewRecord:
    text = signature_of(plan.seal())
    return edited(plan.but(data=canonical.encode({"text": "forged"})).seal(), signature=text)


@forgery("seal_mismatch")
def other_sender(_: Grammar, plan: Plan) -> NewRecord:
    message = plan.seal()
    return record_of(message, value=_rewritten(message, "metadata", sender={"id": "mallory@svc"}))


@forgery("signature_invalid")
def other_sender_sealed_anew(_: Grammar, plan: Plan) -> NewRecord:
    text = signature_of(plan.seal())
    sender = Agent(id=next(name for name in HONEST if name != plan.sender))
    return edited(plan.saying(sender=sender).seal(), signature=text)


@forgery("signature_invalid")
def re_addressed(_: Grammar, plan: Plan) -> NewRecord:
    text = signature_of(plan.saying(recipient=Agent(id="somebody@else")).seal())
    return edited(plan.saying(recipient=Agent(id=READER)).seal(), signature=text)


@forgery(None)
def re_addressed_to_somebody_else(_: Grammar, plan: Plan) -> NewRecord:
    text = signature_of(plan.seal())
    return edited(plan.saying(recipient=Agent(id="somebody@else")).seal(), signature=text)


@forgery("signature_invalid")
def longer_life(grammar: Grammar, plan: Plan) -> NewRecord:
    routing = msgspec.structs.replace(plan.routing, expires_at=format_ms(grammar.now_ms + DAY_MS))
    return edited(plan.but(routing=routing).seal(), signature=signature_of(plan.seal()))


@forgery("signature_invalid")
def raised_level(_: Grammar, plan: Plan) -> NewRecord:
    raised = plan.saying(security=Security(trust_level="platform_policy"))
    return edited(raised.seal(), signature=signature_of(plan.seal()))


@forgery("signature_invalid")
def other_time(grammar: Grammar, plan: Plan) -> NewRecord:
    later = plan.saying(timestamp=format_ms(grammar.now_ms + 1))
    return edited(later.seal(), signature=signature_of(plan.seal()))


# Replays, and what stands beside the sealed value.


@forgery("type_mismatch")
def replayed_on_another_topic(_: Grammar, plan: Plan) -> NewRecord:
    other = next(risk for risk in RISKS if not plan.metadata.message_type.endswith(risk))
    return record_of(plan.seal(), topic=f"agents.forge.{other}")


@forgery("wrong_audience")
def replayed_from_another_namespace(grammar: Grammar, plan: Plan) -> NewRecord:
    kind = plan.metadata.message_type.removeprefix("forge.")
    return record_of(grammar.plan(kind, len(plan.chain), namespace="elsewhere").seal())


@forgery("key_mismatch")
def another_record_key(grammar: Grammar, plan: Plan) -> NewRecord:
    return record_of(plan.seal(), key=grammar.random.choice([b"another", b"", plan.other.message_id.encode()]))


@forgery("expired")
def expired_with_a_header_that_lets_it_live(grammar: Grammar, plan: Plan) -> NewRecord:
    kind = plan.metadata.message_type.removeprefix("forge.")
    past = Grammar(grammar.random.randrange(2**32), grammar.now_ms - 2 * HOUR_MS).plan(kind, len(plan.chain))
    headers = (("sb-extend-until", b"%d" % (grammar.now_ms + DAY_MS)), ("sb-attempt", b"0"))
    return record_of(past.seal(), headers=headers)


@forgery("signature_missing", risks=("medium", "high"))
def unsigned_with_a_signature_in_the_headers(_: Grammar, plan: Plan) -> NewRecord:
    message = plan.seal()
    record = edited(message, signature=None)
    return msgspec.structs.replace(record, headers=(("sb-signature", signature_of(message).encode()),))


@forgery("malformed")
def signature_twice(_: Grammar, plan: Plan) -> NewRecord:
    message = plan.seal()
    text = json.dumps(signature_of(message)).encode()
    return record_of(message, value=message.value[:-2] + b',"signature":' + text + b"}}")


@forgery("malformed")
def key_beside_the_signature(_: Grammar, plan: Plan) -> NewRecord:
    return edited(plan.seal(), jwk=public_jwk(key_of(STRANGER)))


@forgery("malformed")
def signature_of_another_form(grammar: Grammar, plan: Plan) -> NewRecord:
    return edited(plan.seal(), signature=grammar.random.choice(["", [], {}, 1, False]))


@forgery("malformed")
def white_space_in_the_record(_: Grammar, plan: Plan) -> NewRecord:
    message = plan.seal()
    return record_of(message, value=message.value.replace(b',"metadata"', b', "metadata"', 1))


# The chain. Who changes it is the sender itself, and signs what it has made.


def _with_link(plan: Plan, index: int, **changes: Any) -> Plan:
    links = list(plan.chain)
    links[index] = msgspec.structs.replace(links[index], **changes)
    return plan.but(chain=tuple(links))


def _pick(grammar: Grammar, plan: Plan) -> int:
    return grammar.random.randrange(len(plan.chain))


@forgery("seal_mismatch", links=(1, 2, 3))
def chain_taken_away(_: Grammar, plan: Plan) -> NewRecord:
    return edited(plan.seal(), proof_chain=None)


@forgery("proof_invalid", risks=("medium", "high"), links=(1, 2, 3))
def chain_left_out(_: Grammar, plan: Plan) -> NewRecord:
    return record_of(plan.but(chain=()).seal())


@forgery("proof_invalid", links=(2, 3))
def oldest_link_removed(_: Grammar, plan: Plan) -> NewRecord:
    return record_of(plan.but(chain=plan.chain[1:]).seal())


@forgery("proof_invalid", links=(2, 3))
def newest_link_removed(_: Grammar, plan: Plan) -> NewRecord:
    return record_of(plan.but(chain=plan.chain[:-1]).seal())


@forgery("proof_invalid", links=(3,))
def middle_link_removed(_: Grammar, plan: Plan) -> NewRecord:
    return record_of(plan.but(chain=(plan.chain[0], plan.chain[2])).seal())


@forgery("proof_invalid", links=(2, 3))
def links_reordered(_: Grammar, plan: Plan) -> NewRecord:
    return record_of(plan.but(chain=plan.chain[::-1]).seal())


@forgery("proof_invalid", links=(1, 2, 3))
def link_twice(_: Grammar, plan: Plan) -> NewRecord:
    return record_of(plan.but(chain=(plan.chain[0], *plan.chain)).seal())


@forgery("proof_invalid", links=(1, 2, 3))
def link_invented_before(_: Grammar, plan: Plan) -> NewRecord:
    return record_of(plan.but(chain=(*plan.other.chain_for_children(), *plan.chain)).seal())


@forgery("proof_invalid", links=(1, 2, 3))
def cause_invented(grammar: Grammar, plan: Plan) -> NewRecord:
    """The newest link is a good message that is not the first parent."""
    link = plan.other.chain_for_children()
    return record_of(plan.but(chain=(*plan.chain[:-1], *link)).saying(causation_id=plan.other.message_id).seal())


@forgery("proof_invalid", links=(1, 2, 3))
def chain_of_another_message(grammar: Grammar, plan: Plan) -> NewRecord:
    other = grammar.plan("high", len(plan.chain))
    return record_of(plan.but(chain=other.chain).seal())


@forgery("proof_invalid", links=(1, 2, 3))
def parent_of_another_message(_: Grammar, plan: Plan) -> NewRecord:
    return record_of(plan.but(parents=(plan.other.seal,)).seal())


@forgery("proof_invalid", links=(1, 2, 3))
def other_cause_named(_: Grammar, plan: Plan) -> NewRecord:
    return record_of(plan.saying(causation_id=plan.other.message_id).seal())


@forgery("proof_invalid", links=(2, 3))
def id_of_an_ancestor(_: Grammar, plan: Plan) -> NewRecord:
    return record_of(plan.saying(message_id=plan.chain[0].statement.message_id).seal())


@forgery("malformed", links=(1, 2, 3))
def its_own_cause(_: Grammar, plan: Plan) -> NewRecord:
    message = plan.seal()
    return record_of(message, value=_rewritten(message, "metadata", causation_id=message.message_id))


@forgery("proof_invalid", links=(1, 2, 3))
def more_hops(_: Grammar, plan: Plan) -> NewRecord:
    return record_of(plan.saying(hops=plan.metadata.hops + 1).seal())


@forgery("proof_invalid", links=(1, 2, 3))
def sender_of_a_link_changed(grammar: Grammar, plan: Plan) -> NewRecord:
    index = _pick(grammar, plan)
    statement = msgspec.structs.replace(plan.chain[index].statement, sender="mallory@svc")
    return record_of(_with_link(plan, index, statement=statement).seal())


def _relinked(plan: Plan, change: Callable[[Statement], Statement], key: PrivateKey | None = None) -> Plan:
    """*plan* with its newest link changed and signed anew, and all hashes made to fit."""
    statement = change(plan.chain[-1].statement)
    stated = encode_statement(statement)
    signer = key or key_of(statement.sender)
    link = Link(statement=statement, signature=jws(header_of(signer), stated, signer.sign))
    return plan.but(chain=(*plan.chain[:-1], link), parents=(canonical.digest(stated),)).saying(
        causation_id=statement.message_id
    )


@forgery("proof_invalid", links=(1, 2, 3))
def link_invented_whole_for_another_agent(_: Grammar, plan: Plan) -> NewRecord:
    def change(statement: Statement) -> Statement:
        return msgspec.structs.replace(statement, trust_level="platform_policy", recipient=None)

    return record_of(_relinked(plan, change, key_of("mallory@svc")).seal())


@forgery("proof_invalid", links=(1, 2, 3))
def chain_stolen_from_its_addressee(_: Grammar, plan: Plan) -> NewRecord:
    """A good link that was for the writer, continued by somebody else (security S2)."""
    to = next(name for name in HONEST if name not in (plan.sender, plan.chain[-1].statement.sender))

    def change(statement: Statement) -> Statement:
        return msgspec.structs.replace(statement, recipient=Addressee(id=to))

    return record_of(_relinked(plan, change).saying(sender=Agent(id="mallory@svc")).seal())


@forgery("proof_invalid", links=(1, 2, 3))
def link_of_another_namespace(_: Grammar, plan: Plan) -> NewRecord:
    return record_of(_relinked(plan, lambda stated: msgspec.structs.replace(stated, namespace="elsewhere")).seal())


@forgery("proof_invalid", links=(1, 2, 3))
def link_from_the_future(grammar: Grammar, plan: Plan) -> NewRecord:
    at = format_ms(grammar.now_ms + 121_000)
    return record_of(_relinked(plan, lambda stated: msgspec.structs.replace(stated, timestamp=at)).seal())


@forgery("proof_invalid", links=(1, 2, 3))
def link_that_is_older_than_any(grammar: Grammar, plan: Plan) -> NewRecord:
    at = format_ms(grammar.now_ms - 16 * 14 * DAY_MS - 1)
    plan = grammar.plan(plan.metadata.message_type.removeprefix("forge."), 1)
    plan = plan if plan.chain else grammar.plan("medium", 1)
    return record_of(_relinked(plan, lambda stated: msgspec.structs.replace(stated, timestamp=at)).seal())


@forgery("proof_invalid", links=(1, 2, 3))
def link_stripped(grammar: Grammar, plan: Plan) -> NewRecord:
    return record_of(_with_link(plan, _pick(grammar, plan), signature=None).seal())


@forgery("proof_invalid", links=(2, 3))
def signatures_of_links_exchanged(_: Grammar, plan: Plan) -> NewRecord:
    first, second = plan.chain[0].signature, plan.chain[1].signature
    return record_of(_with_link(_with_link(plan, 0, signature=second), 1, signature=first).seal())


def _link_signed(grammar: Grammar, plan: Plan, make: Callable[[Statement, bytes], str]) -> NewRecord:
    index = _pick(grammar, plan)
    stated = plan.chain[index].statement
    return record_of(_with_link(plan, index, signature=make(stated, encode_statement(stated))).seal())


@forgery("proof_invalid", links=(1, 2, 3))
def link_signed_by_another_agent(grammar: Grammar, plan: Plan) -> NewRecord:
    key = key_of("mallory@svc")
    return _link_signed(grammar, plan, lambda _, text: jws(header_of(key), text, key.sign))


@forgery("proof_invalid", links=(1, 2, 3))
def link_signed_by_nobody_known(grammar: Grammar, plan: Plan) -> NewRecord:
    key = key_of(STRANGER)
    return _link_signed(grammar, plan, lambda _, text: jws(header_of(key), text, key.sign))


@forgery("proof_invalid", links=(1, 2, 3))
def link_with_alg_none(grammar: Grammar, plan: Plan) -> NewRecord:
    def make(stated: Statement, text: bytes) -> str:
        return jws(header_of(key_of(stated.sender), alg="none"), text, lambda _: b"\0")

    return _link_signed(grammar, plan, make)


@forgery("proof_invalid", links=(1, 2, 3))
def link_with_padding(grammar: Grammar, plan: Plan) -> NewRecord:
    index = _pick(grammar, plan)
    return record_of(_with_link(plan, index, signature=f"{plan.chain[index].signature}==").seal())


def _with_bad_link(grammar: Grammar, plan: Plan, link_sender: str) -> NewRecord:
    kind = plan.metadata.message_type.removeprefix("forge.")
    while not (made := grammar.plan(kind, len(plan.chain), link_sender=link_sender)).chain:
        """At low risk a message may leave its chain out."""
    return record_of(made.seal())


@forgery("proof_invalid", links=(1, 2, 3))
def link_of_a_revoked_key(grammar: Grammar, plan: Plan) -> NewRecord:
    return _with_bad_link(grammar, plan, "revoked@svc")


@forgery("proof_invalid", links=(1, 2, 3))
def link_after_the_end_of_its_key(grammar: Grammar, plan: Plan) -> NewRecord:
    return _with_bad_link(grammar, plan, "ended@svc")


@forgery("proof_invalid", links=(1, 2, 3))
def link_before_the_beginning_of_its_key(grammar: Grammar, plan: Plan) -> NewRecord:
    return _with_bad_link(grammar, plan, "young@svc")


@forgery("proof_invalid", links=(1, 2, 3))
def link_beyond_the_types_of_its_key(grammar: Grammar, plan: Plan) -> NewRecord:
    return _with_bad_link(grammar, plan, "narrow@svc")


@forgery("proof_invalid", links=(1, 2, 3))
def link_of_a_key_for_another_namespace(grammar: Grammar, plan: Plan) -> NewRecord:
    return _with_bad_link(grammar, plan, "elsewhere@svc")


# Running them.


def reader(handled: list[str]) -> App:
    app = App(READER)
    for kind in (Low, Medium, High):

        @app.on(kind, dedup="off" if kind is Low else "key")
        async def handle(_: Any, context: Context) -> None:
            handled.append(context.message.message_id)

    return app


@asynccontextmanager
async def reading(folder: Path, handled: list[str]) -> AsyncIterator[tuple[TestBus, Path]]:
    """A worker in memory that believes the keys of a file."""
    path = folder / "jwks.json"
    write(path, jwks(1_767_225_600_000))
    flags = {"trust.keys": str(path), "policy.file": "allow-all", "deadletter.details": True}
    async with reader(handled).test(settings=load(flags=flags, env={}, file=None).settings) as bus:
        write(path, jwks(bus.clock.now_ms()))
        bus.clock.advance(2)
        yield bus, path


def write(path: Path, text: bytes) -> None:
    part = path.with_suffix(".part")
    part.write_bytes(text)
    part.chmod(0o600)
    part.replace(path)


LYING: tuple[tuple[tuple[str, bytes], ...], ...] = (
    (),
    (("sb-type", b"forge.other"), ("sb-id", b"another"), ("sb-to", b"mallory@svc")),
    (("sb-attempt", b"99"), ("sb-extend-until", b"1"), ("sb-not-before", b"9999999999999")),
    (("sb-dlq-reason", b"expired"), ("traceparent", b"no"), ("content-type", b"text/html")),
)


async def forge(folder: Path, per_class: int, seed: int) -> None:
    handled: list[str] = []
    async with reading(folder, handled) as (bus, _):
        grammar = Grammar(seed, bus.clock.now_ms())
        records: list[NewRecord] = []
        expected: Counter[tuple[bytes, str]] = Counter()
        names: dict[bytes, str] = {}
        honest: list[str] = []
        for number in range(per_class):
            for found in FORGERIES.values():
                risk = found.risks[number % len(found.risks)]
                links = found.links[number // len(found.risks) % len(found.links)]
                plan = grammar.plan(risk, links)
                while found.chained and not plan.chain:
                    plan = grammar.plan(risk, links)
                forged = found.make(grammar, plan)
                twin = plan.seal()
                records += [forged, record_of(twin, headers=grammar.random.choice(LYING))]
                honest.append(twin.message_id)
                names[forged.value or b""] = found.name
                if found.reason is not None:
                    expected[forged.value or b"", found.reason] += 1
        grammar.random.shuffle(records)
        for start in range(0, len(records), 500):
            await bus.transport.append(records[start : start + 500], timeout_s=30)
            await bus.settle()
        dead = Counter((letter.record.value or b"", letter.reason) for letter in bus.dead_letters)
        told = {value: letter.error for letter in bus.dead_letters if (value := letter.record.value) is not None}
        wrong = [(names.get(value, "honest"), reason, told.get(value)) for value, reason in dead - expected]
        missed = [(names[value], reason) for value, reason in expected - dead]
        assert (wrong, missed) == ([], [])
        assert Counter(handled) == Counter(honest)


def test_there_are_more_classes_than_35_and_each_has_its_reason() -> None:
    assert len(FORGERIES) >= 35
    reasons = {found.reason for found in FORGERIES.values()}
    assert reasons >= {"signature_missing", "signature_invalid", "key_unknown", "key_revoked", "key_expired"}
    assert reasons >= {"sender_mismatch", "proof_invalid", "unauthorized", "type_mismatch", "wrong_audience"}


@pytest.mark.medium
async def test_no_forgery_is_handled_and_no_honest_message_refused(tmp_path: Path) -> None:
    await forge(tmp_path, 6, seed=1)


# Ten thousand messages.
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", [2, 3])
async def test_five_thousand_forgeries_beside_as_many_honest_messages(tmp_path: Path, seed: int) -> None:
    await forge(tmp_path, 5000 // len(FORGERIES) + 1, seed)


async def _send(bus: TestBus, *records: NewRecord) -> list[str]:
    """Append *records*; return the reasons of the dead letters that they became."""
    # Dead letters are in the order of their times.
    bus.clock.advance(0.001)
    before = len(bus.dead_letters)
    await bus.transport.append(list(records), timeout_s=5)
    await bus.settle()
    return [letter.reason for letter in bus.dead_letters[before:]]


async def test_a_key_file_that_is_swapped_under_a_running_worker_decides_within_a_second(tmp_path: Path) -> None:
    handled: list[str] = []
    async with reading(tmp_path, handled) as (bus, path):
        now_ms = bus.clock.now_ms()
        grammar = Grammar(5, now_ms)

        def plans() -> list[Message]:
            return [grammar.plan(risk, links, sender="planner@svc").seal() for risk in RISKS for links in (0, 2)]

        good = plans()
        assert await _send(bus, *map(record_of, good)) == []
        # Somebody else's key in the place of the planner's: a kid of its own, and one that is not its thumbprint.
        for forged in (
            jwks(now_ms, **{"planner@svc": {}}).replace(
                public_jwk(key_of("planner@svc"))["x"].encode(), public_jwk(key_of(STRANGER))["x"].encode()
            ),
            b"{",
            b"",
        ):
            write(path, forged)
            bus.clock.advance(1)
            assert await _send(bus, *map(record_of, plans())) == []
        write(path, jwks(now_ms, **{"planner@svc": {"revoked_at": format_ms(now_ms)}}))
        bus.clock.advance(1)
        assert await _send(bus, *map(record_of, plans())) == ["key_revoked"] * 6
        others = [grammar.plan(risk, 1, sender="worker@svc", link_sender="planner@svc") for risk in ("medium", "high")]
        assert await _send(bus, *(record_of(plan.seal()) for plan in others)) == ["proof_invalid"] * 2
        assert len(handled) == 4 * 6


async def test_high_risk_is_refused_when_the_keys_have_been_unusable_for_too_long(tmp_path: Path) -> None:
    handled: list[str] = []
    async with reading(tmp_path, handled) as (bus, path):
        assert await _send(bus, record_of(Grammar(4, bus.clock.now_ms()).plan("high", 1).seal())) == []
        path.unlink()
        bus.clock.advance(901)
        grammar = Grammar(6, bus.clock.now_ms())
        found = {risk: await _send(bus, record_of(grammar.plan(risk, 1).seal())) for risk in RISKS}
        assert found == {"low": [], "medium": [], "high": ["key_unknown"]}
        write(path, jwks(bus.clock.now_ms()))
        bus.clock.advance(1)
        grammar = Grammar(7, bus.clock.now_ms())
        assert await _send(bus, record_of(grammar.plan("high", 1).seal())) == []


async def test_messages_of_an_expired_key_stay_valid_if_sealed_in_time(tmp_path: Path) -> None:
    handled: list[str] = []
    async with reading(tmp_path, handled) as (bus, path):
        now_ms = bus.clock.now_ms()
        before = Grammar(8, now_ms)
        messages = [before.plan(risk, links, sender="planner@svc").seal() for risk in RISKS for links in (0, 3)]
        write(path, jwks(now_ms, **{"planner@svc": {"not_after": format_ms(now_ms)}}))
        bus.clock.advance(60)
        assert await _send(bus, *map(record_of, messages)) == []
        later = Grammar(9, bus.clock.now_ms())
        assert await _send(bus, record_of(later.plan("medium", 0, sender="planner@svc").seal())) == ["key_expired"]
        # A link is judged at its sealed time.
        cause = Grammar(10, now_ms).plan("medium", 0, sender="planner@svc").saying(recipient=None).seal()
        caused = later.plan("high", 0, sender="worker@svc")
        caused = caused.but(parents=(cause.seal,), chain=cause.chain_for_children()).saying(
            causation_id=cause.message_id, hops=1
        )
        assert await _send(bus, record_of(caused.seal())) == []
        assert len(handled) == 7


@pytest.mark.parametrize(("member", "reason"), [("revoked_at", "key_revoked"), ("not_after", "key_expired")])
async def test_a_time_that_a_key_file_names_counts_when_it_comes(tmp_path: Path, member: str, reason: str) -> None:
    """Without a change of any file, and for messages like those that passed a moment before."""
    handled: list[str] = []
    async with reading(tmp_path, handled) as (bus, path):
        until_ms = bus.clock.now_ms() + 5000
        write(path, jwks(bus.clock.now_ms(), **{"planner@svc": {member: format_ms(until_ms)}}))
        bus.clock.advance(2)
        number = 20

        async def one_of_each() -> list[str]:
            nonlocal number
            number += 1
            grammar = Grammar(number, bus.clock.now_ms())
            return await _send(bus, *(record_of(grammar.plan(risk, 0, sender="planner@svc").seal()) for risk in RISKS))

        for _ in range(3):
            assert await one_of_each() == []
        bus.clock.advance((until_ms - bus.clock.now_ms() - 2) / 1000)
        assert await one_of_each() == []
        bus.clock.advance(0.010)
        assert await one_of_each() == [reason] * 3
        assert len(handled) == 12


async def test_a_message_like_one_that_has_passed_is_judged_as_any_other(tmp_path: Path) -> None:
    """The quick way for known shapes verifies each signature."""
    handled: list[str] = []
    async with reading(tmp_path, handled) as (bus, _):
        key, eve = key_of("planner@svc"), key_of("mallory@svc")
        first = Grammar(30, bus.clock.now_ms()).plan("medium", 0, sender="planner@svc")

        def alike(number: int) -> Plan:
            message_id = uuid7(bus.clock.now_ms(), number.to_bytes(10, "big"))
            return first.saying(message_id=message_id, conversation_id=message_id)

        for number in range(20):
            assert await _send(bus, record_of(alike(number).seal())) == []
        flipped = _with_bytes(alike(20), lambda raw: raw[:-1] + bytes([raw[-1] ^ 1]))
        moved = edited(alike(21).seal(), signature=signature_of(alike(1).seal()))
        payload = encode_statement(alike(22).seal().statement)
        confused = edited(alike(22).seal(), signature=jws(header_of(key), payload, eve.sign))
        forged = [flipped, moved, confused, edited(alike(23).seal(), signature=None), record_of(alike(24).seal(eve))]
        good = [record_of(alike(number).seal()) for number in range(30, 40)]
        found = await _send(bus, *good[:5], *forged, *good[5:])
        assert sorted(found) == ["sender_mismatch", *["signature_invalid"] * 3, "signature_missing"]
        assert len(handled) == 30

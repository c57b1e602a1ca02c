"""What the tests of all dialects share: the formats' own examples, and the way there and back."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random
from typing import Any

import pytest
from msgspec import inspect

from bus.dialects import NONE, Claims, Defaults, Foreign, dialect
from bus.dialects.foreign import ForeignOptions
from bus.dialects.sealing import seal_foreign
from bus.errors import ContractError, DialectError
from bus.payloads.rules import check_rules
from bus.protocol import canonical
from bus.protocol.envelope import Agent
from bus.protocol.identifiers import is_namespace
from bus.protocol.sealing import Message
from bus.vocabulary import BUILT_IN

EXAMPLES = Path(__file__).parent / "examples"
SENT_MS = 1_767_225_600_000
PROOFS = ("auth", "signature")
"""Members that are never written again: a token is no statement, and who signs, signs anew."""


@pytest.fixture(scope="session")
def examples() -> Callable[[str], dict[str, dict[str, Any]]]:
    """The messages that a format shows of itself, by name."""

    def read(name: str) -> dict[str, dict[str, Any]]:
        found: dict[str, dict[str, Any]] = json.loads((EXAMPLES / f"{name}.json").read_text("utf-8"))
        return found

    return read


@pytest.fixture(scope="session")
def fragment_defaults() -> Defaults:
    return Defaults(
        message_id="msg-1",
        sent_at_ms=SENT_MS,
        sender=Agent(id="worker@svc", framework="codex"),
        recipient=Agent(id="planner@svc"),
        conversation_id="conversation-1",
        task_id="task-1",
        lifetime_ms=60_000,
    )


@pytest.fixture(scope="session")
def sealed() -> Callable[[Foreign], Message]:
    """A decoded message as it is sealed without an ingress."""
    return lambda foreign: seal_foreign(foreign, namespace="lab")


@pytest.fixture(scope="session")
def there_and_back() -> Callable[..., dict[str, Any]]:
    """`encode(decode(message))`, sealed in between."""

    def go(name: str, message: Mapping[str, Any], defaults: Defaults = NONE) -> dict[str, Any]:
        codec = dialect(name)
        foreign = codec.decode(json.dumps(message).encode(), defaults=defaults)
        sent_ms = None if foreign.claims.sent_at_ms is not None else SENT_MS
        namespace = foreign.claims.namespace or "lab"
        if not is_namespace(namespace):
            raise DialectError("/tenant_id", namespace, "a tenant that has a namespace here", "wrong_audience")
        return codec.encode(seal_foreign(foreign, namespace=namespace, now_ms=sent_ms))

    return go


@pytest.fixture(scope="session")
def assert_kept_whole(there_and_back: Callable[..., dict[str, Any]]) -> Callable[..., None]:
    """Law A: a message that is accepted comes back as the same JSON value, without its proofs."""

    def check(name: str, message: Mapping[str, Any], defaults: Defaults = NONE) -> None:
        expected = {
            member: value
            for member, value in message.items()
            if name not in ("plain-ids", "speech-acts") or member not in PROOFS
        }
        back = there_and_back(name, message, defaults)
        # As canonical text: true is not 1, and 1.0 is 1.
        assert canonical.encode(back) == canonical.encode(expected)

    return check


TEXTS = (
    *("task-1", "a_word", "CODE_1", "task.result", "1.2.3", "task.result@1", "https://example.com/a", "a/b.md"),
    *("sha256:" + "0a" * 32, "12.50", "EUR", "feature/x", "error.transient.rate_limit"),
)
"""One of them fits each pattern of the vocabulary."""


def _text(pattern: str | None, random: Random) -> str:
    if pattern is None:
        return random.choice(["x", "some text", "häßlich – ☂", "a b"])
    return random.choice([text for text in TEXTS if re.search(pattern, text)])


def _value(kind: Any, random: Random, depth: int = 0) -> Any:  # noqa: C901 - a table of kinds
    match kind:
        case inspect.Metadata():
            return _value(kind.type, random, depth)
        case inspect.StrType():
            return _text(kind.pattern, random)
        case inspect.IntType():
            least = 0 if kind.ge is None else kind.ge
            return random.randint(least, least + 100 if kind.le is None else min(kind.le, least + 100))
        case inspect.FloatType():
            return random.choice([0, 0.5, 1])
        case inspect.BoolType():
            return random.random() < 0.5
        case inspect.LiteralType():
            return random.choice(kind.values)
        case inspect.DateTimeType():
            return random.choice(["2026-01-31T12:00:00Z", "2026-01-31T12:00:00.125Z"])
        case inspect.ListType() | inspect.VarTupleType() | inspect.CollectionType():
            least = kind.min_length or 0
            return [_value(kind.item_type, random, depth + 1) for _ in range(random.randint(least, least + 2))]
        case inspect.DictType():
            return random.choice([{}, {"code": "X1", "message": "m"}, {"k": [1, None, {"a": 1.5, "b/~": "ä"}]}])
        case inspect.AnyType():
            return random.choice([1, "x", {"a": [True, None]}])
        case inspect.UnionType():
            given = [part for part in kind.types if not isinstance(part, inspect.NoneType)]
            return _value(random.choice(given), random, depth)
        case inspect.StructType():
            share = 0.4 if depth < 2 else 0.15
            return {
                field.encode_name: _value(field.type, random, depth + 1)
                for field in kind.fields
                if field.required or random.random() < share
            }
    raise NotImplementedError(kind)


HELD = ("namespace", "group", "sender", "message_type", "schema_version", "data")


@pytest.fixture(scope="session")
def data_of() -> Callable[[str, int], dict[str, Any]]:
    """Valid data of a built-in type, by a seed."""

    def make(name: str, seed: int) -> dict[str, Any]:
        kind = BUILT_IN.get(name)
        assert kind is not None
        random, info = Random(f"{name} {seed}"), inspect.type_info(kind.cls)
        for _ in range(1000):
            data: dict[str, Any] = _value(info, random)
            if name == "approval.request":
                data["action"] = {"type": "deploy", "description": "to production"}
                data["action_hash"] = canonical.digest(canonical.encode(data["action"]))
            try:
                encoded = canonical.encode(data, depth=2)
                check_rules(kind.rules, kind.decode(encoded), encoded)
            except ContractError:
                continue
            return data
        raise AssertionError(name)

    return make


@pytest.fixture(scope="session")
def message_of(data_of: Callable[[str, int], dict[str, Any]]) -> Callable[..., Message]:
    """A sealed message of a built-in type, by a seed."""

    def make(name: str, seed: int, message_id: str = "7e1a6b3e-3a74-4c7a-8c6f-2e21b8f59f44", **given: Any) -> Message:
        kind = BUILT_IN.get(name)
        assert kind is not None
        options = ForeignOptions(
            **{
                "message_id": message_id,
                "to": Agent(id="worker-1"),
                "correlation_id": "2fbb2e8b-1c6a-4a53-a2b9-f90d15c7f9f7",
                "expires_at_ms": SENT_MS + 90_000,
                **({"idempotency_key": "key-1"} if "idempotency_key" in kind.terms.needs else {}),
                **given,
            }
        )
        foreign = Foreign(
            type=name,
            version=kind.version,
            data=data_of(name, seed),
            options=options,
            claims=Claims(sender=Agent(id="planner-1"), sent_at_ms=SENT_MS),
        )
        return seal_foreign(foreign, namespace="lab")

    return make

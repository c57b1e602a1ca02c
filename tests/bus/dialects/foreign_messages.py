"""What the tests of all dialects share: the formats' own examples, changing them, and the way there and back."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
from msgspec import inspect

from bus.dialects import NONE, Claims, Defaults, Foreign, dialect
from bus.dialects.foreign import ForeignOptions
from bus.dialects.keeping import ABSENT
from bus.dialects.sealing import seal_foreign
from bus.errors import ContractError, DialectError
from bus.payloads.rules import check_rules
from bus.protocol import canonical
from bus.protocol.envelope import Agent
from bus.protocol.identifiers import is_namespace
from bus.protocol.sealing import Message, seal
from bus.vocabulary import BUILT_IN

EXAMPLES = Path(__file__).parent / "examples"
SENT_MS = 1_767_225_600_000
PROOFS = ("auth", "signature")
"""Members that are never written again: a token is no statement, and who signs, signs anew."""


Shown = dict[str, dict[str, Any]]


def examples(name: str) -> Shown:
    """The messages that a format shows of itself, by name."""
    found: Shown = json.loads((EXAMPLES / f"{name}.json").read_text("utf-8"))
    return found


fragment_defaults = Defaults(
    message_id="msg-1",
    sent_at_ms=SENT_MS,
    sender=Agent(id="worker@svc", framework="codex"),
    recipient=Agent(id="planner@svc"),
    conversation_id="conversation-1",
    task_id="task-1",
    lifetime_ms=60_000,
)


def sealed(foreign: Foreign) -> Message:
    """A decoded message as it is sealed without an ingress."""
    return seal_foreign(foreign, namespace="lab")


def changed(message: Mapping[str, Any], pointer: str, value: Any) -> dict[str, Any]:
    """*message* with another *value* at *pointer*; ABSENT: without the member."""
    copied = copy.deepcopy(dict(message))
    *path, last = canonical.pointer_tokens(pointer)
    target: Any = copied
    for step in path:
        target = target[int(step)] if isinstance(target, list) else target.setdefault(step, {})
    if isinstance(target, list):
        target[int(last)] = value
    elif value == ABSENT:
        target.pop(last, None)
    else:
        target[last] = value
    return copied


def refusal(name: str) -> Callable[..., DialectError]:
    """What tells why the dialect refuses a message."""

    def refused(message: Any, **given: Any) -> DialectError:
        with pytest.raises(DialectError) as caught:
            dialect(name).decode(message, **given)
        return caught.value

    return refused


def fault_of(call: Callable[[], object]) -> DialectError:
    """Why *call* is refused."""
    with pytest.raises(DialectError) as caught:
        call()
    return caught.value


def each(*rows: tuple[Any, ...], heads: int = 1) -> list[tuple[Any, ...]]:
    """A case for each of the values that follow the first *heads* elements of a row."""
    return [(*row[:heads], value) for row in rows for value in row[heads:]]


def there_and_back(name: str, message: Mapping[str, Any], defaults: Defaults = NONE) -> dict[str, Any]:
    """`encode(decode(message))`, sealed in between."""
    codec = dialect(name)
    foreign = codec.decode(json.dumps(message).encode(), defaults=defaults)
    sent_ms = None if foreign.claims.sent_at_ms is not None else SENT_MS
    namespace = foreign.claims.namespace or "lab"
    if not is_namespace(namespace):
        raise DialectError("/tenant_id", namespace, "a tenant that has a namespace here", "wrong_audience")
    return codec.encode(seal_foreign(foreign, namespace=namespace, now_ms=sent_ms))


def assert_kept_whole(name: str, message: Mapping[str, Any], defaults: Defaults = NONE) -> None:
    """Law A: a message that is accepted comes back as the same JSON value, without its proofs."""
    has_proofs = name not in ("plain-ids", "speech-acts")
    expected = {member: value for member, value in message.items() if has_proofs or member not in PROOFS}
    # As canonical text: true is not 1, and 1.0 is 1.
    assert canonical.encode(there_and_back(name, message, defaults)) == canonical.encode(expected)


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


def data_of(name: str, seed: int) -> dict[str, Any]:
    """Valid data of a built-in type, by a seed."""
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


def message_of(name: str, seed: int, message_id: str = "7e1a6b3e-3a74-4c7a-8c6f-2e21b8f59f44", **given: Any) -> Message:
    """A sealed message of a built-in type, by a seed."""
    kind = BUILT_IN.get(name)
    assert kind is not None
    options = {
        "message_id": message_id,
        "to": Agent(id="worker-1"),
        "correlation_id": "2fbb2e8b-1c6a-4a53-a2b9-f90d15c7f9f7",
        "expires_at_ms": SENT_MS + 90_000,
        **({"idempotency_key": "key-1"} if "idempotency_key" in kind.terms.required_options else {}),
        **given,
    }
    claims = Claims(sender=Agent(id="planner-1"), sent_at_ms=SENT_MS)
    data = data_of(name, seed)
    return sealed(Foreign(type=name, version=kind.version, data=data, options=ForeignOptions(**options), claims=claims))


def resealed(message: Message, data: Any = None, **metadata: Any) -> Message:
    """*message* with other *data*, or with other members in its metadata."""
    content = message.data if data is None else canonical.encode(data, depth=2)
    return seal(content, msgspec.structs.replace(message.metadata, **metadata), message.routing)

"""The terms of a payload type: its requirements on the envelope. Pure.

Owns the performative, the required members (*required_options*), fields that repeat the envelope (*must_match*), the
default lifetime, the options taken from data (*options_from*), and the fields that receivers must know (*critical*).
Publishers fill in a message by these terms and refuse one that breaks them; gate `schema` refuses it with the same
pointer. Also owns the names of side effects.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias, get_args

import msgspec

from bus.errors import ContractError
from bus.payloads.rules import value_at, value_of
from bus.protocol.envelope import Metadata, Performative, Routing

__all__ = ["NO_TERMS", "ByField", "EnvelopeTerms", "SideEffect", "Spoken", "check_side_effect", "make_terms"]


class ByField(msgspec.Struct, frozen=True):
    """The performative follows from data: *values* maps the value of *field* to it, with *otherwise* as the default.

        ByField("decision", {"approve": "accept", "reject": "reject"})

    The key "*" of *values* matches any value that is present.
    """

    field: str
    values: dict[str, Performative]
    otherwise: Performative | None = None

    @property
    def words(self) -> tuple[Performative, ...]:
        """Every performative that can follow."""
        return tuple(dict.fromkeys([*self.values.values(), *([self.otherwise] if self.otherwise else [])]))

    def of(self, payload: Any) -> Performative | None:
        """Return the performative of *payload*."""
        value = value_of(payload, self.field)
        if value is None or value is msgspec.UNSET:
            return self.otherwise
        return self.values.get(value if isinstance(value, str) else "*", self.values.get("*", self.otherwise))


Spoken: TypeAlias = Performative | ByField
SideEffect: TypeAlias = Literal["none", "read", "write", "external", "irreversible"]
"""The change that a message asks of its receiver, mildest first (`bus.trust.labels` orders them)."""

NEEDED: Final = {
    name: f"/{layer}/{name}"
    for layer, names in {
        "metadata": (
            "task_id",
            "parent_task_id",
            "run_id",
            "correlation_id",
            "intent",
            "sequence",
            "authority",
            "recipient",
        ),
        "routing": ("idempotency_key", "key", "reply_to", "priority"),
    }.items()
    for name in names
}
"""The members that a type can need, with their pointers in the envelope."""
_TAKEN: Final = ("ttl_s", "priority", "idempotency_key", "task_id")
"""The options that can be taken from data."""


class EnvelopeTerms(msgspec.Struct, frozen=True, kw_only=True):
    """The terms of one type."""

    performative: Spoken | None = None
    """None: any performative is allowed, and none is written."""
    required_options: tuple[str, ...] = ()
    """Names of envelope members that must be there."""
    must_match: dict[str, str] = {}
    """Pointers into data -> pointers into the envelope that must agree where both are there."""
    ttl_s: float | None = None
    """The lifetime in seconds if the publisher gives none; None: that of the settings."""
    options_from: dict[str, str] = {}
    """Options -> the fields of data that give them where the publisher does not."""
    critical: tuple[str, ...] = ()
    """Optional fields that receivers must know where they are set: without them the effect is wider."""

    @property
    def words(self) -> tuple[Performative, ...]:
        """Every performative that a message of the type can have; empty: any."""
        spoken = self.performative
        return () if spoken is None else spoken.words if isinstance(spoken, ByField) else (spoken,)

    @property
    def differs_by_payload(self) -> bool:
        """Whether two messages of the type can fare differently by these terms."""
        judged = self.required_options or self.must_match or self.options_from or self.critical
        return bool(judged or isinstance(self.performative, ByField))

    def spoken(self, payload: Any) -> Performative | None:
        """Return the performative of *payload*."""
        return self.performative.of(payload) if isinstance(self.performative, ByField) else self.performative

    def option(self, name: str, payload: Any) -> Any:
        """Return the option *name* as data give it; None where they do not."""
        if name not in self.options_from:
            return None
        value = value_of(payload, self.options_from[name])
        return None if value is msgspec.UNSET else value

    def check(self, metadata: Metadata, routing: Routing, payload: Any) -> None:
        """Raise ContractError (`schema_violation`) naming the envelope member or field that breaks them."""
        for name in self.required_options:
            layer = routing if NEEDED[name].startswith("/routing/") else metadata
            if getattr(layer, name) is None:
                raise ContractError(f"{metadata.message_type} needs it", NEEDED[name], "schema_violation")
        provided, spoken = metadata.performative, self.spoken(payload)
        if provided is not None and spoken is not None and provided != spoken:
            text = f"{provided!r} is not what {metadata.message_type} says: {spoken!r}"
            raise ContractError(text, "/metadata/performative", "schema_violation")
        for pointer, location in self.must_match.items():
            stated, sealed = value_at(payload, pointer), _sealed(metadata, routing, location)
            if stated is not None and sealed is not None and stated != sealed:
                raise ContractError(
                    f"differs from {location} of the same message", f"/data{pointer}", "schema_violation"
                )


NO_TERMS: Final = EnvelopeTerms()


def make_terms(
    name: str,
    *,
    performative: Spoken | None,
    required_options: tuple[str, ...],
    must_match: Mapping[str, str],
    ttl_s: float | None,
    options_from: Mapping[str, str],
    critical: Sequence[str] = (),
) -> EnvelopeTerms:
    """Return the terms of type *name*; raise ContractError for terms that no envelope can have."""
    allowed = get_args(Performative)
    spoken = performative.words if isinstance(performative, ByField) else (performative,)
    for word in spoken:
        if word is not None and word not in allowed:
            raise ContractError(f"@payload({name!r}): performative {word!r} is none of {', '.join(allowed)}")
    if any(member not in NEEDED for member in required_options):
        raise ContractError(
            f"@payload({name!r}): required_options={required_options!r} must be a tuple of {', '.join(NEEDED)}"
        )
    if ttl_s is not None and (isinstance(ttl_s, bool) or not isinstance(ttl_s, int | float) or not ttl_s > 0):
        raise ContractError(f"@payload({name!r}): ttl_s={ttl_s!r} must be a number of seconds above 0")
    if any(option not in _TAKEN for option in options_from):
        raise ContractError(
            f"@payload({name!r}): options_from={dict(options_from)!r} names no option of {', '.join(_TAKEN)}"
        )
    if isinstance(critical, str) or not all(isinstance(field, str) for field in critical):
        raise ContractError(f"@payload({name!r}): critical={critical!r} must be a tuple of field names")
    if not (performative or required_options or must_match or ttl_s or options_from or critical):
        return NO_TERMS
    return EnvelopeTerms(
        performative=performative,
        required_options=tuple(required_options),
        must_match=dict(must_match),
        ttl_s=ttl_s,
        options_from=dict(options_from),
        critical=tuple(critical),
    )


def check_side_effect(name: str, side_effect: object) -> None:
    """Raise ContractError where *side_effect* of type *name* is neither None nor a word for one."""
    words = get_args(SideEffect)
    if side_effect is not None and side_effect not in words:
        raise ContractError(f"@payload({name!r}): side_effect {side_effect!r} is none of {', '.join(words)}")


def _sealed(metadata: Metadata, routing: Routing, pointer: str) -> Any:
    layer, _, rest = pointer[1:].partition("/")
    return value_at(metadata if layer == "metadata" else routing, f"/{rest}")

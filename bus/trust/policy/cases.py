"""Test cases for a policy: requests written by people, where unnamed facts have ordinary values, and their expected
answers.

Owns the names and defaults of facts in a file of cases (the same as on the command line), and evaluating such a file.
Pure.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal, get_args

import msgspec

from bus.errors import ConfigurationError
from bus.nearest import nearest
from bus.payloads.payload_types import PayloadType
from bus.protocol.envelope import Performative
from bus.trust.labels import CLASSIFICATIONS, DEFAULT_CLASSIFICATION, LEVELS, SIDE_EFFECTS
from bus.trust.policy.decision import Allow, Deny, PolicyDecision, decide_request
from bus.trust.policy.facts import ACTIONS, RISKS, Request
from bus.trust.policy.rules import PolicyRules

__all__ = [
    "CASE_FACTS",
    "CaseResult",
    "PolicyCase",
    "answer_of",
    "make_request",
    "parse_cases",
    "run_cases",
]

_ANSWERS: Final = ("allow", "deny", "human", "agent")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)
_MAX_BYTES: Final = 4_194_304

_WORDS: Final[Mapping[str, Sequence[str]]] = {
    "action": ACTIONS,
    "level": LEVELS,
    "classification": CLASSIFICATIONS,
    "side_effect": SIDE_EFFECTS,
    "algorithm": ("asymmetric", "shared"),
    "performative": get_args(Performative),
    "lift_to": LEVELS,
    "risk": RISKS,
}
_TEXTS: Final = ("agent", "type", "namespace", "group", "resource", "tool")
_FLAGS: Final = ("signed", "via_complete", "first")
_LISTS: Final = ("tags", "via")
CASE_FACTS: Final = (*_TEXTS, *_WORDS, *_FLAGS, *_LISTS, "major", "at")
"""The facts that a case may set."""
_CASE_KEYS: Final = ("name", *CASE_FACTS, "expect", "rule")


class PolicyCase(msgspec.Struct, frozen=True, kw_only=True):
    """A request with the expected answer of a policy and, optionally, the rule that must decide."""

    name: str
    request: Request
    expect: Literal["allow", "deny", "human", "agent"]
    rule: str | None = None


class CaseResult(msgspec.Struct, frozen=True, kw_only=True):
    """The decision of a policy in one case."""

    case: PolicyCase
    answer: str
    decision: PolicyDecision

    @property
    def passed(self) -> bool:
        """Whether that was expected."""
        return self.answer == self.case.expect and self.case.rule in (None, self.decision.rule)


def answer_of(decision: PolicyDecision) -> Literal["allow", "deny", "human", "agent"]:
    """Return *decision* as one word; `human` and `agent` name the approver that is needed."""
    if isinstance(decision, Allow):
        return "allow"
    return "deny" if isinstance(decision, Deny) else decision.by


def make_request(facts: Mapping[str, Any], kind: PayloadType | None, *, namespace: str, now_ms: int) -> Request:
    """Return the request with *facts* (named as in `CASE_FACTS`).

    Missing facts are ordinary: signed by a trusted key, at level `user_request`, with internal data, without earlier
    senders. Side effect, risk and performative are those of the type, *kind*.
    """
    signed = facts.get("signed", True)
    via = tuple(facts.get("via", ()))
    spoken = None if kind is None else kind.terms.performative
    return Request(
        action=facts["action"],
        actor=facts.get("agent"),
        message_type=facts["type"],
        major=facts.get("major", 1 if kind is None else int(kind.version.partition(".")[0])),
        namespace=facts.get("namespace", namespace),
        group=facts.get("group"),
        resource=facts.get("resource", ""),
        side_effect=facts.get("side_effect", None if kind is None else kind.side_effect),
        level=facts.get("level", "user_request"),
        classification=facts.get("classification", DEFAULT_CLASSIFICATION),
        tags=frozenset(facts.get("tags", ())),
        signed=signed,
        algorithm=facts.get("algorithm", "asymmetric" if signed else None),
        via=via,
        via_complete=facts.get("via_complete", True),
        first=facts.get("first", not via),
        performative=facts.get("performative", spoken if isinstance(spoken, str) else None),
        lift_to=facts.get("lift_to"),
        now_ms=facts.get("at", now_ms),
        risk=facts.get("risk", None if kind is None else kind.risk),
        tool=facts.get("tool"),
    )


def parse_cases(
    text: bytes, *, name: str, kind_of: Callable[[str], PayloadType | None], namespace: str, now_ms: int
) -> list[PolicyCase]:
    """Return the cases of a TOML file called *name*: tables `[[cases]]`.

    Raises ConfigurationError with the case, the key, and what to write instead.
    """
    try:
        document = tomllib.loads(text[: _MAX_BYTES + 1].decode("utf-8-sig"))
    except (tomllib.TOMLDecodeError, RecursionError, ValueError) as error:
        raise ConfigurationError(f"{name}: not valid TOML: {error}") from None
    listed = document.get("cases")
    if len(text) > _MAX_BYTES or set(document) - {"cases"} or not isinstance(listed, list):
        raise ConfigurationError(f"{name}: expected tables [[cases]], at most 4 MiB, and nothing else")
    cases = []
    for number, values in enumerate(listed, 1):
        if not isinstance(values, dict):
            raise ConfigurationError(f"{name}: case number {number}: expected a table [[cases]]")
        facts = _checked(values, f"{name}: case {str(values.get('name', f'number {number}'))[:80]!r}")
        request = make_request(facts, kind_of(facts["type"]), namespace=namespace, now_ms=now_ms)
        cases.append(
            PolicyCase(
                name=facts.get("name", f"number {number}"),
                request=request,
                expect=facts["expect"],
                rule=facts.get("rule"),
            )
        )
    return cases


def run_cases(rules: PolicyRules, cases: Sequence[PolicyCase]) -> list[CaseResult]:
    """Return what *rules* decide in each of *cases*."""
    results = []
    for case in cases:
        decision = decide_request(rules, case.request)
        results.append(CaseResult(case=case, answer=answer_of(decision), decision=decision))
    return results


def _checked(values: Mapping[str, Any], location: str) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    for key, value in values.items():
        if key not in _CASE_KEYS:
            known = ", ".join(_CASE_KEYS)
            raise ConfigurationError(f"{location}: no key {key[:80]!r}{nearest(key, _CASE_KEYS)}; there are {known}")
        expected = _fault(key, value)
        if expected is not None:
            raise ConfigurationError(f"{location}: {key}: found {str(value)[:80]!r}, expected {expected}")
        facts[key] = value
    for key in ("action", "type", "expect"):
        if key not in facts:
            raise ConfigurationError(f"{location}: {key}: found nothing, expected a value")
    if "at" in facts:
        facts["at"] = (facts["at"].astimezone(UTC) - _EPOCH) // _MILLISECOND
    return facts


def _fault(key: str, value: object) -> str | None:
    """Return the expected form of the value of *key*, or None if *value* is valid."""
    words = _ANSWERS if key == "expect" else _WORDS.get(key)
    if words is not None:
        return None if value in words else f"one of {', '.join(words)}{nearest(str(value), words)}"
    if key in _FLAGS:
        return None if isinstance(value, bool) else "true or false"
    if key in _LISTS:
        fits = isinstance(value, list) and all(isinstance(one, str) for one in value)
        return None if fits else "a list of texts"
    if key == "major":
        return None if type(value) is int else "a number"
    if key == "at":
        fits = isinstance(value, datetime) and value.tzinfo is not None and 1 < value.year < 9999  # noqa: PLR2004
        return None if fits else "a time with an offset and without quotes, such as 2027-01-31T12:00:00Z"
    return None if isinstance(value, str) else "a text"

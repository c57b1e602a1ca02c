"""Prove a claim about a policy, or show a request that contradicts it. Pure, exact.

    publish command.request by *@svc denied
    handle pr.create.request by ** needs human
    publish task.request by planner@svc allowed

Owns the language of claims. `denied` holds where every such request is denied; `needs human` where each is denied, or
asks for a human; `needs agent` where each is at least asked for; `allowed` where each is allowed. A fact that a claim
does not name may have any value. `allowed` is about ordinary requests: signed, by a known key, of public data, first
hand, of low risk, unless the claim says otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NoReturn

import msgspec

from bus.errors import ConfigurationError
from bus.nearest import nearest
from bus.trust.decision import Decision, decide
from bus.trust.facts import ACTIONS, Request
from bus.trust.globs import compile_globs, glob_fault
from bus.trust.policy_cases import answer_of, simplest
from bus.trust.policy_rules import PolicyRules
from bus.trust.policy_space import ANSWERS, Answer, RequestParties, RequestSpace, Scenario

__all__ = ["FACT_WORDS", "PolicyClaim", "PolicyProof", "parse_claim", "prove"]

UNPROVEN: Final = "unproven"
"""Who no proof says who they are."""

_PLACES: Final = {"by": "actor", "for": "group", "in": "namespace", "on": "resource", "via": "via"}
_ENDINGS: Final[dict[str, tuple[Answer, ...]]] = {
    "allowed": ("allow",),
    "denied": ("deny",),
    "needs human": ("human", "deny"),
    "needs agent": ("agent", "human", "deny"),
    "needs approval": ("agent", "human", "deny"),
}
_FLAGS: Final = {"true": True, "false": False}
FACT_WORDS: Final = (
    "signed",
    "algorithm",
    "level",
    "classification",
    "side_effect",
    "first",
    "major",
    "performative",
    "lift_to",
    "risk",
    "via_complete",
    "tag",
    "no_tag",
)
"""What may stand after `when`, each with `=` and a value; `none` is an unknown fact."""
_ORDINARY: Final = {"signed": True, "algorithm": "asymmetric", "classification": "public", "risk": "low"}


class PolicyClaim(msgspec.Struct, frozen=True, kw_only=True):
    """A claim: what is asked, and which answers keep it."""

    text: str
    actions: tuple[str, ...]
    message_type: str
    places: dict[str, str]
    facts: dict[str, Any]
    tags: dict[str, bool]
    kept_by: tuple[Answer, ...]


class PolicyProof(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a claim: it holds, or *counterexample* has another answer, *decision*.

    *vacuous*: a claim that speaks of an approval holds because every such request is denied.
    """

    claim: str
    holds: bool
    vacuous: bool = False
    counterexample: Request | None = None
    decision: Decision | None = None


def parse_claim(text: str) -> PolicyClaim:
    """Return the claim that *text* makes. Raises ConfigurationError."""
    words = text.split()
    kept_by, words = _ending(text, words)
    if len(words) < 2:  # noqa: PLR2004 - action and type
        _refuse(text, "begins with an action and a type: publish task.request by planner@svc allowed")
    actions = tuple(words[0].split(","))
    for action in actions:
        if action not in ACTIONS:
            _refuse(text, f"{action!r} is no action{nearest(action, ACTIONS)}; there are {', '.join(ACTIONS)}")
    places: dict[str, str] = {}
    rest = words[2:]
    while rest and rest[0] != "when":
        if rest[0] not in _PLACES or len(rest) < 2:  # noqa: PLR2004 - a word and its glob
            _refuse(text, f"{rest[0]!r} is none of by, for (group), in (namespace), on (resource), via, when")
        places[_PLACES[rest[0]]] = rest[1]
        rest = rest[2:]
    facts, tags = _facts(text, rest[1:])
    for glob in (words[1], *places.values()):
        if (fault := glob_fault(glob)) is not None:
            _refuse(text, f"{glob[:80]!r} {fault}")
    return PolicyClaim(
        text=text, actions=actions, message_type=words[1], places=places, facts=facts, tags=tags, kept_by=kept_by
    )


def prove(rules: PolicyRules, claim: PolicyClaim | str, *, types: Sequence[str] = (), now_ms: int = 0) -> PolicyProof:
    """Return whether *claim* holds of *rules*; *types* are message types to take as examples, where any will do.

    Raises ConfigurationError where the claim cannot be read, or the rules are too entangled to say.
    """
    asked = parse_claim(claim) if isinstance(claim, str) else claim
    told_apart: dict[str, Sequence[Any]] = {name: [glob] for name, glob in asked.places.items() if glob != UNPROVEN}
    told_apart |= {name: [asked.facts[name]] for name in ("major", "performative") if asked.facts.get(name) is not None}
    space = RequestSpace(
        [rules],
        told_apart={**told_apart, "message_type": [asked.message_type], "tags": list(asked.tags)},
        preferred={"message_type": list(types), "actor": [row.id for row in rules.rows if "*" not in row.id]},
        now_ms=now_ms,
    )
    within, fits = _scenario(space, asked), _fitting(asked)
    broken_by = [answer for answer in ANSWERS if answer not in asked.kept_by]
    found = space.find(asked.actions, [space.answers(0, broken_by)], within=within, fits=fits)
    if found is not None:
        kept = {*asked.places, *asked.facts, *(["tags"] if asked.tags else [])}
        kept |= set(_ORDINARY) | {"via", "via_complete"} if asked.kept_by == ("allow",) else set()
        found = simplest(found, lambda one: answer_of(decide(rules, one)) in broken_by, kept=kept)
        return PolicyProof(claim=asked.text, holds=False, counterexample=found, decision=decide(rules, found))
    wanted: list[Answer] = [answer for answer in asked.kept_by if answer != "deny"] or list(asked.kept_by)
    vacuous = space.find(asked.actions, [space.answers(0, wanted)], within=within, fits=fits) is None
    return PolicyProof(claim=asked.text, holds=True, vacuous=vacuous)


def _ending(text: str, words: list[str]) -> tuple[tuple[Answer, ...], list[str]]:
    length = next((length for length in (1, 2) if " ".join(words[-length:]) in _ENDINGS), 0)
    if not length:
        _refuse(text, f"ends with one of {', '.join(_ENDINGS)}")
    return _ENDINGS[" ".join(words[-length:])], words[:-length]


def _facts(text: str, words: Sequence[str]) -> tuple[dict[str, Any], dict[str, bool]]:
    facts: dict[str, Any] = {}
    tags: dict[str, bool] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if name not in FACT_WORDS or not equals:
            _refuse(
                text, f"{word!r} is no fact{nearest(name, FACT_WORDS)}: write NAME=VALUE of {', '.join(FACT_WORDS)}"
            )
        if name in ("tag", "no_tag"):
            tags[value] = name == "tag"
        elif name == "major":
            if not value.isdigit():
                _refuse(text, "major is a number")
            facts[name] = int(value)
        else:
            facts[name] = None if value == "none" else _FLAGS.get(value, value)
    return facts, tags


def _scenario(space: RequestSpace, claim: PolicyClaim) -> Scenario:
    scenario = space.whole
    globs = {"message_type": claim.message_type, **claim.places}
    for name in ("message_type", "group", "namespace", "resource"):
        if name in globs:
            scenario = space.restricted(name, _matching(globs[name]), scenario)
    facts = {**(_ORDINARY if claim.kept_by == ("allow",) else {}), **claim.facts}
    for name, value in facts.items():
        if name != "via_complete":
            scenario = space.restricted(name, lambda one, value=value: one == value, scenario)  # type: ignore[misc]
            number = space.numbers[name]
            if not scenario.left[number]:
                values = ", ".join("none" if one is None else str(one) for one in space.facts[number].values)
                _refuse(claim.text, f"{name}={value} is no value that matters here; there are {values}")
    for tag, present in claim.tags.items():
        scenario = space.restricted(f"tag {tag}", lambda one, value=present: one is value, scenario)  # type: ignore[misc]
    return scenario


def _matching(glob: str) -> Callable[[Any], bool]:
    matcher = compile_globs([glob])
    return lambda text: (text is None and glob == "**") or (text is not None and bool(matcher.match(text)))


def _fitting(claim: PolicyClaim) -> Callable[[RequestParties], bool]:
    ordinary = claim.kept_by == ("allow",)
    by, via = claim.places.get("actor", "**"), claim.places.get("via")
    named = _is_unproven if by == UNPROVEN else _matching(by)
    behind = None if via is None else _matching(via)
    complete = claim.facts.get("via_complete", True if ordinary else None)

    def fits(parties: RequestParties) -> bool:
        if not named(parties.actor) or (complete is not None and parties.via_complete is not complete):
            return False
        if behind is not None:
            return any(behind(sender) for sender in parties.via)
        return not (ordinary and parties.via)

    return fits


def _is_unproven(actor: str | None) -> bool:
    return actor is None


def _refuse(text: str, what: str) -> NoReturn:
    raise ConfigurationError(f"claim {text[:200]!r}: {what}")

"""Decisions of a policy, the facts of a request and an agent, in words and as members of JSON. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from bus.telemetry.terminal import printable
from bus.telemetry.terminal_json import table_lines
from bus.trust.policy.cases import make_request
from bus.trust.policy.decision import Allow, Deny, PolicyDecision, RuleVerdict
from bus.trust.policy.facts import AgentFacts, Request
from bus.trust.policy.rules import PolicyRules

__all__ = [
    "PolicyAnswer",
    "PolicyCaseRow",
    "decision_sentence",
    "explanation_lines",
    "facts_of_agent",
    "facts_of_request",
    "is_near",
    "request_line",
    "value_text",
]


class PolicyAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """How the policy decides one request."""

    answer: str
    decision: dict[str, Any]
    facts: dict[str, Any]
    agent: dict[str, Any] | None
    """What the policy's table has about the acting agent."""
    rules: tuple[RuleVerdict, ...]
    file: str
    sha256: str


class PolicyCaseRow(msgspec.Struct, frozen=True, kw_only=True):
    """One case of a team against its policy."""

    name: str
    passed: bool
    expected: str
    decision: dict[str, Any]


def facts_of_request(request: Request) -> dict[str, Any]:
    facts: dict[str, Any] = msgspec.to_builtins(request)
    return {**facts, "tags": sorted(request.tags)}


def facts_of_agent(row: AgentFacts) -> dict[str, Any]:
    lists = {name: sorted(getattr(row, name)) for name in ("capabilities", "roles", "groups")}
    facts: dict[str, Any] = {name: value for name, value in msgspec.structs.asdict(row).items() if name != "listed"}
    authority = None if row.authority is None else msgspec.to_builtins(row.authority)
    return {**facts, **lists, "authority": authority}


def decision_sentence(decision: PolicyDecision) -> str:
    if isinstance(decision, Allow):
        return f"allowed by rule {decision.rule}"
    if isinstance(decision, Deny):
        what = f"denied: {decision.rule}" if decision.rule == "no-match" else f"denied by rule {decision.rule}"
        return f"{what} ({', '.join(decision.differing)})" if decision.differing else what
    quorum = f", {decision.quorum} of them" if decision.quorum > 1 else ""
    among = " and ".join(f"one of {', '.join(globs)}" for globs in decision.approvers)
    return f"needs approval by {decision.by}{quorum}{f' ({printable(among)})' if among else ''}: rule {decision.rule}"


def value_text(value: object) -> str:
    if value is None:
        return "unknown"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return printable(", ".join(map(str, value))) or "none"
    return printable(str(value)) or '""'


def request_line(request: Request) -> str:
    """Return the facts of *request* on one line; those that are as usual are left out."""
    usual = make_request({"action": "", "type": ""}, None, namespace="", now_ms=request.now_ms)
    who = "an unverified agent" if request.actor is None else request.actor
    words = [f"{request.action} {request.message_type} by {who}"]
    ordinary = facts_of_request(usual)
    for name, value in facts_of_request(request).items():
        if name not in ("action", "message_type", "actor", "now_ms", "namespace") and value != ordinary[name]:
            words.append(f"{name}={value_text(value)}")
    return printable(" ".join(words))


def is_near(verdict: RuleVerdict) -> bool:
    return verdict.matches or not {"action", "message_type"} & {*verdict.failed}


def explanation_lines(
    request: Request, decision: PolicyDecision, row: AgentFacts | None, verdicts: list[RuleVerdict], rules: PolicyRules
) -> Iterator[str]:
    """Yield the decision, the facts, what the policy knows of the agent, and how near each rule came."""
    yield decision_sentence(decision)
    yield "\nfacts:"
    for name, value in facts_of_request(request).items():
        yield f"  {name}: {value_text(value)}"
    if row is not None:
        known = "" if row.listed else " (not in the table: the defaults)"
        yield f"\nagent {printable(request.actor or '')}{known}:"
        for name, value in facts_of_agent(row).items():
            yield f"  {name}: {value_text(value)}"
    yield ""
    yield from table_lines(
        ("RULE", "EFFECT", "MATCHES", "DIFFERS IN", "UNKNOWN"),
        [
            (
                one.rule,
                one.effect,
                "yes" if one.matches else "no",
                " ".join(one.failed) or "-",
                " ".join(one.unknown) or "-",
            )
            for one in verdicts
        ],
    )
    yield f"\npolicy {printable(rules.name)}, sha256 {rules.sha256}"

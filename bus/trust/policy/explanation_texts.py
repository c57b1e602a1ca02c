"""Decisions of a policy, the facts of a request and an agent, in words and as members of JSON. Pure."""

from __future__ import annotations

from typing import Any

import msgspec

from bus.telemetry.terminal import printable
from bus.trust.policy.cases import make_request
from bus.trust.policy.decision import Allow, Deny, PolicyDecision, RuleVerdict
from bus.trust.policy.facts import AgentFacts, Request

__all__ = [
    "PolicyAnswer",
    "PolicyCaseRow",
    "decision_sentence",
    "facts_of_agent",
    "facts_of_request",
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

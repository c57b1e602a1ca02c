"""The names of the built-in message types, known without importing them: `@payload` refuses them to other classes.

A test compares them with the vocabulary, which imports this package and so cannot be asked here.
"""

from __future__ import annotations

from typing import Final

from bus.errors import ContractError

__all__ = ["BUILT_IN_NAMES", "check_name", "is_override"]

BUILT_IN_NAMES: Final = frozenset(
    [
        "act.accept",
        "act.call-for-proposal",
        "act.cancel",
        "act.confirm",
        "act.error",
        "act.inform",
        "act.propose",
        "act.query",
        "act.reject",
        "act.request",
        "act.subscribe",
        "agent.announcement",
        "agent.discover",
        "agent.goodbye",
        "agent.handshake",
        "agent.handshake-ack",
        "agent.heartbeat",
        "analysis.request",
        "analysis.result",
        "approval.closed",
        "approval.decision",
        "approval.request",
        "auction.award",
        "auction.bid",
        "auction.call",
        "auction.failure",
        "auction.loss",
        "auction.refusal",
        "auction.result",
        "audit.checkpoint",
        "blackboard.conflict",
        "blackboard.read",
        "blackboard.value",
        "blackboard.write",
        "blackboard.written",
        "branch.create.request",
        "capability.advertisement",
        "checkpoint.created",
        "claim.made",
        "command.request",
        "decision.made",
        "draft.output",
        "error.reported",
        "escalation.raised",
        "event.observed",
        "evidence.observed",
        "handoff.accepted",
        "handoff.completed",
        "handoff.rejected",
        "handoff.request",
        "issue.intake",
        "key.published",
        "key.revoked",
        "method.request",
        "method.response",
        "notification.sent",
        "patch.proposal",
        "pr.create.request",
        "pr.summary",
        "redrive.ordered",
        "repo.map.request",
        "repo.map.result",
        "research.output",
        "research.request",
        "review.comment.addressed",
        "review.output",
        "review.request",
        "review.result",
        "schedule.due",
        "security.review.result",
        "status.update",
        "subscription.cancel",
        "subscription.ended",
        "subscription.notice",
        "subscription.open",
        "subscription.opened",
        "task.accepted",
        "task.artifact",
        "task.cancel",
        "task.clarification",
        "task.clarified",
        "task.handoff",
        "task.rejected",
        "task.request",
        "task.result",
        "test.execution.request",
        "test.execution.result",
        "tool.call",
        "tool.result",
        "trust.lifted",
        "usage.reported",
        "wait.due",
        "workflow.start",
    ]
)
_OURS: Final = __name__.removesuffix("payloads.built_in_names") + "vocabulary."


def is_override(name: str, cls: type) -> bool:
    """Return whether *cls*, the class of type *name*, stands in the place of a built-in one."""
    return name in BUILT_IN_NAMES and not cls.__module__.startswith(_OURS)


def check_name(name: str, cls: type, *, overrides: bool) -> None:
    """Raise ContractError where *cls* takes the name of a built-in type without *overrides*, or overrides nothing."""
    if overrides and name not in BUILT_IN_NAMES:
        raise ContractError(f"@payload({name!r}): overrides=True, but no built-in type has this name: leave it out")
    if not overrides and is_override(name, cls):
        raise ContractError(
            f"@payload({name!r}) is the name of a built-in type, which has other fields: choose a name of your own, "
            f"such as 'desk.{name.rpartition('.')[2]}', or use the class in sealbus.vocabulary; overrides=True "
            "replaces the built-in type in this process"
        )

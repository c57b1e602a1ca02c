"""The vocabulary: what agents say to each other without defining types of their own.

One module per family; a class is named after its type (`task.request` is `TaskRequest`). Owns the table of families, by
which a family is imported when one of its types is asked for: a worker that uses three types loads no more.
`VOCABULARY.md` is the contract's table of all fields.

    from sealbus import vocabulary
    await bus.publish(vocabulary.TaskRequest(goal="..."), task_id="t-1")
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from bus.payloads.payload_types import PayloadType, Registry, payload_type

if TYPE_CHECKING:
    from bus.vocabulary.act import *  # noqa: F403
    from bus.vocabulary.agent import *  # noqa: F403
    from bus.vocabulary.approval import *  # noqa: F403
    from bus.vocabulary.auction import *  # noqa: F403
    from bus.vocabulary.blackboard import *  # noqa: F403
    from bus.vocabulary.bus import *  # noqa: F403
    from bus.vocabulary.error import *  # noqa: F403
    from bus.vocabulary.evidence import *  # noqa: F403
    from bus.vocabulary.handoff import *  # noqa: F403
    from bus.vocabulary.method import *  # noqa: F403
    from bus.vocabulary.operations import *  # noqa: F403
    from bus.vocabulary.parts import *  # noqa: F403
    from bus.vocabulary.review import *  # noqa: F403
    from bus.vocabulary.subscription import *  # noqa: F403
    from bus.vocabulary.swe import *  # noqa: F403
    from bus.vocabulary.task import *  # noqa: F403
    from bus.vocabulary.tool import *  # noqa: F403
    from bus.vocabulary.trust import *  # noqa: F403
    from bus.vocabulary.usage import *  # noqa: F403

__all__ = ["BUILT_IN", "FAMILIES", "OLDER", "Vocabulary", "family_of", "older"]

FAMILIES: Final[Mapping[str, Mapping[str, str]]] = MappingProxyType(
    {
        "task": {
            "task.request": "TaskRequest",
            "task.accepted": "TaskAccepted",
            "task.rejected": "TaskRejected",
            "task.clarification": "TaskClarification",
            "task.clarified": "TaskClarified",
            "task.cancel": "TaskCancel",
            "task.result": "TaskResult",
            "task.handoff": "TaskHandoff",
            "status.update": "StatusUpdate",
            "checkpoint.created": "CheckpointCreated",
        },
        "handoff": {
            "handoff.request": "HandoffRequest",
            "handoff.accepted": "HandoffAccepted",
            "handoff.rejected": "HandoffRejected",
            "handoff.completed": "HandoffCompleted",
        },
        "evidence": {
            "evidence.observed": "EvidenceObserved",
            "claim.made": "ClaimMade",
            "decision.made": "DecisionMade",
        },
        "review": {
            "research.request": "ResearchRequest",
            "research.output": "ResearchOutput",
            "draft.output": "DraftOutput",
            "review.output": "ReviewOutput",
            "review.request": "ReviewRequest",
            "review.result": "ReviewResult",
        },
        "approval": {
            "approval.request": "ApprovalRequest",
            "approval.decision": "ApprovalDecision",
        },
        "tool": {
            "tool.call": "ToolCall",
            "tool.result": "ToolResult",
        },
        "error": {
            "error.reported": "ErrorReported",
        },
        "agent": {
            "agent.handshake": "AgentHandshake",
            "agent.handshake-ack": "AgentHandshakeAck",
            "agent.discover": "AgentDiscover",
            "agent.announcement": "AgentAnnouncement",
            "agent.heartbeat": "AgentHeartbeat",
            "agent.goodbye": "AgentGoodbye",
            "capability.advertisement": "CapabilityAdvertisement",
        },
        "method": {
            "method.request": "MethodRequest",
            "method.response": "MethodResponse",
        },
        "act": {
            "act.request": "ActRequest",
            "act.inform": "ActInform",
            "act.propose": "ActPropose",
            "act.accept": "ActAccept",
            "act.reject": "ActReject",
            "act.query": "ActQuery",
            "act.confirm": "ActConfirm",
            "act.error": "ActError",
            "act.call-for-proposal": "ActCallForProposal",
            "act.subscribe": "ActSubscribe",
            "act.cancel": "ActCancel",
        },
        "auction": {
            "auction.call": "AuctionCall",
            "auction.bid": "AuctionBid",
            "auction.refusal": "AuctionRefusal",
            "auction.award": "AuctionAward",
            "auction.loss": "AuctionLoss",
            "auction.result": "AuctionResult",
            "auction.failure": "AuctionFailure",
        },
        "subscription": {
            "subscription.open": "SubscriptionOpen",
            "subscription.opened": "SubscriptionOpened",
            "subscription.notice": "SubscriptionNotice",
            "subscription.cancel": "SubscriptionCancel",
            "subscription.ended": "SubscriptionEnded",
        },
        "operations": {
            "command.request": "CommandRequest",
            "event.observed": "EventObserved",
            "escalation.raised": "EscalationRaised",
            "notification.sent": "NotificationSent",
        },
        "blackboard": {
            "blackboard.write": "BlackboardWrite",
            "blackboard.written": "BlackboardWritten",
            "blackboard.conflict": "BlackboardConflict",
            "blackboard.read": "BlackboardRead",
            "blackboard.value": "BlackboardValue",
        },
        "usage": {
            "usage.reported": "UsageReported",
        },
        "trust": {
            "trust.lifted": "TrustLifted",
        },
        "swe": {
            "issue.intake": "IssueIntake",
            "repo.map.request": "RepoMapRequest",
            "repo.map.result": "RepoMapResult",
            "analysis.request": "AnalysisRequest",
            "analysis.result": "AnalysisResult",
            "patch.proposal": "PatchProposal",
            "test.execution.request": "TestExecutionRequest",
            "test.execution.result": "TestExecutionResult",
            "security.review.result": "SecurityReviewResult",
            "branch.create.request": "BranchCreateRequest",
            "pr.create.request": "PrCreateRequest",
            "pr.summary": "PrSummary",
            "review.comment.addressed": "ReviewCommentAddressed",
        },
        "bus": {
            "key.published": "KeyPublished",
            "key.revoked": "KeyRevoked",
            "redrive.ordered": "RedriveOrdered",
            "approval.closed": "ApprovalClosed",
            "wait.due": "WaitDue",
            "workflow.start": "WorkflowStart",
            "audit.checkpoint": "AuditCheckpoint",
        },
    }
)
"""Family, which is the name of its module -> message type -> class."""
OLDER: Final[Mapping[tuple[str, str], tuple[str, str]]] = MappingProxyType(
    {
        ("review.result", "1.0.0"): ("review", "ReviewResult1"),
        ("approval.request", "1.0.0"): ("approval", "ApprovalRequest1"),
    }
)
"""(Message type, version) -> (family, class) of versions that are read and not written any more."""

_FAMILY_OF: Final = {name: family for family, types in FAMILIES.items() for name in types}
_PARTS: Final = (
    "AgentCard",
    "AgentInfo",
    "Budget",
    "CalledTool",
    "CandidateFile",
    "ChangedFile",
    "Content",
    "Effect",
    "ErrorInfo",
    "Evidence",
    "Found",
    "Money",
    "NextTask",
    "Ref",
    "RequiredAction",
    "Resource",
    "ReturnContract",
    "ReviewItem",
    "Risk",
    "RiskAssessment",
    "Scope",
    "TestRun",
)
_OWN_PARTS: Final = {
    "Action": "approval",
    "Constraints": "task",
    "Filters": "agent",
    "Finding": "review",
    "Issue": "review",
    "Reviewer": "approval",
    "Section": "review",
    "TaskSpec": "task",
    "ToolError": "tool",
}
"""Parts that one family alone has."""
_CLASSES: Final = {
    **dict.fromkeys(_PARTS, "parts"),
    **_OWN_PARTS,
    **{cls: family for family, types in FAMILIES.items() for cls in types.values()},
    **{cls: family for family, cls in OLDER.values()},
}


def family_of(name: str) -> str | None:
    """Return the family of message type *name*; None for a type that is not built in."""
    return _FAMILY_OF.get(name)


def older(name: str, version: str) -> PayloadType | None:
    """Return the type *name* in a *version* that is read and not written any more; None where there is none."""
    place = OLDER.get((name, version))
    return None if place is None else payload_type(getattr(import_module(f"{__name__}.{place[0]}"), place[1]))


class Vocabulary(Registry):
    """Every built-in type in its newest version; a family is imported with its first type."""

    def __iter__(self) -> Iterator[PayloadType]:
        for name in _FAMILY_OF:
            yield self._load(name)

    def __contains__(self, name: str) -> bool:
        return name in _FAMILY_OF

    def __len__(self) -> int:
        return len(_FAMILY_OF)

    def get(self, name: str) -> PayloadType | None:
        """Return the built-in type *name*."""
        return self._load(name) if name in _FAMILY_OF else None

    def names(self) -> frozenset[str]:
        """Every built-in type; nothing is imported for it."""
        return frozenset(_FAMILY_OF)

    def _load(self, name: str) -> PayloadType:
        known = self._types.get(name)
        if known is None:
            family = _FAMILY_OF[name]
            known = payload_type(getattr(import_module(f"{__name__}.{family}"), FAMILIES[family][name]))
            known.resolve()
            self._types[name] = known
        return known


BUILT_IN: Final = Vocabulary()


def __getattr__(name: str) -> Any:
    """Import a class of the vocabulary when it is asked for."""
    if name not in _CLASSES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(f"{__name__}.{_CLASSES[name]}"), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_CLASSES})

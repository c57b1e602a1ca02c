"""The built-in message types: what agents say to each other without types of their own.

    from sealbus import vocabulary
    await bus.publish(vocabulary.TaskRequest(goal="..."), task_id="t-1")

A family is imported when one of its types is asked for. Page: `docs/reference/message-types.md`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bus.vocabulary.act import (
        ActAccept,
        ActCallForProposal,
        ActCancel,
        ActConfirm,
        ActError,
        ActInform,
        ActPropose,
        ActQuery,
        ActReject,
        ActRequest,
        ActSubscribe,
    )
    from bus.vocabulary.agent import (
        AgentAnnouncement,
        AgentDiscover,
        AgentGoodbye,
        AgentHandshake,
        AgentHandshakeAck,
        AgentHeartbeat,
        CapabilityAdvertisement,
        CurrentTask,
        Filters,
        RecentRuns,
        RunCount,
    )
    from bus.vocabulary.approval import (
        Action,
        ApprovalDecision,
        ApprovalRequest,
        ApprovalRequest1,
        Reviewer,
    )
    from bus.vocabulary.auction import (
        AuctionAward,
        AuctionBid,
        AuctionCall,
        AuctionFailure,
        AuctionLoss,
        AuctionRefusal,
        AuctionResult,
    )
    from bus.vocabulary.blackboard import (
        BlackboardConflict,
        BlackboardRead,
        BlackboardValue,
        BlackboardWrite,
        BlackboardWritten,
    )
    from bus.vocabulary.bus import (
        ApprovalClosed,
        AuditCheckpoint,
        KeyPublished,
        KeyRevoked,
        RedriveOrdered,
        ScheduleDue,
        WaitDue,
        WorkflowStart,
    )
    from bus.vocabulary.error import (
        ErrorReported,
    )
    from bus.vocabulary.evidence import (
        ClaimMade,
        DecisionMade,
        EvidenceObserved,
    )
    from bus.vocabulary.handoff import (
        HandoffAccepted,
        HandoffCompleted,
        HandoffRejected,
        HandoffRequest,
    )
    from bus.vocabulary.method import (
        MethodRequest,
        MethodResponse,
    )
    from bus.vocabulary.operations import (
        CommandRequest,
        EscalationRaised,
        EventObserved,
        NotificationSent,
    )
    from bus.vocabulary.parts import (
        AgentCard,
        AgentInfo,
        Budget,
        CalledTool,
        CandidateFile,
        ChangedFile,
        Content,
        Effect,
        ErrorInfo,
        Evidence,
        Found,
        Money,
        NextTask,
        Ref,
        RequiredAction,
        Resource,
        ReturnContract,
        ReviewItem,
        Risk,
        RiskAssessment,
        Scope,
        TestRun,
    )
    from bus.vocabulary.review import (
        DraftOutput,
        Finding,
        Issue,
        ResearchOutput,
        ResearchRequest,
        ReviewOutput,
        ReviewRequest,
        ReviewResult,
        ReviewResult1,
        Section,
    )
    from bus.vocabulary.subscription import (
        SubscriptionCancel,
        SubscriptionEnded,
        SubscriptionNotice,
        SubscriptionOpen,
        SubscriptionOpened,
    )
    from bus.vocabulary.swe import (
        AnalysisRequest,
        AnalysisResult,
        BranchCreateRequest,
        IssueIntake,
        PatchProposal,
        PrCreateRequest,
        PrSummary,
        RepoMapRequest,
        RepoMapResult,
        ReviewCommentAddressed,
        SecurityReviewResult,
        TestExecutionRequest,
        TestExecutionResult,
    )
    from bus.vocabulary.task import (
        CheckpointCreated,
        Constraints,
        StatusUpdate,
        TaskAccepted,
        TaskArtifact,
        TaskCancel,
        TaskClarification,
        TaskClarified,
        TaskHandoff,
        TaskRejected,
        TaskRequest,
        TaskResult,
        TaskSpec,
    )
    from bus.vocabulary.tool import (
        ToolCall,
        ToolError,
        ToolResult,
    )
    from bus.vocabulary.trust import (
        TrustLifted,
    )
    from bus.vocabulary.usage import (
        UsageReported,
    )
else:

    def __getattr__(name):
        """Return a class of the vocabulary, imported with its family."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from bus import vocabulary

        found = globals()[name] = getattr(vocabulary, name)
        return found

    def __dir__():
        return sorted({*globals(), *__all__})


__all__ = [
    "ActAccept",
    "ActCallForProposal",
    "ActCancel",
    "ActConfirm",
    "ActError",
    "ActInform",
    "ActPropose",
    "ActQuery",
    "ActReject",
    "ActRequest",
    "ActSubscribe",
    "Action",
    "AgentAnnouncement",
    "AgentCard",
    "AgentDiscover",
    "AgentGoodbye",
    "AgentHandshake",
    "AgentHandshakeAck",
    "AgentHeartbeat",
    "AgentInfo",
    "AnalysisRequest",
    "AnalysisResult",
    "ApprovalClosed",
    "ApprovalDecision",
    "ApprovalRequest",
    "ApprovalRequest1",
    "AuctionAward",
    "AuctionBid",
    "AuctionCall",
    "AuctionFailure",
    "AuctionLoss",
    "AuctionRefusal",
    "AuctionResult",
    "AuditCheckpoint",
    "BlackboardConflict",
    "BlackboardRead",
    "BlackboardValue",
    "BlackboardWrite",
    "BlackboardWritten",
    "BranchCreateRequest",
    "Budget",
    "CalledTool",
    "CandidateFile",
    "CapabilityAdvertisement",
    "ChangedFile",
    "CheckpointCreated",
    "ClaimMade",
    "CommandRequest",
    "Constraints",
    "Content",
    "CurrentTask",
    "DecisionMade",
    "DraftOutput",
    "Effect",
    "ErrorInfo",
    "ErrorReported",
    "EscalationRaised",
    "EventObserved",
    "Evidence",
    "EvidenceObserved",
    "Filters",
    "Finding",
    "Found",
    "HandoffAccepted",
    "HandoffCompleted",
    "HandoffRejected",
    "HandoffRequest",
    "Issue",
    "IssueIntake",
    "KeyPublished",
    "KeyRevoked",
    "MethodRequest",
    "MethodResponse",
    "Money",
    "NextTask",
    "NotificationSent",
    "PatchProposal",
    "PrCreateRequest",
    "PrSummary",
    "RecentRuns",
    "RedriveOrdered",
    "Ref",
    "RepoMapRequest",
    "RepoMapResult",
    "RequiredAction",
    "ResearchOutput",
    "ResearchRequest",
    "Resource",
    "ReturnContract",
    "ReviewCommentAddressed",
    "ReviewItem",
    "ReviewOutput",
    "ReviewRequest",
    "ReviewResult",
    "ReviewResult1",
    "Reviewer",
    "Risk",
    "RiskAssessment",
    "RunCount",
    "ScheduleDue",
    "Scope",
    "Section",
    "SecurityReviewResult",
    "StatusUpdate",
    "SubscriptionCancel",
    "SubscriptionEnded",
    "SubscriptionNotice",
    "SubscriptionOpen",
    "SubscriptionOpened",
    "TaskAccepted",
    "TaskArtifact",
    "TaskCancel",
    "TaskClarification",
    "TaskClarified",
    "TaskHandoff",
    "TaskRejected",
    "TaskRequest",
    "TaskResult",
    "TaskSpec",
    "TestExecutionRequest",
    "TestExecutionResult",
    "TestRun",
    "ToolCall",
    "ToolError",
    "ToolResult",
    "TrustLifted",
    "UsageReported",
    "WaitDue",
    "WorkflowStart",
]

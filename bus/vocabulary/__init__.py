"""Built-in payload types: what agents say to each other without defining types of their own."""

from bus.payloads.payload_types import Registry
from bus.vocabulary.core import ApprovalRequest, ErrorReported, StatusUpdate, TaskHandoff, ToolResult
from bus.vocabulary.review import DraftOutput, ResearchOutput, ResearchRequest, ReviewOutput

__all__ = ["BUILT_IN"]

BUILT_IN = Registry(
    (
        ApprovalRequest,
        DraftOutput,
        ErrorReported,
        ResearchOutput,
        ResearchRequest,
        ReviewOutput,
        StatusUpdate,
        TaskHandoff,
        ToolResult,
    )
)
"""Every type of the vocabulary."""

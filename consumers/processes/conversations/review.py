"""Iterated review: an author drafts, a reviewer judges, until it is approved or the rounds are used up.

    phase       event                                         then
    drafting    the draft                                     drafted, and sent to the reviewer
    drafted     review.result, approved                       approved
    drafted     review.result, otherwise, round < n           drafting, with what is to be changed
    drafted     review.result, otherwise, round = n           abandoned
    any         refusal, death or silence of either           abandoned

A subclass defines the message that starts it, the request for a draft, and the criteria of the review.
"""

from __future__ import annotations

from types import MappingProxyType

import msgspec

from bus.vocabulary.parts import Ref
from bus.vocabulary.review import ReviewRequest, ReviewResult
from bus.vocabulary.task import TaskRequest, TaskResult
from consumers.processes.sagas.context import SagaContext
from consumers.processes.sagas.rules import Saga, on_answer, on_failure

__all__ = ["IteratedReview", "ReviewState"]


class ReviewState(msgspec.Struct, kw_only=True):
    """One review."""

    phase: str = ""
    round: int = 0
    rounds: int = 3
    author: str = ""
    reviewer: str = ""
    goal: str = ""
    within_s: float = 600.0
    remarks: list[str] = []
    """The changes that the last review requires."""


class IteratedReview(Saga[ReviewState], abstract=True):
    """Requests drafts and reviews until a draft is approved. A subclass starts it, and handles its result.

    class Writing(IteratedReview, version="1.0.0"):
        @on_start(ArticleWanted)
        async def wanted(self, article, context):
            self.begin(context, article.title, author="writer@svc", reviewer="critic@svc", rounds=3)

        async def approved(self, review, context): context.answer(...)
        async def abandoned(self, why, context): context.answer(...)
    """

    phases = MappingProxyType({"drafting": ("drafted", "abandoned"), "drafted": ("drafting", "approved", "abandoned")})

    async def approved(self, review: ReviewResult, context: SagaContext) -> None:
        """Act on an approved draft."""
        raise NotImplementedError

    async def abandoned(self, why: str, context: SagaContext) -> None:
        """Act on a draft that was not approved in the last round, or an author or reviewer who is gone."""
        raise NotImplementedError

    def subject(self, draft: TaskResult, context: SagaContext) -> Ref:
        """Return the subject of the review: by default the first artifact of *draft*, else the message itself."""
        return draft.artifacts[0] if draft.artifacts else Ref(uri=f"message:{context.message.seal}", sha256=None)

    def begin(
        self,
        context: SagaContext,
        goal: str,
        *,
        author: str,
        reviewer: str,
        rounds: int = 3,
        within_s: float = 600.0,
    ) -> None:
        """Ask *author* for a draft; each turn of each round may take *within_s* seconds."""
        state = self.state
        state.author, state.reviewer, state.goal = author, reviewer, goal
        state.rounds, state.within_s = rounds, within_s
        self._draft(context)

    @on_answer("draft", TaskResult)
    async def drafted(self, draft: TaskResult, context: SagaContext) -> None:
        state = self.state
        if draft.status != "completed":
            await self._end(f"the author has {draft.status}", context)
            return
        state.phase = "drafted"
        request = ReviewRequest(
            subject_ref=self.subject(draft, context), subject_type="document", goal=state.goal, round=state.round
        )
        context.ask("review", request, to=state.reviewer, answer_by_s=state.within_s, task_id=context.task_id)

    @on_answer("review", ReviewResult)
    async def reviewed(self, review: ReviewResult, context: SagaContext) -> None:
        state = self.state
        if review.verdict == "approved":
            state.phase = "approved"
            await self.approved(review, context)
            context.finish("completed")
        elif state.round >= state.rounds:
            await self._end(f"not approved in {state.rounds} rounds", context)
        else:
            state.remarks = [item.finding for item in review.items] or [review.summary or review.verdict]
            self._draft(context)

    @on_failure("draft")
    async def author_gone(self, context: SagaContext) -> None:
        await self._end(f"the author: {_report_text(context)}", context)

    @on_failure("review")
    async def reviewer_gone(self, context: SagaContext) -> None:
        await self._end(f"the reviewer: {_report_text(context)}", context)

    def _draft(self, context: SagaContext) -> None:
        state = self.state
        state.phase, state.round = "drafting", state.round + 1
        request = TaskRequest(goal=state.goal, inputs={"round": state.round, "remarks": list(state.remarks)})
        context.ask("draft", request, to=state.author, answer_by_s=state.within_s, task_id=context.task_id)

    async def _end(self, why: str, context: SagaContext) -> None:
        self.state.phase = "abandoned"
        await self.abandoned(why, context)
        context.finish("failed", why)


def _report_text(context: SagaContext) -> str:
    failure = context.failure
    return "silent" if failure is None else f"{failure.kind} {failure.reason}".strip()

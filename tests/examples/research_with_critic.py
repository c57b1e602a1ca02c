"""A writer drafts, a critic reviews, until the critic agrees or the rounds are used up.

sealbus run research_with_critic:editor research_with_critic:writer research_with_critic:critic
"""

from __future__ import annotations

import msgspec

from sealbus import App, payload
from sealbus.patterns import IteratedReview
from sealbus.sagas import SagaContext, on_start
from sealbus.vocabulary import ReviewItem, ReviewRequest, ReviewResult, TaskRequest, TaskResult


@payload("article.wanted", version="1.0.0")
class ArticleWanted(msgspec.Struct, frozen=True, kw_only=True):
    title: str


@payload("article.ended", version="1.0.0")
class ArticleEnded(msgspec.Struct, frozen=True, kw_only=True):
    rounds: int
    how: str


class Writing(IteratedReview, version="1.0.0"):
    @on_start(ArticleWanted)
    async def wanted(self, article: ArticleWanted, context: SagaContext) -> None:
        self.begin(context, article.title, author="writer@svc", reviewer="critic@svc", rounds=3)

    async def approved(self, review: ReviewResult, context: SagaContext) -> None:
        context.answer(ArticleEnded(rounds=self.state.round, how="approved"))

    async def abandoned(self, why: str, context: SagaContext) -> None:
        context.answer(ArticleEnded(rounds=self.state.round, how=why))


editor = App("editor@svc", types=[TaskRequest, ReviewRequest, ArticleEnded])
editor.add(Writing)
writer, critic = App("writer@svc"), App("critic@svc")


@writer.on(TaskRequest)
async def write(task: TaskRequest) -> TaskResult:
    """Write what is asked for, and name a source once the critic has missed it."""
    remarks = task.inputs["remarks"]
    return TaskResult(status="completed", summary="with a source" if remarks else "from memory")


@critic.on(ReviewRequest)
async def judge(request: ReviewRequest) -> ReviewResult:
    """A first draft has no sources."""
    if request.round > 1:
        return ReviewResult(verdict="approved")
    finding = ReviewItem(severity="high", category="sources", finding="names no source", blocking=True)
    return ReviewResult(verdict="changes_requested", items=(finding,))


async def test_the_second_draft_is_approved() -> None:
    async with editor.test(writer, critic) as bus:
        ended = await bus.request(ArticleWanted(title="tea"), ArticleEnded, timeout_s=3_000)
        assert ended == ArticleEnded(rounds=2, how="approved")


async def test_a_critic_who_is_silent_ends_the_article() -> None:
    async with editor.test(writer) as bus:
        ended = await bus.request(ArticleWanted(title="tea"), ArticleEnded, timeout_s=3_000)
        assert ended == ArticleEnded(rounds=1, how="the reviewer: silent")

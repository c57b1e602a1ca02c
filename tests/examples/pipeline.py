"""A pipeline of three agents: each takes what the one before returns. All of it is one conversation.

sealbus run pipeline:research pipeline:write pipeline:review
"""

from __future__ import annotations

import msgspec

from sealbus import App, Context, payload


@payload("topic.chosen")
class TopicChosen(msgspec.Struct, frozen=True, kw_only=True):
    topic: str


@payload("facts.found")
class FactsFound(msgspec.Struct, frozen=True, kw_only=True):
    topic: str
    facts: list[str]


@payload("draft.written")
class DraftWritten(msgspec.Struct, frozen=True, kw_only=True):
    text: str


@payload("article.approved")
class ArticleApproved(msgspec.Struct, frozen=True, kw_only=True):
    text: str


research, write, review = App("researcher@svc"), App("writer@svc"), App("reviewer@svc")


@research.on(TopicChosen)
async def find(chosen: TopicChosen) -> FactsFound:
    return FactsFound(topic=chosen.topic, facts=[f"{chosen.topic} is old", f"{chosen.topic} is liked"])


@write.on(FactsFound)
async def draft(found: FactsFound) -> DraftWritten:
    return DraftWritten(text=f"{'; '.join(found.facts)}.")


@review.on(DraftWritten)
async def approve(written: DraftWritten, context: Context) -> ArticleApproved:
    # What came before can be followed: two messages caused this one.
    assert context.message.metadata.hops == 2
    return ArticleApproved(text=written.text)


async def test_a_topic_becomes_an_article_in_one_conversation() -> None:
    async with research.test(write, review) as bus:
        receipt = await bus.publish(TopicChosen(topic="tea"))
        await bus.settle()
        bus.assert_all_handled()
        assert bus.sent(ArticleApproved) == [ArticleApproved(text="tea is old; tea is liked.")]
        (article,) = bus.messages(ArticleApproved)
        assert article.metadata.conversation_id == receipt.message_id

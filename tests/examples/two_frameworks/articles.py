"""The message types that the three agents share."""

from __future__ import annotations

import msgspec

from sealbus import payload


@payload("article.wanted", version="1.0.0", performative="request")
class ArticleWanted(msgspec.Struct, frozen=True, kw_only=True):
    """Asks the supervisor for an article."""

    topic: str


@payload("article.facts-wanted", version="1.0.0", performative="request")
class FactsWanted(msgspec.Struct, frozen=True, kw_only=True):
    """Ask the researcher for facts about a topic."""

    topic: str


@payload("article.facts", version="1.0.0", performative="inform")
class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What the researcher has found."""

    text: str


@payload("article.draft-wanted", version="1.0.0", performative="request")
class DraftWanted(msgspec.Struct, frozen=True, kw_only=True):
    """Ask the writer for a text that rests on facts."""

    facts: str


@payload("article.written", version="1.0.0", performative="inform")
class Article(msgspec.Struct, frozen=True, kw_only=True):
    """The text."""

    text: str
